"""Gives an event another type, in the same content mode, and restores it to the byte.

Of a structured event only the characters of the type itself are replaced, so that nothing else of its body changes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Final

from redelivery.base.json import dumps, loads
from redelivery.contract.message import Message
from redelivery.formats.cloudevents import event_in, is_structured, prefix_in

_TYPE: Final = "type"
_SPACE: Final = " \t\r\n"
_DECODER: Final = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class Retyped:
    """The type that an event had, and the one that it has.

    Attributes:
        original: before.
        now: since.
        offset: where the type stands in a structured event's body, in bytes.
        token: how the body writes the original, where that differs from our spelling; else empty.
    """

    original: str
    now: str
    offset: int = 0
    token: str = ""


def rename(message: Message, event_type: str) -> tuple[Message, Retyped] | None:
    """Return the event under this type, and its old type; None where it is not an event or has the type. Never raises.

    Args:
        message: any.
        event_type: not empty.
    """
    event = event_in(message)
    if event is None or event.get_type() == event_type:
        return None
    original = event.get_type()
    if not is_structured(message):
        name = f"{prefix_in(message)}{_TYPE}"
        return _with_header(message, name, event_type), Retyped(original, event_type)
    body = message.value or b""
    found = _token(body)
    if found is None:
        return None
    offset, token = found
    changed = body[:offset] + _written(event_type) + body[offset + len(token) :]
    odd = "" if token == _written(original) else token.decode()
    return replace(message, value=changed), Retyped(original, event_type, offset, odd)


def restore(message: Message, retyped: Retyped) -> Message:
    """Return the event under its old type; unchanged where it has been given a third type. Never raises."""
    event = event_in(message)
    if event is None or event.get_type() != retyped.now:
        return message
    if not is_structured(message):
        return _with_header(message, f"{prefix_in(message)}{_TYPE}", retyped.original)
    body = message.value or b""
    found = _token(body)
    if found is None:
        return message
    offset, now = found
    as_it_was = offset == retyped.offset and now == _written(retyped.now) and _means(retyped.token, retyped.original)
    token = retyped.token.encode() if retyped.token and as_it_was else _written(retyped.original)
    return replace(message, value=body[:offset] + token + body[offset + len(now) :])


def _with_header(message: Message, name: str, value: str) -> Message:
    headers = tuple((each, value.encode() if each == name else old) for each, old in message.headers)
    return replace(message, headers=headers)


def _written(value: str) -> bytes:
    return dumps(value).encode("utf-8", "surrogatepass")


def _means(token: str, value: str) -> bool:
    """Whether JSON text is this string: anyone may have written a marker."""
    try:
        return not token or loads(token) == value
    except (ValueError, RecursionError):
        return False


def _token(body: bytes) -> tuple[int, bytes] | None:
    """Return where the type is in a JSON object, in bytes, and how it is written; None where that is unknown."""
    try:
        text = body.decode()
        start, end = _span(text)
    except (ValueError, IndexError, RecursionError):
        return None
    return len(text[:start].encode()), text[start:end].encode()


def _span(text: str) -> tuple[int, int]:
    """Return where the value of the member begins and ends. Raises ValueError, IndexError: not exactly one exists."""
    at = _skip(text, 0)
    if text[at] != "{":
        raise ValueError("no object")
    found: list[tuple[int, int]] = []
    while text[at] != "}":
        at = _skip(text, at + 1)
        if text[at] == "}":
            break
        name, at = _DECODER.raw_decode(text, at)
        start = _skip(text, _skip(text, at) + 1)
        at = _DECODER.raw_decode(text, start)[1]
        if name == _TYPE:
            found.append((start, at))
        at = _skip(text, at)
    (only,) = found
    return only


def _skip(text: str, at: int) -> int:
    while text[at] in _SPACE:
        at += 1
    return at
