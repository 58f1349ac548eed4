"""A message as a job's body, and back.

A plain message is its value, so that other workers can read it. One that has more begins with a line of JSON.
"""

from __future__ import annotations

import json

from redelivery.contract.message import Message
from redelivery.errors import Permanent
from redelivery.kit.errors import Code
from redelivery.kit.packing import from_portable, portable

MARK = b"redelivery "  # begins the line


def headers_most(most: int) -> int:
    """Return how many bytes the headers may have in a job of at most so many: JSON makes them longer."""
    return most // 4


def encode(message: Message, most: int) -> bytes:
    """Return a job's body. Raises Permanent: it is larger than `most` bytes, or its headers than a quarter of it."""
    more = {
        "null": message.value is None or None,
        "key": portable(message.key),
        "headers": [[name, portable(value)] for name, value in message.headers] or None,
        "id": message.id,
        "timestamp_ms": message.timestamp_ms,
    }
    value = message.value or b""
    if value.startswith(MARK) or any(each is not None for each in more.values()):
        value = MARK + json.dumps(more).encode() + b"\n" + value
    headers = message.size - len(message.value or b"") - len(message.key or b"")
    for what, size, limit in (("the message has", len(value), most), ("its headers have", headers, headers_most(most))):
        if size > limit:
            raise Permanent(f"{what} {size} bytes, and {limit} are the most", code=Code.TOO_LARGE)
    return value


def decode(body: bytes) -> tuple[Message, str | None]:
    """Return the message of a job; and why it is the body as it is, where its line cannot be read."""
    if not body.startswith(MARK):
        return Message(value=body), None
    line, _, value = body.removeprefix(MARK).partition(b"\n")
    try:
        more = json.loads(line)
        message = Message(
            value=None if more["null"] else value,
            key=from_portable(more["key"]),
            headers=tuple((name, from_portable(value)) for name, value in more["headers"] or ()),
            id=more["id"],
            timestamp_ms=more["timestamp_ms"],
        )
    except (ValueError, TypeError, LookupError) as error:
        return Message(value=body), f"its first line was not written by redelivery-beanstalk: {error}"
    return message, None
