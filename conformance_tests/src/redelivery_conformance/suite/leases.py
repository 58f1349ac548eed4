"""Leases: one receiver holds a message until it settles it or the lease ends. A lost lease changes nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import permutations

import pytest

from redelivery.contract.broker import Accept, Outcome, Received, Release, Retry, Terminate
from redelivery.contract.message import Message
from redelivery.errors import LeaseLost
from redelivery_conformance.statements import Statements, broker_has, broker_lacks
from redelivery_conformance.subject import NotApplicable, Subject
from redelivery_conformance.suite.receiving import numbered
from redelivery_conformance.taking import LONG, Taker, values, wait_until

#: Every way to end a lease.
OUTCOMES: dict[str, Callable[[Received], Outcome]] = {
    "accept": lambda _: Accept(),
    "retry": lambda _: Retry(),
    "terminate": lambda received: Terminate(received.message, "given up"),
    "give-back": lambda _: Release(),
}


def ending(subject: Subject, name: str, received: Received) -> Outcome:
    """Return an outcome by name."""
    if name == "terminate" and not subject.capabilities.terminate:
        raise NotApplicable("capability terminate is none")
    return OUTCOMES[name](received)


class Leases(Statements):
    """A lease and its end."""

    @broker_has("receive", "send")
    def test_a_leased_message_is_hidden_from_a_second_receiver(self, subject: Subject) -> None:
        subject.deliver(Message(value=b"v"))
        first, second = Taker(subject), Taker(subject)
        received = first.one()
        second.nothing()
        first.nothing()
        first.settle(Accept(), received)

    @broker_has("receive", "send")
    def test_a_lease_says_when_it_ends_by_the_monotonic_clock(self, subject: Subject) -> None:
        subject.deliver(Message(value=b"v"))
        before = time.monotonic()
        expires = Taker(subject, lease=LONG).one().expires
        if expires is None:
            raise NotApplicable("a lease lasts as long as its connection")
        slack = subject.capabilities.limits.delay_resolution.total_seconds()
        lasts = LONG if subject.capabilities.leases_as_asked else subject.place.lease
        assert before + lasts / 2 < expires <= time.monotonic() + lasts + slack

    @broker_has("receive", "send")
    def test_a_message_comes_back_when_its_lease_has_run_out_and_not_before(self, subject: Subject) -> None:
        subject.deliver(Message(value=b"v"))
        received = Taker(subject, lease=subject.place.lease).one()
        if received.expires is None:
            raise NotApplicable("a lease lasts as long as its connection")
        second = Taker(subject)
        again = second.one(within=subject.place.lease + subject.place.patience)
        came = time.monotonic()
        assert came >= received.expires - subject.capabilities.limits.delay_resolution.total_seconds(), "too early"
        assert again.message.value == b"v"
        second.settle(Accept(), again)

    @broker_has("receive", "send")
    @pytest.mark.parametrize("name", OUTCOMES)
    def test_settling_after_the_lease_has_run_out_changes_nothing(self, subject: Subject, name: str) -> None:
        subject.deliver(Message(value=b"v"))
        taker = Taker(subject, lease=subject.place.lease)
        received = taker.one()
        outcome = ending(subject, name, received)
        taker.lapse(received)
        if received.expires is None:
            raise NotApplicable("a lease lasts as long as its connection")
        before = subject.place.snapshot()
        taker.is_lost(received, outcome)
        assert subject.place.snapshot() == before, "a lost lease changed something"
        assert values(Taker(subject).take(1)) == [b"v"]

    @broker_has("receive", "send")
    @pytest.mark.parametrize("name", OUTCOMES)
    def test_a_lost_lease_leaves_the_message_to_its_new_holder(self, subject: Subject, name: str) -> None:
        """The slow receiver wakes up while the other one works. It must not end the other's lease."""
        subject.deliver(Message(value=b"v"))
        slow, other = Taker(subject, lease=subject.place.lease), Taker(subject)
        lost = slow.one()
        outcome = ending(subject, name, lost)
        slow.lapse(lost)
        if lost.expires is None:
            raise NotApplicable("a lease lasts as long as its connection")
        held = other.one()
        slow.is_lost(lost, outcome)
        Taker(subject).nothing()
        other.settle(Accept(), held)
        assert not subject.values()

    @broker_has("receive", "send")
    @pytest.mark.parametrize("name", OUTCOMES)
    def test_settling_twice_is_a_lost_lease(self, subject: Subject, name: str) -> None:
        """This also holds if the first outcome makes the broker deliver the message again."""
        subject.provision()
        subject.deliver(Message(value=b"v"))
        taker = Taker(subject)
        received = taker.one()
        taker.settle(ending(subject, name, received), received)
        for again in (Accept(), Release(), Retry()):
            taker.is_lost(received, again)
        if name in {"retry", "give-back"}:
            assert values(taker.take(1)) == [b"v"]
        else:
            taker.nothing()

    @broker_has("receive", "send")
    def test_one_lost_lease_among_good_ones_harms_none_of_them(self, subject: Subject) -> None:
        subject.deliver(*numbered(3))
        taker = Taker(subject)
        received = taker.take(3)
        taker.settle(Accept(), received[0])
        answers = taker.answers(*((each, Accept()) for each in (received[1], received[0], received[2])))
        assert [type(answer) for answer in answers] == [type(None), LeaseLost, type(None)]
        taker.nothing()
        assert not subject.values()

    @broker_has("receive", "send")
    def test_one_message_twice_in_a_call_is_settled_once(self, subject: Subject) -> None:
        subject.deliver(Message(value=b"v"))
        taker = Taker(subject)
        received = taker.one()
        first, second = taker.answers((received, Release()), (received, Accept()))
        assert first is None
        assert isinstance(second, LeaseLost)
        assert values(taker.take(1)) == [b"v"]

    @broker_has("receive", "send")
    def test_each_outcome_of_a_mixed_call_is_carried_out(self, subject: Subject) -> None:
        subject.deliver(*numbered(4))
        taker = Taker(subject)
        received = taker.take(4)
        outcomes: list[Outcome] = [Accept(), Retry(), Release(), Accept()]
        assert taker.answers(*zip(received, outcomes, strict=True)) == [None] * 4
        wanted = sorted(values([received[1], received[2]]), key=repr)
        assert sorted(values(taker.take(2)), key=repr) == wanted
        taker.nothing()

    @broker_has("receive", "send")
    def test_settling_nothing_is_nothing(self, subject: Subject) -> None:
        subject.deliver(Message(value=b"v"))
        taker = Taker(subject)
        received = taker.one()
        assert taker.answers() == []
        taker.settle(Accept(), received)

    @broker_has("receive", "send", "settle_any_order")
    def test_messages_are_settled_in_any_order(self, subject: Subject) -> None:
        subject.deliver(*numbered(18))
        taker = Taker(subject)
        received = taker.take(18)
        for at, order in enumerate(permutations(range(3))):
            for index in order:
                taker.settle(Accept(), received[3 * at + index])
        assert not subject.values()
        taker.nothing()

    @broker_has("receive", "send", "settle_any_order")
    def test_settling_one_message_is_not_cumulative(self, subject: Subject) -> None:
        """If the last of three messages is accepted, the two before it still arrive."""
        subject.deliver(*numbered(3))
        taker = Taker(subject, lease=subject.place.lease)
        received = taker.take(3)
        taker.settle(Accept(), received[2])
        taker.lapse(*received)
        assert sorted(values(Taker(subject).take(2)), key=repr) == sorted(values(received[:2]), key=repr)

    @broker_has("receive", "send")
    @broker_lacks("settle_any_order")
    def test_without_any_order_messages_are_settled_in_the_order_given(self, subject: Subject) -> None:
        subject.deliver(*numbered(5))
        taker = Taker(subject)
        for received in taker.take(5):
            taker.settle(Accept(), received)
        taker.nothing()
        assert not subject.values()

    @broker_has("receive", "send")
    def test_what_is_given_back_comes_again_soon(self, subject: Subject) -> None:
        """It need not wait for the lease, and it is unchanged."""
        subject.deliver(*numbered(3))
        taker = Taker(subject)
        received = taker.take(3)
        taker.settle(Release(), *received)
        taker.make_way()
        again = Taker(subject).take(3)
        assert sorted(values(again), key=repr) == sorted(values(received), key=repr)

    @broker_has("receive", "send", "provision", "depth")
    @broker_lacks("depth_counts_leased")
    def test_depth_leaves_out_what_is_in_hand_and_says_so(self, subject: Subject) -> None:
        subject.provision()
        subject.deliver(*numbered(3))
        Taker(subject).take(2)
        assert subject.keep(subject.broker.admin()).depth() == 1

    @broker_has("receive", "send", "provision", "depth", "depth_counts_leased")
    def test_depth_counts_what_is_in_hand(self, subject: Subject) -> None:
        subject.provision()
        subject.deliver(*numbered(3))
        taker = Taker(subject)
        received = taker.take(2)
        admin = subject.keep(subject.broker.admin())
        assert admin.depth() == 3
        taker.settle(Accept(), *received)
        assert admin.depth() == 1

    @broker_has("receive", "send", "browse", "purge", "dead_letter")
    def test_purging_letters_leaves_what_is_in_hand(self, subject: Subject) -> None:
        subject.provision()
        subject.deliver(Message(value=b"letter"), url=subject.broker.native_sink())
        subject.deliver(*numbered(2))
        taker = Taker(subject)
        received = taker.one()
        with subject.broker.dead_letters() as letters:
            assert letters.purge() == 1
        taker.settle(Accept(), received)
        taker.settle(Accept(), taker.one())


