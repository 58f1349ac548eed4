"""The sending engine, one statement a test, on a clock that the test moves."""

from __future__ import annotations

import json
import logging
from datetime import timedelta
from typing import Any

import pytest
from scripted import FakeClock, ScriptedBroker, ScriptedSender

from redelivery.base.secrets import LONGEST, guard_loggers
from redelivery.contract.broker import Failure, Limits, Settled
from redelivery.contract.context import ErrorContext
from redelivery.contract.message import Batch, Message
from redelivery.contract.spec import FOREVER, DeliverySpec, Sink
from redelivery.errors import (
    Ambiguous,
    BrokerError,
    ContractViolation,
    DeliveryFailed,
    Fatal,
    NotSent,
    Permanent,
    Retriable,
    ToleranceExceeded,
)
from redelivery.formats import dialects
from redelivery.policy.decisions import for_sink
from redelivery.sending import Bounds, Engine, Origin, Rejected, SendQueue
from redelivery.sending.ordering import KeyOrder
from redelivery.sending.report import DeliveryReport

SECOND = timedelta(seconds=1)
CONFIGS = {"url": "scripted:work", "sasl.password": "hunter2"}
LINEAR: dict[str, Any] = {"backoff_policy": "linear", "backoff_delay": SECOND}


class EngineSetup:
    """An engine over scripted brokers: one for work, and one a sink."""

    def __init__(self, sinks: int = 1, bounds: Bounds | None = None, **spec: Any) -> None:
        self.clock = FakeClock()
        self.work = ScriptedBroker(self.clock)
        self.sinks = [ScriptedBroker(self.clock) for _ in range(sinks)]
        self.spec = DeliverySpec(dead_letter_sink=tuple(Sink(uri=f"scripted:{n}") for n in range(sinks)), **spec)
        bounds = bounds or Bounds()
        self.send_queues = [SendQueue("scripted:work", self.work, self.spec, bounds, self.clock)]
        self.send_queues += [
            SendQueue(f"scripted:{n}", sink, for_sink(self.spec), bounds, self.clock)
            for n, sink in enumerate(self.sinks)
        ]
        self.engine = Engine(
            self.send_queues, self.spec, Origin(run="run-1", partition=3, configs=CONFIGS), self.clock, lambda: 0.0
        )

    def take(self, *ids: str, **fields: Any) -> None:
        self.engine.take(Batch.of([Message(value=b"body", id=name, **fields) for name in ids]))

    def run(self) -> None:
        for _ in range(1000):
            self.engine.turn(0.1)
            if self.engine.idle:
                return
            if not self.engine.busy and self.engine.next_due is not None:
                self.clock.now = max(self.clock.now, self.engine.next_due)
        raise AssertionError("the engine never came to an end")


def test_a_good_batch_costs_one_send_and_no_record() -> None:
    setup = EngineSetup()
    setup.take("a", "b", "c")
    setup.run()
    assert [ids for _, ids, _ in setup.work.sends] == [["a", "b", "c"]]
    assert setup.engine.report.delivered == 3
    assert setup.engine.report.metrics() == dict.fromkeys(setup.engine.report.metrics(), 0)


def test_only_the_failed_rows_of_a_batch_are_sent_again() -> None:
    setup = EngineSetup(retry=3, **LINEAR)
    setup.work.script = {"b": ["retriable"], "c": ["lost", "retriable"]}
    setup.take("a", "b", "c", "d")
    setup.run()
    assert [(at - 1000, ids) for at, ids, _ in setup.work.sends] == [
        (0, ["a", "b", "c", "d"]),
        (1, ["b", "c"]),
        (3, ["c"]),
    ]
    assert setup.engine.report.retried == 2
    assert setup.engine.report.retries == 3


