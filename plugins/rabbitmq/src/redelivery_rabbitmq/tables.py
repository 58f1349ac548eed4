"""What pika's tables cannot hold: times that are none, and fractions. This file must not change anything else of pika.

pika's own decoder raises where a header's time (type `T`) is before 1970 or after the year 9999, as milliseconds are
(pika issue 1698). It does so within its loop, so that the connection is lost, and each one after it that is given the
message: nobody would get past it. Fractions it cuts to integers, and it writes none.

Other users of pika in this process read the same, but for a time that raised and a fraction that was cut.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final

from pika import data
from pika.compat import long

_TIME: Final = b"T"
_FRACTIONS: Final = {b"f": struct.Struct(">f"), b"d": struct.Struct(">d")}
_SIGNED: Final = struct.Struct(">q")

_read: Final[Callable[[bytes, int], tuple[Any, int]]] = data.decode_value
_write: Final[Callable[[list[bytes], Any], int]] = data.encode_value


def install() -> None:
    """Let pika read and write values by the functions here; a second time changes nothing."""
    data.decode_value = decode_value
    data.encode_value = encode_value


def decode_value(encoded: bytes, offset: int) -> tuple[Any, int]:
    """A value, and where the next begins: pika's own, but for fractions, and times that are none: their number."""
    kind = encoded[offset : offset + 1]
    fraction = _FRACTIONS.get(kind)
    if fraction is not None:
        return fraction.unpack_from(encoded, offset + 1)[0], offset + 1 + fraction.size
    if kind != _TIME:
        return _read(encoded, offset)
    try:
        return _read(encoded, offset)
    except (ValueError, OverflowError, OSError):  # which of them depends on the platform
        return long(_SIGNED.unpack_from(encoded, offset + 1)[0]), offset + 1 + _SIGNED.size


def encode_value(pieces: list[bytes], value: Any) -> int:
    """Add a value, return its size: pika's own, but for fractions."""
    if not isinstance(value, float):
        return _write(pieces, value)
    pieces.append(b"d" + struct.pack(">d", value))
    return 9