class Extending(Statements):
    """Extending a lease."""

    @broker_has("receive", "send", "extend")
    def test_a_prolonged_lease_outlasts_its_first_end(self, subject: Subject) -> None:
        subject.deliver(Message(value=b"v"))
        taker, other = Taker(subject, lease=subject.place.lease), Taker(subject)
        received = taker.one()
        self._near_its_end(subject, received)
        longer = self._extend(taker, received, LONG)
        assert longer.expires is not None
        assert received.expires is not None
        assert longer.expires > received.expires
        assert longer.message == received.message
        wait_until(received.expires)
        other.nothing(subject.place.lease / (2 if subject.capabilities.leases_as_asked else 4))
        taker.settle(Accept(), longer)
        assert not subject.values()

    @broker_has("receive", "send", "extend")
    def test_a_prolonged_lease_ends_when_it_says(self, subject: Subject) -> None:
        subject.deliver(Message(value=b"v"))
        taker, other = Taker(subject, lease=subject.place.lease), Taker(subject)
        longer = self._extend(taker, taker.one(), subject.place.lease * 1.5)
        other.one(within=subject.place.lease * 2 + subject.place.patience)
        assert longer.expires is not None
        slack = subject.capabilities.limits.delay_resolution.total_seconds()
        assert time.monotonic() >= longer.expires - slack, "too early"
        taker.is_lost(longer, Accept())

    @broker_has("receive", "send", "extend")
    def test_a_lease_is_prolonged_from_now_and_not_from_its_end(self, subject: Subject) -> None:
        """So a lease can be shortened, too."""
        subject.deliver(Message(value=b"v"))
        taker, other = Taker(subject, lease=LONG), Taker(subject)
        self._extend(taker, taker.one(), subject.place.lease)
        other.one(within=subject.place.lease + subject.place.patience)

    @broker_has("receive", "send", "extend")
    def test_a_lost_lease_is_not_prolonged(self, subject: Subject) -> None:
        subject.deliver(*numbered(2))
        taker, other = Taker(subject, lease=subject.place.lease), Taker(subject)
        ran_out, settled = taker.take(2)
        taker.settle(Accept(), settled)
        taker.lapse(ran_out)
        answers = taker.receiver.extend([ran_out, settled], LONG)
        assert [type(answer) for answer in answers] == [LeaseLost, LeaseLost]
        assert values(other.take(1)) == [ran_out.message.value]

    @broker_has("receive", "send", "extend")
    def test_the_good_leases_of_a_call_are_prolonged(self, subject: Subject) -> None:
        subject.deliver(*numbered(3))
        taker = Taker(subject, lease=subject.place.lease)
        received = taker.take(3)
        taker.settle(Accept(), received[0])
        self._near_its_end(subject, *received)
        answers = taker.receiver.extend(received, LONG)
        assert [type(answer) for answer in answers] == [LeaseLost, Received, Received]
        taker.lapse(*received)
        Taker(subject).nothing()
        taker.settle(Accept(), *(each for each in answers if isinstance(each, Received)))

    @broker_has("receive", "send")
    @broker_lacks("extend")
    def test_without_extension_asking_for_it_is_unsupported(self, subject: Subject) -> None:
        subject.deliver(Message(value=b"v"))
        taker = Taker(subject)
        received = taker.one()
        subject.is_unsupported(lambda: taker.receiver.extend([received], LONG))
        taker.settle(Accept(), received)

    @staticmethod
    def _near_its_end(subject: Subject, *received: Received) -> None:
        """Wait until a lease is near its end. If the place sets its duration, extending it has no effect before."""
        if not subject.capabilities.leases_as_asked:
            wait_until(min(each.expires or 0.0 for each in received) - subject.place.lease / 4)

    @staticmethod
    def _extend(taker: Taker, received: Received, seconds: float) -> Received:
        (answer,) = taker.receiver.extend([received], seconds)
        assert isinstance(answer, Received), f"a good lease was not prolonged: {answer!r}"
        return answer
