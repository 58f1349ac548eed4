"""The tables that turn pika's errors and RabbitMQ's reply codes into redelivery's.

`TABLE` is for an open connection; `OPENING` is for opening one, when nothing can have happened yet. The sender decides
which rows an error is about.
"""

from __future__ import annotations

import re
import ssl
from dataclasses import replace
from typing import Any, Final

from pika import exceptions as pika
from pika.adapters.utils import connection_workflow as workflow

from redelivery.errors import Ambiguous, Fatal, Permanent, Retriable
from redelivery.kit.errors import BUG, ClientError, Code, ErrorTable, Rule

_CLOSED: Final = Rule(
    Ambiguous, Code.CONNECTION_LOST, "an operator closed the connection, or the broker did as it stopped"
)
_LOST: Final = Rule(Ambiguous, Code.CONNECTION_LOST, "the connection was lost, so pending requests may have succeeded")
_LOGIN: Final = Rule(
    Fatal,
    Code.NOT_AUTHENTICATED,
    "the broker refused the login; see rabbitmq.username, rabbitmq.password and rabbitmq.auth",
)
_VHOST: Final = Rule(Fatal, Code.NO_SUCH_DESTINATION, "the virtual host does not exist; correct the URL's path")
_VHOST_REFUSED: Final = Rule(
    Fatal, Code.NOT_AUTHORIZED, "the user may not use the virtual host; give it the permission, or correct the URL"
)
_UNROUTABLE: Final = Rule(Permanent, Code.NO_SUCH_DESTINATION, "no queue takes it")
_CERTIFICATE: Final = Rule(
    Fatal,
    Code.NOT_AUTHENTICATED,
    "the broker refused the client certificate; see rabbitmq.ssl.cert and rabbitmq.ssl.key",
)
_NOT_OPENED: Final = Rule(
    Retriable, Code.CONNECTION_LOST, "no connection could be opened and nothing was sent, so it may be tried again"
)
#: The broker's max_message_size is lower than our option.
TOO_LARGE: Final = Rule(
    Permanent, Code.TOO_LARGE, "that is the broker's max_message_size; set rabbitmq.message_bytes to it"
)

#: Rules by AMQP's reply code, of a connection or channel that the broker closed.
_BY_CODE: Final = {
    311: Rule(Permanent, Code.TOO_LARGE, "the message is too large"),
    312: _UNROUTABLE,
    313: Rule(Permanent, Code.NO_SUCH_DESTINATION, "no consumer takes it"),
    320: _CLOSED,
    402: _VHOST,
    403: Rule(
        Fatal,
        Code.NOT_AUTHORIZED,
        "the user may not do this; give it the permission, or use another user",
        about_target=True,
    ),
    404: Rule(
        Fatal, Code.NO_SUCH_DESTINATION, "it does not exist; provision it, or correct the URL", about_target=True
    ),
    405: Rule(Fatal, Code.CONFLICT, "the queue is exclusive to another connection or consumer"),
    406: Rule(Fatal, Code.CONFLICT, "it exists with different properties"),
    **dict.fromkeys((501, 502, 503, 504, 505), BUG),
    506: Rule(Retriable, Code.FULL, "the broker lacks resources, or has reached a limit"),
    530: _VHOST_REFUSED,
    540: Rule(Fatal, Code.UNSUPPORTED, "this broker does not implement it"),
    541: Rule(Ambiguous, Code.UNAVAILABLE, "the broker failed internally"),
}

_CONNECTION_ERRORS: Final = (
    *(pika.AMQPConnectionError, pika.ConnectionOpenAborted, pika.StreamLostError, pika.ConnectionWrongStateError),
    *(pika.ConnectionClosedByClient, pika.AMQPHeartbeatTimeout, pika.AMQPChannelError, pika.ChannelWrongStateError),
    *(pika.ChannelClosedByClient, workflow.AMQPConnectorException, workflow.AMQPConnectionWorkflowFailed),
    *(workflow.AMQPConnectionWorkflowAborted, ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError, OSError),
)
_BUGS: Final = (
    *(pika.AMQPError, pika.DuplicateConsumerTag, pika.InvalidChannelNumber, pika.ProtocolSyntaxError),
    *(pika.UnexpectedFrameError, pika.BodyTooLongError, pika.InvalidFrameError, pika.InvalidFieldTypeException),
    *(pika.MethodNotImplemented, pika.ChannelError, pika.DuplicateGetOkCallback, pika.ReentrancyError),
)
_CLOSES: Final = (pika.ConnectionClosed, pika.ConnectionClosedByBroker, pika.ChannelClosed, pika.ChannelClosedByBroker)

