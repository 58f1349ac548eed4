"""A queue that requires sessions: a row's key is its session id, and its receivers share sessions."""

import time
from datetime import timedelta
from typing import Any

import pytest

from redelivery.contract.broker import Accept, Received, Receiver, Retry
from redelivery.contract.message import Message
from redelivery.contract.spec import DeliverySpec, Sink
from redelivery.deadletters.queue import dead_letters
from redelivery.errors import Fatal, InvalidURL, LeaseLost, Permanent
from redelivery_conformance.statements import Statements
from redelivery_conformance.subject import Subject
from redelivery_servicebus.address import Address
from redelivery_servicebus.testing import DEAD
from servicebus_standin import StandIn

SPEC = DeliverySpec(retry=3, dead_letter_sink=(Sink(uri="native"),))


def namespace(subject: Subject) -> StandIn:
    runtime: Any = subject.runtime
    return runtime.namespace  # type: ignore[no-any-return]


def provisioned(subject: Subject) -> str:
    url = f"{subject.place.url}-sessions?sessions=true"
    with subject.connect(url).admin() as admin:
        admin.provision(SPEC)
        assert ({item.action for item in admin.plan(SPEC).objects}, admin.plan(SPEC).warnings) == ({"keep"}, [])
    return url


def name_of(url: str) -> str:
    return url.rpartition("/")[2].partition("?")[0]


