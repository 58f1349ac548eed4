"""`Redriven`: how many letters redrives have sent back, from the audit log of this user on this host.

A redrive from the command line or the page is recorded there; one that a program runs by the Python API is not.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from typing import Final

from redelivery.deadletters.audit import DONE, FAILED, AuditLog, Entry

#: The counts of a redrive that are outcomes; a mapping counts by reason.
OUTCOMES: Final = ("redriven", "failed", "left", "returned")
#: What counts as a redrive, and what the broker's own redrive counts.
_ACTIONS: Final = frozenset({"redrive", "move-back"})
_MOVED: Final = "moved"
#: Lines that are read, and operations that are remembered.
_LAST: Final = 1000


class Redriven:
    """Counts the outcomes of redrives that end while it is asked.

    Args:
        log: where they are recorded.
        since_ms: only those that end at this time or later, milliseconds since the epoch.
    """

    def __init__(self, log: AuditLog, since_ms: int) -> None:
        self._log = log
        self._since_ms = since_ms
        self._size = -1
        self._seen: deque[str] = deque(maxlen=2 * _LAST)
        self.counts: Counter[str] = Counter()

    def look(self, place: str) -> None:
        """Count what was recorded of a place since the last look; the log is read where it has grown.

        Args:
            place: redacted URL of the dead letter queue.

        Raises:
            JournalError: the log cannot be read.
        """
        size = self._log.size
        if size == self._size:
            return
        for entry in self._log.entries(place, last=_LAST):
            ended = entry.action in _ACTIONS and entry.outcome in {DONE, FAILED} and entry.at_ms >= self._since_ms
            if ended and entry.operation not in self._seen:
                self._seen.append(entry.operation)
                self.counts.update(_counts(entry))
        self._size = size


def _counts(entry: Entry) -> dict[str, int]:
    found = {}
    for name in OUTCOMES:
        said = entry.details.get(name)
        if name == "redriven":
            said = entry.details.get(_MOVED, said)
        if isinstance(said, Mapping):
            said = sum(each for each in said.values() if isinstance(each, int))
        if isinstance(said, int) and said > 0:
            found[name] = said
    return found
