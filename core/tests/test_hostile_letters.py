"""Letters that somebody has written to harm their reader: none ends a read, hides a neighbour, or takes long."""

from __future__ import annotations

import json
import time
from dataclasses import fields
from pathlib import Path

import pytest
from hostile import FIELDS, MARKS, STRUCTURED, VALUES, messages
from hypothesis import given, settings
from hypothesis import strategies as st

from redelivery import cli
from redelivery.codes import Code
from redelivery.contract.broker import Letter, Limits
from redelivery.contract.context import ErrorContext, checked
from redelivery.contract.message import Batch, Message
from redelivery.deadletters.export import as_json
from redelivery.deadletters.selection import dead_since_ms
from redelivery.deadletters.trust import context_of
from redelivery.formats import dialects, events
from redelivery.registry import connect

LATEST_MS = 253_402_300_799_999
MARK = MARKS[0]


def letter_of(context: str) -> Message:
    return Message(value=b"v", headers=(("redelivery-context", context.encode()), ("redelivery-letter", MARK)))


def assert_sound(context: ErrorContext) -> None:
    for name in ("attempts", "attempts_total", "hops", "partition"):
        number = getattr(context, name)
        assert number is None or (type(number) is int and 0 <= number < 2**31), name
    for name in ("first_failure_ms", "last_failure_ms"):
        millis = getattr(context, name)
        assert millis is None or (type(millis) is int and 0 <= millis <= LATEST_MS), name
    for item in fields(ErrorContext):
        if str(item.type).startswith("str"):
            assert isinstance(getattr(context, item.name), str | None)


@settings(deadline=None)  # the first example loads the plugins; the bound is its own
@given(messages, st.sampled_from(dialects.NAMES))
def test_no_message_ends_what_reads_writes_strips_or_wraps_a_letter(message: Message, dialect: str) -> None:
    began = time.monotonic()
    found = dialects.read(message)
    if found is not None:
        assert_sound(found)
    dialects.history(message)
    assert not dialects.is_signed(message, [b"a key"])
    dialects.strip(message)
    dialects.strip(message, keep_type=True)
    dialects.redriven(message)
    context = found or ErrorContext(reason="why", attempts=1)
    dialects.attach(message, context, dialect=dialect, limits=Limits(), prefix="ce_", rename_type="other")
    events.from_event(events.to_event(message))
    letter = Letter(position="1", message=message)
    assert_sound(context_of(letter))
    json.dumps(as_json(Letter(position="1", message=message, context=context_of(letter))), allow_nan=False)
    assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("partition", 2**31), ("hops", -1), ("attempts", 2**31), ("last_failure_ms", LATEST_MS + 1)),
        *(("first_failure_ms", -1), ("attempts_total", "3"), ("reason", 7), ("extra", {"a": 1}), ("stage", "NOWHERE")),
    ],
)
def test_a_field_that_its_column_cannot_hold_is_unset_and_the_letter_is_invalid(field: str, value: object) -> None:
    good = {"reason": "why", "kind": "permanent", "code": "C"}
    found = dialects.read(letter_of(json.dumps({"redelivery": {**good, field: value}})))
    assert found is not None
    assert found.kind == "invalid"
    assert getattr(found, field) == getattr(ErrorContext(), field)
    assert found.native_code == "C"


def test_fields_of_a_later_version_are_left_out_and_harm_nothing() -> None:
    found = dialects.read(letter_of('{"redelivery": {"reason": "why", "kind": "permanent", "moon": [1]}}'))
    assert found is not None
    assert (found.reason, found.kind) == ("why", "permanent")
    assert checked({"moon": 1, "code": "C"}) == ErrorContext(native_code="C")


