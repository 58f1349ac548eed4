"""The trace context of messages (W3C Trace Context), read from their headers. Nothing is ever written there."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from redelivery.contract.message import Header, Headers

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, SpanContext

#: The header with the context of a message, and the same as an extension of a CloudEvent in binary mode.
TRACEPARENT: Final = "traceparent"
_NAMES: Final = frozenset(
    {TRACEPARENT, "ce_traceparent", "ce-traceparent", "cloudevents_traceparent", "cloudevents:traceparent"}
)
#: Any version, as a reader must accept later ones; ids of zeros are not valid.
_FORM: Final = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")
#: A member of a `tracestate`. OpenTelemetry's API would log each message that has another one, with its text.
_MEMBER: Final = re.compile(
    r"(?:[a-z][a-z0-9_*/-]{0,255}|[a-z0-9][a-z0-9_*/-]{0,240}@[a-z][a-z0-9_*/-]{0,13})"
    r"=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]"
)
_MOST_MEMBERS: Final = 32
_SAMPLED: Final = 1
#: The longest `traceparent` and `tracestate` that are read, in bytes.
_LONGEST: Final = 512


class Remote(NamedTuple):
    """The context of a span that another process, or an earlier one, began.

    Attributes:
        trace_id, span_id: numbers, not 0.
        sampled: the trace is recorded.
        state: the vendors' part, as text; empty: none.
    """

    trace_id: int
    span_id: int
    sampled: bool
    state: str = ""

    def span_context(self) -> SpanContext:
        """Return it as OpenTelemetry has it."""
        from opentelemetry import trace  # noqa: PLC0415 - only where there is an SDK

        state = trace.TraceState.from_header([self.state]) if self.state else None
        flags = trace.TraceFlags(_SAMPLED if self.sampled else 0)
        return trace.SpanContext(self.trace_id, self.span_id, is_remote=True, trace_flags=flags, trace_state=state)

    def parent(self) -> Context:
        """Return a context in which this span is the parent."""
        from opentelemetry import trace  # noqa: PLC0415 - see above

        return trace.set_span_in_context(trace.NonRecordingSpan(self.span_context()))

    def link(self, why: str) -> Link:
        """Return a link to this span."""
        from opentelemetry import trace  # noqa: PLC0415 - see above

        from redelivery.telemetry.conventions import LINK  # noqa: PLC0415 - see above

        return trace.Link(self.span_context(), {LINK: why})


def parse(text: str | None, state: str = "") -> Remote | None:
    """Return the context that a `traceparent` names; None where it names none. Never raises."""
    found = None if text is None or len(text) > _LONGEST else _FORM.fullmatch(text)
    if found is None:
        return None
    return Remote(int(found[1], 16), int(found[2], 16), bool(int(found[3], 16) & _SAMPLED), state)


def of_headers(headers: Headers) -> Remote | None:
    """Return the context of a message; None where it has none. Anyone may have written the headers: never raises."""
    found: bytes | None = None
    prefix = ""
    for name, value in headers:
        lower = name.lower()
        if lower in _NAMES and value is not None and (found is None or lower == TRACEPARENT):
            found, prefix = value, lower.removesuffix(TRACEPARENT)
    if found is None:
        return None
    return parse(_text(found), _state(headers, f"{prefix}tracestate"))


def of_rows(headers: Sequence[Headers] | None, rows: Iterable[int], most: int) -> Mapping[int, Remote]:
    """Return the recorded contexts of some rows, by row; at most so many."""
    found: dict[int, Remote] = {}
    for row in rows if headers is not None else ():
        remote = of_headers(headers[row]) if headers is not None and headers[row] else None
        if remote is not None and remote.sampled:
            found[row] = remote
            if len(found) >= most:
                break
    return found


def written(context: SpanContext) -> str:
    """Return the `traceparent` of a span."""
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags) & 0xFF:02x}"


def _state(headers: Iterable[Header], name: str) -> str:
    values = [_text(value) for each, value in headers if value is not None and each.lower() == name]
    state = ",".join(values)
    if not state or len(state) > _LONGEST:
        return ""
    members = [stripped for each in state.split(",") if (stripped := each.strip(" \t"))]
    sound = len(members) <= _MOST_MEMBERS and all(map(_MEMBER.fullmatch, members))
    return state if sound else ""


def _text(value: bytes) -> str:
    return value[: _LONGEST + 1].decode("ascii", "replace").strip()
