"""A dead letter as plain JSON: for export, for pipes, for other programs.

Bytes that are not UTF-8 text are base64 under another name, so no field is lost. What only the broker's own message
holds (`Message.native`) is left out: only its plugin can read it.
"""

from __future__ import annotations

import base64
import math
from dataclasses import fields
from typing import Any

from redelivery.contract.broker import Letter
from redelivery.contract.context import ErrorContext


def as_json(letter: Letter) -> dict[str, Any]:
    """Return a letter with its whole context. Unset fields are left out; times are milliseconds since the epoch.

    `value`, `key` and header values are text where they are UTF-8, else `value_base64` and so on; a null value is null.
    """
    message = letter.message
    found: dict[str, Any] = {"position": letter.position}
    for name in ("id", "destination", "timestamp_ms"):
        if getattr(message, name) is not None:
            found[name] = getattr(message, name)
    if letter.dead_lettered_ms is not None:
        found["dead_lettered_ms"] = letter.dead_lettered_ms
    if message.key is not None:
        found |= _named("key", message.key)
    found |= _named("value", message.value)
    found["headers"] = [{"name": name, **_named("value", value)} for name, value in message.headers]
    if message.extra:
        found["extra"] = {name: value if _is_plain(value) else str(value) for name, value in message.extra.items()}
    found["error"] = context_as_json(letter.context or ErrorContext())
    return found


def context_as_json(context: ErrorContext) -> dict[str, Any]:
    """Return the fields of a context."""
    said = {each.name: getattr(context, each.name) for each in fields(context)}
    return {
        name: dict(value) if name == "extra" else value for name, value in said.items() if value not in (None, "", {})
    }


def _named(name: str, value: bytes | None) -> dict[str, Any]:
    if value is None:
        return {name: None}
    try:
        return {name: value.decode("utf-8")}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode("ascii")}


def _is_plain(value: object) -> bool:
    finite = not isinstance(value, float) or math.isfinite(value)  # JSON has no other numbers
    return finite and (value is None or isinstance(value, str | int | float | bool))
