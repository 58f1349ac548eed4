"""A message as a body and AMQP properties, and back.

Headers are one field table. A value that is UTF-8 text is written as a long string, as other clients do, and any other
value as a byte array; both come back as the same bytes. Headers of ours carry what AMQP has no field for:

    x-redelivery-key       the key
    x-redelivery-order     the order of the headers: for each its place among the sorted names (quorum queues sort them)
    x-redelivery-null      present, without a value: the message's value is null
    timestamp_in_ms        the timestamp's milliseconds, named as RabbitMQ's message timestamp plugin does

A message of another client has more: properties, and types of headers. `Native` holds them as they were encoded.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from operator import attrgetter
from typing import Any, Final, NoReturn

from pika.spec import BasicProperties

from redelivery.codes import Code
from redelivery.contract.message import Headers, Message
from redelivery.errors import Permanent
from redelivery_rabbitmq.client.broker_headers import ATTEMPTS, COPIES, KEPT
from redelivery_rabbitmq.client.field_tables import MAX_DEPTH, EncodedField, decode_value, encode_value
from redelivery_rabbitmq.client.frames import HEADERS_BYTES, SHORT_STRING, short_string

KEY: Final = "x-redelivery-key"
NULL: Final = "x-redelivery-null"
ORDER: Final = "x-redelivery-order"
STAMP: Final = "timestamp_in_ms"
_CONTENT_TYPE: Final = "content-type"

#: More digits than the place of any header has; another client may have written `ORDER`.
_DIGITS: Final = 9

#: Names, in lower case, of headers that the broker or this plugin writes: it would refuse, change or misread a row's.
_RESERVED: Final = frozenset({"x-death", "x-delivery-count", "x-acquired-count", ATTEMPTS, KEY, NULL, ORDER}) | KEPT
_RESERVED_PREFIXES: Final = ("x-first-death-", "x-last-death-")

_FLAG_CONTENT_TYPE: Final = 1 << 15
_FLAG_HEADERS: Final = 1 << 13
_FLAG_DELIVERY_MODE: Final = 1 << 12
_FLAG_ID: Final = 1 << 7
_FLAG_TIMESTAMP: Final = 1 << 6
_PERSISTENT: Final = b"\x02"
_LAST_STAMP: Final = 1 << 63
_SECOND: Final = 1000
#: Bytes of the longest header value that is kept encoded, and of a field beyond its name and value.
_REPEATED: Final = 256
_FIELD: Final = 6
_LENGTH: Final = struct.Struct(">I").pack
_FLAGS: Final = struct.Struct(">H").pack
_LONG: Final = struct.Struct(">Q").pack

#: The flag of each property, in the order in which AMQP writes them, without `expiration`: a time to live ends with the
#: death, and the broker too removes it then.
_PROPERTIES: Final = {
    "content_type": _FLAG_CONTENT_TYPE,
    "content_encoding": 1 << 14,
    "headers": _FLAG_HEADERS,
    "delivery_mode": _FLAG_DELIVERY_MODE,
    "priority": 1 << 11,
    "correlation_id": 1 << 10,
    "reply_to": 1 << 9,
    "message_id": _FLAG_ID,
    "timestamp": _FLAG_TIMESTAMP,
    "type": 1 << 5,
    "user_id": 1 << 4,
    "app_id": 1 << 3,
    "cluster_id": 1 << 2,
}
#: Those that no field of a message holds.
_SHORT_STRINGS: Final = ("content_encoding", "correlation_id", "reply_to", "type", "user_id", "app_id", "cluster_id")
_of_properties: Final = attrgetter(*_SHORT_STRINGS, "priority")
_NO_PROPERTIES: Final = (None,) * (len(_SHORT_STRINGS) + 1)
#: The type of a body that holds the sections of an AMQP 1.0 message: RabbitMQ reads it as such.
_AMQP_1_0: Final = "amqp-1.0"
#: Bytes by which the headers of another client's message may grow beyond `HEADERS_BYTES`: a marker.
_GROWTH: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Native:
    """The parts of a RabbitMQ message beyond the fields of `Message`.

    Attributes:
        headers: by name, those that `encode_properties` would write in another way: the value as bytes, and name and
            value as they were encoded.
        table_bytes: of all headers, encoded.
        ordered: `ORDER` was among them.
        properties: encoded, by name.
        content_type: of the property; None: it was not set.
        shown_type: the value of the header `content-type` that the message shows.
        type_in_table: that one was a header.
        id_: the message id, if it is not UTF-8.
        shown_ms: the timestamp that the message shows.
        seconds: of the property; None: it was not set.
        stamp: the header `STAMP`, encoded; None: the message did not have it.
        user: who published it.
        body: length and checksum of the body, if a property says how to read that; it holds for no other body.
    """

    headers: Mapping[str, tuple[bytes | None, bytes]]
    table_bytes: int
    ordered: bool
    properties: Mapping[str, bytes]
    content_type: bytes | None
    shown_type: bytes | None
    type_in_table: bool
    id_: bytes | None
    shown_ms: int | None
    seconds: int | None
    stamp: bytes | None
    user: str | None
    body: tuple[int, int] | None

    @property
    def nbytes(self) -> int:
        """About how many bytes it holds."""
        return 2 * sum(len(raw) for _, raw in self.headers.values()) + sum(map(len, self.properties.values()))


class EncodedProperties(BasicProperties):
    """Properties that are already encoded; their fields are empty."""

    def __init__(self, payload: bytes) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._payload = payload

    def encode(self) -> list[bytes]:
        return [self._payload]


def encode(message: Message, user: str | None = None) -> tuple[bytes, BasicProperties]:
    """Return body and properties of a message; `user` publishes it. Raises Permanent: AMQP cannot carry it."""
    if isinstance(message.native, Native):
        payload = encode_native(message, message.native, user, most=HEADERS_BYTES)
    else:
        payload = encode_properties(message.value, message.key, message.headers, message.id, message.timestamp_ms)
    return message.value or b"", EncodedProperties(payload)


def encode_native(message: Message, native: Native, user: str | None, *, most: int | None = None) -> bytes:
    """Return the encoded properties of a message that was read from RabbitMQ; errors as of `encode_properties`.

    The message's fields take precedence. A header whose value is still the same is written as it was encoded.

    Args:
        message: the message.
        native: what it held when it was read.
        user: who publishes it; the broker takes a user id from that user alone.
        most: bytes of the headers at most; None: they may be as large as they were, if that is more than usual.
    """
    parts = {**native.properties, "delivery_mode": _PERSISTENT}
    if native.body not in {None, _checksum(message.value)}:
        parts.pop("content_encoding", None)
        if parts.get("type") == _short(_AMQP_1_0):
            del parts["type"]
    if user is None or native.user != user:
        parts.pop("user_id", None)
    table, content_type = _native_table(message, native, most)
    if content_type is not None:
        parts["content_type"] = _short(content_type)
    if message.id is not None:
        parts["message_id"] = short_string(message.id, "id")
    elif native.id_ is not None:
        parts["message_id"] = _short(native.id_)
    if message.timestamp_ms is not None and message.timestamp_ms != native.shown_ms:
        parts["timestamp"] = _timestamp(message.timestamp_ms, table, message.headers)
    elif message.timestamp_ms is not None:
        table += () if native.stamp is None else (native.stamp,)
        parts |= {} if native.seconds is None else {"timestamp": _LONG(native.seconds)}
    if table:
        joined = b"".join(table)
        parts["headers"] = _LENGTH(len(joined)) + joined
    there = [name for name in _PROPERTIES if name in parts]
    return b"".join((_FLAGS(sum(_PROPERTIES[name] for name in there)), *(parts[name] for name in there)))


def _native_table(message: Message, native: Native, most: int | None) -> tuple[list[bytes], bytes | None]:
    """Return the headers, encoded, and the value of the property `content-type`; None: it is not set."""
    headers = message.headers
    shown = next((value for name, value in headers if name == _CONTENT_TYPE), None)
    content_type = native.content_type
    if shown != native.shown_type:
        content_type = _content_type(headers) or None
    elif not native.type_in_table:
        headers = tuple(each for each in headers if each[0] != _CONTENT_TYPE)
    names = tuple(name for name, _ in headers)
    order = _order(names) if len(names) > 1 else None  # raises if two are equal
    table: list[bytes] = []
    for name, value in headers:
        was = native.headers.get(name)
        if was is not None and was[0] == value:
            table.append(was[1])
        else:
            table += (_name(name), b"V" if value is None else _value(value))
    size = sum(map(len, table))
    if size > (most or max(HEADERS_BYTES, native.table_bytes + _GROWTH)):
        _too_large(size)
    if order is not None and native.ordered:
        table += (_name_of_ours(ORDER), order)
    if message.key is not None:
        table += (_name_of_ours(KEY), _value(message.key))
    if message.value is None:
        table += (_name_of_ours(NULL), b"V")
    return table, content_type


def typed_headers(message: Message, native: Native) -> dict[str, Any]:
    """Return the headers that `encode_native` writes with another client's types, and their values."""
    return {
        name: decode_value(native.headers[name][1], 1 + native.headers[name][1][0])[0]
        for name, value in message.headers
        if name in native.headers and native.headers[name][0] == value
    }


