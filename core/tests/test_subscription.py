"""The receiving engine: who gives up on a message, when, and where it goes."""

from __future__ import annotations

import contextlib
import functools
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from leasing import LeasingBroker, LeasingReceiver
from scripted import ScriptedBroker
from test_delivery import RealClock

from redelivery.contract.broker import Broker, Limits, Outcome, Received, Retry, Source, Terminate
from redelivery.contract.context import ErrorContext
from redelivery.contract.message import Message
from redelivery.contract.spec import DeliverySpec, Sink
from redelivery.errors import (
    ConfigurationError,
    DeliveryFailed,
    LeaseLost,
    NotTerminated,
    Permanent,
    Retriable,
    TerminalNack,
    Unsupported,
)
from redelivery.formats import dialects
from redelivery.receiving.leases import LeasedMessage
from redelivery.receiving.running import RunningSubscription
from redelivery.receiving.subscription import Subscription
from redelivery.receiving.workers import Workers

MS = timedelta(milliseconds=1)
QUICK: dict[str, Any] = {"backoff_policy": "linear", "backoff_delay": MS}


class SubscriptionSetup:
    """A queue, sinks, and subscriptions over them."""

    def __init__(self, *messages: Message, sinks: int = 1, terminates: bool = False, **spec: Any) -> None:
        self.queue = LeasingBroker(terminates=terminates)
        self.queue.put(*messages)
        self.sinks = [ScriptedBroker(RealClock()) for _ in range(sinks)]
        uris = ["native"] if terminates else [f"scripted:{n}" for n in range(sinks)]
        self.spec = DeliverySpec(dead_letter_sink=tuple(Sink(uri=uri) for uri in uris), **spec)

    @contextlib.contextmanager
    def connection_factory(self, url: str, options: Mapping[str, str]) -> Iterator[Broker]:
        kind, name = url.split(":")
        yield self.queue if kind == "leasing" else self.sinks[int(name)]

    def subscription(self, handler: Callable[[Message], object], **options: Any) -> Subscription:
        given = {"spec": self.spec, "connection_factory": self.connection_factory, "name": f"s{id(self)}", **options}
        return Subscription("leasing:queue", handler, **given)

    def outcomes(self) -> list[tuple[str, str]]:
        return [(name, type(outcome).__name__) for name, outcome in self.queue.settled]


def message(name: str, **fields: Any) -> Message:
    return Message(value=name.encode(), id=name, **fields)


def fails(_message: Message) -> None:
    raise ValueError("no such airport")


def test_what_a_handler_returns_from_is_accepted() -> None:
    setup = SubscriptionSetup(message("a"), message("b"))
    seen: list[bytes | None] = []
    report = setup.subscription(lambda m: seen.append(m.value)).run(until_empty=True)
    assert seen == [b"a", b"b"]
    assert setup.outcomes() == [("a", "Accept"), ("b", "Accept")]
    assert (report.received, report.accepted, report.failures) == (2, 2, 0)


def test_what_a_handler_raises_for_is_retried_with_the_specs_backoff_then_dead_lettered() -> None:
    setup = SubscriptionSetup(message("a", key=b"k", headers=(("mine", b"1"),)), retry=2, **QUICK)
    report = setup.subscription(fails, name="billing").run(until_empty=True)
    delays = [outcome.delay for _, outcome in setup.queue.settled if isinstance(outcome, Retry)]
    assert [round(delay / MS) for delay in delays] == [1, 2]
    assert setup.outcomes()[-1] == ("a", "Accept")
    (letter,) = setup.sinks[0].stored
    assert (letter.value, letter.key, letter.headers[0]) == (b"a", b"k", ("mine", b"1"))
    context = dialects.read(letter)
    assert context is not None
    assert (context.subscriber, context.attempts, context.kind) == ("billing", 3, "retriable")
    assert "ValueError: no such airport" in context.reason
    assert (context.exception, context.component, context.stage) == (
        "builtins.ValueError",
        f"{__name__}.fails",
        "TASK_PUT",
    )
    assert (report.failures, report.retried, report.dead_lettered, report.accepted, report.terms) == (3, 2, 1, 0, 0)


def test_a_dead_letter_place_takes_no_letters_of_its_own() -> None:
    """They would be received again, and die again, without an end."""
    setup = SubscriptionSetup(message("a"), terminates=True)
    setup.queue.canonical_url = setup.queue.native_sink()
    with pytest.raises(ConfigurationError, match="would come back forever; name another place"):
        setup.subscription(fails).run(until_empty=True)
    assert setup.queue.settled == []


