"""A micro-batch stream to `sqlite:` against the batch writer, from the same files."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from pathlib import Path

from bench import Way
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from ways_sqlite import count_ours
from ways_sqlite import rows as made

ROWS = 400_000

_folder = tempfile.mkdtemp()
atexit.register(shutil.rmtree, _folder, ignore_errors=True)


def rows(spark: SparkSession, count: int) -> DataFrame:
    """The rows of `ways_sqlite`, as two files."""
    made(spark, count).write.mode("overwrite").parquet(f"{_folder}/rows")
    return spark.read.parquet(f"{_folder}/rows").select(f.col("key"), f.col("value"))


def batch(df: DataFrame, folder: Path) -> None:
    """The batch writer."""
    df.write.format("redelivery").option("url", f"sqlite://{folder}/queue.db?queue=q").mode("append").save()


def stream(df: DataFrame, folder: Path) -> None:
    """All files as one micro-batch, from start to end of the query."""
    source = df.sparkSession.readStream.schema(df.schema).parquet(f"{_folder}/rows")
    query = (
        source.writeStream.format("redelivery")
        .option("url", f"sqlite://{folder}/queue.db?queue=q")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def ways() -> list[Way]:
    """The batch writer, and the stream against it."""
    base = "batch writer"
    return [Way(base, batch, count_ours, base), Way("stream, one micro-batch", stream, count_ours, base)]
