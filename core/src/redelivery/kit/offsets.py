"""`Offsets`: which offsets of a log are done with, as a point that all are below and runs beyond it.

Arithmetic only: no I/O, no clock.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

#: Above every offset.
_END: Final = 1 << 64


class Offsets:
    """A set of offsets that only grows.

    Attributes:
        base: the lowest offset that is not in it.
    """

    __slots__ = ("_runs", "base")

    def __init__(self, base: int = 0) -> None:
        self.base = base
        #: Beyond `base`: ascending, none touching the next, as (start, end).
        self._runs: list[tuple[int, int]] = []

    def __contains__(self, offset: int) -> bool:
        if offset < self.base:
            return True
        at = bisect_right(self._runs, (offset, _END)) - 1
        return at >= 0 and offset < self._runs[at][1]

    def runs(self) -> list[tuple[int, int]]:
        """Return what is in it beyond `base`: ascending, as (start, end)."""
        return list(self._runs)

    def any_between(self, start: int, end: int) -> bool:
        """Return whether any of the offsets from `start` up to `end` is in it."""
        at = bisect_right(self._runs, (end, 0)) - 1
        return start < self.base or (at >= 0 and start < self._runs[at][1])

    def add(self, start: int, end: int) -> int:
        """Add the offsets from `start` up to `end`. Return how many were not in it before."""
        start = max(start, self.base)
        if start >= end:
            return 0
        first = bisect_right(self._runs, (start, _END)) - 1
        if first < 0 or self._runs[first][1] < start:
            first += 1
        last, new, low, high = first, end - start, start, end
        while last < len(self._runs) and self._runs[last][0] <= end:
            a, b = self._runs[last]
            new -= max(0, min(b, end) - max(a, start))
            low, high = min(low, a), max(high, b)
            last += 1
        self._runs[first:last] = [(low, high)]
        if self._runs[0][0] <= self.base:
            self.base = self._runs.pop(0)[1]
        return new

    def missing(self, end: int) -> int:
        """Return how many offsets below `end` are not in it."""
        inside = sum(min(b, end) - a for a, b in self._runs if a < end)
        return max(0, end - self.base - inside)