def test_a_letter_says_where_its_message_was_read() -> None:
    setup = SubscriptionSetup(message("a"), **QUICK)
    setup.queue.source = Source(topic="orders", partition=3, offset=41)
    setup.subscription(fails).run(until_empty=True)
    context = dialects.read(setup.sinks[0].stored[0])
    assert context is not None
    assert (context.source_topic, context.source_partition, context.source_offset) == ("orders", 3, 41)


def test_a_message_in_hand_is_not_told_to_lie_at_its_destination_whatever_its_earlier_life() -> None:
    """It was received from there: a redrive under its old id would be taken for the one that is dead."""
    context = ErrorContext(kind="ambiguous", maybe_delivered=True)
    letter = dialects.attach(message("a"), context, dialect="json", limits=Limits(), prefix=None)
    setup = SubscriptionSetup(dialects.redriven(letter))
    setup.subscription(fails).run(until_empty=True)
    found = dialects.read(setup.sinks[0].stored[0])
    assert found is not None
    assert (found.hops, found.maybe_delivered) == (1, False)
    assert not dialects.history(setup.sinks[0].stored[0]).maybe_delivered


def test_a_terminal_nack_bypasses_the_retries_and_is_counted_apart() -> None:
    def handler(_message: Message) -> None:
        raise TerminalNack("the airport was closed in 1969")

    setup = SubscriptionSetup(message("a"), retry=99, **QUICK)
    report = setup.subscription(handler).run(until_empty=True)
    context = dialects.read(setup.sinks[0].stored[0])
    assert context is not None
    assert (context.kind, context.reason, context.attempts) == ("terminated", "the airport was closed in 1969", 1)
    assert (report.terms, report.dead_lettered, report.retried) == (1, 1, 0)


def test_the_source_is_settled_only_after_a_sink_has_confirmed() -> None:
    setup = SubscriptionSetup(message("a"))
    setup.sinks[0].latency = 0.2
    accepted_before_stored = []

    def watch() -> None:
        while not setup.queue.settled:
            time.sleep(0.001)
        accepted_before_stored.append(not setup.sinks[0].stored)

    watcher = threading.Thread(target=watch)
    watcher.start()
    setup.subscription(fails).run(until_empty=True)
    watcher.join()
    assert accepted_before_stored == [False]


def test_where_every_sink_fails_the_source_is_not_acknowledged_and_the_primary_error_is_raised() -> None:
    setup = SubscriptionSetup(message("a"), sinks=2)
    for sink in setup.sinks:
        sink.script = {"a": ["fatal"]}
    with pytest.raises(DeliveryFailed, match=r"ValueError: no such airport.*no access"):
        setup.subscription(fails).run(until_empty=True)
    assert setup.outcomes() == [("a", "Release")]
    assert len(setup.queue.items) == 1


def test_exhausted_without_a_sink_the_message_stays_and_the_subscription_stops() -> None:
    setup = SubscriptionSetup(message("a"), sinks=0, retry=1, **QUICK)
    with pytest.raises(DeliveryFailed, match="no such airport"):
        setup.subscription(fails).run(until_empty=True)
    assert setup.outcomes() == [("a", "Retry"), ("a", "Release")]
    assert len(setup.queue.items) == 1


def test_a_broker_that_can_moves_the_message_to_its_dead_letter_place_itself() -> None:
    setup = SubscriptionSetup(message("a"), terminates=True)
    report = setup.subscription(fails).run(until_empty=True)
    ((_, outcome),) = setup.queue.settled
    assert isinstance(outcome, Terminate)
    assert outcome.reason == "HANDLER_FAILED (ValueError)"
    assert dialects.read(setup.queue.letters[0]) is not None
    assert report.dead_lettered == 1
    assert setup.queue.items == []


def test_what_a_broker_keeps_of_the_reason_holds_no_secret() -> None:
    def handler(_message: Message) -> None:
        raise TerminalNack("cannot reach db://me:c4nary-hunter2@host")

    setup = SubscriptionSetup(message("a"), terminates=True)
    setup.subscription(handler).run(until_empty=True)
    ((_, outcome),) = setup.queue.settled
    assert isinstance(outcome, Terminate)
    assert "db://me:***@host" in outcome.description
    assert "c4nary" not in repr(outcome)