def _short(value: str | bytes) -> bytes:
    """Encode a short string that was read as one."""
    raw = value.encode() if isinstance(value, str) else value
    return bytes((len(raw),)) + raw


def _checksum(value: bytes | None) -> tuple[int, int]:
    return len(value or b""), zlib.crc32(value or b"")


def _too_large(size: int) -> NoReturn:
    text = f"its headers are {size} bytes; at most {HEADERS_BYTES} are possible, as all must fit one frame"
    raise Permanent(f"rabbitmq: this row cannot be sent: {text}", code=Code.TOO_LARGE)


def encode_properties(
    value: bytes | None, key: bytes | None, headers: Headers, id_: str | None, timestamp_ms: int | None
) -> bytes:
    """Return the encoded properties of a row. Raises Permanent: AMQP cannot carry them."""
    flags = _FLAG_DELIVERY_MODE
    end = content_type = b""
    if id_ is not None:
        flags |= _FLAG_ID
        end = short_string(id_, "id")
    if key is None and not headers and timestamp_ms is None and value is not None:
        return _FLAGS(flags) + _PERSISTENT + end
    table = []
    if headers:
        table = _table(headers)
        content_type = _content_type(headers)
    if key is not None:
        table += (_name_of_ours(KEY), _value(key))
    if value is None:
        table += (_name_of_ours(NULL), b"V")
    if timestamp_ms is not None:
        flags |= _FLAG_TIMESTAMP
        end += _timestamp(timestamp_ms, table, headers)
    pieces = [_PERSISTENT, end]
    if table:
        flags |= _FLAG_HEADERS
        joined = b"".join(table)
        pieces = [_LENGTH(len(joined)), joined, *pieces]
    if content_type:
        flags |= _FLAG_CONTENT_TYPE
        pieces = [bytes((len(content_type),)), content_type, *pieces]
    return b"".join((_FLAGS(flags), *pieces))


