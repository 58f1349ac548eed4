"""Letters of a queue as columns: page by page, and in ranges that several readers share.

Every read is short, so that no reader prevents a checkpoint of the write-ahead log.
"""

from __future__ import annotations

import json
import re
import sqlite3
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from redelivery.contract.broker import Wanted
from redelivery.contract.context import LAST_MS
from redelivery.contract.letters import BATCH_BYTES, BATCH_LETTERS
from redelivery.errors import ConfigurationError

#: Numbers that one statement looks at where few of their letters may be wanted.
_SPAN: Final = 100_000
#: A range is measured in at most so many cells, each by one look at the index.
_CELLS: Final = 2_048
#: A split has at least about so many letters.
_LEAST: Final = 10
_POINT: Final = re.compile(r"([0-9]{1,18})\.([0-9]{1,18})\.([0-9]{1,18})")
_SPLIT: Final = re.compile(r"([0-9]{1,18})\.([0-9]{1,18})\.([0-9]{1,18})-([0-9]{1,18})")
#: The number of a message.
POSITION: Final = re.compile("[0-9]{1,18}")

#: What `read` fetches for a column of `Batch`. Text is read as bytes: a damaged row is reported and harms no other.
_COLUMNS: Final[Mapping[str, str]] = {
    "id": "CAST(id AS BLOB)",
    "timestamp_ms": "timestamp_ms",
    "key": "key",
    "headers": "CAST(headers AS BLOB)",
    "value": "value",
}


@dataclass(frozen=True, slots=True)
class Generation:
    """A queue as it was created once. One that is created again under its name has another number, or another time.

    Attributes:
        number: of its tables; 0: no queue yet.
        created_ms: when it was created.
        end: the highest number that any of its messages has had.
    """

    number: int
    created_ms: int
    end: int

    @classmethod
    def of(cls, connection: sqlite3.Connection, queue: str) -> Self:
        """Return the queue of this name."""
        found = connection.execute("SELECT number, created_ms, next - 1 FROM queue WHERE name = ?", (queue,)).fetchone()
        return cls(*(found or (0, 0, 0)))

    def is_of(self, number: int, created_ms: int) -> bool:
        """Return whether a cursor or split of that generation is of this one. One of no queue yet is of any."""
        return number == 0 or (number, created_ms) == (self.number, self.created_ms)


@dataclass(frozen=True, slots=True)
class Point:
    """A cursor: the point behind the letter with a number."""

    number: int
    created_ms: int
    seq: int

    def __str__(self) -> str:
        return f"{self.number}.{self.created_ms}.{self.seq}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a cursor. Raises ConfigurationError."""
        found = _POINT.fullmatch(text)
        if found is None:
            raise ConfigurationError(f"sqlite: not a cursor of a queue: {text!r}")
        return cls(*map(int, found.groups()))


