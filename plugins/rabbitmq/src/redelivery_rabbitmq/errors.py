"""What pika raises and RabbitMQ answers -> redelivery's error tree, in one place.

Two questions decide: which error it is, and whether it came while a connection was being opened, when nothing can have
happened yet. Which row an error is of is the sender's to say. This file must not retry, nor show a password.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from pika import exceptions as pika
from pika.adapters.utils import connection_workflow as workflow

from redelivery.base.urls import redact
from redelivery.errors import Ambiguous, BrokerError, Fatal, Permanent, Retriable

Rule = tuple[type[BrokerError], str]

_FORCED: Final = (Ambiguous, "somebody closed it: an operator, or the broker as it stops")
_BUG: Final = (Fatal, "redelivery or pika spoke otherwise than the broker understands; report it")
_LOST: Final = (Ambiguous, "the connection was lost, so what was under way may have happened or not")
_LOGIN: Final = (Fatal, "the broker refused the login; see rabbitmq.username, rabbitmq.password and rabbitmq.auth")

#: AMQP's reply codes, of a connection or a channel that the broker closed.
BY_CODE: Final[Mapping[int, Rule]] = {
    311: (Permanent, "the message is too large"),
    312: (Permanent, "no queue takes it"),
    313: (Permanent, "no consumer is there"),
    320: _FORCED,
    402: (Fatal, "there is no such virtual host; correct the URL's path"),
    403: (Fatal, "the user may not do this; give it the permission, or use another user"),
    404: (Fatal, "it is not there; provision it, or correct the URL"),
    405: (Fatal, "another connection owns this queue alone"),
    406: (Fatal, "it exists with other properties than were asked for"),
    501: _BUG,
    502: _BUG,
    503: _BUG,
    504: _BUG,
    505: _BUG,
    506: (Retriable, "the broker lacks resources, or a limit of it is reached"),
    530: (Fatal, "the broker does not allow it: there is no such virtual host, or the user may not use it"),
    540: (Fatal, "this broker does not know how to"),
    541: (Ambiguous, "the broker failed within"),
}

#: pika's exceptions, by their class. A class stands for its descendants too, unless they have a line of their own.
BY_CLASS: Final[Mapping[type[BaseException], Rule]] = {
    pika.AMQPError: _BUG,
    pika.AMQPConnectionError: _LOST,
    pika.ConnectionOpenAborted: _LOST,
    pika.StreamLostError: _LOST,
    pika.IncompatibleProtocolError: (Ambiguous, "whatever answers there hung up: a broker that starts, or speaks TLS"),
    pika.AuthenticationError: (Fatal, "the broker does not offer this way to log in; see rabbitmq.auth"),
    pika.ProbableAuthenticationError: _LOGIN,
    pika.ProbableAccessDeniedError: (Fatal, "the broker refused the virtual host, or the user may not use it"),
    pika.NoFreeChannels: (Retriable, "the connection has no channel left"),
    pika.ConnectionWrongStateError: _LOST,
    pika.ConnectionClosed: _FORCED,
    pika.ConnectionClosedByBroker: _FORCED,
    pika.ConnectionClosedByClient: _LOST,
    pika.ConnectionBlockedTimeout: (Ambiguous, "an alarm of the broker (memory, disk) blocks those who publish"),
    pika.AMQPHeartbeatTimeout: _LOST,
    pika.AMQPChannelError: _LOST,
    pika.ChannelWrongStateError: _LOST,
    pika.ChannelClosed: _FORCED,
    pika.ChannelClosedByBroker: _FORCED,
    pika.ChannelClosedByClient: _LOST,
    pika.DuplicateConsumerTag: _BUG,
    pika.ConsumerCancelled: (Retriable, "the queue is gone, or has moved to another node"),
    pika.UnroutableError: (Permanent, "no queue takes it"),
    pika.NackError: (Retriable, "the broker did not take it: the queue is full, or has no quorum"),
    pika.InvalidChannelNumber: _BUG,
    pika.ProtocolSyntaxError: _BUG,
    pika.UnexpectedFrameError: _BUG,
    pika.ProtocolVersionMismatch: (Fatal, "whatever answers there speaks another version of AMQP"),
    pika.BodyTooLongError: _BUG,
    pika.InvalidFrameError: _BUG,
    pika.InvalidFieldTypeException: _BUG,
    pika.UnsupportedAMQPFieldException: (Permanent, "a header cannot be written"),
    pika.MethodNotImplemented: _BUG,
    pika.ChannelError: _BUG,
    pika.DuplicateGetOkCallback: _BUG,
    pika.ReentrancyError: _BUG,
    pika.ShortStringTooLong: (Permanent, "a name is longer than 255 bytes"),
    workflow.AMQPConnectorException: _LOST,
    workflow.AMQPConnectionWorkflowFailed: _LOST,
    workflow.AMQPConnectionWorkflowAborted: _LOST,
    ssl.SSLEOFError: _LOST,
    ssl.SSLZeroReturnError: _LOST,
    ssl.SSLSyscallError: _LOST,
    ssl.SSLError: (Fatal, "TLS failed; see the rabbitmq.ssl options"),
    OSError: _LOST,
    ValueError: _LOST,  # what pika says of a socket that was reset as soon as it was connected
}

#: What pika raises, and the sockets below it.
ERRORS: Final = (pika.AMQPError, pika.ChannelError, pika.ReentrancyError, workflow.AMQPConnectorException, OSError)

#: What it raises besides while it connects.
_OPENING: Final = (ValueError,)

#: What a 404 says of a queue that is there, on a node that is not.
NODE_DOWN: Final = "is down or inaccessible"
#: Refusals that say Fatal by their code, and something passing by their text.
_BY_TEXT: Final = (
    (404, NODE_DOWN, (Retriable, "the node that has the queue is down; wait until it is up")),
    (406, "delivery acknowledgement", (Retriable, "a message was under lease for longer than that, and went back")),
)
#: Further ones, while a connection is opened.
_PASSING: Final = ("limit", "is down", "is stopped", "not running")
_LOGIN_CODE: Final = 403
#: The broker's TLS alert of our certificate; pika has only its text by then, in an error of another kind.
_ALERT: Final = re.compile(r"ALERT_\w*(CERTIFICATE|UNKNOWN_CA|ACCESS_DENIED)")
_CERTIFICATE: Final = (Fatal, "the broker does not take our certificate; see rabbitmq.ssl.cert and rabbitmq.ssl.key")
#: What pika guesses from the stage at which a connection ended.
_GUESSES: Final = (pika.ProbableAuthenticationError, pika.ProbableAccessDeniedError)


def classify(error: BaseException, doing: str, *, opening: bool = False) -> BrokerError:
    """Our error for one of pika's. The caller chains it, by `raise ... from`.

    Args:
        error: as it was raised.
        doing: what was being done, for the message.
        opening: a connection was being opened, so nothing can have happened.
    """
    cause = _innermost(error)
    code = getattr(cause, "reply_code", None)
    kind, advice = _rule(cause, code)
    text = redact(str(getattr(cause, "reply_text", "") or ", ".join(map(str, cause.args)) or ""))
    if opening:
        if code == _LOGIN_CODE:
            kind, advice = _LOGIN
        if _ALERT.search(text):
            kind, advice = _CERTIFICATE
        if isinstance(cause, _GUESSES) and "ConnectionClosedByBroker" not in text:
            kind = Ambiguous  # it only hung up at that stage
        if issubclass(kind, Ambiguous) or (code is not None and any(word in text for word in _PASSING)):
            kind, advice = Retriable, "no connection could be opened, and nothing was sent"
    name = type(cause).__name__
    said = f"{text} ({code or name})" if text else name
    return kind(f"rabbitmq: {doing}: {said}; {advice}", native_code=str(code or name))


@contextmanager
def classified(doing: str, *, opening: bool = False) -> Iterator[None]:
    """Turn whatever pika raises inside into redelivery's error, chained."""
    caught = (*ERRORS, *_OPENING) if opening else ERRORS
    try:
        yield
    except caught as error:
        raise classify(error, doing, opening=opening) from error


def _rule(error: BaseException, code: int | None) -> Rule:
    text = str(getattr(error, "reply_text", ""))
    for of, part, rule in _BY_TEXT:
        if code == of and part in text:
            return rule
    if code is not None and code in BY_CODE:
        return BY_CODE[code]
    return next((BY_CLASS[base] for base in type(error).__mro__ if base in BY_CLASS), _BUG)


def _innermost(error: BaseException) -> BaseException:
    """What a failed attempt to connect failed with: pika wraps it up to three times."""
    while True:
        inner: object = None
        if isinstance(error, workflow.AMQPConnectionWorkflowFailed):
            inner = error.exceptions[-1] if error.exceptions else None
        elif isinstance(error, workflow.AMQPConnectorPhaseErrorBase):
            inner = error.exception
        elif type(error) is pika.AMQPConnectionError and len(error.args) == 1:
            inner = error.args[0]
        if not isinstance(inner, BaseException):
            return error
        error = inner