@pytest.mark.parametrize("by", ["message", "id"])
def test_terminate_gives_up_one_message_in_hand_whatever_its_handler_still_says(by: str) -> None:
    setup = SubscriptionSetup(message("a"), message("b"))
    subscriptions: list[Subscription] = []

    def handler(m: Message) -> None:
        if m.id == "a":
            subscriptions[0].terminate(m if by == "message" else "a", "seen enough")

    subscriptions.append(setup.subscription(handler))
    report = subscriptions[0].run(until_empty=True)
    assert setup.sinks[0].stored_ids() == {"a": 1}
    assert (report.terms, report.dead_lettered, report.accepted) == (1, 1, 1)


def test_terminate_without_a_sink_is_a_configuration_error_and_the_message_stays() -> None:
    setup = SubscriptionSetup(message("a"), sinks=0)
    said: list[str] = []

    def handler(m: Message) -> None:
        with pytest.raises(ConfigurationError) as refused:
            subscription.terminate(m, "x")
        said.append(str(refused.value))
        subscription.stop()

    subscription = setup.subscription(handler)
    subscription.run()
    assert "has no deadLetterSink" in said[0]


def test_terminate_of_what_is_not_leased_is_refused() -> None:
    setup = SubscriptionSetup()
    with pytest.raises(NotTerminated, match="'x' is not leased"):
        setup.subscription(fails).terminate("x", "y")


def test_terminate_without_a_sink_is_a_configuration_error_also_where_nothing_runs() -> None:
    setup = SubscriptionSetup(sinks=0)
    with pytest.raises(ConfigurationError, match="has no deadLetterSink"):
        setup.subscription(fails).terminate("x", "y")


def test_a_lease_is_kept_alive_while_a_handler_runs() -> None:
    setup = SubscriptionSetup(message("a"))
    deadline = time.monotonic() + 30

    def handler(_message: Message) -> None:
        while setup.queue.extended < 2 and time.monotonic() < deadline:
            time.sleep(0.01)

    report = setup.subscription(handler, lease=timedelta(seconds=1)).run(until_empty=True)
    assert setup.queue.extended >= 2
    assert (report.received, report.accepted, report.lost) == (1, 1, 0)


