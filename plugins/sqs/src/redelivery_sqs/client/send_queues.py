"""The rows that wait to be sent to one queue, and which of them go into the next request.

A standard queue's rows go in the order in which they were added. A message group of a FIFO queue has one request in
flight at a time. Where the order must be kept, that request holds one row of the group: SQS stores the later rows of a
request even if an earlier one fails.

The objects here are used under their sender's lock. They make no requests.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable
from typing import Any

from redelivery.contract.broker import Failure
from redelivery.contract.message import Batch
from redelivery.errors import BrokerError
from redelivery_sqs.client.batch_requests import MAX_ENTRIES
from redelivery_sqs.client.queue import Queue

WAITING, IN_FLIGHT, DONE = range(3)


class PendingBatch:
    """A batch that is not settled yet."""

    __slots__ = (
        "deadline",
        "failures",
        "groups",
        "isolate",
        "number",
        "ordered",
        "rows",
        "settled",
        "states",
        "unsettled",
    )

    def __init__(self, batch: Batch, deadline: float) -> None:
        self.number = batch.number
        self.deadline = deadline
        self.isolate = batch.isolate
        self.ordered = batch.ordered
        self.states = bytearray(batch.length)
        self.unsettled = batch.length
        self.failures: list[Failure] = []
        self.settled = False
        #: The rows for which later rows of their group wait, by index.
        self.rows: dict[int, PendingRow] = {}
        #: Groups that are blocked until the failures of this batch are reported.
        self.groups: set[tuple[FifoSendQueue, str]] = set()

    def settle(self, index: int, error: BrokerError | None = None) -> None:
        """Settle a row, unless it or the batch is settled already."""
        if not self.settled and self.states[index] != DONE:
            self.states[index] = DONE
            self.unsettled -= 1
            if error is not None:
                self.failures.append(Failure(index, error))


class PendingRow:
    """A row that waits or is in flight.

    Attributes:
        batch, index: where it comes from.
        queue: where it goes; None if it names a queue that cannot exist.
        entry, size: what is sent.
        group: its message group, in a FIFO queue.
        ordered: later rows of its group wait for this one.
        refused: why it cannot be sent.
    """

    __slots__ = ("batch", "entry", "group", "index", "ordered", "queue", "refused", "size")

    def __init__(self, batch: PendingBatch, index: int) -> None:
        self.batch = batch
        self.index = index
        self.queue: SendQueue | None = None
        self.entry: dict[str, Any] = {}
        self.size = 0
        self.group = ""
        self.ordered = False
        self.refused: BrokerError | None = None


class SendQueue(ABC):
    """The rows for one queue.

    Args:
        destination: the queue.
        own: whether it is the queue of the sender's URL, and not one that a row names.
    """

    def __init__(self, destination: Queue, *, own: bool) -> None:
        self.destination = destination
        self.own = own
        self._max_bytes = destination.settings.max_message_bytes

    @property
    @abstractmethod
    def ready(self) -> bool:
        """Whether a row can be taken."""

    @abstractmethod
    def add(self, row: PendingRow) -> None:
        """Add a row behind all others."""

    @abstractmethod
    def take(self, now: float) -> list[PendingRow]:
        """Take the rows of the next request; empty if none can be made now. Drops rows past their deadline."""

    @abstractmethod
    def request_ended(self, rows: Iterable[PendingRow]) -> None:
        """Note that the request with these rows has ended."""

    def _take_first(self, waiting: deque[PendingRow], taken: list[PendingRow], now: float) -> PendingRow | None:
        """Move the first row that is not overdue to `taken`; None if none is left or the request is full."""
        while waiting:
            row = waiting[0]
            if row.batch.settled or row.batch.deadline <= now:
                waiting.popleft()
                continue
            if taken and (
                row.batch.isolate
                or taken[0].batch.isolate
                or len(taken) == MAX_ENTRIES
                or sum(each.size for each in taken) + row.size > self._max_bytes
            ):
                return None
            taken.append(waiting.popleft())
            row.batch.states[row.index] = IN_FLIGHT
            return row
        return None


class StandardSendQueue(SendQueue):
    """The rows for a standard queue."""

    def __init__(self, destination: Queue, *, own: bool) -> None:
        super().__init__(destination, own=own)
        self._waiting: deque[PendingRow] = deque()

    @property
    def ready(self) -> bool:
        return bool(self._waiting)

    def add(self, row: PendingRow) -> None:
        self._waiting.append(row)

    def take(self, now: float) -> list[PendingRow]:
        taken: list[PendingRow] = []
        while self._take_first(self._waiting, taken, now):
            pass
        return taken

    def request_ended(self, rows: Iterable[PendingRow]) -> None:
        """Do nothing: no row waits for another."""


class FifoSendQueue(SendQueue):
    """The rows for a FIFO queue."""

    def __init__(self, destination: Queue, *, own: bool) -> None:
        super().__init__(destination, own=own)
        self._groups: dict[str, deque[PendingRow]] = {}  # groups with rows that wait or are in flight
        self._free: deque[str] = deque()  # groups with rows that wait, and none in flight
        #: Groups in which a row failed, with the batches whose failures are not reported yet.
        self._blocked: dict[str, set[PendingBatch]] = {}

    @property
    def ready(self) -> bool:
        return bool(self._free)

    def add(self, row: PendingRow) -> None:
        waiting = self._groups.get(row.group)
        if waiting is None:
            self._groups[row.group] = deque((row,))
            self._free.append(row.group)
        else:
            waiting.append(row)

    def take(self, now: float) -> list[PendingRow]:
        taken: list[PendingRow] = []
        while self._free and len(taken) < MAX_ENTRIES:
            group = self._free[0]
            waiting = self._groups[group]
            count = len(taken)
            while (row := self._take_first(waiting, taken, now)) and not row.ordered:
                pass
            if len(taken) == count and waiting:
                break  # this request has no room for it
            self._free.popleft()
            if len(taken) == count:
                del self._groups[group]
        return taken

    def request_ended(self, rows: Iterable[PendingRow]) -> None:
        for group in {row.group: None for row in rows}:
            if self._groups[group]:
                self._free.append(group)
            else:
                del self._groups[group]

    def is_blocked(self, group: str) -> bool:
        """Whether ordered rows of a group must not be sent: the failure of an earlier one is not reported yet."""
        return group in self._blocked

    def block(self, group: str, batch: PendingBatch) -> None:
        """Block a group until the failures of this batch are reported."""
        self._blocked.setdefault(group, set()).add(batch)
        batch.groups.add((self, group))

    def unblock(self, group: str, batch: PendingBatch) -> None:
        """Note that the failures of this batch are reported."""
        batches = self._blocked.get(group, set())
        batches.discard(batch)
        if not batches:
            self._blocked.pop(group, None)

    def withdraw(self, group: str, batch: PendingBatch) -> list[PendingRow]:
        """Block a group after a row of this batch has failed; returns the ordered rows that waited, taken out."""
        self.block(group, batch)
        waiting = self._groups.get(group, deque())
        withdrawn = [row for row in waiting if row.ordered]
        if withdrawn:
            kept = [row for row in waiting if not row.ordered]
            waiting.clear()  # the next `take` forgets an empty group that is free
            waiting.extend(kept)
        return withdrawn
