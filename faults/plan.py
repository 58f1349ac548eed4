"""A plan: all that chance decides in a cell, made from one seed. The same seed gives the same plan."""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

#: How a row's value begins: its number, by which an independent reader recognises the row.
_NUMBER: Final = re.compile(rb"row (\d{7}) ")
_KEYS: Final = 17
#: Sizes of values in bytes, chosen with these weights: most are small, some fill a client's buffer.
_SIZES: Final = (16, 200, 1000, 8000)
_WEIGHTS: Final = (30, 50, 15, 5)
#: Parts of the rows between which faults begin: there is something before, and something after.
_EARLIEST, _LATEST = 0.15, 0.8


@dataclass(frozen=True, slots=True)
class Row:
    """The message that is written for a row, and must come back."""

    number: int
    id: str
    value: bytes
    key: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True, slots=True)
class Moment:
    """When a fault begins, and how long it lasts.

    Attributes:
        fault: its name.
        row: it begins when so many rows were handed over (or handled, or moved, as the workload counts).
        seconds: it ends after so long.
    """

    fault: str
    row: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Plan:
    """Rows, poison among them, and the moments of faults in their order.

    Attributes:
        seed: chooses everything else.
        rows: number of rows.
        poison: numbers of rows that the broker always refuses.
        moments: in the order of their rows.
    """

    seed: int
    rows: int
    poison: frozenset[int]
    moments: tuple[Moment, ...]

    @classmethod
    def make(
        cls,
        seed: int,
        *,
        rows: int,
        faults: Sequence[str],
        poison: int | None = None,
        times: int = 1,
        seconds: tuple[float, float] = (1.0, 2.5),
    ) -> Self:
        """Choose by a seed.

        Args:
            seed: the same gives the same plan.
            rows: number of rows.
            faults: each begins `times` times; their order is chosen too.
            poison: number of rows that are poison; None: one in a hundred, and at least one.
            times: how often each fault begins.
            seconds: shortest and longest time for which a fault lasts.
        """
        chance = random.Random(f"redelivery faults {seed} {rows} {sorted(faults)}")  # noqa: S311 - must be repeatable
        count = max(1, rows // 100) if poison is None else poison
        chosen = frozenset(chance.sample(range(rows), count))
        order = list(faults) * times
        chance.shuffle(order)
        at = sorted(chance.randrange(int(rows * _EARLIEST), max(int(rows * _LATEST), 1)) for _ in order)
        moments = tuple(
            Moment(fault, row, round(chance.uniform(*seconds), 2)) for fault, row in zip(order, at, strict=True)
        )
        return cls(seed, rows, chosen, moments)

    def row(self, number: int) -> Row:
        """Return row `number`, counted from 0: sizes, keys and bytes differ by row and by seed."""
        chance = random.Random(f"row {self.seed} {number}")  # noqa: S311 - must be repeatable
        (size,) = chance.choices(_SIZES, _WEIGHTS)
        key = None if chance.random() < 0.1 else b"key-%d" % chance.randrange(_KEYS)  # noqa: PLR2004 - one in ten
        headers = (("row", b"%d" % number), ("digest", hashlib.blake2b(b"%d" % number, digest_size=6).digest()))
        return Row(number, f"{self.seed}-{number}", b"row %07d " % number + chance.randbytes(size), key, headers)

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready form; `from_dict` reads it back."""
        return {
            "seed": self.seed,
            "rows": self.rows,
            "poison": sorted(self.poison),
            "moments": [{"fault": each.fault, "row": each.row, "seconds": each.seconds} for each in self.moments],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Return the plan that `to_dict` wrote."""
        moments = tuple(Moment(**each) for each in data["moments"])
        return cls(data["seed"], data["rows"], frozenset(data["poison"]), moments)


def number_of(value: bytes | None) -> int | None:
    """Return the number of the row with this value; None: it is not a row of a plan."""
    found = _NUMBER.match(value or b"")
    return int(found[1]) if found else None