def decode(properties: BasicProperties, body: bytes) -> tuple[Message, str | None]:
    """Return the message, and what of it could not be decoded; None if all was.

    Header values of other publishers that are neither text nor bytes become text; tables and arrays become JSON.

    Args:
        properties: without the headers that the broker adds (see `broker_headers`).
        body: the body.
    """
    id_ = properties.message_id
    native = _properties(properties)
    if not properties.headers and properties.timestamp is None and not isinstance(id_, bytes) and not native:
        content_type = properties.content_type
        if content_type is None:
            return Message(value=body, id=id_), None
    whole: Mapping[Any, Any] = properties.headers or {}
    table: dict[Any, Any] = dict(whole)
    fault = "; ".join(_faults(properties, table)) or None
    key = _bytes(table.pop(KEY)) if isinstance(table.get(KEY), str | bytes) else None
    order = table.pop(ORDER, None)
    is_null = not body and table.pop(NULL, 0) is None
    timestamp_ms = _decoded_timestamp(properties.timestamp, table)
    headers = _decoded_headers(table, order, properties.content_type)
    message = Message(
        value=None if is_null else body,
        key=key,
        timestamp_ms=timestamp_ms,
        headers=headers,
        id=None if isinstance(id_, bytes) else id_,
        native=_native(properties, native, whole, table, headers, timestamp_ms, body),
    )
    return message, fault


def _properties(properties: BasicProperties) -> dict[str, bytes]:
    """Return the properties that no field of a message holds, encoded."""
    values = _of_properties(properties)
    if values == _NO_PROPERTIES:
        return {}
    found = {name: _short(value) for name, value in zip(_SHORT_STRINGS, values, strict=False) if value is not None}
    return found if values[-1] is None else {**found, "priority": bytes((values[-1],))}


