"""What a letter holds: one line, `{"event": <CloudEvent JSON>, "error": "<message>"}`, and back.

A third member, `context`, only where it was asked for. This file must not touch the disk.
"""

from __future__ import annotations

import json
from dataclasses import MISSING, fields
from typing import Any

from redelivery.contract.context import ErrorContext, checked
from redelivery.contract.message import Message
from redelivery.errors import Permanent
from redelivery.formats import dialects, events


def write(message: Message, *, error: str | None = None, context: bool = False) -> tuple[str, bytes]:
    """The event's id, and the line.

    Args:
        message: with or without an error context in its headers; the event is written without it.
        error: the primary error; None: the reason that the context gives.
        context: write the third member, with the record and the settings where the letter holds them.

    Raises:
        Permanent: it cannot be written as JSON.
    """
    known = dialects.read(message)
    if error is None:
        error = known.reason if known is not None else ""
    event = events.to_json(events.to_event(dialects.strip(message, keep_type=True)))
    line: dict[str, Any] = {"event": event, "error": error}
    if context and known is not None:
        line["context"] = {**_context_to_dict(known), **dialects.included(message)}
    try:
        text = json.dumps(line, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as cause:
        raise Permanent(f"file: the event cannot be written as JSON: {cause}", native_code="JSON") from cause
    return str(event["id"]), text.encode("ascii") + b"\n"


def read(data: bytes) -> tuple[Message, ErrorContext]:
    """The message and what is known of why it is here.

    Raises:
        ValueError: torn, or no letter; says why.
    """
    line = json.loads(data)
    if not isinstance(line, dict) or not isinstance(line.get("event"), dict) or not isinstance(line.get("error"), str):
        raise ValueError("it holds no object with the members 'event' and 'error'")  # noqa: TRY004 - as for torn JSON
    context = line.get("context")
    known = checked(context if isinstance(context, dict) else {"reason": line["error"]})
    try:
        return events.from_event(events.from_json(line["event"])), known
    except Exception as error:
        raise ValueError(f"its event is no CloudEvent: {error}") from error


def _context_to_dict(context: ErrorContext) -> dict[str, Any]:
    """What differs from the defaults."""
    out = {}
    for item in fields(context):
        value = getattr(context, item.name)
        default = item.default_factory() if item.default_factory is not MISSING else item.default
        if value != default:
            out[item.name] = dict(value) if item.name == "extra" else value
    return out
