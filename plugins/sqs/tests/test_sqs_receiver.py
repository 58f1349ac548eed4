"""The receiver of `sqs:`: answers one by one, lost handles, waits in whole seconds, crashes, groups, letters."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from redelivery.contract.broker import Accept, Received, Release, Retry, Terminate
from redelivery.contract.message import Message
from redelivery.errors import Ambiguous, Fatal, LeaseLost, Retriable
from redelivery.receiving.subscription import Subscription
from redelivery_conformance.forking import in_a_fork
from redelivery_conformance.statements import Statements
from redelivery_conformance.subject import Subject
from redelivery_conformance.taking import Taker, values
from redelivery_sqs.address import Address
from redelivery_sqs.client import batch_requests, connections
from redelivery_sqs.client.queue import Queue
from redelivery_sqs.options import Settings
from redelivery_sqs.receiver import MAX_HIDDEN, Lease
from redelivery_sqs.testing import SqsFifoHarness
from redelivery_sqs.testing.faults import Faults


def numbered(count: int, key: bytes | None = None) -> list[Message]:
    return [Message(value=b"%d" % at, key=key, id=f"n{at}") for at in range(count)]


def spoil(received: Received) -> str:
    """Make its receipt handle one that SQS refuses; what it was."""
    handle: str = received.lease.handle
    received.lease.handle = "no-such-handle"
    return handle


class TestReceiving(Statements):
    broker = "sqs"

    def test_of_many_settled_together_only_those_refused_are_told(self, subject: Subject) -> None:
        """More than one request takes, and SQS answers 200 to each of them."""
        subject.deliver(*numbered(25))
        taker = Taker(subject)
        received = taker.take(25)
        bad = {3, 17}
        for at in bad:
            spoil(received[at])
        answers = taker.answers(*((each, Accept()) for each in received))
        assert {at for at, answer in enumerate(answers) if answer is not None} == bad
        assert all(isinstance(answers[at], LeaseLost) for at in bad)
        with subject.broker.admin() as admin:
            assert admin.depth() == len(bad)

    def test_what_somebody_else_has_deleted_is_a_lost_lease(self, subject: Subject) -> None:
        subject.deliver(*numbered(2))
        taker = Taker(subject)
        first, second = taker.take(2)
        taker.settle(Accept(), first)
        first.lease.is_settled = False  # as if another process had settled it
        answers = taker.answers((first, Retry()), (second, Retry()))
        assert isinstance(answers[0], LeaseLost)
        assert answers[1] is None

    def test_a_lease_that_has_run_out_here_is_lost_without_asking(self, subject: Subject) -> None:
        """SQS takes an old handle, and may delete with it what another receiver holds."""
        subject.deliver(*numbered(1))
        taker = Taker(subject)
        received = taker.one()
        handle = spoil(received)
        received.lease.expires = time.monotonic()
        received.lease.handle = handle
        for outcome in (Accept(), Retry(), Release(), Terminate(received.message)):
            taker.is_lost(received, outcome)
        assert isinstance(taker.receiver.extend([received], 30.0)[0], LeaseLost)
        with subject.broker.admin() as admin:
            assert admin.depth() == 1

    @pytest.mark.parametrize("wait", [0.0, 0.3, 1.0, 1.6, 3.2])
    @pytest.mark.parametrize("read_timeout", ["1", "5"])
    def test_it_waits_as_long_as_asked_though_sqs_waits_whole_seconds(
        self, subject: Subject, wait: float, read_timeout: str
    ) -> None:
        """Nor for longer than the client would wait for the answer."""
        taker = Taker(subject, options={"sqs.read_timeout": read_timeout})
        taker.receiver.receive(1, wait=0.0)  # the connection, and the queue's URL
        began = time.monotonic()
        assert not taker.receiver.receive(10, wait=wait)
        assert wait <= time.monotonic() - began < wait + 0.5

    def test_what_a_crashed_process_had_in_hand_comes_again_and_is_counted(self, subject: Subject) -> None:
        subject.deliver(*numbered(1))

        def child() -> None:
            Taker(subject, lease=1.0).one()
            os._exit(7)

        assert in_a_fork(subject, child) == 7
        assert Taker(subject).one().attempt == 2

    def test_a_lease_is_whole_seconds_and_never_shorter_than_asked(self, subject: Subject) -> None:
        subject.deliver(*numbered(1))
        before = time.monotonic()
        expires = Taker(subject, lease=1.2).one().expires
        assert expires is not None
        assert before + 2 <= expires <= time.monotonic() + 2

    def test_a_slow_handler_keeps_its_message_through_several_leases(self, subject: Subject) -> None:
        subject.deliver(*numbered(1))
        seen: list[bytes | None] = []

        def handler(message: Message) -> None:
            Taker(subject).nothing(3.5)
            seen.append(message.value)

        report = Subscription(
            subject.place.url,
            handler,
            name="slow",
            options=subject.place.options,
            lease=timedelta(seconds=1),
        ).run(until_empty=True)
        assert (seen, report.accepted, report.lost) == ([b"0"], 1, 0)

    def test_many_letters_of_one_call_are_sent_in_requests_that_sqs_takes(self, subject: Subject) -> None:
        """Neither more than ten, nor larger than one request may be; each letter is one, and its message is gone."""
        size = subject.capabilities.limits.batch_bytes or 0
        subject.deliver(*numbered(13))
        taker = Taker(subject)
        received = taker.take(13)
        large = [replace(each.message, value=b"x" * (size // 3)) for each in received]
        taker.answers(*((each, Terminate(letter)) for each, letter in zip(received, large, strict=True)))
        assert len(subject.browse(direct=False)) == 13
        with subject.broker.admin() as admin:
            assert admin.depth() == 0

    def test_settling_on_a_hanging_network_ends_after_one_timeout(
        self, subject: Subject, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Though it is several requests: what hangs is ambiguous, what comes behind is not tried and stays leased."""
        monkeypatch.setattr(batch_requests, "PATIENCE", 0.5)
        subject.deliver(*numbered(3))
        released = threading.Event()

        def hang(operation: str, _given: dict[str, Any], _go_on: Any) -> None:
            if operation not in {"ReceiveMessage", "GetQueueUrl"}:
                released.wait(10)

        with Faults(subject.place.options["sqs.endpoint_url"], hang) as faults:
            options = {"sqs.endpoint_url": faults.url, "sqs.read_timeout": "1"}
            taker = Taker(subject, options=options)
            first, second, third = taker.take(3)
            began = time.monotonic()
            answers = taker.answers((first, Terminate(first.message)), (second, Accept()), (third, Retry()))
            took = time.monotonic() - began
            released.set()
        assert [type(answer) for answer in answers] == [Ambiguous, Retriable, Retriable]
        assert took < 2, "one timeout of the client, not three"

    def test_without_a_dead_letter_queue_a_letter_is_refused_and_its_message_kept(self, subject: Subject) -> None:
        lonely = subject.place.destination("lonely")
        with subject.connect(subject.broker.sibling(lonely)) as broker:
            subject.deliver(*numbered(1), url=subject.broker.sibling(lonely))
            taker = Taker(subject, broker=broker)
            received = taker.one()
            (answer,) = taker.answers((received, Terminate(received.message)))
            assert isinstance(answer, Fatal)
            assert f"{lonely}-dead-letters" in str(answer)
            assert "provision" in str(answer)
            taker.settle(Release(), received)
            assert values(taker.take(1)) == [b"0"]

    def test_a_queue_that_is_not_there_is_fatal_and_the_text_says_what_to_do(self, subject: Subject) -> None:
        receiver = subject.keep(subject.connect(subject.broker.sibling("is-not-there")).receiver())
        with pytest.raises(Fatal, match=r"'is-not-there'.*provision it, or correct URL and region"):
            receiver.receive(1, wait=0.0)


