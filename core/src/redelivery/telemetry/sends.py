"""Spans and metrics of what is sent: one span per batch, and a short one per row that is given up.

The span of a batch links to the contexts of its failed rows. A row that is given up, and has a recorded context of its
own, gets a span in its own trace, so that this trace shows the failure. Numbers of both are bounded per batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from redelivery.contract.broker import Broker
from redelivery.contract.context import whole_text
from redelivery.contract.message import Batch
from redelivery.errors import BrokerError
from redelivery.telemetry import context, conventions
from redelivery.telemetry.current import Telemetry, current
from redelivery.telemetry.guard import harmless

if TYPE_CHECKING:
    from opentelemetry.context import Context

#: The most links of a span, and the most spans of rows, per batch. The SDK keeps 128 links.
MOST: Final = 100
#: The longest id that is shown, in characters.
_LONGEST_ID: Final = 256
#: Failed rows whose headers are looked at, per batch.
_LOOKED_AT: Final = 1000
_MS: Final = 1_000_000
_S: Final = 1_000_000_000


def attributes_of(broker: Broker) -> dict[str, Any]:
    """Return the attributes that name a destination. They hold no secret, and are the same for all its rows."""
    found: dict[str, Any] = {conventions.SYSTEM: broker.capabilities.messaging_system or broker.name}
    if broker.destination_name:
        found[conventions.DESTINATION] = broker.destination_name
    hosts = set(broker.hosts or ())
    if len(hosts) == 1:
        found[conventions.SERVER_ADDRESS] = hosts.pop()
    return found


def error_type(error: BrokerError) -> str:
    """Return the type of an error: its code, from the closed list."""
    return str(error.code)


def shown(name: str) -> str:
    """Return an id as an attribute. Anyone may have chosen it; half a character would make an exporter fail."""
    return whole_text(name[:_LONGEST_ID])


class SendObserver:
    """Sees the batches of one destination settled.

    Args:
        telemetry: what records.
        broker: the destination.
    """

    def __init__(self, telemetry: Telemetry, broker: Broker) -> None:
        self._tracer = telemetry.tracer
        self._place = attributes_of(broker)
        self._base = {
            **self._place,
            conventions.OPERATION_NAME: "send",
            conventions.OPERATION_TYPE: "send",
        }
        name = broker.destination_name
        self._name = f"send {name}" if name else "send"
        self._given_up = f"give up {name}" if name else "give up"
        self._parent: Context | None = None
        self._sent = self._duration = None
        if self._tracer is not None:
            from opentelemetry.context import get_current  # noqa: PLC0415 - only where there is an SDK

            #: Of the thread that opens the delivery; the engine may run on another one.
            self._parent = get_current()
        if telemetry.meter is not None:
            self._sent = telemetry.meter.create_counter(
                conventions.SENT, "{message}", "Number of messages producer attempted to send to the broker."
            )
            self._duration = duration(telemetry)

    @classmethod
    @harmless(None)
    def of(cls, broker: Broker) -> SendObserver | None:
        """Return the observer of a destination; None where nothing records."""
        telemetry = current()
        return None if telemetry is None else cls(telemetry, broker)

    @harmless(None)
    def settled(
        self,
        batch: Batch,
        failures: Mapping[int, BrokerError],
        *,
        seconds: float,
        ended_ms: int,
        attempt: int = 1,
        failed_in: Iterable[str] | None = None,
    ) -> str | None:
        """Record a settled batch.

        Args:
            batch: as it was sent.
            failures: the error of each row that failed.
            seconds: how long it took.
            ended_ms: when it was settled, milliseconds since the epoch.
            attempt: of its rows; the highest.
            failed_in: for letters: the spans in which their rows failed, as `traceparent`; None: no letters.

        Returns:
            The `traceparent` of its span; None where nothing records it.
        """
        length, failed = len(batch), len(failures)
        kinds = Counter(map(error_type, failures.values())) if failed else Counter()
        if self._sent is not None and self._duration is not None:
            if length > failed:
                self._sent.add(length - failed, self._base)
            for kind, count in kinds.items():
                self._sent.add(count, {**self._base, conventions.ERROR_TYPE: kind})
            said = {conventions.ERROR_TYPE: kinds.most_common(1)[0][0]} if failed == length else {}
            self._duration.record(max(0.0, seconds), {**self._base, **said})
        if self._tracer is None:
            return None
        from opentelemetry import trace  # noqa: PLC0415 - only where there is an SDK

        attributes = {**self._base, conventions.ATTEMPT: attempt}
        if length > 1:
            attributes[conventions.BATCH_COUNT] = length
        good = "delivered" if failed_in is None else "dead-lettered"
        attributes[conventions.OUTCOME] = good if not failed else "failed" if failed == length else f"partly {good}"
        links = _links(failed_in or (), "failure")
        if failed:
            attributes[conventions.CODE] = attributes[conventions.ERROR_TYPE] = kinds.most_common(1)[0][0]
            rows = islice(sorted(failures), _LOOKED_AT)
            headers = None if batch.headers is None else batch.headers.values
            found = context.of_rows(headers, rows, MOST - len(links)) if len(links) < MOST else {}
            links += [remote.link("message") for remote in found.values()]
        now = trace.get_current_span().get_span_context().is_valid
        span = self._tracer.start_span(
            self._name,
            None if now else self._parent,
            kind=trace.SpanKind.CLIENT,
            attributes=attributes,
            links=links,
            start_time=ended_ms * _MS - int(max(0.0, seconds) * _S),
        )
        if failed:
            span.set_status(trace.StatusCode.ERROR, f"{failed} of {length}")
        span.end(ended_ms * _MS)
        found_context = span.get_span_context()
        return context.written(found_context) if found_context.trace_flags.sampled else None

    @harmless(())
    def given_up(
        self,
        rows: Batch,
        errors: Sequence[BrokerError],
        batch_span: str | None,
        *,
        attempts: int,
        hops: Sequence[int],
        began_ms: int,
        ended_ms: int,
    ) -> Sequence[str | None]:
        """Make a span for each row that is given up, in the row's own trace.

        Args:
            rows: the rows.
            errors: one for all, or one per row.
            batch_span: the `traceparent` of the span of the batch in which they failed.
            attempts: how often they were tried.
            hops: how often each row was sent back; empty: never.
            began_ms: their first failure, milliseconds since the epoch.
            ended_ms: now.

        Returns:
            The `traceparent` of the span in which a row failed: one for all, or one per row; empty: none is known.
        """
        one: Sequence[str | None] = (batch_span,) if batch_span else ()
        if self._tracer is None or rows.headers is None:
            return one
        found = context.of_rows(rows.headers.values, range(min(len(rows), _LOOKED_AT)), MOST)
        if not found:
            return one
        from opentelemetry import trace  # noqa: PLC0415 - only where there is an SDK

        spans: list[str | None] = [batch_span] * len(rows)
        links = _links([batch_span] if batch_span else (), "batch")
        for row, remote in found.items():
            code = error_type(errors[row] if len(errors) > 1 else errors[0])
            attributes = {
                **self._place,
                conventions.OUTCOME: "given up",
                conventions.CODE: code,
                conventions.ERROR_TYPE: code,
                conventions.ATTEMPT: attempts,
                conventions.HOP: hops[row] if hops else 0,
            }
            if rows.id is not None and (name := rows.id.values[row]) is not None:
                attributes[conventions.MESSAGE_ID] = shown(name)
            span = self._tracer.start_span(
                self._given_up,
                remote.parent(),
                attributes=attributes,
                links=links,
                start_time=min(began_ms or ended_ms, ended_ms) * _MS,
            )
            span.set_status(trace.StatusCode.ERROR, code)
            span.end(ended_ms * _MS)
            if span.get_span_context().trace_flags.sampled:
                spans[row] = context.written(span.get_span_context())
        return spans


def duration(telemetry: Telemetry) -> Any:
    """Return the instrument for how long operations take."""
    return (
        None
        if telemetry.meter is None
        else telemetry.meter.create_histogram(
            conventions.OPERATION_DURATION,
            "s",
            "Duration of messaging operation initiated by a producer or consumer client.",
            explicit_bucket_boundaries_advisory=conventions.BUCKETS,
        )
    )


def _links(spans: Iterable[str | None], why: str) -> list[Any]:
    """Return links to spans, each once, at most `MOST`."""
    known = islice(dict.fromkeys(each for each in spans if each), MOST)
    return [remote.link(why) for each in known if (remote := context.parse(each)) is not None]
