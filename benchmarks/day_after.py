"""The steps of `docs/the_day_after_an_outage.md` with a million letters, each with its time: `day_after.py [--rows N]`.

One row in ten has no `sku`, so the mend drops it and its letter stays.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from redelivery.spark import deliver, redrive, rows
from redelivery.spark.java import local_session

_WHERE = "native_code=missing-subject"


def main() -> int:
    """Run every step; 0 only if every letter is accounted for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--url", help="a fresh place at a broker; by default a queue in a file")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_STATE_HOME"] = folder
        spark = local_session("day-after", master=arguments.master, log=Path(folder) / "spark.log")
        try:
            return _steps(spark, arguments.url or f"sqlite://{folder}/orders.db?queue=orders", arguments.rows)
        finally:
            spark.stop()


def _steps(spark: SparkSession, url: str, count: int) -> int:
    bad = spark.range(count, numPartitions=4).selectExpr(
        "'order' AS type",
        "'/shop' AS source",
        "STRING(NULL) AS subject",
        "id AS number",
        "IF(id % 10 = 0, NULL, CONCAT('sku-', id % 1000)) AS sku",
        "REPEAT('x', 150) AS note",
    )

    def mend(letters: DataFrame) -> DataFrame:
        orders = rows(letters, bad.schema)
        return orders.withColumn("subject", f.concat(f.lit("order/"), "number")).where("sku IS NOT NULL")

    with _timed("the job: every row is dead-lettered", count):
        _check(deliver(bad, url, deadLetterSink="native", requireAttributes="subject").dead_lettered, count)
    command = [sys.executable, "-m", "redelivery", "dead-letters"]
    with _timed("stats", count):
        subprocess.run([*command, "stats", url], check=True, stdout=subprocess.DEVNULL)  # noqa: S603 - our own command
    with _timed("counted by code in Spark", count):
        letters = spark.read.format("redelivery").options(url=url, deadLetters="true").load()
        _check(letters.groupBy("_error.code").count().collect()[0][1], count)
    with _timed("a dry run", count):
        _check(redrive(spark, url, where=_WHERE, dry_run=True).considered, count)
    with _timed("100 mended and sent back", 100):
        tried = redrive(spark, url, where=_WHERE, mend=mend, limit=100)
    with _timed("the rest mended and sent back", count - 100):
        rest = redrive(spark, url, where=_WHERE, mend=mend)
    sent, left = tried.redriven + rest.redriven, rest.left
    print(f"{sent} redriven, left {dict(left)}")
    return 0 if sent == count - len(range(0, count, 10)) and sum(left.values()) == count - sent else 1


def _check(found: int, wanted: int) -> None:
    if found != wanted:
        raise SystemExit(f"{found} letters, not {wanted}")


@contextmanager
def _timed(step: str, letters: int) -> Iterator[None]:
    began = time.perf_counter()
    yield
    took = time.perf_counter() - began
    print(f"{step:45}{took:8.1f} s {letters / took:10,.0f}/s", flush=True)


if __name__ == "__main__":
    sys.exit(main())