class TestReceivingFifo(Statements):
    broker = SqsFifoHarness()

    def test_the_next_of_a_group_waits_while_one_is_in_hand(self, subject: Subject) -> None:
        """Another group does not; order is kept when the one comes again."""
        subject.deliver(*numbered(3, key=b"a"), Message(value=b"other", key=b"b"))
        taker = Taker(subject)
        first, other = taker.one(), taker.one()
        assert values([first, other]) == [b"0", b"other"]
        taker.nothing()
        taker.settle(Accept(), other)
        taker.settle(Retry(), first)
        for value in (b"0", b"1", b"2"):
            received = taker.one()
            assert received.message.value == value
            taker.settle(Accept(), received)

    def test_a_delay_keeps_its_group_and_no_other_waiting(self, subject: Subject) -> None:
        subject.deliver(*numbered(2, key=b"a"), Message(value=b"other", key=b"b"))
        taker = Taker(subject)
        taker.settle(Retry(timedelta(seconds=2)), taker.one())
        assert values(taker.take(1)) == [b"other"]
        taker.nothing()
        assert values(taker.take(1)) == [b"0"]

    def test_a_message_buried_again_because_it_came_again_is_one_letter(self, subject: Subject) -> None:
        """Its letter was confirmed, and deleting it failed: SQS de-duplicates letters by its own id of the message."""
        subject.deliver(*numbered(1, key=b"a"))
        taker = Taker(subject, lease=1.0)
        received = taker.one()
        spoil(received)
        assert isinstance(taker.answers((received, Terminate(received.message)))[0], LeaseLost)
        again = taker.one()
        taker.settle(Terminate(again.message), again)
        (letter,) = subject.browse(direct=False)
        assert (letter.message.value, letter.message.key) == (b"0", b"a")

    def test_letters_of_one_group_are_shown_in_their_order(self, subject: Subject) -> None:
        subject.deliver(*numbered(4, key=b"a"))
        taker = Taker(subject)
        for received in taker.take(4):
            taker.settle(Terminate(received.message), received)
        assert [each.message.value for each in subject.browse(direct=False)] == [b"0", b"1", b"2", b"3"]

    def test_a_handler_of_a_group_runs_alone_though_its_lease_is_short(self, subject: Subject) -> None:
        subject.deliver(*numbered(3, key=b"a"))
        running = threading.Lock()
        seen: list[bytes | None] = []

        def handler(message: Message) -> None:
            assert running.acquire(blocking=False), "two of one group at once"
            time.sleep(1.5)
            seen.append(message.value)
            running.release()

        def run() -> int:
            subscription = Subscription(
                subject.place.url,
                handler,
                name="alone",
                options=subject.place.options,
                lease=timedelta(seconds=1),
                workers=1,
            )
            return subscription.run(until_empty=True).accepted

        assert run() == 3
        assert seen == [b"0", b"1", b"2"]


