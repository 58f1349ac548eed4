"""The dead letters of `sqs:`: what is looked at is hidden for a while, and never lost, counted twice or taken."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import pytest

from redelivery.broker import Accept
from redelivery.deadletters import dead_letters
from redelivery.errors import Ambiguous, ConfigurationError, Fatal, Retriable, Unsupported
from redelivery.message import Message
from redelivery_conformance.statements import Statements
from redelivery_conformance.subject import Subject
from redelivery_conformance.taking import Taker
from redelivery_sqs import letters as module
from redelivery_sqs.address import Address
from redelivery_sqs.config import Settings
from redelivery_sqs.letters import SqsDeadLetters
from redelivery_sqs.testing import SqsFifoHarness

#: What a look leaves hidden that nobody ends.
BRIEFLY = {"sqs.dead_letter_hold": "1"}


def bury(subject: Subject, count: int, key: bytes | None = None) -> None:
    messages = [Message(value=b"%d" % at, key=key, id=f"n{at}") for at in range(count)]
    subject.deliver(*messages, url=subject.broker.native_sink())


def shown(role: Any) -> list[bytes | None]:
    return [letter.message.value for letter in role.browse()]


class TestLooking(Statements):
    broker = "sqs"

    def test_what_is_looked_at_is_seen_by_others_as_soon_as_the_look_is_over(self, subject: Subject) -> None:
        """At its end, when it is given up, when the role is closed: not only when its two minutes are over."""
        bury(subject, 25)
        first, second = subject.dead_letters(direct=False), subject.dead_letters(direct=False)
        assert len(shown(first)) == 25
        assert len(shown(second)) == 25
        assert len(list(islice(first.browse(), 3))) == 3
        assert len(shown(second)) == 25
        look = first.browse()
        next(look)
        assert not shown(second), "in hand"
        first.close()
        assert len(shown(second)) == 25

    def test_a_second_look_of_the_same_reader_sees_all(self, subject: Subject) -> None:
        """After a whole one, after one that was given up, and while one is still open."""
        bury(subject, 12)
        role = subject.dead_letters(direct=False)
        with dead_letters(subject.place.url, options=subject.place.options) as box:
            for look in (lambda: iter(box), role.browse):
                assert len(list(look())) == 12
                assert len(list(islice(look(), 1))) == 1
                open_one = iter(look())
                next(open_one)
                assert len(list(look())) == 12
                del open_one

    def test_what_a_crashed_reader_looked_at_comes_into_sight_by_itself(self, subject: Subject) -> None:
        bury(subject, 3)
        crashed = subject.keep(subject.connect(options=BRIEFLY).dead_letters()).browse()
        next(crashed)
        with subject.broker.dead_letters() as other:
            end = time.monotonic() + subject.place.patience
            while len(found := shown(other)) < 3:
                assert time.monotonic() < end, f"only {found} came into sight"

    def test_a_letter_is_removed_also_when_it_was_looked_at_long_ago(self, subject: Subject) -> None:
        bury(subject, 12)
        with subject.connect(options=BRIEFLY).dead_letters() as role:
            look = role.browse()
            positions = [next(look).position for _ in range(12)]
            time.sleep(1.2)
            assert role.remove(positions[:5]) == 5
            assert role.remove(positions[:7]) == 2
        assert len(subject.browse(direct=False)) == 5

    def test_what_another_has_in_hand_is_neither_removed_nor_purged(self, subject: Subject) -> None:
        bury(subject, 3)
        by_itself = subject.connect(subject.broker.native_sink())
        held = Taker(subject, broker=by_itself).one()
        with subject.broker.dead_letters() as role:
            assert role.remove([held.position]) == 0
            assert role.purge() == 2
        with by_itself.admin() as admin:
            assert admin.depth() == 1

    def test_many_letters_are_shown_page_by_page_each_once(
        self, subject: Subject, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "_PAGE", 20)
        bury(subject, 65)
        assert sorted(shown(subject.dead_letters(direct=False)), key=repr) == sorted(
            (b"%d" % at for at in range(65)), key=repr
        )

    def test_positions_that_are_no_letters_are_none(self, subject: Subject) -> None:
        bury(subject, 1)
        with subject.broker.dead_letters() as role:
            assert role.remove(["", "no-such-letter"]) == 0
        assert len(subject.browse(direct=False)) == 1

    def test_a_closed_role_says_so(self, subject: Subject) -> None:
        role = subject.dead_letters(direct=False)
        role.close()
        role.close()
        for use in (lambda: list(role.browse()), role.purge, lambda: role.remove(["x"])):
            with pytest.raises(Fatal, match="closed"):
                use()

    def test_whose_letters_a_queue_holds_that_is_named_by_itself_is_not_guessed(self, subject: Subject) -> None:
        with pytest.raises(Unsupported, match="by itself"):
            subject.dead_letters(direct=True).move_back(wait=1.0)
        box = dead_letters(subject.place.url, sink=subject.broker.native_sink(), options=subject.place.options)
        with box, pytest.raises(ConfigurationError, match="named by its URL"):
            box.move_back()


class TestLookingIntoGroups(Statements):
    broker = SqsFifoHarness()

    def test_letters_behind_others_of_their_group_are_told_of(
        self, subject: Subject, caplog: pytest.LogCaptureFixture
    ) -> None:
        """SQS shows no more than ten of a group, until those are gone."""
        bury(subject, 25, key=b"k")
        with caplog.at_level(logging.WARNING, "redelivery.sqs"):
            assert shown(subject.dead_letters(direct=False)) == [b"%d" % at for at in range(10)]
        assert "15 letters" in caplog.text

    def test_all_letters_of_a_group_are_redriven_in_their_order(self, subject: Subject) -> None:
        bury(subject, 25, key=b"k")
        with dead_letters(subject.place.url, options=subject.place.options) as box:
            report = box.redrive()
        assert (report.considered, report.removed) == (25, 25)
        taker, came = Taker(subject), []
        while len(came) < 25:
            received = taker.one()
            came.append(received.message.value)
            taker.receiver.settle([(received, Accept())])
        assert came == [b"%d" % at for at in range(25)]

    def test_a_purge_takes_the_letters_behind_too(self, subject: Subject) -> None:
        bury(subject, 25, key=b"k")
        with subject.broker.dead_letters() as role:
            assert role.purge() == 25
            assert role.purge() == 0


# --- without a broker ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("fifo", "dead_ms"), [(False, None), (True, 1_700_000_000_000)])
def test_a_letter_that_sqs_itself_moved_says_why_and_when_as_far_as_sqs_knows(fifo: bool, dead_ms: int | None) -> None:
    """A standard queue's keeps the time at which it was first sent."""
    arn = "arn:aws:sqs:eu-west-1:123456789012:orders"
    attributes = {"SentTimestamp": "1700000000000", "DeadLetterQueueSourceArn": arn}
    letter = module._letter({"MessageId": "m", "Body": "b", "Attributes": attributes}, fifo=fifo)
    assert letter.context is not None
    assert (letter.context.kind, letter.context.destination) == ("delivery-limit", f"sqs:{arn}")
    assert arn in letter.context.reason
    assert letter.dead_lettered_ms == dead_ms


