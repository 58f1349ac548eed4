"""An ordinary queue, as nearly all on Azure are: it forwards its dead letters nowhere, and nobody can write any."""

from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient

from redelivery import Subscription, TerminalNack
from redelivery.contract.broker import Broker, Retry
from redelivery.contract.message import Message
from redelivery.contract.spec import DeliverySpec, Sink
from redelivery.deadletters.queue import DeadLetterQueue, dead_letters
from redelivery.errors import ConfigurationError
from redelivery_conformance.statements import Statements
from redelivery_conformance.subject import Subject
from redelivery_conformance.taking import Taker
from redelivery_servicebus.testing import DEAD
from servicebus_standin import StandIn


def namespace(subject: Subject) -> StandIn:
    runtime: Any = subject.runtime
    return runtime.namespace  # type: ignore[no-any-return]


def ordinary(subject: Subject, name: str = "ordinary") -> Broker:
    queue = f"{subject.place.url.rpartition('/')[2]}-{name}"
    namespace(subject).create_queue(queue, max_delivery_count=1)
    return subject.connect(subject.broker.sibling(queue))


def given_up(subject: Subject, broker: Broker, *values: bytes) -> None:
    """Messages that Service Bus itself dead-letters."""
    assert broker.canonical_url is not None
    subject.deliver(*(Message(value=value, id=value.decode()) for value in values), url=broker.canonical_url)
    with Taker(subject, broker=broker) as taker:
        for _ in values:
            taker.settle(Retry(), taker.one())


def letters_of(subject: Subject, broker: Broker) -> DeadLetterQueue:
    assert broker.canonical_url is not None
    return dead_letters(broker.canonical_url, options=subject.place.options)


def bodies(subject: Subject, broker: Broker, suffix: str = "") -> list[bytes | None]:
    assert broker.canonical_url is not None
    return [each.body for each in namespace(subject).messages(broker.canonical_url.rpartition("/")[2] + suffix)]


class TestOrdinary(Statements):
    broker = "servicebus"

    def test_its_letters_are_redriven(self, subject: Subject, tmp_path: Path) -> None:
        broker = ordinary(subject)
        given_up(subject, broker, b"a", b"b")
        with letters_of(subject, broker) as letters:
            assert letters.place.endswith("-ordinary/$DeadLetterQueue")
            report = letters.redrive(journal=tmp_path / "journal.db")
        assert (report.redriven, report.removed) == (2, 2)
        assert bodies(subject, broker) == [b"a", b"b"]
        assert bodies(subject, broker, DEAD) == []

    def test_its_letters_are_redriven_to_another_queue(self, subject: Subject) -> None:
        broker, other = ordinary(subject), ordinary(subject, "other")
        given_up(subject, broker, b"a")
        with letters_of(subject, broker) as letters:
            assert letters.redrive(to=other.canonical_url).removed == 1
        assert (bodies(subject, broker), bodies(subject, other)) == ([], [b"a"])

    def test_they_are_not_redriven_to_the_queue_that_is_read_with_them(self, subject: Subject) -> None:
        broker = ordinary(subject)
        given_up(subject, broker, b"a")
        with letters_of(subject, broker) as letters, pytest.raises(ConfigurationError, match="the place that"):
            letters.redrive(to=f"{broker.canonical_url}-dead-letters")
        assert bodies(subject, broker, DEAD) == [b"a"]

    def test_its_letters_are_forwarded_to_a_sink_with_their_reason(self, subject: Subject) -> None:
        broker, sink = ordinary(subject), ordinary(subject, "sink")
        given_up(subject, broker, b"a")
        with letters_of(subject, broker) as letters:
            assert letters.forward(sink.canonical_url).removed == 1
        assert bodies(subject, broker, DEAD) == []
        with sink.dead_letters(direct=True) as found:
            (letter,) = found.browse()
        assert letter.message.value == b"a"

    def test_its_letters_are_removed_and_purged(self, subject: Subject) -> None:
        broker = ordinary(subject)
        given_up(subject, broker, b"a", b"b", b"c")
        with letters_of(subject, broker) as letters:
            assert letters.remove(["b"]) == 1
            assert letters.purge() == 2
        assert bodies(subject, broker, DEAD) == []

    def test_a_subscription_dead_letters_in_place(self, subject: Subject) -> None:
        """Service Bus moves the message itself: nothing is sent, so no queue that can be sent to is needed."""
        broker = ordinary(subject)
        assert broker.canonical_url is not None
        subject.deliver(Message(value=b"a", headers=(("kind", b"x"),)), url=broker.canonical_url)

        def refuses(_: Message) -> None:
            raise TerminalNack("closed in 1969")

        spec = DeliverySpec(dead_letter_sink=(Sink(uri="native"),))
        subscription = Subscription(
            broker.canonical_url, refuses, name="in-place", spec=spec, options=subject.place.options
        )
        assert subscription.run(until_empty=True).dead_lettered == 1
        with letters_of(subject, broker) as letters:
            (letter,) = letters
            assert letter.context is not None
            assert letter.context.reason == "closed in 1969"
            assert letters.redrive().removed == 1
        assert bodies(subject, broker) == [b"a"]

    def test_a_subscription_that_rewrites_its_letters_is_told_at_once_what_it_needs(self, subject: Subject) -> None:
        broker = ordinary(subject)
        assert broker.canonical_url is not None
        spec = DeliverySpec(dead_letter_sink=(Sink(uri="native"),), format="json")
        subscription = Subscription(broker.canonical_url, print, name="json", spec=spec, options=subject.place.options)
        with pytest.raises(ConfigurationError, match="redelivery apply"):
            subscription.run(until_empty=True)

    def test_a_writer_is_told_what_it_needs(self, subject: Subject) -> None:
        with pytest.raises(ConfigurationError, match="redelivery apply"):
            ordinary(subject).native_sink()

    def test_both_what_it_said_and_its_description_are_shown(self, subject: Subject) -> None:
        """An application's reason is often a word, and its description says what happened."""
        broker = ordinary(subject)
        assert broker.canonical_url is not None
        subject.deliver(Message(value=b"a"), url=broker.canonical_url)
        name = broker.canonical_url.rpartition("/")[2]
        with (
            ServiceBusClient.from_connection_string(namespace(subject).connection_string) as client,
            client.get_queue_receiver(name) as receiver,
        ):
            (message,) = receiver.receive_messages(1, max_wait_time=10)
            receiver.dead_letter_message(message, reason="ValidationFailed", error_description="no 'iata' in line 7")
        with letters_of(subject, broker) as letters:
            (letter,) = letters
        assert letter.context is not None
        assert letter.context.reason == "ValidationFailed: no 'iata' in line 7"
        assert letter.context.native_code == "ValidationFailed"
