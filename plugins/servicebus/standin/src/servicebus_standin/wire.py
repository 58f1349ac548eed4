"""Encode a stored message for its receiver, with annotations, lock and counts as Service Bus writes them.

The stored message does not change.
"""

from __future__ import annotations

from typing import Any, Final

from servicebus_standin.box import Stored, StoreError
from servicebus_standin.codec import Content, int32, timestamp
from servicebus_standin.store import Queue

SCHEDULED: Final = "x-opt-scheduled-enqueue-time"
_STATES: Final = {"deferred": 1, "scheduled": 2}


def take(queue: Queue, *encoded: bytes, scheduled: bool = False) -> list[int]:
    """Store all encoded messages in a queue, or none; return their sequence numbers, with 0 for a duplicate.

    Raises:
        Malformed, StoreError
    """
    contents = [_parse(queue, each) for each in encoded]
    queue.admit(sum(content.size for content in contents))
    numbers = []
    for content in contents:
        due = content.annotation(SCHEDULED)
        if due is None and scheduled:
            due = 0
        numbers.append(queue.enqueue(content, str(content.property(0)), None if due is None else due / 1000) or 0)
    return numbers


def _parse(queue: Queue, encoded: bytes) -> Content:
    content = Content.parse(encoded)
    if queue.settings.requires_session and content.session is None:
        raise StoreError("amqp:not-allowed", 400, "The queue requires sessions, and the message has no session id.")
    return content


def give(message: Stored) -> bytes:
    """Return the message as sent over the wire."""
    content: Content = message.content
    annotations: dict[str, Any] = {
        "x-opt-sequence-number": message.sequence,
        "x-opt-enqueue-sequence-number": message.origin,
        "x-opt-enqueued-time": timestamp(message.enqueued),
        "x-opt-message-state": int32(_STATES.get(message.state, 0) if message.token is None else 0),
    }
    if message.locked_until is not None:
        annotations["x-opt-locked-until"] = timestamp(message.locked_until)
    if message.source is not None:
        annotations["x-opt-deadletter-source"] = message.source
    return content.encode(message.deliveries, annotations, message.properties)
