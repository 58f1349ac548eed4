"""`KeyOrder`: rows of one key reach the destination in the order in which they came.

A key is *held* while one of its rows has failed and waits, or goes to the sinks. Where the broker itself keeps no
order, a key is also held while any of its rows is unsettled. Rows of a held key wait behind it, in their order; waiting
there spends no budget. Rows without a key have no order.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from redelivery.contract.message import Batch
from redelivery.errors import DeliveryFailed
from redelivery.sending.record import Record

#: Keys that may be parked in one task; more mean an outage, and not poison.
MAX_PARKED: Final = 100_000


@dataclass(slots=True)
class _Held:
    """A held key: how many of its rows are under way, which of those wait to be sent, and the rows behind them."""

    under_way: int = 0
    waiting: set[int] = field(default_factory=set)
    behind: list[tuple[int, Record]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Admitted:
    """A fresh batch, sorted: indexes of rows that may go now, that must wait, and that are parked."""

    now: list[int]
    later: list[int]
    parked: list[int]


class KeyOrder:
    """Keeps the order of one destination's keys.

    Args:
        native: the broker keeps the order of the rows in flight to it, and answers `NotSent` for the rows behind a
            failed one (`Batch.ordered`).
        park: when a row is dead-lettered, its successors are dead-lettered too; False: they are delivered.
        release: passes a row on to be sent.
    """

    def __init__(self, *, native: bool, park: bool, release: Callable[[Record], None]) -> None:
        self._native = native
        self._park = park
        self._release = release
        self._held: dict[bytes, _Held] = {}
        #: Keys with a dead row, and the first such row.
        self._parked: dict[bytes, int] = {}
        self.waiting = 0
        self.waiting_bytes = 0

    def admit(self, batch: Batch) -> Admitted:
        """Sort a fresh batch."""
        admitted = Admitted([], [], [])
        keys = batch.key.values if batch.key is not None else [None] * len(batch)
        for index, key in enumerate(keys):
            if key is not None and key in self._parked:
                admitted.parked.append(index)
            elif key is not None and key in self._held:
                admitted.later.append(index)
            else:
                admitted.now.append(index)
                if key is not None and not self._native:
                    self._held[key] = _Held(under_way=1)
        return admitted

    def begin(self, record: Record) -> None:
        """Note that an admitted row is sent alone and not with its batch."""
        key = record.message.key
        record.holds = key is not None
        if key is not None and self._native:
            self._held.setdefault(key, _Held()).under_way += 1
        self._release(record)

    def delivered(self, keys: Iterable[bytes | None]) -> None:
        """Note that fresh rows were delivered at once."""
        if not self._native:
            for key in keys:
                self._settle(key)

    def failed(self, record: Record) -> None:
        """Note that a row has failed: its key is held until the row is done."""
        key = record.message.key
        if key is None or record.holds:
            return
        record.holds = True
        if self._native:
            self._held.setdefault(key, _Held()).under_way += 1

    def waits(self, record: Record) -> None:
        """Note that a row of a held key waits to be sent, now or later."""
        if record.holds and record.message.key is not None:
            self._held[record.message.key].waiting.add(record.position)

    def may_go(self, record: Record) -> bool:
        """Return whether a due row may be sent; where an earlier row of its key still waits, put it behind that one."""
        held = self._held.get(record.message.key) if record.message.key is not None else None
        if held is None:
            return True
        held.waiting.discard(record.position)
        earlier = min(held.waiting, default=record.position), held.behind[0][0] if held.behind else record.position
        if record.position <= min(earlier):
            return True
        self.wait(record)
        return False

    def is_parked(self, record: Record) -> bool:
        """Return whether an earlier row of its key is dead, and this one must follow it."""
        key = record.message.key
        return key in self._parked and record.position > self._parked[key]

    def wait(self, record: Record) -> None:
        """Put a row behind its key: the key was held when the row came, or the row was not sent."""
        key = record.message.key
        if key is None:
            self._release(record)
            return
        held = self._held.setdefault(key, _Held())
        heapq.heappush(held.behind, (record.position, record))
        self.waiting += 1
        self.waiting_bytes += record.message.nbytes
        if record.holds:
            record.holds = False
            held.under_way -= 1
        self._go_on(key, held)

    def done(self, record: Record) -> None:
        """Note that a row is delivered, or that a sink has confirmed it: the next row of its key may go."""
        if record.holds:
            record.holds = False
            self._settle(record.message.key)

    def given_up(self, record: Record) -> list[Record]:
        """Note that a row goes to the sinks. With `park`, return its successors, which must go there too."""
        key = record.message.key
        if key is None or not self._park:
            return []
        self._parked[key] = min(record.position, self._parked.get(key, record.position))
        if len(self._parked) > MAX_PARKED:
            raise DeliveryFailed(f"more than {MAX_PARKED} keys are parked behind dead letters: this is an outage")
        held = self._held.get(key)
        if held is None:
            return []
        successors = sorted(entry for entry in held.behind if entry[0] > record.position)
        held.behind = [entry for entry in held.behind if entry[0] <= record.position]
        heapq.heapify(held.behind)
        self.waiting -= len(successors)
        self.waiting_bytes -= sum(each.message.nbytes for _, each in successors)
        return [each for _, each in successors]

    def _settle(self, key: bytes | None) -> None:
        held = self._held.get(key) if key is not None else None
        if held is not None and key is not None:
            held.under_way -= 1
            self._go_on(key, held)

    def _go_on(self, key: bytes, held: _Held) -> None:
        """Release the next row if none of its key is under way; all of them where the broker keeps their order."""
        if held.under_way > 0:
            return
        if not held.behind:
            del self._held[key]
            return
        going = len(held.behind) if self._native else 1
        held.under_way = going
        for _ in range(going):
            _, record = heapq.heappop(held.behind)
            record.holds = True
            self.waiting -= 1
            self.waiting_bytes -= record.message.nbytes
            self._release(record)
