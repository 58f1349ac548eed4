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
from typing import Any, Final

from redelivery.contract.message import Headers, Message

PACKED: Final = "redelivery"
#: An application property that names no JSON of ours: the plugin cannot decode this message.
DAMAGED: Final = {PACKED: "{oops"}


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