def test_a_row_that_no_time_was_left_for_uses_up_no_attempt() -> None:
    setup = EngineSetup(retry=0)
    setup.work.latency = 0.5
    setup.work.script = {"b": ["unsent"], "c": ["unsent", "unsent"], "d": ["unsent", "unsent", "permanent"]}
    setup.take("a", "b", "c", "d")
    setup.run()
    assert [ids for _, ids, _ in setup.work.sends] == [["a", "b", "c", "d"], ["b", "c", "d"], ["c", "d"]]
    assert setup.work.stored_ids() == {"a": 1, "b": 1, "c": 1}
    assert (setup.engine.report.retries, setup.engine.report.record_failures) == (0, 1)
    letter = dialects.read(setup.sinks[0].stored[0])
    assert letter is not None
    assert (letter.message_id, letter.attempts) == ("d", 1)
    assert letter.first_failure_ms == letter.last_failure_ms == 1_001_500, "it failed when it was tried"


def test_a_letter_that_no_time_was_left_for_is_sent_to_its_sink_again() -> None:
    setup = EngineSetup(retry=0)
    setup.work.script = {"a": ["permanent"], "b": ["permanent"]}
    setup.sinks[0].script = {"b": ["unsent"]}
    setup.take("a", "b")
    setup.run()
    assert setup.sinks[0].stored_ids() == {"a": 1, "b": 1}
    assert setup.engine.report.accounted


def test_rows_that_are_never_sent_where_nothing_answers_are_given_up() -> None:
    """Otherwise a plugin that takes an outage for a lack of time would be asked forever."""
    setup = EngineSetup(retry=2, **LINEAR)
    setup.work.script = {"a": ["unsent"] * 2000, "b": ["unsent"] * 2000}
    setup.take("a", "b")
    setup.run()
    assert setup.sinks[0].stored_ids() == {"a": 1, "b": 1}
    assert len(setup.work.sends) == 3


def test_a_waiting_record_never_holds_up_its_neighbours() -> None:
    setup = EngineSetup(retry=1, backoff_policy="linear", backoff_delay=timedelta(hours=1))
    setup.work.script = {"slow": ["retriable"]}
    setup.take("slow")
    setup.engine.turn(0.0)
    setup.take("next")
    setup.engine.turn(0.0)
    assert setup.work.stored_ids()["next"] == 1
    assert setup.clock.now < 1001


def test_the_culprit_of_a_failed_batch_is_found_and_its_neighbours_are_delivered() -> None:
    setup = EngineSetup(retry=0)
    setup.work.script = {"big": ["culprit"]}
    setup.take("a", "big", "b")
    setup.run()
    assert setup.work.stored_ids() == {"a": 1, "b": 1}
    assert setup.sinks[0].stored_ids() == {"big": 1}
    assert setup.work.sends[1][2], "it is sent again with isolate=True"
    letter = dialects.read(setup.sinks[0].stored[0])
    assert letter is not None
    assert letter.attempts == 1, "looking for the culprit does not count as a retry"


def test_a_dead_letter_keeps_the_original_and_says_why() -> None:
    setup = EngineSetup(retry=2, **LINEAR)
    setup.work.script = {"x": ["retriable"] * 9}
    setup.take("x", key=b"k\xff", headers=(("mine", b"\x00\xff"), ("mine", b"2")))
    setup.run()
    (letter,) = setup.sinks[0].stored
    assert (letter.value, letter.key, letter.id) == (b"body", b"k\xff", "x")
    assert letter.headers[:2] == (("mine", b"\x00\xff"), ("mine", b"2"))
    context = dialects.read(letter)
    assert context is not None
    assert (context.kind, context.native_code, context.attempts, context.attempts_total) == ("retriable", "Busy", 3, 3)
    assert (context.run, context.partition, context.destination) == ("run-1", 3, "scripted:work")
    assert (context.last_failure_ms or 0) - (context.first_failure_ms or 0) == 3000
    assert setup.engine.report.reasons == {"Busy": 1}


