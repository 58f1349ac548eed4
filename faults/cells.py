"""The table of cells: which fault meets which workload on which broker.

What a broker cannot have is not in the table: no cell is skipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Final

from faults.proxy import NETWORK_FAULTS

NETWORKED: Final = ("kafka", "rabbitmq", "sqs", "servicebus")
QUEUES: Final = (*NETWORKED, "sqlite")
ROWS: Final = 2_000


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
        poison: how many rows are poison; None: one in a hundred.
        survives: the job must not fail: the fault ends within its retries.
        refuses: the fault makes the broker refuse good rows for good.
        limit: seconds within which everything must have ended.
        short: part of the short table, which runs in continuous integration.
    """

    fault: str
    broker: str
    workload: str = "write"
    needs: frozenset[str] = frozenset()
    times: int = 1
    seconds: tuple[float, float] = (1.0, 2.5)
    poison: int | None = None
    survives: bool = True
    refuses: bool = False
    limit: float = 90.0
    short: bool = False

    @property
    def name(self) -> str:
        """Names the cell in records and on the command line."""
        return f"{self.broker}/{self.fault}/{self.workload}"


def _cells() -> Iterator[Cell]:
    for fault, broker in product(NETWORK_FAULTS, NETWORKED):
        yield Cell(fault, broker, times=2, short=fault in {"answers-cut", "black-hole-answers"})


CELLS: Final = tuple(_cells())
