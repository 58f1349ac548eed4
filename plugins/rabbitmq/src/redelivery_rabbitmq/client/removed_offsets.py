"""Which letters of a stream are removed: a second stream, `<name>-removed`, as a stream keeps all that it holds.

Each of its messages is a JSON object:

    removed   the offsets: [start, end] each, with the end outside
    whole     true: all that was removed before `from`, too
    from      where to begin reading this stream: at or before the newest message with `whole`

What is removed only grows, so two processes that remove at the same time add up.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final

from redelivery.kit.offsets import Offsets
from redelivery_rabbitmq.client.stream_reading import Entry, StreamReading

#: Messages after which the next one repeats what all of them say.
_WHOLE: Final = 64


class RemovedOffsets:
    """The removed letters of one stream, as far as they were read."""

    def __init__(self) -> None:
        self.offsets = Offsets()
        #: The offset of the second stream to read next, and where a reader that knows nothing must begin.
        self._next = 0
        self._from = 0
        self._read = 0

    def update(self, reading: StreamReading) -> None:
        """Read what is new.

        Raises:
            BrokerError: as of reading any stream; Fatal, NO_SUCH_DESTINATION: nothing was removed yet.
        """
        newest = reading.newest()
        if newest is None or newest.offset < self._next:
            return
        said = _parsed(newest)
        if self._next == 0 and said is not None:
            self._next = self._from = said["from"]
        for entry in reading.entries(self._next, newest.offset + 1):
            self._take(entry)

    def note(self, added: Iterable[tuple[int, int]]) -> bytes:
        """Return the message that removes these offsets, as (start, end)."""
        runs = [list(each) for each in added]
        whole = self._read >= _WHOLE
        if whole:
            offsets = self.offsets
            known = ([(0, offsets.base)] if offsets.base else []) + offsets.runs()
            runs = [list(each) for each in known] + runs
        begin = self._next if whole else self._from
        return json.dumps({"removed": runs, "whole": whole, "from": begin}, separators=(",", ":")).encode()

    def _take(self, entry: Entry) -> None:
        self._next = entry.offset + 1
        self._read += 1
        said = _parsed(entry)
        if said is None:
            return
        for start, end in said["removed"]:
            self.offsets.add(start, end)
        if said["whole"] and said["from"] >= self._from:
            self._from = said["from"]
            self._read = self._next - self._from


def _parsed(entry: Entry) -> dict[str, Any] | None:
    """Return what a message says; None where it is not ours."""
    try:
        said = json.loads(entry.body)
        sound = type(said["whole"]) is bool and type(said["from"]) is int and 0 <= said["from"] <= entry.offset
        if sound and all(0 <= start <= end for start, end in said["removed"]):
            return {name: said[name] for name in ("removed", "whole", "from")}
    except (ValueError, TypeError, KeyError, RecursionError):
        pass
    return None
