"""The engine over a broker that does nothing, against Arrow batches thrown away: the framework's floor."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import null_plugin
from bench import Way
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

ROWS = 2_000_000
IN_PROCESS = True
MEMORY = (100_000, 10_000_000)
OUTAGE = (1_000_000, 8.0)

_folder = tempfile.mkdtemp()
atexit.register(shutil.rmtree, _folder, ignore_errors=True)
null_plugin.install(Path(_folder))


def rows(spark: SparkSession, count: int) -> DataFrame:
    """`count` rows of a 10-byte key and a 200-byte value in two partitions."""
    number = f.col("id").cast("string")
    return spark.range(0, count, 1, 2).select(
        f.lpad(number, 10, "0").cast("binary").alias("key"), f.lpad(number, 200, "x").cast("binary").alias("value")
    )


def floor(df: DataFrame, _folder: Path) -> None:
    """Arrow batches reach Python and are thrown away."""

    def throw_away(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            yield batch.slice(0, 0)

    df.mapInArrow(throw_away, df.schema).count()


def ours(df: DataFrame, _folder: Path) -> None:
    """Our writer over the null broker."""
    df.write.format("redelivery").option("url", "null:").mode("append").save()


def ways() -> list[Way]:
    """The floor, and ours against it."""
    base = "Arrow batches thrown away"
    return [Way(base, floor, None, base), Way("redelivery, null broker", ours, None, base)]
