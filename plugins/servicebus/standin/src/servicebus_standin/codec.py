"""The parts of AMQP 1.0's encoding that a broker needs: skip, read and write values, and split messages into sections.

Bodies are never decoded: they come back byte for byte.
"""

# ruff: noqa: PLR2004 - the numbers are AMQP's type codes, as in the specification's table

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID, uuid4

HEADER, DELIVERY_ANNOTATIONS, ANNOTATIONS, PROPERTIES, APPLICATION, DATA = 0x70, 0x71, 0x72, 0x73, 0x74, 0x75
SEQUENCE, VALUE, FOOTER = 0x76, 0x77, 0x78

NULL: Final = b"\x40"


class Malformed(Exception):
    """The bytes are not valid AMQP."""


class Symbol(str):
    """An AMQP symbol."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Raw:
    """A value that is encoded already."""

    encoded: bytes


# --- walking and reading -------------------------------------------------------------------------------------------

_WIDTH: Final = {0x4: 0, 0x5: 1, 0x6: 2, 0x7: 4, 0x8: 8, 0x9: 16}


def skip(data: bytes, at: int) -> int:
    """Return the end of the value that begins here."""
    try:
        code = data[at]
        if code == 0:
            return skip(data, skip(data, at + 1))
        kind = code >> 4
        if kind in _WIDTH:
            end = at + 1 + _WIDTH[kind]
        elif kind in (0xA, 0xC, 0xE):
            end = at + 2 + data[at + 1]
        elif kind in (0xB, 0xD, 0xF):
            end = at + 5 + int.from_bytes(data[at + 1 : at + 5])
        else:
            raise Malformed(f"no AMQP type has the code {code:#x}")
    except (IndexError, RecursionError) as error:
        raise Malformed("an AMQP value is cut off") from error
    if end > len(data):
        raise Malformed("an AMQP value is cut off")
    return end


def items(data: bytes, at: int = 0) -> list[bytes]:
    """Return the elements of a list or map, each still encoded."""
    code = data[at]
    if code == 0x45:
        return []
    if code not in (0xC0, 0xC1, 0xD0, 0xD1):
        raise Malformed(f"a list or map is wanted, not type {code:#x}")
    small = code < 0xD0
    count = data[at + 2] if small else int.from_bytes(data[at + 5 : at + 9])
    place = at + (3 if small else 9)
    found = []
    for _ in range(count):
        end = skip(data, place)
        found.append(data[place:end])
        place = end
    return found


def pairs(data: bytes, at: int = 0) -> dict[bytes, bytes]:
    """Return a map's entries, still encoded."""
    flat = items(data, at)
    return dict(zip(flat[::2], flat[1::2], strict=True))


def read(data: bytes, at: int = 0) -> Any:
    """Return one value as Python. A timestamp becomes an integer of milliseconds, a described value its inner value."""
    reader = _READERS.get(data[at])
    if reader is None:
        raise Malformed(f"type {data[at]:#x} is not read here")
    return reader(data, at)


def kind(data: bytes) -> tuple[str, Any]:
    """Return the name of a value's type, and the value: `read` drops the type."""
    if data[0] == 0:
        end = skip(data, 1)
        return f"described {read(data, 1)}", kind(data[end:])
    return next(name for name, codes in _KINDS.items() if data[0] in codes), read(data)


def _fixed(form: str) -> Callable[[bytes, int], Any]:
    unpack = struct.Struct(form).unpack_from
    return lambda data, at: unpack(data, at + 1)[0]


def _sized_bytes(data: bytes, at: int) -> bytes:
    return bytes(data[at + (2 if data[at] < 0xB0 else 5) : skip(data, at)])


def _list(data: bytes, at: int) -> list[Any]:
    return [read(item) for item in items(data, at)]


def _array(data: bytes, at: int) -> list[Any]:
    small = data[at] == 0xE0
    count = data[at + 2] if small else int.from_bytes(data[at + 5 : at + 9])
    place = at + (3 if small else 9)
    code, place = data[place : place + 1], place + 1
    if code == b"\x00":
        raise Malformed("arrays of described values are not read here")
    found = []
    for _ in range(count):
        one = code + data[place:]
        found.append(read(one))
        place += skip(one, 0) - 1
    return found


