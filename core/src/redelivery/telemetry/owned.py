"""Spans of processes that are ours: Spark's tasks and commits. They set the SDK up, and export before they may end."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from redelivery.telemetry import context, conventions
from redelivery.telemetry.current import configure, current


@contextlib.contextmanager
def traced(name: str, *, parent: str | None = None, run: str = "") -> Iterator[None]:
    """Do something inside a span, then export. Where nothing records it, it is just done.

    Args:
        name: of the span.
        parent: `traceparent` of the span that asked for it; None: it begins a trace, or is part of the current span.
        run: names the job.
    """
    configure()
    telemetry = current()
    if telemetry is None:
        yield
        return
    try:
        if telemetry.tracer is None:
            yield
            return
        remote = context.parse(parent)
        with telemetry.tracer.start_as_current_span(
            name,
            None if remote is None else remote.parent(),
            attributes={conventions.RUN: run} if run else None,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield
            except BaseException as error:
                span.set_attribute(conventions.ERROR_TYPE, type(error).__qualname__)
                raise
    finally:
        telemetry.flush()


def here() -> str | None:
    """Return the `traceparent` of the current span; None where there is none, or it is not recorded."""
    if current() is None:
        return None
    from opentelemetry import trace  # noqa: PLC0415 - only where there is an SDK

    found = trace.get_current_span().get_span_context()
    return context.written(found) if found.is_valid and found.trace_flags.sampled else None
