"""`Recorded`: spans and metrics that an SDK of the test's own has recorded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


class Recorded:
    """Spans and metrics in memory."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.reader = InMemoryMetricReader()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.meters = MeterProvider([self.reader])

    def spans(self, name: str = "") -> list[ReadableSpan]:
        """The spans whose names begin so, in the order in which they ended."""
        return [each for each in self.exporter.get_finished_spans() if each.name.startswith(name)]

    def span(self, name: str) -> ReadableSpan:
        """The only one."""
        found = self.spans(name)
        assert len(found) == 1, [each.name for each in self.spans()]
        return found[0]

    def metrics(self) -> dict[str, list[tuple[Mapping[str, Any], Any]]]:
        """Each metric's points: attributes, and the value, or the count of a histogram."""
        data = self.reader.get_metrics_data()
        found: dict[str, list[tuple[Mapping[str, Any], Any]]] = {}
        for resource in data.resource_metrics if data is not None else ():
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    for point in metric.data.data_points:
                        value = point.count if hasattr(point, "count") else point.value
                        found.setdefault(metric.name, []).append((dict(point.attributes or {}), value))
        return found

    def total(self, name: str, **attributes: Any) -> Any:
        """The sum of a metric's points with these attributes."""
        wanted = {key.replace("__", "."): value for key, value in attributes.items()}.items()
        return sum(value for given, value in self.metrics().get(name, ()) if wanted <= given.items())