def once_settled(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Have something done whenever the receiver has been asked to settle, whatever it answers."""
    settle = LeasingReceiver.settle

    def settled(receiver: LeasingReceiver, outcomes: Sequence[tuple[Received, Outcome]]) -> Sequence[Any]:
        try:
            return settle(receiver, outcomes)
        finally:
            act()

    monkeypatch.setattr(LeasingReceiver, "settle", settled)


def test_a_lost_lease_is_never_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = SubscriptionSetup(message("a"))

    def handler(m: Message) -> None:
        setup.queue.revoked.add("a")

    subscription = setup.subscription(handler)
    once_settled(monkeypatch, subscription.stop)
    report = subscription.run()
    assert setup.queue.settled == []
    assert report.lost == 1
    assert report.accepted == 0


@pytest.mark.parametrize("how", ["revoked", "fixed"])
def test_a_letter_that_waits_for_its_sink_is_dropped_with_its_lease(how: str) -> None:
    """The broker delivers the message again, and the letter would tell of its former delivery alone."""
    setup = SubscriptionSetup(message("a"), backoff_policy="linear", backoff_delay=300 * MS)
    setup.sinks[0].script["a"] = ["retriable"]
    setup.queue.fixed = how == "fixed"
    handled = []

    def handler(m: Message) -> None:
        handled.append(m.id)
        setup.queue.revoked = {"a"} if how == "revoked" and len(handled) == 1 else set()
        if len(handled) == 1:
            raise TerminalNack("never")

    report = setup.subscription(handler, lease=200 * MS).run(until_empty=True)
    assert setup.sinks[0].attempts["a"] == 1
    assert setup.sinks[0].stored == []
    assert setup.queue.items == []
    assert len(handled) >= 2
    assert report.lost == len(handled) - 1
    assert (report.accepted, report.dead_lettered) == (1, 0)


def test_a_settlement_that_fails_for_a_moment_is_tried_again() -> None:
    setup = SubscriptionSetup(message("a"), **QUICK)
    setup.queue.settle_errors = [Retriable("busy"), Retriable("busy")]
    report = setup.subscription(lambda _: None).run(until_empty=True)
    assert report.accepted == 1
    assert setup.queue.items == []


@pytest.mark.parametrize("endless", [True, False])
def test_a_settlement_given_up_ends_the_subscription_where_nothing_else_ends_the_lease(
    endless: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup = SubscriptionSetup(message("a"), retry=0)
    setup.queue.endless = endless
    setup.queue.settle_errors = [Retriable("busy")]
    subscription = setup.subscription(lambda _: None)
    once_settled(monkeypatch, subscription.stop)
    if endless:
        with pytest.raises(Retriable, match="busy"):
            subscription.run()
    else:
        assert subscription.run().lost >= 1


def test_what_is_skipped_is_not_called_dead_lettered() -> None:
    setup = SubscriptionSetup(message("a"), message("b"), sinks=0, tolerance="all", allow_skip=True)
    report = setup.subscription(fails).run(until_empty=True)
    assert (report.skipped, report.dead_lettered, report.delivery.skipped) == (2, 0, 2)
    assert setup.outcomes() == [("a", "Accept"), ("b", "Accept")]


def test_a_handler_that_raises_a_permanent_error_is_not_run_again() -> None:
    setup = SubscriptionSetup(message("a"), retry=5, **QUICK)

    def handler(_message: Message) -> None:
        raise Permanent("not a flight", native_code="NotAFlight")

    report = setup.subscription(handler).run(until_empty=True)
    assert (report.failures, report.dead_lettered) == (1, 1)
    assert report.delivery.reasons == {"NotAFlight": 1}


def test_what_cannot_be_decoded_is_dead_lettered_unhandled() -> None:
    setup = SubscriptionSetup(message("a"))
    setup.queue.undecodable = {"a": "its headers are not JSON"}
    seen: list[Message] = []
    setup.subscription(seen.append).run(until_empty=True)
    assert seen == []
    context = dialects.read(setup.sinks[0].stored[0])
    assert context is not None
    assert (context.code, context.reason) == ("UNDECODABLE", "its headers are not JSON")
    assert (context.stage, context.component) == ("VALUE_CONVERTER", "leasing.LeasingReceiver")


EVENT = Message(
    value=b'{"specversion":"1.0","id":"1","source":"/s","type":"t"}',
    headers=(("content-type", b"application/cloudevents+json"),),
    id="a",
)


def test_the_options_of_a_subscription_are_logged_and_written_where_asked(caplog: pytest.LogCaptureFixture) -> None:
    asked = {
        "sink_include_configs": True,
        "sink_include_messages": True,
        "log_enable": True,
        "log_include_configs": True,
    }
    setup = SubscriptionSetup(message("a"), **QUICK, **asked)
    setup.queue.source = Source(topic="orders", partition=3, offset=41)
    options = {"scripted.user": "u", "scripted.password": "hunter2"}
    setup.subscription(fails, options=options).run(until_empty=True)
    shown = {"url": "leasing:queue", "scripted.user": "u", "scripted.password": "***"}
    (line,) = [each.getMessage() for each in caplog.records if each.getMessage().startswith("{")]
    written = json.loads(dict(setup.sinks[0].stored[0].headers)["redelivery-context"] or b"")
    for form in (json.loads(line), written):
        assert form["stages"][form["index"]]["config"] == shown
        assert (form["record"]["topic"], form["record"]["partition"], form["record"]["offset"]) == ("orders", 3, 41)
    assert written["record"]["value"]["object"] == "YQ=="
    assert "value" not in json.loads(line)["record"]
    assert "hunter2" not in caplog.text


def test_an_event_that_the_broker_moves_itself_keeps_its_body_unless_dialects_are_asked_for() -> None:
    """Where the body changes, a broker cannot move the message, and has to send another in its place."""
    for asked, kept in ((None, True), (("knative",), False)):
        setup = SubscriptionSetup(EVENT, terminates=True, dead_letter_dialects=asked)
        setup.subscription(fails, name="billing").run(until_empty=True)
        ((_, outcome),) = setup.queue.settled
        assert isinstance(outcome, Terminate)
        assert (outcome.letter.value == EVENT.value) is kept
    form = json.loads(outcome.letter.value or b"")
    assert form["deadlettersubscriberuri"] == "leasing:queue#billing"


def test_a_handler_is_named_whatever_kind_of_callable_it_is() -> None:
    class Charging:
        def __call__(self, _message: Message) -> None:
            raise TerminalNack("no")

    for handler, name in (
        (Charging(), "Charging"),
        (functools.partial(fails), "fails"),
        (Charging().__call__, "__call__"),
    ):
        setup = SubscriptionSetup(message("a"), **QUICK)
        setup.subscription(handler).run(until_empty=True)
        context = dialects.read(setup.sinks[0].stored[0])
        assert context is not None
        assert context.component is not None
        assert context.component.startswith(f"{__name__}.")
        assert context.component.endswith(name)
    assert context.exception == "redelivery.errors.TerminalNack"


def test_an_event_may_be_reposted_under_another_type() -> None:
    headers = (("ce-specversion", b"1.0"), ("ce-id", b"1"), ("ce-source", b"s"), ("ce-type", b"old"))
    setup = SubscriptionSetup(message("a", headers=headers))
    setup.subscription(fails, rename_type="old.failed").run(until_empty=True)
    assert ("ce-type", b"old.failed") in setup.sinks[0].stored[0].headers


def test_one_event_may_reach_the_sinks_of_several_subscriptions() -> None:
    copies = [
        SubscriptionSetup(message("a")),
        SubscriptionSetup(message("a")),
    ]  # a broker gives each subscription its own queue
    for name, setup in zip(("one", "two"), copies, strict=True):
        setup.subscription(fails, name=name).run(until_empty=True)
    contexts = [dialects.read(setup.sinks[0].stored[0]) for setup in copies]
    assert [context.subscriber for context in contexts if context] == ["one", "two"]


def test_a_sink_equal_to_the_source_is_refused() -> None:
    setup = SubscriptionSetup(message("a"))
    spec = DeliverySpec(dead_letter_sink=(Sink(uri="leasing:queue"),))
    with pytest.raises(ConfigurationError, match="is the destination itself"):
        setup.subscription(fails, spec=spec).run()


def test_a_retry_timeout_is_kept_across_deliveries() -> None:
    setup = SubscriptionSetup(
        message("a"), retry_timeout=timedelta(seconds=0.3), backoff_policy="linear", backoff_delay=100 * MS
    )
    began = time.monotonic()
    report = setup.subscription(fails).run(until_empty=True)
    assert report.dead_lettered == 1
    assert 0.25 < time.monotonic() - began < 5
    assert 2 <= report.failures <= 5


def test_what_a_broker_cannot_do_is_said_before_any_message_is_taken() -> None:
    setup = SubscriptionSetup(message("a"), retry=1)
    object.__setattr__(setup.queue.capabilities, "delay", "")
    with pytest.raises(Unsupported, match="cannot keep a message away"):
        setup.subscription(fails).run()
    setup = SubscriptionSetup(message("a"), retry_timeout=timedelta(seconds=9))
    object.__setattr__(setup.queue.capabilities, "first_delivery", "")
    with pytest.raises(Unsupported, match="give a number of retries"):
        setup.subscription(fails).run()
    assert setup.queue.leases == 0


def test_a_broker_without_delays_retries_at_once_where_the_spec_says_so() -> None:
    setup = SubscriptionSetup(message("a"), retry=2, backoff_policy="linear", backoff_delay=timedelta(0))
    object.__setattr__(setup.queue.capabilities, "delay", "")
    report = setup.subscription(fails).run(until_empty=True)
    assert (report.retried, report.dead_lettered) == (2, 1)
    assert [outcome.delay for _, outcome in setup.queue.settled if isinstance(outcome, Retry)] == [timedelta(0)] * 2


def test_a_delay_is_never_longer_than_the_broker_can_keep() -> None:
    setup = SubscriptionSetup(message("a"), retry=1, backoff_policy="linear", backoff_delay=timedelta(hours=1))
    limits = replace(setup.queue.capabilities.limits, delay_max=5 * MS)
    setup.queue.capabilities = replace(setup.queue.capabilities, limits=limits)
    setup.subscription(fails).run(until_empty=True)
    assert [outcome.delay for _, outcome in setup.queue.settled if isinstance(outcome, Retry)] == [5 * MS]


def test_a_copy_of_its_own_is_received_from_the_place_of_its_name() -> None:
    setup = SubscriptionSetup(message("a"))
    asked: list[str] = []

    def subscription(name: str) -> str:
        asked.append(name)
        return f"leasing:queue@{name}"

    setup.queue.subscription = subscription  # type: ignore[method-assign]
    setup.subscription(fails, name="billing", own_copy=True).run(until_empty=True)
    assert asked == ["billing"]
    context = dialects.read(setup.sinks[0].stored[0])
    assert context is not None
    assert (context.subscriber, context.destination) == ("billing", "leasing:queue@billing")


def test_a_copy_that_the_broker_does_not_give_is_refused_with_the_reason_before_anything_is_received() -> None:
    setup = SubscriptionSetup(message("a"))
    with pytest.raises(Unsupported, match="a message here is for one receiver"):
        setup.subscription(fails, name="billing", own_copy=True).run(until_empty=True)
    assert setup.queue.leases == 0


def test_a_copy_of_its_own_needs_a_name_of_its_own() -> None:
    """Two that forgot theirs would share one copy."""
    with pytest.raises(ConfigurationError, match="give it its own name"):
        Subscription("leasing:queue", fails, own_copy=True)


# --- the account ---


def test_every_failed_run_of_a_handler_is_a_record_failure_and_every_retry_a_retry() -> None:
    """KIP-298's metrics: three failures of one message are three, of which one is an error for good."""
    setup = SubscriptionSetup(message("a"), message("b"), retry=2, **QUICK)
    before = time.time_ns() // 1_000_000

    def handler(m: Message) -> None:
        if m.id == "a":
            raise ValueError("no such airport")

    metrics = setup.subscription(handler).run(until_empty=True).delivery.metrics()
    assert (metrics["total-record-failures"], metrics["total-retries"], metrics["total-record-errors"]) == (3, 2, 1)
    assert metrics["total-records-skipped"] == 1
    assert metrics["deadletterqueue-produce-requests"] == 1
    assert before <= metrics["last-error-timestamp"] <= time.time_ns() // 1_000_000


def test_a_failure_that_a_retry_mends_is_a_failure_and_no_error() -> None:
    setup = SubscriptionSetup(message("a"), retry=5, **QUICK)
    runs: list[str | None] = []

    def handler(m: Message) -> None:
        runs.append(m.id)
        if len(runs) < 3:
            raise ValueError("not yet")

    report = setup.subscription(handler).run(until_empty=True)
    metrics = report.delivery.metrics()
    assert (metrics["total-record-failures"], metrics["total-retries"], metrics["total-record-errors"]) == (2, 2, 0)
    assert metrics["last-error-timestamp"] > 0
    assert (report.accepted, report.delivery.retried) == (1, 1)


def test_what_nobody_could_handle_is_a_failure_too() -> None:
    """What cannot be decoded, and what is given up from outside."""
    setup = SubscriptionSetup(message("a"), message("b"))
    setup.queue.undecodable = {"a": "its headers are not JSON"}
    subscription = setup.subscription(lambda m: subscription.terminate(m, "seen enough"))
    metrics = subscription.run(until_empty=True).delivery.metrics()
    assert (metrics["total-record-failures"], metrics["total-record-errors"], metrics["total-retries"]) == (2, 2, 0)


# --- giving up ---


@pytest.mark.parametrize("spec", [{}, {"tolerance": "all", "allow_skip": True}], ids=["unset", "allow-skip"])
def test_a_terminal_nack_without_a_sink_is_a_configuration_error_and_the_message_stays(spec: dict[str, Any]) -> None:
    """Where skipping is allowed too: who gives a message up wants it kept."""
    setup = SubscriptionSetup(message("good"), message("a"), sinks=0, **spec)

    def handler(m: Message) -> None:
        if m.id == "a":
            raise TerminalNack("closed in 1969")

    subscription = setup.subscription(handler)
    with pytest.raises(ConfigurationError, match=r"'a'.*\(closed in 1969\).*no deadLetterSink.*stays at the broker"):
        subscription.run(until_empty=True)
    assert setup.outcomes() == [("good", "Accept"), ("a", "Release")]
    assert (subscription.report.skipped, subscription.report.dead_lettered) == (0, 0)


def test_what_terminate_said_stays_is_never_skipped() -> None:
    """Its error leaves the handler, as any other would, and skipping is allowed."""
    setup = SubscriptionSetup(message("a"), sinks=0, tolerance="all", allow_skip=True)
    subscription = setup.subscription(lambda m: subscription.terminate(m, "x"))
    with pytest.raises(ConfigurationError, match="stays as it is"):
        subscription.run(until_empty=True)
    assert setup.outcomes() == [("a", "Release")]
    assert subscription.report.skipped == 0


def test_a_handler_that_gives_messages_up_has_a_sink_or_is_refused_before_anything_is_received() -> None:
    setup = SubscriptionSetup(message("a"), sinks=0)
    with pytest.raises(ConfigurationError, match="deadLetterSink"):
        setup.subscription(fails, terminal=True)
    SubscriptionSetup(message("a"), sinks=1).subscription(fails, terminal=True)


def test_a_termination_can_be_awaited() -> None:
    """By its own handler: it ends when the letter is stored and the lease is over."""
    setup = SubscriptionSetup(message("a"))
    there: list[tuple[dict[str, int], list[tuple[str, str]]]] = []

    def handler(m: Message) -> None:
        subscription.terminate(m, "seen enough").result(timeout=5)
        there.append((setup.sinks[0].stored_ids(), setup.outcomes()))

    subscription = setup.subscription(handler)
    subscription.run(until_empty=True)
    assert there == [({"a": 1}, [("a", "Accept")])]


def test_a_termination_by_the_broker_itself_can_be_awaited() -> None:
    setup = SubscriptionSetup(message("a"), terminates=True)
    there: list[int] = []

    def handler(m: Message) -> None:
        subscription.terminate(m, "seen enough").result(timeout=5)
        there.append(len(setup.queue.letters))

    subscription = setup.subscription(handler)
    subscription.run(until_empty=True)
    assert there == [1]


def test_a_termination_that_no_sink_took_ends_with_the_error() -> None:
    setup = SubscriptionSetup(message("a"))
    setup.sinks[0].script = {"a": ["fatal"]}
    futures: list[Future[None]] = []
    subscription = setup.subscription(lambda m: futures.append(subscription.terminate(m, "seen enough")))
    with pytest.raises(DeliveryFailed):
        subscription.run(until_empty=True)
    with pytest.raises(DeliveryFailed, match="no access"):
        futures[0].result(timeout=5)


def test_a_termination_whose_lease_is_lost_ends_with_that() -> None:
    setup = SubscriptionSetup(message("a"))
    futures: list[Future[None]] = []

    def handler(m: Message) -> None:
        setup.queue.revoked.add("a")
        futures.append(subscription.terminate(m, "seen enough"))
        subscription.stop()

    subscription = setup.subscription(handler)
    subscription.run()
    with pytest.raises(LeaseLost):
        futures[0].result(timeout=5)


def asked_at_once(monkeypatch: pytest.MonkeyPatch, leased: LeasedMessage) -> None:
    """Another thread has asked for this termination when the run begins."""
    run = RunningSubscription.run

    def asked(running: RunningSubscription, *, until_empty: bool) -> None:
        running._requests.put((leased, "late"))
        run(running, until_empty=until_empty)

    monkeypatch.setattr(RunningSubscription, "run", asked)


def test_a_termination_of_one_that_was_settled_meanwhile_ends_with_that(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread asks when the handler has come back, and before its outcome is settled."""
    setup = SubscriptionSetup(message("a"))
    subscription = setup.subscription(lambda _: None)
    received = Received(message=message("a"), attempt=1, lease=1)
    leased = LeasedMessage(received)
    future = leased.ask()
    leased.decided = True
    asked_at_once(monkeypatch, leased)
    subscription.run(until_empty=True)
    with pytest.raises(NotTerminated, match="settled before"):
        future.result(timeout=5)


def test_a_termination_that_is_asked_for_as_the_last_message_is_settled_ends_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another thread asks while the stopping subscription settles what the handler said."""
    setup = SubscriptionSetup(message("a"))
    release = threading.Event()
    futures: list[Future[None]] = []

    def handler(_: Message) -> None:
        subscription.stop()
        release.wait(5)

    def drop(workers: Workers) -> None:  # called once it is stopping, before what handlers said is taken
        if not release.is_set():
            release.set()
            workers._done.put(workers._done.get(timeout=5))

    def settle(receiver: LeasingReceiver, outcomes: Sequence[tuple[Received, Outcome]]) -> Sequence[Any]:
        assert subscription._running is not None
        (leased,) = subscription._running._leases
        future = subscription._running._leases.ask(leased)
        assert future is not None
        futures.append(future)
        subscription._running._requests.put((leased, "late"))
        return settled(receiver, outcomes)

    settled = LeasingReceiver.settle
    monkeypatch.setattr(Workers, "drop", drop)
    monkeypatch.setattr(LeasingReceiver, "settle", settle)
    subscription = setup.subscription(handler)
    subscription.run()
    with pytest.raises(NotTerminated, match="settled before"):
        futures[0].result(timeout=1)


def test_a_termination_of_a_lease_of_another_run_gives_up_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its lease is over by then, and the message comes again."""
    setup = SubscriptionSetup(message("a"))
    subscription = setup.subscription(lambda _: None)
    leased = LeasedMessage(Received(message=message("a"), attempt=1, lease=99))
    future = leased.ask()
    asked_at_once(monkeypatch, leased)
    report = subscription.run(until_empty=True)
    assert (report.accepted, report.dead_lettered, report.terms) == (1, 0, 0)
    assert future.done()


def test_who_waits_for_a_termination_may_ask_for_another_when_it_ends() -> None:
    setup = SubscriptionSetup(message("a"), message("b"))
    setup.sinks[0].script = {"a": ["fatal"]}

    def again(_: Future[None]) -> None:
        with contextlib.suppress(NotTerminated):
            subscription.terminate("b", "seen enough")

    def handler(m: Message) -> None:
        if m.id == "a":
            subscription.terminate(m, "seen enough").add_done_callback(again)
        else:
            over.wait(5)

    subscription = setup.subscription(handler)
    ended: list[BaseException] = []
    over = threading.Event()

    def run() -> None:
        try:
            subscription.run(until_empty=True)
        except DeliveryFailed as error:
            ended.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(10)
    over.set()
    assert ended, "it hangs"


def test_a_message_without_an_id_is_given_up_by_its_position() -> None:
    setup = SubscriptionSetup(Message(value=b"v"), Message(value=b"w"))
    setup.queue.positions = True
    subscription = setup.subscription(
        lambda m: None if m.value == b"w" else subscription.terminate("place/1", "seen enough").result(timeout=5)
    )
    report = subscription.run(until_empty=True)
    assert (report.terms, report.dead_lettered, report.accepted) == (1, 1, 1)
    assert [letter.value for letter in setup.sinks[0].stored] == [b"v"]


def test_an_id_of_several_leased_messages_names_none_of_them() -> None:
    setup = SubscriptionSetup(message("a"), message("a"))
    both = threading.Barrier(2, timeout=5)
    said: list[str] = []

    def handler(_message: Message) -> None:
        both.wait()
        with pytest.raises(ConfigurationError) as caught:
            subscription.terminate("a", "x")
        said.append(str(caught.value))
        both.wait()

    subscription = setup.subscription(handler, workers=2)
    subscription.run(until_empty=True)
    assert "2 leased messages" in said[0]
    assert "position" in said[0]


# --- until it is empty ---


def test_until_empty_waits_for_what_it_put_off_itself() -> None:
    """A queue whose messages all wait for their delay looks empty."""
    setup = SubscriptionSetup(message("a"), retry=2, backoff_policy="linear", backoff_delay=timedelta(seconds=0.6))
    report = setup.subscription(fails).run(until_empty=True)
    assert (report.retried, report.dead_lettered) == (2, 1)
    assert setup.queue.items == []


def test_until_empty_ends_though_another_took_what_was_put_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redelivery.receiving.leases.LATE", 0.2)
    setup = SubscriptionSetup(message("a"), retry=2, backoff_policy="linear", backoff_delay=timedelta(seconds=0.6))

    once_settled(monkeypatch, setup.queue.items.clear)
    began = time.monotonic()
    report = setup.subscription(fails).run(until_empty=True)
    assert (report.retried, report.dead_lettered) == (1, 0)
    assert time.monotonic() - began < 5


def test_until_empty_waits_for_one_that_comes_late() -> None:
    """A broker may keep it away a little longer than was asked for."""
    setup = SubscriptionSetup(message("a"), retry=1, backoff_policy="linear", backoff_delay=timedelta(seconds=0.1))
    setup.queue.late = 1.0
    report = setup.subscription(fails).run(until_empty=True)
    assert (report.retried, report.dead_lettered) == (1, 1)
