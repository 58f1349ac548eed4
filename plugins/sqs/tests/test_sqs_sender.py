"""The sender: requests of ten, failures by entry, and a faulty server."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from redelivery.contract.broker import Settled
from redelivery.contract.message import Batch, Message
from redelivery.errors import (
    Ambiguous,
    BrokerError,
    Fatal,
    NotSent,
    Permanent,
    Retriable,
    Throttled,
    Unattributed,
)
from redelivery_conformance.statements import Statements
from redelivery_conformance.subject import Subject
from redelivery_sqs.address import Address
from redelivery_sqs.client.queue import Queue
from redelivery_sqs.client.send_queues import FifoSendQueue, PendingBatch, PendingRow
from redelivery_sqs.options import Settings
from redelivery_sqs.testing import SqsFifoHarness, consumed
from redelivery_sqs.testing.faults import Answer, Faults, Lost, Rule, refusal


class Log:
    """A rule that keeps the bodies of each request; with `patient`, each waits a while for another beside it."""

    def __init__(self, *, patient: bool = False) -> None:
        self.requests: list[list[str]] = []
        self.most = self.now = 0
        self._patient = patient
        self._two = threading.Event()
        self._lock = threading.Lock()

    def __call__(self, operation: str, given: dict[str, Any], go_on: Any) -> Answer | None:
        if operation != "SendMessageBatch":
            return None
        bodies = [each["MessageBody"] for each in given["Entries"]]
        with self._lock:
            self.requests.append(bodies)
            self.now += 1
            self.most = max(self.most, self.now)
            if self.most > 1:
                self._two.set()
        try:
            if self._patient:
                self._two.wait(3)
            answer: Answer = go_on(given)
            return answer
        finally:
            with self._lock:
                self.now -= 1


@contextmanager
def behind(subject: Subject, rule: Rule, **options: str) -> Iterator[Callable[..., Settled]]:
    """Send to the place through a server that answers by a rule."""
    with Faults(subject.place.options["sqs.endpoint_url"], rule) as faults:
        broker = subject.connect(options={"sqs.endpoint_url": faults.url, **options})
        sender = subject.keep(broker.sender())

        def send(
            *messages: Message, isolate: bool = False, ordered: bool = False, seconds: float | None = None
        ) -> Settled:
            batch = subject.batch(messages, isolate=isolate, ordered=ordered)
            return subject.settle(sender, batch, deadline=subject.deadline(seconds))[batch.number]

        yield send


def rows(count: int, size: int = 1) -> list[Message]:
    return [Message(value=b"%d" % at + b" " * (size - 1)) for at in range(count)]


def errors(settled: Settled) -> dict[int, BrokerError]:
    return {each.index: each.error for each in settled.failures}


def denied(operation: str) -> Rule:
    return lambda asked, _given, _go_on: refusal("AccessDeniedException", "no", 403) if asked == operation else None


def throttled_once() -> Rule:
    left = iter([refusal("RequestThrottled", status=403)])
    return lambda asked, _given, _go_on: next(left, None) if asked == "SendMessageBatch" else None


def some_fail(asked: str, given: dict[str, Any], go_on: Any) -> Answer | None:
    """Every entry whose body begins with '!' fails as the rest of it says, and the others are passed on."""
    if asked != "SendMessageBatch":
        return None
    bad = [each for each in given["Entries"] if each["MessageBody"].startswith("!")]
    good = [each for each in given["Entries"] if each not in bad]
    status, answer = go_on({**given, "Entries": good}) if good else (200, {})
    failed = []
    for each in bad:
        code, fault = each["MessageBody"][1:].split()
        failed.append({"Id": each["Id"], "Code": code, "SenderFault": fault == "sender", "Message": "injected"})
    return status, {**answer, "Failed": [*answer.get("Failed", ()), *failed]}


class TestSending(Statements):
    broker = "sqs"

    def test_requests_are_filled_by_count(self, subject: Subject) -> None:
        log = Log(patient=True)
        with behind(subject, log, **{"sqs.concurrency": "4"}) as send:
            assert not send(*rows(95)).failures
        assert sorted(map(len, log.requests)) == [5, *[10] * 9]
        assert log.most > 1, "several were in flight"

    def test_requests_are_filled_by_bytes(self, subject: Subject) -> None:
        """A batch over the limit of a request is several, none over it."""
        log = Log()
        most = subject.capabilities.limits.batch_bytes or 0
        with behind(subject, log) as send:
            assert not send(*rows(7, size=most // 3)).failures
        assert sorted(map(len, log.requests)) == [1, 3, 3]

    def test_isolated_rows_go_alone(self, subject: Subject) -> None:
        log = Log()
        with behind(subject, log) as send:
            assert not send(*rows(5), isolate=True).failures
        assert [len(each) for each in log.requests] == [1] * 5

    def test_what_was_accepted_is_never_sent_again(self, subject: Subject) -> None:
        """Failed entries are matched to their rows, by whose fault it is; their neighbours are stored, once."""
        codes = {2: "Invalid sender", 5: "InternalError service", 11: "RequestThrottled service"}
        messages = [
            replace(row, value=f"!{codes[at]}".encode() if at in codes else row.value)
            for at, row in enumerate(rows(15))
        ]
        with behind(subject, some_fail) as send:
            found = errors(send(*messages))
        assert {at: type(error) for at, error in found.items()} == {2: Permanent, 5: Retriable, 11: Throttled}
        assert subject.values() == Counter(row.value for at, row in enumerate(messages) if at not in codes)

    def test_one_row_over_the_limit_among_ten_fails_alone(self, subject: Subject) -> None:
        most = subject.capabilities.limits.batch_bytes or 0
        messages = [*rows(9), Message(value=b"x" * (most + 1))]
        with subject.broker.sender() as sender:
            settled = subject.send(*messages, sender=sender)
        subject.refused(settled, 9)
        assert subject.values() == Counter(row.value for row in messages[:9])

    def test_a_limit_set_too_high_is_found_by_isolation(self, subject: Subject) -> None:
        """The server refuses the whole request then, and stores nothing of it."""
        broker = subject.connect(options={"sqs.max_message_bytes": str(4 << 20)})
        large = Message(value=b"x" * (2 << 20))
        with broker.sender() as sender:
            settled = subject.send(Message(value=b"a"), large, sender=sender)
            assert {type(error) for error in errors(settled).values()} == {Unattributed}
            assert not subject.values()
            subject.refused(subject.send(Message(value=b"a"), large, sender=sender, isolate=True), 1)
        assert subject.values() == Counter([b"a"])

    def test_a_lost_answer_makes_its_request_ambiguous_and_no_other(self, subject: Subject) -> None:
        def lose(asked: str, given: dict[str, Any], go_on: Any) -> Answer | None:
            if asked == "SendMessageBatch" and given["Entries"][0]["MessageBody"] == "0":
                go_on(given)
                raise Lost
            return None

        with behind(subject, lose) as send:
            found = errors(send(*rows(20)))
        assert {at: type(error) for at, error in found.items()} == dict.fromkeys(range(10), Ambiguous)
        assert subject.values().total() == 20, "what is ambiguous had been stored"

    def test_an_answer_that_names_no_row_makes_its_request_ambiguous_and_the_next_one_goes(
        self, subject: Subject
    ) -> None:
        """By one thread: it lives on."""
        odd: Iterator[Any] = iter([{"Failed": [{"Code": "InternalError", "SenderFault": False}]}, {"Failed": ["text"]}])

        def answer(asked: str, _given: object, _go_on: object) -> Answer | None:
            found = next(odd, None) if asked == "SendMessageBatch" else None
            return None if found is None else (200, found)

        with behind(subject, answer, **{"sqs.concurrency": "1"}) as send:
            for _ in range(2):
                assert {type(error) for error in errors(send(*rows(3))).values()} == {Ambiguous}
            assert not send(*rows(3)).failures

    def test_a_throttled_request_is_told_as_such_and_not_repeated(self, subject: Subject) -> None:
        with behind(subject, throttled_once()) as send:
            assert {type(error) for error in errors(send(*rows(10))).values()} == {Throttled}
            assert not subject.values()
            assert not send(*rows(10)).failures

    @pytest.mark.parametrize(
        ("operation", "action"), [("SendMessageBatch", "sqs:SendMessage"), ("GetQueueUrl", "sqs:GetQueueUrl")]
    )
    def test_a_denied_action_is_fatal_and_named(self, subject: Subject, operation: str, action: str) -> None:
        with behind(subject, denied(operation)) as send:
            found = errors(send(*rows(3)))
        assert {type(error) for error in found.values()} == {Fatal}
        assert f"it needs {action}" in str(found[0])

    def test_expired_credentials_are_fatal(self, subject: Subject) -> None:
        with behind(subject, lambda *_: refusal("ExpiredTokenException", "expired", 403)) as send:
            assert {type(error) for error in errors(send(*rows(3))).values()} == {Fatal}

    def test_a_queue_that_is_not_there_is_fatal_and_says_what_to_do(self, subject: Subject) -> None:
        with subject.connect(subject.place.url.replace("sqs:", "sqs:no-")) as broker, broker.sender() as sender:
            (failure,) = subject.send(Message(value=b"v"), sender=sender).failures
        assert isinstance(failure.error, Fatal)
        assert "provision it, or correct URL and region" in str(failure.error)

    def test_a_row_without_a_place_in_sqs_harms_no_neighbour(self, subject: Subject) -> None:
        """More than ten attributes, and a body of characters that SQS forbids: both are carried by other means."""
        many = Message(value=b"\0\x01", headers=tuple((f"h{at}", b"v") for at in range(11)))
        subject.deliver(*rows(3), many)
        subject.returns(*rows(3), many)


class TestFifo(Statements):
    broker = SqsFifoHarness()

    def test_an_entry_that_fails_keeps_back_the_later_ones_of_its_group(self, subject: Subject) -> None:
        """Though SQS itself would store the later entries of the request (seen on ElasticMQ)."""
        texts = [b"0", b"!InternalError service", b"2", b"3"]
        messages = [Message(value=text, key=key, id=f"{key!r}{text!r}") for text in texts for key in (b"a", b"b")]
        messages[3] = replace(messages[3], value=b"b1")
        with behind(subject, some_fail) as send:
            found = errors(send(*messages, ordered=True))
            assert {at: type(error) for at, error in found.items()} == {2: Retriable, 4: NotSent, 6: NotSent}
            again = [replace(messages[2], value=b"1"), messages[4], messages[6]]
            assert not send(*again, ordered=True).failures
        stored = [(each.key, each.value) for each in consumed(subject)]
        assert [value for key, value in stored if key == b"a"] == [b"0", b"1", b"2", b"3"]
        assert [value for key, value in stored if key == b"b"] == [b"0", b"b1", b"2", b"3"]

    def test_what_is_ambiguous_is_stored_once_when_it_is_sent_again(self, subject: Subject) -> None:
        lost = iter([True])

        def lose(asked: str, given: dict[str, Any], go_on: Any) -> Answer | None:
            if asked == "SendMessageBatch" and next(lost, False):
                go_on(given)
                raise Lost
            return None

        message = Message(value=b"v", key=b"k", id="i")
        with behind(subject, lose) as send:
            assert isinstance(errors(send(message))[0], Ambiguous)
            assert not send(message).failures
        assert subject.values() == Counter([b"v"])

    def test_an_event_that_fails_again_is_a_letter_again_though_its_first_one_is_gone(self, subject: Subject) -> None:
        """SQS knows an identity for five minutes after its message was deleted: a later letter has another one."""
        first = Message(value=b"v", key=b"k", id="i", headers=(("failed", b"at one"),), identity="letter one")
        second = replace(first, headers=(("failed", b"at two"),), identity="letter two")
        for letter in (first, first, second):
            subject.deliver(letter, url=subject.broker.native_sink())
        found = [letter.message for letter in subject.browse(direct=False)]
        assert [message.headers[0][1] for message in found] == [b"at one", b"at two"]

    def test_a_row_that_waits_at_its_deadline_is_settled_once(self, subject: Subject) -> None:
        """Its group's request hangs: in flight it is ambiguous, and sent again it has not even been sent."""
        go_on_ = threading.Event()

        def hang(asked: str, given: dict[str, Any], go_on: Any) -> Answer | None:
            if asked == "SendMessageBatch":
                go_on_.wait(10)
            return None

        message = Message(value=b"v", key=b"k", id="i")
        try:
            with behind(subject, hang) as send:
                for kind in (Ambiguous, Retriable, Retriable):
                    (failure,) = send(message, ordered=True, seconds=1.0).failures
                    assert type(failure.error) is kind
        finally:
            go_on_.set()

    def test_a_group_has_one_request_in_flight(self, subject: Subject) -> None:
        log = Log()
        with behind(subject, log) as send:
            assert not send(*(Message(value=b"%d" % at, key=b"one") for at in range(40))).failures
        assert log.most == 1
        assert log.requests == [[str(at) for at in range(first, first + 10)] for first in range(0, 40, 10)]

    def test_groups_go_side_by_side(self, subject: Subject) -> None:
        log = Log(patient=True)
        with behind(subject, log) as send:
            settled = send(*(Message(value=b"%d" % at, key=b"%d" % (at % 20)) for at in range(60)), ordered=True)
        assert not settled.failures
        assert log.most > 1
        assert [value.value for value in consumed(subject) if value.key == b"7"] == [
            b"%d" % at for at in range(7, 60, 20)
        ]

    def test_a_row_without_a_group_is_refused_alone(self, subject: Subject) -> None:
        options = {name: value for name, value in subject.place.options.items() if name != "sqs.message_group"}
        broker = subject.keep(subject.harness.connect(subject.place.url, options))
        with broker.sender() as sender:
            settled = subject.send(Message(value=b"a", key=b"k"), Message(value=b"b"), sender=sender)
        subject.refused(settled, 1)
        assert "sqs.message_group" in str(settled.failures[0].error)
        assert subject.values() == Counter([b"a"])

    def test_keys_and_ids_that_sqs_does_not_take_are_carried_all_the_same(self, subject: Subject) -> None:
        messages = [Message(value=b"%d" % at, key=bytes([at]) * 200, id="größe " * 50 + str(at)) for at in range(5)]
        subject.deliver(*messages)
        subject.deliver(*messages)
        assert sorted(subject.place.stored(), key=lambda each: each.value or b"") == messages