class Moving:
    """An SQS that says of its move tasks what it is told to: no stand-in is slow enough to be caught at it."""

    def __init__(self, *states: Mapping[str, Any]) -> None:
        self.states = list(states)
        self.started: list[Mapping[str, str]] = []

    def get_queue_attributes(self, *, QueueUrl: str, AttributeNames: Sequence[str]) -> Mapping[str, Any]:  # noqa: N803 - SQS's own words
        assert AttributeNames == ["QueueArn"]
        return {"Attributes": {"QueueArn": f"arn:{QueueUrl}"}}

    def get_queue_url(self, *, QueueName: str) -> Mapping[str, Any]:  # noqa: N803 - SQS's own words
        return {"QueueUrl": QueueName}

    def list_message_move_tasks(self, **_: object) -> Mapping[str, Any]:
        return {"Results": [self.states.pop(0) if len(self.states) > 1 else self.states[0]]}

    def start_message_move_task(self, **arns: str) -> Mapping[str, Any]:
        self.started.append(arns)
        return {}


def moving(monkeypatch: pytest.MonkeyPatch, *states: Mapping[str, Any]) -> tuple[Moving, SqsDeadLetters]:
    sqs = Moving(*states)
    monkeypatch.setattr(module, "client", lambda *_: sqs)
    monkeypatch.setattr(module, "queue_url", lambda address, _: address.queue)
    return sqs, SqsDeadLetters(Address("orders"), Settings(), direct=False)


RUNNING = {"Status": "RUNNING", "ApproximateNumberOfMessagesMoved": 3, "ApproximateNumberOfMessagesToMove": 9}


def test_a_move_is_waited_for_and_told_where_to(monkeypatch: pytest.MonkeyPatch) -> None:
    done = {"Status": "COMPLETED", "ApproximateNumberOfMessagesMoved": 9}
    sqs, role = moving(monkeypatch, {"Status": "COMPLETED"}, RUNNING, done)
    assert role.move_back(wait=5.0) == 9
    assert sqs.started == [{"SourceArn": "arn:orders-dead-letters", "DestinationArn": "arn:orders"}]


def test_a_second_move_of_a_queue_is_refused_and_told_how_far_the_first_is(monkeypatch: pytest.MonkeyPatch) -> None:
    sqs, role = moving(monkeypatch, RUNNING)
    with pytest.raises(Retriable, match=r"another move task is under way; about 3 of 9 are moved"):
        role.move_back(wait=5.0)
    assert not sqs.started


def test_a_move_that_takes_longer_than_the_wait_goes_on_and_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    _, role = moving(monkeypatch, {}, RUNNING)
    with pytest.raises(Ambiguous, match=r"it goes on; about 3 of 9 are moved"):
        role.move_back(wait=0.3)


def test_a_move_that_failed_is_told_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = {"Status": "FAILED", "FailureReason": "AWS.SimpleQueueService.NonExistentQueue"}
    _, role = moving(monkeypatch, {}, failed)
    with pytest.raises(Retriable, match=r"FAILED AWS.SimpleQueueService.NonExistentQueue.*the rest is still there"):
        role.move_back(wait=5.0)