def test_a_row_counts_as_handled_only_when_a_sink_has_confirmed_it() -> None:
    setup = EngineSetup(retry=0)
    setup.sinks[0].latency = 5.0
    setup.work.script = {"x": ["permanent"]}
    setup.take("x")
    setup.engine.turn(0.0)
    setup.engine.turn(0.0)
    assert setup.sinks[0].sends
    assert setup.engine.report.dead_lettered == 0
    assert not setup.engine.idle
    setup.run()
    assert setup.engine.report.dead_lettered == 1


def test_sinks_are_tried_in_turn_each_with_a_budget_of_its_own() -> None:
    setup = EngineSetup(sinks=2, retry=1, **LINEAR)
    setup.work.script = {"x": ["permanent"]}
    setup.sinks[0].script = {"x": ["retriable"] * 9}
    setup.take("x")
    setup.run()
    assert setup.sinks[0].attempts["x"] == 2
    assert setup.sinks[1].stored_ids() == {"x": 1}
    assert setup.engine.report.metrics()["deadletterqueue-produce-requests"] == 3
    assert setup.engine.report.metrics()["deadletterqueue-produce-failures"] == 2


def test_a_failing_sink_surfaces_the_primary_error() -> None:
    setup = EngineSetup(sinks=2)
    setup.work.script = {"x": ["permanent"]}
    for sink in setup.sinks:
        sink.script = {"x": ["fatal"]}
    setup.take("x")
    with pytest.raises(DeliveryFailed, match=r"^record 'x' could not be delivered .*never .*no access") as failed:
        setup.run()
    assert isinstance(failed.value.__cause__, Permanent)
    assert len(failed.value.__notes__) == 2
    assert setup.engine.report.dead_lettered == 0


def test_a_sink_that_breaks_while_collecting_never_hides_the_primary_error() -> None:
    setup = EngineSetup(sinks=2)
    setup.work.script = {"x": ["permanent"]}
    setup.sinks[0].latency = 1.0
    setup.sinks[0].cut = Fatal("credentials revoked")
    setup.take("x")
    setup.run()
    assert setup.sinks[1].stored_ids() == {"x": 1}
    assert setup.engine.report.dead_lettered == 1


def test_a_sink_that_can_never_work_is_not_asked_again() -> None:
    setup = EngineSetup(sinks=2)
    setup.work.script = {"x": ["permanent"], "y": ["permanent"]}
    setup.sinks[0].on_open = Fatal("no access")
    setup.take("x")
    setup.run()
    setup.take("y")
    setup.sinks[0].on_open = None
    setup.run()
    assert setup.sinks[1].stored_ids() == {"x": 1, "y": 1}


def test_a_fatal_error_fails_at_once_and_dead_letters_nothing() -> None:
    setup = EngineSetup(retry=9)
    setup.work.refuse = Fatal("denied")
    setup.take("a", "b")
    with pytest.raises(Fatal, match="denied"):
        setup.run()
    assert setup.sinks[0].stored == []


def test_without_tolerance_the_first_record_that_fails_for_good_fails_the_job() -> None:
    setup = EngineSetup(sinks=0)
    setup.work.script = {"b": ["permanent"]}
    setup.take("a", "b")
    with pytest.raises(DeliveryFailed, match=r"'b' could not be delivered to scripted:work: never"):
        setup.run()


def test_tolerance_none_fails_the_job_even_where_a_sink_is_named() -> None:
    setup = EngineSetup(tolerance="none")
    setup.work.script = {"b": ["permanent"]}
    setup.take("b")
    with pytest.raises(DeliveryFailed, match=r"errors\.tolerance is 'none'"):
        setup.run()


def test_allow_skip_counts_and_logs_what_it_skips(caplog: pytest.LogCaptureFixture) -> None:
    setup = EngineSetup(sinks=0, tolerance="all", allow_skip=True)
    setup.work.script = {"b": ["permanent"]}
    setup.take("a", "b")
    with caplog.at_level(logging.WARNING):
        setup.run()
    assert (setup.engine.report.skipped, setup.engine.report.reasons) == (1, {"Poison": 1})
    assert setup.engine.report.accounted
    assert "skipped (allowSkip): record 'b'" in caplog.text


