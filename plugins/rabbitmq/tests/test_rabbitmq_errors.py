"""Every error of pika has a class of ours, and a refused connection says why."""

import inspect
import ssl

import pytest
from pika import exceptions
from pika.adapters.utils import connection_workflow as workflow

from redelivery.codes import Code
from redelivery.contract.message import Message
from redelivery.errors import Ambiguous, BrokerError, Fatal, Permanent, Retriable
from redelivery.registry import connect
from redelivery_conformance.statements import Statements
from redelivery_conformance.subject import Subject
from redelivery_rabbitmq.address import Address
from redelivery_rabbitmq.errors import OPENING, TABLE

SECRET = "not-to-be-shown"  # noqa: S105 - a made-up one

NODE_IS_DOWN = "NOT_FOUND - home node 'rabbit@b' of durable queue 'q' in vhost '/' is down or inaccessible"
TOO_LARGE = "PRECONDITION_FAILED - message size 2 is larger than configured max size 1"
HELD_TOO_LONG = "PRECONDITION_FAILED - delivery acknowledgement on channel 1 timed out. Timeout value used: 3000 ms"


def classes(module):
    return {each for _, each in inspect.getmembers(module, inspect.isclass) if issubclass(each, Exception)}


def test_every_exception_of_pika_is_mapped():
    assert classes(exceptions) <= set(TABLE.by_class), "pika has new exceptions"


def test_every_exception_of_an_attempt_to_connect_is_mapped():
    unmapped = {
        each for each in classes(workflow) if not set(each.__mro__) & (set(TABLE.by_class) - {Exception, object})
    }
    assert not unmapped


@pytest.mark.parametrize(
    "code", [311, 312, 313, 320, 402, 403, 404, 405, 406, 501, 502, 503, 504, 505, 506, 530, 540, 541]
)
def test_every_reply_code_of_amqp_is_mapped(code):
    assert code in TABLE.by_code
    error = exceptions.ChannelClosedByBroker(code, "WHY - because")
    assert "because" in str(TABLE.error(error, "doing"))


@pytest.mark.parametrize("kind", sorted(classes(exceptions), key=lambda each: each.__name__))
def test_nothing_is_ambiguous_before_a_connection_is_open(kind):
    error = kind.__new__(kind)
    error.args = (320, "text")
    assert not isinstance(OPENING.error(error, "connecting", safe=True), Ambiguous)


channel, connection = exceptions.ChannelClosedByBroker, exceptions.ConnectionClosedByBroker


