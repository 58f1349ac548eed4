"""A received message to be sent again: complete, also another producer's, and under an id that no duplicate has."""

from __future__ import annotations

import json
from typing import Any, Final

from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage
from azure.servicebus.amqp import (
    AmqpAnnotatedMessage,
    AmqpMessageBodyType,
    AmqpMessageHeader,
    AmqpMessageProperties,
)

from redelivery.codes import Code
from redelivery.errors import Permanent
from redelivery_servicebus.client.private import as_message
from redelivery_servicebus.codec import PACKED, message_id, properties_of

#: Attributes that a copy keeps.
_KEPT: Final = (
    "content_type", "correlation_id", "subject", "to", "reply_to", "time_to_live", "session_id", "reply_to_session_id",
    "partition_key",
)  # fmt: skip


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
    source = raw.raw_amqp_message
    properties = properties_of(raw)
    try:
        packed = dict(json.loads(properties.get(PACKED, "{}")))
    except (ValueError, TypeError, RecursionError):  # it cannot be decoded, so it stays as another producer wrote it
        packed = None
    if packed is not None:
        if packed.get("id", True) is True:
            its = message_id(raw)
            packed["id"] = False if its is None else its
        packed["attempt"] = attempt
        properties[PACKED] = json.dumps(packed, separators=(",", ":"), ensure_ascii=False)
    body = source.body if source.body_type is AmqpMessageBodyType.VALUE else list(source.body)
    annotated = AmqpAnnotatedMessage(**{f"{source.body_type.value}_body": body})  # type: ignore[arg-type]
    annotated.header, annotated.properties = AmqpMessageHeader(), AmqpMessageProperties()
    copy = as_message(annotated)
    copy.application_properties = {name: _typed(value) for name, value in properties.items()}
    copy.message_id = f"redelivery-retry-{raw.sequence_number}"
    for name in _KEPT:
        setattr(copy, name, getattr(raw, name))
    return copy


def _typed(value: Any) -> Any:
    """Return a property's value, with its AMQP type where the SDK would guess a type that cannot hold it.

    A number over 32 bits may have been a timestamp: the SDK does not tell.
    """
    if isinstance(value, bytes):  # the SDK would make them text, and they are not UTF-8
        return {"TYPE": "BINARY", "VALUE": value}
    if not isinstance(value, int) or -(1 << 31) <= value < 1 << 31:
        return value
    return {"TYPE": "LONG" if value < 1 << 63 else "ULONG", "VALUE": value}
