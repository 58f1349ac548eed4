"""Spans of a redrive: one per chunk of letters, with links to their failures; one per letter, in its own trace."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any, Final, NamedTuple

from redelivery.contract.message import Batch
from redelivery.telemetry import context, conventions
from redelivery.telemetry.current import current
from redelivery.telemetry.guard import harmless
from redelivery.telemetry.sends import MOST

_MS: Final = 1_000_000


class Failure(NamedTuple):
    """Where a letter failed.

    Attributes:
        span: `traceparent` of the span in which it failed; None: it is not known.
        hops: how often it was sent back before.
        code: why, from the closed list.
    """

    span: str | None
    hops: int
    code: str | None


class _Chunk(NamedTuple):
    """A chunk of letters whose sending has begun, its first letters' failures, and what makes its span current."""

    span: Any
    failures: Sequence[Failure]
    began_ms: int
    token: Any


class RedriveObserver:
    """Sees the letters of one place sent by an operation.

    Args:
        operation: its name: redrive or forward.
        wall_ms: the time, milliseconds since the epoch.
    """

    def __init__(self, operation: str, tracer: Any, wall_ms: Callable[[], int]) -> None:
        self._operation = operation
        self._tracer = tracer
        self._wall_ms = wall_ms

    @classmethod
    @harmless(None)
    def of(cls, operation: str, wall_ms: Callable[[], int]) -> RedriveObserver | None:
        """Return the observer of an operation; None where nothing records spans."""
        telemetry = current()
        return None if telemetry is None or telemetry.tracer is None else cls(operation, telemetry.tracer, wall_ms)

    @contextlib.contextmanager
    def sending(
        self, messages: Batch, failure: Callable[[int], Failure], confirmed: Callable[[], Container[int]]
    ) -> Iterator[None]:
        """Record that a chunk of letters is sent: the spans of their sending are its children.

        Args:
            messages: as they are sent.
            failure: returns where the letter of a message failed; asked for the first ones only.
            confirmed: returns which messages have arrived; asked at the end.
        """
        chunk = self._begin(messages, failure)
        kind: str | None = None
        try:
            yield
        except BaseException as error:
            kind = type(error).__qualname__
            raise
        finally:
            if chunk is not None:
                self._end(chunk, messages, confirmed, kind)

    @harmless(None)
    def _begin(self, messages: Batch, failure: Callable[[int], Failure]) -> _Chunk:
        """Begin the span of a chunk, and make it the current one."""
        from opentelemetry import context as contexts  # noqa: PLC0415 - only where there is an SDK
        from opentelemetry import trace  # noqa: PLC0415 - see above

        failures = [failure(row) for row in range(min(len(messages), MOST))]
        began_ms = self._wall_ms()
        span = self._tracer.start_span(
            f"{self._operation} letters",
            attributes={conventions.BATCH_COUNT: len(messages)},
            links=[each.link("failure") for each in _remotes(failures)],
            start_time=began_ms * _MS,
        )
        return _Chunk(span, failures, began_ms, contexts.attach(trace.set_span_in_context(span)))

    @harmless(None)
    def _end(self, chunk: _Chunk, messages: Batch, confirmed: Callable[[], Container[int]], kind: str | None) -> None:
        """End the span of a chunk, after those of its letters; `kind` is the type of the error that ended it."""
        from opentelemetry import context as contexts  # noqa: PLC0415 - only where there is an SDK
        from opentelemetry import trace  # noqa: PLC0415 - see above

        contexts.detach(chunk.token)
        done, ended_ms = confirmed(), self._wall_ms()
        headers = None if messages.headers is None else messages.headers.values
        for row, remote in context.of_rows(headers, range(len(chunk.failures)), MOST).items():
            self._letter(remote, chunk.failures[row], chunk.span, (chunk.began_ms, ended_ms), arrived=row in done)
        if kind is not None:
            chunk.span.set_attribute(conventions.ERROR_TYPE, kind)
            chunk.span.set_status(trace.StatusCode.ERROR)
        chunk.span.end(ended_ms * _MS)

    def _letter(
        self,
        own: context.Remote,
        failed: Failure,
        chunk: Any,
        times_ms: tuple[int, int],
        *,
        arrived: bool,
    ) -> None:
        """Make the span of one letter, in the trace of its message."""
        from opentelemetry import trace  # noqa: PLC0415 - only where there is an SDK

        attributes: dict[str, Any] = {
            conventions.OUTCOME: "redriven" if arrived else "failed",
            conventions.HOP: failed.hops + 1,
        }
        if failed.code is not None:
            attributes[conventions.CODE] = failed.code
        links = [each.link("failure") for each in _remotes([failed])]
        links.append(trace.Link(chunk.get_span_context(), {conventions.LINK: "batch"}))
        span = self._tracer.start_span(
            self._operation, own.parent(), attributes=attributes, links=links, start_time=times_ms[0] * _MS
        )
        if not arrived:
            span.set_status(trace.StatusCode.ERROR)
        span.end(times_ms[1] * _MS)


def _remotes(failures: Sequence[Failure]) -> list[context.Remote]:
    """Return the spans in which letters failed, each once. Anyone may have written them."""
    found = (context.parse(each.span) for each in dict.fromkeys(failures))
    return list(dict.fromkeys(each for each in found if each is not None))