class TestSessions(Statements):
    broker = "servicebus"

    def test_a_key_is_the_session_id(self, subject: Subject) -> None:
        url = provisioned(subject)
        subject.deliver(
            *(Message(value=b"%d" % at, key="München".encode() if at % 2 else b"b") for at in range(4)), url=url
        )
        there = namespace(subject).messages(name_of(url))
        assert [(each.body, each.session_id) for each in there] == [
            (b"0", "b"), (b"1", "München"), (b"2", "b"), (b"3", "München"),
        ]  # fmt: skip

    def test_a_row_without_a_session_harms_no_other(self, subject: Subject) -> None:
        url = provisioned(subject)
        with subject.connect(url).sender() as sender:
            settled = subject.send(Message(value=b"a", key=b"a"), Message(value=b"b", key=None), sender=sender)
        assert [(each.index, type(each.error)) for each in settled.failures] == [(1, Permanent)]
        assert [each.body for each in namespace(subject).messages(name_of(url))] == [b"a"]

    def test_rows_without_a_key_have_the_session_of_the_option(self, subject: Subject) -> None:
        url = provisioned(subject)
        rows = (Message(value=b"a", key=b"a"), Message(value=b"b"))
        subject.deliver(*rows, url=url, options={"servicebus.session_id": "others"})
        there = namespace(subject).messages(name_of(url))
        assert [each.session_id for each in there] == ["a", "others"]

    @pytest.mark.parametrize("key", [b"", b"\xff", b"k" * 129])
    def test_a_key_that_is_no_session_id_has_a_session_of_its_own(self, subject: Subject, key: bytes) -> None:
        url = provisioned(subject)
        subject.deliver(*(Message(value=b"v", key=each) for each in (key, b"other", key)), url=url)
        first, other, again = (each.session_id for each in namespace(subject).messages(name_of(url)))
        assert first == again != other
        assert first is not None
        assert len(first) <= 128
        with subject.connect(url).receiver() as receiver:
            received = receive(receiver, 2)
            assert [each.message.key for each in received] == [key, key]

    def test_its_letters_need_no_session_and_go_back_into_theirs(self, subject: Subject) -> None:
        url = provisioned(subject)
        queue = name_of(url)
        sink = subject.connect(url).native_sink()
        assert sink == f"{subject.place.url}-sessions-dead-letters"
        subject.deliver(Message(value=b"from a job", key=b"7"), Message(value=b"without", key=None), url=sink)
        with dead_letters(url, options=subject.place.options) as letters:
            assert letters.place.endswith(f"-sessions{DEAD}")
            report = letters.redrive()
        assert (report.redriven, report.failed) == (1, 1)
        assert [(each.body, each.session_id) for each in namespace(subject).messages(queue)] == [(b"from a job", "7")]

    def test_what_differs_is_drift(self, subject: Subject) -> None:
        for url in (f"{subject.place.url}?sessions=true", provisioned(subject).partition("?")[0]):
            with subject.connect(url).admin() as admin:
                found = [str(each) for item in admin.plan(SPEC).objects for each in item.differences]
                assert any("RequiresSession" in each for each in found)
                with pytest.raises(Fatal, match="RequiresSession"):
                    admin.provision(SPEC)

    def test_each_receiver_has_its_own_sessions(self, subject: Subject) -> None:
        url = provisioned(subject)
        subject.deliver(*(Message(value=b"%d" % at, key=b"ab"[at % 2 :][:1]) for at in range(6)), url=url)
        with subject.connect(url).receiver() as one, subject.connect(url).receiver() as other:
            first, second = receive(one, 3), receive(other, 3)
            assert [[each.message.value for each in some] for some in (first, second)] == [
                [b"0", b"2", b"4"], [b"1", b"3", b"5"],
            ]  # fmt: skip

    def test_what_is_retried_is_not_overtaken_in_its_session(self, subject: Subject) -> None:
        url = provisioned(subject)
        subject.deliver(*(Message(value=b"%d" % at, key=b"a") for at in range(3)), url=url)
        with subject.connect(url).receiver() as receiver:
            for truth in (1, 2, 3):
                (received,) = receive(receiver, 1)
                assert (received.message.value, received.attempt) == (b"0", truth)
                assert receiver.settle([(received, Retry())]) == [None]
            assert [each.message.value for each in receive(receiver, 3)] == [b"0", b"1", b"2"]

    def test_a_retry_with_a_delay_would_be_overtaken(self, subject: Subject) -> None:
        url = provisioned(subject)
        subject.deliver(Message(value=b"v", key=b"a"), url=url)
        with subject.connect(url).receiver() as receiver:
            (received,) = receive(receiver, 1)
            subject.is_unsupported(lambda: receiver.settle([(received, Retry(timedelta(seconds=1)))]))
            assert receiver.settle([(received, Accept())]) == [None]

    def test_more_sessions_are_taken_while_others_are_in_hand(self, subject: Subject) -> None:
        url = provisioned(subject)
        subject.deliver(*(Message(value=b"%d" % at, key=b"%d" % at) for at in range(4)), url=url)
        with subject.connect(url).receiver() as receiver:
            received = receive(receiver, 4)
            assert sorted(each.message.value or b"" for each in received) == [b"0", b"1", b"2", b"3"]
            assert receiver.settle([(each, Accept()) for each in received]) == [None] * 4
        assert not namespace(subject).messages(name_of(url))

    def test_nothing_follows_a_message_whose_lease_has_run_out(self, subject: Subject) -> None:
        """Its receiver leaves the session, and both come again in their order."""
        url = f"{subject.place.url}-short?sessions=true"
        namespace(subject).create_queue(name_of(url), requires_session=True, lock_duration=1.0)
        subject.deliver(*(Message(value=b"%d" % at, key=b"a") for at in range(2)), url=url)
        with subject.connect(url).receiver() as receiver:
            (first,) = receive(receiver, 1)
            time.sleep(1.1)
            (answer,) = receiver.settle([(first, Accept())])
            assert isinstance(answer, LeaseLost)
            assert [each.message.value for each in receive(receiver, 2)] == [b"0", b"1"]

    def test_a_session_that_is_used_keeps_its_lock(self, subject: Subject) -> None:
        """Each message has a good lease, though its session was accepted long before."""
        url = f"{subject.place.url}-short?sessions=true"
        namespace(subject).create_queue(name_of(url), requires_session=True, lock_duration=1.0)
        subject.deliver(*(Message(value=b"%d" % at, key=b"a") for at in range(4)), url=url)
        with subject.connect(url).receiver() as receiver:
            for at in range(4):
                (received,) = receive(receiver, 1)
                assert received.message.value == b"%d" % at
                time.sleep(0.5)
                assert receiver.settle([(received, Accept())]) == [None]
        assert not namespace(subject).messages(name_of(url))

    def test_a_queue_without_sessions_says_so(self, subject: Subject) -> None:
        with pytest.raises(Fatal, match="sessions"):
            subject.connect(f"{subject.place.url}?sessions=true").receiver()
        with pytest.raises(Fatal, match="sessions"):
            subject.connect(provisioned(subject).partition("?")[0]).receiver()


def receive(receiver: Receiver, count: int) -> list[Received]:
    found: list[Received] = []
    end = time.monotonic() + 10
    while len(found) < count:
        assert time.monotonic() < end
        found += receiver.receive(count - len(found), wait=0.3)
    return found


@pytest.mark.parametrize(
    "url",
    [
        "servicebus://host/q?session=a",
        "servicebus://host/q?sessions=yes",
        "servicebus://host/q?sessions=true&subscription=a",
        "servicebus://host/q-dead-letters?sessions=true",
        "servicebus://host/t/subscriptions/a?sessions=true",
    ],
)
def test_a_url_that_names_no_queue_with_sessions_is_refused(url: str) -> None:
    with pytest.raises(InvalidURL):
        Address.parse(url)


def test_a_url_says_whether_there_are_sessions() -> None:
    address = Address.parse("servicebus://host/q?sessions=true")
    assert (address.queue, address.sessions, address.url) == ("q", True, "servicebus://host/q?sessions=true")
    assert Address.parse("servicebus://host/q?sessions=false").url == "servicebus://host/q"
    assert not address.dead_letters.sessions
