"""Which rows no file could hold, and why. Asked only for rows on their own and for a batch that has failed.

This file must not run a statement.
"""

from __future__ import annotations

from redelivery.contract.message import Batch, Message
from redelivery.errors import Permanent

_INT64 = range(-(2**63), 2**63)


def fault(message: Message, *, message_bytes: int) -> Permanent | None:
    """Why a row cannot be stored; None where it can."""
    found = (
        _text_fault("id", message.id)
        or _text_fault("identity", message.identity)
        or _text_fault("destination", message.destination)
        or _type_fault(message)
        or _size_fault(message, message_bytes)
    )
    if found is None:
        return None
    code, why = found
    return Permanent(f"sqlite: this row cannot be stored: {why}", native_code=code)


def has_odd_timestamps(batch: Batch) -> bool:
    """Whether a timestamp is no integer: a NaN would be stored as null without a word."""
    column = batch.timestamp_ms
    return column is not None and not set(map(type, column.values)) <= {int, type(None)}


def _text_fault(what: str, text: object) -> tuple[str, str] | None:
    if text is None:
        return None
    if not isinstance(text, str):
        return "TYPE", f"its {what} is of type {type(text).__name__}, not text"
    if what == "destination" and not text:
        return "DESTINATION", "its destination is an empty name"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "ENCODING", f"its {what} holds a lone surrogate, which has no form in UTF-8"
    return None


def _type_fault(message: Message) -> tuple[str, str] | None:
    for what, value in (("value", message.value), ("key", message.key)):
        if not isinstance(value, bytes | None):
            return "TYPE", f"its {what} is of type {type(value).__name__}, not bytes"
    stamp = message.timestamp_ms
    if stamp is not None and (type(stamp) is not int or stamp not in _INT64):
        return "TIMESTAMP", "its timestamp is no integer of 64 bits"
    return None


def _size_fault(message: Message, message_bytes: int) -> tuple[str, str] | None:
    if message.nbytes <= message_bytes:
        return None
    return "SQLITE_TOOBIG", f"it has {message.nbytes:,} bytes, and a row takes {message_bytes:,}"
