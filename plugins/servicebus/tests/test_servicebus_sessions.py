"""A queue that requires sessions is written to: a row's key is its session id."""

from typing import Any

import pytest

from redelivery.contract.broker import Support
from redelivery.contract.message import Message
from redelivery.contract.spec import DeliverySpec, Sink
from redelivery.deadletters.queue import dead_letters
from redelivery.errors import Fatal, InvalidURL, Permanent
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

    @pytest.mark.parametrize("key", [None, b"", b"\xff", b"k" * 129])
    def test_a_row_without_a_session_harms_no_other(self, subject: Subject, key: bytes | None) -> None:
        url = provisioned(subject)
        with subject.connect(url).sender() as sender:
            settled = subject.send(Message(value=b"a", key=b"a"), Message(value=b"b", key=key), sender=sender)
        assert [(each.index, type(each.error)) for each in settled.failures] == [(1, Permanent)]
        assert [each.body for each in namespace(subject).messages(name_of(url))] == [b"a"]

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

    def test_it_is_not_received_from(self, subject: Subject) -> None:
        broker = subject.connect(provisioned(subject))
        assert broker.capabilities.receive is Support.NONE
        subject.is_unsupported(broker.receiver)


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
