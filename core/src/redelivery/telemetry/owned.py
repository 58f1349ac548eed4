"""Spans of processes that are ours: Spark's tasks and commits. They set the SDK up, and export before they may end."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from redelivery.telemetry import context, conventions
from redelivery.telemetry.current import Telemetry, configure, current
from redelivery.telemetry.guard import harmless


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
    begun = _begin(telemetry, name, parent, run)
    kind: str | None = None
    try:
        yield
    except BaseException as error:
        kind = type(error).__qualname__
        raise
    finally:
        if begun is not None:
            _end(*begun, kind)
        telemetry.flush()


@harmless(None)
def _begin(telemetry: Telemetry, name: str, parent: str | None, run: str) -> tuple[Any, Any] | None:
    """Begin a span, make it the current one, and return it with what ends that."""
    if telemetry.tracer is None:
        return None
    from opentelemetry import context as contexts  # noqa: PLC0415 - only where there is an SDK
    from opentelemetry import trace  # noqa: PLC0415 - see above

    remote = context.parse(parent)
    span = telemetry.tracer.start_span(
        name, None if remote is None else remote.parent(), attributes={conventions.RUN: run} if run else None
    )
    return span, contexts.attach(trace.set_span_in_context(span))


@harmless(None)
def _end(span: Any, token: Any, kind: str | None) -> None:
    """End a span; `kind` is the type of the error that was raised in it."""
    from opentelemetry import context as contexts  # noqa: PLC0415 - only where there is an SDK

    contexts.detach(token)
    if kind is not None:
        span.set_attribute(conventions.ERROR_TYPE, kind)
    span.end()


@harmless(None)
def here() -> str | None:
    """Return the `traceparent` of the current span; None without a current span, or where it is not recorded."""
    if current() is None:
        return None
    from opentelemetry import trace  # noqa: PLC0415 - only where there is an SDK

    found = trace.get_current_span().get_span_context()
    return context.written(found) if found.is_valid and found.trace_flags.sampled else None
