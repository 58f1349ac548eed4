"""`sqlite:` against hand-written loops, at the same durability (WAL, synchronous=FULL)."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

from bench import Way
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

ROWS = 400_000
IN_PROCESS = True
MEMORY = (100_000, 10_000_000)


def rows(spark: SparkSession, count: int) -> DataFrame:
    """`count` rows of a 10-byte key and a 300-byte value in two partitions."""
    number = f.col("id").cast("string")
    return spark.range(0, count, 1, 2).select(
        f.lpad(number, 10, "0").cast("binary").alias("key"), f.lpad(number, 300, "x").cast("binary").alias("value")
    )


def _open(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, timeout=60, isolation_level=None)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA synchronous=FULL")
    db.execute("CREATE TABLE IF NOT EXISTS queue (id INTEGER PRIMARY KEY AUTOINCREMENT, key BLOB, value BLOB)")
    return db


def row_by_row(df: DataFrame, folder: Path) -> None:
    """Use foreachPartition, one INSERT per row, 1,000 rows per transaction."""
    path = folder / "queue.db"
    with closing(_open(path)):
        pass

    def write(partition: Iterable[Any]) -> None:
        with closing(_open(path)) as db:
            iterator = iter(partition)
            while chunk := list(islice(iterator, 1000)):
                db.execute("BEGIN IMMEDIATE")
                for row in chunk:
                    db.execute("INSERT INTO queue (key, value) VALUES (?, ?)", (row.key, row.value))
                db.execute("COMMIT")

    df.foreachPartition(write)


def executemany(df: DataFrame, folder: Path) -> None:
    """Use foreachPartition with executemany, 10,000 rows per transaction."""
    path = folder / "queue.db"
    with closing(_open(path)):
        pass

    def write(partition: Iterator[Any]) -> None:
        with closing(_open(path)) as db:
            iterator = iter(partition)
            while chunk := [(row.key, row.value) for row in islice(iterator, 10_000)]:
                db.execute("BEGIN IMMEDIATE")
                db.executemany("INSERT INTO queue (key, value) VALUES (?, ?)", chunk)
                db.execute("COMMIT")

    df.foreachPartition(write)


def ours(df: DataFrame, folder: Path) -> None:
    """Our writer, with ids, deduplication and an account."""
    df.write.format("redelivery").option("url", f"sqlite://{folder}/queue.db?queue=q").mode("append").save()


def count_by_hand(folder: Path) -> int:
    """Rows in the hand-written loops' table."""
    with closing(sqlite3.connect(folder / "queue.db")) as db:
        return int(db.execute("SELECT count(*) FROM queue").fetchone()[0])


def count_ours(folder: Path) -> int:
    """Rows in our table, by plain SQL."""
    with closing(sqlite3.connect(folder / "queue.db")) as db:
        return int(db.execute("SELECT count(*) FROM message_1").fetchone()[0])


def ways() -> list[Way]:
    """Two hand-written loops, and ours against each."""
    one, many = "foreachPartition, row by row, 1,000 a transaction", "foreachPartition, executemany, 10,000"
    return [
        Way(one, row_by_row, count_by_hand, one),
        Way(many, executemany, count_by_hand, one),
        Way("redelivery, to row by row", ours, count_ours, one),
        Way("redelivery, to executemany", ours, count_ours, many),
    ]
