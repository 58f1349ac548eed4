"""Terminating: the message goes, and its complete letter appears in the dead letter queue with the reason."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace

import pytest

from redelivery.contract.broker import Accept, Letter, Received, Retry, Support, Terminate
from redelivery.contract.context import GIVEN_UP
from redelivery.contract.message import Message
from redelivery.errors import BrokerError
from redelivery.formats import dialects
from redelivery_conformance.statements import Statements, broker_has, broker_lacks
from redelivery_conformance.subject import GRACE, Subject
from redelivery_conformance.suite.letters import CONTEXT, KEY, original
from redelivery_conformance.suite.receiving import numbered
from redelivery_conformance.taking import LONG, QUIET, Taker, values

REASON = "no such airport"
#: The native limit of deliveries.
DELIVERIES = 3


def letter_of(subject: Subject, received: Received) -> Message:
    """Return the letter of a received message, as core makes it."""
    has = subject.capabilities
    return dialects.attach(
        received.message,
        CONTEXT,
        dialect=has.context_dialect,
        limits=has.limits,
        prefix=has.cloudevents_prefix,
        key=KEY,
    )


class Terminating(Statements):
    """`Terminate`."""

    @broker_has("receive", "send", "terminate", "browse", "headers")
    def test_a_terminated_message_is_a_letter_whole_with_its_context(self, subject: Subject) -> None:
        subject.provision()
        subject.deliver(original(subject))
        taker = Taker(subject)
        received = taker.one()
        letter = letter_of(subject, received)
        taker.settle(Terminate(letter, REASON), received)
        (found,) = subject.browse(direct=False)
        sent = original(subject)
        assert (found.message.value, found.message.key) == (sent.value, sent.key)
        assert [each for each in found.message.headers if each in sent.headers] == list(sent.headers)
        assert dialects.read(found.message) == dialects.read(letter)
        assert dialects.strip(found.message) == dialects.strip(letter), "what is redriven is not what was received"
        assert dialects.is_signed(found.message, [KEY]), "what was signed has changed on its way"

    @broker_has("receive", "send", "terminate", "browse")
    def test_a_terminated_message_is_gone_when_its_letter_is_there(self, subject: Subject) -> None:
        """When `settle` returns, it is done. At every moment the message is in at least one of the two places."""
        subject.provision()
        subject.deliver(*numbered(3))
        taker = Taker(subject, lease=subject.place.lease)
        received = taker.one()
        taker.settle(Terminate(received.message, REASON), received)
        assert self._letters(subject) == [received.message.value]
        taker.lapse(received)
        rest = Taker(subject).take(2)
        assert Counter(values([received, *rest])) == Counter(m.value for m in numbered(3))

    @broker_has("receive", "send", "terminate", "browse")
    def test_a_lost_lease_leaves_no_letter(self, subject: Subject) -> None:
        subject.provision()
        subject.deliver(Message(value=b"v"))
        taker = Taker(subject)
        received = taker.one()
        taker.settle(Accept(), received)
        taker.is_lost(received, Terminate(received.message, REASON))
        assert not self._letters(subject)

    @broker_has("receive", "send", "terminate", "browse")
    def test_terminating_twice_leaves_one_letter(self, subject: Subject) -> None:
        subject.provision()
        subject.deliver(Message(value=b"v"))
        taker = Taker(subject)
        received = taker.one()
        taker.settle(Terminate(received.message, REASON), received)
        taker.is_lost(received, Terminate(received.message, REASON))
        assert self._letters(subject) == [b"v"]

    @broker_has("receive", "send", "terminate", "browse", "ids")
    def test_two_letters_of_one_id_are_both_kept(self, subject: Subject) -> None:
        """A letter is not a duplicate of its message: deduplication must not drop it."""
        subject.provision()
        taker = Taker(subject)
        for value in (b"first", b"second"):
            subject.deliver(Message(value=value, id=value.decode()))
            received = taker.one()
            taker.settle(Terminate(replace(received.message, id="the-same"), REASON), received)
        assert self._letters(subject) == [b"first", b"second"]

    @broker_has("receive", "send", "terminate")
    def test_a_letter_that_cannot_be_stored_is_refused_alone_and_its_message_kept(self, subject: Subject) -> None:
        poison = replace(subject.poison(), destination=None)
        if poison.value == b"poison" and not poison.headers and poison.id is None:
            poison = replace(poison, value=bytes((subject.capabilities.limits.message_bytes or 0) + 1))
        subject.provision()
        subject.deliver(*numbered(2))
        taker = Taker(subject)
        bad, good = taker.take(2)
        answers = taker.answers((bad, Terminate(poison, REASON)), (good, Accept()))
        assert isinstance(answers[0], BrokerError), f"{answers[0]!r} for a letter that cannot be stored"
        assert answers[1] is None, "its neighbour was harmed"
        taker.settle(Retry(), bad)
        assert values(taker.take(1)) == [bad.message.value]

    @broker_has("receive", "send", "terminate", "browse", "reason")
    def test_the_native_place_keeps_the_reason(self, subject: Subject) -> None:
        """It does so even if the letter itself has no reason. The description may follow it."""
        subject.provision()
        subject.deliver(Message(value=b"v"))
        taker = Taker(subject)
        received = taker.one()
        taker.settle(Terminate(received.message, REASON, "described"), received)
        (letter,) = subject.browse(direct=False)
        assert letter.context is not None
        assert letter.context.reason in {REASON, f"{REASON}: described"}

    @broker_has("receive", "send", "terminate", "browse", "headers")
    @broker_lacks("reason")
    def test_without_a_reason_of_its_own_the_letter_alone_holds_it(self, subject: Subject) -> None:
        subject.provision()
        subject.deliver(Message(value=b"v"))
        taker = Taker(subject)
        received = taker.one()
        letter = letter_of(subject, received)
        taker.settle(Terminate(letter, REASON), received)
        (found,) = subject.browse(direct=False)
        assert found.context is None or found.context.reason != REASON, "the capabilities say less than there is"
        assert dialects.read(found.message) == dialects.read(letter)

    @broker_has("receive", "send")
    @broker_lacks("terminate")
    def test_without_terminating_asking_for_it_is_unsupported(self, subject: Subject) -> None:
        """It changes nothing: the lease stays valid."""
        subject.deliver(Message(value=b"v"))
        taker = Taker(subject)
        received = taker.one()
        subject.is_unsupported(lambda: taker.receiver.settle([(received, Terminate(received.message, REASON))]))
        taker.settle(Accept(), received)

    @staticmethod
    def _letters(subject: Subject) -> list[bytes | None]:
        return [letter.message.value for letter in subject.browse(direct=False)]


class Limiting(Statements):
    """Messages that the broker itself dead-letters: delivered too often, or expired."""

    @broker_has("receive", "send", "delivery_limit", "browse", "dead_letter")
    @pytest.mark.parametrize("end", ["lease-ran-out", "retry"])
    def test_a_message_given_too_often_goes_to_the_dead_letters(self, subject: Subject, end: str) -> None:
        """That happens at the limit of deliveries, or one later: brokers count from 0 or from 1."""
        subject.provision()
        options = subject.place.limiting(DELIVERIES)
        subject.deliver(original(subject), Message(value=b"neighbour"), options=options)
        given = 0
        while not (letters := subject.browse(direct=False)):
            taker = Taker(subject, options=options, lease=LONG if end == "retry" else subject.place.lease)
            received = taker.drain()
            hit = [each for each in received if each.message.value == original(subject).value]
            given += len(hit)
            assert given <= DELIVERIES + 1, "given more often than the limit says"
            if end == "retry":
                taker.settle(Retry(), *hit)
            taker.settle(Accept(), *(each for each in received if each not in hit))
            taker.lapse(*(hit if end != "retry" else []))
            taker.close()
        assert given >= (1 if subject.capabilities.delivery_limit is Support.LOWER_BOUND else DELIVERIES)
        _same_original(subject, letters, "delivery-limit")

    @broker_has("receive", "send")
    @broker_lacks("delivery_limit")
    def test_without_a_limit_a_message_comes_however_often(self, subject: Subject) -> None:
        subject.deliver(Message(value=b"v"))
        taker = Taker(subject)
        for _ in range(25):
            taker.settle(Retry(), taker.one())
        assert values(taker.take(1)) == [b"v"]

    @broker_has("receive", "send", "expiry", "browse", "dead_letter")
    def test_an_expired_message_goes_to_the_dead_letters(self, subject: Subject) -> None:
        subject.provision()
        subject.deliver(original(subject), options=subject.place.expiring(0.2))
        time.sleep(0.3)
        Taker(subject).nothing()
        end = time.monotonic() + subject.place.patience
        while not (letters := subject.browse(direct=False)):
            assert time.monotonic() < end + GRACE, "neither given nor among the dead letters"
        _same_original(subject, letters, "expired")

    @broker_has("receive", "send", "expiry")
    def test_a_message_is_given_until_it_expires(self, subject: Subject) -> None:
        subject.provision()
        subject.deliver(Message(value=b"v"), options=subject.place.expiring(60.0))
        taker = Taker(subject)
        taker.settle(Accept(), taker.one())

    @broker_has("receive", "send")
    @broker_lacks("expiry")
    def test_without_expiry_what_waits_is_still_given(self, subject: Subject) -> None:
        subject.deliver(Message(value=b"v"))
        time.sleep(QUIET)
        assert values(Taker(subject).take(1)) == [b"v"]


def _same_original(subject: Subject, letters: list[Letter], kind: str) -> None:
    """Assert that the only letter is the original, and that its native reason is mapped to the agreed code."""
    assert [each.message.value for each in letters] == [original(subject).value], [each.context for each in letters]
    (letter,) = letters
    why = letter.context
    assert why is not None or not subject.capabilities.reason, "the broker gave it up, and does not say so"
    assert why is None or (why.kind, why.code) == (kind, GIVEN_UP[kind])
    sent, message = original(subject), letter.message
    assert (message.value, message.key) == (sent.value, sent.key)
    assert [each for each in message.headers if each in sent.headers] == list(sent.headers)