@pytest.mark.parametrize(
    ("error", "opening", "kind", "code"),
    [
        (exceptions.StreamLostError("x"), False, Ambiguous, Code.CONNECTION_LOST),
        (exceptions.StreamLostError("x"), True, Retriable, Code.CONNECTION_LOST),
        (exceptions.AMQPHeartbeatTimeout("x"), False, Ambiguous, Code.CONNECTION_LOST),
        (connection(320, "CONNECTION_FORCED - bye"), False, Ambiguous, Code.CONNECTION_LOST),
        (connection(320, "CONNECTION_FORCED - bye"), True, Retriable, Code.CONNECTION_LOST),
        (
            connection(530, "NOT_ALLOWED - connection limit (1) is reached"),
            True,
            Retriable,
            Code.CONNECTION_LOST,
        ),
        (exceptions.ProbableAuthenticationError("StreamLostError: x"), True, Retriable, Code.CONNECTION_LOST),
        (exceptions.IncompatibleProtocolError("StreamLostError: x"), True, Retriable, Code.CONNECTION_LOST),
        (
            exceptions.IncompatibleProtocolError("StreamLostError: SSLError(1, '[SSL: TLSV1_ALERT_UNKNOWN_CA]"),
            True,
            Fatal,
            Code.NOT_AUTHENTICATED,
        ),
        (
            connection(530, "NOT_ALLOWED - vhost a not found"),
            True,
            Fatal,
            Code.NO_SUCH_DESTINATION,
        ),
        (
            connection(403, "ACCESS_REFUSED - Login was refused"),
            True,
            Fatal,
            Code.NOT_AUTHENTICATED,
        ),
        (channel(403, "ACCESS_REFUSED - x"), False, Fatal, Code.NOT_AUTHORIZED),
        (
            channel(404, "NOT_FOUND - no queue 'q' in vhost '/'"),
            False,
            Fatal,
            Code.NO_SUCH_DESTINATION,
        ),
        (channel(404, NODE_IS_DOWN), False, Retriable, Code.UNAVAILABLE),
        (channel(404, NODE_IS_DOWN), True, Retriable, Code.UNAVAILABLE),
        (
            channel(406, "PRECONDITION_FAILED - inequivalent arg 'x-a'"),
            False,
            Fatal,
            Code.CONFLICT,
        ),
        (channel(406, HELD_TOO_LONG), False, Retriable, Code.LEASE_LOST),
        (channel(406, TOO_LARGE), False, Permanent, Code.TOO_LARGE),
        (ConnectionRefusedError(111, "refused"), True, Retriable, Code.CONNECTION_LOST),
        (ssl.SSLEOFError(8, "EOF occurred in violation of protocol"), True, Retriable, Code.CONNECTION_LOST),
        (ssl.SSLEOFError(8, "EOF occurred in violation of protocol"), False, Ambiguous, Code.CONNECTION_LOST),
        (ssl.SSLZeroReturnError(6, "closed"), True, Retriable, Code.CONNECTION_LOST),
        (ssl.SSLSyscallError(5, "reset"), False, Ambiguous, Code.CONNECTION_LOST),
        (ssl.SSLCertVerificationError(1, "self-signed certificate"), True, Fatal, Code.TLS_FAILED),
    ],
)
def test_class_and_code_depend_on_what_was_being_done(error, opening, kind, code):
    found = OPENING.error(error, "doing", safe=True) if opening else TABLE.error(error, "doing")
    assert (type(found), found.code) == (kind, code)
    assert "doing" in str(found)


def test_a_socket_that_is_reset_as_soon_as_it_is_connected_is_retriable():
    """pika says ValueError then, or what the socket says."""
    with pytest.raises(Retriable, match="nothing was changed"), OPENING.while_doing("connecting", safe=True):
        raise ValueError("Expected connected socket, but getpeername() failed")


class TestAtTheDoor(Statements):
    """Against the broker: wrong credentials, wrong virtual host."""

    broker = "rabbitmq"

    @pytest.mark.parametrize("password", [SECRET, f"{SECRET}/#@", f"#{SECRET}"])
    def test_a_wrong_password_is_fatal_and_never_shown(self, subject: Subject, password: str, caplog) -> None:
        with caplog.at_level("DEBUG"):
            error = self._refused(subject, username="guest", password=password)
        assert "rabbitmq.password" in str(error)
        for shown in (str(error), repr(error), repr(error.__cause__), caplog.text):
            assert SECRET not in shown

    def test_a_wrong_virtual_host_is_fatal_and_named(self, subject: Subject) -> None:
        assert "no/such" in str(self._refused(subject, vhost="no/such"))

    def test_a_port_where_nothing_listens_is_retriable(self, subject: Subject) -> None:
        broker = connect(subject.place.unreachable())
        with pytest.raises(Retriable, match="localhost:1"):
            broker.sender()

    @staticmethod
    def _refused(subject: Subject, **changes: str) -> BrokerError:
        address = Address.parse(subject.place.url)
        wrong = Address(**{each: getattr(address, each) for each in ("host", "port", "queue", "routing_key")} | changes)
        broker = connect(wrong.full_url)
        errors = []
        for ask in (broker.sender, lambda: broker.receiver().receive(1, wait=0), lambda: broker.admin().depth()):
            with pytest.raises(Fatal) as caught:
                ask()
            errors.append(caught.value)
        subject.deliver(Message(value=b"the right one"))
        return errors[0]