_READERS: Final[Mapping[int, Callable[[bytes, int], Any]]] = {
    0x00: lambda data, at: read(data, skip(data, at + 1)),
    0x40: lambda *_: None,
    0x41: lambda *_: True,
    0x42: lambda *_: False,
    0x56: lambda data, at: data[at + 1] == 1,
    **dict.fromkeys((0x43, 0x44), lambda *_: 0),
    **dict.fromkeys((0x50, 0x52, 0x53), _fixed(">B")),
    **dict.fromkeys((0x51, 0x54, 0x55), _fixed(">b")),
    0x60: _fixed(">H"),
    0x61: _fixed(">h"),
    0x70: _fixed(">I"),
    0x71: _fixed(">i"),
    0x72: _fixed(">f"),
    0x73: lambda data, at: chr(int.from_bytes(data[at + 1 : at + 5])),
    0x80: _fixed(">Q"),
    **dict.fromkeys((0x81, 0x83), _fixed(">q")),
    0x82: _fixed(">d"),
    0x98: lambda data, at: UUID(bytes=bytes(data[at + 1 : at + 17])),
    **dict.fromkeys((0xA0, 0xB0), _sized_bytes),
    **dict.fromkeys((0xA1, 0xB1), lambda data, at: _sized_bytes(data, at).decode()),
    **dict.fromkeys((0xA3, 0xB3), lambda data, at: Symbol(_sized_bytes(data, at).decode("ascii"))),
    **dict.fromkeys((0x45, 0xC0, 0xD0), _list),
    **dict.fromkeys((0xC1, 0xD1), lambda data, at: {read(k): read(v) for k, v in pairs(data, at).items()}),
    **dict.fromkeys((0xE0, 0xF0), _array),
}


_KINDS: Final[Mapping[str, tuple[int, ...]]] = {
    "null": (0x40,), "boolean": (0x41, 0x42, 0x56), "ubyte": (0x50,), "byte": (0x51,), "ushort": (0x60,),
    "short": (0x61,), "uint": (0x43, 0x52, 0x70), "int": (0x54, 0x71), "ulong": (0x44, 0x53, 0x80),
    "long": (0x55, 0x81), "float": (0x72,), "double": (0x82,), "char": (0x73,), "timestamp": (0x83,), "uuid": (0x98,),
    "binary": (0xA0, 0xB0), "string": (0xA1, 0xB1), "symbol": (0xA3, 0xB3), "list": (0x45, 0xC0, 0xD0),
    "map": (0xC1, 0xD1), "array": (0xE0, 0xF0),
}  # fmt: skip

# --- writing -------------------------------------------------------------------------------------------------------


def _sized(small: int, large: int, raw: bytes) -> bytes:
    if len(raw) < 256:
        return bytes((small, len(raw))) + raw
    return bytes((large,)) + len(raw).to_bytes(4) + raw


def write(value: Any) -> bytes:
    """Encode: int as long, bytes as binary, str as string, list and dict as their items; `Raw` unchanged."""
    writer = _WRITERS.get(type(value))
    if writer is None:
        raise TypeError(f"no AMQP type for {type(value).__name__}")
    return writer(value)


def compound(code: int, encoded: Sequence[bytes]) -> bytes:
    """Encode a list (0xd0) or map (0xd1) of encoded elements."""
    body = b"".join(encoded)
    return bytes((code,)) + (len(body) + 4).to_bytes(4) + len(encoded).to_bytes(4) + body


def _write_map(value: Mapping[Any, Any]) -> bytes:
    return compound(0xD1, [write(each) for pair in value.items() for each in pair])


_WRITERS: Final[Mapping[type, Callable[[Any], bytes]]] = {
    type(None): lambda _: NULL,
    bool: lambda value: b"\x41" if value else b"\x42",
    int: lambda value: struct.pack(">Bq", 0x81, value),
    float: lambda value: struct.pack(">Bd", 0x82, value),
    str: lambda value: _sized(0xA1, 0xB1, value.encode()),
    Symbol: lambda value: _sized(0xA3, 0xB3, value.encode("ascii")),
    bytes: lambda value: _sized(0xA0, 0xB0, value),
    UUID: lambda value: b"\x98" + value.bytes,
    Raw: lambda value: value.encoded,
    list: lambda value: compound(0xD0, [write(each) for each in value]),
    dict: _write_map,
}


def uint(value: int) -> Raw:
    """Encode as AMQP uint."""
    return Raw(struct.pack(">BI", 0x70, value))


def int32(value: int) -> Raw:
    """Encode as AMQP int."""
    return Raw(struct.pack(">Bi", 0x71, value))


def timestamp(seconds: float) -> Raw:
    """Encode seconds since the epoch as AMQP timestamp."""
    return Raw(struct.pack(">Bq", 0x83, int(seconds * 1000)))


def array(code: int, encoded: Sequence[bytes]) -> Raw:
    """Encode an array of values of one type, which `code` names."""
    body = bytes((code,)) + b"".join(each[1:] for each in encoded)
    return Raw(b"\xf0" + (len(body) + 4).to_bytes(4) + len(encoded).to_bytes(4) + body)


