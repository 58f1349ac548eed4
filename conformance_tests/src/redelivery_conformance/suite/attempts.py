"""Attempts and retries: the count of deliveries, the time of the first one, and delays."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta

import pytest

from redelivery.contract.broker import Accept, Received, Release, Retry, Support
from redelivery.contract.message import Message
from redelivery.errors import BrokerError
from redelivery_conformance.statements import Statements, broker_has, broker_lacks
from redelivery_conformance.subject import NotApplicable, Subject
from redelivery_conformance.suite.letters import original
from redelivery_conformance.suite.receiving import numbered
from redelivery_conformance.taking import LONG, QUIET, Taker, values

#: A delay long enough to distinguish early from late, in seconds.
DELAY = 0.3


def _lapse(taker: Taker, received: Received) -> None:
    taker.lapse(received)


def _retry(taker: Taker, received: Received) -> None:
    taker.settle(Retry(), received)


def _close(taker: Taker, received: Received) -> None:
    taker.close()
    taker.lapse(received)


#: How a delivery can end without the message being handled, where the delivery counts.
ENDS: dict[str, Callable[[Taker, Received], None]] = {"lease-ran-out": _lapse, "retry": _retry, "restart": _close}


class Attempts(Statements):
    """`Received.attempt` and `Received.first_ms`."""

    @broker_has("receive", "send", "attempts")
    @pytest.mark.parametrize("end", ENDS)
    def test_attempts_count_the_deliveries(self, subject: Subject, end: str) -> None:
        """They are 1, 2, 3. Where the count is a lower bound it may be too low, but never too high."""
        subject.deliver(Message(value=b"v"))
        for truth in (1, 2, 3):
            # A lease that is to run out is short; a lease that is settled must not run out.
            taker = Taker(subject, lease=LONG if end == "retry" else subject.place.lease)
            received = taker.one()
            self._counts(subject, received, truth)
            ENDS[end](taker, received)
            taker.make_way()

    @broker_has("receive", "send", "attempts")
    def test_attempts_are_each_messages_own(self, subject: Subject) -> None:
        subject.deliver(*numbered(2))
        taker = Taker(subject)
        again, other = taker.take(2)
        for truth in (2, 3):
            taker.settle(Retry(), again)
            again = taker.one()
            self._counts(subject, again, truth)
        taker.settle(Release(), other)
        assert taker.one().attempt <= 2

    @broker_has("receive", "send", "attempts")
    def test_what_is_given_back_never_counts_more_than_once(self, subject: Subject) -> None:
        """It counts at least the deliveries that were not released. Better brokers do not count released ones."""
        subject.deliver(Message(value=b"v"))
        taker = Taker(subject)
        taker.settle(Retry(), taker.one())
        taker.settle(Release(), taker.one())
        received = taker.one()
        low = 1 if subject.capabilities.attempts is Support.LOWER_BOUND else 2
        assert low <= received.attempt <= 3

    @broker_has("receive", "send")
    @broker_lacks("attempts")
    def test_without_attempts_the_number_never_claims_too_much(self, subject: Subject) -> None:
        subject.deliver(Message(value=b"v"))
        taker = Taker(subject)
        for truth in (1, 2):
            received = taker.one()
            assert 1 <= received.attempt <= truth
            taker.settle(Retry(), received)

    @broker_has("receive", "send", "first_delivery")
    def test_the_first_delivery_is_told_and_stays_the_first(self, subject: Subject) -> None:
        """The time is wall-clock time; a difference between the clocks of two machines is allowed."""
        subject.deliver(Message(value=b"v"))
        taker = Taker(subject)
        before = time.time_ns() // 1_000_000
        first = taker.one()
        after = time.time_ns() // 1_000_000
        assert first.first_ms is not None
        assert before - 1_000 <= first.first_ms <= after + 1_000
        time.sleep(0.05)
        taker.settle(Retry(), first)
        second = taker.one()
        assert second.first_ms == first.first_ms
        taker.settle(Retry(), second)
        taker.make_way()
        assert Taker(subject).one().first_ms == first.first_ms

    @broker_has("receive", "send")
    @broker_lacks("first_delivery")
    def test_without_the_first_delivery_none_is_told(self, subject: Subject) -> None:
        subject.deliver(Message(value=b"v"))
        assert Taker(subject).one().first_ms is None

    @staticmethod
    def _counts(subject: Subject, received: Received, truth: int) -> None:
        if subject.capabilities.attempts is Support.LOWER_BOUND:
            assert 1 <= received.attempt <= truth
        else:
            assert received.attempt == truth


class Retrying(Statements):
    """`Retry`, with a delay and without one."""

    @broker_has("receive", "send")
    def test_a_retry_without_a_delay_comes_again_at_once(self, subject: Subject) -> None:
        subject.deliver(Message(value=b"v"))
        taker = Taker(subject)
        taker.settle(Retry(), taker.one())
        assert values(taker.take(1)) == [b"v"]

    @broker_has("receive", "send", "delay")
    def test_a_retry_is_never_early_and_not_much_later(self, subject: Subject) -> None:
        """This holds for any receiver. The retry may be early by the resolution in the capabilities, at most."""
        subject.deliver(Message(value=b"v"))
        taker, other = Taker(subject), Taker(subject)
        received = taker.one()
        before = time.monotonic()
        taker.settle(Retry(timedelta(seconds=DELAY)), received)
        taker.make_way()
        other.one(within=DELAY + subject.place.patience)
        took = time.monotonic() - before
        early = subject.capabilities.limits.delay_resolution.total_seconds()
        assert took >= DELAY - early, f"a delay of {DELAY} s took {took:.3f} s"

    @broker_has("receive", "send", "delay")
    def test_each_retry_keeps_its_own_delay(self, subject: Subject) -> None:
        """A long delay does not hold up shorter delays behind it."""
        subject.deliver(*numbered(3))
        taker = Taker(subject)
        received = taker.take(3)
        delays = [timedelta(minutes=5), timedelta(seconds=DELAY), timedelta(0)]
        answers = taker.answers(*((each, Retry(delay)) for each, delay in zip(received, delays, strict=True)))
        assert answers == [None] * 3
        soon = taker.one()
        later = taker.one(within=DELAY + subject.place.patience)
        assert values([soon, later]) == [received[2].message.value, received[1].message.value]
        taker.nothing()

    @broker_has("receive", "send", "delay")
    def test_a_retry_keeps_no_neighbour_waiting(self, subject: Subject) -> None:
        subject.deliver(*numbered(5))
        taker = Taker(subject)
        first = taker.one()
        taker.settle(Retry(timedelta(minutes=5)), first)
        rest = taker.take(4)
        assert first.message.value not in values(rest)
        taker.settle(Accept(), *rest)
        subject.deliver(Message(value=b"new"))
        assert values(taker.take(1)) == [b"new"]

    @broker_has("receive", "send", "delay")
    def test_a_delay_outlives_its_receiver(self, subject: Subject) -> None:
        """The delay neither ends with the connection nor is lost with it."""
        subject.deliver(Message(value=b"v"))
        with Taker(subject) as taker:
            received = taker.one()
            before = time.monotonic()
            taker.settle(Retry(timedelta(seconds=DELAY)), received)
        other = Taker(subject)
        again = other.one(within=DELAY + subject.place.patience)
        early = subject.capabilities.limits.delay_resolution.total_seconds()
        assert time.monotonic() - before >= DELAY - early, "too early"
        assert again.message.value == b"v"

    @broker_has("receive", "send")
    def test_a_retried_message_comes_as_it_was(self, subject: Subject) -> None:
        """It is identical byte for byte, with its own id, after any number of retries."""
        subject.deliver(original(subject))
        taker = Taker(subject)
        first = taker.one()
        again = first
        for _ in range(3):
            taker.settle(Retry(), again)
            again = taker.one()
            assert again.message == first.message

    @broker_has("receive", "send", "delay", "limits.delay_max")
    def test_a_delay_over_the_longest_is_refused_or_kept_as_far_as_it_can_be(self, subject: Subject) -> None:
        """It never means no delay. If it is refused, the lease stays valid."""
        longest = subject.capabilities.limits.delay_max
        assert longest is not None
        subject.deliver(*numbered(2))
        taker = Taker(subject)
        received, neighbour = taker.take(2)
        answer, other = taker.answers((received, Retry(longest + timedelta(seconds=10))), (neighbour, Accept()))
        assert other is None, "its neighbour was harmed"
        if isinstance(answer, BrokerError):
            taker.settle(Accept(), received)
        else:
            assert answer is None
            Taker(subject).nothing(min(QUIET, longest.total_seconds() / 2))

    @broker_has("receive", "send")
    @broker_lacks("delay")
    def test_without_delays_asking_for_one_is_unsupported(self, subject: Subject) -> None:
        """It changes nothing: the lease stays valid."""
        subject.deliver(Message(value=b"v"))
        taker = Taker(subject)
        received = taker.one()
        subject.is_unsupported(lambda: taker.receiver.settle([(received, Retry(timedelta(seconds=1)))]))
        taker.settle(Accept(), received)

    @broker_has("receive", "send", "attempts", "delay")
    def test_waiting_out_a_delay_is_not_an_attempt(self, subject: Subject) -> None:
        subject.deliver(Message(value=b"v"))
        taker = Taker(subject)
        taker.settle(Retry(timedelta(seconds=DELAY)), taker.one())
        # A look that finds nothing must not count. Where each look takes its time, one of them finds the message.
        looks = [each for _ in range(3) for each in taker.receiver.receive(1, wait=0.0)]
        received = looks[0] if looks else taker.one(within=DELAY + subject.place.patience)
        if subject.capabilities.attempts is Support.LOWER_BOUND:
            raise NotApplicable("capability attempts is lower-bound")
        assert received.attempt == 2
