"""Values of an AMQP message with their types. The SDK drops them: a long, an int and a time are all `int`.

A value is what the SDK encodes as it was: Python's own where it guesses right, else `{"TYPE": ..., "VALUE": ...}`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

#: Codes of the sections, as in the specification.
HEADER, ANNOTATIONS, PROPERTIES, APPLICATION, DATA, SEQUENCE, VALUE = 0x70, 0x72, 0x73, 0x74, 0x75, 0x76, 0x77
#: Levels of lists and maps in each other; the SDK's own limit is higher.
_DEPTH: Final = 32


class Unreadable(ValueError):
    """The bytes are cut off, or have a type that is not known here."""


@dataclass(frozen=True, slots=True)
class Sections:
    """The sections of a message whose types the SDK drops.

    Attributes:
        annotations, application: their entries.
        properties: the fields of the properties section, in their order.
        bodies: the sections of the body: code and value.
    """

    annotations: Mapping[str, Any] = field(default_factory=dict)
    properties: list[Any] = field(default_factory=list)
    application: Mapping[str, Any] = field(default_factory=dict)
    bodies: list[tuple[int, Any]] = field(default_factory=list)


def plain(value: Any) -> Any:
    """Return a value without its type."""
    while isinstance(value, dict):
        value = value["VALUE"]
        if isinstance(value, tuple):  # a described one
            value = value[1]
    return value


def sections(payload: bytes) -> Sections:
    """Read a message. Data of the body is left out: the SDK has it. Raises Unreadable."""
    found: dict[int, Any] = {}
    bodies: list[tuple[int, Any]] = []
    for code, at in _sections(payload):
        if code == DATA:
            break
        if code in (SEQUENCE, VALUE):
            with suppress(Unreadable):  # cut off: the payload is a message's first frame
                bodies.append((code, _read(payload, at, 0)[0]))
                continue
            break
        if code in (ANNOTATIONS, APPLICATION):
            entries, _ = _read(payload, at, 0)
            found[code] = {str(_text(name)): value for name, value in plain(entries) or ()}
        elif code == PROPERTIES:
            found[code] = _read(payload, at, 0)[0]
    return Sections(found.get(ANNOTATIONS, {}), found.get(PROPERTIES, []), found.get(APPLICATION, {}), bodies)


def brokers_part(payload: bytes) -> bytes:
    """Return a message of which only what Service Bus itself has written is left: header and annotations."""
    kept = b""
    with suppress(Unreadable):
        for code, at in _sections(payload):
            if code == HEADER:
                kept += bytes((0, 0x53, code)) + payload[at : _end(payload, at)]
            elif code == ANNOTATIONS:
                kept += bytes((0, 0x53, code)) + _brokers_annotations(payload, at)
    return kept


def _brokers_annotations(payload: bytes, at: int) -> bytes:
    """Return a map with the readable entries of this one whose names are Service Bus's."""
    end, wide = _end(payload, at), _byte(payload, at) == 0xD1  # noqa: PLR2004 - AMQP's code
    at += 9 if wide else 3
    count, items = 0, b""
    while at < end:
        name_at, value_at = at, _end(payload, at)
        at = _end(payload, value_at)
        with suppress(Unreadable):
            name, _ = _read(payload, name_at, 0)
            _read(payload, value_at, 0)
            if str(_text(name)).startswith("x-opt-"):
                count, items = count + 2, items + payload[name_at:at]
    return b"\xd1" + struct.pack(">II", 4 + len(items), count) + items


def _sections(payload: bytes) -> Iterator[tuple[int, int]]:
    """Yield the code of each section, and where its value begins."""
    at = 0
    while at < len(payload):
        if payload[at] != 0:
            raise Unreadable("a section begins with its descriptor")
        descriptor, at = _read(payload, at + 1, 0)
        code = plain(descriptor)
        if not isinstance(code, int):
            raise Unreadable("a section's descriptor is a number")
        yield code, at
        at = _end(payload, at)


def _end(payload: bytes, at: int) -> int:
    """Return the end of a value, which need not be known."""
    if _byte(payload, at) == 0:  # described; its descriptor and its value are not
        at = _end_of(_byte(payload, at + 1), payload, at + 2)
    return _end_of(_byte(payload, at), payload, at + 1)


def _end_of(code: int, payload: bytes, at: int) -> int:
    """Return the end of a value of this type, which begins here, behind its constructor."""
    kind = code >> 4
    if kind in _WIDTHS:
        end = at + _WIDTHS[kind]
    elif kind in (0xA, 0xC, 0xE):
        end = at + 1 + _byte(payload, at)
    elif kind in (0xB, 0xD, 0xF):
        end = at + 4 + int.from_bytes(payload[at : at + 4])
    else:
        raise Unreadable(f"the type {code:#x}")
    if end > len(payload):
        raise Unreadable("it is cut off")
    return end


def _byte(payload: bytes, at: int) -> int:
    if at >= len(payload):
        raise Unreadable("it is cut off")
    return payload[at]


