"""Reads the messages of a queue without the plugin's code, and decodes them as its README says.

moto keeps its messages in this process's memory, and they are read there. From any other server all messages are
received and made visible again, which counts one receipt each.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

from redelivery.contract.message import Message

#: Seconds for which a message is hidden while the others are read: longer than that takes, or they would never end.
_HIDDEN = 600


def url(sqs: Any, queue: str) -> str:
    """SQS's URL of a queue; empty if it does not exist."""
    try:
        return str(sqs.get_queue_url(QueueName=queue)["QueueUrl"])
    except sqs.exceptions.QueueDoesNotExist:
        return ""


def by_receiving(sqs: Any, queue: str) -> Sequence[Message]:
    """The messages that can be received now, in order of arrival."""
    return [message(each["Body"], each.get("MessageAttributes", {})) for each in as_stored(sqs, queue)]


def as_stored(sqs: Any, queue: str) -> Sequence[Mapping[str, Any]]:
    """The messages that can be received now, as boto3 gives them, in order of arrival."""
    where = url(sqs, queue)
    if not where:
        return []
    found: list[dict[str, Any]] = []
    while True:
        answer = sqs.receive_message(
            QueueUrl=where,
            MaxNumberOfMessages=10,
            VisibilityTimeout=_HIDDEN,
            AttributeNames=["All"],
            MessageAttributeNames=["All"],
        )
        if not answer.get("Messages"):
            break
        found += answer["Messages"]
    for at in range(0, len(found), 10):
        some = found[at : at + 10]
        entries = [
            {"Id": str(n), "ReceiptHandle": each["ReceiptHandle"], "VisibilityTimeout": 0}
            for n, each in enumerate(some)
        ]
        sqs.change_message_visibility_batch(QueueUrl=where, Entries=entries)

    def arrived(each: Mapping[str, Any]) -> tuple[int, int]:
        known = each["Attributes"]
        return (int(known["SentTimestamp"]), int(known.get("SequenceNumber", 0)))

    return sorted(found, key=arrived)


def by_consuming(sqs: Any, queue: str) -> Sequence[Message]:
    """Take all messages of a queue away, in the order of their receipt.

    It also shows those behind others of their message group, which `by_receiving` cannot.
    """
    where = url(sqs, queue)
    found: list[Message] = []
    while True:
        answer = sqs.receive_message(
            QueueUrl=where, MaxNumberOfMessages=10, WaitTimeSeconds=1, MessageAttributeNames=["All"]
        )
        came = answer.get("Messages") or []
        if not came:
            return found
        found += [message(each["Body"], each.get("MessageAttributes", {})) for each in came]
        entries = [{"Id": str(at), "ReceiptHandle": each["ReceiptHandle"]} for at, each in enumerate(came)]
        sqs.delete_message_batch(QueueUrl=where, Entries=entries)


def of_moto(queue: str) -> Sequence[Message]:
    """All messages in moto's memory, leased ones included."""
    from moto.sqs.models import sqs_backends  # noqa: PLC0415 - an extra

    for regions in sqs_backends.values():
        for backend in regions.values():
            if queue in backend.queues:
                return [_of_moto(each) for each in list(backend.queues[queue]._messages)]  # noqa: SLF001 - no other way
    return []


def _of_moto(found: Any) -> Message:
    attributes = {
        name: {"StringValue": each.get("StringValue"), "BinaryValue": each.get("BinaryValue")}
        for name, each in found.message_attributes.items()
    }
    return message(found.body, attributes)


def message(body: str, attributes: Mapping[str, Any]) -> Message:
    """Decode a message as the README describes its form."""
    packed: dict[str, Any] = {}
    if "redelivery" in attributes:
        try:
            packed = json.loads(attributes["redelivery"]["StringValue"])
        except ValueError:
            packed = {}
    texts = {name: each for name, each in attributes.items() if name != "redelivery"}
    value: bytes | None = body.encode()
    if (texts.get("content-transfer-encoding") or {}).get("StringValue") == "base64":
        value = base64.b64decode(body)
        del texts["content-transfer-encoding"]
    elif "body" in packed:
        value = {"null": None, "empty": b""}[packed["body"]]
    listed = packed.get("headers", sorted(texts))
    headers = tuple(
        (each, _native(texts[each])) if isinstance(each, str) else (each[0], _bytes(each[1])) for each in listed
    )
    return Message(
        value=value,
        key=_bytes(packed.get("key")),
        headers=headers,
        id=packed.get("id"),
        timestamp_ms=packed.get("timestamp"),
    )


def _native(attribute: Mapping[str, Any]) -> bytes:
    text = attribute.get("StringValue")
    return bytes(attribute["BinaryValue"]) if text is None else str(text).encode()


def _bytes(value: Any) -> bytes | None:
    if isinstance(value, dict):
        return base64.b64decode(value["base64"])
    return None if value is None else str(value).encode("utf-8", "surrogatepass")
