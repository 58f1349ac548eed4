"""Spans and metrics of what a subscription receives, handles and settles.

A handler runs inside its process span, which is a child of the message's own context. Messages are leased ahead of
their handlers, so there is no span for receiving (the conventions forbid it), but metrics.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from redelivery.contract.broker import Broker, Received
from redelivery.errors import BrokerError, TerminalNack
from redelivery.formats.dialects import again
from redelivery.telemetry import context, conventions
from redelivery.telemetry.current import Telemetry, current
from redelivery.telemetry.sends import attributes_of, duration, error_type

if TYPE_CHECKING:
    from opentelemetry.trace import Span

_MS: Final = 1_000_000
_S: Final = 1_000_000_000


class HandlingObserver:
    """Sees what one subscription does.

    Args:
        telemetry: what records.
        broker: where messages come from.
        name: the subscription's.
    """

    def __init__(self, telemetry: Telemetry, broker: Broker, name: str) -> None:
        self._tracer = telemetry.tracer
        place = attributes_of(broker)
        self._process, self._receive, self._settle = (
            {**place, conventions.OPERATION_NAME: kind, conventions.OPERATION_TYPE: kind}
            for kind in ("process", "receive", "settle")
        )
        self._on_spans = {conventions.SUBSCRIPTION: name}
        self._of = f" {broker.destination_name}" if broker.destination_name else ""
        self._consumed = self._processing = None
        self._duration = duration(telemetry)
        if telemetry.meter is not None:
            self._consumed = telemetry.meter.create_counter(
                conventions.CONSUMED, "{message}", "Number of messages that were delivered to the application."
            )
            self._processing = telemetry.meter.create_histogram(
                conventions.PROCESS_DURATION,
                "s",
                "Duration of processing operation.",
                explicit_bucket_boundaries_advisory=conventions.BUCKETS,
            )

    @classmethod
    def of(cls, broker: Broker, name: str) -> HandlingObserver | None:
        """Return the observer of a subscription; None where nothing records."""
        telemetry = current()
        return None if telemetry is None else cls(telemetry, broker, name)

    def received(self, count: int, seconds: float) -> None:
        """Record that so many messages were leased by one call; none is not recorded."""
        if count and self._consumed is not None and self._duration is not None:
            self._consumed.add(count, self._receive)
            self._duration.record(max(0.0, seconds), self._receive)

    @contextlib.contextmanager
    def process(self, received: Received, seen: Any) -> Iterator[None]:
        """Record the handling of one message: enter it on the thread, or in the task, that handles it.

        Args:
            received: the message under its lease.
            seen: gets the `traceparent` of the span as its attribute `span`, where it is recorded.
        """
        span = self._span(received)
        if span is None and self._processing is None:
            yield
            return
        import time  # noqa: PLC0415 - not a clock of the engine: a span's own

        began = time.perf_counter()
        error: BaseException | None = None
        try:
            if span is None:
                yield
            else:
                from opentelemetry import trace  # noqa: PLC0415 - only where there is an SDK

                if span.get_span_context().trace_flags.sampled:
                    seen.span = context.written(span.get_span_context())
                with trace.use_span(span, record_exception=False, set_status_on_exception=False):
                    yield
        except BaseException as raised:
            error = raised
            raise
        finally:
            kind = None if error is None else _kind(error)
            if self._processing is not None:
                said = {} if kind is None else {conventions.ERROR_TYPE: kind}
                self._processing.record(time.perf_counter() - began, {**self._process, **said})
            if span is not None:
                _end(span, error, kind)

    def _span(self, received: Received) -> Span | None:
        if self._tracer is None:
            return None
        from opentelemetry import trace  # noqa: PLC0415 - only where there is an SDK

        message = received.message
        remote = context.of_headers(message.headers)
        attributes = {
            **self._process,
            **self._on_spans,
            conventions.ATTEMPT: received.attempt,
            conventions.HOP: again.hops(message.headers),
        }
        if message.id is not None:
            attributes[conventions.MESSAGE_ID] = message.id
        return self._tracer.start_span(
            f"process{self._of}",
            None if remote is None else remote.parent(),
            kind=trace.SpanKind.CONSUMER,
            attributes=attributes,
            links=() if remote is None else (remote.link("message"),),
        )

    def settled(self, outcomes: Mapping[str, int], failures: int, *, seconds: float, ended_ms: int) -> None:
        """Record one call that settled messages.

        Args:
            outcomes: how many of each outcome, by its name.
            failures: how many of them could not be settled.
            seconds: how long it took.
            ended_ms: when it ended, milliseconds since the epoch.
        """
        count = sum(outcomes.values())
        said = {conventions.ERROR_TYPE: conventions.OTHER_ERROR} if failures == count else {}
        if self._duration is not None:
            self._duration.record(max(0.0, seconds), {**self._settle, **said})
        if self._tracer is None:
            return
        from opentelemetry import trace  # noqa: PLC0415 - only where there is an SDK

        span = self._tracer.start_span(
            f"settle{self._of}",
            kind=trace.SpanKind.CLIENT,
            attributes={
                **self._settle,
                **self._on_spans,
                **said,
                conventions.BATCH_COUNT: count,
                conventions.OUTCOME: ", ".join(sorted(outcomes)),
            },
            start_time=ended_ms * _MS - int(max(0.0, seconds) * _S),
        )
        if failures:
            span.set_status(trace.StatusCode.ERROR, f"{failures} of {count}")
        span.end(ended_ms * _MS)


def counted(outcomes: Iterator[object]) -> Counter[str]:
    """Return how many outcomes there are of each kind, by the name of its class."""
    return Counter(type(each).__name__.lower() for each in outcomes)


def _kind(error: BaseException) -> str:
    """Return the type of an error that a handler raised. Its text may hold anything, and is not shown."""
    return error_type(error) if isinstance(error, BrokerError) else type(error).__qualname__


def _end(span: Span, error: BaseException | None, kind: str | None) -> None:
    from opentelemetry import trace  # noqa: PLC0415 - only where there is an SDK

    if error is None or kind is None:
        span.set_attribute(conventions.OUTCOME, "accepted")
    else:
        span.set_attribute(conventions.OUTCOME, "terminated" if isinstance(error, TerminalNack) else "failed")
        span.set_attribute(conventions.ERROR_TYPE, kind)
        if isinstance(error, BrokerError) and error.code is not None:
            span.set_attribute(conventions.CODE, str(error.code))
        span.set_status(trace.StatusCode.ERROR, kind)
    span.end()
