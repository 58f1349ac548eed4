"""What the broker, and we ourselves, write into the headers of a message on its way: attempts, `x-death`, the retry.

All of it is taken out of the message that is handed on, and read here. This file must not do I/O.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from pika.spec import BasicProperties

from redelivery.contract.context import ErrorContext
from redelivery_rabbitmq.client.topology import RETRY
from redelivery_rabbitmq.codec import COPIES

#: Our header on a message that waits, or has waited, out a delay: its attempts so far.
RETRIED: Final = "redelivery-retry"
_COUNTS: Final = ("x-delivery-count", "x-acquired-count")
_DEATH: Final = "x-death"
_DEATHS: Final = ("x-first-death-", "x-last-death-")
_RETRY_QUEUE: Final = re.compile(rf"{re.escape(RETRY)}\d+s\Z")
#: The broker's word -> our kind, and one line for people.
_REASONS: Final[Mapping[str, tuple[str, str]]] = {
    "expired": ("expired", "nobody handled it before it expired"),
    "delivery_limit": ("delivery-limit", "it was delivered as often as the queue's limit of deliveries allows"),
    "rejected": ("rejected", "a consumer rejected it, without a reason"),
    "maxlen": ("maxlen", "the queue had reached its greatest length"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Native:
    """What was in the headers of one delivery.

    Attributes:
        count: deliveries that the queue itself counted before this one; None where it does not count.
        attempts: attempts before the last delayed retry.
        deaths: `x-death`, the newest first.
    """

    count: int | None = None
    attempts: int = 0
    deaths: tuple[Mapping[str, Any], ...] = ()

    def attempt(self, *, redelivered: bool) -> int:
        """The number of this attempt; too low, never too high, where the queue does not count."""
        return self.attempts + 1 + (int(redelivered) if self.count is None else self.count)


def split(properties: BasicProperties) -> tuple[BasicProperties, Native]:
    """The properties as they were sent, but for where to, and what was added on the way."""
    headers = properties.headers
    if not headers:
        return properties, Native()
    plain = {name: value for name, value in headers.items() if not _is_added(name)}
    if len(plain) == len(headers):
        return properties, Native()
    properties = copy(properties)
    properties.headers = plain or None
    deaths = headers.get(_DEATH)
    return properties, Native(
        count=_count(headers.get(_COUNTS[0])),
        attempts=_count(headers.get(RETRIED)) or 0,
        deaths=tuple(each for each in deaths if isinstance(each, Mapping)) if isinstance(deaths, list) else (),
    )


def context(native: Native, message_id: str | None, url: str) -> tuple[ErrorContext | None, int | None]:
    """Why the broker itself dead-lettered a message, and when (ms); None where it did not."""
    deaths = [each for each in native.deaths if not _RETRY_QUEUE.search(str(each.get("queue")))]
    if not deaths:
        return None, None
    newest, oldest = deaths[0], deaths[-1]
    word = str(newest.get("reason"))
    kind, reason = _REASONS.get(word, (word, f"the broker dead-lettered it as {word!r}"))
    dead_ms = _milliseconds(newest.get("time"))
    keys = newest.get("routing-keys")
    said = {
        "count": newest.get("count"),
        "queue": newest.get("queue"),
        "exchange": newest.get("exchange"),
        "routing-keys": ",".join(map(str, keys)) if isinstance(keys, list) else None,
        "original-expiration": newest.get("original-expiration"),
    }
    return ErrorContext(
        reason=f"{reason}, in queue {str(newest.get('queue'))!r}",
        kind=kind,
        broker="rabbitmq",
        destination=url,
        message_id=message_id,
        first_failure_ms=_milliseconds(oldest.get("time")),
        last_failure_ms=dead_ms,
        extra={f"{_DEATH}-{name}": str(value) for name, value in said.items() if value is not None},
    ), dead_ms


def _is_added(name: object) -> bool:
    if not isinstance(name, str):  # pika gives bytes that are not UTF-8
        return False
    return name in _COUNTS or name in COPIES or name in {_DEATH, RETRIED} or name.startswith(_DEATHS)


def _count(value: object) -> int | None:
    return int(value) if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 31 else None


def _milliseconds(value: object) -> int | None:
    if not isinstance(value, datetime):
        return None
    moment = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1000)
