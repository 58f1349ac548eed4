"""What pika's tables cannot hold: times that are none, fractions, and tables nested so deep that its decoder overflows.

pika's own decoder raises where a header's time (type `T`) is before 1970 or after the year 9999, as milliseconds are
(pika issue 1698). It does so within its loop, so that the connection is lost, and each one after it that is given the
message: nobody would get past it. Fractions it cuts to integers, and it writes none. Tables and arrays it reads by
recursion: 3 KB of tables nested 400 deep ended every consumer. What is nested deeper than `DEPTH` stays encoded.

Other users of pika in this process read the same, but for what raised before and a fraction that was cut.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable
from typing import Any, Final

from pika import data
from pika.compat import long

#: Tables and arrays within one another that are decoded. Brokers and clients themselves nest two or three.
DEPTH: Final = 32

_TIME: Final = b"T"
_NESTS: Final = frozenset({b"F", b"A"})
_LENGTH: Final = struct.Struct(">I")
_FRACTIONS: Final = {b"f": struct.Struct(">f"), b"d": struct.Struct(">d")}
_SIGNED: Final = struct.Struct(">q")

_read: Final[Callable[[bytes, int], tuple[Any, int]]] = data.decode_value
_write: Final[Callable[[list[bytes], Any], int]] = data.encode_value


class Nested(bytes):
    """A header that holds tables nested too deep, as it is encoded: its type and its bytes."""

    __slots__ = ()


class _TooDeepError(Exception):
    pass


class _Depth(threading.local):
    reached = 0


_depth: Final = _Depth()


def install() -> None:
    """Let pika read and write values by the functions here; a second time changes nothing."""
    data.decode_value = decode_value
    data.encode_value = encode_value


def decode_value(encoded: bytes, offset: int) -> tuple[Any, int]:
    """A value, and where the next begins.

    Pika's own, but for fractions, times that are none (their number), and what holds tables nested too deep (`Nested`).
    """
    kind = encoded[offset : offset + 1]
    if kind in _NESTS:
        return _nested(encoded, offset)
    fraction = _FRACTIONS.get(kind)
    if fraction is not None:
        return fraction.unpack_from(encoded, offset + 1)[0], offset + 1 + fraction.size
    if kind != _TIME:
        return _read(encoded, offset)
    try:
        return _read(encoded, offset)
    except (ValueError, OverflowError, OSError):  # which of them depends on the platform
        return long(_SIGNED.unpack_from(encoded, offset + 1)[0]), offset + 1 + _SIGNED.size


def _nested(encoded: bytes, offset: int) -> tuple[Any, int]:
    if _depth.reached >= DEPTH:
        raise _TooDeepError
    _depth.reached += 1
    try:
        return _read(encoded, offset)
    except _TooDeepError:
        if _depth.reached > 1:
            raise
        end = offset + 1 + _LENGTH.size + _LENGTH.unpack_from(encoded, offset + 1)[0]
        return Nested(encoded[offset:end]), end
    finally:
        _depth.reached -= 1


def encode_value(pieces: list[bytes], value: Any) -> int:
    """Add a value, return its size: pika's own, but for fractions and what is encoded already."""
    if isinstance(value, Nested):
        pieces.append(bytes(value))
        return len(value)
    if not isinstance(value, float):
        return _write(pieces, value)
    pieces.append(b"d" + struct.pack(">d", value))
    return 9
