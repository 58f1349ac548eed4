"""Errors of the SDK and of its administration client, as redelivery's.

The SDK's own opinion of what may be retried is not used: it calls a full queue final, and a wrong key worth a retry.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from azure.core import exceptions as core
from azure.servicebus import exceptions as bus

from redelivery.codes import Code
from redelivery.errors import Ambiguous, BrokerError, Fatal, Permanent, Retriable, Throttled, Unattributed
from redelivery.kit.errors import BUG, ClientError, ErrorTable, Rule
from redelivery_servicebus.client import private

#: The claim that an operation needs, for errors.
SEND: Final = "the claim Send"
LISTEN: Final = "the claim Listen"
MANAGE: Final = "the claim Manage"

#: Codes of ours: a failed authentication that is not final; an error whose class says nothing.
_TOKEN: Final = "token"  # noqa: S105 - a name
_PLAIN: Final = "plain"

_UNKNOWN: Final = Rule(Ambiguous, Code.UNAVAILABLE, "it may have been done or not")
_NOT_CONNECTED: Final = Rule(Retriable, Code.CONNECTION_LOST, "nothing was done")
_CONFLICT: Final = Rule(Fatal, Code.CONFLICT, "it exists already, or another request changes it")
_NOT_WRITABLE: Final = Rule(Permanent, Code.INVALID_MESSAGE, "it cannot be sent")
_LOCK_LOST: Final = Rule(Permanent, Code.LEASE_LOST, "the lock has run out, or was used")

#: What each error means: by class; by the AMQP condition where the class says nothing (`ServiceBusError`); and by the
#: HTTP status of the administration.
_RULES: Final[Mapping[Rule, tuple[type[BaseException] | str | int, ...]]] = {
    _UNKNOWN: (
        bus.ServiceBusError, core.AzureError, core.HttpResponseError, core.DecodeError, core.ResourceNotModifiedError,
        core.ODataV4Error, core.StreamConsumedError, core.StreamClosedError, core.ResponseNotReadError,
        core.DeserializationError, ValueError, TypeError, AttributeError, LookupError, RuntimeError,
    ),
    replace(_UNKNOWN, code=Code.CONNECTION_LOST): (
        bus.ServiceBusConnectionError, bus.ServiceBusCommunicationError, core.ServiceResponseError,
        core.IncompleteReadError, OSError, _TOKEN,
    ),
    replace(_UNKNOWN, code=Code.DEADLINE_EXCEEDED): (bus.OperationTimeoutError, core.ServiceResponseTimeoutError),
    _NOT_CONNECTED: (core.ServiceRequestError, core.ServiceRequestTimeoutError),
    replace(_NOT_CONNECTED, code=Code.UNAVAILABLE): ("com.microsoft:operation-cancelled",),
    Rule(Throttled, Code.THROTTLED, "Service Bus asks for fewer requests; nothing was done"): (
        bus.ServiceBusServerBusyError, 429, 503,
    ),
    Rule(Retriable, Code.FULL, "the queue or the namespace is full; nothing was stored"): (
        bus.ServiceBusQuotaExceededError,
    ),
    Rule(
        Fatal, Code.NO_SUCH_DESTINATION, "the queue does not exist in this namespace: provision it, or correct the URL",
        about_target=True,
    ): (bus.MessagingEntityNotFoundError, core.ResourceNotFoundError, "amqp:resource-deleted", 404, 410),
    Rule(Fatal, Code.MISCONFIGURED, "the queue is disabled: enable it", about_target=True): (
        bus.MessagingEntityDisabledError,
    ),
    Rule(Fatal, Code.NOT_AUTHENTICATED, "Service Bus does not accept these credentials: correct or renew them"): (
        bus.ServiceBusAuthenticationError,
    ),
    Rule(Fatal, Code.NOT_AUTHORIZED, "this identity lacks a permission", about_target=True): (
        bus.ServiceBusAuthorizationError, core.ClientAuthenticationError, 401, 403,
    ),
    _CONFLICT: (bus.MessagingEntityAlreadyExistsError, core.ResourceExistsError, 409),
    replace(_CONFLICT, kind=Retriable, advice="another request changed it; nothing was done"): (
        core.ResourceModifiedError,
    ),
    Rule(Fatal, Code.UNSUPPORTED, "name a subscription of a topic; a queue with sessions: add ?sessions=true"): (
        bus.SessionCannotBeLockedError, "amqp:not-allowed", "amqp:not-implemented",
    ),
    Rule(Unattributed, Code.TOO_LARGE, "it is larger than the queue accepts; nothing was stored"): (
        bus.MessageSizeExceededError,
    ),
    Rule(Unattributed, Code.REJECTED, "Service Bus refused it; nothing was stored"): (
        "amqp:invalid-field", "amqp:decode-error", "amqp:precondition-failed", "com.microsoft:argument-error",
        "com.microsoft:argument-out-of-range", "com.microsoft:precondition-failed",
    ),
    Rule(Fatal, Code.REJECTED, "the administration endpoint refuses the request"): (400,),
    _NOT_WRITABLE: (core.SerializationError, UnicodeError),
    _LOCK_LOST: (
        bus.MessageLockLostError, bus.SessionLockLostError, bus.MessageNotFoundError, bus.MessageAlreadySettled,
    ),
    Rule(Fatal, Code.MISCONFIGURED, "the endpoint redirects without end: correct the URL"): (
        core.TooManyRedirectsError,
    ),
    Rule(Fatal, Code.MISCONFIGURED, "a package is missing: the transport websockets needs websocket-client"): (
        ImportError,
    ),
    BUG: (bus.AutoLockRenewFailed, bus.AutoLockRenewTimeout),
}  # fmt: skip


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
    by_class={each: rule for rule, found in _RULES.items() for each in found if isinstance(each, type)},
    by_code={each: rule for rule, found in _RULES.items() for each in found if not isinstance(each, type)},
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
