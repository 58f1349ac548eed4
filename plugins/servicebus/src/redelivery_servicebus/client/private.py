"""The private parts of azure-servicebus that this plugin uses: no other module touches one.

`TRIED` names the versions for which all of them were tried. A test fails on any other version.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

from azure.servicebus import ServiceBusMessage, ServiceBusReceiver
from azure.servicebus.amqp import AmqpAnnotatedMessage

T = TypeVar("T")

#: Versions of azure-servicebus for which the private parts below were tried.
TRIED: Final = ("7.15.0",)

# --- locks by their tokens ---
#
# The SDK settles over the link that a message came by, with a number that counts from zero on each link. A link that
# was opened again would settle another message under that number. So messages are settled by the lock's token, through
# the management node, as Service Bus documents it for every client. That is also the only way to give a dead letter
# properties: the SDK's public call leaves them out.


#: Locks of one request at most.
_LOCKS: Final = 100


def groups(locks: Sequence[T]) -> Iterator[Sequence[T]]:
    """Yield locks, or what belongs to each, for as many requests as they need."""
    return (locks[start : start + _LOCKS] for start in range(0, len(locks), _LOCKS))


def complete(receiver: ServiceBusReceiver, tokens: Sequence[Any], timeout: float) -> None:
    """Remove the messages. If it fails, some of them may have been removed."""
    _settle(receiver, "completed", tokens, timeout)


def abandon(receiver: ServiceBusReceiver, token: Any, timeout: float) -> None:
    """Return the message to its queue, which counts as a delivery."""
    _settle(receiver, "abandoned", [token], timeout)


def dead_letter(
    receiver: ServiceBusReceiver,
    token: Any,
    reason: str,
    description: str,
    properties: Mapping[str, str],
    timeout: float,
) -> None:
    """Move the message to the dead-letter sub-queue, with these properties set."""
    details: dict[str, Any] = {"deadletter-reason": reason, "deadletter-description": description}
    if properties:
        details["properties-to-modify"] = dict(properties)
    _settle(receiver, "suspended", [token], timeout, details)


def renew(receiver: ServiceBusReceiver, token: Any, timeout: float) -> float:
    """Lock the message for another lock duration; return until when, in seconds since the epoch."""
    answer = receiver._renew_locks(token, timeout=timeout)  # noqa: SLF001 - the public call wants the message's link
    return float(answer[b"expirations"][0]) / 1000


def _settle(
    receiver: ServiceBusReceiver,
    status: str,
    tokens: Sequence[Any],
    timeout: float,
    details: dict[str, Any] | None = None,
) -> None:
    config = receiver._config  # noqa: SLF001 - this handler's own, and the only place for this request's timeout
    kept, config.try_timeout = config.try_timeout, timeout
    try:
        receiver._do_retryable_operation(  # noqa: SLF001 - it raises errors of the SDK's public kinds; retries are off
            receiver._settle_message_via_mgmt_link,  # noqa: SLF001 - see above
            settlement=status,
            lock_tokens=list(tokens),
            dead_letter_details=details,
        )
    finally:
        config.try_timeout = kept


# --- connections ---


def socket_of(handler: Any) -> Any:
    """Return the socket of a sender or receiver; None if the SDK does not let one see it."""
    for name in ("_handler", "_connection", "_transport", "sock"):
        handler = getattr(handler, name, None)
    return handler


def close_at_once(handler: Any) -> None:
    """Close a sender or receiver without the second for which the SDK waits for its keep-alive thread to end."""
    if getattr(handler, "_handler", None) is not None:
        handler._handler._keep_alive_thread = None  # noqa: SLF001 - no public way exists; that thread ends by itself
    handler.close()


# --- messages ---


def as_message(annotated: AmqpAnnotatedMessage) -> ServiceBusMessage:
    """Return an AMQP message as one that a sender takes: a public constructor takes a body of bytes only."""
    message = ServiceBusMessage(None)
    message._raw_amqp_message = annotated  # noqa: SLF001 - the only way to keep a body of another kind
    return message


# --- errors ---


def condition(error: BaseException) -> str | None:
    """Return the AMQP condition of an error."""
    found = getattr(error, "_condition", None)
    return str(found) if found else None


def status_code(error: BaseException) -> int | None:
    """Return the status of a request to the management node that failed."""
    found = getattr(error, "_status_code", None)
    return found if isinstance(found, int) else None


def was_token_refused(error: BaseException) -> bool:
    """Return whether a failed authentication is final.

    It is not if the token ran out on an idle link, or if the server had no time for it. A token that cannot be renewed
    is refused when the link is opened again.
    """
    cause = getattr(error, "inner_exception", None)
    kind, status = type(cause).__name__, getattr(cause, "status_code", None)  # classes that are not public
    busy = isinstance(status, int) and (status in (408, 429) or status >= 500)  # noqa: PLR2004 - HTTP's numbers
    return not (kind == "TokenExpired" or (kind == "TokenAuthFailure" and busy))