def test_an_outage_does_not_flood_the_sink() -> None:
    setup = EngineSetup(tolerance_limit=5)
    setup.work.refuse = Retriable("down")
    setup.take(*(f"m{n}" for n in range(100)))
    with pytest.raises(ToleranceExceeded, match=r"errors\.tolerance\.limit of 5; the last one: record 'm5'"):
        setup.run()
    assert len(setup.sinks[0].stored) <= 5


def test_a_row_that_cannot_become_a_message_goes_to_the_sink_with_no_attempts() -> None:
    setup = EngineSetup(retry=9)
    error = Permanent("no time", native_code="MissingTime")
    bad = Batch.of([Message(value=b"{}", id="row-1")])
    setup.engine.reject(Rejected(bad, [error], "HEADER_CONVERTER"), "some.Encoder")
    setup.run()
    context = dialects.read(setup.sinks[0].stored[0])
    assert context is not None
    assert (context.native_code, context.attempts, context.stage) == ("MissingTime", 0, "HEADER_CONVERTER")
    assert context.component == "some.Encoder"
    assert setup.work.sends == []
    assert setup.engine.report.accounted


def test_a_lost_connection_makes_everything_in_flight_ambiguous_under_the_same_ids() -> None:
    setup = EngineSetup(retry=1, **LINEAR)
    setup.work.latency = 1.0
    setup.take("a", "b")
    setup.take("c")
    setup.work.cut = Ambiguous("connection lost")
    setup.run()
    assert setup.work.stored_ids() == {"a": 1, "b": 1, "c": 1}
    assert setup.engine.report.record_failures == 3


def test_more_than_the_bound_is_never_in_flight_but_one_batch_always_is() -> None:
    setup = EngineSetup(bounds=Bounds(in_flight_bytes=150))
    setup.work.latency = 1.0
    batch = Batch.of([Message(value=b"v" * 36)])
    assert setup.engine.can_take(batch)
    setup.engine.take(batch)
    assert not setup.engine.can_take(batch)
    huge = Batch.of([Message(value=b"v" * 10_000)])
    setup.run()
    assert setup.engine.can_take(huge)


def test_a_broker_that_settles_at_quiescence_is_drained_at_the_bound() -> None:
    setup = EngineSetup(bounds=Bounds(in_flight_bytes=250))
    object.__setattr__(setup.work.capabilities, "settles", "quiescence")
    batch = Batch.of([Message(value=b"v" * 36)])
    setup.work.latency = 1.0
    setup.engine.take(batch)
    setup.clock.now += 0.5
    setup.engine.take(batch)
    assert not setup.engine.can_take(batch)
    setup.clock.now += 0.6
    setup.engine.turn(0.0)
    assert setup.engine.busy
    assert not setup.engine.can_take(batch), "one batch is settled, but the queue has not emptied"
    setup.run()
    assert setup.engine.can_take(batch)


def test_past_the_bound_of_what_waits_no_new_rows_are_taken() -> None:
    setup = EngineSetup(bounds=Bounds(waiting_records=2), retry_timeout=FOREVER)
    setup.work.script = {"a": ["retriable"], "b": ["retriable"]}
    setup.take("a", "b")
    setup.engine.turn(0.0)
    assert not setup.engine.can_take(Batch.of([Message(value=b"")]))
    setup.run()
    assert setup.engine.can_take(Batch.of([Message(value=b"")]))


