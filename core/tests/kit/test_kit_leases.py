"""Leases end once, and each outcome gets one answer, in order."""

import os
import time

import pytest

from redelivery.codes import Code
from redelivery.contract.broker import Accept, Outcome, Received, Release, Retry, Terminate
from redelivery.contract.message import Message
from redelivery.errors import Ambiguous, Fatal, LeaseLost, Permanent
from redelivery.kit.leases import Lease, Settlement, answer_extend, is_held, lost, prolonged


def received(number: int, expires: float | None = None) -> Received:
    lease = Lease(expires)
    return Received(message=Message(value=b"m"), attempt=1, lease=lease, expires=expires, position=str(number))


def lost_one(each: Received) -> LeaseLost:
    return lost("carrier", "queue 'orders'", each)


def settlement(*outcomes: tuple[Received, Outcome]) -> Settlement:
    return Settlement(outcomes, is_held, lost_one)


def test_a_lease_is_valid_until_it_expires_or_is_settled_and_in_its_own_process() -> None:
    lease = Lease(10.0)
    assert lease.is_valid(9.9)
    assert not lease.is_valid(10.0)
    assert Lease(None).is_valid()
    assert not Lease(time.monotonic() - 1).is_valid()
    lease.is_settled = True
    assert not lease.is_valid(9.0)
    inherited = Lease(None)
    inherited.pid = os.getppid()
    assert not inherited.is_valid()


def test_a_prolonged_message_says_when_its_lease_ends_now() -> None:
    given = received(1, 10.0)
    again = prolonged(given, 20.0)
    assert (again.expires, again.lease.expires, again.lease is given.lease) == (20.0, 20.0, True)


def test_outcomes_are_sorted_by_kind_and_answered_in_order() -> None:
    messages = [received(number) for number in range(4)]
    letter = Terminate(Message(value=b"l"))
    call = settlement((messages[0], letter), (messages[1], Accept()), (messages[2], Release()), (messages[3], Accept()))
    assert [at for at, _ in call.waiting(Accept)] == [1, 3]
    assert call.waiting(Terminate) == [(0, (messages[0], letter))]
    assert [at for at, _ in call.waiting(Retry, Release)] == [2]
    refused = Permanent("no")
    call.answer(3, None)
    call.answer(0, refused)
    call.lose(2)
    assert call.answers[0] is refused
    assert isinstance(call.answers[2], LeaseLost)
    assert call.answers[3] is None
    assert [at for at, _ in call.waiting(Accept, Terminate, Release)] == [1]
    assert [each.lease.is_settled for each in messages] == [False, False, True, True]


def test_a_message_without_a_valid_lease_is_lost_at_once() -> None:
    old = received(7, time.monotonic() - 1)
    foreign = Received(message=Message(value=b"m"), attempt=1, lease="theirs", position="8")
    call = settlement((old, Accept()), (foreign, Accept()))
    assert [str(each) for each in call.answers] == [
        f"carrier: message {position} of queue 'orders': its lease has run out, belongs to another process, or was "
        "settled before; nothing was changed"
        for position in (7, 8)
    ]
    assert call.waiting(Accept) == []


def test_the_second_outcome_of_one_message_is_lost() -> None:
    message = received(1)
    call = settlement((message, Accept()), (message, Release()))
    assert len(call.waiting(Accept)) == 1
    assert call.waiting(Release) == []
    assert isinstance(call.answers[1], LeaseLost)


def test_an_outcome_is_answered_once() -> None:
    call = settlement((received(1), Accept()))
    call.answer(0, None)
    with pytest.raises(KeyError):
        call.answer(0, None)


def test_a_message_whose_copy_was_not_stored_stays_leased() -> None:
    messages = [received(number) for number in range(3)]
    call = settlement(*((each, Terminate(Message(value=b"l"))) for each in messages))
    refused, doubtful = Permanent("no"), Ambiguous("no answer", code=Code.CONNECTION_LOST)
    call.answer_failed_copies({0: refused, 1: doubtful})
    assert call.answers[0] is refused
    told = call.answers[1]
    assert isinstance(told, Ambiguous)
    assert "may be there twice" in str(told)
    assert (told.code, told.__cause__) == (Code.CONNECTION_LOST, doubtful)
    assert [at for at, _ in call.waiting(Terminate)] == [2]
    assert [each.lease.is_valid() for each in messages] == [True, True, True]


def test_the_rest_can_be_answered_alike() -> None:
    call = settlement((received(1), Accept()), (received(2), Release()))
    call.answer(0, None)
    error = Fatal("the broker is gone")
    call.answer_rest(error)
    assert call.answers == [None, error]


def test_prolonged_leases_are_answered_in_order_and_the_others_stay_as_they_were() -> None:
    messages = [received(number, 10.0) for number in range(4)]
    answers = answer_extend(messages, {0: 20.0, 1: Permanent("no"), 2: None}, lost_one)
    assert [each.expires for each in answers[:3]] == [20.0, 10.0, 10.0]
    assert messages[0].lease.expires == 20.0
    assert isinstance(answers[3], LeaseLost)
    assert answer_extend([], {}, lost_one) == []


def test_where_every_lease_that_was_tried_failed_the_call_fails() -> None:
    messages = [received(number, 10.0) for number in range(3)]
    error = Fatal("no right")
    with pytest.raises(Fatal, match="no right"):
        answer_extend(messages, {0: error, 1: None}, lost_one)
    assert all(isinstance(each, LeaseLost) for each in answer_extend(messages, {}, lost_one))
