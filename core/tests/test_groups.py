"""Rows that failed alike travel as one group, and fare as each would by itself."""

from __future__ import annotations

import gc
import math
import traceback
import weakref
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any
from unittest import mock

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scripted import FakeClock, ScriptedBroker, ScriptedSender

from redelivery.contract.broker import Failure, Limits, Sender, Settled
from redelivery.contract.context import ErrorContext
from redelivery.contract.message import Batch, Column, Message
from redelivery.contract.spec import DeliverySpec, Sink
from redelivery.errors import BrokerError, DeliveryFailed, Permanent, Retriable, ToleranceExceeded
from redelivery.formats import dialects
from redelivery.formats.dialects import _single
from redelivery.policy.decisions import for_sink
from redelivery.sending import Bounds, Engine, Origin, Rejected, SendQueue, engine, letters, send_queue
from redelivery.sending.group import Group, alike, distinct, joined, picked

FATES = ("ok", "retriable", "throttled", "lost", "stored", "permanent")


class Talking(ScriptedBroker):
    """Says something different about some rows: by another text, or with another cause."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.texts: dict[str, str] = {}
        self.said: dict[tuple[type, str], BrokerError] = {}

    def sender(self) -> Sender:
        return _Talking(self)

    def about(self, error: BrokerError, name: str) -> BrokerError:
        text = self.texts.get(name, "")
        error.native_code = "Same"
        if text.startswith("cause"):
            error.__cause__ = ValueError(text)
            return error
        if text.startswith("one"):
            return self.said.setdefault((type(error), text), error)
        error.args = (f"{error}{text}",)
        return error


class _Talking(ScriptedSender):
    def _settle(self, batch: Batch) -> Settled:
        broker, settled = self._broker, super()._settle(batch)
        assert isinstance(broker, Talking)
        names = [message.id or "" for message in batch.rows()]
        failures = [Failure(each.index, broker.about(each.error, names[each.index])) for each in settled.failures]
        return replace(settled, failures=failures)


class Scene:
    """An engine over a broker that talks, and sinks."""

    def __init__(self, sinks: int = 1, bounds: Bounds | None = None, **spec: Any) -> None:
        self.clock = FakeClock()
        self.work = Talking(self.clock)
        self.sinks = [Talking(self.clock) for _ in range(sinks)]
        self.spec = DeliverySpec(
            tolerance="all",
            allow_skip=True,
            log_enable=False,
            dead_letter_sink=tuple(Sink(uri=f"scripted:{n}") for n in range(sinks)),
            **spec,
        )
        bounds = bounds or Bounds()
        queues = [SendQueue("scripted:work", self.work, self.spec, bounds, self.clock)]
        queues += [
            SendQueue(f"scripted:{n}", sink, for_sink(self.spec), bounds, self.clock)
            for n, sink in enumerate(self.sinks)
        ]
        self.engine = Engine(queues, self.spec, Origin(run="r", partition=2), self.clock, lambda: 0.5)
        self.failed = False

    def run(self) -> None:
        for _ in range(5000):
            try:
                self.engine.turn(0.1)
            except DeliveryFailed:
                self.failed = True
                return
            if self.engine.idle:
                return
            if not self.engine.busy and self.engine.next_due is not None:
                self.clock.now = max(self.clock.now, self.engine.next_due)
        raise AssertionError("the engine never came to an end")

    def outcome(self) -> object:
        """What became of each row, and the account; of a job that fails, that it does."""

        def whole(stored: Sequence[Message]) -> list[str]:
            return sorted(f"{message!r}" for message in stored)

        if self.failed:
            return whole(self.work.stored)
        return (
            whole(self.work.stored),
            [whole(sink.stored) for sink in self.sinks],
            self.work.attempts,
            [sink.attempts for sink in self.sinks],
            self.engine.report,
        )


HISTORY = dialects.redriven(
    dialects.attach(
        Message(value=b"v", headers=(("n", b"1"),)),
        ErrorContext(kind="ambiguous", attempts=2, attempts_total=5, maybe_delivered=True),
        dialect="json",
        limits=Limits(),
        prefix=None,
    )
).headers
EVENT = (("content-type", b"application/cloudevents+json"),)
EVENT_VALUE = b'{"specversion":"1.0","id":"1","source":"/s","type":"t"}'

rows = st.tuples(
    st.lists(st.sampled_from(FATES), max_size=3),  # at the destination
    st.lists(st.sampled_from(FATES), max_size=2),  # at each sink
    st.sampled_from(["", " again", "cause 1", "cause 2", "one"]),
    st.sampled_from([((), b"v"), ((("n", b"\xff"),), b""), (HISTORY, b"v"), (EVENT, EVENT_VALUE)]),
    st.sampled_from([None, "there"]),
    st.booleans(),
)
batches = st.lists(
    st.lists(rows, min_size=1, max_size=8) | st.builds(lambda row, times: [row] * times, rows, st.integers(2, 12)),
    min_size=1,
    max_size=3,
)


def played(batches: list[list[Any]], *, each: bool, sinks: int, retry: int | None, **spec: Any) -> Scene:
    """Play what is drawn to the end; with `each`, every row by itself."""

    def by_itself(failures: Any, rows: Sequence[int], **asked: Any) -> Iterator[Any]:
        return alike(failures, rows, **{**asked, "each": True})

    scene = Scene(sinks, retry=retry, backoff_policy="linear", backoff_delay=timedelta(seconds=1), **spec)
    with mock.patch.object(engine, "alike", by_itself if each else alike):
        for number, batch in enumerate(batches):
            messages = []
            for row, (fates, at_sinks, text, (headers, value), target, named) in enumerate(batch):
                name = f"m{number}-{row}"
                scene.work.script[name] = list(fates)
                scene.work.texts[name] = text
                for sink in scene.sinks:
                    sink.script[name] = list(at_sinks)
                    sink.texts[name] = text
                extra = {"partition": row} if named else {}
                messages.append(Message(value=value, headers=headers, id=name, destination=target, extra=extra))
            scene.engine.take(Batch.of(messages))
        scene.run()
    return scene


@given(batches, st.integers(0, 2), st.none() | st.integers(0, 2), st.sampled_from([None, "binary"]))
@settings(max_examples=150, deadline=None)
def test_rows_fare_in_a_group_as_each_would_by_itself(
    batches: list[list[Any]], sinks: int, retry: int | None, form: Any
) -> None:
    """Attempts, letters with every header and identity, and the account."""
    together = played(batches, each=False, sinks=sinks, retry=retry, format=form)
    alone = played(batches, each=True, sinks=sinks, retry=retry, format=form)
    assert together.failed == alone.failed
    assert together.outcome() == alone.outcome()


@given(st.integers(1, 70), st.sets(st.integers(0, 69), max_size=5))
@example(64, {63})
@example(1, {0})
@settings(max_examples=60, deadline=None)
def test_halving_finds_each_culprit_in_few_rounds_and_costs_no_retry(count: int, culprits: set[int]) -> None:
    scene = Scene(retry=0)
    names = [f"m{n}" for n in range(count)]
    dead = {f"m{n}" for n in culprits if n < count}
    scene.work.script = {name: ["culprit"] for name in dead}
    scene.engine.take(Batch.of([Message(value=b"v", id=name) for name in names]))
    scene.run()
    assert scene.work.stored_ids() == Counter(set(names) - dead)
    assert scene.sinks[0].stored_ids() == Counter(dead)
    assert {context.attempts for each in scene.sinks[0].stored if (context := dialects.read(each))} <= {1}
    assert scene.engine.report.retries == 0
    assert max(scene.work.attempts.values()) <= math.ceil(math.log2(count)) + 2 - (count > 1)
    if len(dead) == 1:
        assert all(len(ids) <= 2 for _, ids, isolate in scene.work.sends if isolate)
        assert len(scene.work.sends) <= 2 * math.ceil(math.log2(count)) + 2


def test_a_half_is_its_own_batch_whatever_else_is_due() -> None:
    """In one client batch with others, it would be refused as long as any of them is."""
    scene = Scene(retry=1, backoff_policy="linear", backoff_delay=timedelta(seconds=0))
    scene.work.script = {"m0": ["culprit"]}
    scene.engine.take(Batch.of([Message(value=b"v", id=f"m{n}") for n in range(8)]))
    scene.run()
    assert [ids for _, ids, _ in scene.work.sends[1:]] == [
        ["m0", "m1", "m2", "m3"],
        ["m4", "m5", "m6", "m7"],
        ["m0", "m1"],
        ["m2", "m3"],
        ["m0", "m1"],
    ]
    assert scene.work.sends[-1][2]


def test_rows_over_a_limit_of_tolerance_are_counted_exactly_however_many_fail_at_once() -> None:
    for limit in ({"tolerance_limit": 300}, {"tolerance_rate_limit": 300}):
        scene = Scene(**limit)
        names = [f"m{n}" for n in range(1000)]
        scene.work.script = {name: ["permanent"] for name in names}
        scene.engine.take(Batch.of([Message(value=b"v", id=name) for name in names]))
        with pytest.raises(ToleranceExceeded, match=r"301 records failed .*the last one: record 'm300'"):
            scene.engine.turn(0.1)
        assert scene.engine.report.record_errors == 301
        assert not scene.sinks[0].stored


class Name(str):  # noqa: SLOT000 - a slot would not let it be watched
    """An id that can be watched."""


def test_a_row_that_waits_keeps_none_of_its_batch() -> None:
    """Ten thousand rows may wait, each from another batch of ten thousand."""
    scene = Scene(retry=1, backoff_policy="linear", backoff_delay=timedelta(hours=1))
    names = [Name(f"m{n}") for n in range(100)]
    watched = [weakref.ref(name) for name in names]
    scene.work.script = {"m7": ["retriable"]}
    scene.engine.take(
        Batch(number=0, length=100, nbytes=10_000, value=Column.of([b"v"] * 100), id=Column.of(list(names)))
    )
    names.clear()
    scene.engine.turn(0.0)
    for held in (scene.work.stored, scene.work.sends, scene.work.attempts):
        held.clear()
    gc.collect()
    assert [name() for name in watched if name() is not None] == ["m7"]
    assert scene.engine._send_queues[0].waiting == (1, 65), "its own size, and not a part of its batch's"


def test_each_row_of_a_group_keeps_its_own_history_and_place() -> None:
    scene = Scene(retry=1, backoff_policy="linear", backoff_delay=timedelta(seconds=0))
    scene.work.script = {name: ["retriable"] * 2 for name in ("fresh", "redriven")}
    scene.engine.take(
        Batch.of(
            [
                Message(value=b"1", id="good"),
                Message(value=b"2", id="fresh", destination="there", extra={"partition": 7}),
                Message(value=b"3", id="redriven", headers=HISTORY, identity="known"),
            ]
        )
    )
    scene.run()
    assert len(scene.work.sends) == 2
    found = {each.id: context for each in scene.sinks[0].stored if (context := dialects.read(each))}
    assert {
        name: (each.attempts, each.attempts_total, each.hops, each.maybe_delivered, each.position, each.target)
        for name, each in found.items()
    } == {"fresh": (2, 2, 0, False, 1, "there"), "redriven": (2, 7, 1, True, 2, None)}
    assert {name: (each.message_id, each.identity, each.extra) for name, each in found.items()} == {
        "fresh": ("fresh", None, {"partition": "7"}),
        "redriven": ("redriven", "known", {}),
    }


def test_letters_of_a_whole_batch_are_made_at_once(caplog: pytest.LogCaptureFixture) -> None:
    """If that fails, they are made one by one, which takes twenty times as long."""
    scene = Scene(retry=0)
    names = [f"m{n}" for n in range(50)]
    scene.work.script = {name: ["permanent"] for name in names}
    scene.engine.take(Batch.of([Message(value=b"v", id=name) for name in names]))
    with mock.patch.object(_single, "_letter_at", side_effect=AssertionError):
        scene.run()
    found = [context.position for each in scene.sinks[0].stored if (context := dialects.read(each))]
    assert found == list(range(50))
    assert not caplog.records


def test_letters_that_cannot_be_made_at_once_are_made_one_by_one_and_the_defect_is_logged(
    logged_defects: list[str],
) -> None:
    batch, options = Batch.of([Message(value=b"v", id=f"m{n}") for n in range(5)]), {"dialect": "json", "prefix": None}
    said = ErrorContext(reason="no", kind="permanent")
    whole = dialects.attach_all(batch, said, {"position": range(5)}, limits=Limits(), **options)
    with mock.patch.object(_single._columns, "attached", side_effect=ZeroDivisionError("a defect")):
        found = dialects.attach_all(batch, said, {"position": range(5)}, limits=Limits(), **options)
    assert list(found.rows()) == list(whole.rows())
    (logged,) = logged_defects
    assert "could not be written at once" in logged
    assert "a defect" in logged
    logged_defects.clear()


def test_letters_that_wait_for_their_sink_are_not_made_yet_and_go_in_pieces_that_fit() -> None:
    bounds = Bounds(in_flight_bytes=20_000)
    scene = Scene(bounds=bounds, retry=0)
    scene.sinks[0].latency = 1.0
    names = [f"m{n}" for n in range(100)]
    scene.work.script = {name: ["permanent"] for name in names}
    scene.engine.take(Batch.of([Message(value=b"v", id=name) for name in names]))
    scene.run()
    assert scene.sinks[0].stored_ids() == Counter(names)
    assert len(scene.sinks[0].sends) > 5
    assert scene.sinks[0].most_in_flight <= 1.5 * bounds.in_flight_bytes
    assert scene.engine.report.dead_lettered == 100


def test_rows_that_cannot_become_messages_are_grouped_by_error_and_keep_their_places() -> None:
    scene = Scene()
    told = Permanent("no time", native_code="Invalid")
    scene.engine.take(Batch.of([Message(value=b"v", id="good")]))
    other = Permanent("no day", native_code="Invalid")
    bad = Batch.of([Message(value=b"1", id="a"), Message(value=b"3", id="c"), Message(value=b"4", id="d")])
    scene.engine.reject(Rejected(bad, [told, told, other], "VALUE_CONVERTER"), "some.Encoder")
    bad = Batch.of([Message(value=b"2", id="b")])
    scene.engine.reject(Rejected(bad, [Permanent("no key", native_code="Invalid")], "KEY_CONVERTER"), "some.Encoder")
    scene.run()
    found = {each.id: context for each in scene.sinks[0].stored if (context := dialects.read(each))}
    assert {name: (context.position, context.reason, context.stage) for name, context in found.items()} == {
        "a": (1, "no time", "VALUE_CONVERTER"),
        "c": (2, "no time", "VALUE_CONVERTER"),
        "d": (3, "no day", "VALUE_CONVERTER"),
        "b": (4, "no key", "KEY_CONVERTER"),
    }
    assert len(scene.sinks[0].sends) == 1
    assert scene.engine.report.accounted


def test_a_sink_that_fails_some_letters_of_a_batch_fails_only_those() -> None:
    scene = Scene(sinks=2, retry=0)
    names = [f"m{n}" for n in range(10)]
    scene.work.script = {name: ["permanent"] for name in names}
    scene.sinks[0].script = {name: ["retriable"] for name in names[::2]}
    scene.engine.take(Batch.of([Message(value=b"v", id=name) for name in names]))
    scene.run()
    assert scene.sinks[0].stored_ids() == Counter(names[1::2])
    assert scene.sinks[1].stored_ids() == Counter(names[::2])
    assert [len(ids) for _, ids, _ in scene.sinks[1].sends] == [5]


def test_errors_read_alike_only_with_all_that_they_are_chained_from() -> None:
    def chained(text: str) -> Permanent:
        error = Permanent("never")
        error.__cause__ = ValueError(text)
        return error

    one = Permanent("never")
    assert distinct([one, Permanent("never"), one]) == [one]
    for other in (chained("a"), Permanent("ever"), Retriable("never")):
        assert len(distinct([one, other])) == 2
    assert len(distinct([chained("a"), chained("a")])) == 1
    assert len(distinct([chained("a"), chained("b")])) == 2


messages = st.builds(
    Message,
    value=st.none() | st.binary(max_size=3),
    key=st.none() | st.binary(max_size=3),
    headers=st.lists(st.tuples(st.text(max_size=2), st.none() | st.binary(max_size=2)), max_size=2).map(tuple),
    id=st.none() | st.text(max_size=2),
    destination=st.none() | st.text(max_size=2),
    timestamp_ms=st.none() | st.integers(0, 9),
    extra=st.dictionaries(st.sampled_from("ab"), st.integers(0, 3)),
    identity=st.none() | st.text(min_size=1, max_size=2),
)


@given(st.lists(st.lists(messages, min_size=1, max_size=4), min_size=1, max_size=3), st.data())
def test_rows_are_picked_and_joined_as_they_are(parts: list[list[Message]], data: st.DataObject) -> None:
    whole = [message for part in parts for message in part]
    batch = joined([Batch.of(part) for part in parts])
    chosen = sorted(data.draw(st.sets(st.sampled_from(range(len(whole))), min_size=1)))
    some = picked(batch, chosen)

    def same(found: Message, given: Message) -> None:
        known = {name: value for name, value in found.extra.items() if value is not None}
        assert (replace(found, extra=known), found.identity) == (given, given.identity)

    for found, message in zip(batch.rows(), whole, strict=True):
        same(found, message)
    for found, at in zip(some.rows(), chosen, strict=True):
        same(found, whole[at])
    assert some.nbytes == sum(whole[at].nbytes for at in chosen)
    group = Group(rows=batch, positions=range(len(whole)))
    assert list(group.take(chosen).positions) == chosen


def test_resent_rows_of_many_batches_go_in_one() -> None:
    scene = Scene(retry=1, backoff_policy="linear", backoff_delay=timedelta(seconds=1))
    with mock.patch.object(send_queue, "RESEND", 7):
        for n in range(5):
            names = [f"m{n}-{row}" for row in range(2)]
            scene.work.script |= {name: ["retriable"] for name in names}
            scene.engine.take(Batch.of([Message(value=b"v", id=name) for name in names]))
        scene.run()
    assert [len(ids) for _, ids, _ in scene.work.sends[5:]] == [7, 3]


def fail(kind: type[Exception], *args: object) -> None:
    raise kind(*args)


def raised(kind: type[Exception], *args: object, during: type[Exception] | None = None) -> BaseException:
    """Return an error that was raised here, perhaps while another was handled."""
    try:
        if during is None:
            fail(kind, *args)
        else:
            try:
                fail(during, *args)
            except during:
                fail(kind, *args)
    except kind as error:
        return error
    raise AssertionError


def chained(error: BaseException, cause: BaseException | None) -> BaseException:
    error.__cause__ = cause
    return error


def misspelt(error: BaseException, name: str | None) -> BaseException:
    """Return an error for which the standard library suggests another name."""
    assert isinstance(error, NameError)
    if name is not None:
        error.name = name
    return error


def noted(error: BaseException) -> BaseException:
    error.add_note("a note")
    return error


class _Mute(Exception):
    def __str__(self) -> str:
        raise ValueError


def test_errors_of_many_rows_read_as_the_standard_library_shows_each() -> None:
    ring = Permanent("a")
    ring.__cause__ = ValueError("b")
    ring.__cause__.__cause__ = ring
    errors = [
        *(Permanent(text) for text in ("row 1", "row 2", "", ": x", "two\nlines", "\ud800")),
        *(raised(Permanent, text) for text in ("row 1", "row 2", "", "row 3")),
        *(raised(Permanent, text, during=ValueError) for text in ("row 1", "row 2")),
        *(chained(Permanent(text), raised(KeyError, text)) for text in ("row 1", "row 2", "")),
        *(chained(raised(Permanent, text), raised(OSError, 1, text)) for text in ("row 1", "row 2")),
        *(chained(raised(Permanent, "x"), raised(kind, "y")) for kind in (NameError, ImportError, _Mute) * 2),
        *(chained(Permanent("x"), each) for each in (ExceptionGroup("g", [ValueError("x")]), SyntaxError("y"))),
        *(noted(raised(Permanent, text)) for text in ("row 1", "row 2")),
        *(chained(Permanent("x"), misspelt(raised(NameError, "y"), name)) for name in (None, "kimd")),
        raised(Permanent, "row 4"),
        chained(Permanent("x"), noted(ValueError("y"))),
        ring,
    ]
    forms: dict[object, str] = {}
    found = [letters._formatted(error, forms) for error in errors]
    assert found == ["".join(traceback.format_exception(error)) for error in errors]
