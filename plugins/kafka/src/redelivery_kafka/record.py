"""A record of the client as a `Message`. This file must not decode what a record holds."""

from __future__ import annotations

import ctypes
from typing import Any, Final

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE

from redelivery.contract.message import Message

#: Asked through ctypes, Python raises the error that a C function has left behind.
_raise_pending: Final = ctypes.pythonapi.PyErr_Occurred
_raise_pending.restype = ctypes.c_void_p
_raise_pending.argtypes = ()


def message_of(record: Any) -> tuple[Message, str | None]:
    """The message, and what of it could not be decoded; where it lay is not part of it."""
    kind, timestamp = record.timestamp()
    fault = None
    try:
        headers = record.headers()
        if headers is not None:
            _raise_pending()  # the client returns as if nothing were wrong where a name is not UTF-8
    except (UnicodeDecodeError, SystemError) as error:
        headers, fault = None, f"the name of a header is not UTF-8 ({error}); its headers are left out"
    message = Message(
        value=record.value(),
        key=record.key(),
        headers=tuple(headers or ()),
        timestamp_ms=None if kind == TIMESTAMP_NOT_AVAILABLE else timestamp,
    )
    return message, fault


def position(topic: str, partition: int, offset: int) -> str:
    """Names a record for people, and for `remove`."""
    return f"{topic}/{partition}/{offset}"
