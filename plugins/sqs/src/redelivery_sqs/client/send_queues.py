"""What waits to be sent to one queue, and which of it goes into the next request.

A standard queue's rows go as they come. Of a FIFO queue's message group one request is in flight at a time, and where
an order is to be kept it holds one row of the group: SQS stores the later rows of a request though an earlier one
fails.

This file must not call SQS. Its objects are used under their sender's lock.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable
from typing import Any, Final

from redelivery.contract.broker import Failure
from redelivery.contract.message import Batch
from redelivery.errors import BrokerError
from redelivery_sqs.address import Address

#: Entries of a request at most.
BATCH: Final = 10

WAITING, FLYING, DONE = 0, 1, 2


class Work:
    """A batch that is not settled yet."""

    __slots__ = ("deadline", "failures", "groups", "isolate", "left", "number", "ordered", "rows", "settled", "states")

    def __init__(self, batch: Batch, deadline: float) -> None:
        self.number = batch.number
        self.deadline = deadline
        self.isolate = batch.isolate
        self.ordered = batch.ordered
        self.left = batch.length
        self.states = bytearray(batch.length)
        self.failures: list[Failure] = []
        self.settled = False
        #: Rows that others wait for.
        self.rows: dict[int, Row] = {}
        #: Groups that must wait until this batch's failures have been told.
        self.groups: set[tuple[GroupFeed, str]] = set()

    def fail(self, index: int, error: BrokerError) -> None:
        """Count a row as failed, if it or the batch is not settled already."""
        if not self.settled and self.states[index] != DONE:
            self.failures.append(Failure(index, error))
            self.done(index)

    def done(self, index: int) -> None:
        """Count a row as settled."""
        if not self.settled and self.states[index] != DONE:
            self.states[index] = DONE
            self.left -= 1


class Row:
    """A row that waits or is in flight. `group` only in a FIFO queue; `ordered`: later ones of it wait for this one."""

    __slots__ = ("entry", "feed", "group", "index", "ordered", "refused", "size", "work")

    def __init__(self, work: Work, index: int) -> None:
        self.work = work
        self.index = index
        self.feed: Feed | None = None
        self.entry: dict[str, Any] = {}
        self.size = 0
        self.group = ""
        self.ordered = False
        self.refused: BrokerError | None = None


class Feed(ABC):
    """The rows for one queue, and what a request to it may hold."""

    def __init__(self, address: Address, most: int, *, own: bool) -> None:
        self.address = address
        self.own = own
        self._most = most

    @abstractmethod
    def add(self, row: Row) -> None:
        """Let a row wait, behind all others."""

    @abstractmethod
    def take(self, now: float) -> list[Row]:
        """The rows of the next request; empty: there is none to be made now."""

    @abstractmethod
    def landed(self, rows: Iterable[Row]) -> None:
        """A request has ended."""

    @property
    @abstractmethod
    def ready(self) -> bool:
        """Whether there is something to take."""


class PlainFeed(Feed):
    """A standard queue's."""

    def __init__(self, address: Address, most: int, *, own: bool) -> None:
        super().__init__(address, most, own=own)
        self._rows: deque[Row] = deque()

    def add(self, row: Row) -> None:
        self._rows.append(row)

    @property
    def ready(self) -> bool:
        return bool(self._rows)

    def take(self, now: float) -> list[Row]:
        rows: list[Row] = []
        size = 0
        waiting = self._rows
        while waiting and len(rows) < BATCH:
            row = waiting[0]
            if row.work.settled or row.work.deadline <= now:
                waiting.popleft()
                continue
            if rows and (row.work.isolate or size + row.size > self._most):
                break
            size += row.size
            rows.append(waiting.popleft())
            row.work.states[row.index] = FLYING
            if row.work.isolate:
                break
        return rows

    def landed(self, rows: Iterable[Row]) -> None:
        """Nothing waits for them."""


class GroupFeed(Feed):
    """A FIFO queue's."""

    def __init__(self, address: Address, most: int, *, own: bool) -> None:
        super().__init__(address, most, own=own)
        self._groups: dict[str, deque[Row]] = {}  # those with rows that wait, or in flight
        self._free: deque[str] = deque()  # those with rows that wait, and none in flight
        #: Groups in which a row failed, with the batches whose failures are not told yet.
        self.failed: dict[str, set[Work]] = {}

    def add(self, row: Row) -> None:
        waiting = self._groups.get(row.group)
        if waiting is None:
            self._groups[row.group] = deque((row,))
            self._free.append(row.group)
        else:
            waiting.append(row)

    @property
    def ready(self) -> bool:
        return bool(self._free)

    def take(self, now: float) -> list[Row]:
        rows: list[Row] = []
        size = 0
        while self._free and len(rows) < BATCH:
            group = self._free[0]
            waiting = self._groups[group]
            count = len(rows)
            while waiting and len(rows) < BATCH:
                row = waiting[0]
                if row.work.settled or row.work.deadline <= now:
                    waiting.popleft()
                    continue
                alone = row.work.isolate or (rows and rows[0].work.isolate)
                if rows and (alone or size + row.size > self._most or (row.ordered and len(rows) > count)):
                    break
                size += row.size
                rows.append(waiting.popleft())
                row.work.states[row.index] = FLYING
                if row.ordered:
                    break
            if len(rows) == count and waiting:
                break  # no room for it in this request
            self._free.popleft()
            if not waiting and len(rows) == count:
                del self._groups[group]
        return rows

    def landed(self, rows: Iterable[Row]) -> None:
        for group in {row.group: None for row in rows}:
            if self._groups[group]:
                self._free.append(group)
            else:
                del self._groups[group]

    def hold_back(self, group: str, work: Work) -> list[Row]:
        """A row of this group in an ordered batch has failed: the ordered rows that wait behind it, taken out."""
        self.held(group, work)
        waiting = self._groups.get(group, deque())
        behind = [row for row in waiting if row.ordered]
        if behind:
            kept = [row for row in waiting if not row.ordered]
            waiting.clear()  # an empty group that is free is forgotten by the next `take`
            waiting.extend(kept)
        return behind

    def held(self, group: str, work: Work) -> None:
        """This batch has failures in the group that are not told yet."""
        self.failed.setdefault(group, set()).add(work)
        work.groups.add((self, group))

    def told(self, group: str, work: Work) -> None:
        """The failures of a batch have been told."""
        works = self.failed.get(group, set())
        works.discard(work)
        if not works:
            self.failed.pop(group, None)
