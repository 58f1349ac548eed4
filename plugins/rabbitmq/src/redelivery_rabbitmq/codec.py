"""A message as a body and AMQP properties, and back. This file must not do I/O.

Headers are one AMQP table. A value that is UTF-8 text is written as a long string, as every client does, any other as a
byte array; both come back as the same bytes. What AMQP has no field for is in headers of ours, where there is any:

    x-redelivery-key       the key
    x-redelivery-order     how the headers were ordered: for each its place among the sorted names (quorum queues sort)
    x-redelivery-null      there, with no value: the message's value is null
    timestamp_in_ms        the timestamp's milliseconds, as RabbitMQ's own message timestamp plugin writes them
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any, Final

from pika.spec import BasicProperties

from redelivery.contract.message import Headers, Message
from redelivery.errors import Permanent
from redelivery_rabbitmq.client.field_tables import DEPTH, Nested

KEY: Final = "x-redelivery-key"
NULL: Final = "x-redelivery-null"
ORDER: Final = "x-redelivery-order"
STAMP: Final = "timestamp_in_ms"
_CONTENT_TYPE: Final = "content-type"

#: All headers of a message, names and values: a frame of 128 KiB, less what the broker adds when it dead-letters.
HEADERS_BYTES: Final = 96 << 10
#: More digits than any place among headers has; anybody may have written the header.
_DIGITS: Final = 9
#: An AMQP short string: ids and names.
SHORT: Final = 255

#: Headers that the broker reads or writes itself: a row's own would be refused by it, changed, or taken for its own.
_ITS_OWN: Final = frozenset({"x-death", "x-delivery-count", "x-acquired-count", "redelivery-retry"})
#: Where the publisher wants copies, so written: the broker leaves `CC` in the message, and would send them once more.
COPIES: Final = frozenset({"CC", "BCC"})
_ITS_OWN_TOO: Final = ("x-first-death-", "x-last-death-")
_OURS: Final = frozenset({KEY, NULL, ORDER})

_FLAG_CONTENT_TYPE: Final = 1 << 15
_FLAG_HEADERS: Final = 1 << 13
_FLAG_DELIVERY_MODE: Final = 1 << 12
_FLAG_ID: Final = 1 << 7
_FLAG_TIMESTAMP: Final = 1 << 6
_PERSISTENT: Final = b"\x02"
_LAST_STAMP: Final = 1 << 63
_SECOND: Final = 1000
_LENGTH: Final = struct.Struct(">I").pack
_FLAGS: Final = struct.Struct(">H").pack
_LONG: Final = struct.Struct(">Q").pack


class Encoded(BasicProperties):
    """Properties that are encoded already; to read a field of them is of no use."""

    def __init__(self, payload: bytes) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._payload = payload

    def encode(self) -> list[bytes]:
        return [self._payload]


def encode(message: Message) -> tuple[bytes, BasicProperties]:
    """Body and properties of a message. Raises Permanent: AMQP cannot carry it."""
    payload = properties(message.value, message.key, message.headers, message.id, message.timestamp_ms)
    return message.value or b"", Encoded(payload)


def properties(
    value: bytes | None, key: bytes | None, headers: Headers, id_: str | None, timestamp_ms: int | None
) -> bytes:
    """The encoded properties of a row. Raises Permanent: AMQP cannot carry them."""
    flags = _FLAG_DELIVERY_MODE
    end = kind = b""
    if id_ is not None:
        flags |= _FLAG_ID
        end = _short(id_, "id")
    if key is None and not headers and timestamp_ms is None and value is not None:
        return _FLAGS(flags) + _PERSISTENT + end
    table = []
    if headers:
        table = _table(headers)
        kind = next((text for name, text in headers if name == _CONTENT_TYPE and text and len(text) <= SHORT), b"")
    if key is not None:
        table += (_name_of_ours(KEY), _value(key))
    if value is None:
        table += (_name_of_ours(NULL), b"V")
    if timestamp_ms is not None:
        flags |= _FLAG_TIMESTAMP
        end += _stamp(timestamp_ms, table, headers)
    if table:
        flags |= _FLAG_HEADERS
        joined = b"".join(table)
        pieces = [_LENGTH(len(joined)), joined, _PERSISTENT, end]
    else:
        pieces = [_PERSISTENT, end]
    if kind and _is_text(kind):
        return b"".join((_FLAGS(flags | _FLAG_CONTENT_TYPE), bytes((len(kind),)), kind, *pieces))
    return b"".join((_FLAGS(flags), *pieces))


def decode(given: BasicProperties, body: bytes) -> tuple[Message, str | None]:
    """The message, and what of it is not as it was sent; where it was published to is no part (see `broker_headers`).

    What other publishers write into headers besides text and bytes is given as text: tables and arrays as JSON.
    """
    faults: list[str] = []
    table: dict[Any, Any] = dict(given.headers or {})
    key = _bytes(table.pop(KEY)) if isinstance(table.get(KEY), str | bytes) else None
    order = table.pop(ORDER, None)
    is_null = not body and table.pop(NULL, 0) is None
    stamp = given.timestamp * _SECOND if isinstance(given.timestamp, int) else None
    exact = table.get(STAMP)
    if isinstance(exact, int) and stamp in {None, exact // _SECOND * _SECOND}:
        stamp = table.pop(STAMP)
    if not all(isinstance(name, str) for name in table):
        faults.append("the name of a header is not UTF-8")
        table = {_name_as_text(name): value for name, value in table.items()}
    if any(isinstance(value, Nested) for value in table.values()):
        faults.append(f"a header holds tables nested more than {DEPTH} deep")
    headers = [(name, _bytes(value)) for name, value in table.items()]
    if isinstance(order, str):
        headers = _ordered(headers, order)
    kind = given.content_type
    if kind is not None and all(name.lower() != _CONTENT_TYPE for name in table):
        headers.append((_CONTENT_TYPE, _bytes(kind)))
    id_: Any = given.message_id
    if isinstance(id_, bytes):
        faults.append("its message id is not UTF-8")
        id_ = None
    message = Message(value=None if is_null else body, key=key, headers=tuple(headers), id=id_, timestamp_ms=stamp)
    return message, "; ".join(faults) or None


def _name_as_text(name: str | bytes) -> str:
    return name if isinstance(name, str) else name.decode("utf-8", "backslashreplace")


def _ordered(headers: list[tuple[str, bytes | None]], order: str) -> list[tuple[str, bytes | None]]:
    """Headers as they were ordered; as they are, where others have come or gone."""
    places = [int(each) if each.isdecimal() and len(each) < _DIGITS else -1 for each in order.split(",")]
    if sorted(places) != list(range(len(headers))):
        return headers
    by_name = sorted(headers, key=lambda each: each[0].encode("utf-8", "surrogatepass"))
    return [by_name[place] for place in places]


def _table(headers: Headers) -> list[bytes]:
    pieces: list[bytes] = []
    size = 0
    for name, value in headers:
        written = _name(name)
        pieces.append(written)
        size += len(written) - 1
        if value is None:
            pieces.append(b"V")
        else:
            pieces.append(_value(value))
            size += len(value)
    if size > HEADERS_BYTES:
        text = f"its headers are {size} bytes; all must fit one frame, so {HEADERS_BYTES} are the most"
        raise Permanent(f"rabbitmq: this row cannot be sent: {text}", native_code="HEADERS_TOO_LARGE")
    order = _order(tuple(name for name, _ in headers)) if len(headers) > 1 else None
    if order is not None:
        pieces += (_name_of_ours(ORDER), order)
    return pieces


@lru_cache(maxsize=4096)
def _order(names: tuple[str, ...]) -> bytes | None:
    """The value of our header for names in this order; None where they are sorted."""
    places = {name: place for place, name in enumerate(sorted(names, key=str.encode))}
    if len(places) < len(names):
        text = "two of its headers have one name, and AMQP's table has each name once"
        raise Permanent(f"rabbitmq: this row cannot be sent: {text}", native_code="HEADER_REPEATED")
    order = [places[name] for name in names]
    return None if order == sorted(order) else _value(",".join(map(str, order)).encode())


@lru_cache(maxsize=4096)
def _name(name: str) -> bytes:
    lower = name.lower()
    if name in COPIES or lower in _ITS_OWN or lower.startswith(_ITS_OWN_TOO) or lower in _OURS:
        text = f"the header {name!r} is the broker's own, or ours"
        raise Permanent(f"rabbitmq: this row cannot be sent: {text}", native_code="HEADER_NAME")
    return _short(name, "name of a header")


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


def _short(text: str, what: str) -> bytes:
    try:
        raw = text.encode()
    except UnicodeEncodeError:
        problem = f"its {what} cannot be written as UTF-8"
        raise Permanent(f"rabbitmq: this row cannot be sent: {problem}", native_code="NOT_UTF8") from None
    if len(raw) > SHORT:
        problem = f"its {what} is {len(raw)} bytes long, and {SHORT} are the most"
        raise Permanent(f"rabbitmq: this row cannot be sent: {problem}", native_code="TOO_LONG")
    return bytes((len(raw),)) + raw


def _stamp(milliseconds: int, table: list[bytes], headers: Headers) -> bytes:
    problem = ""
    if not 0 <= milliseconds < _LAST_STAMP:
        problem = f"its timestamp {milliseconds!r} is none from 1970 on"
    elif milliseconds % _SECOND and any(name == STAMP for name, _ in headers):
        problem = f"it has both a timestamp and the header {STAMP!r}"
    if problem:
        raise Permanent(f"rabbitmq: this row cannot be sent: {problem}", native_code="TIMESTAMP")
    if milliseconds % _SECOND:
        table += (_name_of_ours(STAMP), b"l", _LONG(milliseconds))
    return _LONG(milliseconds // _SECOND)


def _bytes(value: Any) -> bytes | None:
    """A value of any AMQP type as bytes."""
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
