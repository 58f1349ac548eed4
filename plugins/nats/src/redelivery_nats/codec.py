"""A message as NATS holds it, and back.

A header that NATS can hold unchanged is one of NATS's. Everything else that a message has (key, time, null value,
other headers) goes into one header of ours, `redelivery`, as JSON. The id is `Nats-Msg-Id`, by which the server
de-duplicates; where the message has an identity, that is, and the id is in our header.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from redelivery.contract.message import Header, Headers, Message
from redelivery.errors import Permanent
from redelivery.kit.errors import Code
from redelivery.kit.packing import as_text, from_portable, hashed_id, portable

OURS: Final = "redelivery"
ID: Final = "Nats-Msg-Id"
#: Bytes of the headers, of a key and of an id, so that all fit into the server's 64 KiB, quoted as they may be.
HEADERS_BYTES: Final = 24 << 10
KEY_BYTES: Final = 6 << 10
ID_BYTES: Final = 2 << 10
#: The server's own limit: it keeps the size in 16 bits.
_BLOCK_BYTES: Final = 0xFFFF
_START: Final = b"NATS/1.0\r\n"
#: What the server itself reads begins so: `Nats-Rollup` in a user's header would empty the stream.
_SERVERS: Final = "nats-"
_NAME = re.compile(r"[!-9;-~]+")
#: A value that a line can hold. Some clients leave out spaces at its ends, and the application that wrote it knows.
_VALUE = re.compile(rb"[^\r\n\0]*")
_ID = re.compile(r"[!-~]{1,128}")


def encode(
    value: bytes | None,
    key: bytes | None = None,
    headers: Headers = (),
    id_: str | None = None,
    identity: str | None = None,
    timestamp_ms: int | None = None,
    *,
    most: int,
    recognised: bool = True,
    subject: str | None = None,
) -> tuple[bytes, bytes]:
    """Return the block of headers, which may be empty, and the payload: of `most` bytes together.

    `recognised`: the server may recognise the message by its id; a letter is recognised by its identity only.
    `subject`: a row's own, which is part of what it is recognised by, as a stream takes no notice of it. Raises
    Permanent, code TOO_LARGE.
    """
    ours: dict[str, Any] = {}
    lines: list[bytes] = []
    name = _recognised_by(identity or (id_ if recognised else None), subject)
    if name is not None:
        lines.append(f"{ID}: {name}\r\n".encode())
    if name != id_:
        ours["id"] = id_
    if headers:
        native, others = _divided(headers)
        lines += native
        if others:
            ours["headers"] = others
    if key is not None:
        ours["key"] = portable(key)
    if timestamp_ms is not None:
        ours["timestamp_ms"] = timestamp_ms
    if value is None:
        ours["null"] = True
        value = b""
    if ours:
        lines.append(f"{OURS}: {json.dumps(ours)}\r\n".encode())
    block = b"".join((_START, *lines, b"\r\n")) if lines else b""
    if len(block) + len(value) > most or block:
        _check_sizes(len(block), len(value), key, headers, id_, most)
    return block, value


def _check_sizes(block: int, value: int, key: bytes | None, headers: Headers, id_: str | None, most: int) -> None:
    size = sum(len(name.encode("utf-8", "surrogatepass")) + len(each or b"") for name, each in headers)
    id_size = 0 if id_ is None else len(id_.encode("utf-8", "surrogatepass"))
    for what, has, limit in (
        ("the message has", block + value, most),
        ("its headers have", size, HEADERS_BYTES),
        ("its key has", len(key or b""), KEY_BYTES),
        ("its id has", id_size, ID_BYTES),
        ("its headers, key and id have, as NATS holds them,", block, _BLOCK_BYTES),
    ):
        if has > limit:
            raise Permanent(f"nats: {what} {has} bytes, and {limit} are the most", code=Code.TOO_LARGE)


def _recognised_by(known_by: str | None, subject: str | None) -> str | None:
    if known_by is None:
        return None
    return hashed_id(known_by if subject is None else f"{known_by}\n{subject}", _is_id)


def _is_id(text: str) -> bool:
    return _ID.fullmatch(text) is not None


def _divided(headers: Headers) -> tuple[list[bytes], list[Any]]:
    """Divide headers into lines of NATS's own and the others, each with its place among all."""
    lines: list[bytes] = []
    others: list[Any] = []
    for at, (name, value) in enumerate(headers):
        own = name == OURS or name[:5].lower() == _SERVERS
        if own or value is None or not _NAME.fullmatch(name) or not _VALUE.fullmatch(value) or as_text(value) is None:
            others.append([at, name, portable(value)])
        else:
            lines.append(b"%b: %b\r\n" % (name.encode(), value))
    return lines, others


def decode(block: bytes | None, payload: bytes) -> tuple[Message, str | None]:
    """Return a stored message; and which part of it cannot be read, where one cannot."""
    if not block:
        return Message(value=payload), None
    headers: list[Header] = []
    id_ = packed = None
    fault = None
    for line in block.split(b"\r\n")[1:]:
        name, colon, value = line.partition(b":")
        if not colon:
            continue
        value = value.removeprefix(b" ")
        try:
            text = name.decode()
        except UnicodeDecodeError:
            fault, text = "the name of a header is not UTF-8", name.decode("utf-8", "replace")
        if text == OURS:
            packed = value
        elif text == ID:
            id_ = value.decode("utf-8", "replace")
        else:
            headers.append((text, value))
    if packed is None:
        return Message(value=payload, headers=tuple(headers), id=id_), fault
    try:
        ours = json.loads(packed)
        found = list(headers)
        for at, name, value in ours.get("headers", ()):
            found.insert(int(at), (_text(name), from_portable(value)))
        given = ours.get("id", id_)
        message = Message(
            value=None if ours.get("null") and not payload else payload,
            key=from_portable(ours.get("key")),
            headers=tuple(found),
            id=None if given is None else _text(given),
            timestamp_ms=_moment(ours.get("timestamp_ms")),
        )
    except (ArithmeticError, ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        found = [*headers, (OURS, packed)]
        why = f"its header {OURS!r} was not written by redelivery-nats: {type(error).__name__}"
        return Message(value=payload, headers=tuple(found), id=id_), why
    return message, fault


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value


def _moment(value: object) -> int | None:
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(value)
    if not -(1 << 63) <= value < 1 << 63:
        raise OverflowError(value)
    return value