def section(code: int, encoded: bytes) -> bytes:
    """Encode a section of a message."""
    return bytes((0x00, 0x53, code)) + encoded


# --- messages ------------------------------------------------------------------------------------------------------


def sections(data: bytes) -> Iterator[tuple[int, int, int, int]]:
    """Return the sections of a message: code, begin, begin of the value, end."""
    at = 0
    while at < len(data):
        value = skip(data, at + 1) if data[at] == 0 else at
        if value == at:
            raise Malformed("a section of a message begins with a descriptor")
        code = int(read(data, at + 1))
        end = skip(data, value)
        yield code, at, value, end
        at = end


def unpack_batch(data: bytes) -> list[bytes]:
    """Return the messages of a transfer in the batch format: each data section holds one."""
    return [read(data, value) for code, _, value, _ in sections(data) if code == DATA]


@dataclass(frozen=True, slots=True)
class Content:
    """A message as it was sent, split where a broker changes it.

    Attributes:
        header: durable, priority and ttl, encoded.
        annotations, application: entries, encoded.
        properties: fields, encoded, with a message id.
        body: body sections and footer, unchanged.
        ttl: time to live in seconds, if the sender set it.
    """

    header: tuple[bytes, bytes, bytes]
    annotations: Mapping[bytes, bytes]
    properties: Sequence[bytes]
    application: Mapping[bytes, bytes]
    body: bytes
    ttl: float | None

    @classmethod
    def parse(cls, data: bytes) -> Content:
        """Split a message into sections; add a message id if it lacks one."""
        header = [NULL, NULL, NULL]
        annotations: Mapping[bytes, bytes] = {}
        application: Mapping[bytes, bytes] = {}
        properties: list[bytes] = []
        body = len(data)
        try:
            for code, start, value, _ in sections(data):
                if code == HEADER:
                    found = items(data, value)[:3]
                    header[: len(found)] = found
                elif code == ANNOTATIONS:
                    annotations = pairs(data, value)
                elif code == PROPERTIES:
                    properties = items(data, value)
                elif code == APPLICATION:
                    application = pairs(data, value)
                elif code in (DATA, SEQUENCE, VALUE, FOOTER):
                    body = start
                    break
        except (IndexError, ValueError, struct.error) as error:
            raise Malformed("this is not an AMQP message") from error
        if not properties or properties[0] == NULL:
            properties = [write(uuid4().hex), *properties[1:]]
        ttl = read(header[2])
        durable, priority, lifetime = header
        return cls(
            (durable, priority, lifetime), annotations, properties, application, bytes(data[body:]),
            None if ttl is None else ttl / 1000,
        )  # fmt: skip

    def encode(self, deliveries: int, annotations: Mapping[str, Any], properties: Mapping[str, Any]) -> bytes:
        """Encode the message with its delivery count and with these annotations and application properties."""
        known = {write(Symbol(name)): write(value) for name, value in annotations.items()}
        merged = {**self.annotations, **known}
        application = {**self.application, **{write(name): write(value) for name, value in properties.items()}}
        own = section(APPLICATION, compound(0xD1, [e for pair in application.items() for e in pair]))
        return b"".join((
            section(HEADER, compound(0xD0, [*self.header, NULL, uint(deliveries).encoded])),
            section(ANNOTATIONS, compound(0xD1, [each for pair in merged.items() for each in pair])),
            section(PROPERTIES, compound(0xD0, self.properties)),
            own if application else b"",
            self.body,
        ))  # fmt: skip

    @property
    def size(self) -> int:
        """Return the approximate size of the sent message in bytes."""
        return len(self.body) + sum(
            map(len, (*self.properties, *self.application, *self.application.values(), *self.annotations))
        )

    @property
    def session(self) -> str | None:
        """Return the session id, which AMQP calls group id."""
        found = self.property(10)
        return None if found is None else str(found)

    def property(self, index: int) -> Any:
        """Return a field of the properties section, as Python."""
        return read(self.properties[index]) if index < len(self.properties) else None

    def annotation(self, name: str) -> Any:
        """Return a message annotation, as Python."""
        encoded = self.annotations.get(write(Symbol(name)))
        return None if encoded is None else read(encoded)

    def application_properties(self) -> dict[str, Any]:
        """Return the application properties, as Python."""
        return {str(read(name)): read(value) for name, value in self.application.items()}

    def data(self) -> bytes | None:
        """Return the bytes of the body's data sections; None if the body is a value or a sequence."""
        parts = [read(self.body, value) for code, _, value, _ in sections(self.body) if code == DATA]
        return b"".join(parts) if parts else None
