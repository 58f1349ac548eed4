"""Dead letters at the size of an outage, against good rows and hand-written code: `bench.py letters-BROKER`.

Each work runs once to warm up; then all take turns, and the table compares medians. A module `letters_<broker>` says
where rows go, and adds the works of its own peers.
"""

from __future__ import annotations

import atexit
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import failing_plugin
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from redelivery import dead_letters
from redelivery.codes import Code
from redelivery.contract.broker import Capabilities
from redelivery.contract.context import ErrorContext
from redelivery.contract.message import Batch, Column
from redelivery.contract.spec import DeliverySpec
from redelivery.deadletters.redrive import RedriveSettings
from redelivery.formats import dialects
from redelivery.registry import installed
from redelivery.sending import Delivery, Origin
from redelivery.spark.java import local_session

#: Why letters are dead, in turns.
_CODES = ((Code.TOO_LARGE, "413"), (Code.DEADLINE_EXCEEDED, "0"), (Code.REJECTED, "Nack"), (Code.INVALID_MESSAGE, "k"))
#: Letters are made in batches of this many.
_BATCH = 5_000


@dataclass(frozen=True)
class Place:
    """A fresh destination of rows, and a fresh place for their letters."""

    url: str
    sink: str


@dataclass(frozen=True)
class Work:
    """One work on a place.

    Attributes:
        name: name in the table.
        rows: rows or letters that it is about.
        run: the measured part.
        check: returns how many rows or letters it has done, without our code where that is possible.
        to: name of the work that its ratio refers to.
        prepare: makes the letters that it needs; not measured.
    """

    name: str
    rows: int
    run: Callable[[Place], None]
    check: Callable[[Place], int]
    to: str
    prepare: Callable[[Place], None] = lambda _: None


class Broker(Protocol):
    """The interface of a module `letters_<broker>`."""

    ROWS: int
    LETTERS: int

    def place(self, folder: Path) -> Place: ...
    def count(self, url: str) -> int: ...
    def works(self, spark: SparkSession, letters: int) -> list[Work]: ...


@dataclass(frozen=True)
class Timed:
    """The median of one work."""

    name: str
    rows: int
    rows_per_s: float
    ratio: float
    to: str


def measure(module: Broker, *, rows: int | None, repeat: int, only: str | None, master: str) -> Iterator[Timed]:
    """Measure every work of a broker whose name contains `only`, and those that their ratios refer to."""
    scratch = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, scratch, ignore_errors=True)
    failing_plugin.install(scratch)
    config: Mapping[str, str] = module.config() if hasattr(module, "config") else {}
    spark = local_session("letters", master=master, config=dict(config))
    try:
        all_works = [*writing(module, spark, rows or module.ROWS), *module.works(spark, rows or module.LETTERS)]
        named = [work for work in all_works if only is None or only in work.name]
        works = [work for work in all_works if work in named or work.name in {each.to for each in named}]
        times: dict[str, list[float]] = {}
        for turn in range(repeat + 1):
            for work in works:
                took = _run(module, work)
                if turn or not repeat:
                    times.setdefault(work.name, []).append(took)
        speed = {work.name: work.rows / statistics.median(times[work.name]) for work in works}
        for work in works:
            ratio = round(speed[work.name] / speed[work.to], 3)
            yield Timed(work.name, work.rows, round(speed[work.name]), ratio, work.to)
    finally:
        spark.stop()


def _run(module: Broker, work: Work) -> float:
    with tempfile.TemporaryDirectory() as folder:
        place = module.place(Path(folder))
        work.prepare(place)
        began = time.perf_counter()
        work.run(place)
        took = time.perf_counter() - began
        done = work.check(place)
        if done != work.rows:
            raise SystemExit(f"{work.name}: {done} of {work.rows} are there")
        return took


def writing(module: Broker, spark: SparkSession, rows: int) -> list[Work]:
    """Return jobs whose rows are good, all dead, 1 % dead, and all refused once."""
    good = "a job of good rows"

    def job(place: Place, **failing: int | bool) -> None:
        options: Mapping[str, str] = module.options() if hasattr(module, "options") else {}
        writer = _rows(spark, rows).write.format("redelivery").option("deadLetterSink", place.sink)
        writer = writer.options(**{f"sink.{name}": value for name, value in options.items()})
        there = failing_plugin.url(place.url, options, **failing)  # type: ignore[arg-type]
        writer = writer.option("url", there).option("preflight", "false")
        writer = writer.option("retry", 3).option("backoffDelay", "PT0.1S").option("backoffPolicy", "linear")
        writer.mode("append").save()

    def both(place: Place) -> int:
        return module.count(place.url) + module.count(place.sink)

    return [
        Work(good, rows, job, lambda place: module.count(place.url), good),
        Work("all rows dead", rows, lambda place: job(place, dead=1), lambda place: module.count(place.sink), good),
        Work("one row in a hundred dead", rows, lambda place: job(place, dead=100), both, good),
        Work("all rows retried once", rows, lambda place: job(place, once=True), lambda p: module.count(p.url), good),
    ]


