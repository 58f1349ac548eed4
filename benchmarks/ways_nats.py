"""`nats:` against nats-py's own `publish_async`, from Spark and in this process: 200-byte rows, confirmed.

The plugin's harness starts the server, with limits that neither client reaches. Our writer stores an id per row, by
which the stream de-duplicates; nats-py's loop has a way without ids and one with them.
"""

from __future__ import annotations

import asyncio
import atexit
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

import nats
from bench import Way
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from redelivery.contract.broker import Settled
from redelivery.contract.message import Batch, Column
from redelivery.registry import connect
from redelivery_nats.testing import NatsRuntime, start_server

ROWS: Final = 100_000
#: Messages that the server takes in before it has stored them: more than two clients of either kind have in flight.
LIMITS: Final = "jetstream { max_buffered_msgs: 100000, max_buffered_size: 1GB }"
#: Rows that nats-py's loop has in flight, as many as ours.
WINDOW: Final = 4096
_VALUE: Final = b"x" * 200
_BATCH: Final = 10_000


@cache
def server() -> NatsRuntime:
    """The server, which ends with this process."""
    scratch = tempfile.TemporaryDirectory()
    path = Path(scratch.name)
    runtime = start_server(path, LIMITS.replace("{", f'{{ store_dir: "{path / "jetstream"}",'))
    atexit.register(scratch.cleanup)
    atexit.register(runtime.close)
    return runtime


def rows(spark: SparkSession, count: int) -> DataFrame:
    """`count` rows of a 200-byte value in two partitions."""
    return spark.range(0, count, 1, 2).select(
        f.lpad(f.col("id").cast("string"), 200, "x").cast("binary").alias("value")
    )


def made(folder: Path) -> str:
    """A fresh stream, named after the folder."""
    name = f"bench-{folder.name}"
    server().independent.make(name)
    return name


def by_hand(url: str, stream: str, values: Iterable[list[bytes]], *, ids: bool) -> None:
    """Publish by nats-py, and wait for all confirmations."""

    async def publish() -> None:
        client = await nats.connect(url)
        jetstream = client.jetstream(publish_async_max_pending=WINDOW)
        futures: list[Any] = []
        for chunk in values:
            for at, value in enumerate(chunk):
                headers = {"Nats-Msg-Id": f"{id(chunk)}-{time.time_ns()}-{at}"} if ids else None
                futures.append(await jetstream.publish_async(stream, value, wait_stall=60, headers=headers))
        for each in futures:
            await each
        await client.close()

    asyncio.run(publish())


def spark_by_hand(df: DataFrame, folder: Path, *, ids: bool) -> None:
    """nats-py's loop in each task."""
    stream, url = made(folder), server_url()

    def write(batches: Iterator[Any]) -> Iterator[Any]:
        kept: list[Any] = []

        def values() -> Iterator[list[bytes]]:
            for batch in batches:
                kept.append(batch.slice(0, 0))
                yield batch.column("value").to_pylist()

        by_hand(url, stream, values(), ids=ids)
        yield from kept

    df.mapInArrow(write, df.schema).count()


def ours(df: DataFrame, folder: Path) -> None:
    """Our writer with its defaults: an id and an account for each row."""
    df.write.format("redelivery").option("url", server().url(made(folder))).mode("append").save()


def alone_by_hand(df: DataFrame, folder: Path, *, ids: bool) -> None:
    """nats-py's loop in this process."""
    by_hand(server_url(), made(folder), ([_VALUE] * _BATCH for _ in range(df.count() // _BATCH)), ids=ids)


def alone_ours(df: DataFrame, folder: Path) -> None:
    """Our sender in this process, without the engine; each row has an id."""
    count = df.count()
    with connect(server().url(made(folder)), {}) as broker, broker.sender() as sender:
        settled = 0
        for first in range(0, count, _BATCH):
            ids: Column[str | None] = Column.of([f"{first}-{at}" for at in range(_BATCH)])
            value: Column[bytes | None] = Column.of([_VALUE] * _BATCH)
            batch = Batch(number=first, length=_BATCH, nbytes=_BATCH * 200, value=value, id=ids)
            sender.send(batch, deadline=time.monotonic() + 60)
            settled += _settled(sender.collect(0.0))
        while settled < count // _BATCH:
            settled += _settled(sender.collect(5.0))


def _settled(found: Sequence[Settled]) -> int:
    if any(each.error or each.failures for each in found):
        raise SystemExit(f"our sender: {found}")
    return len(found)


def count(folder: Path) -> int:
    """Return how many messages the stream has, then delete it."""

    async def look(_: Any, jetstream: Any) -> int:
        name = f"bench-{folder.name}"
        found = (await jetstream.stream_info(name)).state.messages
        await jetstream.delete_stream(name)
        return int(found)

    return server().independent.run(look)


def server_url() -> str:
    """Return the server's URL, for nats-py."""
    return server().url("x").rpartition("/")[0]


def ways() -> list[Way]:
    """nats-py by hand, and ours against it: from Spark, and in this process."""
    hand, lone = "nats-py, publish_async", "nats-py, publish_async, no Spark"
    return [
        Way(hand, partial(spark_by_hand, ids=False), count, hand),
        Way("nats-py, publish_async, with ids", partial(spark_by_hand, ids=True), count, hand),
        Way("redelivery", ours, count, hand),
        Way(lone, partial(alone_by_hand, ids=False), count, lone),
        Way("redelivery's sender, no Spark", alone_ours, count, lone),
    ]
