"""Processes that are ours set an SDK up where variables ask for it, export in bounded time, and never fail for it."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from recording import Recorded

from redelivery.telemetry import context, current
from redelivery.telemetry.owned import here, traced
from redelivery_conformance.tracing import environment

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
PROGRAM = """
import sys
from redelivery.telemetry.owned import traced
with traced("task", parent=sys.argv[1], run="r"):
    pass
import os
os._exit(0)  # as a worker of Spark ends
"""


def run(folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    given = {**environment(folder), **variables}
    command = [sys.executable, "-c", PROGRAM, PARENT]
    return subprocess.run(command, env=given, check=True, capture_output=True, text=True, timeout=60)


def spans(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for path in folder.glob("spans-*") for line in path.read_text().splitlines()]


def test_a_process_sets_an_sdk_up_by_the_usual_variables_and_exports_before_it_ends(tmp_path: Path) -> None:
    run(tmp_path)
    (span,) = spans(tmp_path)
    assert (span["name"], span["trace"], span["parent"]) == ("task", PARENT[3:35], PARENT[36:52])
    assert span["attributes"] == {"redelivery.run": "r"}


@pytest.mark.parametrize(
    "variables",
    [{"OTEL_SDK_DISABLED": "true"}, {"OTEL_TRACES_EXPORTER": "none", "OTEL_METRICS_EXPORTER": ""}],
    ids=["disabled", "none"],
)
def test_without_an_exporter_it_sets_nothing_up(tmp_path: Path, variables: dict[str, str]) -> None:
    run(tmp_path, **variables)
    assert spans(tmp_path) == []


def test_an_exporter_that_is_not_installed_is_one_line_and_no_error(tmp_path: Path) -> None:
    done = run(tmp_path, OTEL_TRACES_EXPORTER="nowhere")
    assert "OTEL_TRACES_EXPORTER" in done.stderr
    assert "nowhere" in done.stderr
    assert "Traceback" not in done.stderr


class Hanging(TracerProvider):
    """Cannot export, and does not keep its timeout."""

    def __init__(self, released: threading.Event) -> None:
        super().__init__()
        self.add_span_processor(SimpleSpanProcessor(InMemorySpanExporter()))
        self.released = released

    def force_flush(self, timeout_millis: int | None = 30_000) -> bool:
        return self.released.wait(60)


def test_an_exporter_that_hangs_delays_the_end_of_a_task_for_a_bounded_time(caplog: pytest.LogCaptureFixture) -> None:
    released = threading.Event()
    with current.using(Hanging(released)) as telemetry:
        began = time.monotonic()
        telemetry.flush(0.1)
        assert time.monotonic() - began < 30
    released.set()
    assert "not exported within 0.1 s" in caplog.text


def test_what_is_done_inside_raises_as_it_is(recorded: Recorded) -> None:
    with pytest.raises(ValueError, match="secret"), traced("task"):
        raise ValueError("secret")
    span = recorded.span("task")
    assert dict(span.attributes or {}) == {"error.type": "ValueError"}
    assert "secret" not in span.to_json()


def test_the_current_span_is_named_as_a_write_takes_it(recorded: Recorded) -> None:
    assert here() is None
    with recorded.tracers.get_tracer("t").start_as_current_span("job") as job:
        assert here() == context.written(job.get_span_context())
