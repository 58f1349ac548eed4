"""Batches of which some rows become other messages; the columns that stay are shared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from operator import itemgetter
from typing import Any, TypeVar

from redelivery.contract.message import Batch, Column, Headers, Message

T = TypeVar("T")


def headers_of(batch: Batch) -> Sequence[Headers]:
    """Return the headers of each row."""
    return [()] * len(batch) if batch.headers is None else [each or () for each in batch.headers.values]


def names_in(batch: Batch) -> Sequence[tuple[str, ...]]:
    """Return `names_of` the headers of a batch; worked out once."""
    if batch.headers is None:
        return [()] * len(batch)
    return batch.headers.once("names", lambda: names_of(headers_of(batch)))


def names_of(every: Sequence[Headers]) -> list[tuple[str, ...]]:
    """Return the names of each row's headers; rows with the same names share them."""
    known: dict[tuple[str, ...], tuple[str, ...]] = {}
    names = [next(zip(*headers, strict=True), ()) for headers in every]
    return [known.setdefault(each, each) for each in names]


def taken(values: Sequence[T], rows: Sequence[int]) -> Sequence[T]:
    """Return the values of some rows."""
    return values if len(rows) == len(values) else [values[row] for row in rows]


def size_of(batch: Batch) -> int:
    """Return the bytes of all messages, as `Message.size` counts them."""
    every = headers_of(batch)
    texts = chain.from_iterable(names_of(every))
    return (
        sum(len(name.encode("utf-8", "surrogatepass")) * count for name, count in Counter(texts).items())
        + sum([len(value) for headers in every for _, value in headers if value])
        + sum(map(len, filter(None, batch.value.values)))
        + (0 if batch.key is None else sum(map(len, filter(None, batch.key.values))))
    )


def picker(places: Sequence[int]) -> Callable[[Headers], Headers]:
    """Return what takes the headers at these places."""
    if len(places) > 1:
        return itemgetter(*places)
    return lambda headers: tuple(headers[at] for at in places)


class Changes:
    """The changed rows of a batch. Rows that are not put stay unchanged.

    Args:
        batch: the rows before the changes.

    Attributes:
        before: the headers that each row has.
    """

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self._headers: list[Headers | None] = [None] * len(batch)
        self._bodies: dict[int, bytes | None] = {}
        self._messages: dict[int, Message] = {}
        self._grown = 0
        self.before: Sequence[Headers] = headers_of(batch)

    def bytes_of(self, rows: Sequence[int]) -> tuple[Sequence[bytes], Sequence[bytes], Sequence[Headers]]:
        """Return the values, the keys and the headers of some rows; what is null is empty."""
        keys = [] if self._batch.key is None else taken(self._batch.key.values, rows)
        return (
            [value or b"" for value in taken(self._batch.value.values, rows)],
            [key or b"" for key in keys] or [b""] * len(rows),
            taken(self.before, rows),
        )

    def missing(self) -> list[int]:
        """Return the rows that have not been put."""
        return [row for row, headers in enumerate(self._headers) if headers is None]

    def fill(
        self, rows: Sequence[int], headers: Sequence[Headers], bodies: Sequence[bytes | None] | None, grown: int
    ) -> None:
        """Put the headers and, where these change, the bodies of several rows, which grow by so many bytes."""
        for row, each in zip(rows, headers, strict=True):
            self._headers[row] = each
        if bodies is not None:
            self._bodies.update(zip(rows, bodies, strict=True))
        self._grown += grown

    def put(self, row: int, message: Message) -> None:
        """Put a row as a message."""
        self._headers[row] = message.headers
        self._messages[row] = message
        self._grown += message.size - self._batch.row(row).size

    def batch(self) -> Batch:
        """Return the rows as a batch."""
        old = self._batch
        missing = self.missing()
        if len(missing) == len(old):
            return old
        if len(self._messages) == len(old):
            new = Batch.of([self._messages[row] for row in range(len(old))], number=old.number, isolate=old.isolate)
            return replace(new, first=old.first, ordered=old.ordered)
        for row in missing:
            self._headers[row] = self.before[row]
        columns: dict[str, Any] = {"headers": Column.of([each or () for each in self._headers])}
        for name in ("value", "key", "id", "destination", "timestamp_ms", "identity"):
            others = {row: getattr(message, name) for row, message in self._messages.items()}
            columns[name] = _patched(getattr(old, name), self._bodies | others if name == "value" else others, len(old))
        return replace(old, nbytes=max(1, old.nbytes + self._grown), **columns)


def _patched(column: Column[Any] | None, changes: Mapping[int, Any], length: int) -> Column[Any] | None:
    """Return a column with some other values; the same column where they are what it has."""
    values = [None] * length if column is None else column.values
    changes = {row: value for row, value in changes.items() if value is not values[row] and value != values[row]}
    if not changes:
        return column
    return Column.of([changes.get(row, value) for row, value in enumerate(values)])
