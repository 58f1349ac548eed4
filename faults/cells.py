"""The table of cells: which fault meets which workload on which broker.

The table leaves out faults that a broker cannot have: no cell is skipped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Final

from faults.proxy import NETWORK_FAULTS

NETWORKED: Final = ("kafka", "rabbitmq", "sqs", "servicebus", "nats")
QUEUES: Final = (*NETWORKED, "sqlite")
#: Brokers that are only sent to, over a network.
SENT_TO: Final = ("http",)
ROWS: Final = 2_000
#: Limit in seconds where leases of killed processes are waited for, on a busy machine.
SLOW: Final = 180.0

#: Faults of the brokers themselves, and the brokers that have them.
BROKER_FAULTS: Final[Mapping[str, tuple[str, ...]]] = {
    "freeze": NETWORKED,
    "restart": ("kafka", "rabbitmq", "servicebus", "nats"),
    "disk-full": ("rabbitmq", "servicebus", "sqlite"),
    "memory-alarm": ("rabbitmq",),
    "throttled": ("servicebus", *SENT_TO),
    "locked": ("sqlite",),
    "permission-revoked": ("kafka", "rabbitmq", "servicebus"),
    "queue-deleted": QUEUES,
    "dead-letters-deleted": NETWORKED,
    "dead-letters-full": ("kafka", "rabbitmq", "servicebus", "sqlite", "nats"),
    "clock-back": QUEUES,
    "clock-forward": QUEUES,
}
#: Of those, faults by which a job may fail, as it must not go on without its target, its rights or its letters.
ENDING: Final = frozenset({"permission-revoked", "queue-deleted", "dead-letters-deleted", "dead-letters-full"})
#: Fewer poison rows where each costs a second: the SDK of Service Bus waits when a queue refuses to be opened.
FEW: Final[Mapping[str, int]] = {"servicebus": 5}
#: The short table: what reaches most rare states in the shortest time.
SHORT: Final = frozenset(
    {
        ("answers-cut", "write"),
        ("black-hole-answers", "write"),
        ("disk-full", "write"),
        ("locked", "write"),
        ("restart", "write"),
        ("killed", "receive"),
        ("killed", "redrive"),
    }
)


@dataclass(frozen=True, slots=True)
class Cell:
    """One run: a fault, a broker, a workload.

    Attributes:
        fault: a name that `faults.actions.action` knows for this broker.
        broker: the plugin's name.
        workload: a name in `faults.workloads.WORKLOADS`.
        needs: what it needs beyond the broker: `spark`.
        times: how often the fault begins.
        seconds: how long it lasts, shortest and longest.
        survives: the job must not fail: the fault ends within its retries.
        refuses: the fault makes the broker refuse good rows for good.
        limit: seconds within which everything must have ended.
    """

    fault: str
    broker: str
    workload: str = "write"
    needs: frozenset[str] = frozenset()
    times: int = 1
    seconds: tuple[float, float] = (1.0, 2.5)
    survives: bool = True
    refuses: bool = False
    limit: float = 90.0

    @property
    def poison(self) -> int | None:
        """How many rows are poison; None: one in a hundred."""
        return FEW.get(self.broker)

    @property
    def short(self) -> bool:
        """Whether it is part of the short table, which runs in continuous integration."""
        return (self.fault, self.workload) in SHORT

    @property
    def name(self) -> str:
        """Names the cell in records and on the command line."""
        return f"{self.broker}/{self.fault}/{self.workload}"


def _cells() -> Iterator[Cell]:
    for fault, broker in product(NETWORK_FAULTS, (*NETWORKED, *SENT_TO)):
        yield Cell(fault, broker, times=2)


def _once_cells() -> Iterator[Cell]:
    """Nothing is tried again, so rows that may have been stored are given up, and their job may fail."""
    for fault, broker in product(("answers-cut", "half-open"), (*NETWORKED, *SENT_TO)):
        yield Cell(fault, broker, "write-once", survives=False)


def _broker_cells() -> Iterator[Cell]:
    """The broker itself, its places, and the clocks of the processes that use it."""
    for fault, brokers in BROKER_FAULTS.items():
        for broker in brokers:
            lasts = (2.5, 4.0) if fault == "freeze" else (1.0, 2.5)  # longer than an attempt's timeout
            expires = (fault, broker) == ("clock-back", "servicebus")  # its tokens would have expired an hour ago
            yield Cell(fault, broker, seconds=lasts, survives=fault not in ENDING and not expires)


def _killed_cells() -> Iterator[Cell]:
    """Processes under test that are killed at random moments, and started again."""
    for workload, broker in product(("receive", "redrive", "two-redrives"), QUEUES):
        yield Cell("killed", broker, workload, times=3, seconds=(0.0, 0.3), limit=SLOW)


def _served_cells() -> Iterator[Cell]:
    """What breaks under a subscription and under a redrive, which their owner starts again where they give up."""
    for workload in ("receive", "redrive"):
        for broker in NETWORKED:
            yield Cell("reset", broker, workload, times=2, limit=SLOW)
            yield Cell("black-hole-answers", broker, workload, seconds=(2.5, 4.0), limit=SLOW)
        for broker in BROKER_FAULTS["restart"]:
            yield Cell("restart", broker, workload, limit=SLOW)
        yield Cell("locked", "sqlite", workload, times=2, limit=SLOW)


def _spark_cells() -> Iterator[Cell]:
    """Spark's own processes: a task that starts again, and a stream that is replayed from its checkpoint."""
    for broker in QUEUES:
        for fault, workload, times in (("worker-killed", "spark", 2), ("killed", "stream", 1)):
            yield Cell(fault, broker, workload, frozenset({"spark"}), times=times, seconds=(0.0, 0.3), limit=600.0)


CELLS: Final = (*_cells(), *_once_cells(), *_broker_cells(), *_killed_cells(), *_served_cells(), *_spark_cells())
