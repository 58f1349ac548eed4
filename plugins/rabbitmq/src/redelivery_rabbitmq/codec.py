"""A message as a body and AMQP properties, and back.

Headers are one field table. A value that is UTF-8 text is written as a long string, as other clients do, and any other
value as a byte array; both come back as the same bytes. Headers of ours carry what AMQP has no field for:

    x-redelivery-key       the key
    x-redelivery-order     the order of the headers: for each its place among the sorted names (quorum queues sort them)
    x-redelivery-null      present, without a value: the message's value is null
    timestamp_in_ms        the timestamp's milliseconds, named as RabbitMQ's message timestamp plugin does
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any, Final

from pika.spec import BasicProperties

from redelivery.codes import Code
from redelivery.contract.message import Headers, Message
from redelivery.errors import Permanent
from redelivery_rabbitmq.client.broker_headers import ATTEMPTS, COPIES
from redelivery_rabbitmq.client.field_tables import MAX_DEPTH, EncodedField
from redelivery_rabbitmq.client.frames import HEADERS_BYTES, SHORT_STRING, short_string

KEY: Final = "x-redelivery-key"
NULL: Final = "x-redelivery-null"
ORDER: Final = "x-redelivery-order"
STAMP: Final = "timestamp_in_ms"
_CONTENT_TYPE: Final = "content-type"

#: More digits than the place of any header has; another client may have written `ORDER`.
_DIGITS: Final = 9

#: Names, in lower case, of headers that the broker or this plugin writes: it would refuse, change or misread a row's.
_RESERVED: Final = frozenset({"x-death", "x-delivery-count", "x-acquired-count", ATTEMPTS, KEY, NULL, ORDER})
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


class EncodedProperties(BasicProperties):
    """Properties that are already encoded; their fields are empty."""

    def __init__(self, payload: bytes) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._payload = payload

    def encode(self) -> list[bytes]:
        return [self._payload]


def encode(message: Message) -> tuple[bytes, BasicProperties]:
    """Return body and properties of a message. Raises Permanent: AMQP cannot carry it."""
    payload = encode_properties(message.value, message.key, message.headers, message.id, message.timestamp_ms)
    return message.value or b"", EncodedProperties(payload)


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
    if not properties.headers and properties.timestamp is None and not isinstance(id_, bytes):
        return Message(value=body, headers=_decoded_headers({}, None, properties.content_type), id=id_), None
    table: dict[Any, Any] = dict(properties.headers or {})
    fault = "; ".join(_faults(properties, table)) or None
    key = _bytes(table.pop(KEY)) if isinstance(table.get(KEY), str | bytes) else None
    order = table.pop(ORDER, None)
    is_null = not body and table.pop(NULL, 0) is None
    message = Message(
        value=None if is_null else body,
        key=key,
        timestamp_ms=_decoded_timestamp(properties.timestamp, table),
        headers=_decoded_headers(table, order, properties.content_type),
        id=None if isinstance(id_, bytes) else id_,
    )
    return message, fault


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
        text = f"its headers are {size} bytes; at most {HEADERS_BYTES} are possible, as all must fit one frame"
        raise Permanent(f"rabbitmq: this row cannot be sent: {text}", code=Code.TOO_LARGE)
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
def _name(name: str) -> bytes:
    lower = name.lower()
    if name in COPIES or lower in _RESERVED or lower.startswith(_RESERVED_PREFIXES):
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
