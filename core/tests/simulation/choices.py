"""`Choices`: every decision of a run, drawn from one seed, or replayed from a list that was shrunk.

A decision is a number; 0 is always the tamest: no fault, no switch of threads, the smallest size. Decisions are kept
by what they decide ("thread", "fault at work"), so that a list with one of them changed still means the same elsewhere.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import TypeVar

T = TypeVar("T")

#: Decisions by what they decide, in their order.
Recorded = Mapping[str, Sequence[int]]


class Choices:
    """The decisions of one run.

    Args:
        seed: of the run.
        replayed: decisions to repeat; behind its end all are 0. None: drawn.
    """

    def __init__(self, seed: int, replayed: Recorded | None = None) -> None:
        self.recorded: dict[str, list[int]] = {}
        self._draw = random.Random(seed)  # noqa: S311 - nothing secret: a run that can be repeated
        self._replayed = None if replayed is None else {name: iter(values) for name, values in replayed.items()}

    def below(self, what: str, count: int) -> int:
        """Return a number from 0 to `count - 1`, all equally likely."""
        return self._decided(what, count - 1, 1.0)

    def often(self, what: str, count: int, chance: float) -> int:
        """Return 0, or with this chance a number from 1 to `count`."""
        return self._decided(what, count, chance)

    def happens(self, what: str, chance: float) -> bool:
        """Return whether something happens."""
        return self._decided(what, 1, chance) == 1

    def pick(self, what: str, options: Sequence[T]) -> T:
        """Return one of the options; the first one is the tamest."""
        return options[self.below(what, len(options))]

    def jitter(self) -> float:
        """Return a number in [0, 1), for the jitter of backoffs."""
        return self.below("jitter", 8) / 8

    def _decided(self, what: str, most: int, chance: float) -> int:
        if self._replayed is not None:
            value = min(most, next(self._replayed.get(what, iter(())), 0))
        elif chance >= 1.0:
            value = int(self._draw.random() * (most + 1))
        else:
            value = 0 if self._draw.random() >= chance else 1 + int(self._draw.random() * most)
        self.recorded.setdefault(what, []).append(value)
        return value
