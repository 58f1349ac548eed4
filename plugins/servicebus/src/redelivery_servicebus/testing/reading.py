"""Messages of a queue, read without the plugin's code.

In step with how the plugin encodes: the body is one data section; a header whose value is text is an application
property; all else is in the property `redelivery`, a JSON object: `key`, `timestamp`, `body` ("null", where an empty
body stands for one), `headers` in their order (a property's name, or a pair of name and value), `id` (false where
the message id is not the sender's; a text: that one). Bytes that are not UTF-8 text are written `{"base64": ...}`.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

from azure.servicebus import ServiceBusMessage

from redelivery.contract.message import Headers, Message

PACKED: Final = "redelivery"
#: An application property that names no JSON of ours: the plugin cannot decode this message.
_SPAN: Final = {"TYPE": "LONG", "VALUE": 36_000_000_000}
DAMAGED: Final = {PACKED: "{oops"}


def foreign() -> ServiceBusMessage:
    """Return another application's message, with all that the SDK lets it set but a time to live, which it loses."""
    message = ServiceBusMessage(
        b"{}",
        application_properties={
            "text": "München",
            "number": 7,
            "minus": -1,
            "float": 0.5,
            "yes": True,
            "no": False,
            "id": UUID("00000000-0000-0000-0000-00000000002a"),
            "zzz": "behind our marker",
        },
        message_id="another-application-1",
        content_type="application/json",
        correlation_id="request-7",
        subject="departed",
        to="somewhere",
        reply_to="answers",
        reply_to_session_id="talk-2",
        session_id="airport-7",
        partition_key="airport-7",
    )
    properties: Any = message.application_properties
    properties |= {
        "long": {"TYPE": "LONG", "VALUE": 5},
        "unsigned": {"TYPE": "ULONG", "VALUE": 1 << 63},
        "byte": {"TYPE": "UBYTE", "VALUE": 255},
        "single": {"TYPE": "FLOAT", "VALUE": 0.25},
        "bytes": {"TYPE": "BINARY", "VALUE": b"\xff\x00"},
        "binary text": {"TYPE": "BINARY", "VALUE": b"text"},
        "span": {"TYPE": "DESCRIBED", "VALUE": ({"TYPE": "SYMBOL", "VALUE": b"com.microsoft:timespan"}, _SPAN)},
        "null": None,
        "when": datetime(2024, 2, 29, 12, tzinfo=UTC),
    }
    message.raw_amqp_message.annotations = {
        **(message.raw_amqp_message.annotations or {}),
        "x-opt-via-partition-key": "airport-7",
        "x-own": {"TYPE": "LONG", "VALUE": 3},
    }
    return message


@dataclass(frozen=True, slots=True)
class RawMessage:
    """The parts of a message that the tests read."""

    body: bytes | None
    message_id: str | None
    properties: Mapping[str, Any]


def message(raw: RawMessage) -> Message:
    """Return the message that was sent."""
    properties = dict(raw.properties)
    packed = json.loads(properties.pop(PACKED, "{}"))
    id_ = packed.get("id", True)
    body = packed.get("body")
    return Message(
        value=None if body == "null" else raw.body or b"",
        key=_bytes(packed.get("key")),
        headers=_headers(packed.get("headers", ()), properties),
        id=raw.message_id if id_ is True else id_ if isinstance(id_, str) else None,
        timestamp_ms=packed.get("timestamp"),
    )


def _headers(listed: Any, properties: dict[str, Any]) -> Headers:
    found: list[tuple[str, bytes | None]] = []
    for each in listed:
        if isinstance(each, str):
            found.append((each, _bytes(properties.pop(each))))
        else:
            found.append((each[0], _bytes(each[1])))
    return (*found, *((name, _bytes(value)) for name, value in sorted(properties.items())))


def _bytes(value: Any) -> bytes | None:
    if isinstance(value, dict):
        return base64.b64decode(value["base64"])
    if isinstance(value, bytes):
        return value
    return None if value is None else str(value).encode()
