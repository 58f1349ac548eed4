"""Receiving: locks go by their tokens, copies carry the count, and nothing is between two places in no place."""

import time
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageProperties

from redelivery.contract.broker import Accept, Outcome, Received, Retry, Terminate
from redelivery.contract.message import Message
from redelivery.errors import Ambiguous, LeaseLost, Retriable
from redelivery_conformance.statements import Statements
from redelivery_conformance.subject import Subject
from redelivery_conformance.taking import Taker
from servicebus_standin import StandIn
from servicebus_standin.codec import APPLICATION, DATA, Raw, section, write


def namespace(subject: Subject) -> StandIn:
    runtime: Any = subject.runtime
    return runtime.namespace  # type: ignore[no-any-return]


def queue(subject: Subject) -> str:
    place: Any = subject.place
    return str(place.queue)


def by_others(subject: Subject, *messages: ServiceBusMessage | AmqpAnnotatedMessage) -> None:
    """Sent by another producer."""
    text = namespace(subject).connection_string
    with ServiceBusClient.from_connection_string(text) as client, client.get_queue_sender(queue(subject)) as theirs:
        for each in messages:
            theirs.send_messages(each)


def soon(received: Received) -> Retry:
    return Retry(timedelta(milliseconds=100))


class TestReceiving(Statements):
    broker = "servicebus"

    def test_a_lock_outlives_its_link_and_settles_no_other_message(self, subject: Subject) -> None:
        """On a new link numbers start again: settling by them would settle other messages."""
        subject.deliver(Message(value=b"first"), Message(value=b"second"))
        taker = Taker(subject)
        first = taker.one()
        with subject.runtime.outage():
            pass
        again: list[Received] = []
        for _ in range(3):  # the cut link raises, once
            try:
                again = taker.take(1)
                break
            except Exception:  # noqa: BLE001, S112 - whichever it is
                continue
        assert [each.message.value for each in again] == [b"second"]
        assert list(taker.receiver.settle([(first, Accept())])) == [None]
        assert list(subject.values()) == [b"second"]

    def test_a_link_that_was_idle_too_long_is_opened_anew(self, subject: Subject) -> None:
        """Messages leased over it are still settled: locks belong to the queue."""
        namespace(subject).alter_queue(queue(subject), lock_duration=60.0)
        subject.deliver(Message(value=b"first"), Message(value=b"second"))
        taker = Taker(subject)
        first = taker.one()
        namespace(subject).detach_links()
        again: list[Received] = []
        told = 0
        while not again and told < 3:
            try:
                again = list(taker.receiver.receive(1, wait=10.0))
            except (Retriable, Ambiguous):  # of the link that is gone
                told += 1
        assert [each.message.value for each in again] == [b"second"]
        assert list(taker.receiver.settle([(first, Accept()), (again[0], Accept())])) == [None, None]
        assert not subject.values()

    def test_attempts_go_on_through_copies_and_abandoned_deliveries(self, subject: Subject) -> None:
        subject.deliver(Message(value=b"v", id="i", key=b"k", headers=(("h", b"1"),)))
        taker = Taker(subject)
        first = received = taker.one()
        outcomes: list[Outcome] = [soon(received), Retry(), soon(received), Retry(), Accept()]
        for truth, outcome in enumerate(outcomes, 1):
            assert received.attempt == truth
            assert received.message == first.message
            taker.settle(outcome, received)
            if not isinstance(outcome, Accept):
                received = taker.one()
        assert not subject.values()

    def test_a_copy_is_not_taken_for_a_duplicate_of_its_message(self, subject: Subject) -> None:
        name = f"{queue(subject)}-once"
        namespace(subject).create_queue(name, requires_duplicate_detection=True, lock_duration=5.0)
        url = subject.broker.sibling(name)
        subject.deliver(Message(value=b"v", id="i"), url=url)
        with subject.connect(url) as broker:
            taker = Taker(subject, broker=broker)
            for _ in range(3):
                taker.settle(soon(received := taker.one()), received)
            received = taker.one()
            assert (received.message.id, received.attempt) == ("i", 4)
            taker.settle(Accept(), received)
            taker.close()
        assert not namespace(subject).messages(name)

    def test_a_retried_message_of_another_maker_stays_as_it_was(self, subject: Subject) -> None:
        properties: Any = {"n": 42, "ok": True}
        sent = ServiceBusMessage(b"v", application_properties=properties, subject="s", correlation_id="c")
        by_others(subject, sent)
        taker = Taker(subject)
        received = taker.one()
        taker.settle(soon(received), received)
        again = taker.one()
        assert again.message == received.message
        (seen,) = namespace(subject).messages(queue(subject))
        assert (seen.subject, seen.correlation_id) == ("s", "c")
        assert (seen.application_properties["n"], seen.application_properties["ok"]) == (42, True)

    def test_a_message_that_the_sdk_cannot_send_is_retried_without_a_delay_only(self, subject: Subject) -> None:
        subject.place.damage()
        taker = Taker(subject)
        received = taker.one()
        assert received.undecodable
        taker.settle(soon(received), received)
        assert taker.one(within=5).undecodable

    def test_a_lock_that_another_took_is_lost_and_leaves_no_copy(self, subject: Subject) -> None:
        """Though by our own clock it is ours: a machine that slept, or a clock that is wrong."""
        subject.deliver(Message(value=b"v"))
        taker, other = Taker(subject), Taker(subject)
        received = taker.one()
        taker.lapse(received)
        mine = other.one()
        received.lease.expires = time.monotonic() + 60
        assert isinstance(taker.receiver.settle([(received, soon(received))])[0], LeaseLost)
        other.settle(Accept(), mine)
        assert not subject.values()

    def test_one_lost_lock_among_many_keeps_no_other_from_being_accepted(self, subject: Subject) -> None:
        """Many are completed in one request, which fails as a whole."""
        subject.deliver(*(Message(value=b"%d" % at) for at in range(4)))
        taker, other = Taker(subject), Taker(subject)
        first, second, *rest = taker.take(4)
        held, lost = [first, *rest], list[Received]()
        while not lost:  # all four locks began at the same moment: those that are to stay are renewed
            held = [each for each in taker.receiver.extend(held, 60.0) if isinstance(each, Received)]
            lost = list(other.receiver.receive(1, wait=0.1))
        (mine,) = lost
        second.lease.expires = time.monotonic() + 60
        answers = taker.receiver.settle([(each, Accept()) for each in (held[0], second, *held[1:])])
        assert [answer if answer is None else type(answer) for answer in answers] == [None, LeaseLost, None, None]
        assert mine.message.value == second.message.value
        other.settle(Accept(), mine)
        assert not subject.values()

    def test_a_reason_and_a_description_are_cut_to_what_service_bus_takes(self, subject: Subject) -> None:
        subject.provision()
        subject.deliver(Message(value=b"v"))
        taker = Taker(subject)
        received = taker.one()
        taker.settle(Terminate(received.message, "r" * 5_000, "d" * 5_000), received)
        (seen,) = namespace(subject).messages(f"{queue(subject)}-dead-letters")
        assert (seen.reason, seen.description) == ("r" * 4_096, "d" * 4_096)

    def test_a_letter_with_another_body_is_sent_before_its_message_is_completed(self, subject: Subject) -> None:
        subject.provision()
        subject.deliver(Message(value=b"v", id="i"))
        taker = Taker(subject)
        received = taker.one()
        taker.settle(Terminate(Message(value=b"mended", id="i"), "reason"), received)
        assert [letter.message.value for letter in subject.browse(direct=False)] == [b"mended"]
        assert not subject.values()

    def test_a_delayed_retry_keeps_numbers_over_32_bits_and_bytes(self, subject: Subject) -> None:
        """The SDK would send neither by itself, and gives a timestamp as such a number."""
        numbers = {"long": 1 << 40, "below": -(1 << 40), "ulong": Raw(b"\x80" + b"\xff" * 8), "bytes": b"\xff\xfe"}
        namespace(subject).put(queue(subject), section(APPLICATION, write(numbers)) + section(DATA, write(b"v")))
        by_others(subject, ServiceBusMessage(b"v", application_properties={"d": datetime(2026, 1, 1, tzinfo=UTC)}))
        taker = Taker(subject)
        for received in taker.take(2):
            taker.settle(soon(received), received)
            again = taker.one()
            assert (again.message, again.attempt) == (received.message, 2)
            taker.settle(Accept(), again)

    @pytest.mark.parametrize(
        "properties",
        [
            {"redelivery": '{"gone":[[1]]}'},
            {"redelivery": "[" * 20_000},
            {"redelivery": 5},
            {1: "a number", "text": "a name", b"\xff": "and bytes"},
        ],
        ids=["gone", "deep", "number", "names"],
    )
    def test_an_odd_message_does_not_keep_its_neighbours(self, subject: Subject, properties: Any) -> None:
        subject.provision()
        namespace(subject).put(queue(subject), section(APPLICATION, write(properties)) + section(DATA, write(b"odd")))
        by_others(subject, ServiceBusMessage(b"neighbour"))
        taker = Taker(subject)
        odd, neighbour = taker.take(2)
        assert (odd.message.value, neighbour.message.value) == (b"odd", b"neighbour")
        assert (odd.undecodable is not None) == ("redelivery" in properties)
        assert all(isinstance(name, str) for name, _ in odd.message.headers)
        taker.settle(Accept(), neighbour)
        taker.settle(Terminate(odd.message, "odd"), odd)
        assert [letter.message.value for letter in subject.browse(direct=False)] == [b"odd"]

    @pytest.mark.parametrize(
        ("given", "text"),
        [
            (UUID("12345678-1234-5678-1234-567812345678"), "12345678-1234-5678-1234-567812345678"),
            (17, "17"),
            (b"\xff\xfe", "fffe"),
        ],
        ids=["uuid", "int", "bytes"],
    )
    def test_an_id_of_another_type_is_text_and_outlives_a_delayed_retry(
        self, subject: Subject, given: Any, text: str
    ) -> None:
        subject.provision()
        by_others(subject, AmqpAnnotatedMessage(data_body=[b"v"], properties=AmqpMessageProperties(message_id=given)))
        taker = Taker(subject)
        received = taker.one()
        assert received.message.id == text
        taker.settle(soon(received), received)
        again = taker.one()
        assert (again.message, again.undecodable, again.attempt) == (received.message, None, 2)
        taker.settle(Terminate(again.message, "no"), again)
        assert [letter.message.id for letter in subject.browse(direct=False)] == [text]

    def test_what_a_queue_holds_is_dead_lettered_though_we_would_not_send_it(self, subject: Subject) -> None:
        """Where its body stays, only what Service Bus keeps of properties counts, and not our sender's own limits."""
        subject.provision()
        by_others(
            subject,
            ServiceBusMessage(bytes(250_000), message_id="large"),
            ServiceBusMessage(b"v", message_id="wide", application_properties={"trace": "y" * 25_000}),
        )
        taker = Taker(subject)
        for received in taker.take(2):
            headers = (*received.message.headers, ("redelivery-context", b"{}"))
            letter = Message(value=received.message.value, id=received.message.id, headers=headers)
            taker.settle(Terminate(letter, "bad", "worse"), received)
        found = {letter.message.id: letter.message for letter in subject.browse(direct=False)}
        assert {id_: len(message.value or b"") for id_, message in found.items()} == {"large": 250_000, "wide": 1}
        assert all(("redelivery-context", b"{}") in message.headers for message in found.values())

    def test_a_context_that_does_not_fit_is_left_out_and_its_message_dead_lettered(
        self, subject: Subject, caplog: pytest.LogCaptureFixture
    ) -> None:
        """It would come again forever. The missing context is logged."""
        subject.provision()
        subject.deliver(Message(value=b"v", headers=(("h", b"1"),)))
        taker = Taker(subject)
        received = taker.one()
        huge = Message(value=b"v", headers=(("context", b"x" * 70_000),))
        taker.settle(Terminate(huge, "reason", "description"), received)
        (letter,) = subject.browse(direct=False)
        assert (letter.message.value, letter.message.headers) == (b"v", (("h", b"1"),))
        (seen,) = namespace(subject).messages(f"{queue(subject)}-dead-letters")
        assert (seen.reason, seen.description) == ("reason", "description")
        assert "without its context" in caplog.text
