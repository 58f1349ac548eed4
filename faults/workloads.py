"""The processes under test, by name: a workload starts them, and says how far they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Protocol, TypeAlias

from faults.broker import BrokerUnderTest
from faults.plan import Plan
from faults.reading import Reads
from faults.receiving import Receiving
from faults.redriving import Redriving, TwoRedrives
from faults.sparking import Sparking, Streaming
from faults.writing import Writing, WritingOnce


class Running(Protocol):
    """A workload that was started. Each of its processes appends its history to its own file of the cell's folder.

    Attributes:
        reads: what the queue and the dead letter place are for this workload, for the independent reader.
        processes: how many processes send the same row side by side.
        hidden: seconds for which leases of killed processes may hide messages at the end.
    """

    reads: Reads
    processes: int
    hidden: float

    @property
    def progress(self) -> int:
        """How many rows were handed over, handled or moved: moments of a plan are counted in it."""

    @property
    def alive(self) -> bool:
        """Whether it still works. A workload stays alive while it restarts a killed process."""

    def restart(self) -> None:
        """Kill its process (kill -9), and start it again as its owner would; write `killed` and `restarted`.

        Raises ValueError: no owner would start it again.
        """

    def kill(self) -> None:
        """End all its processes at once (kill -9). It is not restarted."""


#: Starts a workload. Arguments: the broker under test, the plan, the folder of histories.
Start: TypeAlias = Callable[[BrokerUnderTest, Plan, Path], Running]

WORKLOADS: Final[Mapping[str, Start]] = {
    "write": Writing,
    "write-once": WritingOnce,
    "receive": Receiving,
    "redrive": Redriving,
    "two-redrives": TwoRedrives,
    "spark": Sparking,
    "stream": Streaming,
}


def run_workload(name: str, under_test: BrokerUnderTest, plan: Plan, folder: Path) -> Running:
    """Start a workload; return at once. Raises KeyError: no workload has this name."""
    return WORKLOADS[name](under_test, plan, folder)
