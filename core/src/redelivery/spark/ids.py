"""Ids of rows: an `id` column's, or derived from the position and the content of a row.

A derived id is `<write>-<partition>-<position>-<digest>`. A retried task whose input came in another order must never
give an old id to another row, so the id includes the digest of the row's content.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from redelivery.contract.message import Column
from redelivery.spark import vectors


class Ids:
    """The ids of a batch, made at first use: a broker that never asks for them causes no cost.

    Args:
        prefix: the write and the partition.
        positions: of each row in its partition, as an Arrow array of integers.
        content: arrays whose digest is taken; at least one.
        explicit: the `id` column; null where a row has no id.
    """

    def __init__(self, prefix: str, positions: Any, content: Sequence[Any], explicit: Any = None) -> None:
        self._prefix = prefix
        self._positions = positions
        self._content = list(content)
        self._explicit = explicit

    @cached_property
    def explicit(self) -> Any:
        """Return the `id` column as text, null where a row has no id; None where the column does not exist."""
        explicit = self._explicit
        return explicit if explicit is None or pa.types.is_string(explicit.type) else explicit.cast(pa.string())

    @cached_property
    def array(self) -> Any:
        """An Arrow array of text, without nulls."""
        explicit = self.explicit
        if explicit is not None and not explicit.null_count:
            return explicit
        derived = pc.binary_join_element_wise(
            pa.scalar(self._prefix),
            self._positions.cast(pa.string()),
            vectors.hexadecimal(vectors.digests(self._content)),
            "-",
        )
        return derived if explicit is None else pc.coalesce(explicit, derived)

    @cached_property
    def values(self) -> list[str | None]:
        """Return the ids as a list; none of them is null."""
        return vectors.to_list(self.array)

    @property
    def column(self) -> Column[str | None]:
        """Return the ids as a column of a batch."""
        return Column(len(self._positions), lambda: self.values)
