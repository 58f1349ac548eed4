"""Encode a message as a letter and back: one line, `{"event": <CloudEvent JSON>, "error": "<message>"}`.

The third member, `context`, is optional.
"""

from __future__ import annotations

import json
from dataclasses import MISSING, fields
from typing import Any

from redelivery.contract.context import ErrorContext
from redelivery.contract.message import Message
from redelivery.errors import Permanent
from redelivery.kit import events, letters
from redelivery.kit.errors import Code


def encode(message: Message, *, error: str | None = None, context: bool = False) -> tuple[str, bytes]:
    """Return the event's id, and the line.

    Args:
        message: may have an error context in its headers; the event is written without it.
        error: the primary error; None: the reason in the context.
        context: write the third member, with the record and the settings if the letter has them.

    Raises:
        Permanent: the message cannot be written as JSON.
    """
    known = letters.read(message)
    if error is None:
        error = known.reason if known is not None else ""
    event = events.to_json(letters.strip(message, keep_type=True))
    line: dict[str, Any] = {"event": event, "error": error}
    if context and known is not None:
        line["context"] = {**_context_to_dict(known), **letters.included(message)}
    try:
        text = json.dumps(line, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as cause:
        raise Permanent(f"file: the event cannot be written as JSON: {cause}", code=Code.INVALID_MESSAGE) from cause
    return str(event["id"]), text.encode("ascii") + b"\n"


def decode(data: bytes) -> tuple[Message, ErrorContext]:
    """Return the message and its error context, as far as known.

    Raises:
        ValueError: the line is truncated, or is not a letter; the text says why.
    """
    line = json.loads(data)
    if not isinstance(line, dict) or not isinstance(line.get("event"), dict) or not isinstance(line.get("error"), str):
        raise ValueError("it holds no object with the members 'event' and 'error'")  # noqa: TRY004 - as for torn JSON
    context = line.get("context")
    known = letters.checked(context if isinstance(context, dict) else {"reason": line["error"]})
    return events.from_json(line["event"]), known


def _context_to_dict(context: ErrorContext) -> dict[str, Any]:
    """Return the fields that differ from the defaults."""
    out = {}
    for item in fields(context):
        value = getattr(context, item.name)
        default = item.default_factory() if item.default_factory is not MISSING else item.default
        if value != default:
            out[item.name] = dict(value) if item.name == "extra" else value
    return out
