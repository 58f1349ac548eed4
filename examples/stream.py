"""A stream into a queue, stopped and started again: what a micro-batch has sent once it never sends as something else.

Spark's own rate source makes orders for a few seconds. Every tenth has no customer and is dead-lettered. Press Ctrl-C
at any moment, or kill it, and run it again: it continues where it stopped, and no order is lost or duplicated.

    python examples/stream.py --seconds 20
"""

from __future__ import annotations

import argparse
import contextlib
import json
from pathlib import Path

from pyspark.sql import functions as f

from redelivery.spark import events
from redelivery.spark.java import local_session

FOLDER = Path(".redelivery", "stream").absolute()


def main() -> None:
    """Run the stream, then add up the accounts of all its micro-batches, including those of earlier runs."""
    parser = argparse.ArgumentParser(description="A stream into a queue.")
    parser.add_argument("--seconds", type=int, default=20)
    seconds = parser.parse_args().seconds
    reports = FOLDER / "reports"
    reports.mkdir(parents=True, exist_ok=True)

    spark = local_session("stream", log=FOLDER / "spark.log")
    orders = spark.readStream.format("rate").option("rowsPerSecond", 100).load()
    orders = orders.withColumn("customer", f.when(f.col("value") % 10 != 0, f.concat(f.lit("c"), f.col("value") % 7)))
    made = events(orders, type="org.example.order", source="/shop", subject="customer", time="timestamp")
    query = (
        made.writeStream.format("redelivery")
        .option("url", f"sqlite://{FOLDER}/orders.db?queue=orders")
        .option("requireAttributes", "subject")
        .option("deadLetterSink", "native")
        .option("checkpointLocation", str(FOLDER / "checkpoint"))
        .option("reportPath", str(reports))
        .start()
    )
    print(f"Writing to {FOLDER} for {seconds} s; stop it whenever you like, and run it again.")
    with contextlib.suppress(KeyboardInterrupt):
        query.awaitTermination(seconds)
    query.stop()
    accounts = [json.loads(path.read_text()) for path in reports.glob("*.json")]
    for name in ("rows", "delivered", "dead_lettered"):
        print(f"{name:>14}: {sum(account[name] for account in accounts):,}")
    spark.stop()


if __name__ == "__main__":
    main()
