"""One trace from a row of Spark to the handler of its redriven letter, across processes.

`journey` follows a row through a place that the test names. The Spark job runs in another process (`python -m
redelivery_conformance.tracing`). Its workers and commits export their spans into files. They set their SDK up from
OpenTelemetry's own variables, as a user's do. Needs opentelemetry-sdk.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult, MetricsData
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

from redelivery.contract.message import Message
from redelivery.contract.spec import NATIVE, DeliverySpec, Sink
from redelivery.deadletters.queue import dead_letters
from redelivery.receiving.subscription import Subscription
from redelivery.telemetry.current import using

#: Names the folder of `FileSpans` and `FileMetrics`.
FOLDER: Final = "REDELIVERY_TEST_TELEMETRY"
#: The longest time that the Spark job takes, in seconds.
_PATIENCE: Final = 240
_NAMES: Final = itertools.count()


def _append(kind: str, lines: Sequence[str]) -> None:
    path = Path(os.environ[FOLDER]) / f"{kind}-{os.getpid()}.jsonl"
    with path.open("a", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in lines)


class FileSpans(SpanExporter):
    """Appends spans to a file of this process."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        _append("spans", [json.dumps(Span.of(each).__dict__) for each in spans])
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        pass


class FileMetrics(MetricExporter):
    """Appends metrics to a file of this process."""

    def export(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **_: Any) -> MetricExportResult:  # noqa: ARG002
        _append("metrics", [metrics_data.to_json(indent=None)])
        return MetricExportResult.SUCCESS

    def force_flush(self, timeout_millis: float = 10_000) -> bool:  # noqa: ARG002
        return True

    def shutdown(self, timeout_millis: float = 30_000, **_: Any) -> None:
        pass


@dataclass(frozen=True)
class Span:
    """The parts of a span that a test checks; ids in hexadecimal digits."""

    name: str
    trace: str
    id: str
    parent: str | None
    links: list[str]
    attributes: dict[str, Any]
    pid: int

    @classmethod
    def of(cls, span: ReadableSpan) -> Span:
        """Return the span of an SDK."""
        return cls(
            name=span.name,
            trace=f"{span.context.trace_id:032x}",
            id=f"{span.context.span_id:016x}",
            parent=None if span.parent is None else f"{span.parent.span_id:016x}",
            links=[f"{each.context.span_id:016x}" for each in span.links],
            attributes=dict(span.attributes or {}),
            pid=os.getpid(),
        )


class _Spans(SpanExporter):
    def __init__(self) -> None:
        self.found: list[Span] = []

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.found += map(Span.of, spans)
        return SpanExportResult.SUCCESS


@dataclass(frozen=True)
class Journey:
    """What came of it.

    Attributes:
        trace: of the row, as its `traceparent` has it.
        spans: of all processes: those of Spark first.
        metrics: of the commit, by name.
        headers: of the message, as its last handler got it.
    """

    trace: str
    spans: list[Span]
    metrics: Mapping[str, float]
    headers: list[tuple[str, bytes | None]]

    def check(self) -> None:
        """Fail unless it is one trace, which the links hold together, and the row's context is unchanged."""
        mine = [each for each in self.spans if each.trace == self.trace]
        names = [each.name.partition(" ")[0] for each in mine]
        assert names.count("process") == 2, names
        assert {"deliver", "send", "commit", "redrive"} <= {*names}, names
        assert len({each.pid for each in mine}) >= 3, "a worker, a commit, and this process"
        failed, handled = (each for each in mine if each.name.startswith("process"))
        assert failed.attributes["redelivery.outcome"] == "failed"
        assert handled.attributes["redelivery.outcome"] == "accepted"
        assert (failed.attributes["redelivery.hop"], handled.attributes["redelivery.hop"]) == (0, 1)
        (redriven,) = (each for each in mine if each.name == "redrive")
        assert failed.id in redriven.links, "the redrive links to the failure"
        sent = next(each for each in mine if each.name.startswith("send"))
        assert sent.parent in {each.id for each in mine if each.name.startswith("deliver")}
        assert dict(self.headers)["traceparent"] == _traceparent(self.trace).encode()
        assert dict(self.headers)["tracestate"] == b"v=1"
        assert self.metrics["total-record-failures"] == 0
        assert self.metrics["messaging.client.sent.messages"] == 1


