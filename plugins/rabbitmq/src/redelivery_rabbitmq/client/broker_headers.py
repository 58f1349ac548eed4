"""The headers that the broker, and our delayed retry, add to a message: delivery count, `x-death`, attempts, `CC`.

They are removed from the message that is handed on.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final

from pika.spec import BasicProperties

from redelivery.codes import Code
from redelivery.contract.context import ErrorContext
from redelivery.kit.letters import given_up
from redelivery_rabbitmq.client.frames import fits_frame
from redelivery_rabbitmq.client.topology import RETRY_SUFFIX

#: Our header on a message with a delayed retry: its attempts so far.
ATTEMPTS: Final = "redelivery-retry"
#: Headers by which a publisher asks for copies. The broker leaves `CC` in the message, and would send them again.
COPIES: Final = frozenset({"CC", "BCC"})

#: Names under which a letter that is written again keeps those, and the user who had published it.
_KEPT: Final = {"CC": "x-redelivery-cc", "BCC": "x-redelivery-bcc"}
_KEPT_USER: Final = "x-redelivery-user-id"
KEPT: Final = frozenset({*_KEPT.values(), _KEPT_USER})

_DELIVERY_COUNT: Final = "x-delivery-count"
_ACQUIRED_COUNT: Final = "x-acquired-count"
_COUNTS: Final = frozenset({_DELIVERY_COUNT, _ACQUIRED_COUNT})
_X_DEATH: Final = "x-death"
_ADDED: Final = COPIES | KEPT | _COUNTS | {ATTEMPTS, _X_DEATH}
_FIRST_DEATH: Final = "x-first-death-"
_ADDED_PREFIXES: Final = (_FIRST_DEATH, "x-last-death-")
_RETRY_QUEUE: Final = re.compile(rf"{re.escape(RETRY_SUFFIX)}\d+s\Z")
#: The broker's reason -> our code, and one line for people.
_REASONS: Final[Mapping[str, tuple[Code, str]]] = {
    "expired": (Code.EXPIRED, "nobody handled it before it expired"),
    "delivery_limit": (Code.DELIVERY_LIMIT, "it was delivered as often as the queue's delivery limit allows"),
    "rejected": (Code.REJECTED, "a consumer rejected it without a reason"),
    "maxlen": (Code.FULL, "the queue had reached its maximum length"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerHeaders:
    """The added headers of one delivery.

    Attributes:
        delivery_count: earlier deliveries that the queue counted; None if it does not count.
        attempts: attempts before the last delayed retry.
        x_death: the entries of `x-death`, newest first.
    """

    delivery_count: int | None = None
    attempts: int = 0
    x_death: tuple[Mapping[str, Any], ...] = ()

    def attempt(self, *, redelivered: bool) -> int:
        """Return the number of this attempt; a lower bound if the queue does not count."""
        if not redelivered:  # from 4.0 on a dead-lettered message brings along the count of its former queue
            return self.attempts + 1
        return self.attempts + 1 + (1 if self.delivery_count is None else self.delivery_count)


NONE: Final = BrokerHeaders()


def split(properties: BasicProperties, *, in_stream: bool = False) -> tuple[BasicProperties, BrokerHeaders]:
    """Separate the properties that were published from the headers that were added.

    Args:
        properties: those of a delivery.
        in_stream: a stream holds the message. Before 4.0 streams drop `x-death`, which is an array, and keep only what
            the broker says beside it of the first death.
    """
    headers = properties.headers
    if not headers:
        return properties, NONE
    published = {name: value for name, value in headers.items() if not _is_added(name)}
    if len(published) == len(headers):
        return properties, NONE
    properties = copy(properties)
    properties.headers = published or None
    deaths = headers.get(_X_DEATH)
    if deaths is None and in_stream and _FIRST_DEATH + "reason" in headers:
        deaths = [{name: headers.get(_FIRST_DEATH + name) for name in ("reason", "queue", "exchange")}]
    return properties, BrokerHeaders(
        # From 4.3 on a message that was only released has no count of deliveries, but one of how often it was taken.
        delivery_count=_count(headers.get(_DELIVERY_COUNT, 0 if _ACQUIRED_COUNT in headers else None)),
        attempts=_count(headers.get(ATTEMPTS)) or 0,
        x_death=tuple(each for each in deaths if isinstance(each, Mapping)) if isinstance(deaths, list) else (),
    )


def uncounted(properties: BasicProperties, user: str | None, frame_max: int) -> BasicProperties:
    """Return the properties for this user to write a message again to its own queue: without its counts.

    Properties that must not be republished are kept under our names, if they fit one frame: `CC` would send copies
    again, and the broker closes the channel of a user who names another.
    """
    properties = copy(properties)
    headers = {name: value for name, value in (properties.headers or {}).items() if name not in COPIES | _COUNTS}
    kept = {
        ours: (properties.headers or {})[name] for name, ours in _KEPT.items() if name in (properties.headers or {})
    }
    if properties.user_id != user:
        if properties.user_id is not None:
            kept[_KEPT_USER] = properties.user_id
        properties.user_id = None
    properties.headers = {**headers, **kept}
    if kept and not fits_frame(b"".join(properties.encode()), frame_max):  # type: ignore[no-untyped-call]
        properties.headers = headers
    return properties


def death_context(headers: BrokerHeaders, message_id: str | None, url: str) -> tuple[ErrorContext | None, int | None]:
    """Return why the broker dead-lettered a message, and when (ms); None, None if it did not."""
    deaths = [each for each in headers.x_death if not _RETRY_QUEUE.search(str(each.get("queue")))]
    if not deaths:
        return None, None
    newest, oldest = deaths[0], deaths[-1]
    word = str(newest.get("reason"))
    code, reason = _REASONS.get(word, (Code.REJECTED, f"the broker dead-lettered it with the reason {word!r}"))
    dead_ms = _milliseconds(newest.get("time"))
    keys = newest.get("routing-keys")
    entry = {
        "count": newest.get("count"),
        "queue": newest.get("queue"),
        "exchange": newest.get("exchange"),
        "routing-keys": ",".join(map(str, keys)) if isinstance(keys, list) else None,
        "original-expiration": newest.get("original-expiration"),
    }
    return given_up(
        "rabbitmq",
        code,
        f"{reason}, in queue {str(newest.get('queue'))!r}",
        native_code=word,
        destination=url,
        message_id=message_id,
        first_failure_ms=_milliseconds(oldest.get("time")),
        last_failure_ms=dead_ms,
        extra={f"{_X_DEATH}-{name}": str(value) for name, value in entry.items() if value is not None},
    ), dead_ms


@lru_cache(maxsize=4096)
def _is_added(name: object) -> bool:
    # pika gives names that are not UTF-8 as bytes
    return isinstance(name, str) and (name in _ADDED or name.startswith(_ADDED_PREFIXES))


def _count(value: object) -> int | None:
    return int(value) if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 31 else None


def _milliseconds(value: object) -> int | None:
    if not isinstance(value, datetime):
        return None
    moment = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1000)
