"""`KeyOrder`: rows of one key reach the destination in the order in which they came.

A key is *held* while one of its rows has failed and waits, or goes to the sinks. Where the broker itself keeps no
order, a key is also held while any of its rows is unsettled. Rows of a held key wait behind it, in their order; waiting
there spends no budget. Rows without a key have no order. A row that has failed or waits is a group by itself.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from redelivery.contract.message import Batch
from redelivery.errors import DeliveryFailed
from redelivery.sending.group import Group

#: Keys that may be parked in one task; more mean an outage, and not poison.
MAX_PARKED: Final = 100_000


@dataclass(slots=True)
class _Held:
    """A held key: how many of its rows are under way, which of those wait to be sent, and the rows behind them."""

    under_way: int = 0
    waiting: set[int] = field(default_factory=set)
    behind: list[tuple[int, Group]] = field(default_factory=list)


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

    def __init__(self, *, native: bool, park: bool, release: Callable[[Group], None]) -> None:
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

    def begin(self, group: Group) -> None:
        """Note that an admitted row is sent alone and not with its batch."""
        key = group.key
        group.holds = key is not None
        if key is not None and self._native:
            self._held.setdefault(key, _Held()).under_way += 1
        self._release(group)

    def delivered(self, keys: Iterable[bytes | None]) -> None:
        """Note that fresh rows were delivered at once."""
        if not self._native:
            for key in keys:
                self._settle(key)

    def failed(self, group: Group) -> None:
        """Note that a row has failed: its key is held until the row is done."""
        key = group.key
        if key is None or group.holds:
            return
        group.holds = True
        if self._native:
            self._held.setdefault(key, _Held()).under_way += 1

    def waits(self, group: Group) -> None:
        """Note that a row of a held key waits to be sent, now or later."""
        if group.holds and group.key is not None:
            self._held[group.key].waiting.add(group.position)

    def may_go(self, group: Group) -> bool:
        """Return whether a due row may be sent; where an earlier row of its key still waits, put it behind that one."""
        held = self._held.get(group.key) if group.key is not None else None
        if held is None:
            return True
        held.waiting.discard(group.position)
        earlier = min(held.waiting, default=group.position), held.behind[0][0] if held.behind else group.position
        if group.position <= min(earlier):
            return True
        self.wait(group)
        return False

    def is_parked(self, group: Group) -> bool:
        """Return whether an earlier row of its key is dead, and this one must follow it."""
        key = group.key
        return key in self._parked and group.position > self._parked[key]

    def wait(self, group: Group) -> None:
        """Put a row behind its key: the key was held when the row came, or the row was not sent."""
        key = group.key
        if key is None:
            self._release(group)
            return
        held = self._held.setdefault(key, _Held())
        heapq.heappush(held.behind, (group.position, group))
        self.waiting += 1
        self.waiting_bytes += group.nbytes
        if group.holds:
            group.holds = False
            held.under_way -= 1
        self._go_on(key, held)

    def done(self, group: Group) -> None:
        """Note that a row is delivered, or that a sink has confirmed it: the next row of its key may go."""
        if group.holds:
            group.holds = False
            self._settle(group.key)

    def given_up(self, group: Group) -> list[Group]:
        """Note that a row goes to the sinks. With `park`, return its successors, which must go there too."""
        key = group.key
        if key is None or not self._park:
            return []
        self._parked[key] = min(group.position, self._parked.get(key, group.position))
        if len(self._parked) > MAX_PARKED:
            raise DeliveryFailed(f"more than {MAX_PARKED} keys are parked behind dead letters: this is an outage")
        held = self._held.get(key)
        if held is None:
            return []
        successors = sorted(entry for entry in held.behind if entry[0] > group.position)
        held.behind = [entry for entry in held.behind if entry[0] <= group.position]
        heapq.heapify(held.behind)
        self.waiting -= len(successors)
        self.waiting_bytes -= sum(each.nbytes for _, each in successors)
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
            _, group = heapq.heappop(held.behind)
            group.holds = True
            self.waiting -= 1
            self.waiting_bytes -= group.nbytes
            self._release(group)
