"""`kafka:` against Spark's own JVM sink and a loop by hand, acks=all for all: without headers, with, and as events.

The plugin's harness starts the broker. Spark's sink needs Maven once, for its jars; without Maven it is left out.
"""

from __future__ import annotations

import atexit
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from bench import Way
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from redelivery_conformance.harness import start
from redelivery_kafka.testing import KafkaHarness

ROWS = 2_000_000
MEMORY = (1_000_000, 10_000_000)  # fewer do not fill the buffers
PARTITIONS = 2

#: What runs with PySpark 4.3, without the jars' own dependencies (facts: the versions differ on purpose).
_JARS = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.2",
    "org.apache.commons:commons-pool2:2.12.0",
)
_CACHE = Path(__file__).parent.parent / ".nox" / "kafka-jars"
_TUNED = {"kafka.linger.ms": "20", "kafka.batch.size": "1048576", "kafka.buffer.memory": "134217728"}


def config() -> Mapping[str, str]:
    """Return additional settings for Spark's session: the jars of its Kafka sink."""
    return {"spark.jars": ",".join(_jars())} if _jars() else {}


def rows(spark: SparkSession, count: int) -> DataFrame:
    """`count` rows of a 10-byte key and a 200-byte value in two partitions."""
    number = f.col("id").cast("string")
    return spark.range(0, count, 1, PARTITIONS).select(
        f.lpad(number, 10, "0").cast("binary").alias("key"), f.lpad(number, 200, "x").cast("binary").alias("value")
    )


def floor(df: DataFrame, _folder: Path) -> None:
    """Arrow batches reach Python and are thrown away."""

    def throw_away(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            yield batch.slice(0, 0)

    df.mapInArrow(throw_away, df.schema).count()


def by_hand(df: DataFrame, folder: Path) -> None:
    """A hand-written loop over the client. It reports errors, but not their rows."""
    topic, servers = _made(folder), bootstrap()

    def write(batches: Iterator[Any]) -> Iterator[Any]:
        from confluent_kafka import Producer  # noqa: PLC0415 - a client's class cannot be pickled

        failed: list[Any] = []
        producer = Producer(
            {
                "bootstrap.servers": servers,
                "acks": "all",
                "enable.idempotence": True,
                "delivery.report.only.error": True,
                "on_delivery": lambda error, _: failed.append(error),
            }
        )
        for batch in batches:
            produce = producer.produce
            for key, value in zip(batch.column("key").to_pylist(), batch.column("value").to_pylist(), strict=True):
                while True:
                    try:
                        produce(topic, value, key)
                        break
                    except BufferError:
                        producer.poll(0.1)
            producer.poll(0)
            yield batch.slice(0, 0)
        if producer.flush(60) or failed:
            raise RuntimeError(f"{len(failed)} rows failed")

    df.mapInArrow(write, df.schema).count()


def jvm(df: DataFrame, folder: Path, options: Mapping[str, str]) -> None:
    """Spark's own sink."""
    writer = df.write.format("kafka").option("kafka.bootstrap.servers", bootstrap()).option("topic", _made(folder))
    writer.options(**options).mode("append").save()


def ours(df: DataFrame, folder: Path) -> None:
    """Our writer with its defaults."""
    df.write.format("redelivery").option("url", target(folder)).mode("append").save()


def target(folder: Path) -> str:
    """A fresh topic's URL."""
    return f"kafka://{bootstrap()}/{_made(folder)}"


def three(df: DataFrame) -> DataFrame:
    """The rows with three headers each; one header differs in every row."""
    return df.withColumn("headers", _headers({"source": f.lit("bench"), "kind": f.lit("row"), "number": f.col("key")}))


def events(df: DataFrame) -> DataFrame:
    """The rows as events, for our writer."""
    columns = {"type": f.lit("bench.row"), "source": f.lit("/bench"), "id": f.col("key").cast("string")}
    return df.withColumns({**columns, "datacontenttype": f.lit("text/plain")})


def events_by_hand(df: DataFrame) -> DataFrame:
    """The same events as hand-made headers, for Spark's own sink."""
    attributes = {
        "type": f.lit("bench.row"),
        "source": f.lit("/bench"),
        "id": f.col("key"),
        "specversion": f.lit("1.0"),
    }
    named = {f"ce_{name}": column for name, column in attributes.items()}
    return df.withColumn("headers", _headers({**named, "content-type": f.lit("text/plain")}))


def count(folder: Path) -> int:
    """Count the rows of the topic by its end offsets, then delete it: many topics fill the disk."""
    topic = _topic(folder)
    consumer = Consumer({"bootstrap.servers": bootstrap(), "group.id": "bench"})
    ends = [consumer.get_watermark_offsets(TopicPartition(topic, at), timeout=30) for at in range(PARTITIONS)]
    consumer.close()
    admin().delete_topics([topic])[topic].result(30)
    return sum(high - low for low, high in ends)


def ways() -> list[Way]:
    """The floor, a loop by hand, Spark's own sink, and ours against each."""
    hand, plain, tuned = "confluent-kafka by hand", "Spark's own sink", "Spark's own sink, tuned"
    base = plain if _jars() else hand
    found = [Way("Arrow batches thrown away", floor, None, base), Way(hand, by_hand, count, base)]
    if _jars():
        found += [
            Way(plain, partial(jvm, options={}), count, base),
            Way(tuned, partial(jvm, options=_TUNED), count, base),
        ]
    found.append(Way("redelivery", ours, count, base))
    for what, make, make_by_hand in (("three headers", three, three), ("events", events, events_by_hand)):
        to = f"{base}, {what}"
        if _jars():
            found.append(Way(to, partial(_of, make_by_hand, partial(jvm, options={})), count, to))
        name = f"redelivery, {what}"
        found.append(Way(name, partial(_of, make, ours), count, to if _jars() else name))
    return found


def _of(
    make: Callable[[DataFrame], DataFrame], write: Callable[[DataFrame, Path], None], df: DataFrame, at: Path
) -> None:
    write(make(df), at)


def _headers(columns: Mapping[str, Column]) -> Column:
    pairs = (f.struct(f.lit(name).alias("key"), value.cast("binary").alias("value")) for name, value in columns.items())
    return f.array(*pairs)


def _topic(folder: Path) -> str:
    return f"bench-{folder.name}"


def _made(folder: Path) -> str:
    topic = _topic(folder)
    settings = {"file.delete.delay.ms": "1000"}
    admin().create_topics([NewTopic(topic, PARTITIONS, 1, config=settings)])[topic].result(30)
    return topic


@cache
def bootstrap() -> str:
    scratch = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, scratch, ignore_errors=True)
    runtime = start(KafkaHarness(), None, {}, scratch)
    atexit.register(runtime.close)
    print(runtime.description, file=sys.stderr)
    return urlsplit(runtime.place().url).netloc


@cache
def admin() -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap()})


@cache
def _jars() -> tuple[str, ...]:
    """Return the paths of the jars of Spark's own sink; if Maven cannot download them, print why and return none."""
    found = []
    for name in _JARS:
        _, artifact, version = name.split(":")
        path = _CACHE / f"{artifact}-{version}.jar"
        if not path.exists():
            command = ["mvn", "-q", "-B", "dependency:copy", f"-Dartifact={name}", f"-DoutputDirectory={_CACHE}"]
            try:
                subprocess.run(command, check=True, capture_output=True, timeout=300)  # noqa: S603 - our own words
            except (OSError, subprocess.SubprocessError) as error:
                print(f"Spark's own sink is left out: {name} cannot be had by Maven: {error}", file=sys.stderr)
                return ()
        found.append(str(path))
    return tuple(found)
