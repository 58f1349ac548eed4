"""Makes the history of a failed run as short as possible: fewer rows, faults and switches, and the same invariant.

A run is the list of its decisions (`Choices`), and 0 is the tamest of each. So decisions are set to 0, or left out at
the end, in ever smaller pieces, as long as the same invariant still does not hold. What remains is what it takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from simulation.choices import Recorded
from simulation.runs import Run, run

#: Runs that one shrinking may take.
MOST_RUNS = 1500


def shrunk(failed: Run, again: Callable[[Recorded], Run] | None = None, most: int = MOST_RUNS) -> Run:
    """Return the shortest run that violates the same invariant.

    Args:
        failed: a run with a violation.
        again: runs it again with other decisions.
        most: how many runs it may take.
    """
    assert failed.violation is not None
    name, best, left = failed.violation.name, failed, most
    replay = again or (lambda recorded: run(failed.world, failed.seed, recorded))
    improved = True
    while improved and left > 0:
        improved = False
        for candidate in _smaller(best.recorded):
            left -= 1
            if left <= 0:
                break
            tried = replay(candidate)
            if tried.violation is not None and tried.violation.name == name and _size(tried) < _size(best):
                best, improved = tried, True
                break
    return best


def _size(tried: Run) -> tuple[int, int, int]:
    """Return how much a person has to read, and how wild it is."""
    values = [value for each in tried.recorded.values() for value in each]
    return len(tried.history), sum(value > 0 for value in values), sum(values)


def _smaller(recorded: Recorded) -> Iterator[Recorded]:
    """Return lists with fewer or smaller decisions, those that change most first."""
    for name, values in recorded.items():
        if any(values):
            yield {**recorded, name: ()}
    for name, values in recorded.items():
        for changed in _tamed(values):
            yield {**recorded, name: changed}


def _tamed(values: Sequence[int]) -> Iterator[list[int]]:
    wild = [index for index, value in enumerate(values) if value]
    size = len(wild) // 2
    while size:
        for start in range(0, len(wild), size):
            piece = set(wild[start : start + size])
            yield [0 if index in piece else value for index, value in enumerate(values)]
        size //= 2
    for index in wild:
        for lower in (0, 1, values[index] // 2, values[index] - 1):
            if lower < values[index]:
                yield [*values[:index], lower, *values[index + 1 :]]
