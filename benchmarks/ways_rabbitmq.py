"""`rabbitmq:` against loops by hand and RabbitMQ's own PerfTest: 200-byte persistent rows, confirmed.

The plugin's harness starts the broker. PerfTest needs Maven once, for its jars; without Maven it is left out. Two
figures are printed beside the table: PerfTest's own, without the start of Java, and that of a few rows sent one by one.
"""

from __future__ import annotations

import atexit
import itertools
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

import pika
from bench import Way
from pika.adapters.select_connection import IOLoop
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from redelivery.contract.message import Batch, Column
from redelivery.registry import connect
from redelivery_conformance.harness import start
from redelivery_rabbitmq.testing import RabbitmqHarness, RabbitmqRuntime

ROWS: Final = 150_000
MEMORY: Final = (100_000, 1_000_000)
KINDS: Final = ("quorum", "classic")
#: Maximum number of unconfirmed rows, in hand-written loops and in PerfTest.
WINDOW: Final = 1_000
#: Number of rows for sending one by one, which is very slow.
FEW: Final = 2_000

_VALUE: Final = b"x" * 200
_BATCH: Final = 10_000
_IN_FLIGHT: Final = 4
_PERF_TEST: Final = "com.rabbitmq:perf-test:2.22.1"
_CACHE: Final = Path(__file__).parent.parent / ".nox" / "perf-test"


def rows(spark: SparkSession, count: int) -> DataFrame:
    """`count` rows of a 200-byte value in two partitions."""
    return spark.range(0, count, 1, 2).select(
        f.lpad(f.col("id").cast("string"), 200, "x").cast("binary").alias("value")
    )


def target(folder: Path) -> str:
    """A fresh quorum queue's URL."""
    return _url(_made(folder, KINDS[0]))


def from_spark(df: DataFrame, folder: Path, kind: str) -> None:
    """Our writer: ids and an account included."""
    df.write.format("redelivery").option("url", _url(_made(folder, kind))).mode("append").save()


def sender(df: DataFrame, folder: Path, kind: str) -> None:
    """Our sender alone, without Spark and the engine."""
    queue, count = _made(folder, kind), _count(df)
    value: Column[bytes | None] = Column.of([_VALUE] * _BATCH)
    with connect(_url(queue)) as broker, broker.sender() as sending:
        told = sent = 0
        while told < count:
            while sent < count and sent - told < _IN_FLIGHT * _BATCH:
                length = min(_BATCH, count - sent)
                column = value if length == _BATCH else Column[bytes | None].of([_VALUE] * length)
                batch = Batch(number=sent, length=length, nbytes=length * 264, value=column)
                sending.send(batch, deadline=time.monotonic() + 60)
                sent += length
            for settled in sending.collect(1):
                if settled.error or settled.failures:
                    raise SystemExit(f"our sender: {settled.error or settled.failures[0].error}")
                told += min(_BATCH, count - settled.batch)


def pipelined(df: DataFrame, folder: Path, kind: str) -> None:
    """A hand-written loop over pika's public calls: it publishes without waiting and counts arriving confirms."""
    queue, count = _made(folder, kind), _count(df)
    loop = IOLoop()
    state = {"sent": 0, "confirmed": 0}
    properties = pika.BasicProperties(delivery_mode=2)  # type: ignore[no-untyped-call]

    def publish(channel: Any) -> None:
        while state["sent"] < count and state["sent"] - state["confirmed"] < WINDOW:
            channel.basic_publish("", queue, _VALUE, properties, mandatory=True)
            state["sent"] += 1

    def confirmed(channel: Any, frame: Any) -> None:
        tag = frame.method.delivery_tag
        state["confirmed"] = tag if frame.method.multiple else state["confirmed"] + 1
        if state["confirmed"] >= count:
            channel.connection.close()
        elif state["sent"] - state["confirmed"] <= WINDOW // 2:
            publish(channel)

    def ready(channel: Any) -> None:
        channel.confirm_delivery(partial(confirmed, channel), callback=lambda _: publish(channel))

    def opened(connection: Any) -> None:
        connection.channel(on_open_callback=ready)

    connection = pika.SelectConnection(
        _parameters(),
        on_open_callback=opened,
        on_close_callback=lambda *_: loop.stop(),
        custom_ioloop=loop,
    )
    loop.start()
    if not connection.is_closed:
        raise SystemExit("the loop by hand did not end")


def perf_test(df: DataFrame, folder: Path, kind: str) -> None:
    """RabbitMQ's own load generator with one producer, including the start of Java."""
    there = _parameters()
    options = {
        "--uri": f"amqp://guest:guest@{there.host}:{there.port}/%2f",
        "--queue": _made(folder, kind),
        "--predeclared": "",
        "--producers": "1",
        "--consumers": "0",
        "--pmessages": str(_count(df)),
        "--size": str(len(_VALUE)),
        "--flag": "persistent",
        "--confirm": str(WINDOW),
    }
    words = [word for pair in options.items() for word in pair if word]
    command = ["java", "-cp", _perf_test(), "com.rabbitmq.perf.PerfTest", *words]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=600)  # noqa: S603 - our own words
    for line in done.stdout.splitlines():
        if "sending rate avg" in line:
            print(f"{kind}: PerfTest by itself: {line.partition('sending')[2]}", file=sys.stderr)