def _traceparent(trace: str) -> str:
    return f"00-{trace}-00f067aa0ba902b7-01"


def environment(folder: Path) -> dict[str, str]:
    """Return the environment of processes whose SDK writes into files of this folder."""
    site = folder / "site"
    info = site / "redelivery_test_exporters-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: redelivery-test-exporters\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        f"[opentelemetry_traces_exporter]\nfiles = {__spec__.name}:FileSpans\n"
        f"[opentelemetry_metrics_exporter]\nfiles = {__spec__.name}:FileMetrics\n"
    )
    paths = [str(site), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "OTEL_TRACES_EXPORTER": "files",
        "OTEL_METRICS_EXPORTER": "files",
        FOLDER: str(folder),
    }


def journey(url: str, options: Mapping[str, str], folder: Path, more: Mapping[str, str] | None = None) -> Journey:
    """Write a row by Spark, dead-letter it by a handler, redrive it, and handle it.

    Args:
        url: an empty, provisioned destination with a native dead letter place.
        options: its client options.
        folder: an empty one.
        more: further variables of the Spark job.
    """
    trace = os.urandom(16).hex()
    command = [sys.executable, "-m", __spec__.name, url, json.dumps(dict(options)), _traceparent(trace)]
    done = subprocess.run(  # noqa: S603 - ours
        command,
        env={**environment(folder), **(more or {})},
        capture_output=True,
        text=True,
        timeout=_PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    spans = [Span(**json.loads(line)) for line in _lines(folder, "spans")]
    exporter, provider = _Spans(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    seen: list[Message] = []
    with using(provider):
        _handle(url, options, _fail)
        with dead_letters(url, options=options) as letters:
            assert letters.redrive().redriven == 1
        _handle(url, options, seen.append)
    (message,) = seen
    return Journey(trace, [*spans, *exporter.found], _metrics(folder), list(message.headers))


def _handle(url: str, options: Mapping[str, str], handler: Callable[[Message], object]) -> None:
    spec = DeliverySpec(retry=0, backoff_delay=timedelta(0), dead_letter_sink=(Sink(uri=NATIVE),))
    name = f"trace-{next(_NAMES)}"
    Subscription(url, handler, name=name, spec=spec, options=options).run(until_empty=True)


def _fail(_: Message) -> None:
    raise ValueError("it fails once")


def _lines(folder: Path, kind: str) -> list[str]:
    return [line for path in folder.glob(f"{kind}-*.jsonl") for line in path.read_text(encoding="utf-8").splitlines()]


def _metrics(folder: Path) -> dict[str, float]:
    """Return the last value of each metric; of a histogram, the count."""
    found: dict[str, float] = {}
    for line in _lines(folder, "metrics"):
        for resource in json.loads(line)["resource_metrics"]:
            for scope in resource["scope_metrics"]:
                for metric in scope["metrics"]:
                    for point in metric["data"]["data_points"]:
                        found[metric["name"]] = point.get("value", point.get("count"))
    return found


def _write(url: str, options: Mapping[str, str], traceparent: str) -> None:
    """Write one row by Spark, whose header column holds the trace context."""
    from redelivery.spark.java import local_session  # noqa: PLC0415 - pyspark is an extra

    spark = local_session("traced", master="local[1]")
    row = spark.sql(
        "select cast('v' as binary) as value, array("
        f"struct('traceparent' as key, cast('{traceparent}' as binary) as value), "
        "struct('tracestate' as key, cast('v=1' as binary) as value)) as headers"
    )
    given = {**options, "url": url, "traceparent": traceparent}
    row.write.format("redelivery").options(**given).mode("append").save()
    spark.stop()


if __name__ == "__main__":
    _write(sys.argv[1], json.loads(sys.argv[2]), sys.argv[3])
