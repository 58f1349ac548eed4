"""One owned partition: the records fetched of it, and which of them may be leased next.

The lowest offset comes first. A record that waits out a delay holds back the later records of its key that were not
leased yet; records of other keys, and those without a key, go on. No I/O: times are arguments, in seconds.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import Final, NamedTuple

from redelivery.contract.message import Message
from redelivery_kafka.client.offset_map import OffsetMap

_SECOND_MS: Final = 1000


class Fetched(NamedTuple):
    """A record of the log.

    Attributes:
        message: the message.
        fault: what of it could not be decoded.
        log_append_time: whether its time is that of the broker.
        nbytes: of the message, where they are counted.
    """

    message: Message
    fault: str | None = None
    log_append_time: bool = False
    nbytes: int = 0


class Lease:
    """A record that is fetched and not settled; once it is leased, that delivery of it.

    Attributes:
        partition: of which it is.
        offset: its offset.
        record: the record.
        held: it is leased, and neither settled nor released.
        letter: the letter of it that the dead letter topic has already stored.
    """

    __slots__ = ("held", "letter", "offset", "partition", "record")

    def __init__(self, partition: Partition, offset: int, record: Fetched) -> None:
        self.partition = partition
        self.offset = offset
        self.record = record
        self.held = False
        self.letter: Message | None = None

    def __repr__(self) -> str:
        return f"Lease({self.partition.number}/{self.offset})"


class Partition:
    """State of an owned partition.

    Args:
        number: the partition.
        offsets: as its group has committed them; None: it has committed nothing, and the first record fetched is the
            first of the log.
        high: the offset behind the last record when the partition was assigned.

    Attributes:
        records: those that are fetched and not settled, by offset.
        leased: how many of them are leased.
        nbytes: of the records that are fetched and not leased.
        at_end: all records of the log are fetched, as far as the client has said.
        paused: no more is fetched.
        committed: metadata and offset that were committed last.
    """

    def __init__(self, number: int, offsets: OffsetMap | None, high: int) -> None:
        self.number = number
        self.offsets = OffsetMap(-1) if offsets is None else offsets
        self.leased = 0
        self.nbytes = 0
        self.at_end = False
        self.paused = False
        self.committed = ("", -1)
        self._high = high
        self._next = self.offsets.base
        self._reached_end = self._next >= high
        self._known = self.offsets.end
        self.records: dict[int, Lease] = {}
        self._ready: list[int] = []
        self._waiting: list[tuple[float, int]] = []
        self._waiting_by_key: dict[bytes, set[int]] = {}
        self._held_back: dict[bytes, list[int]] = {}

    @property
    def caught_up(self) -> bool:
        """Whether a record is fetched, or everything that the partition held when it was assigned."""
        return self._reached_end or bool(self.records)

    @property
    def buffered(self) -> int:
        """Records fetched and not leased."""
        return len(self.records) - self.leased

    @property
    def ready(self) -> int:
        """Records that nothing holds back."""
        return len(self._ready)

    @property
    def next_due(self) -> float | None:
        """When the next of those that wait may be leased."""
        return self._waiting[0][0] if self._waiting else None

    # --- fetching ---

    def fetched(self, offset: int, record: Fetched, *, now: float, now_ms: int) -> bool:
        """Add a fetched record. Return False if the log went back: it is another record, and the state is invalid."""
        if self._next < 0:
            self.offsets.base = self._next = offset
        if offset < self.offsets.base:
            return False
        if offset < self._next:
            return True
        if offset > self._next:  # no record between: compacted, or the mark of a transaction
            self.offsets.settle(self._next, offset)
        self._next = offset + 1
        self.at_end = False
        self._reached_end = self._reached_end or self._next >= self._high
        known = offset < self._known
        if known and offset in self.offsets:
            return True
        self.records[offset] = Lease(self, offset, record)
        self.nbytes += record.nbytes
        attempts = self.offsets.attempts(offset) if known else None
        if attempts is not None and attempts.due_ms is not None:
            self._wait(offset, now + (attempts.due_ms - now_ms) / _SECOND_MS)
        else:
            heapq.heappush(self._ready, offset)
        return True

    def ended(self, offset: int) -> None:
        """All records below `offset` are fetched, and the log has none at it yet."""
        self._reached_end = self.at_end = True
        if 0 <= self._next < offset:
            self.offsets.settle(self._next, offset)
            self._next = offset

    # --- leasing ---

    def take(self, most: int, now: float) -> list[int]:
        """Take up to `most` records that may be leased. Each is then leased, or released."""
        while self._waiting and self._waiting[0][0] <= now:
            self._end_wait(heapq.heappop(self._waiting)[1])
        room = self.offsets.room(self.leased) if self._ready else 0
        if room or self.leased or not self._ready:
            return self._take(self._ready, min(most, room))
        if not self.offsets.full:
            return self._take(self._ready, min(most, 1))
        # The metadata is full. A record that is in it already makes it no longer.
        again = [each for each in self._ready if self.offsets.attempts(each) is not None]
        others = [each for each in self._ready if self.offsets.attempts(each) is None]
        heapq.heapify(again)
        taken = self._take(again, min(most, 1))
        self._ready = again + others
        heapq.heapify(self._ready)
        return taken

    def _take(self, ready: list[int], most: int) -> list[int]:
        """Take up to `most` off this heap, and put aside those that a waiting record holds back."""
        if not self._waiting_by_key:
            return [heapq.heappop(ready) for _ in range(min(most, len(ready)))]
        taken: list[int] = []
        while ready and len(taken) < most:
            offset = heapq.heappop(ready)
            key = self.records[offset].record.message.key
            if key in self._waiting_by_key and min(self._waiting_by_key[key]) < offset:
                self._held_back.setdefault(key, []).append(offset)
            else:
                taken.append(offset)
        return taken

    def release(self, offsets: Iterable[int]) -> None:
        """Allow these to be leased (again) at once."""
        for offset in offsets:
            self._end_lease(offset)
            heapq.heappush(self._ready, offset)

    def lease(self, offset: int) -> Lease:
        """Lease a record that was taken."""
        lease = self.records[offset]
        lease.held = True
        self.leased += 1
        self.nbytes -= lease.record.nbytes
        return lease

    def _end_lease(self, offset: int) -> None:
        """The record stays, for another delivery."""
        lease = self.records[offset]
        if lease.held:
            lease.held = False
            self.leased -= 1
            self.nbytes += lease.record.nbytes
            self.records[offset] = Lease(self, offset, lease.record)

    # --- settling; the caller writes the outcome into `offsets` ---

    def settled(self, offset: int) -> None:
        """A leased record is settled."""
        self.records.pop(offset).held = False
        self.leased -= 1

    def delayed(self, offset: int, due: float) -> None:
        """A leased record may be leased again, but not before `due`."""
        self._end_lease(offset)
        self._wait(offset, due)

    def _wait(self, offset: int, due: float) -> None:
        heapq.heappush(self._waiting, (due, offset))
        key = self.records[offset].record.message.key
        if key is not None:
            self._waiting_by_key.setdefault(key, set()).add(offset)

    def _end_wait(self, offset: int) -> None:
        """A record has waited long enough, and no longer holds back others."""
        heapq.heappush(self._ready, offset)
        key = self.records[offset].record.message.key
        waiting = self._waiting_by_key.get(key) if key is not None else None
        if key is None or waiting is None:
            return
        waiting.discard(offset)
        if not waiting:
            del self._waiting_by_key[key]
        for held in self._held_back.pop(key, ()):  # those that another one holds back are put aside again
            heapq.heappush(self._ready, held)
