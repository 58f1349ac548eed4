"""Subscriptions, end to end: if the handler raises, a message is retried, then dead-lettered, and never lost."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from itertools import count
from typing import Final

import pytest

from redelivery.contract.broker import Broker, Outcome, Received, Receiver, Sender
from redelivery.contract.message import Message
from redelivery.contract.spec import DeliverySpec, Sink
from redelivery.errors import BrokerError, ConfigurationError, LeaseLost, TerminalNack
from redelivery.formats import dialects
from redelivery.policy.breaker import Breaker
from redelivery.receiving.subscription import Handler, Subscription
from redelivery.sending.report import SubscriptionReport
from redelivery_conformance.forking import KILLED, in_a_fork
from redelivery_conformance.statements import Statements, broker_has
from redelivery_conformance.subject import GRACE, Subject
from redelivery_conformance.suite.letters import original
from redelivery_conformance.suite.receiving import numbered
from redelivery_conformance.taking import Taker

_names = count(1)
#: Seconds: longer than a receiver waits for a message.
_OUTAGE: Final = 1.5


class Subscribing(Statements):
    """`redelivery.receiving.subscription.Subscription` over this broker's roles."""

    @broker_has("receive", "send")
    def test_a_subscription_handles_what_is_there(self, subject: Subject) -> None:
        subject.deliver(*numbered(20))
        seen: list[bytes | None] = []
        report = self._run(subject, lambda message: seen.append(message.value))
        assert sorted(seen, key=repr) == sorted((m.value for m in numbered(20)), key=repr)
        assert report.accepted == 20
        assert not subject.values()

    @broker_has("receive", "send", "delay", "attempts", "dead_letter", "browse", "headers")
    def test_what_a_handler_raises_for_is_retried_and_then_a_letter(self, subject: Subject) -> None:
        subject.provision()
        subject.deliver(original(subject), Message(value=b"good"))
        calls: list[bytes | None] = []

        def handler(message: Message) -> None:
            calls.append(message.value)
            if message.value != b"good":
                raise ValueError("no such airport")

        delay = timedelta(milliseconds=50)
        spec = self._spec(retry=2, backoff_policy="linear", backoff_delay=delay)
        dead = self._run(subject, handler, spec).dead_lettered  # a queue looks empty while all its messages wait
        assert (calls.count(original(subject).value), calls.count(b"good")) == (3, 1)
        assert dead == 1
        (letter,) = subject.browse(direct=False)
        context = dialects.read(letter.message)
        assert letter.message.value == original(subject).value
        assert context is not None
        assert context.attempts == 3
        assert "no such airport" in context.reason
        assert not subject.values()

    @broker_has("receive", "send", "dead_letter", "browse", "headers")
    def test_what_a_handler_gives_up_is_a_letter_at_once(self, subject: Subject) -> None:
        subject.provision()
        subject.deliver(original(subject))

        def handler(_message: Message) -> None:
            raise TerminalNack("closed in 1969")

        report = self._run(subject, handler, self._spec())
        assert (report.terms, report.dead_lettered) == (1, 1)
        (letter,) = subject.browse(direct=False)
        context = dialects.read(letter.message)
        assert context is not None
        assert (context.attempts, context.reason) == (1, "closed in 1969")
        assert not subject.values()

    @broker_has("receive", "send")
    def test_what_a_handler_gives_up_without_a_sink_stays(self, subject: Subject) -> None:
        """There a terminal nack is a configuration error. No message is lost, although skipping is allowed."""
        subject.provision()
        subject.deliver(Message(value=b"v"))
        spec = DeliverySpec(tolerance="all", allow_skip=True)
        with pytest.raises(ConfigurationError, match="deadLetterSink"):
            self._run(subject, _gives_up, spec)
        assert Taker(subject).one().message.value == b"v"

    @broker_has("receive", "send", "dead_letter")
    def test_an_outage_of_what_handles_them_keeps_messages_in_the_queue(self, subject: Subject) -> None:
        """Receiving pauses, one message at a time is tried under its lease, and all go on when one is handled."""
        subject.provision()
        subject.deliver(*numbered(12))
        tried: list[bytes | None] = []

        def handler(message: Message) -> None:
            tried.append(message.value)
            if len(tried) <= 8:
                raise ConnectionError("the bank is down")

        breaker = Breaker(failures=3, pause=timedelta(milliseconds=20), pause_max=timedelta(milliseconds=50))
        report = self._run(subject, handler, self._spec(), breaker=breaker)
        assert report.outages == 1
        assert (report.dead_lettered, report.accepted, report.lost) == (2, 10, 0)
        assert report.received == 12, "a try takes no message from the broker again"
        assert not subject.values()

    @broker_has("receive", "send")
    def test_an_outage_of_its_broker_ends_no_subscription(self, subject: Subject) -> None:
        """A receiver that failed with an error that passes is asked again, and serves when its broker is back."""
        subject.expect_outages()
        seen: queue.SimpleQueue[bytes | BaseException | None] = queue.SimpleQueue()
        subscription = Subscription(
            subject.place.outage_url,
            lambda message: seen.put(message.value),
            name=f"conformance-{next(_names)}",
            options=subject.place.options,
            breaker=Breaker(pause=timedelta(milliseconds=50), pause_max=timedelta(milliseconds=500)),
            connection_factory=subject.connected,
        )

        def run() -> None:
            try:
                subscription.run()
            except BaseException as error:  # noqa: BLE001 - shown by the statement, in its own thread
                seen.put(error)

        subject.deliver(Message(value=b"before"))
        running = threading.Thread(target=run, daemon=True)
        running.start()
        try:
            assert seen.get(timeout=subject.place.patience + GRACE) == b"before"
            with subject.outage("refused", "reset"):
                time.sleep(_OUTAGE)
            subject.deliver(Message(value=b"after"))
            while (came := seen.get(timeout=2 * subject.place.patience + GRACE)) == b"before":
                pass  # its acknowledgement was lost
            assert came == b"after"
        finally:
            subscription.stop()
            running.join(subject.place.patience + GRACE)
        assert not running.is_alive()
        assert seen.empty(), f"the subscription ended badly: {seen.get()!r}"

    @broker_has("receive", "send", "extend")
    def test_a_slow_handler_keeps_its_message(self, subject: Subject) -> None:
        """Its lease is extended while the handler works, so no other receiver gets it."""
        subject.deliver(Message(value=b"v"))
        handled: list[bytes | None] = []
        lease = subject.place.lease * 2

        def handler(message: Message) -> None:
            Taker(subject).nothing(lease * 1.5)
            handled.append(message.value)

        report = self._run(subject, handler, lease=lease)
        assert handled == [b"v"]
        assert (report.accepted, report.lost) == (1, 0)

    @broker_has("receive", "send", "dead_letter", "browse", "headers")
    @pytest.mark.parametrize("when", ["before-the-acknowledgement", "after-the-acknowledgement"])
    def test_a_subscription_killed_as_it_dead_letters_loses_nothing(self, subject: Subject, when: str) -> None:
        """The process dies after the sink has confirmed. The message exists once or twice, and is never lost."""
        subject.provision()
        subject.deliver(original(subject))
        sink = subject.broker.native_sink()  # opened by its URL, it fails where a sink of another broker would

        def child() -> None:
            spec = DeliverySpec(dead_letter_sink=(Sink(uri=sink),))
            self._run(subject, _gives_up, spec, lease=subject.place.lease, dies=when)

        assert in_a_fork(subject, child) == KILLED, "the child did not get as far as the acknowledgement"
        letters = len(subject.browse(direct=False))
        assert letters == 1, "acknowledged, or about to be, before the sink had it"
        with Taker(subject) as taker:
            if when.startswith("before"):
                taker.one(within=subject.place.lease + 4 * subject.place.patience)
                taker.nothing()
            else:
                taker.nothing(subject.place.lease * 2)

    @staticmethod
    def _spec(**fields: object) -> DeliverySpec:
        return DeliverySpec(dead_letter_sink=(Sink(uri="native"),), **fields)  # type: ignore[arg-type]

    @staticmethod
    def _run(
        subject: Subject,
        handler: Handler,
        spec: DeliverySpec | None = None,
        *,
        lease: float = 30.0,
        dies: str | None = None,
        breaker: Breaker | None = None,
    ) -> SubscriptionReport:
        @contextmanager
        def connection_factory(url: str, _options: Mapping[str, str]) -> Iterator[Broker]:
            with subject.harness.connect(url, subject.place.options) as broker:
                yield broker if dies is None or url != subject.place.url else Mortal(broker, dies)

        subscription = Subscription(
            subject.place.url,
            handler,
            name=f"conformance-{next(_names)}",
            spec=spec,
            options=subject.place.options,
            lease=timedelta(seconds=lease),
            breaker=breaker,
            connection_factory=connection_factory,
        )
        return subscription.run(until_empty=True)


