"""`kafka:` letters: the peers are Spark's own source, with the headers parsed by SQL, and its own source and sink."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import ways_kafka
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.cimpl import NewTopic
from letters import Place, Work, fill, reading, redriving
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

ROWS = 1_000_000
LETTERS = 2_000_000
_REDRIVEN = 500_000
#: The columns of `_error`, and the header that each is in.
_HEADERS = {
    "code": "redelivery-context",
    "message": "__connect.errors.exception.message",
    "stage": "__connect.errors.stage",
    "exception": "__connect.errors.exception.class.name",
    "component": "__connect.errors.class.name",
    "partition": "__connect.errors.task.id",
    "run": "__connect.errors.connector.name",
    "topic": "__connect.errors.topic",
    "trace": "__connect.errors.exception.stacktrace",
    "marker": "redelivery-letter",
}


def config() -> Mapping[str, str]:
    """Return additional settings for Spark's session."""
    return {**ways_kafka.config(), "spark.sql.mapKeyDedupPolicy": "LAST_WIN"}


def place(folder: Path) -> Place:
    """Return two fresh topics."""
    urls = [f"kafka://{ways_kafka.bootstrap()}/letters-{folder.name}-{name}" for name in ("rows", "dead")]
    for url in urls:
        new = NewTopic(_topic(url), ways_kafka.PARTITIONS, 1, config={"file.delete.delay.ms": "1000"})
        ways_kafka.admin().create_topics([new])[_topic(url)].result(30)
    return Place(*urls)


def count(url: str) -> int:
    """Count the rows of a topic by its end offsets."""
    consumer = Consumer({"bootstrap.servers": ways_kafka.bootstrap(), "group.id": "bench"})
    parts = [TopicPartition(_topic(url), at) for at in range(ways_kafka.PARTITIONS)]
    ends = [consumer.get_watermark_offsets(each, timeout=30) for each in parts]
    consumer.close()
    return sum(high - low for low, high in ends)


def works(spark: SparkSession, letters: int) -> list[Work]:
    """Return reading and redriving."""
    redriven = min(letters, _REDRIVEN)
    found: list[int] = []

    def whole(at: Place) -> None:
        _parsed(spark, at.sink).write.format("noop").mode("overwrite").save()
        found.append(letters)

    def by_code(at: Place) -> None:
        code = f.get_json_object(_header("redelivery-context"), "$.redelivery.code").alias("code")
        counted = _source(spark, at.sink).select(code).groupBy("code").count().collect()
        found.append(sum(row["count"] for row in counted))

    def moved(at: Place) -> None:
        frame = _source(spark, at.sink).select("key", "value", "headers")
        sink = frame.write.format("kafka").option("kafka.bootstrap.servers", ways_kafka.bootstrap())
        sink.option("topic", _topic(at.url)).option("includeHeaders", "true").save()

    source, counted = "Spark's own source, headers parsed by SQL", "Spark's own source, counted by code"
    both = "Spark's own source and sink, no account"

    def check(_at: Place) -> int:
        return found.pop()

    return [
        *reading(
            spark,
            letters,
            Work(source, letters, whole, check, source, lambda at: fill(at.sink, letters)),
            Work(counted, letters, by_code, check, counted, lambda at: fill(at.sink, letters)),
        ),
        *redriving(
            spark,
            count,
            redriven,
            Work(both, redriven, moved, lambda at: count(at.url), both, lambda at: fill(at.sink, redriven)),
        ),
    ]


def _topic(url: str) -> str:
    return url.rpartition("/")[2]


def _source(spark: SparkSession, url: str) -> DataFrame:
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", ways_kafka.bootstrap())
    reader = reader.option("subscribe", _topic(url)).option("includeHeaders", "true")
    return reader.option("startingOffsets", "earliest").load()


def _header(name: str) -> Column:
    """Return the text of a header."""
    return f.element_at(f.map_from_entries("headers"), name).cast("string")


def _parsed(spark: SparkSession, url: str) -> DataFrame:
    """Return the letters with the columns that our reader has, from ten headers."""
    frame = _source(spark, url).withColumn("said", f.map_from_entries("headers"))
    texts = {name: f.element_at("said", header).cast("string") for name, header in _HEADERS.items()}
    inner = f.from_json(texts["code"], "redelivery struct<code:string,native_code:string,kind:string,attempts:int>")
    marker = f.from_json(texts["marker"], "attempts_total int, hops int, maybe_delivered boolean")
    columns = [text.alias(name) for name, text in texts.items() if name not in {"code", "marker"}]
    error = f.struct(inner["redelivery"].alias("context"), marker.alias("history"), *columns)
    return frame.select("key", "value", "headers", "timestamp", "partition", "offset", error.alias("_error"))
