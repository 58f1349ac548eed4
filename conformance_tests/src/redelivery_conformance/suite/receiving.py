"""Receiving: each message arrives unchanged, for one receiver at a time. An accepted message is gone."""

from __future__ import annotations

import threading
import time
from collections import Counter
from contextlib import suppress

import pytest

from redelivery.contract.broker import Accept, Received, Release, Support, Terminate
from redelivery.contract.message import Message
from redelivery.errors import Ambiguous, BrokerError, RedeliveryError
from redelivery_conformance.forking import in_a_fork
from redelivery_conformance.harness import Outage
from redelivery_conformance.statements import Statements, broker_has, broker_lacks
from redelivery_conformance.subject import Subject
from redelivery_conformance.suite.letters import original
from redelivery_conformance.suite.settling import AT_ONCE
from redelivery_conformance.taking import Taker, values, wait_until


def numbered(count: int) -> list[Message]:
    """Return messages with different values."""
    return [Message(value=b"%d" % at) for at in range(count)]


class Receiving(Statements):
    """The receiver delivers messages and removes accepted ones."""

    @broker_has("receive", "send")
    def test_a_message_is_received_as_it_was_sent(self, subject: Subject) -> None:
        sent = original(subject)
        subject.deliver(sent)
        received = Taker(subject).one()
        message = received.message
        assert (message.value, message.key) == (sent.value, sent.key)
        assert message.headers == sent.headers
        assert sent.id is None or message.id == sent.id
        assert sent.timestamp_ms is None or message.timestamp_ms == sent.timestamp_ms
        assert received.undecodable is None

    @broker_has("receive", "send", "null_value")
    def test_null_and_empty_values_are_received_apart(self, subject: Subject) -> None:
        subject.deliver(Message(value=None), Message(value=b""))
        assert sorted(map(repr, values(Taker(subject).take(2)))) == ["None", "b''"]

    @broker_has("receive", "send", "competing_consumers")
    def test_no_more_are_received_than_were_asked_for(self, subject: Subject) -> None:
        """The others are neither leased nor lost: another receiver gets them at once, or when this one closes."""
        subject.deliver(*numbered(7))
        taker = Taker(subject)
        first = taker.take(3)
        if subject.capabilities.competing_consumers is not Support.NATIVE:
            taker.settle(Accept(), *first)
            taker.make_way()
        rest = Taker(subject).take(4)
        assert Counter(values(first) + values(rest)) == Counter(m.value for m in numbered(7))

    @broker_has("receive", "send")
    def test_every_message_is_received_once(self, subject: Subject) -> None:
        subject.deliver(*numbered(200))
        taker, seen = Taker(subject), Counter[bytes | None]()
        while seen.total() < 200:
            received = taker.take(1) + list(taker.receiver.receive(50, wait=0.0))
            seen.update(values(received))
            taker.settle(Accept(), *received)
        assert seen == Counter(m.value for m in numbered(200))
        taker.nothing()
        assert not subject.values()

    @broker_has("receive", "send")
    def test_an_accepted_message_is_gone_for_good(self, subject: Subject) -> None:
        """It does not return when its lease would have ended, nor for another receiver."""
        subject.deliver(Message(value=b"v"))
        taker = Taker(subject, lease=subject.place.lease)
        received = taker.one()
        taker.settle(Accept(), received)
        assert not subject.values()
        taker.lapse(received)
        Taker(subject).nothing()

    @broker_has("receive", "send")
    def test_what_is_received_and_not_settled_is_not_gone(self, subject: Subject) -> None:
        subject.deliver(Message(value=b"v"))
        taker = Taker(subject, lease=subject.place.lease)
        received = taker.one()
        taker.lapse(received)
        assert values(Taker(subject).take(1)) == [b"v"]

    @broker_has("receive", "send", "provision")
    def test_an_empty_queue_gives_nothing_by_its_wait(self, subject: Subject) -> None:
        subject.provision()
        taker = Taker(subject)
        for wait in (0.0, 0.3):
            began = time.monotonic()
            assert not taker.receiver.receive(10, wait=wait)
            took = time.monotonic() - began
            assert wait * 0.9 <= took < wait + AT_ONCE, f"a wait of {wait} s took {took:.2f} s"

    @broker_has("receive", "send")
    def test_receiving_does_not_wait_when_something_is_there(self, subject: Subject) -> None:
        """Nor does it wait until it has the requested number."""
        subject.deliver(*numbered(3))
        taker = Taker(subject)
        began = time.monotonic()
        received = list(taker.receiver.receive(100, wait=10.0))
        assert received
        assert time.monotonic() - began < subject.place.patience / 2

    @broker_has("receive", "send")
    def test_receiving_wakes_when_something_arrives(self, subject: Subject) -> None:
        subject.provision()
        taker = Taker(subject)
        sent: list[float] = []

        def send_later() -> None:
            time.sleep(0.2)
            subject.deliver(Message(value=b"late"))
            sent.append(time.monotonic())

        thread = threading.Thread(target=send_later)
        thread.start()
        try:
            received = taker.receiver.receive(10, wait=subject.place.patience + 5.0)
            arrived = time.monotonic()
        finally:
            thread.join()
        assert values(received) == [b"late"]
        assert arrived - sent[0] < subject.place.patience, "it slept on after the message had arrived"

    @broker_has("receive", "send")
    def test_messages_come_while_others_are_in_hand(self, subject: Subject) -> None:
        taker = Taker(subject)
        for at in range(3):
            subject.deliver(Message(value=b"%d" % at))
            assert values(taker.take(1)) == [b"%d" % at]

    @broker_has("receive", "send")
    @broker_lacks("competing_consumers")
    def test_a_receiver_that_closes_leaves_its_partitions_to_the_next(self, subject: Subject) -> None:
        """The next receiver waits, and then gets the unsettled messages."""
        subject.deliver(*numbered(4))
        first = Taker(subject)
        received = first.take(3)
        second = Taker(subject)
        second.nothing()
        first.settle(Accept(), received[1])
        first.close()
        wanted = Counter(m.value for m in numbered(4)) - Counter([received[1].message.value])
        assert Counter(values(second.take(3))) == wanted
        second.nothing()

    @broker_has("receive", "send", "competing_consumers")
    def test_two_receivers_share_without_doubling(self, subject: Subject) -> None:
        """They run in two threads, each with its own broker. Each message goes to one of them."""
        subject.deliver(*numbered(100))
        seen: list[Counter[bytes | None]] = []
        problems: list[BaseException] = []

        def work() -> None:
            mine: Counter[bytes | None] = Counter()
            try:
                with Taker(subject) as taker:
                    while received := taker.receiver.receive(3, wait=0.3):
                        mine.update(values(received))
                        taker.settle(Accept(), *received)
            except BaseException as error:  # noqa: BLE001 - told by the statement, in its own thread
                problems.append(error)
            seen.append(mine)

        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not problems, problems[0]
        assert seen[0] + seen[1] == Counter(m.value for m in numbered(100))

    @broker_has("receive", "send")
    def test_a_new_receiver_goes_on_where_the_last_one_ended(self, subject: Subject) -> None:
        subject.deliver(*numbered(6))
        with Taker(subject) as first:
            received = first.take(3)
            first.settle(Accept(), *received)
        with Taker(subject) as second:
            rest = second.take(3)
            assert Counter(values(received) + values(rest)) == Counter(m.value for m in numbered(6))
            second.settle(Accept(), *rest)
            second.nothing()

    @broker_has("receive", "send")
    def test_a_message_that_cannot_be_decoded_is_told_and_harms_no_neighbour(self, subject: Subject) -> None:
        subject.provision()
        subject.deliver(Message(value=b"before"))
        subject.place.damage()
        subject.deliver(Message(value=b"after"))
        taker = Taker(subject)
        received = taker.take(3)
        (damaged,) = [each for each in received if each.undecodable is not None]
        assert damaged.undecodable, "it does not say what could not be decoded"
        assert Counter(values([each for each in received if each is not damaged])) == Counter([b"before", b"after"])
        if subject.capabilities.terminate:
            taker.settle(Terminate(damaged.message, "cannot be decoded"), damaged)
        else:
            taker.settle(Accept(), damaged)

    @broker_has("receive", "send")
    def test_a_message_has_a_position_that_names_it(self, subject: Subject) -> None:
        subject.deliver(*numbered(3))
        received = Taker(subject).take(3)
        assert all(each.position for each in received), "people look for it in a log"
        assert len({each.position for each in received}) == 3

    @broker_has("receive", "send")
    def test_a_position_that_is_said_to_last_is_there_when_its_message_is_given_again(self, subject: Subject) -> None:
        """If a subscription is killed before it settles a message, the letter is recognised by this position."""
        subject.deliver(*numbered(3))
        first = Taker(subject)
        given = {each.message.value: each for each in first.take(3)}
        first.settle(Release(), *given.values())
        first.close()
        again = {each.message.value: each for each in Taker(subject).take(3)}
        assert {each.lasting for each in (*given.values(), *again.values())} in ({True}, {False})
        for value, each in given.items():
            assert not each.lasting or each.position == again[value].position