def _gives_up(_message: Message) -> None:
    raise TerminalNack("given up")


class Mortal(Broker):
    """A broker whose process dies while it acknowledges."""

    def __init__(self, broker: Broker, when: str) -> None:
        self.name = broker.name
        self.capabilities = broker.capabilities
        self._broker = broker
        self._when = when

    def sender(self) -> Sender:
        return self._broker.sender()

    def receiver(self, *, lease: timedelta = timedelta(seconds=30)) -> Receiver:
        return MortalReceiver(self._broker.receiver(lease=lease), self._when)

    def native_sink(self) -> str:
        return self._broker.native_sink()

    def dead_letter_places(self) -> Sequence[str]:
        return self._broker.dead_letter_places()

    def close(self) -> None:
        """Do nothing: the borrower closes the broker."""


class MortalReceiver(Receiver):
    """A receiver that dies before or after it settles."""

    def __init__(self, receiver: Receiver, when: str) -> None:
        self._receiver = receiver
        self._when = when

    def receive(self, max_messages: int, *, wait: float) -> Sequence[Received]:
        return self._receiver.receive(max_messages, wait=wait)

    def settle(self, outcomes: Sequence[tuple[Received, Outcome]]) -> Sequence[LeaseLost | BrokerError | None]:
        if not outcomes:
            return []
        if self._when.startswith("after"):
            self._receiver.settle(outcomes)
        os._exit(KILLED)

    def extend(self, leases: Sequence[Received], seconds: float) -> Sequence[Received | LeaseLost]:
        return self._receiver.extend(leases, seconds)

    def close(self) -> None:
        self._receiver.close()
