"""Order by key and rate, one statement a test."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted import FakeClock, ScriptedBroker, ScriptedSender

from redelivery.contract.broker import Support
from redelivery.contract.message import Batch, Message
from redelivery.contract.spec import DeliverySpec, Sink
from redelivery.errors import Ambiguous, Permanent, Retriable
from redelivery.formats import dialects
from redelivery.policy.decisions import for_sink
from redelivery.policy.rate import RateLimit
from redelivery.sending import Bounds, Engine, Flow, Origin, Rejected, SendQueue, send_queue


class FlowSetup:
    """An engine that keeps the order of keys, over a broker that does (native) or does not."""

    def __init__(self, *, native: bool = False, bounds: Bounds | None = None, flow: Flow | None = None, **spec: Any):
        self.clock = FakeClock()
        self.work, self.sink = ScriptedBroker(self.clock), ScriptedBroker(self.clock)
        object.__setattr__(self.work.capabilities, "order", Support.NATIVE if native else Support.NONE)
        self.spec = DeliverySpec(dead_letter_sink=(Sink(uri="scripted:sink"),), **{"retry": 3, **spec})
        bounds = bounds or Bounds()
        send_queues = [
            SendQueue("scripted:work", self.work, self.spec, bounds, self.clock),
            SendQueue("scripted:sink", self.sink, for_sink(self.spec), bounds, self.clock),
        ]
        self.engine = Engine(
            send_queues, self.spec, Origin(run="r"), self.clock, lambda: 0.0, flow or Flow(ordering="key")
        )

    def take(self, *rows: tuple[str, bytes | None]) -> None:
        self.engine.take(Batch.of([Message(value=b"v", id=name, key=key) for name, key in rows]))

    def stored(self) -> list[str]:
        return [message.id or "" for message in self.work.stored]


def test_where_the_broker_keeps_no_order_one_row_a_key_is_unsettled_at_a_time() -> None:
    setup = FlowSetup()
    setup.take(("a1", b"a"), ("b1", b"b"), ("a2", b"a"), ("n1", None), ("a3", b"a"), ("n2", None))
    setup.engine.drain()
    assert [ids for _, ids, _ in setup.work.sends] == [["a1", "b1", "n1", "n2"], ["a2"], ["a3"]]


def test_where_the_broker_keeps_order_a_good_batch_goes_as_it_is() -> None:
    setup = FlowSetup(native=True)
    setup.take(("a1", b"a"), ("a2", b"a"), ("a3", b"a"))
    setup.engine.drain()
    assert [ids for _, ids, _ in setup.work.sends] == [["a1", "a2", "a3"]]


@pytest.mark.parametrize("native", [True, False])
def test_rows_behind_a_failed_one_of_their_key_wait_and_others_go_on(native: bool) -> None:
    setup = FlowSetup(native=native)
    setup.work.script = {"a1": ["retriable"]}
    setup.take(("a1", b"a"), ("b1", b"b"), ("a2", b"a"))
    setup.engine.turn(0.0)
    setup.take(("a3", b"a"), ("b2", b"b"))
    setup.engine.turn(0.0)
    assert setup.stored() == ["b1", "b2"]
    setup.engine.drain()
    assert setup.stored() == ["b1", "b2", "a1", "a2", "a3"]


@pytest.mark.parametrize("native", [True, False])
def test_the_letter_of_a_row_that_waited_behind_its_key_says_when_it_failed_first(native: bool) -> None:
    setup = FlowSetup(native=native, retry=1, backoff_policy="linear", backoff_delay=timedelta(seconds=7))
    setup.work.script = {"a1": ["retriable"], "a2": ["retriable", "retriable"]}
    setup.take(("a1", b"a"), ("a2", b"a"))
    setup.engine.drain()
    [letter] = setup.sink.stored
    context = dialects.read(letter)
    assert context is not None
    assert (letter.id, context.first_failure_ms, context.last_failure_ms) == ("a2", 1_007_000, 1_014_000)


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("park", [True, False])
def test_a_letter_that_its_sink_did_not_send_goes_to_the_sink_again_and_not_behind_its_key(
    native: bool, park: bool
) -> None:
    setup = FlowSetup(native=native, flow=Flow(ordering="key", park_successors=park))
    setup.work.script = {"a1": ["permanent"], "b1": ["permanent"]}
    setup.sink.script = {"b1": ["unsent"], "a2": ["unsent"]}
    setup.take(("a1", b"a"), ("b1", b"b"), ("a2", b"a"), ("b2", b"b"))
    setup.engine.drain()
    assert setup.stored() == ([] if park else ["a2", "b2"])
    assert setup.sink.stored_ids() == dict.fromkeys(["a1", "a2", "b1", "b2"] if park else ["a1", "b1"], 1)
    assert setup.engine.report.record_errors == setup.engine.report.dead_lettered == (4 if park else 2)
    assert setup.engine.report.accounted


@pytest.mark.parametrize("native", [True, False])
def test_waiting_behind_a_key_spends_no_budget(native: bool) -> None:
    setup = FlowSetup(native=native, retry=1)
    setup.work.script = {"a1": ["retriable"], "a2": ["retriable"], "a3": ["retriable"]}
    setup.take(("a1", b"a"), ("a2", b"a"), ("a3", b"a"))
    setup.engine.drain()
    assert setup.stored() == ["a1", "a2", "a3"]
    assert setup.engine.report.dead_lettered == 0


@pytest.mark.parametrize("native", [True, False])
def test_successors_of_a_dead_letter_go_on(native: bool) -> None:
    setup = FlowSetup(native=native)
    setup.work.script = {"a1": ["permanent"]}
    setup.take(("a1", b"a"), ("a2", b"a"))
    setup.engine.drain()
    setup.take(("a3", b"a"))
    setup.engine.drain()
    assert setup.stored() == ["a2", "a3"]
    assert setup.sink.stored_ids() == {"a1": 1}


@pytest.mark.parametrize("native", [True, False])
def test_or_are_parked_with_it_by_option(native: bool) -> None:
    setup = FlowSetup(native=native, flow=Flow(ordering="key", park_successors=True))
    setup.work.script = {"a1": ["permanent"]}
    setup.take(("a1", b"a"), ("a2", b"a"), ("b1", b"b"))
    setup.engine.drain()
    setup.take(("a3", b"a"), ("b2", b"b"))
    setup.engine.drain()
    assert setup.stored() == ["b1", "b2"]
    assert [message.id for message in setup.sink.stored] == ["a1", "a2", "a3"]
    context = dialects.read(setup.sink.stored[1])
    assert context is not None
    assert (context.code, context.attempts) == ("PARKED", 0)
    assert setup.engine.report.accounted


@pytest.mark.parametrize("native", [True, False])
def test_what_came_before_a_row_that_is_no_message_is_not_parked_behind_it(native: bool) -> None:
    setup = FlowSetup(native=native, flow=Flow(ordering="key", park_successors=True))
    setup.work.script = {"a1": ["retriable"]}
    setup.take(("a1", b"a"), ("a2", b"a"))
    setup.engine.turn(0.0)
    bad = Batch.of([Message(value=b"", id="a3", key=b"a")])
    setup.engine.reject(Rejected(bad, [Permanent("no message", native_code="bad")], "VALUE_CONVERTER"))
    setup.take(("a4", b"a"))
    setup.engine.drain()
    assert setup.stored() == ["a1", "a2"]
    assert sorted(message.id or "" for message in setup.sink.stored) == ["a3", "a4"]
    positions = {message.id: context.position for message in setup.sink.stored if (context := dialects.read(message))}
    assert positions == {"a3": 2, "a4": 3}


def test_a_refused_batch_is_never_overtaken_by_the_one_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = FlowSetup(native=True, bounds=Bounds(waiting_records=10_000))
    names = [f"{n:05}" for n in range(1501)]
    setup.take(*((name, b"k") for name in names))
    setup.work.cut = Ambiguous("connection lost")
    monkeypatch.setattr(send_queue, "RESEND", 1000)
    setup.engine.turn(0.0)
    send, refusals = ScriptedSender.send, [Retriable("down for a moment")]

    def refuse_once(sender: ScriptedSender, batch: Batch, *, deadline: float) -> None:
        if refusals:
            raise refusals.pop()
        send(sender, batch, deadline=deadline)

    monkeypatch.setattr(ScriptedSender, "send", refuse_once)
    setup.engine.drain()
    assert setup.stored() == names


def test_a_successor_goes_on_only_when_the_dead_one_is_confirmed_by_its_sink() -> None:
    setup = FlowSetup()
    setup.sink.latency = 5.0
    setup.work.script = {"a1": ["permanent"]}
    setup.take(("a1", b"a"), ("a2", b"a"))
    for _ in range(3):
        setup.engine.turn(0.0)
    assert setup.stored() == []
    setup.engine.drain()
    assert setup.stored() == ["a2"]


def test_past_the_bound_of_what_waits_behind_keys_no_new_rows_are_taken() -> None:
    setup = FlowSetup(bounds=Bounds(waiting_records=2))
    setup.work.latency = 1.0
    setup.take(("a1", b"a"), ("a2", b"a"), ("a3", b"a"))
    assert not setup.engine.can_take(Batch.of([Message(value=b"")]))
    setup.engine.drain()
    assert setup.engine.can_take(Batch.of([Message(value=b"")]))


def test_a_rate_is_kept_and_a_burst_paid_off() -> None:
    setup = FlowSetup(flow=Flow(rows_per_second=10))
    began = setup.clock.now
    for n in range(10):
        while not setup.engine.can_take(batch := Batch.of([Message(value=b"", id=f"{n}-{i}") for i in range(5)])):
            setup.clock.now = setup.engine.next_due or setup.clock.now
        setup.engine.take(batch)
        setup.engine.turn(0.0)
    assert setup.clock.now - began == pytest.approx(9 * 5 / 10)


@given(st.floats(0.1, 1e6), st.lists(st.tuples(st.integers(1, 1000), st.floats(0, 10)), min_size=1, max_size=50))
def test_over_any_span_no_more_is_sent_than_the_rate_and_one_batch(
    rate: float, batches: list[tuple[int, float]]
) -> None:
    limit, now, sent, began = RateLimit(rate), 0.0, 0, 0.0
    for rows, pause in batches:
        now = max(now + pause, limit.next(now + pause))
        assert sent <= (now - began) * rate + 1e-6 * sent + 1e-6
        limit.take(rows, now)
        sent += rows


def test_without_a_rate_nothing_waits() -> None:
    limit = RateLimit(None)
    limit.take(10**9, 5.0)
    assert limit.next(5.0) == 5.0
    assert limit.piece is None
    assert RateLimit(5).piece == 1
    assert RateLimit(10_000).piece == 1000
