"""Settling: each batch is settled exactly once, by its deadline, and `collect` never blocks the engine."""

from __future__ import annotations

import time
from collections import Counter
from itertools import chain

from redelivery.contract.message import Message
from redelivery.errors import Ambiguous
from redelivery_conformance.statements import Statements, broker_has
from redelivery_conformance.subject import GRACE, Subject, confirmed

#: How long a call that returns at once may take on a busy machine, in seconds.
AT_ONCE = 0.5


class Settling(Statements):
    """The timing of `send` and `collect`."""

    @broker_has("send")
    def test_every_batch_is_settled_exactly_once(self, subject: Subject) -> None:
        sender = subject.sender()
        batches = [subject.batch([Message(value=b"%d" % at)] * 2) for at in range(5)]
        subject.settle(sender, *batches)
        for _ in range(3):
            assert not sender.collect(0.01), "a batch was settled again"

    @broker_has("send")
    def test_several_batches_in_flight_are_all_stored(self, subject: Subject) -> None:
        """All are sent before any is collected. They may be settled in any order."""
        sender = subject.sender()
        batches = [subject.batch([Message(value=b"%d.%d" % (a, b)) for b in range(10)]) for a in range(8)]
        for batch in batches:
            sender.send(batch, deadline=subject.deadline())
        numbers: Counter[int] = Counter()
        end = subject.deadline()
        while numbers.total() < len(batches):
            assert time.monotonic() < end + GRACE, "unsettled at the deadline"
            for settled in sender.collect(0.05):
                assert settled.error is None
                assert not settled.failures
                numbers[settled.batch] += 1
        assert numbers == Counter(batch.number for batch in batches)
        assert subject.values() == Counter(m.value for m in chain(*(batch.rows() for batch in batches)))

    @broker_has("send")
    def test_a_settlement_names_its_own_batch(self, subject: Subject) -> None:
        """The engine chooses the numbers. They need not be consecutive or start at 0."""
        sender = subject.sender()
        for number in (41, 7, 10**12):
            batch = subject.batch([Message(value=b"%d" % number)])
            object.__setattr__(batch, "number", number)
            assert set(subject.settle(sender, batch)) == {number}

    @broker_has("send")
    def test_a_batch_is_settled_by_its_deadline(self, subject: Subject) -> None:
        """`settle` asserts it. An engine would hang if a settlement never came."""
        sender = subject.sender()
        deadline = subject.deadline()
        subject.settle(sender, subject.batch([Message(value=b"v")]), deadline=deadline)
        assert time.monotonic() <= deadline + GRACE

    @broker_has("send")
    def test_a_batch_past_its_deadline_is_accounted_for_at_once(self, subject: Subject) -> None:
        """It is accepted, refused or ambiguous, and the report is true."""
        sender = subject.sender()
        batch = subject.batch([Message(value=b"%d" % at) for at in range(3)])
        began = time.monotonic()
        settled = subject.settle(sender, batch, deadline=began - 1.0)[batch.number]
        assert time.monotonic() - began < GRACE
        taken = Counter(message.value for message in confirmed(batch, settled))
        assert taken <= subject.values(), "confirmed, but not there"
        errors = [each.error for each in settled.failures] + [settled.error]
        if not any(isinstance(error, Ambiguous) for error in errors):
            assert subject.values() == taken, "said not to be stored, but there"

    @broker_has("send")
    def test_collect_returns_at_once_with_nothing_in_flight(self, subject: Subject) -> None:
        sender = subject.sender()
        for _ in range(2):
            began = time.monotonic()
            assert not sender.collect(5.0)
            assert time.monotonic() - began < AT_ONCE
            subject.send(Message(value=b"v"), sender=sender)

    @broker_has("send")
    def test_collect_returns_by_its_wait(self, subject: Subject) -> None:
        sender = subject.sender()
        batch = subject.batch([Message(value=b"v")])
        sender.send(batch, deadline=subject.deadline())
        end, settled = subject.deadline(), 0
        while not settled:
            assert time.monotonic() < end + GRACE, "unsettled at the deadline"
            for wait in (0.0, 0.05):
                began = time.monotonic()
                settled += len(sender.collect(wait))
                assert time.monotonic() - began < wait + AT_ONCE

    @broker_has("send")
    def test_a_good_batch_is_sent_once_and_without_a_pause(self, subject: Subject) -> None:
        """Twenty single rows in a row show that no warm-up, backoff or polling interval delays them."""
        sender = subject.sender()
        subject.send(Message(value=b"first"), sender=sender)
        began = time.monotonic()
        for at in range(20):
            subject.send(Message(value=b"%d" % at), sender=sender)
        assert time.monotonic() - began < subject.place.patience
        assert subject.values().total() == 21

    @broker_has("send")
    def test_a_refused_row_is_tried_once(self, subject: Subject) -> None:
        """Core retries. A plugin reports a refusal at once and does not try again itself."""
        poison = subject.poison()
        sender = subject.sender()
        subject.send(Message(value=b"first"), sender=sender)
        began = time.monotonic()
        subject.send(poison, sender=sender, isolate=True)
        assert time.monotonic() - began < subject.place.patience / 4, "was it retried?"
