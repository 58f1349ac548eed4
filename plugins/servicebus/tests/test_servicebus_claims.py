"""What claims each operation needs, as the README's table says: each is done by a key that has no other."""

from datetime import timedelta
from typing import Any

import pytest

from redelivery.contract.broker import Accept, Broker, Received, Retry, Terminate
from redelivery.contract.message import Message
from redelivery.errors import Fatal
from redelivery_conformance.statements import Statements
from redelivery_conformance.subject import Subject
from redelivery_conformance.taking import Taker
from redelivery_servicebus.testing import CONNECTION_STRING
from servicebus_standin import StandIn


def with_claims(subject: Subject, *claims: Any) -> Broker:
    """The place by a key that has these claims alone."""
    runtime: Any = subject.runtime
    namespace: StandIn = runtime.namespace
    text = namespace.add_key("-".join(("only", *claims)).lower(), *claims)
    return subject.connect(options={CONNECTION_STRING: text})


class TestClaims(Statements):
    broker = "servicebus"

    def test_send_is_enough_to_send(self, subject: Subject) -> None:
        with with_claims(subject, "Send").sender() as sender:
            settled = subject.send(Message(value=b"v"), sender=sender)
        assert settled.error is None
        assert not settled.failures
        assert subject.values() == {b"v": 1}

    def test_listen_is_enough_to_receive_extend_and_settle(self, subject: Subject) -> None:
        subject.provision()
        subject.deliver(*(Message(value=b"%d" % at) for at in range(3)))
        taker = Taker(subject, broker=with_claims(subject, "Listen"))
        first, second, third = taker.take(3)
        (first,) = taker.receiver.extend([first], 30)
        assert isinstance(first, Received)
        outcomes = ((first, Accept()), (second, Retry()), (third, Terminate(third.message, "no")))
        assert taker.answers(*outcomes) == [None] * 3
        taker.settle(Accept(), taker.one())

    def test_a_delay_wants_send_besides(self, subject: Subject) -> None:
        subject.provision()
        subject.deliver(Message(value=b"v"))
        taker = Taker(subject, broker=with_claims(subject, "Listen"))
        received = taker.one()
        (answer,) = taker.answers((received, Retry(timedelta(seconds=1))))
        assert isinstance(answer, Fatal)
        assert "Send" in str(answer)
        taker.receiver.close()
        taker = Taker(subject, broker=with_claims(subject, "Listen", "Send"))
        taker.settle(Retry(timedelta(seconds=1)), taker.one())
        taker.settle(Accept(), taker.one())

    def test_listen_is_enough_to_browse_remove_and_purge(self, subject: Subject) -> None:
        subject.provision()
        subject.deliver(*(Message(value=b"%d" % at) for at in range(3)), url=subject.broker.native_sink())
        with with_claims(subject, "Listen").dead_letters() as letters:
            first, _, _ = letters.browse()
            assert letters.remove([first.position]) == 1
            assert letters.purge() == 2

    def test_manage_is_enough_to_count(self, subject: Subject) -> None:
        subject.deliver(Message(value=b"v"))
        with with_claims(subject, "Manage", "Listen", "Send").admin() as admin:
            assert admin.depth() == 1
        with with_claims(subject, "Listen", "Send").admin() as admin, pytest.raises(Fatal, match="the claim Manage"):
            admin.depth()
