"""Encode a message as a letter and back: one line, `{"event": <CloudEvent JSON>, "error": "<message>"}`.

The third member, `context`, is optional.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from redelivery.contract.context import ErrorContext
from redelivery.contract.message import Batch, Message
from redelivery.errors import Permanent
from redelivery.kit import events, letters
from redelivery.kit.errors import Code

_EMPTY = ErrorContext()
_DEFAULTS = {item.name: getattr(_EMPTY, item.name) for item in fields(ErrorContext)}
_dumps = json.JSONEncoder(allow_nan=False).encode


def encode(message: Message, *, error: str | None = None, context: bool = False) -> tuple[str, bytes]:
    """Return the event's id, and the line.

    Args:
        message: may have an error context in its headers; the event is written without it.
        error: the primary error; None: the reason in the context.
        context: write the third member, with the record and the settings if the letter has them.

    Raises:
        Permanent: the message cannot be written as JSON.
    """
    (found,) = encode_all(Batch.of([message]), error=error, context=context)
    if isinstance(found, Permanent):
        raise found
    return found


def encode_all(batch: Batch, *, error: str | None = None, context: bool = False) -> list[tuple[str, bytes] | Permanent]:
    """Return of each message what `encode` returns or raises; arguments as there."""
    found = letters.read_all(batch, None if context else ["reason"])
    reasons = found["reason"] if error is None else [error] * len(batch)
    bare = letters.strip_all(batch, keep_type=True)
    lines: list[dict[str, Any]] = [{"event": None, "error": reason} for reason in reasons]
    if context:
        for line, known in zip(lines, _contexts(batch, found), strict=True):
            if known:
                line["context"] = known
    return [_encode(message, line) for message, line in zip(bare.rows(), lines, strict=True)]


def _encode(message: Message, line: dict[str, Any]) -> tuple[str, bytes] | Permanent:
    line["event"] = event = events.to_json(message)
    try:
        text = _dumps(line)
    except (TypeError, ValueError, RecursionError) as cause:
        error = Permanent(f"file: the event cannot be written as JSON: {cause}", code=Code.INVALID_MESSAGE)
        error.__cause__ = cause
        return error
    return str(event["id"]), text.encode("ascii") + b"\n"


def _contexts(batch: Batch, found: Mapping[str, list[Any]]) -> list[dict[str, Any]]:
    """Return of each message the fields of its context that differ from the defaults, and what else it holds."""
    columns = [
        (name, found[name], default)
        for name, default in _DEFAULTS.items()
        if any(value != default for value in found[name])
    ]
    contexts = []
    every = [()] * len(batch) if batch.headers is None else batch.headers.values
    for index, headers in enumerate(every):
        known = {name: values[index] for name, values, default in columns if values[index] != default}
        if "extra" in known:
            known["extra"] = dict(known["extra"])
        if any(value is not None and (b'"value"' in value or b'"config"' in value) for _, value in headers or ()):
            known |= letters.included(batch.row(index))
        contexts.append(known)
    return contexts


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