def _read(payload: bytes, at: int, depth: int) -> tuple[Any, int]:
    """Return the value that begins here, and its end."""
    code = _byte(payload, at)
    if depth > _DEPTH:
        raise Unreadable("its values are nested too deeply")
    if code == 0:
        descriptor, at = _read(payload, at + 1, depth + 1)
        value, at = _read(payload, at, depth + 1)
        return {"TYPE": "DESCRIBED", "VALUE": (descriptor, value)}, at
    end = _end(payload, at)
    fixed = _FIXED.get(code)
    if fixed is not None:
        return fixed(payload[at + 1 : end]), end
    if code in (0xE0, 0xF0):
        return _array(payload, at, end), end
    if code not in _COMPOUND:
        raise Unreadable(f"the type {code:#x}")
    wide = code >= 0xD0  # noqa: PLR2004 - AMQP's codes
    count = int.from_bytes(payload[at + 5 : at + 9]) if wide else payload[at + 2]
    at += 9 if wide else 3
    items = []
    for _ in range(min(count, end - at)):  # each has a byte at least
        item, at = _read(payload, at, depth + 1)
        items.append(item)
    if at != end or len(items) != count:
        raise Unreadable("a list or a map is not as long as it says")
    return (
        items if _COMPOUND[code] else {"TYPE": "MAP", "VALUE": list(zip(items[::2], items[1::2], strict=True))}
    ), end


def _array(payload: bytes, at: int, end: int) -> Any:
    wide = payload[at] == 0xF0  # noqa: PLR2004 - AMQP's code
    count = int.from_bytes(payload[at + 5 : at + 9]) if wide else payload[at + 2]
    at += 9 if wide else 3
    code, at = _byte(payload, at), at + 1
    if code not in _FIXED:
        raise Unreadable(f"an array of the type {code:#x}")
    items: list[Any] = []
    while len(items) < count and at <= end:
        stop = _end_of(code, payload, at)
        items.append(_FIXED[code](payload[at:stop]))
        at = stop
        if len(items) > end:  # values without a byte of their own
            break
    if len(items) != count:
        raise Unreadable("an array is not as long as it says")
    return {"TYPE": "ARRAY", "VALUE": items}


def _text(value: Any) -> Any:
    value = plain(value)
    if isinstance(value, bytes):
        with suppress(UnicodeDecodeError):  # a name that is not text is shown as Python writes its bytes
            return value.decode()
    return value


def _typed(kind: str, form: str) -> Callable[[bytes], Any]:
    unpack = struct.Struct(form).unpack
    return lambda raw: {"TYPE": kind, "VALUE": unpack(raw)[0]}


def _string(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise Unreadable("a text that is not UTF-8") from error


def _zero(kind: str) -> Callable[[bytes], Any]:
    return lambda _: {"TYPE": kind, "VALUE": 0}


def _sized(of: Callable[[bytes], Any]) -> dict[bool, Callable[[bytes], Any]]:
    return {False: lambda raw: of(raw[1:]), True: lambda raw: of(raw[4:])}


_STRING, _BINARY, _SYMBOL = (
    _sized(_string),
    _sized(lambda raw: {"TYPE": "BINARY", "VALUE": raw}),
    _sized(lambda raw: {"TYPE": "SYMBOL", "VALUE": raw}),
)
_WIDTHS: Final = {0x4: 0, 0x5: 1, 0x6: 2, 0x7: 4, 0x8: 8, 0x9: 16}
#: Lists, and maps.
_COMPOUND: Final = {0xC0: True, 0xD0: True, 0xC1: False, 0xD1: False}
_FIXED: Final[Mapping[int, Callable[[bytes], Any]]] = {
    0x40: lambda _: None, 0x41: lambda _: True, 0x42: lambda _: False, 0x56: lambda raw: raw == b"\x01",
    0x43: _zero("UINT"), 0x44: _zero("ULONG"), 0x45: lambda _: [],
    0x50: _typed("UBYTE", ">B"), 0x52: _typed("UINT", ">B"), 0x53: _typed("ULONG", ">B"),
    0x51: _typed("BYTE", ">b"), 0x54: _typed("INT", ">b"), 0x55: _typed("LONG", ">b"),
    0x60: _typed("USHORT", ">H"), 0x61: _typed("SHORT", ">h"),
    0x70: _typed("UINT", ">I"), 0x71: _typed("INT", ">i"), 0x72: _typed("FLOAT", ">f"),
    0x80: _typed("ULONG", ">Q"), 0x81: _typed("LONG", ">q"), 0x83: _typed("TIMESTAMP", ">q"),
    0x82: lambda raw: struct.unpack(">d", raw)[0],
    0x98: lambda raw: UUID(bytes=bytes(raw)),
    0xA0: _BINARY[False], 0xB0: _BINARY[True], 0xA1: _STRING[False], 0xB1: _STRING[True],
    0xA3: _SYMBOL[False], 0xB3: _SYMBOL[True],
}  # fmt: skip
