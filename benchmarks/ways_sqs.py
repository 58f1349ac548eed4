"""`sqs:` against hand-written loops over boto3, on ElasticMQ: from Spark, and in this process alone.

The plugin's harness starts the server. It limits the fastest ways, so they are compared with each other.
"""

from __future__ import annotations

import atexit
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Any

import boto3
from bench import Way
from botocore.config import Config
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from redelivery.contract.message import Batch, Column
from redelivery.registry import connect
from redelivery_conformance.harness import start
from redelivery_sqs.testing import SqsHarness, SqsRuntime

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]  # workers lack this file

ROWS = 20_000
PARTITIONS = 2
_BYTES = 1024
_THREADS = 16
_AT_ONCE = 1000
_BATCHES = 8

Send = Callable[[Iterable[bytes], Any, str], None]


@cache
def _elasticmq() -> SqsRuntime:
    found = start(SqsHarness(), None, {}, Path(tempfile.mkdtemp()))
    if not isinstance(found, SqsRuntime):
        raise TypeError(found)
    atexit.register(found.close)
    return found


#: Returns the server; `ways_sqs_null` has another.
server: Callable[[], Any] = _elasticmq


def options() -> dict[str, str]:
    """Return the client options of the server."""
    return dict(server().options)


def fresh(name: str) -> str:
    """Return the URL of a fresh queue."""
    name = f"bench-{name}".replace("_", "-")
    server().sqs.create_queue(QueueName=name)
    return str(server().address(name).url)


def rows(spark: SparkSession, count: int) -> DataFrame:
    """`count` rows of a 1 KiB value of text in two partitions."""
    number = f.col("id").cast("string")
    return spark.range(0, count, 1, PARTITIONS).select(f.lpad(number, _BYTES, "x").cast("binary").alias("value"))


def client(options: dict[str, str]) -> Any:
    """Return a client with a connection for each thread."""
    config = Config(max_pool_connections=_THREADS, retries={"total_max_attempts": 1}, parameter_validation=False)
    return boto3.client(
        "sqs",
        endpoint_url=options["sqs.endpoint_url"],
        region_name=options["sqs.region"],
        aws_access_key_id=options["sqs.access_key_id"],
        aws_secret_access_key=options["sqs.secret_access_key"],
        config=config,
    )


def _tens(values: Iterable[bytes]) -> Iterator[list[dict[str, str]]]:
    iterator = iter(values)
    while ten := list(islice(iterator, 10)):
        yield [{"Id": str(at), "MessageBody": value.decode()} for at, value in enumerate(ten)]


def _sent(answer: Any) -> None:
    if answer.get("Failed"):
        raise RuntimeError(f"{len(answer['Failed'])} rows failed")


def one_by_one(values: Iterable[bytes], client: Any, url: str) -> None:
    """Send one row per request."""
    for value in values:
        client.send_message(QueueUrl=url, MessageBody=value.decode())


def in_sequence(values: Iterable[bytes], client: Any, url: str) -> None:
    """Send ten rows per request, one request after another."""
    for entries in _tens(values):
        _sent(client.send_message_batch(QueueUrl=url, Entries=entries))


def by_threads(values: Iterable[bytes], client: Any, url: str) -> None:
    """Send ten rows per request; each thread takes the next ten. We found no faster loop."""
    lock, tens = threading.Lock(), _tens(values)
    errors: list[Exception] = []

    def work() -> None:
        try:
            while True:
                with lock:
                    entries = next(tens, None)
                if entries is None or errors:
                    return
                _sent(client.send_message_batch(QueueUrl=url, Entries=entries))
        except Exception as error:  # noqa: BLE001 - raised below
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def by_our_sender(values: Iterable[bytes], queue: str) -> None:
    """Our sender without the engine: up to eight batches of 1,000 rows in flight."""
    iterator, flying = iter(values), 0
    chunks = iter(lambda: list(islice(iterator, _AT_ONCE)), [])
    with connect(server().address(queue).url, server().options) as broker, broker.sender() as sender:

        def collect() -> int:
            settled = sender.collect(1.0)
            if any(each.error or each.failures for each in settled):
                raise RuntimeError("rows failed")
            return len(settled)

        for number, chunk in enumerate(chunks):
            values_ = Column[bytes | None](len(chunk), partial(list, chunk))
            batch = Batch(number=number, length=len(chunk), nbytes=len(chunk) * _BYTES, value=values_)
            sender.send(batch, deadline=time.monotonic() + 60)
            flying += 1
            while flying >= _BATCHES:
                flying -= collect()
        while flying:
            flying -= collect()


def queue_of(folder: Path) -> str:
    """Return the name of a folder's queue."""
    return f"bench-{folder.name}".replace("_", "-")


def _queue(folder: Path) -> str:
    """Create a folder's queue and return its name."""
    name = queue_of(folder)
    server().sqs.create_queue(QueueName=name)
    return name


def from_spark(send: Send, df: DataFrame, folder: Path) -> None:
    """Run a hand-written loop in each task."""
    options = dict(server().options)
    url = f"{options['sqs.endpoint_url']}/000000000000/{_queue(folder)}"

    def write(batches: Iterator[Any]) -> Iterator[Any]:
        sqs = client(options)
        for batch in batches:
            send(batch.column("value").to_pylist(), sqs, url)
            yield batch.slice(0, 0)

    df.mapInArrow(write, df.schema).count()


def ours(df: DataFrame, folder: Path) -> None:
    """Our writer with its defaults: an id and an account for each row."""
    writer = df.write.format("redelivery").option("url", server().address(_queue(folder)).url)
    writer.options(**server().options).mode("append").save()


def _values(df: DataFrame) -> Iterable[bytes]:
    return (b"%0*d" % (_BYTES, at) for at in range(df.count()))


def alone(send: Send, df: DataFrame, folder: Path) -> None:
    """A hand-written loop in this process, without Spark."""
    options = dict(server().options)
    send(_values(df), client(options), f"{options['sqs.endpoint_url']}/000000000000/{_queue(folder)}")


def alone_ours(df: DataFrame, folder: Path) -> None:
    """Our sender in this process."""
    by_our_sender(_values(df), _queue(folder))


def count(folder: Path) -> int:
    """Return the server's count of messages in the queue, then delete the queue."""
    sqs = server().sqs
    url = sqs.get_queue_url(QueueName=_queue(folder))["QueueUrl"]
    name = "ApproximateNumberOfMessages"
    found = int(sqs.get_queue_attributes(QueueUrl=url, AttributeNames=[name])["Attributes"][name])
    sqs.delete_queue(QueueUrl=url)
    return found


def ways() -> list[Way]:
    """Hand-written: one by one, in sequence, by threads; ours from Spark and alone, each against its fastest peer."""
    one, hand, lone = "boto3, one by one", "boto3, tens, 16 threads", "boto3, tens, 16 threads, no Spark"
    return [
        Way(one, partial(from_spark, one_by_one), count, one),
        Way("boto3, tens in sequence", partial(from_spark, in_sequence), count, one),
        Way(hand, partial(from_spark, by_threads), count, one),
        Way("redelivery", ours, count, hand),
        Way(lone, partial(alone, by_threads), count, lone),
        Way("redelivery's sender, no Spark", alone_ours, count, lone),
    ]
