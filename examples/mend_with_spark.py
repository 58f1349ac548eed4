"""Dead letters of a consumer, mended with Spark and sent back, on a real broker and real data.

During a blizzard of three days many flights from New York were cancelled, and the aircraft of some is unknown. Spark
writes them all to a queue. A consumer that needs the aircraft gives those up with a reason: they become dead letters.
Spark reads them as a DataFrame, finds the aircraft that usually flies that number, and writes the rows back. That is a
redelivery, with its hops and attempts counted. Letters that cannot be mended stay in their queue.

    python3 noxfile.py mend                      # on Kafka in a container, or another kind of Kafka
    python3 noxfile.py mend -- --broker rabbitmq
    python3 noxfile.py mend -- --url sqlite:mend.db?queue=flights
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING

from flights import FLIGHT, read_flights, show, step

import redelivery
from redelivery import DeliverySpec, Message, Sink, Subscription, TerminalNack, provisioning
from redelivery.formats import dialects
from redelivery.spark.java import local_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SPEC = DeliverySpec(retry=3, dead_letter_sink=(Sink(uri="native"),))


def main() -> int:
    """Run it; 0 only if every flight is accounted for."""
    arguments = parse()
    with destination(arguments) as (url, options):
        return run(url, options)


def run(url: str, options: Mapping[str, str]) -> int:
    """The job, the consumer, and the mending between them."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - after a Java has been found

    provisioning.apply(url, SPEC, options=options)
    step("Starting Spark")
    spark = local_session("mend", log=Path(tempfile.gettempdir()) / "redelivery-mend.log")
    flights = read_flights(spark).cache()
    storm = flights.where("month = 2 AND day BETWEEN 8 AND 10")
    rows = storm.count()
    step(f"Writing {rows:,} flights")
    settings = {"url": url, **options, "deadLetterSink": "native"}
    with_key = storm.withColumn("key", f.concat_ws("-", "carrier", "flight", "origin", "month", "day"))
    with_key.write.format("redelivery").options(**settings).mode("append").save()

    step("A consumer handles them; it needs to know the aircraft")
    first = consume(url, options)
    show("handled", sum(first.values()))
    letters = spark.read.format("redelivery").options(url=url, deadLetters="true", **options).load().cache()
    dead = letters.count()
    show("dead letters", dead)
    for reason in letters.groupBy("_error.message").count().collect():
        show(f"  {reason[0]}", reason[1])

    step("Mending: the aircraft that usually flies that number")
    mended = mend(letters, flights).cache()
    show("can be mended", mended.count())
    back = mended.drop("_error", "_position")
    back.write.format("redelivery").options(**settings).mode("append").save()
    # Only now: the write has returned, so the mended rows are confirmed.
    with redelivery.dead_letters(url, options=options) as box:
        removed = box.remove([row[0] for row in mended.select("_position").collect()])
        left = sum(1 for _ in box)
    show("written back, and removed from the dead letters", removed)
    spark.stop()

    step("The consumer again")
    second = consume(url, options)
    for hops, count in sorted(second.items()):
        show(f"handled, on their {hops + 1}. life", count)
    checks = {
        "every flight was handled or is a dead letter": sum(first.values()) + sum(second.values()) + left == rows,
        "what was mended was handled, each once": sum(second.values()) == removed,
        "each of them counts as redelivered once": set(second) <= {1},
    }
    for statement, holds in checks.items():
        print(f"{'':10}{'yes' if holds else 'NO!':5}{statement}")
    return 0 if removed and all(checks.values()) else 1


def consume(url: str, options: Mapping[str, str]) -> Counter[int]:
    """Handle the messages in the queue; return how many were handled, by the number of times they were sent back."""
    handled: Counter[int] = Counter()

    def handle(message: Message) -> None:
        flight = json.loads(message.value or b"{}")
        if not flight.get("tailnum"):
            raise TerminalNack("nobody knows the aircraft")
        handled[dialects.history(message).hops] += 1

    Subscription(url, handle, name="maintenance", spec=SPEC, options=options).run(until_empty=True)
    return handled


def mend(letters: DataFrame, flights: DataFrame) -> DataFrame:
    """Return the letters whose aircraft can be guessed, with the aircraft and all other columns unchanged."""
    from pyspark.sql import functions as f  # noqa: PLC0415

    usual = flights.groupBy("carrier", "flight").agg(f.mode("tailnum").alias("usual")).where("usual IS NOT NULL")
    flight = letters.withColumn("row", f.from_json(f.col("value").cast("string"), FLIGHT))
    found = flight.join(usual, (f.col("row.carrier") == f.col("carrier")) & (f.col("row.flight") == f.col("flight")))
    value = f.to_json(f.col("row").withField("tailnum", f.col("usual")))
    return found.withColumn("value", value).select(*letters.columns)


@contextmanager
def destination(arguments: argparse.Namespace) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Return the given URL with its options, or a fresh place at a broker that its harness starts."""
    if arguments.url is not None:
        yield arguments.url, dict(option.split("=", 1) for option in arguments.option)
        return
    from redelivery_conformance.harness import GROUP, start  # noqa: PLC0415 - only to start a broker

    (harness,) = entry_points(group=GROUP, name=arguments.broker)
    with tempfile.TemporaryDirectory() as scratch:
        runtime = start(harness.load()(), None, {}, Path(scratch))
        print(f"{arguments.broker}: {runtime.kind}: {runtime.description}")
        try:
            with runtime.place() as place:
                yield place.url, place.options
        finally:
            runtime.close()


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--broker", default="kafka", help="the plugin whose broker is started (default kafka)")
    parser.add_argument("--url", help="a destination that is there, in place of one that is started")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="a client option for --url")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
