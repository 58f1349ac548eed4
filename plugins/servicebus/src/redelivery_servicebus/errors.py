"""Errors of the SDK and of its administration client, as redelivery's.

The SDK's own opinion of what may be retried is not used: it calls a full queue final, and a wrong key worth a retry.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from azure.core import exceptions as core
from azure.servicebus import exceptions as bus

from redelivery.contract.codes import Code
from redelivery.errors import Ambiguous, BrokerError, Fatal, Permanent, Retriable, Throttled, Unattributed
from redelivery.kit.errors import BUG, ClientError, ErrorTable, Rule
from redelivery_servicebus.client import private

#: What an operation needs, for errors.
SEND: Final = "the claim Send"
LISTEN: Final = "the claim Listen"
MANAGE: Final = "the claim Manage"

_UNKNOWN: Final = Rule(Ambiguous, Code.UNAVAILABLE, "it may have been done or not")
_LOST_CONNECTION: Final = replace(_UNKNOWN, code=Code.CONNECTION_LOST)
_NO_ANSWER: Final = replace(_UNKNOWN, code=Code.DEADLINE_EXCEEDED)
_NOT_CONNECTED: Final = Rule(Retriable, Code.CONNECTION_LOST, "nothing was done")
_CANCELLED: Final = Rule(Retriable, Code.UNAVAILABLE, "nothing was done")
_BUSY: Final = Rule(Throttled, Code.THROTTLED, "Service Bus asks for fewer requests; nothing was done")
_FULL: Final = Rule(Retriable, Code.FULL, "the queue or the namespace is full; nothing was stored")
_MISSING: Final = Rule(
    Fatal,
    Code.NO_SUCH_DESTINATION,
    "the queue does not exist in this namespace: provision it, or correct the URL",
    about_target=True,
)
_DISABLED: Final = Rule(Fatal, Code.MISCONFIGURED, "the queue is disabled: enable it", about_target=True)
_EXISTS: Final = Rule(Fatal, Code.CONFLICT, "it exists already, or another request changes it")
_LOGIN: Final = Rule(
    Fatal, Code.NOT_AUTHENTICATED, "Service Bus does not accept these credentials: correct or renew them"
)
_DENIED: Final = Rule(Fatal, Code.NOT_AUTHORIZED, "this identity lacks a permission", about_target=True)
_REFUSED: Final = Rule(Unattributed, Code.REJECTED, "Service Bus refused it; nothing was stored")
_TOO_LARGE: Final = Rule(Unattributed, Code.TOO_LARGE, "it is larger than the queue accepts; nothing was stored")
_NOT_WRITABLE: Final = Rule(Permanent, Code.INVALID_MESSAGE, "it cannot be sent")
_LOCK_LOST: Final = Rule(Permanent, Code.LEASE_LOST, "the lock has run out, or was used")
_UNSUPPORTED: Final = Rule(
    Fatal,
    Code.UNSUPPORTED,
    "it cannot be used like this: name a subscription of a topic; sessions are not supported yet",
)

_BY_CLASS: Final[Mapping[type[BaseException], Rule]] = {
    bus.ServiceBusError: _UNKNOWN,
    bus.ServiceBusConnectionError: _LOST_CONNECTION,
    bus.ServiceBusCommunicationError: _LOST_CONNECTION,
    bus.OperationTimeoutError: _NO_ANSWER,
    bus.ServiceBusAuthenticationError: _LOGIN,
    bus.ServiceBusAuthorizationError: _DENIED,
    bus.MessageSizeExceededError: _TOO_LARGE,
    bus.MessageAlreadySettled: _LOCK_LOST,
    bus.MessageLockLostError: _LOCK_LOST,
    bus.MessageNotFoundError: _LOCK_LOST,
    bus.SessionLockLostError: _UNSUPPORTED,
    bus.SessionCannotBeLockedError: _UNSUPPORTED,
    bus.MessagingEntityNotFoundError: _MISSING,
    bus.MessagingEntityDisabledError: _DISABLED,
    bus.MessagingEntityAlreadyExistsError: _EXISTS,
    bus.ServiceBusQuotaExceededError: _FULL,
    bus.ServiceBusServerBusyError: _BUSY,
    bus.AutoLockRenewFailed: BUG,
    bus.AutoLockRenewTimeout: BUG,
    # of the administration client
    core.AzureError: _UNKNOWN,
    core.ServiceRequestError: _NOT_CONNECTED,
    core.ServiceRequestTimeoutError: _NOT_CONNECTED,
    core.ServiceResponseError: _LOST_CONNECTION,
    core.ServiceResponseTimeoutError: _NO_ANSWER,
    core.HttpResponseError: _UNKNOWN,
    core.DecodeError: _UNKNOWN,
    core.IncompleteReadError: _LOST_CONNECTION,
    core.ResourceExistsError: _EXISTS,
    core.ResourceNotFoundError: _MISSING,
    core.ClientAuthenticationError: _DENIED,
    core.ResourceModifiedError: replace(_EXISTS, kind=Retriable, advice="another request changed it; nothing was done"),
    core.ResourceNotModifiedError: _UNKNOWN,
    core.TooManyRedirectsError: Rule(Fatal, Code.MISCONFIGURED, "the endpoint redirects without end: correct the URL"),
    core.ODataV4Error: _UNKNOWN,
    core.StreamConsumedError: _UNKNOWN,
    core.StreamClosedError: _UNKNOWN,
    core.ResponseNotReadError: _UNKNOWN,
    core.SerializationError: _NOT_WRITABLE,
    core.DeserializationError: _UNKNOWN,
    # of Python, which the SDK does not catch
    ImportError: Rule(
        Fatal, Code.MISCONFIGURED, "a package is missing: the transport websockets needs websocket-client"
    ),
    UnicodeError: _NOT_WRITABLE,
    OSError: _LOST_CONNECTION,
    ValueError: _UNKNOWN,
    TypeError: _UNKNOWN,
    AttributeError: _UNKNOWN,
    LookupError: _UNKNOWN,
    RuntimeError: _UNKNOWN,
}

#: Codes of ours: a failed authentication that is not final; an error whose class says nothing.
_TOKEN: Final = "token"  # noqa: S105 - a name
_PLAIN: Final = "plain"
#: By the AMQP condition, where the class says nothing (`ServiceBusError`), and by the administration's HTTP status.
_BY_CODE: Final[Mapping[str | int, Rule]] = {
    "amqp:not-allowed": _UNSUPPORTED,
    "amqp:not-implemented": _UNSUPPORTED,
    "amqp:invalid-field": _REFUSED,
    "amqp:decode-error": _REFUSED,
    "amqp:precondition-failed": _REFUSED,
    "amqp:resource-deleted": _MISSING,
    "com.microsoft:argument-error": _REFUSED,
    "com.microsoft:argument-out-of-range": _REFUSED,
    "com.microsoft:precondition-failed": _REFUSED,
    "com.microsoft:operation-cancelled": _CANCELLED,
    _TOKEN: _LOST_CONNECTION,
    400: Rule(Fatal, Code.REJECTED, "the administration endpoint refuses the request"),
    401: _DENIED,
    403: _DENIED,
    404: _MISSING,
    409: _EXISTS,
    410: _MISSING,
    429: _BUSY,
    503: _BUSY,
}


def _describe(error: BaseException) -> ClientError:
    condition = private.condition(error)
    codes: tuple[str | int | None, ...] = ()
    if isinstance(error, core.HttpResponseError):
        codes = (error.status_code,)
    elif isinstance(error, bus.ServiceBusAuthenticationError) and not private.was_token_refused(error):
        codes = (_TOKEN,)
    elif type(error) is bus.ServiceBusError:
        codes = (condition, _PLAIN)
    return ClientError(str(error), codes=codes, name=condition or type(error).__name__)


TABLE: Final = ErrorTable(
    "servicebus",
    by_class=_BY_CLASS,
    by_code=_BY_CODE,
    by_text=[
        (_PLAIN, "Value supplied for", _NOT_WRITABLE),  # the SDK encodes as it sends: an int over 32 bits
        (None, "CERTIFICATE_VERIFY_FAILED", replace(_NOT_CONNECTED, code=Code.TLS_FAILED)),
    ],
    otherwise=_UNKNOWN,
    describe=_describe,
)


def is_lost(error: BaseException | None) -> bool:
    """Return whether a message's lock is not ours any more.

    Service Bus answers with a bare status for a token that it has forgotten.
    """
    if isinstance(error, BrokerError):
        return error.code is Code.LEASE_LOST or is_lost(error.__cause__)
    return error is not None and (TABLE.rule(error) is _LOCK_LOST or private.status_code(error) in (404, 410))


def is_denied(error: BrokerError) -> bool:
    """Return whether a claim is missing, or the credentials are not accepted."""
    return error.code in {Code.NOT_AUTHORIZED, Code.NOT_AUTHENTICATED}
