"""A message's trace context is read as W3C Trace Context has it, and never believed to be well formed."""

from __future__ import annotations

import pytest

from redelivery.telemetry import context

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
GOOD = f"00-{TRACE}-{SPAN}-01"


def test_a_traceparent_is_read() -> None:
    found = context.parse(GOOD)
    assert found == (int(TRACE, 16), int(SPAN, 16), True, "")
    assert found is not None
    assert context.written(found.span_context()) == GOOD


@pytest.mark.parametrize("text", [f"00-{TRACE}-{SPAN}-00", f"01-{TRACE}-{SPAN}-02-more"])
def test_one_that_is_not_sampled_and_one_of_a_later_version_are_read(text: str) -> None:
    found = context.parse(text)
    assert found is not None
    assert not found.sampled


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "x",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-01{'-' + 'x' * 10_000}",
        f"{GOOD}\n",
    ],
)
def test_what_names_no_span_is_none(text: str | None) -> None:
    assert context.parse(text) is None


@pytest.mark.parametrize("name", ["traceparent", "Traceparent", "ce_traceparent", "cloudEvents:traceparent"])
def test_a_header_of_any_form_is_found_with_its_state(name: str) -> None:
    state = name[: -len("traceparent")] + "tracestate"
    found = context.of_headers((("a", b"1"), (name, GOOD.encode()), (state, b"v=1")))
    assert found is not None
    assert found.state == "v=1"
    assert found.span_context().trace_state.get("v") == "1"


def test_a_messages_own_header_counts_before_that_of_its_event() -> None:
    other = GOOD.replace("4bf9", "5bf9").encode()
    for headers in ((("ce_traceparent", other), ("traceparent", GOOD.encode())),) * 2:
        found = context.of_headers(headers)
        assert found is not None
        assert found.trace_id == int(TRACE, 16)


@pytest.mark.parametrize("value", [None, b"", b"\xff\xfe", b"x" * 1_000_000])
def test_a_hostile_header_is_no_context(value: bytes | None) -> None:
    assert context.of_headers((("traceparent", value),)) is None


def test_a_hostile_state_is_dropped() -> None:
    for state in (b"x" * 100_000, b"\xff" * 100):
        found = context.of_headers((("traceparent", GOOD.encode()), ("tracestate", state)))
        assert found is not None
        assert found.span_context().trace_id == int(TRACE, 16)


@pytest.mark.parametrize(
    "state", [b"\x1b[31m=1", b"a=b=c", b"x" * 400, b"A=1", ", ".join(f"k{n}=v" for n in range(40)).encode()]
)
def test_a_state_of_no_known_form_is_no_line_of_the_log(state: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """OpenTelemetry's API would write one for each message, with the sender's text."""
    found = context.of_headers((("traceparent", GOOD.encode()), ("tracestate", state)))
    assert found is not None
    assert len(found.span_context().trace_state) == 0
    assert caplog.records == []


def test_only_recorded_contexts_of_rows_count_and_only_so_many() -> None:
    good, off = (("traceparent", GOOD.encode()),), (("traceparent", GOOD[:-1].encode() + b"0"),)
    assert list(context.of_rows([good, (), off, good, good], range(5), 2)) == [0, 3]
    assert not context.of_rows(None, range(3), 9)
