"""Letters of both sides: those that the broker gathered, and those that still lie in the sub-queue."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient
from standin_proxy import Proxy

from redelivery.contract.broker import DeadLetters, Retry
from redelivery.contract.message import Message
from redelivery.errors import BrokerError, Fatal, Retriable
from redelivery_conformance.statements import Statements
from redelivery_conformance.subject import Subject
from redelivery_conformance.taking import Taker
from redelivery_servicebus.testing import DEAD
from servicebus_standin import StandIn


def namespace(subject: Subject) -> StandIn:
    runtime: Any = subject.runtime
    return runtime.namespace  # type: ignore[no-any-return]


def queue(subject: Subject) -> str:
    place: Any = subject.place
    return str(place.queue)


def given_up(subject: Subject, value: bytes) -> None:
    """A message that the broker itself dead-letters."""
    namespace(subject).alter_queue(queue(subject), max_delivery_count=1)
    subject.deliver(Message(value=value))
    with Taker(subject) as taker:
        taker.settle(Retry(), taker.one())


@contextmanager
def far_away(subject: Subject) -> Iterator[DeadLetters]:
    """Five letters, and a round trip of 0.4 s to them."""
    url = subject.broker.native_sink()
    subject.deliver(*(Message(value=b"%d" % at) for at in range(5)), url=url)
    with Proxy(namespace(subject).port, delay=0.2) as proxy:
        url = f"servicebus://localhost:{proxy.port}/{queue(subject)}"
        with subject.connect(url) as broker, broker.dead_letters() as letters:
            yield letters


class TestLetters(Statements):
    broker = "servicebus"

    def test_both_places_are_browsed_removed_and_purged(self, subject: Subject) -> None:
        sink = subject.broker.native_sink()
        given_up(subject, b"forwarded")
        subject.deliver(Message(value=b"written"), url=sink)
        subject.place.alter()  # nothing is forwarded any more
        given_up(subject, b"in the sub-queue")
        found = {letter.message.value: letter for letter in subject.browse(direct=False)}
        assert found.keys() == {b"forwarded", b"written", b"in the sub-queue"}
        assert found[b"in the sub-queue"].position.startswith(f"{queue(subject)}{DEAD}/")
        assert found[b"forwarded"].position.startswith(f"{queue(subject)}-dead-letters/")
        with subject.broker.dead_letters() as letters:
            assert letters.remove([found[b"forwarded"].position, found[b"in the sub-queue"].position]) == 2
            assert letters.purge() == 1
        assert subject.browse(direct=False) == []

    def test_the_brokers_own_reasons_are_told_as_kinds(self, subject: Subject) -> None:
        given_up(subject, b"v")
        (letter,) = subject.browse(direct=False)
        assert letter.context is not None
        assert (letter.context.kind, letter.context.native_code) == ("delivery-limit", "MaxDeliveryCountExceeded")
        assert letter.context.source_topic == queue(subject)
        assert letter.dead_lettered_ms is not None

    def test_removing_one_behind_others_leaves_those(self, subject: Subject) -> None:
        subject.deliver(*(Message(value=b"%d" % at) for at in range(30)))
        positions = {letter.message.value: letter.position for letter in subject.browse(direct=True)}
        with subject.broker.dead_letters(direct=True) as letters:
            assert letters.remove([positions[b"29"], "elsewhere/1", "nonsense", f"{queue(subject)}/999999"]) == 1
        assert subject.values().total() == 29
        with Taker(subject) as taker:
            assert len(taker.take(29)) == 29, "what was looked at was not given back"

    def test_a_letter_that_somebody_has_deferred_is_shown_and_removed(self, subject: Subject) -> None:
        """It is given only to a receiver that names it."""
        place = f"{queue(subject)}-dead-letters"
        subject.deliver(Message(value=b"deferred"), Message(value=b"other"), url=subject.broker.native_sink())
        with (
            ServiceBusClient.from_connection_string(namespace(subject).connection_string) as client,
            client.get_queue_receiver(place) as receiver,
        ):
            receiver.defer_message(receiver.receive_messages(1)[0])
        found = {letter.message.value: letter.position for letter in subject.browse(direct=False)}
        with subject.broker.dead_letters() as letters:
            assert letters.remove([found[b"deferred"]]) == 1
            assert letters.remove([found[b"deferred"]]) == 0
        assert [letter.message.value for letter in subject.browse(direct=False)] == [b"other"]

    def test_without_a_queue_for_letters_the_sub_queue_is_read_alone(self, subject: Subject) -> None:
        name = f"{queue(subject)}-alone"
        namespace(subject).create_queue(name, max_delivery_count=1)
        url = subject.broker.sibling(name)
        subject.deliver(Message(value=b"v"), url=url)
        with subject.connect(url) as broker, Taker(subject, broker=broker) as taker:
            taker.settle(Retry(), taker.one())
        with subject.connect(url) as broker, broker.dead_letters() as letters:
            assert [letter.message.value for letter in letters.browse()] == [b"v"]
            assert letters.purge() == 1

    def test_a_queue_that_is_not_there_is_an_error(self, subject: Subject) -> None:
        told = pytest.raises(BrokerError, match="the queue does not exist")
        with subject.connect(subject.broker.sibling("nobody")) as broker, broker.dead_letters() as letters, told:
            list(letters.browse())

    def test_letters_behind_a_slow_round_trip_are_removed_and_counted(self, subject: Subject) -> None:
        with far_away(subject) as letters:
            positions = [letter.position for letter in letters.browse()]
            assert letters.remove(positions[:2]) == 2
        assert [letter.message.value for letter in subject.browse(direct=False)] == [b"2", b"3", b"4"]

    def test_letters_behind_a_slow_round_trip_are_purged_and_counted(self, subject: Subject) -> None:
        with far_away(subject) as letters:
            assert letters.purge() == 5
        assert subject.browse(direct=False) == []

    def test_a_letter_in_anothers_hand_is_not_called_gone(self, subject: Subject) -> None:
        place = f"{queue(subject)}-dead-letters"
        namespace(subject).alter_queue(place, lock_duration=60.0)
        subject.deliver(Message(value=b"held"), Message(value=b"free"), url=subject.broker.native_sink())
        with (
            ServiceBusClient.from_connection_string(namespace(subject).connection_string) as client,
            client.get_queue_receiver(place) as receiver,
            subject.connect(options={"servicebus.operation_timeout": "1"}) as broker,
            broker.dead_letters() as letters,
        ):
            assert receiver.receive_messages(1)
            positions = [letter.position for letter in letters.browse()]
            with pytest.raises(Retriable, match="1 letters were removed; another receiver has the others"):
                letters.remove(positions)
            subject.deliver(Message(value=b"another"), url=subject.broker.native_sink())
            with pytest.raises(Retriable, match="1 letters were removed; another receiver has the others"):
                letters.purge()
        assert [letter.message.value for letter in subject.browse(direct=False)] == [b"held"]

    def test_that_nothing_is_there_is_told_at_once(self, subject: Subject) -> None:
        with subject.broker.dead_letters() as letters:
            assert list(letters.browse()) == []  # the links are open
            began = time.monotonic()
            assert letters.remove([f"{queue(subject)}-dead-letters/7", f"{queue(subject)}{DEAD}/{10**30}"]) == 0
            assert letters.purge() == 0
            assert time.monotonic() - began < 5.0, "it waited for what is not there"

    def test_a_letter_that_comes_after_a_purge_stays(self, subject: Subject) -> None:
        sink = subject.broker.native_sink()
        subject.deliver(Message(value=b"before"), url=sink)
        with subject.broker.dead_letters() as letters:
            assert letters.purge() == 1
            subject.deliver(Message(value=b"after"), url=sink)
            time.sleep(0.5)
            assert [letter.message.value for letter in letters.browse()] == [b"after"]

    def test_a_cursor_of_a_queue_that_was_created_again_is_refused(self, subject: Subject) -> None:
        subject.deliver(Message(value=b"a"), Message(value=b"b"))
        with subject.broker.dead_letters(direct=True) as letters:
            path, _, rest = letters.cursor().rpartition("/")
            number, _, came_ms = rest.partition("@")
            earlier = f"{path}/{number}@{int(came_ms) - 60_000}"
            with pytest.raises(Fatal, match="created again"):
                letters.cursor(after=earlier)

    def test_letters_that_are_not_forwarded_are_not_left_out_of_a_stream(self, subject: Subject) -> None:
        given_up(subject, b"forwarded")
        with subject.broker.dead_letters() as letters:
            assert letters.cursor().startswith(f"{queue(subject)}-dead-letters/")
        subject.place.alter()  # nothing is forwarded any more
        given_up(subject, b"in the sub-queue")
        with subject.broker.dead_letters() as letters, pytest.raises(Retriable, match="not forwarded"):
            letters.cursor()
