"""One partition that we own: the records fetched of it, and which of them may be given next.

Lowest offset first. What waits out a delay holds back the later records of its own key that were not given yet; records
of other keys, and those without a key, go on. This file must not do I/O: times are arguments, in seconds.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from redelivery.contract.message import Message
from redelivery_kafka.offsets import Ledger, Tries

_SECOND_MS: Final = 1000


@dataclass(slots=True, eq=False)
class Lease:
    """One delivery of a record. `letter` is what of it the dead letter topic has already."""

    partition: Partition
    offset: int
    letter: Message | None = None

    def __repr__(self) -> str:
        return f"Lease({self.partition.number}/{self.offset})"


class Partition:
    """What is known of an owned partition.

    Args:
        number: the partition.
        ledger: as its group had committed it; None: it had not, and the first record fetched is the first of all.
        high: the offset behind the last record when it was assigned.

    Attributes:
        in_hand: records given and not settled, with their lease.
        nbytes: of the records that are fetched and not under lease.
        looked: whether all that was there when it was assigned has been fetched.
        paused: no more is fetched.
    """

    def __init__(self, number: int, ledger: Ledger | None, high: int) -> None:
        self.number = number
        self.ledger = Ledger(-1) if ledger is None else ledger
        self.in_hand: dict[int, Lease] = {}
        self.nbytes = 0
        self.paused = False
        self.committed = ("", -1)
        self._high = high
        self._next = self.ledger.base
        self._end = self._next >= high
        self._messages: dict[int, Message] = {}
        self._faults: dict[int, str] = {}
        self._appended: set[int] = set()
        self._ready: list[int] = []
        self._waiting: list[tuple[float, int]] = []
        self._holds: dict[bytes, set[int]] = {}
        self._held: dict[bytes, list[int]] = {}

    @property
    def looked(self) -> bool:
        return self._end or bool(self._messages)

    @property
    def buffered(self) -> int:
        """Records fetched and not under lease."""
        return len(self._messages) - len(self.in_hand)

    @property
    def next_due(self) -> float | None:
        """When the next of those that wait may be given."""
        return self._waiting[0][0] if self._waiting else None

    def message(self, offset: int) -> Message:
        """A record that is fetched and not settled."""
        return self._messages[offset]

    def fault(self, offset: int) -> str | None:
        """What of a record could not be decoded."""
        return self._faults.get(offset)

    def is_stamped_by_broker(self, offset: int) -> bool:
        """Whether a record's timestamp is the time at which the broker stored it."""
        return offset in self._appended

    # --- fetching ---

    def fetched(
        self,
        offset: int,
        message: Message,
        fault: str | None = None,
        *,
        now: float,
        now_ms: int,
        stamped_by_broker: bool = False,
    ) -> bool:
        """Take a record. False where the log went back: it is another one, and what is known of it is of no use."""
        if self._next < 0:
            self.ledger.base = self._next = offset
        if offset < self.ledger.base:
            return False
        if offset < self._next:
            return True
        self.ledger.settle(self._next, offset)  # what lies between is not there: compacted, or a mark of a transaction
        self._next = offset + 1
        self._end = self._end or self._next >= self._high
        if self.ledger.is_done(offset):
            return True
        self._messages[offset] = message
        if fault is not None:
            self._faults[offset] = fault
        if stamped_by_broker:
            self._appended.add(offset)
        self.nbytes += message.nbytes
        tries = self.ledger.tries.get(offset)
        if tries is not None and tries.due_ms is not None:
            self._wait(offset, now + (tries.due_ms - now_ms) / _SECOND_MS)
        else:
            heapq.heappush(self._ready, offset)
        return True

    def ended(self, offset: int) -> None:
        """There is nothing at `offset` yet, and nothing before it that is not fetched."""
        self._end = True
        if 0 <= self._next < offset:
            self.ledger.settle(self._next, offset)
            self._next = offset

    # --- giving ---

    def choose(self, most: int, now: float) -> list[int]:
        """Take up to `most` records that may be given; what is not given goes `back`."""
        while self._waiting and self._waiting[0][0] <= now:
            self._free(heapq.heappop(self._waiting)[1])
        room = self.ledger.room
        if room or self.in_hand or not self._ready:
            return self._choose(self._ready, min(most, room))
        if not self.ledger.full:
            return self._choose(self._ready, min(most, 1))
        # Nothing more can be remembered. To give again what is remembered makes that no longer.
        again = [each for each in self._ready if each in self.ledger.tries]
        others = [each for each in self._ready if each not in self.ledger.tries]
        heapq.heapify(again)
        chosen = self._choose(again, min(most, 1))
        self._ready = again + others
        heapq.heapify(self._ready)
        return chosen

    def _choose(self, ready: list[int], most: int) -> list[int]:
        """Take up to `most` off this heap, and put aside those that others hold back."""
        chosen: list[int] = []
        while ready and len(chosen) < most:
            offset = heapq.heappop(ready)
            key = self._messages[offset].key
            if key in self._holds and min(self._holds[key]) < offset:
                self._held.setdefault(key, []).append(offset)
            else:
                chosen.append(offset)
        return chosen

    def back(self, offsets: Sequence[int]) -> None:
        """These may be given (again) at once."""
        for offset in offsets:
            if self.in_hand.pop(offset, None) is not None:
                self.nbytes += self._messages[offset].nbytes
            heapq.heappush(self._ready, offset)

    def give(self, offset: int) -> Lease:
        """Put a chosen record into the caller's hand."""
        lease = self.in_hand[offset] = Lease(self, offset)
        self.nbytes -= self._messages[offset].nbytes
        return lease

    @staticmethod
    def count(ledger: Ledger, offsets: Sequence[int], now_ms: int) -> None:
        """These are given once more."""
        for offset in offsets:
            known = ledger.tries.get(offset)
            attempts, first_ms = (known.attempts, known.first_ms) if known is not None else (0, now_ms)
            ledger.tries[offset] = Tries(attempts + 1, first_ms)

    # --- settling; what of it is remembered, the caller writes into `ledger` ---

    def settled(self, offset: int) -> None:
        """It is done with."""
        del self.in_hand[offset]
        del self._messages[offset]
        self._faults.pop(offset, None)
        self._appended.discard(offset)

    def delayed(self, offset: int, due: float) -> None:
        """It may be given again, but not before `due`."""
        del self.in_hand[offset]
        self.nbytes += self._messages[offset].nbytes
        self._wait(offset, due)

    def _wait(self, offset: int, due: float) -> None:
        heapq.heappush(self._waiting, (due, offset))
        key = self._messages[offset].key
        if key is not None:
            self._holds.setdefault(key, set()).add(offset)

    def _free(self, offset: int) -> None:
        """It has waited long enough, and holds back nobody any more."""
        heapq.heappush(self._ready, offset)
        key = self._messages[offset].key
        holds = self._holds.get(key) if key is not None else None
        if key is None or holds is None:
            return
        holds.discard(offset)
        if not holds:
            del self._holds[key]
        for held in self._held.pop(key, ()):  # those that another one holds back are put aside again
            heapq.heappush(self._ready, held)