def test_what_a_plugin_gives_of_a_letter_is_checked_too() -> None:
    """A broker keeps what somebody has written: a count in another's table, a time of the year 30000."""
    native = ErrorContext(kind="expired", attempts=2**40, last_failure_ms=2**60, reason="why")
    letter = Letter(position="1", message=Message(value=b"v"), context=native, dead_lettered_ms=2**60)
    assert letter.dead_lettered_ms is None
    assert letter.context == ErrorContext(kind="invalid", code=Code.EXPIRED, reason="why")
    good = ErrorContext(kind="expired", code=Code.EXPIRED, attempts=2)
    assert Letter(position="1", message=Message(value=b"v"), context=good, dead_lettered_ms=5).context is good


@pytest.mark.parametrize("millis", [10**400, 2**63, -(2**63), LATEST_MS + 1])
def test_a_letter_of_an_absurd_time_has_no_known_age(millis: int) -> None:
    assert dead_since_ms(Letter(position="1", message=Message(value=b"v", timestamp_ms=millis))) is None


def hostile_letters() -> list[Message]:
    found = [letter_of(f'{{"redelivery": {{"{name}": {value}}}}}') for name in FIELDS[:28:3] for value in VALUES]
    found += [Message(value=value.encode(), headers=(STRUCTURED,)) for value in VALUES]
    found += [
        Message(
            value=b'{"specversion":"1.0","id":"1","source":"s","type":"t","data":%s,"x":%s}' % ((value.encode(),) * 2),
            headers=(STRUCTURED, ("redelivery-letter", mark)),
        )
        for value in VALUES
        for mark in MARKS[2:7]
    ]
    found.append(Message(value=b"v", timestamp_ms=2**62, headers=(("__connect.errors.task.id", b"9" * 18),)))
    return found


@pytest.mark.parametrize(
    "command",
    [
        *(("list", "--limit", "0"), ("list", "--json"), ("list", "--where", "age>PT1S", "--where", "attempts>1")),
        *(("stats",), ("stats", "--json"), ("export",), ("redrive", "--dry-run"), ("show", "good-1")),
    ],
    ids=" ".join,
)
def test_hostile_letters_hide_no_neighbour_from_any_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    url = f"sqlite:{tmp_path}/q.db?queue=orders"
    good = ErrorContext(reason="good", kind="permanent", attempts=3, attempts_total=3, last_failure_ms=1)
    hostile = hostile_letters()
    with connect(url) as broker, connect(broker.native_sink()) as sink, sink.sender() as sender:
        ends = [
            dialects.attach(Message(value=b"v", id=f"good-{at}"), good, dialect="json", limits=Limits(), prefix=None)
            for at in range(2)
        ]
        sender.send(Batch.of([ends[0], *hostile, ends[1]]), deadline=time.monotonic() + 30)
        assert [len(settled.failures) for settled in sender.collect(1.0)] == [0]
    name, *options = command
    began = time.monotonic()
    assert cli.main(["dead-letters", name, url, *options]) == 0
    assert time.monotonic() - began < 20
    out = capsys.readouterr().out
    if name == "list" and "--where" not in command and "--json" not in command:
        assert "good-0" in out
        assert "good-1" in out
    if "--json" in command and name == "stats":
        assert json.loads(out)["count"] == len(hostile) + 2
    if name == "redrive":
        assert out.split()[0].replace(",", "") == str(len(hostile) + 2) or "stay" in out
    if name == "export":
        assert len([json.loads(line) for line in out.splitlines()]) == len(hostile) + 2


@pytest.mark.parametrize("deep", ['{"redelivery": %s}', '{"redelivery": {"reason": %s}}', "%s"])
def test_reading_a_letter_takes_time_linear_in_its_size(deep: str) -> None:
    def seconds(size: int) -> float:
        message = letter_of(deep % ('{"a":' * size))
        best = 9.0
        for _ in range(3):
            began = time.perf_counter()
            dialects.read(message)
            dialects.redriven(message)
            best = min(best, time.perf_counter() - began)
        return best

    small = max(seconds(20_000), 0.002)
    assert seconds(160_000) < 8 * 4 * small
