"""How far one look through a queue has come. This file must not call SQS."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from email.utils import parsedate_to_datetime
from typing import Any, Final

#: Answers in a row that show nothing new, after which there is nothing new.
_OLD_ANSWERS: Final = 10
#: How far a server's `Date` may be behind its clock: it tells seconds, and some servers keep it for one.
_COARSE_MS: Final = 2_000


class Look:
    """One look.

    It ends where SQS has nothing more to show: nothing at all, or only what was seen or came after it began. That is by
    SQS's own clock, of which an answer tells seconds: of many letters, one that comes just then may be shown.
    """

    def __init__(self) -> None:
        self.ended = False
        self._seen: set[str] = set()
        self._until_ms: int | None = None
        self._old = 0

    @property
    def begun(self) -> bool:
        """Whether anything was shown."""
        return self._until_ms is not None

    def at(self, came: Sequence[Mapping[str, Any]], now_ms: int) -> list[Mapping[str, Any]]:
        """What of an answer is new."""
        if self._until_ms is None:
            self._until_ms = max(now_ms + _COARSE_MS, *map(age, came))
        new = [raw for raw in came if raw["MessageId"] not in self._seen and age(raw) <= self._until_ms]
        self._seen.update(raw["MessageId"] for raw in new)
        self._old = 0 if new else self._old + 1
        self.ended = self._old >= _OLD_ANSWERS
        return new

    def again(self, raw: Mapping[str, Any]) -> None:
        """One that was not shown, though it came: it is new when it comes again."""
        self._seen.discard(raw["MessageId"])
        self.ended = False
        self._old = 0


def age(raw: Mapping[str, Any]) -> int:
    """When a message was sent, milliseconds since the epoch."""
    return int((raw.get("Attributes") or {}).get("SentTimestamp", 0))


def server_ms(answer: Mapping[str, Any]) -> int:
    """What SQS's clock says, to the second; ours, if it does not tell."""
    text = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date", "")
    try:
        return int(parsedate_to_datetime(text).timestamp() * 1000)
    except ValueError:
        return time.time_ns() // 1_000_000