@pytest.mark.parametrize(
    ("settled", "said"),
    [
        ([Settled(batch=99)], "not in flight"),
        ([Settled(batch=1), Settled(batch=1)], r"not in flight \(settled twice\?\)"),
        ([Settled(batch=1, failures=[Failure(2, Retriable("r"))])], "blamed row 2 of 2"),
        ([Settled(batch=1, failures=[Failure(-1, Retriable("r"))])], "blamed row -1 of 2"),
        ([Settled(batch=1, failures=[Failure(0, Retriable("r"))] * 2)], "twice"),
        ([Settled(batch=1, error=OSError("raw"))], "OSError, which is not a BrokerError"),  # type: ignore[arg-type]
    ],
)
def test_a_plugin_that_settles_wrongly_fails_the_job_by_name(settled: list[Settled], said: str) -> None:
    setup = EngineSetup()
    setup.take("a", "b")
    setup.send_queues[0]._sender.collect = lambda _wait: settled  # type: ignore[union-attr,method-assign]
    with pytest.raises(ContractViolation, match=f"plugin 'scripted' broke the contract.*{said}"):
        setup.engine.turn(0.0)


def test_a_plugin_that_raises_its_clients_own_error_fails_the_job_by_name() -> None:
    setup = EngineSetup()
    setup.work.refuse = OSError("raw")  # type: ignore[assignment]
    with pytest.raises(ContractViolation, match="OSError, not a BrokerError"):
        setup.take("a")


def test_a_batch_that_is_never_settled_fails_the_job() -> None:
    setup = EngineSetup(timeout=SECOND)
    setup.work.latency = 1e9
    setup.take("a")
    setup.clock.now += 20
    with pytest.raises(ContractViolation, match=r"batches \[1\] were not settled by their deadline"):
        setup.engine.turn(0.0)


def test_a_letter_says_that_an_earlier_attempt_was_ambiguous_whatever_ended_it() -> None:
    """The message may lie at its destination; "it was not sent" would be wrong."""
    setup = EngineSetup(retry=2, **LINEAR)
    setup.work.script = {"a": ["stored", "lost", "retriable"], "b": ["retriable"] * 3, "c": ["lost"]}
    setup.take("a", "b", "c")
    setup.run()
    said = {message.id: dialects.read(message) for message in setup.sinks[0].stored}
    assert {name: (context.kind, context.maybe_delivered) for name, context in said.items() if context} == {
        "a": ("retriable", True),
        "b": ("retriable", False),
    }
    assert setup.work.stored_ids()["a"] == 1
    report = setup.engine.report
    assert report.ambiguous == sum(setup.work.ambiguous.values()) == 3
    assert DeliveryReport.from_dict(report.to_dict()) == report
    assert DeliveryReport.total([report, report]).ambiguous == 6


def test_an_ambiguous_attempt_at_a_sink_says_nothing_of_the_destination() -> None:
    setup = EngineSetup(retry=1, **LINEAR)
    setup.work.script = {"a": ["permanent"]}
    setup.sinks[0].script = {"a": ["stored"]}
    setup.take("a")
    setup.run()
    assert setup.engine.report.ambiguous == 0
    contexts = [dialects.read(message) for message in setup.sinks[0].stored]
    assert [context and context.maybe_delivered for context in contexts] == [False, False]


def test_what_may_have_been_delivered_in_an_earlier_life_still_may() -> None:
    setup = EngineSetup()
    first = ErrorContext(kind="ambiguous", maybe_delivered=True, attempts=1)
    letter = dialects.attach(Message(value=b"v", id="a"), first, dialect="json", limits=Limits(), prefix=None)
    setup.work.script = {"a": ["permanent"]}
    setup.engine.take(Batch.of([dialects.redriven(letter)]))
    setup.run()
    context = dialects.read(setup.sinks[0].stored[0])
    assert context is not None
    assert (context.kind, context.maybe_delivered, context.hops) == ("permanent", True, 1)