def _native(
    properties: BasicProperties,
    found: Mapping[str, bytes],
    whole: Mapping[Any, Any],
    table: Mapping[Any, Any],
    headers: Headers,
    timestamp_ms: int | None,
    body: bytes,
) -> Native | None:
    """Return what the fields of a message cannot say; None where `encode_properties` writes the same again.

    Args:
        properties: as published.
        found: of `_properties`.
        whole: its headers.
        table: those without headers of ours.
        headers: those, decoded.
        timestamp_ms: as decoded.
        body: the body.
    """
    odd = {
        _name_as_text(name): (_bytes(value), _encoded(name, value))
        for name, value in table.items()
        if not _is_plain(value) or not isinstance(name, str) or _is_reserved(name)
    }
    ordered = ORDER in whole
    id_, content_type = properties.message_id, properties.content_type
    stamp = whole[STAMP] if STAMP in whole and STAMP not in table else None
    is_same = (
        not (odd or found or isinstance(id_, bytes))
        and (ordered or not table)
        and (content_type is None or table.get(_CONTENT_TYPE) == content_type)
        and (stamp is None or (stamp % _SECOND != 0 and properties.timestamp is not None))
        and (timestamp_ms is None or 0 <= timestamp_ms < _LAST_STAMP)
    )
    if is_same:
        return None
    shown = next((value for name, value in headers if name == _CONTENT_TYPE), None)
    encoding, kind = properties.content_encoding, properties.type
    return Native(
        headers=odd,
        table_bytes=sum(map(_about, whole.items())),
        ordered=ordered,
        properties=found,
        content_type=None if content_type is None else _bytes(content_type),
        shown_type=shown,
        type_in_table=_CONTENT_TYPE in table,
        id_=id_ if isinstance(id_, bytes) else None,
        shown_ms=timestamp_ms,
        seconds=properties.timestamp,
        stamp=None if stamp is None else _encoded(STAMP, stamp),
        user=properties.user_id,
        body=_checksum(body) if encoding is not None or kind == _AMQP_1_0 else None,
    )


def _is_plain(value: Any) -> bool:
    """Whether `_value` writes a value as it was."""
    return value is None or type(value) is str or (type(value) is bytes and not _is_text(value))


def _encoded(name: str | bytes, value: Any) -> bytes:
    pieces = [_short(name)]
    encode_value(pieces, value)
    return b"".join(pieces)


def _about(header: tuple[Any, Any]) -> int:
    """Return about how many bytes a header takes."""
    name, value = header
    return len(name) + _FIELD + (len(value) if isinstance(value, str | bytes) else len(_encoded(name, value)))


def _faults(properties: BasicProperties, table: Mapping[Any, Any]) -> Iterator[str]:
    if not all(isinstance(name, str) for name in table):
        yield "the name of a header is not UTF-8"
    if any(isinstance(value, EncodedField) for value in table.values()):
        yield f"a header holds tables nested more than {MAX_DEPTH} deep"
    if isinstance(properties.message_id, bytes):
        yield "its message id is not UTF-8"


def _decoded_headers(table: Mapping[Any, Any], order: object, content_type: str | None) -> Headers:
    if not table and content_type is None:
        return ()
    headers = [(_name_as_text(name), _bytes(value)) for name, value in table.items()]
    if isinstance(order, str):
        headers = _ordered(headers, order)
    if content_type is not None and all(name.lower() != _CONTENT_TYPE for name, _ in headers):
        headers.append((_CONTENT_TYPE, _bytes(content_type)))
    return tuple(headers)