# --- without a broker ------------------------------------------------------------------------------------------------


def test_a_lease_is_asked_for_whole_seconds_and_no_further_than_sqs_hides_a_message() -> None:
    lease = Lease("handle", time.monotonic() - 100.5, time.monotonic() + 10, None)
    assert [lease.seconds(wanted) for wanted in (0.0, 0.001, 2.0, MAX_HIDDEN)] == [0, 1, 2, MAX_HIDDEN - 101]
    assert Lease("handle", time.monotonic() - 2 * MAX_HIDDEN, 0.0, None).seconds(5.0) == 0


def test_requests_of_ten_give_each_entry_its_own_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    class Sqs:
        def delete_message_batch(self, *, QueueUrl: str, Entries: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:  # noqa: N803 - SQS's own words
            asked.append(len(Entries))
            assert QueueUrl == "orders"
            refused = {"Id": "1", "Code": "ReceiptHandleIsInvalid", "SenderFault": True, "Message": "no"}
            slow = {"Id": "2", "Code": "RequestThrottled", "SenderFault": False, "Message": "slow"}
            done = [{"Id": each["Id"]} for each in Entries if each["Id"] not in {"1", "2", "3"}]
            return {"Successful": done, "Failed": [refused, slow]}

    monkeypatch.setattr(connections, "boto_client", lambda *_: Sqs())
    monkeypatch.setattr(connections, "queue_url", lambda address, *_, **__: address.queue)
    answers = Queue(Address("orders"), Settings()).delete("deleting from", ["handle"] * 14)
    assert asked == [10, 4]
    assert Counter(type(answer).__name__ for answer in answers) == {
        "NoneType": 8,
        "Permanent": 2,
        "Throttled": 2,
        "Ambiguous": 2,
    }
    assert batch_requests.is_lost(answers[1])
    assert not batch_requests.is_lost(answers[2])


def test_no_request_is_begun_once_a_call_has_taken_its_time() -> None:
    def request(_: object) -> list[batch_requests.Answer]:
        raise AssertionError("begun")

    answers = batch_requests.request_each(request, [{}] * 12, "doing it", end=time.monotonic())
    assert [type(answer) for answer in answers] == [Retriable] * 12


def test_what_comes_behind_a_request_whose_outcome_is_unknown_is_not_tried() -> None:
    def request(_: object) -> list[batch_requests.Answer]:
        raise Ambiguous("no answer")

    answers = batch_requests.request_each(request, [{}] * 25, "doing it")
    assert [type(answer) for answer in answers] == [Ambiguous] * 10 + [Retriable] * 15
