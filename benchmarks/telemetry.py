"""What telemetry costs when it is switched on: `bench.py telemetry`. Without Spark, in one process, by CPU seconds.

Each work runs without an SDK, and with one whose processors and readers export to nowhere, in turns. CPU seconds of all
threads count, so that other load on the machine does not; the ratio is the median of the ratios of the turns.
"""

from __future__ import annotations

import contextlib
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from inprocess import BATCH, batches, url
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult, PeriodicExportingMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio

from redelivery import Subscription
from redelivery.contract.message import Batch, Column
from redelivery.contract.spec import DeliverySpec
from redelivery.sending import Delivery, Origin
from redelivery.telemetry.current import using

_TRACE: Final = (("traceparent", b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),)
_NAMES: Final = itertools.count()


class NoSpans(SpanExporter):
    """Exports to nowhere."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:  # noqa: ARG002
        return SpanExportResult.SUCCESS


class NoMetrics(MetricExporter):
    """Exports to nowhere."""

    def export(self, *_: Any, **__: Any) -> MetricExportResult:
        return MetricExportResult.SUCCESS

    def force_flush(self, *_: Any, **__: Any) -> bool:
        return True

    def shutdown(self, *_: Any, **__: Any) -> None:
        pass


@dataclass(frozen=True)
class Timed:
    """One line of the table; rows per CPU second."""

    name: str
    rows: int
    rows_per_s: float
    ratio: float
    to: str


@contextlib.contextmanager
def switched_on(share: float = 1.0) -> Iterator[None]:
    """Record in an SDK with batch processors; `share` of the traces that begin here are recorded."""
    tracers = TracerProvider(sampler=ParentBasedTraceIdRatio(share))
    tracers.add_span_processor(BatchSpanProcessor(NoSpans()))
    meters = MeterProvider([PeriodicExportingMetricReader(NoMetrics(), export_interval_millis=1000)])
    with using(tracers, meters):
        yield
        tracers.force_flush()
        meters.force_flush()
    tracers.shutdown()
    meters.shutdown()


def write(target: str, made: list[Batch]) -> None:
    """Deliver batches."""
    with Delivery.open(target, DeliverySpec(), origin=Origin(run="bench")) as delivery:
        for batch in made:
            delivery.write(batch)
        delivery.finish()


def receive(target: str, rows: int) -> None:
    """Handle as many messages as there are."""
    seen = itertools.count()
    Subscription(target, lambda _: next(seen), name=f"bench-{next(_NAMES)}").run(until_empty=True)
    if next(seen) != rows:
        raise SystemExit("not all messages were handled")


def traced(made: list[Batch]) -> list[Batch]:
    """Return the batches, each row with its own trace context."""
    return [replace(each, headers=Column.of([_TRACE] * len(each))) for each in made]


def cpu(work: Callable[[], None], **setting: float) -> float:
    """Return the CPU seconds of all threads of this process."""
    with switched_on(**setting) if setting else contextlib.nullcontext():
        began = time.process_time()
        work()
        return time.process_time() - began


def measure(rows: int, repeat: int) -> list[Timed]:
    """Measure every work `repeat` times in turns, after one run to warm up."""
    works: dict[str, tuple[int, Callable[[str, str], Callable[[], None]], dict[str, float]]] = {
        "write to sqlite:": (rows, _writing, {"share": 1.0}),
        "write to sqlite:, each row with its traceparent": (rows, _writing_traced, {"share": 1.0}),
        "a subscription on sqlite:, each message recorded": (BATCH, _receiving, {"share": 1.0}),
        "a subscription on sqlite:, 1 of 100 recorded": (BATCH, _receiving, {"share": 0.01}),
    }
    results = []
    for name, (count, prepare, setting) in works.items():
        off: list[float] = []
        on: list[float] = []
        for turn in range(repeat + 1):
            for found, given in ((off, {}), (on, setting)) if turn % 2 else ((on, setting), (off, {})):
                with tempfile.TemporaryDirectory() as folder:
                    took = cpu(prepare(folder, str(count)), **given)
                if turn:
                    found.append(took)
        ratio = statistics.median(one / other for one, other in zip(off, on, strict=True))
        results.append(Timed(f"{name}, off", count, round(count / statistics.median(off)), 1.0, f"{name}, off"))
        results.append(
            Timed(f"{name}, on", count, round(count / statistics.median(on)), round(ratio, 3), f"{name}, off")
        )
    return results


def _writing(folder: str, rows: str) -> Callable[[], None]:
    target, made = url("sqlite", folder), list(batches(int(rows), "b"))
    return lambda: write(target, made)


def _writing_traced(folder: str, rows: str) -> Callable[[], None]:
    target, made = url("sqlite", folder), traced(list(batches(int(rows), "b")))
    return lambda: write(target, made)


def _receiving(folder: str, rows: str) -> Callable[[], None]:
    target = url("sqlite", folder)
    write(target, list(batches(int(rows), "b")))
    return lambda: receive(target, int(rows))