@dataclass(frozen=True, slots=True)
class Range:
    """A split: the letters with numbers from `first` to `last`."""

    number: int
    created_ms: int
    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.number}.{self.created_ms}.{self.first}-{self.last}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a split. Raises ConfigurationError."""
        found = _SPLIT.fullmatch(text)
        if found is None:
            raise ConfigurationError(f"sqlite: not a split of a queue: {text!r}")
        return cls(*map(int, found.groups()))


@dataclass(frozen=True, slots=True)
class Page:
    """Rows of a queue as columns, oldest first; those that are not wanted are absent."""

    seq: Sequence[int]
    enqueued_ms: Sequence[Any]
    columns: Mapping[str, Sequence[Any]]
    nbytes: int


def sought(wanted: Wanted) -> list[int] | None:
    """Return the numbers at the wanted positions, in order; None: all are wanted."""
    if wanted.positions is None:
        return None
    return sorted(int(each) for each in wanted.positions if POSITION.fullmatch(each))


def split(connection: sqlite3.Connection, number: int, first: int, last: int, parts: int) -> Iterator[tuple[int, int]]:
    """Return ranges of about as many letters each, of those numbered from `first` to `last`; no row is read.

    The numbers are divided into cells of equal width. Those without a letter are left out: whoever removes letters
    leaves gaps.
    """
    found = connection.execute(
        f"SELECT (SELECT min(seq) FROM message_{number} WHERE seq >= ?), "  # noqa: S608 - a number
        f"(SELECT max(seq) FROM message_{number} WHERE seq <= ?)",
        (first, last),
    ).fetchone()
    if found[0] is None or found[1] is None or found[0] > found[1]:
        return
    first, last = found
    width = -(-(last - first + 1) // _CELLS)
    following = f"SELECT min(seq) FROM message_{number} WHERE seq >= ?"  # noqa: S608 - a number
    cells: list[int] = []
    begin = first
    while begin <= last:
        (seq,) = connection.execute(following, (begin,)).fetchone()
        if seq is None or seq > last:  # removed since
            break
        begin += (seq - begin) // width * width
        cells.append(begin)
        begin += width
    parts = max(1, min(parts, len(cells), len(cells) * width // _LEAST))
    for part in range(parts):
        some = cells[len(cells) * part // parts : len(cells) * (part + 1) // parts]
        if some:
            yield some[0], min(some[-1] + width - 1, last)


def spread(seqs: Sequence[int], parts: int) -> Iterator[tuple[int, int]]:
    """Return ranges of about as many of these numbers each, which are in order."""
    parts = max(1, min(parts, len(seqs) // _LEAST))
    for part in range(parts):
        some = seqs[len(seqs) * part // parts : len(seqs) * (part + 1) // parts]
        if some:
            yield some[0], some[-1]


class Pages:
    """Reads the rows of a queue that a reader wants.

    Args:
        number: of the queue's tables.
        wanted: what is asked for.
    """

    def __init__(self, number: int, wanted: Wanted) -> None:
        self._names = [name for name in _COLUMNS if wanted.wants(name)]
        self._sought = sought(wanted)
        where, self._values = ["seq > ?", "seq <= ?"], list[Any]()
        unknown = f"enqueued_ms NOT BETWEEN 0 AND {LAST_MS}"
        for test, value in (
            (f"(enqueued_ms >= ? OR {unknown})", wanted.since_ms),
            (f"(enqueued_ms < ? OR {unknown})", wanted.until_ms),
            ("key = ?", wanted.key),
        ):
            if value is not None:
                where.append(test)
                self._values.append(value)
        self._is_narrow = bool(self._values)
        if self._sought is not None:
            where.append("seq IN (SELECT value FROM json_each(?))")
        columns = ", ".join(["seq", "enqueued_ms", *(_COLUMNS[name] for name in self._names)])
        table = f"message_{number}"
        self._query = f"SELECT {columns} FROM {table} WHERE {' AND '.join(where)} ORDER BY seq LIMIT {BATCH_LETTERS}"  # noqa: S608 - our own names
        self._following = f"SELECT min(seq) FROM {table} WHERE seq > ?"  # noqa: S608 - a number

    def read(self, connection: sqlite3.Connection, after: int, last: int) -> tuple[Page | None, int]:
        """Return the first wanted rows numbered past `after`, up to `last`, and the number up to which it looked."""
        values: list[Any] = []
        until = last
        if self._sought is not None:
            some = _some(self._sought, after, last)
            if not some:
                return None, last
            until = min(last, some[-1])
            values = [json.dumps(some)]
        elif self._is_narrow:
            (seq,) = connection.execute(self._following, (after,)).fetchone()
            if seq is None or seq > last:
                return None, last
            after = seq - 1
            until = min(last, after + _SPAN)
        cursor = connection.execute(self._query, (after, until, *self._values, *values))
        try:
            rows, size = _bounded(cursor)
        finally:
            cursor.close()
        if not rows:
            return None, until
        seqs, enqueued, *columns = zip(*rows, strict=True)
        is_whole = len(rows) < BATCH_LETTERS and size < BATCH_BYTES
        page = Page(seqs, enqueued, dict(zip(self._names, columns, strict=True)), size)
        return page, until if is_whole else seqs[-1]


def _some(seqs: Sequence[int], after: int, last: int) -> list[int]:
    """Return the first numbers past `after`, up to `last`, that fit in a page."""
    begin = bisect_right(seqs, after)
    return list(seqs[begin : min(begin + BATCH_LETTERS, bisect_right(seqs, last))])


def _bounded(cursor: Iterable[Any]) -> tuple[list[Any], int]:
    """Return rows until a page is full, and their size in bytes."""
    rows: list[Any] = []
    size = 0
    for row in cursor:
        rows.append(row)
        for part in row[2:]:
            if part.__class__ is bytes:
                size += len(part)
        if size >= BATCH_BYTES:
            break
    return rows, size