def _decoded_timestamp(seconds: Any, table: dict[Any, Any]) -> int | None:
    """Return the timestamp in milliseconds. Removes our header from the table if it agrees with the seconds."""
    timestamp = seconds * _SECOND if isinstance(seconds, int) else None
    exact = table.get(STAMP)
    if isinstance(exact, int) and timestamp in {None, exact // _SECOND * _SECOND}:
        return table.pop(STAMP)  # type: ignore[no-any-return]
    return timestamp


def _name_as_text(name: str | bytes) -> str:
    return name if isinstance(name, str) else name.decode("utf-8", "backslashreplace")


def _ordered(headers: list[tuple[str, bytes | None]], order: str) -> list[tuple[str, bytes | None]]:
    """Restore the order of the headers; leave them if some were added or removed since."""
    places = [int(each) if each.isdecimal() and len(each) < _DIGITS else -1 for each in order.split(",")]
    if sorted(places) != list(range(len(headers))):
        return headers
    by_name = sorted(headers, key=lambda each: each[0].encode("utf-8", "surrogatepass"))
    return [by_name[place] for place in places]


def _table(headers: Headers) -> list[bytes]:
    pieces: list[bytes] = []
    size = 0
    for name, value in headers:
        if value is None or len(value) > _REPEATED:
            pieces += (_name(name), b"V" if value is None else _value(value))
            size += len(pieces[-2]) - 1 + len(value or b"")
        else:
            field = _field(name, value)
            pieces.append(field)
            size += len(field) - _FIELD
    if size > HEADERS_BYTES:
        _too_large(size)
    order = _order(tuple(name for name, _ in headers)) if len(headers) > 1 else None
    if order is not None:
        pieces += (_name_of_ours(ORDER), order)
    return pieces


@lru_cache(maxsize=1024)
def _field(name: str, value: bytes) -> bytes:
    """Return a whole header: most of a batch of letters are the same in all of them."""
    return _name(name) + _value(value)


@lru_cache(maxsize=4096)
def _order(names: tuple[str, ...]) -> bytes | None:
    """Return the value of `ORDER` for these names; None if they are sorted."""
    places = {name: place for place, name in enumerate(sorted(names, key=str.encode))}
    if len(places) < len(names):
        text = "two of its headers have the same name; an AMQP field table has each name once"
        raise Permanent(f"rabbitmq: this row cannot be sent: {text}", code=Code.INVALID_MESSAGE)
    order = [places[name] for name in names]
    return None if order == sorted(order) else _value(",".join(map(str, order)).encode())


@lru_cache(maxsize=4096)
def _is_reserved(name: str) -> bool:
    lower = name.lower()
    return name in COPIES or lower in _RESERVED or lower.startswith(_RESERVED_PREFIXES)


@lru_cache(maxsize=4096)
def _name(name: str) -> bytes:
    if _is_reserved(name):
        text = f"the header name {name!r} is reserved by RabbitMQ or redelivery; rename it"
        raise Permanent(f"rabbitmq: this row cannot be sent: {text}", code=Code.INVALID_MESSAGE)
    return short_string(name, "name of a header")


def _name_of_ours(name: str) -> bytes:
    return bytes((len(name),)) + name.encode()


def _value(value: bytes) -> bytes:
    return (b"S" if _is_text(value) else b"x") + _LENGTH(len(value)) + value


def _is_text(value: bytes) -> bool:
    if value.isascii():
        return True
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _content_type(headers: Headers) -> bytes:
    """Return the value of the header `content-type`, if the property can hold it; else nothing."""
    found = next((text for name, text in headers if name == _CONTENT_TYPE and text and len(text) <= SHORT_STRING), b"")
    return found if _is_text(found) else b""


def _timestamp(milliseconds: int, table: list[bytes], headers: Headers) -> bytes:
    problem = ""
    if not 0 <= milliseconds < _LAST_STAMP:
        problem = f"its timestamp {milliseconds!r} is not a number of milliseconds since 1970"
    elif milliseconds % _SECOND and any(name == STAMP for name, _ in headers):
        problem = f"it has both a timestamp and the header {STAMP!r}; leave one out"
    if problem:
        raise Permanent(f"rabbitmq: this row cannot be sent: {problem}", code=Code.INVALID_MESSAGE)
    if milliseconds % _SECOND:
        table += (_name_of_ours(STAMP), b"l", _LONG(milliseconds))
    return _LONG(milliseconds // _SECOND)


def _bytes(value: Any) -> bytes | None:
    """Return a field value of any type as bytes."""
    match value:
        case None | bytes():
            return value
        case str():
            return value.encode("utf-8", "surrogatepass")
        case bool():
            return b"true" if value else b"false"
        case datetime():
            return value.isoformat().encode()
        case Mapping() | list():
            return json.dumps(_plain(value)).encode()
        case _:
            return str(value).encode()


def _plain(value: Any) -> Any:
    match value:
        case Mapping():
            return {_plain(name): _plain(each) for name, each in value.items()}
        case list():
            return [_plain(each) for each in value]
        case bytes():
            return value.decode("utf-8", "backslashreplace")
        case None | bool() | int() | float() | str():
            return value
        case datetime():
            return value.isoformat()
        case _:
            return str(value)
