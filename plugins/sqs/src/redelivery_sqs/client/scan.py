"""How far one scan of a queue has come."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from email.utils import parsedate_to_datetime
from typing import Any, Final

#: A scan ends after this many answers in a row without a new message.
_OLD_ANSWERS: Final = 10
#: How far a server's `Date` may be behind its clock: it has whole seconds, and some servers keep it for one more.
_COARSE_MS: Final = 2_000


class Scan:
    """One scan of a queue.

    It ends when SQS has nothing more to show: no message, or only messages that were seen or that arrived after the
    scan began. "After" is by SQS's own clock, of which an answer has whole seconds: a message that arrives just as the
    scan begins may be among the others.
    """

    def __init__(self) -> None:
        self.ended = False
        self._seen: set[str] = set()
        self._until_ms: int | None = None
        self._old_answers = 0

    @property
    def begun(self) -> bool:
        """Whether SQS has shown anything."""
        return self._until_ms is not None

    def new(self, messages: Sequence[Mapping[str, Any]], now_ms: int) -> list[Mapping[str, Any]]:
        """Return the messages of one or several answers that this scan has not seen; `now_ms` is the server's clock.

        A message that SQS has shown twice is returned once, as it came last: its last receipt handle is the valid one.
        """
        if self._until_ms is None:
            self._until_ms = max(now_ms + _COARSE_MS, *map(sent_ms, messages))
        until = self._until_ms
        once = {raw["MessageId"]: raw for raw in messages if sent_ms(raw) <= until}
        found = [raw for name, raw in once.items() if name not in self._seen]
        self._seen.update(raw["MessageId"] for raw in found)
        self._old_answers = 0 if found else self._old_answers + 1
        self.ended = self._old_answers >= _OLD_ANSWERS
        return found

    def forget(self, raw: Mapping[str, Any]) -> None:
        """Count a message as not seen: it is new when SQS shows it again."""
        self._seen.discard(raw["MessageId"])
        self.ended = False
        self._old_answers = 0


def sent_ms(raw: Mapping[str, Any]) -> int:
    """When a message was sent, milliseconds since the epoch."""
    return int((raw.get("Attributes") or {}).get("SentTimestamp", 0))


def server_ms(answer: Mapping[str, Any]) -> int:
    """The time of SQS's clock, to the second; this machine's where the answer has none."""
    text = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date", "")
    try:
        return int(parsedate_to_datetime(text).timestamp() * 1000)
    except ValueError:
        return time.time_ns() // 1_000_000