def test_the_exception_is_what_was_really_thrown_and_the_class_what_threw_it() -> None:
    """Connect's headers name classes: not the class of error that ours was sorted into."""
    setup = EngineSetup()
    refused = Permanent("never", native_code="Poison")
    refused.__cause__ = json.JSONDecodeError("no", "", 0)
    setup.work.refuse = refused
    setup.take("a")
    setup.run()
    context = dialects.read(setup.sinks[0].stored[0])
    assert context is not None
    assert (context.exception, context.component) == ("json.decoder.JSONDecodeError", "scripted.ScriptedSender")
    assert (context.broker, context.kind, context.stage) == ("scripted", "permanent", "TASK_PUT")
    setup = EngineSetup()
    setup.work.script = {"b": ["permanent"]}
    setup.take("b")
    setup.run()
    context = dialects.read(setup.sinks[0].stored[0])
    assert context is not None
    assert context.exception == "redelivery.errors.Permanent"


EVENT = Message(
    value=b'{"specversion":"1.0","id":"1","source":"/s","type":"t"}',
    headers=(("content-type", b"application/cloudevents+json"),),
    id="a",
)


def test_an_event_is_dead_lettered_with_knative_s_attributes_unless_other_dialects_are_chosen() -> None:
    for asked, has in ((None, True), (("json",), False), (("knative",), True)):
        setup = EngineSetup(dead_letter_dialects=asked)
        setup.work.script = {"a": ["permanent"]}
        setup.engine.take(Batch.of([EVENT]))
        setup.run()
        (letter,) = setup.sinks[0].stored
        body = json.loads(letter.value or b"")
        assert ("knativeerrorcode" in body, "deadletterretry" in body) == (has, has)
        if has:
            assert (body["knativeerrordest"], body["knativeerrorcode"]) == ("scripted:work", "Poison")
            assert (body["deadletterreason"], body["deadletterretry"]) == ("never", 1)
            assert body["deadlettersubscriberuri"] == "scripted:work"
        assert dialects.strip(letter).value == EVENT.value


