"""Every error of the SDK as one of redelivery's classes: the only file that knows them.

The SDK's own opinion of what may be retried is not used: it calls a full queue final, and a wrong key worth a retry.
This file must not call Service Bus nor decide what follows from an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from azure.core import exceptions as core
from azure.servicebus import exceptions as bus

from redelivery.base.urls import redact
from redelivery.errors import Ambiguous, BrokerError, Fatal, Permanent, Retriable, Throttled, Unattributed
from redelivery_servicebus.client import private

_Rule = tuple[type[BrokerError] | None, str]

#: Nothing was done before it was asked for; once it was, nobody knows.
_UNKNOWN: _Rule = (None, "")
_LATER: _Rule = (Retriable, "nothing was done")
_NO_QUEUE: _Rule = (Fatal, "there is no such queue in this namespace: provision it, or correct the URL")
_CREDENTIALS: _Rule = (Fatal, "these credentials are not taken: correct or renew them")
_DENIED: _Rule = (Fatal, "give this identity the claim")
_REFUSED: _Rule = (Unattributed, "Service Bus refused it; nothing was stored")
_ROW: _Rule = (Permanent, "it cannot be sent")
_LOST: _Rule = (Permanent, "the lock has run out, or was used")
_CONFIGURED: _Rule = (Fatal, "it cannot be used so: name a subscription of a topic; sessions are for later")
_OURS: _Rule = (Fatal, "this is an error of redelivery-servicebus: please report it")

#: By class: the nearest base counts. A test walks what the SDK has.
BY_CLASS: Final[Mapping[type[BaseException], _Rule]] = {
    bus.ServiceBusError: _UNKNOWN,
    bus.ServiceBusConnectionError: _UNKNOWN,
    bus.ServiceBusCommunicationError: _UNKNOWN,
    bus.OperationTimeoutError: _UNKNOWN,
    bus.ServiceBusAuthenticationError: _CREDENTIALS,
    bus.ServiceBusAuthorizationError: _DENIED,
    bus.MessageSizeExceededError: (Unattributed, "it is larger than the queue takes; nothing was stored"),
    bus.MessageAlreadySettled: _LOST,
    bus.MessageLockLostError: _LOST,
    bus.MessageNotFoundError: _LOST,
    bus.SessionLockLostError: _CONFIGURED,
    bus.SessionCannotBeLockedError: _CONFIGURED,
    bus.MessagingEntityNotFoundError: _NO_QUEUE,
    bus.MessagingEntityDisabledError: (Fatal, "the queue is disabled: enable it"),
    bus.MessagingEntityAlreadyExistsError: (Fatal, "a queue of this name exists already"),
    bus.ServiceBusQuotaExceededError: (Retriable, "the queue, or the namespace, is full; nothing was stored"),
    bus.ServiceBusServerBusyError: (Throttled, "Service Bus asks for fewer requests; nothing was done"),
    bus.AutoLockRenewFailed: _OURS,
    bus.AutoLockRenewTimeout: _OURS,
    # of the administration client
    core.AzureError: _UNKNOWN,
    core.ServiceRequestError: _LATER,
    core.ServiceRequestTimeoutError: _LATER,
    core.ServiceResponseError: _UNKNOWN,
    core.ServiceResponseTimeoutError: _UNKNOWN,
    core.HttpResponseError: _UNKNOWN,
    core.DecodeError: _UNKNOWN,
    core.IncompleteReadError: _UNKNOWN,
    core.ResourceExistsError: (Fatal, "something of this name exists already"),
    core.ResourceNotFoundError: _NO_QUEUE,
    core.ClientAuthenticationError: _DENIED,
    core.ResourceModifiedError: _LATER,
    core.ResourceNotModifiedError: _UNKNOWN,
    core.TooManyRedirectsError: (Fatal, "the endpoint leads nowhere: correct the URL"),
    core.ODataV4Error: _UNKNOWN,
    core.StreamConsumedError: _UNKNOWN,
    core.StreamClosedError: _UNKNOWN,
    core.ResponseNotReadError: _UNKNOWN,
    core.SerializationError: _ROW,
    core.DeserializationError: _UNKNOWN,
    # of Python, which the SDK lets through
    ImportError: (Fatal, "a package is missing: the transport websockets needs websocket-client"),
    UnicodeError: _ROW,
    OSError: _UNKNOWN,
    ValueError: _UNKNOWN,
    TypeError: _UNKNOWN,
    AttributeError: _UNKNOWN,
    LookupError: _UNKNOWN,
    RuntimeError: _UNKNOWN,
}

#: Where the class says nothing (`ServiceBusError`): by the AMQP condition.
BY_CONDITION: Final[Mapping[str, _Rule]] = {
    "amqp:not-allowed": _CONFIGURED,
    "amqp:not-implemented": _CONFIGURED,
    "amqp:invalid-field": _REFUSED,
    "amqp:decode-error": _REFUSED,
    "amqp:precondition-failed": _REFUSED,
    "amqp:resource-deleted": _NO_QUEUE,
    "com.microsoft:argument-error": _REFUSED,
    "com.microsoft:argument-out-of-range": _REFUSED,
    "com.microsoft:precondition-failed": _REFUSED,
    "com.microsoft:operation-cancelled": _LATER,
}
#: By the HTTP status of an administration request.
BY_STATUS: Final[Mapping[int, _Rule]] = {
    400: (Fatal, "the administration endpoint refuses the request"),
    401: _DENIED,
    403: _DENIED,
    404: _NO_QUEUE,
    409: (Fatal, "it exists already, or another request changes it"),
    410: _NO_QUEUE,
    429: (Throttled, "the administration endpoint asks for fewer requests"),
    503: (Throttled, "the administration endpoint asks for fewer requests"),
}

#: Whatever a call may raise.
ERRORS: Final = tuple(BY_CLASS)


def classify(error: BaseException, doing: str, *, claim: str, asked: bool) -> BrokerError:
    """The error as redelivery's, its text saying what to do; chain it from the original.

    Args:
        error: what the SDK raised.
        doing: what it was asked to do.
        claim: the claim that this needs.
        asked: whether the request itself may have left this machine; not, while a link was being opened.
    """
    kind, advice = _rule(error)
    if kind is None:
        kind, advice = (Ambiguous, "it may have been done or not") if asked else (Retriable, "nothing was done")
    name = private.condition(error) or type(error).__name__
    advice = f"{advice} {claim}" if advice == _DENIED[1] else advice
    text = redact(" ".join(str(error).split()))[:500]
    return kind(f"servicebus: {doing}: {text} ({type(error).__name__}); {advice}", native_code=name)


def is_lost(error: BaseException) -> bool:
    """Whether a lock is no longer ours."""
    kinds = (bus.MessageLockLostError, bus.MessageNotFoundError, bus.MessageAlreadySettled)
    # A token that Service Bus has forgotten is told as a status alone.
    return isinstance(error, kinds) or private.status_code(error) in (404, 410)


def is_denied(error: BaseException) -> bool:
    """Whether a claim is missing, or the credentials are not taken."""
    return isinstance(error, BrokerError) and isinstance(error, Fatal) and _denied(error.__cause__)


def is_missing(error: BaseException) -> bool:
    """Whether there is no such queue."""
    return isinstance(error, Fatal) and error.__cause__ is not None and _rule(error.__cause__) is _NO_QUEUE


def _denied(error: BaseException | None) -> bool:
    return error is not None and _rule(error) in (_DENIED, _CREDENTIALS)


def is_target(error: BrokerError) -> bool:
    """Whether it is about the queue that was named: missing, disabled, or not ours to use."""
    kinds = (bus.MessagingEntityNotFoundError, bus.MessagingEntityDisabledError, bus.ServiceBusAuthorizationError)
    return isinstance(error, Fatal) and isinstance(error.__cause__, kinds)


@contextmanager
def classified(doing: str, *, claim: str, asked: bool = True) -> Iterator[None]:
    """Turn whatever the SDK raises inside into redelivery's error, chained."""
    try:
        yield
    except BrokerError:
        raise
    except ERRORS as error:
        raise classify(error, doing, claim=claim, asked=asked) from error


def _rule(error: BaseException) -> _Rule:
    base = next((each for each in type(error).__mro__ if each in BY_CLASS), None)
    if base is None:
        return _UNKNOWN
    if isinstance(error, core.HttpResponseError) and BY_CLASS[base] is _UNKNOWN:
        return BY_STATUS.get(error.status_code or 0, _UNKNOWN)
    if base is bus.ServiceBusAuthenticationError and not private.was_token_refused(error):
        return _UNKNOWN
    if base is bus.ServiceBusError:
        if "Value supplied for" in str(error):  # the SDK encodes as it sends: an int over 32 bits
            return _ROW
        return BY_CONDITION.get(private.condition(error) or "", _UNKNOWN)
    return BY_CLASS[base]