# --- without a broker ------------------------------------------------------------------------------------------------


def waiting(*deadlines: float) -> tuple[FifoSendQueue, list[PendingRow]]:
    """Ordered rows of one group that wait in a FIFO queue, each in its own batch."""
    queue = FifoSendQueue(Queue(Address("orders.fifo"), Settings()))
    found = []
    for number, deadline in enumerate(deadlines):
        row = PendingRow(0)
        row.sent = PendingBatch(Batch.of([Message(value=b"v", key=b"k")], number=number, ordered=True), deadline)
        row.group, row.ordered = "k", True
        queue.add(row)
        found.append(row)
    return queue, found


def test_only_what_waits_behind_a_failed_row_is_withdrawn() -> None:
    """A row that fails while it waits (at its deadline) leaves those before it in their queue."""
    queue, (first, second, third) = waiting(9.0, 1.0, 9.0)
    assert queue.withdraw(second) == [third]
    assert queue.take(now=2.0) == [first]
    queue.request_ended([first])
    assert not queue.take(now=2.0), "the second is overdue"


def test_all_that_waits_is_behind_a_row_in_flight_and_nothing_behind_one_that_was_refused() -> None:
    queue, (first, second, third) = waiting(9.0, 9.0, 9.0)
    refused = PendingRow(1)
    refused.group, refused.refused = "k", Permanent("too large")
    assert not queue.withdraw(refused)
    assert queue.take(now=0.0) == [first]
    assert queue.withdraw(first) == [second, third]
