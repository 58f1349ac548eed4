"""A received message to be sent again: complete, also another producer's, and under an id that no duplicate has."""

from __future__ import annotations

import json
from typing import Any

from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage

from redelivery.codes import Code
from redelivery.errors import Permanent
from redelivery_servicebus.client.native import message_of, native_of, properties_of
from redelivery_servicebus.client.private import unreadable
from redelivery_servicebus.codec import MEMBERS, PACKED, message_id


def copy_of(raw: ServiceBusReceivedMessage, attempt: int) -> ServiceBusMessage:
    """Return the message to send again, after `attempt` deliveries.

    Its message id names the delivery that ends with it, so that duplicate detection drops no copy but one that was sent
    twice. The message's own id is kept in our property.

    Raises:
        Permanent: it has content that the SDK cannot send.
    """
    try:
        return _copied(raw, attempt)
    except Exception as error:
        text = f"servicebus: message {raw.sequence_number} cannot be copied: its content cannot be written again"
        raise Permanent(f"{text} ({error!r:.300}); retry it without a delay", code=Code.INVALID_MESSAGE) from error


def _copied(raw: ServiceBusReceivedMessage, attempt: int) -> ServiceBusMessage:
    if (why := unreadable(raw)) is not None:
        raise ValueError(why[0])
    properties: dict[str, Any] = properties_of(raw)
    try:
        packed = dict(json.loads(properties.get(PACKED, "{}")))
    except (ValueError, TypeError, RecursionError):  # it cannot be decoded, so it stays as another producer wrote it
        packed = None
    if packed is not None:
        if PACKED in properties and packed.keys().isdisjoint(MEMBERS):
            packed = {"theirs": properties[PACKED]}  # another application's
        if packed.get("id", True) is True:
            its = message_id(raw)
            packed["id"] = False if its is None else its
        packed["attempt"] = attempt
        properties[PACKED] = json.dumps(packed, separators=(",", ":"), ensure_ascii=False)
    native = native_of(raw, frozenset(), None, damaged=None, ordered=False)
    body = None if native.body is not None else b"".join(raw.raw_amqp_message.body)
    name = f"redelivery-retry-{raw.sequence_number}"
    copy = message_of(native, body, name, native.fields.get("content_type"), properties)
    if raw.raw_amqp_message.header is not None and copy.raw_amqp_message.header is not None:
        copy.raw_amqp_message.header.time_to_live = raw.raw_amqp_message.header.time_to_live  # it is no letter
    return copy
