"""Without Spark, in a process of its own: `inprocess.py BROKER overhead` and `inprocess.py BROKER memory ROWS`.

Prints one JSON object. The rows are made beforehand as Arrow batches, as Spark would hand them over.
"""

from __future__ import annotations

import json
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from redelivery import plugins
from redelivery.delivery import Delivery, Origin
from redelivery.message import Batch, Column
from redelivery.spec import DeliverySpec

BATCH = 10_000
VALUE = 300


def url(broker: str, folder: str) -> str:
    """A fresh destination."""
    if broker == "null":
        import null_plugin  # noqa: PLC0415 - only where it is asked for

        null_plugin.install(Path(folder))
        return "null:"
    return f"{broker}://{folder}/queue.db"


def batches(rows: int, tag: str) -> Iterator[Batch]:
    """Batches over Arrow columns, as the Spark writer makes them; every id is new."""
    for first in range(0, rows, BATCH):
        value = pa.array([b"%0*d" % (VALUE, n) for n in range(first, first + BATCH)], pa.binary())
        yield batch_of(value, [f"{tag}-{n}" for n in range(first, first + BATCH)])


def batch_of(value: Any, ids: list[str]) -> Batch:
    """One batch; its columns are loaded when the plugin asks."""
    return Batch(
        number=1,
        length=len(value),
        nbytes=value.nbytes,
        value=Column(len(value), lambda: value.to_numpy(zero_copy_only=False).tolist(), arrow=value),
        id=Column.of(list(ids)),
    )


def plugin_alone(target: str, made: list[Batch]) -> float:
    """Seconds that the plugin takes by itself: send, collect, one batch after the other."""
    with plugins.connect(target) as broker, broker.sender() as sender:
        began = time.perf_counter()
        for batch in made:
            sender.send(batch, deadline=time.monotonic() + 30)
            while not sender.collect(1.0):
                pass
        return time.perf_counter() - began


def through_engine(target: str, made: list[Batch]) -> float:
    """Seconds that the same batches take through the engine."""
    with Delivery.open(target, DeliverySpec(), origin=Origin(run="bench")) as delivery:
        began = time.perf_counter()
        for batch in made:
            delivery.write(batch)
        delivery.finish()
        return time.perf_counter() - began


def overhead(broker: str) -> dict[str, float]:
    """The engine's part: medians of interleaved runs on the same batches."""
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


def memory(broker: str, rows: int) -> dict[str, float]:
    """Peak resident bytes of a process that sends `rows` rows."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        with Delivery.open(url(broker, folder), DeliverySpec(), origin=Origin(run="bench")) as delivery:
            for batch in batches(rows, "m"):
                delivery.write(batch)
            delivery.finish()
        took = time.perf_counter() - began
    return {
        "rows": rows,
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "rate": rows / took,
    }


if __name__ == "__main__":
    broker_name, what, *rest = sys.argv[1:]
    print(json.dumps(overhead(broker_name) if what == "overhead" else memory(broker_name, int(rest[0]))))