def _rows(spark: SparkSession, count: int) -> DataFrame:
    """`count` rows of a 10-byte key and a 200-byte value in two partitions."""
    number = f.col("id").cast("string")
    return spark.range(0, count, 1, 2).select(
        f.lpad(number, 10, "0").cast("binary").alias("key"), f.lpad(number, 200, "x").cast("binary").alias("value")
    )


def fill(url: str, count: int) -> None:
    """Write letters by our sender: as an engine makes them, four codes, a 200-byte value."""
    has = installed().by_url(url).capabilities
    with Delivery.open(url, DeliverySpec(), origin=Origin(run="fill")) as delivery:
        for first in range(0, count, _BATCH):
            delivery.write(_letters(range(first, min(first + _BATCH, count)), has))
        delivery.finish()


def _letters(numbers: range, has: Capabilities) -> Batch:
    """Return letters of one code; each has its own id and position."""
    code, native = _CODES[numbers.start // _BATCH % len(_CODES)]
    context = ErrorContext(
        reason=f"the broker said no: {native}",
        kind="permanent",
        code=code,
        native_code=native,
        exception="redelivery.errors.Permanent",
        stage="TASK_PUT",
        broker="carrier",
        component="carrier.sender.Sender",
        destination="carrier://host/orders",
        attempts=3,
        attempts_total=3,
        first_failure_ms=1_700_000_000_000,
        last_failure_ms=1_700_000_000_999,
        run="run-1",
        partition=1,
    )
    keys = [b"%010d" % number for number in numbers]
    ids = [f"id-{number}" for number in numbers]
    rows = Batch(
        number=0,
        length=len(keys),
        nbytes=400 * len(keys),
        value=Column.of([key.rjust(200, b"x") for key in keys]),
        key=Column.of(list(keys)) if has.keys else None,
        id=Column.of(list(ids)) if has.ids else None,
    )
    return dialects.attach_all(
        rows,
        context,
        {"message_id": ids, "position": numbers},
        dialect=has.context_dialect,
        limits=has.limits,
        prefix=None,
    )


# --- what every broker can be asked ----------------------------------------------------------------------------------


def reading(spark: SparkSession, letters: int, peer: Work, by_code: Work) -> list[Work]:
    """Return our reads, and the peers that read the same columns."""

    def frame(place: Place) -> DataFrame:
        return (
            spark.read.format("redelivery")
            .options(url=place.url, deadLetterSink=place.sink)
            .option("deadLetters", "true")
            .load()
        )

    def prepare(place: Place) -> None:
        fill(place.sink, letters)

    found: list[int] = []

    def whole(place: Place) -> None:
        frame(place).write.format("noop").mode("overwrite").save()
        found.append(letters)

    def codes(place: Place) -> None:
        counted = frame(place).groupBy("_error.code").count().collect()
        found.append(sum(row["count"] for row in counted))

    def one_column(place: Place) -> None:
        reader = (
            spark.read.format("redelivery")
            .options(url=place.url, deadLetterSink=place.sink)
            .option("deadLetters", "true")
        )
        counted = reader.schema("_error struct<code:string>").load().groupBy("_error.code").count().collect()
        found.append(sum(row["count"] for row in counted))

    def check(_place: Place) -> int:
        return found.pop()

    return [
        peer,
        by_code,
        Work("letters as a DataFrame, all columns", letters, whole, check, peer.name, prepare),
        Work("letters counted by code", letters, codes, check, by_code.name, prepare),
        Work("letters counted by code, one column asked for", letters, one_column, check, by_code.name, prepare),
    ]


def redriving(spark: SparkSession, count: Callable[[str], int], letters: int, peer: Work) -> list[Work]:
    """Return our redrives, in one process and by Spark, and the loop by hand."""

    def prepare(place: Place) -> None:
        fill(place.sink, letters)

    def by_command(place: Place) -> None:
        with dead_letters(place.sink, sink=place.sink) as queue:
            report = queue.redrive(to=place.url, settings=RedriveSettings())
        _expect(report.redriven == report.removed == letters, report)

    def by_spark(place: Place) -> None:
        from redelivery.spark import redrive  # noqa: PLC0415

        report = redrive(spark, place.sink, sink=place.sink, to=place.url)
        _expect(report.redriven == letters, report)

    def check(place: Place) -> int:
        return count(place.url)

    return [
        peer,
        Work("redrive in one process", letters, by_command, check, peer.name, prepare),
        Work("redrive by Spark, two tasks", letters, by_spark, check, peer.name, prepare),
    ]


def _expect(true: bool, report: object) -> None:  # noqa: FBT001
    if not true:
        raise SystemExit(f"not all letters: {report}")
