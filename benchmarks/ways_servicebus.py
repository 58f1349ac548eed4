"""`servicebus:` against hand-written loops over the SDK, on the plugin's stand-in: from Spark, and in this process.

The stand-in runs in its own process. It is not Azure: only ratios matter, and it has no network latency.
"""

from __future__ import annotations

import atexit
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Any

from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusSender
from azure.servicebus.exceptions import MessageSizeExceededError
from azure.servicebus.management import ServiceBusAdministrationClient
from bench import Way
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from redelivery.contract.message import Batch, Column
from redelivery.registry import connect

ROWS = 10_000
PARTITIONS = 2
_BYTES = 1024
_AT_ONCE = 1000

Send = Callable[[Iterable[bytes], ServiceBusSender], None]


@cache
def _server() -> tuple[str, str]:
    """Connection string and certificate file."""
    command = [sys.executable, "-m", "servicebus_standin", "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: S603 - our own
    atexit.register(process.terminate)
    if process.stdout is None:
        raise RuntimeError("the stand-in says nothing")
    return process.stdout.readline().strip(), process.stdout.readline().strip()


def _options() -> dict[str, str]:
    text, certificate = _server()
    secret = Path(certificate).with_name("connection-string")
    secret.write_text(text)
    return {"servicebus.connection_string": f"file:{secret}", "servicebus.connection_verify": certificate}


def _url(queue: str) -> str:
    host = _server()[0].partition("://")[2].partition(";")[0].strip("/")
    return f"servicebus://{host}/{queue}"


def _queue(folder: Path) -> str:
    """A fresh queue, named after the folder."""
    name = f"bench-{folder.name}"
    text, certificate = _server()
    with ServiceBusAdministrationClient.from_connection_string(text, connection_verify=certificate) as admin:
        admin.create_queue(name)
    return name


def rows(spark: SparkSession, count: int) -> DataFrame:
    """`count` rows of a 1 KiB value of text in two partitions."""
    number = f.col("id").cast("string")
    return spark.range(0, count, 1, PARTITIONS).select(f.lpad(number, _BYTES, "x").cast("binary").alias("value"))


def one_by_one(values: Iterable[bytes], sender: ServiceBusSender) -> None:
    """Send one row per request."""
    for value in values:
        sender.send_messages(ServiceBusMessage(value))


def full_batches(values: Iterable[bytes], sender: ServiceBusSender) -> None:
    """Send as many rows per request as the link accepts."""
    group = sender.create_message_batch()
    for value in values:
        message = ServiceBusMessage(value)
        try:
            group.add_message(message)
        except MessageSizeExceededError:
            sender.send_messages(group)
            group = sender.create_message_batch()
            group.add_message(message)
    sender.send_messages(group)


def _by_hand(send: Send, values: Iterable[bytes], connection_string: str, queue: str) -> None:
    with ServiceBusClient.from_connection_string(connection_string) as client, client.get_queue_sender(queue) as sender:
        send(values, sender)


def from_spark(send: Send, df: DataFrame, folder: Path) -> None:
    """Run a hand-written loop in each task."""
    text, queue = _server()[0], _queue(folder)

    def write(batches: Iterator[Any]) -> Iterator[Any]:
        with ServiceBusClient.from_connection_string(text) as client, client.get_queue_sender(queue) as sender:
            for batch in batches:
                send(batch.column("value").to_pylist(), sender)
                yield batch.slice(0, 0)

    df.mapInArrow(write, df.schema).count()


def ours(df: DataFrame, folder: Path) -> None:
    """Our writer with its defaults: an id and an account for each row."""
    writer = df.write.format("redelivery").option("url", _url(_queue(folder)))
    writer.options(**_options()).mode("append").save()


def _values(df: DataFrame) -> Iterable[bytes]:
    return (b"%0*d" % (_BYTES, at) for at in range(df.count()))


def alone(send: Send, df: DataFrame, folder: Path) -> None:
    """A hand-written loop in this process, without Spark."""
    _by_hand(send, _values(df), _server()[0], _queue(folder))


def alone_ours(df: DataFrame, folder: Path) -> None:
    """Our sender in this process, without the engine; each row has an id, as from the engine."""
    iterator = iter(_values(df))
    chunks = iter(lambda: list(islice(iterator, _AT_ONCE)), [])
    with connect(_url(_queue(folder)), _options()) as broker, broker.sender() as sender:
        for number, chunk in enumerate(chunks):
            values = Column[bytes | None](len(chunk), partial(list, chunk))
            ids = Column[str | None](len(chunk), partial(list, (f"{number}-{at}" for at in range(len(chunk)))))
            batch = Batch(number=number, length=len(chunk), nbytes=len(chunk) * _BYTES, value=values, id=ids)
            sender.send(batch, deadline=time.monotonic() + 60)
            if any(each.error or each.failures for each in sender.collect(0.0)):
                raise RuntimeError("rows failed")


def count(folder: Path) -> int:
    """Return the server's count of messages in the queue, then delete the queue."""
    name = f"bench-{folder.name}"
    text, certificate = _server()
    with ServiceBusAdministrationClient.from_connection_string(text, connection_verify=certificate) as admin:
        found = admin.get_queue_runtime_properties(name).active_message_count or 0
        admin.delete_queue(name)
    return found


def ways() -> list[Way]:
    """Hand-written loops, one by one and in full batches; ours from Spark and alone, each against its fastest peer."""
    hand, lone = "SDK, full batches", "SDK, full batches, no Spark"
    return [
        Way("SDK, one by one", partial(from_spark, one_by_one), count, hand),
        Way(hand, partial(from_spark, full_batches), count, hand),
        Way("redelivery", ours, count, hand),
        Way(lone, partial(alone, full_batches), count, lone),
        Way("redelivery's sender, no Spark", alone_ours, count, lone),
    ]