#: Rules by class of pika's exceptions and of the sockets beneath; a class stands for its subclasses too.
_BY_CLASS: Final[dict[type[BaseException], Rule]] = {
    **dict.fromkeys(_BUGS, BUG),
    **dict.fromkeys(_CONNECTION_ERRORS, _LOST),
    **dict.fromkeys(_CLOSES, _CLOSED),
    pika.IncompatibleProtocolError: Rule(
        Ambiguous, Code.CONNECTION_LOST, "the broker hung up in the handshake: it may be starting, or expect TLS"
    ),
    pika.AuthenticationError: Rule(
        Fatal, Code.NOT_AUTHENTICATED, "the broker does not offer this way to log in; see rabbitmq.auth"
    ),
    pika.ProbableAuthenticationError: _LOGIN,
    pika.ProbableAccessDeniedError: _VHOST_REFUSED,
    pika.NoFreeChannels: Rule(Retriable, Code.FULL, "the connection has no free channel"),
    pika.ConnectionBlockedTimeout: Rule(Ambiguous, Code.FULL, "an alarm (memory, disk) blocks publishers"),
    pika.ConsumerCancelled: Rule(Retriable, Code.UNAVAILABLE, "the queue was deleted, or has moved to another node"),
    pika.UnroutableError: _UNROUTABLE,
    pika.NackError: Rule(Retriable, Code.REJECTED, "the broker did not take it: the queue is full, or has no quorum"),
    pika.ProtocolVersionMismatch: Rule(Fatal, Code.UNSUPPORTED, "the server speaks another version of AMQP"),
    pika.UnsupportedAMQPFieldException: Rule(Permanent, Code.INVALID_MESSAGE, "a header cannot be written"),
    pika.ShortStringTooLong: Rule(Permanent, Code.TOO_LARGE, "a name is longer than 255 bytes"),
    ssl.SSLError: Rule(Fatal, Code.TLS_FAILED, "TLS failed; see the rabbitmq.ssl options"),
}

#: Rules for a reply code that means something else by its text.
_BY_TEXT: Final = (
    (
        404,
        "is down or inaccessible",
        Rule(Retriable, Code.UNAVAILABLE, "the node of the queue is down; wait until it is up"),
    ),
    (
        406,
        "delivery acknowledgement",
        Rule(Retriable, Code.LEASE_LOST, "a message was held for longer than that, and returned to its queue"),
    ),
    (406, "message size", TOO_LARGE),
    (
        406,
        "rabbit_stream_queue",  # see `client/consumer.py`
        Rule(
            Fatal,
            Code.UNSUPPORTED,
            "it is a stream, which can only be looked at as dead letters: add dead_letters=stream to the URL",
        ),
    ),
    (
        406,
        "invalid arg 'x-max-priority'",  # see `client/arguments.py`
        Rule(Fatal, Code.NO_SUCH_DESTINATION, "it does not exist; provision it, or correct the URL"),
    ),
    (530, "not found", _VHOST),
)

#: Exceptions of pika and of the sockets beneath.
ERRORS: Final = (pika.AMQPError, pika.ChannelError, pika.ReentrancyError, workflow.AMQPConnectorException, OSError)

#: The broker's TLS alert about the client certificate. pika passes on only its text, in an error of another kind.
_ALERT: Final = re.compile(r"ALERT_\w*(CERTIFICATE|UNKNOWN_CA|ACCESS_DENIED)")
#: pika guesses these from the stage at which a connection ended.
_GUESSES: Final = (pika.ProbableAuthenticationError, pika.ProbableAccessDeniedError)
#: In the broker's refusal of a connection: a passing state.
_PASSING: Final = ("limit", "is down", "is stopped", "not running")


def _describe(error: BaseException) -> ClientError:
    cause = _innermost(error)
    code = getattr(cause, "reply_code", None)
    text = str(getattr(cause, "reply_text", "") or ", ".join(map(str, cause.args)))
    return ClientError(text, codes=() if code is None else (code,), cause=cause)


def _describe_opening(error: BaseException) -> ClientError:
    found = _describe(error)
    special: list[Any] = []
    is_guess = isinstance(found.cause, _GUESSES) and "ConnectionClosedByBroker" not in found.text
    if is_guess or (found.codes and any(word in found.text for word in _PASSING)):
        special = ["not opened"]
    elif _ALERT.search(found.text):
        special = ["certificate"]
    name = str(found.codes[0]) if found.codes else type(found.cause).__name__
    return replace(found, codes=(*special, *found.codes), name=name)


def _innermost(error: BaseException) -> BaseException:
    """Return the error of a failed attempt to connect; pika wraps it up to three times."""
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


TABLE: Final = ErrorTable(
    "rabbitmq", by_class=_BY_CLASS, by_code=_BY_CODE, by_text=_BY_TEXT, describe=_describe, catches=ERRORS
)
OPENING: Final = ErrorTable(
    "rabbitmq",
    by_class={**_BY_CLASS, ValueError: _LOST},  # pika raises it for a socket that was reset as soon as it connected
    by_code={**_BY_CODE, 403: _LOGIN, "certificate": _CERTIFICATE, "not opened": _NOT_OPENED},
    by_text=_BY_TEXT,
    describe=_describe_opening,
    catches=(*ERRORS, ValueError),
)