def stored(folder: Path) -> int:
    """Return the broker's count of rows in the queue, then delete the queue."""
    queue = (folder / "queue").read_text()
    cluster = _runtime().cluster
    previous = -1
    while (found := cluster.count(queue) or 0) != previous:  # a quorum queue's count is late
        previous = found
        time.sleep(0.2)
    cluster.remove(queue)
    return found


def waiting(queue: str) -> int:
    """Return the number of messages that wait in a queue."""
    return _runtime().cluster.count(queue) or 0


def ways() -> list[Way]:
    """All ways, each queue type by itself."""
    found = []
    for kind in KINDS:
        _one_by_one(kind)
        hand = f"pika's public calls, pipelined: {kind}"
        each: list[tuple[str, Callable[[DataFrame, Path, str], None]]] = [
            (hand, pipelined),
            (f"our sender, to pika pipelined: {kind}", sender),
            (f"redelivery from Spark, to pika pipelined: {kind}", from_spark),
        ]
        if _perf_test():
            perf = f"PerfTest, its Java's start included: {kind}"
            each += [(perf, perf_test), (f"our sender, to PerfTest: {kind}", sender)]
        for name, write in each:
            to = perf if name.startswith("our sender, to PerfTest") else hand
            found.append(Way(name, partial(_write, write, kind), stored, to))
    return found


@cache
def _one_by_one(kind: str) -> None:
    """Measure once, and print, pika's blocking channel with each row confirmed before the next."""
    properties = pika.BasicProperties(delivery_mode=2)  # type: ignore[no-untyped-call]
    queue = f"bench-one-by-one-{kind}"
    _runtime().cluster.make(queue, {"x-queue-type": kind})
    with pika.BlockingConnection(_parameters()) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        began = time.perf_counter()
        for _ in range(FEW):
            channel.basic_publish("", queue, _VALUE, properties, mandatory=True)
        print(f"{kind}: pika one by one: {FEW / (time.perf_counter() - began):,.0f} rows/s", file=sys.stderr)
    _runtime().cluster.remove(queue)


def _write(write: Callable[[DataFrame, Path, str], None], kind: str, df: DataFrame, folder: Path) -> None:
    write(df, folder, kind)


def _count(df: DataFrame) -> int:
    return df.count()


def _made(folder: Path, kind: str) -> str:
    """Create a fresh queue and keep its name for `stored`."""
    queue = f"bench-{next(_numbers)}"
    (folder / "queue").write_text(queue)
    _runtime().cluster.make(queue, {"x-queue-type": kind})
    return queue


_numbers = itertools.count()


def _url(queue: str) -> str:
    there = _parameters()
    return f"rabbitmq://{there.host}:{there.port}?queue={queue}"


def _parameters() -> pika.ConnectionParameters:
    return _runtime().cluster.parameters


@cache
def _runtime() -> RabbitmqRuntime:
    scratch = Path(tempfile.mkdtemp(prefix="redelivery-bench-"))
    atexit.register(shutil.rmtree, scratch, ignore_errors=True)
    runtime = start(RabbitmqHarness(), None, {}, scratch)
    atexit.register(runtime.close)
    print(runtime.description, file=sys.stderr)
    if not isinstance(runtime, RabbitmqRuntime):
        raise SystemExit("the harness gave another runtime than its own")
    return runtime


@cache
def _perf_test() -> str:
    """Return the class path of PerfTest; if Maven cannot download it, print why and return nothing."""
    listed = _CACHE / "classpath"
    if not listed.exists():
        _CACHE.mkdir(parents=True, exist_ok=True)
        group, artifact, version = _PERF_TEST.split(":")
        (_CACHE / "pom.xml").write_text(
            "<project><modelVersion>4.0.0</modelVersion><groupId>bench</groupId><artifactId>bench</artifactId>"
            f"<version>1</version><dependencies><dependency><groupId>{group}</groupId><artifactId>{artifact}"
            f"</artifactId><version>{version}</version></dependency></dependencies></project>"
        )
        command = ["mvn", "-q", "-B", "dependency:build-classpath", f"-Dmdep.outputFile={listed}"]
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=600, cwd=_CACHE)  # noqa: S603 - our words
        except (OSError, subprocess.SubprocessError) as error:
            print(f"PerfTest is left out: {_PERF_TEST} cannot be had by Maven: {error}", file=sys.stderr)
            return ""
    return listed.read_text().strip()
