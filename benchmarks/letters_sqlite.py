"""`sqlite:` letters: the peers are Arrow made by hand from `sqlite3` in two tasks, and a loop that moves letters."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from letters import Place, Work, fill, reading, redriving
from pyspark.sql import SparkSession

from redelivery_sqlite import codec

ROWS = 400_000
LETTERS = 1_000_000
_MOVED = 500


def place(folder: Path) -> Place:
    """Return two fresh queues."""
    return Place(f"sqlite://{folder}/rows.db?queue=rows", f"sqlite://{folder}/letters.db?queue=letters")


def count(url: str) -> int:
    """Count the rows of a queue by plain SQL."""
    path = Path(url.removeprefix("sqlite://").partition("?")[0])
    if not path.exists():
        return 0
    with closing(sqlite3.connect(path)) as db:
        return int(db.execute("SELECT count(*) FROM message_1").fetchone()[0])


def works(spark: SparkSession, letters: int) -> list[Work]:
    """Return reading and redriving."""
    return [
        *reading(spark, letters, _by_hand(spark, letters, whole=True), _by_hand(spark, letters, whole=False)),
        *redriving(spark, count, letters // 5, _moved_by_hand(letters // 5)),
    ]


def _by_hand(spark: SparkSession, letters: int, *, whole: bool) -> Work:
    """Return what a careful user writes: two tasks, each reads half of the rows and parses the context's JSON."""
    found: list[int] = []

    def run(at: Place) -> None:
        path = at.sink.removeprefix("sqlite://").partition("?")[0]
        frame = spark.range(0, 2, 1, 2).mapInArrow(
            _reader(path, letters, whole=whole), _SCHEMA if whole else "code string"
        )
        if whole:
            frame.write.format("noop").mode("overwrite").save()
            found.append(letters)
        else:
            found.append(sum(row["count"] for row in frame.groupBy("code").count().collect()))

    name = "Arrow from sqlite3 by hand, two tasks" + ("" if whole else ", counted by code")
    return Work(name, letters, run, lambda _: found.pop(), name, lambda at: fill(at.sink, letters))


_FIELDS = (
    "code",
    "native_code",
    "reason",
    "kind",
    "stage",
    "broker",
    "destination",
    "attempts",
    "attempts_total",
    "run",
)
_SCHEMA = (
    "id string, key binary, value binary, headers array<struct<key:string,value:binary>>, position string, "
    + ", ".join(f"{name} {'int' if name.startswith('attempts') else 'string'}" for name in _FIELDS)
)


def _reader(path: str, letters: int, *, whole: bool) -> Any:
    def read(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa  # noqa: PLC0415 - on the worker

        for batch in batches:
            for number in batch.column("id").to_pylist():
                low, high = letters * number // 2, letters * (number + 1) // 2
                with closing(sqlite3.connect(path)) as db:
                    cursor = db.execute(
                        f"SELECT {codec.COLUMNS} FROM message_1 m WHERE seq > ? AND seq <= ? ORDER BY seq",  # noqa: S608
                        (low, high),
                    )
                    while page := cursor.fetchmany(10_000):
                        yield _arrow(pa, page, whole=whole)

    return read


def _arrow(pa: Any, page: list[Any], *, whole: bool) -> Any:
    """Return a page as columns. The plugin's own function decodes the headers, as a user's would have to."""
    messages = [codec.decode(id_, stamp, key, headers, value)[0] for _, id_, stamp, key, headers, value in page]
    said = [_context(dict(message.headers)) for message in messages]
    if not whole:
        return pa.RecordBatch.from_pydict({"code": [each.get("code") for each in said]})
    columns = {
        "id": [message.id for message in messages],
        "key": [message.key for message in messages],
        "value": [message.value for message in messages],
        "headers": [[{"key": k, "value": v} for k, v in message.headers] for message in messages],
        "position": [str(row[0]) for row in page],
        **{name: [each.get(name) for each in said] for name in _FIELDS},
    }
    header = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    kinds = {
        "key": pa.binary(),
        "value": pa.binary(),
        "headers": header,
        "attempts": pa.int32(),
        "attempts_total": pa.int32(),
    }
    arrays = [pa.array(values, kinds.get(name, pa.string())) for name, values in columns.items()]
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))


def _context(headers: dict[str, bytes | None]) -> dict[str, Any]:
    form = json.loads(headers.get("redelivery-context") or b"{}")
    found: dict[str, Any] = form.get("redelivery", {})
    return found


def _moved_by_hand(letters: int) -> Work:
    """Return the loop: take some, store them at the destination, commit, delete them, commit."""

    def run(at: Place) -> None:
        source, target = (each.removeprefix("sqlite://").partition("?")[0] for each in (at.sink, at.url))
        with closing(_opened(source)) as there, closing(_opened(target)) as here:
            here.execute(
                "CREATE TABLE message_1 (seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE, key BLOB, "
                "headers BLOB, value BLOB)"
            )
            while rows := there.execute(
                f"SELECT {codec.COLUMNS} FROM message_1 m ORDER BY seq LIMIT {_MOVED}"  # noqa: S608
            ).fetchall():
                here.execute("BEGIN IMMEDIATE")
                here.executemany(
                    "INSERT INTO message_1 (id, key, headers, value) VALUES (?, ?, ?, ?)",
                    [(r[1], r[3], r[4], r[5]) for r in rows],
                )
                here.execute("COMMIT")
                there.execute("BEGIN IMMEDIATE")
                there.executemany("DELETE FROM message_1 WHERE seq = ?", [(row[0],) for row in rows])
                there.execute("COMMIT")

    name = f"take, insert, commit, delete by hand, {_MOVED} at a time"
    return Work(name, letters, run, lambda at: count(at.url), name, lambda at: fill(at.sink, letters))


def _opened(path: str) -> sqlite3.Connection:
    db = sqlite3.connect(path, timeout=60, isolation_level=None)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA synchronous=FULL")
    return db