def logged(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [json.loads(each.getMessage()) for each in caplog.records if each.getMessage().startswith("{")]


def test_an_enabled_error_log_has_one_object_a_failure_with_its_coordinates(caplog: pytest.LogCaptureFixture) -> None:
    setup = EngineSetup(retry=2, log_enable=True, **LINEAR)
    setup.work.script = {"b": ["retriable"] * 3, "c": ["permanent"]}
    setup.take("a", "b", "c")
    setup.run()
    found = {form["redelivery"]["message_id"]: form for form in logged(caplog)}
    assert set(found) == {"b", "c"}
    form = found["b"]
    assert form["fate"] == "dead-lettered to scripted:0"
    assert form["stages"][form["index"]] == {"type": "TASK_PUT", "class": "scripted.ScriptedSender"}
    assert (form["attempt"], form["task_id"], form["duration_ms"]) == (2, "run-1-3", 3000)
    assert form["exception"].endswith("Retriable: try again\n")
    assert form["record"] == {
        "timestamp_type": "NO_TIMESTAMP_TYPE",
        "source_partition": {"run": "run-1", "partition": "3"},
        "source_offset": {"position": "1"},
    }
    ours = form["redelivery"]
    assert (ours["stage"], ours["exception"], ours["attempts"]) == ("TASK_PUT", "redelivery.errors.Retriable", 3)
    assert (ours["partition"], ours["position"], ours["destination"]) == (3, 1, "scripted:work")


def test_the_error_log_of_a_large_record_is_whole(caplog: pytest.LogCaptureFixture) -> None:
    """However long a text may be that is searched for secrets: its parts have been."""
    guard_loggers("redelivery")
    setup = EngineSetup(log_enable=True, log_include_messages=True)
    setup.work.script = {"a": ["permanent"]}
    setup.engine.take(Batch.of([Message(value=b"v" * LONGEST, id="a")]))
    setup.run()
    (form,) = logged(caplog)
    assert len(form["record"]["value"]["object"]) > LONGEST


def test_the_error_log_holds_the_message_and_the_options_only_where_asked_and_redacted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for asked in (False, True):
        caplog.clear()
        setup = EngineSetup(log_enable=True, log_include_messages=asked, log_include_configs=asked)
        setup.work.script = {"b": ["permanent"]}
        setup.take("b")
        setup.run()
        (form,) = logged(caplog)
        assert ("value" in form["record"]) is asked
        assert form["stages"][form["index"]].get("config") == (
            {"url": "scripted:work", "sasl.password": "***"} if asked else None
        )
        assert "hunter2" not in caplog.text
    assert form["record"]["value"] == {"schema": "BYTES", "object": "Ym9keQ=="}


def test_a_failure_that_fails_the_job_is_logged_too(caplog: pytest.LogCaptureFixture) -> None:
    setup = EngineSetup(sinks=0, log_enable=True)
    setup.work.script = {"a": ["permanent"]}
    setup.take("a")
    with pytest.raises(DeliveryFailed):
        setup.run()
    assert [form["fate"] for form in logged(caplog)] == ["the job fails: errors.tolerance is 'none'"]
    assert setup.engine.report.errors_logged == 1


def test_only_what_a_log_or_a_sink_has_counts_as_logged() -> None:
    for enable, sinks, count in ((None, 0, 5), (False, 0, 0), (True, 0, 8), (False, 1, 8), (True, 1, 8)):
        setup = EngineSetup(sinks=sinks, tolerance="all", allow_skip=True, log_enable=enable)
        names = [f"m{n}" for n in range(8)]
        setup.work.script = {name: ["permanent"] for name in names}
        for name in names:
            setup.take(name)
        setup.run()
        assert setup.engine.report.metrics()["total-errors-logged"] == count


def test_rows_that_failed_alike_are_one_line_for_people_and_one_object_each_in_an_enabled_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    names = [f"m{n}" for n in range(8)]
    for enable, lines in ((None, 1), (True, 8)):
        caplog.clear()
        setup = EngineSetup(sinks=0, tolerance="all", allow_skip=True, log_enable=enable)
        setup.work.script = {name: ["permanent"] for name in names}
        setup.take(*names)
        setup.run()
        assert len(caplog.records) == lines
        assert setup.engine.report.errors_logged == 8
        if enable:
            assert {form["redelivery"]["message_id"] for form in logged(caplog)} == set(names)
        else:
            assert "record 'm0'" in caplog.text
            assert "and 7 more with it" in caplog.text


def test_an_event_is_reposted_under_the_sinks_or_the_specs_type_and_its_own_comes_back() -> None:
    for of_spec, of_sink, found in (("dead", None, "dead"), ("dead", "own", "own"), (None, "own", "own")):
        setup = EngineSetup(dead_letter_type=of_spec)
        setup.send_queues[1].rename_type = of_sink
        setup.work.script = {"a": ["permanent"]}
        setup.engine.take(Batch.of([EVENT]))
        setup.run()
        (letter,) = setup.sinks[0].stored
        assert json.loads(letter.value or b"")["type"] == found
        assert dialects.redriven(letter).value == EVENT.value


@pytest.mark.parametrize(("ordered", "kind"), [(True, NotSent), (False, Retriable)])
def test_rows_behind_a_failed_one_of_their_key_are_no_attempt_even_where_nothing_else_was_tried(
    ordered: bool, kind: type[BrokerError], monkeypatch: pytest.MonkeyPatch
) -> None:
    [send_queue] = EngineSetup(sinks=0).send_queues
    if ordered:
        send_queue.keep_order(KeyOrder(native=True, park=False, release=lambda _: None))
    monkeypatch.setattr(ScriptedSender, "_settle", lambda _, sent: Settled(batch=sent.number, error=NotSent("behind")))
    send_queue.send(Batch.of([Message(value=b"v", key=b"k")]))
    [result] = send_queue.collect(0.0)
    assert [type(error) for error in result.failures.values()] == [kind]
