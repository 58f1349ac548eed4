"""`Tally`: the combined result of many runs. In a separate module, so that other processes can import it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from simulation.runs import run


@dataclass(slots=True)
class Tally:
    """What runs of one world came to.

    Attributes:
        seeds, steps: how many.
        reached: rare states, and in how many runs.
        failed: seeds that violate an invariant, and which.
    """

    seeds: int = 0
    steps: int = 0
    reached: Counter[str] = field(default_factory=Counter)
    failed: list[tuple[int, str]] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        """Add what another process has found."""
        self.seeds += other.seeds
        self.steps += other.steps
        self.reached += other.reached
        self.failed += other.failed


def tally(world: str, seeds: Iterable[int]) -> Tally:
    """Run seeds of one world."""
    found = Tally()
    for seed in seeds:
        one = run(world, seed)
        found.seeds += 1
        found.steps += len(one.history)
        found.reached.update(dict.fromkeys(one.reached, 1))
        if one.violation is not None:
            found.failed.append((seed, str(one.violation)))
    return found
