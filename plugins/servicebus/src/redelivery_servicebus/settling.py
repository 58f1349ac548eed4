"""Locks, settled and renewed by their tokens: the only file that uses what the SDK does not document.

The SDK settles over the link that a message came by, by a number that counts from zero on each link. A link that was
opened anew would settle another message under that number, so settling goes by the lock's token, through the
management node, as Service Bus documents it for every client. That is also the only way to give a dead letter
properties, which the SDK's own call leaves out.

This file must not decide what is settled how, nor retry.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from azure.servicebus import ServiceBusReceiver


def complete(receiver: ServiceBusReceiver, token: Any, timeout: float) -> None:
    """Forget the message."""
    _settle(receiver, "completed", token, timeout)


def abandon(receiver: ServiceBusReceiver, token: Any, timeout: float) -> None:
    """Back to its queue; counts as a delivery."""
    _settle(receiver, "abandoned", token, timeout)


def dead_letter(
    receiver: ServiceBusReceiver,
    token: Any,
    reason: str,
    description: str,
    properties: Mapping[str, str],
    timeout: float,
) -> None:
    """To the dead-letter sub-queue, with these properties set."""
    details: dict[str, Any] = {"deadletter-reason": reason, "deadletter-description": description}
    if properties:
        details["properties-to-modify"] = dict(properties)
    _settle(receiver, "suspended", token, timeout, details)


def renew(receiver: ServiceBusReceiver, token: Any, timeout: float) -> float:
    """Lock it for another lock duration; until when, in seconds since the epoch."""
    answer = receiver._renew_locks(token, timeout=timeout)  # noqa: SLF001 - the public call wants the link it came by
    return float(answer[b"expirations"][0]) / 1000


def _settle(
    receiver: ServiceBusReceiver, status: str, token: Any, timeout: float, details: dict[str, Any] | None = None
) -> None:
    config = receiver._config  # noqa: SLF001 - this handler's own, and the only place for this request's timeout
    kept, config.try_timeout = config.try_timeout, timeout
    try:
        receiver._do_retryable_operation(  # noqa: SLF001 - which makes errors of the SDK's public kind; retries are off
            receiver._settle_message_via_mgmt_link,  # noqa: SLF001 - see above
            settlement=status,
            lock_tokens=[token],
            dead_letter_details=details,
        )
    finally:
        config.try_timeout = kept