class ReceivingEnds(Statements):
    """Closing a receiver, and missing targets."""

    @broker_has("receive", "send")
    def test_closing_with_work_in_hand_does_not_hang_and_it_comes_back(self, subject: Subject) -> None:
        subject.deliver(*numbered(3))
        taker = Taker(subject, lease=subject.place.lease)
        received = taker.take(2)
        began = time.monotonic()
        taker.close()
        taker.close()
        assert time.monotonic() - began < subject.place.patience
        wait_until(_end(received))
        assert Counter(values(Taker(subject).take(3))) == Counter(m.value for m in numbered(3))

    @broker_has("receive", "send")
    def test_a_closed_receiver_gives_nothing_and_says_so(self, subject: Subject) -> None:
        subject.deliver(Message(value=b"v"))
        taker = Taker(subject)
        taker.close()
        with pytest.raises(RedeliveryError):
            taker.receiver.receive(1, wait=0.0)
        assert values(Taker(subject).take(1)) == [b"v"]

    @broker_has("receive", "send")
    def test_a_receiver_outlives_another_of_the_same_broker(self, subject: Subject) -> None:
        subject.deliver(*numbered(2))
        second, first = Taker(subject, broker=subject.broker), Taker(subject, broker=subject.broker)
        held = second.one()
        first.close()
        second.settle(Accept(), held)
        second.settle(Accept(), second.one())

    @broker_has("receive")
    def test_an_unreachable_broker_is_told_to_a_receiver_by_an_error_of_ours(self, subject: Subject) -> None:
        began = time.monotonic()
        with pytest.raises(BrokerError, match=r"\w"):
            Taker(subject, broker=subject.connect(subject.place.unreachable())).receiver.receive(1, wait=0.1)
        assert time.monotonic() - began < subject.place.patience + 5.0

    @broker_has("receive", "send")
    def test_a_lease_that_a_cut_connection_ended_is_never_settled_quietly(self, subject: Subject) -> None:
        """A client that reconnects must not hide this: a message reported as accepted never comes again."""
        subject.expect_outages()
        subject.deliver(*numbered(3))
        taker = Taker(subject, lease=subject.place.lease)
        received = taker.take(2)
        with subject.outage("reset"):
            pass
        more: list[Received] = []
        with suppress(BrokerError):
            more += taker.receiver.receive(1, wait=0.0)
        answer: object = None
        try:
            (answer,) = taker.answers((received[0], Accept()))
        except BrokerError as error:
            answer = error
        taker.close()
        taker.lapse(*received, *more)
        first = received[0].message.value
        rest = Counter(m.value for m in numbered(3)) - Counter([first])
        again = Taker(subject)
        found = Counter(values(again.take(2, within=subject.place.patience * 2) + again.drain()))
        if answer is None:
            assert found == rest, "accepted, and given again; or another message was accepted in its place"
        elif not isinstance(answer, Ambiguous):
            assert found == rest + Counter([first]), "not accepted, and not given again"

    @broker_has("receive", "send")
    @pytest.mark.parametrize("kind", ["refused", "silent"])
    def test_an_outage_loses_nothing_that_was_in_hand(self, subject: Subject, kind: Outage) -> None:
        """Our own error reports what cannot be settled. The messages exist when the outage is over.

        If the broker does not answer, a request that was written proves nothing.
        """
        subject.expect_outages()
        subject.deliver(*numbered(3))
        taker = Taker(subject, lease=subject.place.lease)
        received = taker.take(2)
        with subject.outage(kind):
            answer: object = None
            try:
                (answer,) = taker.answers((received[0], Accept()))
            except BrokerError as error:
                answer = error
            if kind == "refused":  # the client's timeout is spent only once
                with suppress(BrokerError):
                    taker.receiver.receive(1, wait=0.0)
        assert answer is not None, "confirmed while the broker was out"
        taker.lapse(*received)
        # An ambiguous message may have been accepted: a thawed broker continues with the requests that it received.
        sure = Counter(m.value for m in numbered(3))
        unsure = Counter(values(received[:1])) if isinstance(answer, Ambiguous) else Counter[bytes | None]()
        again = Taker(subject)
        found = Counter(values(again.take((sure - unsure).total(), within=subject.place.patience * 2) + again.drain()))
        assert sure - unsure <= found <= sure

    @broker_has("receive", "send")
    def test_a_receiver_used_in_another_thread_serves_it(self, subject: Subject) -> None:
        subject.deliver(Message(value=b"v"))
        taker = Taker(subject)
        said: list[object] = []

        def work() -> None:
            try:
                taker.settle(Accept(), taker.one())
                said.append("done")
            except BaseException as error:  # noqa: BLE001 - told by the statement, in its own thread
                said.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert said == ["done"]

    @broker_has("receive", "send", "competing_consumers")
    def test_a_fork_with_an_open_receiver_harms_neither_side(self, subject: Subject) -> None:
        """The child opens its own receiver from the inherited broker, and ends."""
        subject.deliver(*numbered(1))
        taker = Taker(subject, broker=subject.broker)
        held = taker.one()
        subject.deliver(*numbered(2))

        def child() -> None:
            own = Taker(subject, broker=subject.broker)
            own.settle(Accept(), own.one())

        assert in_a_fork(subject, child) == 0, "the child could not receive with its own receiver"
        taker.settle(Accept(), held)
        taker.settle(Accept(), taker.one())
        taker.nothing()
        assert not subject.values()


def _end(received: list[Received]) -> float:
    """Return when the last of these leases ends by itself."""
    return max((each.expires for each in received if each.expires is not None), default=0.0)
