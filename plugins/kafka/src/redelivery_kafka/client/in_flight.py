"""Account of the batches in flight: which rows they hold, which of them failed, and which batches are settled.

librdkafka reports failed messages only. Each row in flight has a slot, a number whose callback names it, so that a
failure is attributed to exactly that row. Slots are used again when nothing is in flight.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import KafkaError

from redelivery.contract.broker import Settled
from redelivery.contract.message import Batch
from redelivery.errors import BrokerError
from redelivery.kit.in_flight import FailedKeys, SettledBatches
from redelivery_kafka.codec import Row

#: The failure of one row as the client reports it: its slot, the error, and whether the row had a partition yet.
DeliveryReport = tuple[int, KafkaError, bool]


@dataclass(slots=True, eq=False)
class BatchInFlight:
    """A batch that is not settled; its rows have the slots from `first_slot` on.

    Attributes:
        failures: errors by row.
        unknown_targets: the client's errors, by row, for a topic or partition that it does not know. The current
            state of the topic shows what such an error means.
    """

    batch: Batch
    first_slot: int
    deadline: float
    failures: dict[int, BrokerError] = field(default_factory=dict)
    unknown_targets: dict[int, KafkaError] = field(default_factory=dict)

    def topic(self, index: int, default: str) -> str:
        """Return the topic that a row goes to."""
        target = None if self.batch.destination is None else self.batch.destination.values[index]
        return target or default


class InFlight:
    """The batches of one sender that are not settled.

    Attributes:
        batches: in the order in which they were sent.
        failed_keys: keys of failed rows of ordered batches, until their failures have been collected.
    """

    def __init__(self) -> None:
        self.batches: list[BatchInFlight] = []
        self.failed_keys = FailedKeys("kafka")
        self._settled = SettledBatches()
        self._reports: list[DeliveryReport] = []
        self._slots: list[Any] = []
        self._used = 0
        self._slot = _slot_type(self._reports)

    @property
    def deadline(self) -> float:
        """The first deadline of a batch; infinity if none is in flight."""
        return min((each.deadline for each in self.batches), default=float("inf"))

    def add(self, batch: Batch, deadline: float, failures: dict[int, BrokerError]) -> BatchInFlight:
        """Add a batch; `failures` are those of rows that cannot be sent at all."""
        first, self._used = self._used, self._used + batch.length
        self._slots.extend(map(self._slot, range(len(self._slots), self._used)))
        found = BatchInFlight(batch, first, deadline, failures)
        self.batches.append(found)
        return found

    def slots(self, of: BatchInFlight) -> Sequence[Any]:
        """Return the slots of a batch's rows."""
        return self._slots[of.first_slot : of.first_slot + of.batch.length]

    def sendable(self, of: BatchInFlight, rows: Iterator[Row]) -> Iterator[Row]:
        """Yield rows that have not failed, and in an ordered batch are not kept back by a failed row of their key."""
        failures, first, failed_keys, ordered = of.failures, of.first_slot, self.failed_keys, of.batch.ordered
        for row in rows:
            index, key = int(row[0]) - first, row[3]
            if index in failures:
                if ordered:
                    failed_keys.add(key, of.batch.number)
            elif ordered and key is not None and key in failed_keys:
                failures[index] = failed_keys.not_sent()
            else:
                yield row

    def take_reports(self) -> Iterator[tuple[BatchInFlight, int, KafkaError, bool]]:
        """Yield the reports since the last call: batch, index of the row, error, whether it had a partition."""
        if not self._reports:
            return
        starts = [each.first_slot for each in self.batches]
        for slot, error, has_partition in self._reports:
            batch = self.batches[bisect_right(starts, slot) - 1]
            yield batch, slot - batch.first_slot, error, has_partition
        self._reports.clear()

    def drop_reports(self) -> None:
        """Forget reports of rows that are settled: other rows will have their slots."""
        self._reports.clear()

    def fail(self, of: BatchInFlight, index: int, error: BrokerError, unknown_target: KafkaError | None = None) -> None:
        """Record the failure of a row."""
        of.failures[index] = error
        if unknown_target is not None:
            of.unknown_targets[index] = unknown_target
        if of.batch.ordered and of.batch.key is not None:
            self.failed_keys.add(of.batch.key.values[index], of.batch.number)

    def fail_rest(self, of: BatchInFlight, first: int, error: BrokerError) -> None:
        """Record a failure of all rows from this one on, except those that have failed already."""
        for index in range(first, of.batch.length):
            if index not in of.failures:
                self.fail(of, index, error)

    def settle(self) -> None:
        """Settle every batch: rows without a failure are stored."""
        for each in self.batches:
            self._settled.add(each.batch, each.failures)
        self.batches.clear()
        self._used = 0

    def take_settled(self) -> list[Settled]:
        """Return the batches settled since the last call."""
        if not self.batches:
            self.failed_keys.clear()
        return self._settled.take()


def _slot_type(reports: list[DeliveryReport]) -> Callable[[int], Any]:
    """Return a class of numbers that are callbacks: the cheapest callable for C code that names its row."""
    add = reports.append

    class Slot(int):
        __slots__ = ()

        def __call__(self, error: KafkaError, message: Any) -> None:
            add((int(self), error, message.partition() is not None))

    return Slot
