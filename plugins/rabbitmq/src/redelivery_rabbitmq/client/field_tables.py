"""Field tables as pika should read them: values that are not valid times, fractions, and deeply nested tables.

pika's decoder raises for a header of type `T` before 1970 or after the year 9999, as times in milliseconds are (pika
issue 1698). It raises in its event loop, so that the connection is lost, and every later connection that receives the
message: no consumer would ever get past it. pika cuts fractions to integers, and writes none. It reads nested tables
and arrays by recursion: 3 KB of tables nested 400 deep ended every consumer. Here, values nested deeper than
`MAX_DEPTH` stay encoded.

pika also forgets types: it reads a number of 16 bits, and writes one of 32. A value that it would write in another way
remembers how it was encoded (`encoded`), and is written so again, in tables and arrays too.

Other users of pika in this process read values that equal those before, except for those that raised and fractions.
"""

from __future__ import annotations

import struct
import threading
from decimal import Decimal
from typing import Any, Final

from pika.compat import long

from redelivery_rabbitmq.client import pika_private

#: Levels of nested tables and arrays that are decoded. Brokers and clients use two or three.
MAX_DEPTH: Final = 32

_TIME: Final = b"T"
#: Types that pika writes as it has read them; `S` and `T` where they are valid.
_SAME: Final = frozenset({b"t", b"I", b"l", b"d", b"x", b"V"})
_NESTED: Final = frozenset({b"F", b"A"})
_LENGTH: Final = struct.Struct(">I")
_FRACTIONS: Final = {b"f": struct.Struct(">f"), b"d": struct.Struct(">d")}
_SIGNED: Final = struct.Struct(">q")


class EncodedField(bytes):
    """A field value that is nested too deep, still encoded: its type and its bytes."""

    __slots__ = ()


class OddInt(int):
    """A whole number, or a time that no clock shows, and its field."""

    encoded: bytes


class OddFloat(float):
    """A fraction of 32 bits, and its field."""

    encoded: bytes


class OddDecimal(Decimal):
    """A decimal with its scale, and its field."""

    encoded: bytes


class OddBytes(bytes):
    """A text that is not UTF-8, and its field."""

    encoded: bytes


_ODD: Final[dict[type, Any]] = {int: OddInt, long: OddInt, float: OddFloat, Decimal: OddDecimal, bytes: OddBytes}
_ODD_TYPES: Final = (OddInt, OddFloat, OddDecimal, OddBytes)


class _TooDeepError(Exception):
    pass


class _Depth(threading.local):
    reached = 0


_depth: Final = _Depth()


def install() -> None:
    """Make pika use the functions of this module. A second call changes nothing."""
    pika_private.replace_field_codec(decode_value, encode_value)


def decode_value(encoded: bytes, offset: int) -> tuple[Any, int]:
    """Return the value at an offset, and the offset behind it.

    As pika's own, except for fractions, invalid times (as integers), and tables nested too deep (`EncodedField`).
    """
    kind = encoded[offset : offset + 1]
    if kind in _NESTED:
        return _decode_nested(encoded, offset)
    fraction = _FRACTIONS.get(kind)
    if fraction is not None:
        value, end = fraction.unpack_from(encoded, offset + 1)[0], offset + 1 + fraction.size
    else:
        try:
            value, end = pika_private.decode_value(encoded, offset)
        except (ValueError, OverflowError, OSError):  # which of them depends on the platform
            if kind != _TIME:
                raise
            value, end = long(_SIGNED.unpack_from(encoded, offset + 1)[0]), offset + 1 + _SIGNED.size
    odd = None if kind in _SAME else _ODD.get(type(value))
    if odd is not None:
        value = odd(value)
        value.encoded = encoded[offset:end]
    return value, end


def _decode_nested(encoded: bytes, offset: int) -> tuple[Any, int]:
    if _depth.reached >= MAX_DEPTH:
        raise _TooDeepError
    _depth.reached += 1
    try:
        return pika_private.decode_value(encoded, offset)
    except _TooDeepError:
        if _depth.reached > 1:
            raise
        end = offset + 1 + _LENGTH.size + _LENGTH.unpack_from(encoded, offset + 1)[0]
        return EncodedField(encoded[offset:end]), end
    finally:
        _depth.reached -= 1


def encode_value(pieces: list[bytes], value: Any) -> int:
    """Append a value and return its size. As pika's own, except for fractions and values with their own encoding."""
    if isinstance(value, EncodedField):
        pieces.append(bytes(value))
        return len(value)
    if isinstance(value, _ODD_TYPES):
        pieces.append(value.encoded)
        return len(value.encoded)
    if not isinstance(value, float):
        return pika_private.encode_value(pieces, value)
    pieces.append(b"d" + struct.pack(">d", value))
    return 9
