"""A message of a queue as it is sent again: whole, whoever wrote it, and under an id that is not taken for a repeat.

This file must not send.
"""

from __future__ import annotations

import json
from typing import Any

from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage
from azure.servicebus.amqp import (
    AmqpAnnotatedMessage,
    AmqpMessageBodyType,
    AmqpMessageHeader,
    AmqpMessageProperties,
)

from redelivery.errors import Permanent
from redelivery_servicebus.client.private import as_message
from redelivery_servicebus.codec import PACKED, message_id, texts


def copy_of(raw: ServiceBusReceivedMessage, attempt: int) -> ServiceBusMessage:
    """The message as it is sent again, after `attempt` deliveries.

    Its message id names the delivery that ends with it, so that duplicate detection drops no copy but one that was sent
    twice. Its own id is kept in our property.

    Raises:
        Permanent: it holds what the SDK cannot send.
    """
    try:
        return _copied(raw, attempt)
    except Exception as error:
        text = f"what it holds cannot be written again ({error!r:.300}); retry it without a delay"
        raise Permanent(
            f"servicebus: message {raw.sequence_number} cannot be copied: {text}", native_code="TYPE"
        ) from error


def _copied(raw: ServiceBusReceivedMessage, attempt: int) -> ServiceBusMessage:
    source = raw.raw_amqp_message
    properties = texts(source.application_properties)
    try:
        packed = dict(json.loads(properties.get(PACKED, "{}")))
    except (ValueError, TypeError, RecursionError):  # it cannot be decoded, and is not ours to mend
        packed = None
    if packed is not None:
        if packed.get("id", True) is True:
            its = message_id(raw)
            packed["id"] = False if its is None else its
        packed["attempt"] = attempt
        properties[PACKED] = json.dumps(packed, separators=(",", ":"), ensure_ascii=False)
    annotated = AmqpAnnotatedMessage(**_body(source))
    annotated.header, annotated.properties = AmqpMessageHeader(), AmqpMessageProperties()
    copy = as_message(annotated)
    copy.application_properties = {name: _typed(value) for name, value in properties.items()}
    copy.message_id = f"redelivery-retry-{raw.sequence_number}"
    copy.content_type, copy.correlation_id, copy.subject = raw.content_type, raw.correlation_id, raw.subject
    copy.to, copy.reply_to, copy.time_to_live = raw.to, raw.reply_to, raw.time_to_live
    copy.session_id, copy.reply_to_session_id = raw.session_id, raw.reply_to_session_id
    copy.partition_key = raw.partition_key
    return copy


def _body(source: Any) -> dict[str, Any]:
    match source.body_type:
        case AmqpMessageBodyType.DATA:
            return {"data_body": list(source.body)}
        case AmqpMessageBodyType.SEQUENCE:
            return {"sequence_body": list(source.body)}
        case _:
            return {"value_body": source.body}


def _typed(value: Any) -> Any:
    """A property's value, its AMQP type told where the SDK would guess one that cannot hold it.

    What comes as a number over 32 bits may have been a timestamp: the SDK does not tell.
    """
    if isinstance(value, bytes):  # the SDK would make them text, and these are none
        return {"TYPE": "BINARY", "VALUE": value}
    if not isinstance(value, int) or -(1 << 31) <= value < 1 << 31:
        return value
    return {"TYPE": "LONG" if value < 1 << 63 else "ULONG", "VALUE": value}
