"""Measurements without Spark, in their own process.

`inprocess.py BROKER overhead | memory ROWS [URL] | outage ROWS SECONDS [RECORDS] | receive`

Prints one JSON object. The rows are prepared as Arrow batches, as Spark would pass them.
"""

from __future__ import annotations

import json
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

from redelivery import Subscription, registry
from redelivery.contract.broker import Accept
from redelivery.contract.message import Batch, Column
from redelivery.contract.spec import DeliverySpec
from redelivery.sending import Bounds, Delivery, Origin

BATCH = 10_000
VALUE = 300


def url(broker: str, folder: str) -> str:
    """Return a fresh destination."""
    if broker == "null":
        import null_plugin  # noqa: PLC0415 - only if it is measured

        null_plugin.install(Path(folder))
        return "null:"
    return f"{broker}://{folder}/queue.db"


def batches(rows: int, tag: str) -> Iterator[Batch]:
    """Make batches over Arrow columns, as the Spark writer does, with new ids."""
    for first in range(0, rows, BATCH):
        value = pa.array([b"%0*d" % (VALUE, n) for n in range(first, first + BATCH)], pa.binary())
        yield batch_of(value, [f"{tag}-{n}" for n in range(first, first + BATCH)])


def batch_of(value: Any, ids: list[str]) -> Batch:
    """Make one batch; its columns are loaded when the plugin reads them."""
    return Batch(
        number=1,
        length=len(value),
        nbytes=value.nbytes,
        value=Column(len(value), lambda: value.to_numpy(zero_copy_only=False).tolist(), arrow=value),
        id=Column.of(list(ids)),
    )


def plugin_alone(target: str, made: list[Batch]) -> float:
    """Return the seconds that the plugin takes alone to send and collect one batch after the other."""
    with registry.connect(target) as broker, broker.sender() as sender:
        began = time.perf_counter()
        for batch in made:
            sender.send(batch, deadline=time.monotonic() + 30)
            while not sender.collect(1.0):
                pass
        return time.perf_counter() - began


def through_engine(target: str, made: list[Batch]) -> float:
    """Return the seconds that the same batches take through the engine."""
    with Delivery.open(target, DeliverySpec(), origin=Origin(run="bench")) as delivery:
        began = time.perf_counter()
        for batch in made:
            delivery.write(batch)
        delivery.finish()
        return time.perf_counter() - began


def overhead(broker: str) -> dict[str, float]:
    """Measure the engine's share: medians of interleaved runs on the same batches."""
    rows = 200_000
    alone: list[float] = []
    engine: list[float] = []
    for turn in range(8):
        for run, times in ((plugin_alone, alone), (through_engine, engine)):
            with tempfile.TemporaryDirectory() as folder:
                target = url(broker, folder)
                took = run(target, list(batches(rows, f"{turn}")))
            if turn:
                times.append(took)
    plugin, through = statistics.median(alone), statistics.median(engine)
    return {"rows": rows, "plugin": rows / plugin, "engine": rows / through, "ratio": round(plugin / through, 3)}


def memory(broker: str, rows: int, target: str | None = None) -> dict[str, float]:
    """Return the peak resident bytes of a process that sends `rows` rows to this URL or a fresh destination."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        with Delivery.open(target or url(broker, folder), DeliverySpec(), origin=Origin(run="bench")) as delivery:
            for batch in batches(rows, "m"):
                delivery.write(batch)
            delivery.finish()
        took = time.perf_counter() - began
    return {
        "rows": rows,
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "rate": rows / took,
    }


def outage(broker: str, rows: int, seconds: float, records: int | None = None) -> dict[str, float]:
    """Return the peak resident bytes of a process whose destination is a black hole before it accepts all rows.

    Args:
        broker: "null".
        rows: number of rows.
        seconds: duration of the black hole.
        records: maximum number of rows that the task holds; None: the default.
    """
    spec = DeliverySpec(
        retry=10, timeout=timedelta(seconds=2), backoff_policy="linear", backoff_delay=timedelta(seconds=0.5)
    )
    bounds = Bounds() if records is None else Bounds(in_flight_records=records)
    with tempfile.TemporaryDirectory() as folder:
        target = f"{url(broker, folder)}?dead={seconds}"
        began = time.perf_counter()
        with Delivery.open(target, spec, origin=Origin(run="bench"), bounds=bounds) as delivery:
            for batch in batches(rows, "o"):
                delivery.write(batch)
            report = delivery.finish()
        took = time.perf_counter() - began
    if report.delivered != rows:
        raise SystemExit(f"outage: delivered {report.delivered} rows of {rows}")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"rows": rows, "peak": peak, "rate": rows / took, "retried": report.retried}


def receive(broker: str) -> dict[str, float]:
    """Compare messages/s of a subscription with those of hand-written code that leases and settles 100 at a time."""
    rows = 30_000
    hand_times: list[float] = []
    our_times: list[float] = []
    for turn in range(6):
        for run, times in ((by_hand, hand_times), (subscribed, our_times)):
            with tempfile.TemporaryDirectory() as folder:
                target = url(broker, folder)
                through_engine(target, list(batches(rows, f"{turn}")))
                seen: list[bytes | None] = []
                began = time.perf_counter()
                run(target, seen)
                took = time.perf_counter() - began
                if len(seen) != rows:
                    raise SystemExit(f"{run.__name__}: handled {len(seen)} messages of {rows}")
            if turn:
                times.append(took)
    hand, ours = statistics.median(hand_times), statistics.median(our_times)
    return {"rows": rows, "hand": rows / hand, "subscription": rows / ours, "ratio": round(hand / ours, 3)}


def subscribed(target: str, seen: list[bytes | None]) -> None:
    """Our subscription with one handler; it settles available outcomes together."""
    Subscription(target, lambda message: seen.append(message.value)).run(until_empty=True)


def by_hand(target: str, seen: list[bytes | None]) -> None:
    """A typical hand-written loop: lease some, handle each, settle all; no retries, accounts or lease extension."""
    with registry.connect(target) as broker, broker.receiver() as receiver:
        while leased := receiver.receive(100, wait=0.5):
            seen.extend(received.message.value for received in leased)
            receiver.settle([(received, Accept()) for received in leased])


if __name__ == "__main__":
    broker_name, what, *rest = sys.argv[1:]
    if what == "memory":
        found = memory(broker_name, int(rest[0]), *rest[1:])
    elif what == "outage":
        found = outage(broker_name, int(rest[0]), float(rest[1]), *map(int, rest[2:]))
    else:
        found = {"overhead": overhead, "receive": receive}[what](broker_name)
    print(json.dumps(found))
