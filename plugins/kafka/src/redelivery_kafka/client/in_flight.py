"""What the sender has on its way: a batch and the slots of its rows, and a row as `produce` takes it.

The client tells of failed rows only. Each row in flight has a slot, whose callback names it, so that a failure is told
of exactly that row. This file must not decide what becomes of a row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import KafkaError, Producer

from redelivery.contract.message import Batch
from redelivery.errors import BrokerError
from redelivery_kafka.errors import ERRORS

#: Slot, error, and whether the row had a partition yet.
Report = tuple[int, KafkaError, bool]
#: What `produce` is called with: slot, topic, value, key, partition, timestamp, headers.
Row = tuple[Any, str, bytes | None, bytes | None, int, int, Any]


@dataclass(slots=True)
class Flight:
    """A batch on its way; its rows have the slots from `base` on.

    Attributes:
        failures: errors by row.
        doubts: what the client said of failed rows whose topic or partition it does not know, by row. What that means
            shows in the topic as it is now.
    """

    batch: Batch
    base: int
    deadline: float
    failures: dict[int, BrokerError] = field(default_factory=dict)
    doubts: dict[int, KafkaError] = field(default_factory=dict)


def produce(producer: Producer, row: Row) -> Exception | None:
    """Hand one row over; returns what the client said against it."""
    slot, topic, value, key, partition, timestamp, headers = row
    try:
        producer.produce(topic, value, key, partition, slot, slot, timestamp, headers)
    except ERRORS as error:
        return error
    return None


def slot_type(reports: list[Report]) -> Callable[[int], Any]:
    """A number that is a callback: the cheapest thing that a client's C code can call and that names its row."""
    add = reports.append

    class Slot(int):
        __slots__ = ()

        def __call__(self, error: KafkaError, message: Any) -> None:
            add((int(self), error, message.partition() is not None))

    return Slot
