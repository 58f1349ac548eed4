"""Spans and metrics of what a subscription receives, handles and settles.

A handler runs inside its process span, which is a child of the message's own context. Messages are leased ahead of
their handlers, so receiving has metrics and no span (the conventions forbid it).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from redelivery.contract.broker import Broker, Received
from redelivery.errors import BrokerError, TerminalNack
from redelivery.formats.dialects import again
from redelivery.telemetry import context, conventions
from redelivery.telemetry.current import Telemetry, current
from redelivery.telemetry.guard import harmless, lost
from redelivery.telemetry.sends import attributes_of, duration, error_type, shown

if TYPE_CHECKING:
    from opentelemetry.trace import Span

#: The name of the outcome of most messages, as of `counted`.
_ACCEPT: Final = "accept"
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
        self._on_process = {**self._process, **self._on_spans}
        self._of = f" {broker.destination_name}" if broker.destination_name else ""
        self._name = f"process{self._of}"
        if self._tracer is not None:
            from opentelemetry import context as contexts  # noqa: PLC0415 - only where there is an SDK
            from opentelemetry import trace  # noqa: PLC0415 - see above

            self._consumer, self._failed = trace.SpanKind.CONSUMER, trace.StatusCode.ERROR
            self._with_span, self._attach, self.leave = trace.set_span_in_context, contexts.attach, contexts.detach
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
    @harmless(None)
    def of(cls, broker: Broker, name: str) -> HandlingObserver | None:
        """Return the observer of a subscription; None where nothing records."""
        telemetry = current()
        return None if telemetry is None else cls(telemetry, broker, name)

    @harmless(None)
    def received(self, count: int, seconds: float) -> None:
        """Record that so many messages were leased by one call; none is not recorded."""
        if count and self._consumed is not None and self._duration is not None:
            self._consumed.add(count, self._receive)
            self._duration.record(max(0.0, seconds), self._receive)

    def process(self, received: Received, seen: Any) -> _Process:
        """Return a context in which one message is handled: enter it on the thread, or in the task, that handles it.

        Args:
            received: the message under its lease.
            seen: gets the context of the span as its attribute `span`, where it is recorded.
        """
        return _Process(self, received, seen)

    def begin(self, received: Received) -> Span | None:
        """Begin the span of a message's handling; None where nothing records spans."""
        if self._tracer is None:
            return None
        headers = received.message.headers
        remote = context.of_headers(headers) if headers else None
        attributes = {
            **self._on_process,
            conventions.ATTEMPT: received.attempt,
            conventions.HOP: again.hops(headers) if headers else 0,
        }
        if received.message.id is not None:
            attributes[conventions.MESSAGE_ID] = shown(received.message.id)
        if remote is None:
            return self._tracer.start_span(self._name, kind=self._consumer, attributes=attributes)
        return self._tracer.start_span(
            self._name,
            remote.parent(),
            kind=self._consumer,
            attributes=attributes,
            links=(remote.link("message"),) if remote.sampled else (),
        )

    def enter(self, span: Span) -> Any:
        """Make a span the current one; return what `leave` takes."""
        return self._attach(self._with_span(span))

    def end(self, span: Span | None, seconds: float, error: BaseException | None) -> None:
        """End the span of a message's handling, and record how long that took."""
        kind = None if error is None else _kind(error)
        if self._processing is not None:
            of = self._process if kind is None else {**self._process, conventions.ERROR_TYPE: kind}
            self._processing.record(seconds, of)
        if span is None:
            return
        if error is None or kind is None:
            span.set_attribute(conventions.OUTCOME, "accepted")
        else:
            span.set_attribute(conventions.OUTCOME, "terminated" if isinstance(error, TerminalNack) else "failed")
            span.set_attribute(conventions.ERROR_TYPE, kind)
            if isinstance(error, BrokerError):
                span.set_attribute(conventions.CODE, kind)
            span.set_status(self._failed, kind)
        span.end()

    @harmless(None)
    def settled(self, outcomes: Mapping[str, int], failures: int, *, seconds: float, ended_ms: int) -> None:
        """Record one call that settled messages. It has a span unless it only accepted: process spans say that already.

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
        if self._tracer is None or (not failures and outcomes.keys() == {_ACCEPT}):
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


class _Process:
    """One run of a handler: its span is the current one inside."""

    __slots__ = ("_began", "_observer", "_received", "_seen", "_span", "_token")

    def __init__(self, observer: HandlingObserver, received: Received, seen: Any) -> None:
        self._observer = observer
        self._received = received
        self._seen = seen

    def __enter__(self) -> None:
        self._token = self._span = None
        try:
            self._span = span = self._observer.begin(self._received)
            if span is not None:
                found = span.get_span_context()
                if found.trace_flags.sampled:
                    self._seen.span = found
                self._token = self._observer.enter(span)
        except Exception as error:  # noqa: BLE001 - of a processor; `harmless`, without its cost per message
            lost(error)
        self._began = time.perf_counter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        seconds = time.perf_counter() - self._began
        try:
            if self._token is not None:
                self._observer.leave(self._token)
            self._observer.end(self._span, seconds, error)
        except Exception as lost_by:  # noqa: BLE001 - see `__enter__`
            lost(lost_by)
