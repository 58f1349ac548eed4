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

from redelivery.contract.message import Batch
from redelivery.errors import BrokerError
from redelivery.kit.in_flight import SentBatch
from redelivery_sqs.client.limits import MAX_ENTRIES
from redelivery_sqs.client.queue import Queue


class PendingRow:
    """A row that waits or is in flight.

    Attributes:
        index: in its batch.
        sent: the account of its batch.
        send_queue: where it goes; None if it names a queue that cannot exist.
        entry, size: what is sent.
        group: its message group, in a FIFO queue.
        ordered: later rows of its group wait for this one.
        refused: why it cannot be sent.
    """

    __slots__ = ("entry", "group", "index", "ordered", "refused", "send_queue", "sent", "size")

    sent: PendingBatch

    def __init__(self, index: int) -> None:
        self.index = index
        self.send_queue: SendQueue | None = None
        self.entry: dict[str, Any] = {}
        self.size = 0
        self.group = ""
        self.ordered = False
        self.refused: BrokerError | None = None


class PendingBatch(SentBatch):
    """The account of a batch.

    Attributes:
        ordered: the rows for which later rows of their group wait, by index.
    """

    def __init__(self, batch: Batch, deadline: float) -> None:
        super().__init__(batch, deadline)
        self.ordered: dict[int, PendingRow] = {}


class SendQueue(ABC):
    """The rows for one queue.

    Args:
        destination: the queue.
    """

    def __init__(self, destination: Queue) -> None:
        self.destination = destination
        self._max_bytes = destination.settings.max_message_bytes
        self._bytes = 0  # of the rows that were taken last

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

    @abstractmethod
    def withdraw(self, row: PendingRow) -> list[PendingRow]:
        """Take out the ordered rows that wait behind a row of their group, which has failed."""

    def _take_first(self, waiting: deque[PendingRow], taken: list[PendingRow], now: float) -> PendingRow | None:
        """Move the first row that is not overdue to `taken`; None if none is left or the request is full."""
        while waiting:
            row = waiting[0]
            if row.sent.is_settled or row.sent.deadline <= now:
                waiting.popleft()
                continue
            if taken and (
                row.sent.batch.isolate
                or taken[0].sent.batch.isolate
                or len(taken) == MAX_ENTRIES
                or self._bytes + row.size > self._max_bytes
            ):
                return None
            self._bytes = row.size + (self._bytes if taken else 0)
            taken.append(waiting.popleft())
            return row
        return None


class StandardSendQueue(SendQueue):
    """The rows for a standard queue."""

    def __init__(self, destination: Queue) -> None:
        super().__init__(destination)
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

    def withdraw(self, row: PendingRow) -> list[PendingRow]:  # noqa: ARG002 - a standard queue has no groups
        return []


class FifoSendQueue(SendQueue):
    """The rows for a FIFO queue."""

    def __init__(self, destination: Queue) -> None:
        super().__init__(destination)
        self._groups: dict[str, deque[PendingRow]] = {}  # groups with rows that wait or are in flight
        self._free: deque[str] = deque()  # groups with rows that wait, and none in flight

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

    def withdraw(self, row: PendingRow) -> list[PendingRow]:
        if row.refused is not None:
            return []  # it was never added, so those that wait were added before it
        waiting = self._groups.get(row.group, deque())
        rows = list(waiting)
        behind = rows[rows.index(row) + 1 :] if row in rows else rows  # it is in flight: all others are behind it
        withdrawn = [each for each in behind if each.ordered]
        for each in withdrawn:
            waiting.remove(each)  # the next `take` forgets an empty group that is free
        return withdrawn
