"""Encodes a message for SQS and decodes it: body, message attributes, and a FIFO queue's group and de-duplication id.

SQS takes non-empty text and ten attributes. Therefore:

- A body that SQS accepts is sent unchanged. Any other body is base64, and the attribute `content-transfer-encoding`
  says so: the name and the value of RFC 2045, which other readers know or can look up.
- A header with a plain name and plain text is its own attribute, for others to read (eight at most).
- Everything else is in one attribute, `redelivery`, a JSON object: `id`, `key`, `timestamp`, `body` ("null" or "empty",
  if the body is a placeholder), `headers`: in their order, each an attribute's name or a pair of name and value. Bytes
  that are not UTF-8 are written as `{"base64": ...}`.
"""

from __future__ import annotations

import base64
import json
import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final

from redelivery.contract.message import Headers, Message
from redelivery.errors import Permanent
from redelivery.kit.errors import Code
from redelivery.kit.packing import from_portable, hashed_id, pack_headers, portable, unpack_headers

#: The attribute for the parts of a message that SQS has no place for.
PACKED: Final = "redelivery"
#: The attribute that names the body's encoding.
TRANSFER: Final = "content-transfer-encoding"
#: Headers that are attributes: SQS's ten, less the two above.
NATIVE_HEADERS: Final = 8
#: Entries of one request at most.
MAX_ENTRIES: Final = 10
#: Bytes of a message that are reserved for names, types and JSON's own characters.
RESERVE: Final = 4096

#: The column with the group of a row without a key: it brings a FIFO queue's letter back to its group.
GROUP: Final = "message_group"
#: In place of a group's name: each row without a key has its own group, because no order is asked for.
EACH: Final = "*"

#: The bodies that stand for a null and for an empty value.
_PLACEHOLDERS: Final = {"null": "null", "empty": "-"}
#: Bytes of the longest header value whose text is kept.
_REPEATED: Final = 256
# Made once: `dumps` would make another for each row.
_json: Final = json.JSONEncoder(separators=(",", ":")).encode
# SQS accepts the characters of XML.
_FORBIDDEN = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_NAME = re.compile(r"(?!(?i:aws\.|amazon\.))(?!\.)(?!.*\.\.)[A-Za-z0-9_.-]{1,256}(?<!\.)")
#: A valid message group id or de-duplication id.
_FIFO_ID = re.compile(r"[A-Za-z0-9!-/:-@\[-`{-~]{1,128}")


@dataclass(frozen=True, slots=True)
class Encoded:
    """An encoded message; `size` counts against SQS's limit."""

    body: str
    attributes: dict[str, dict[str, str]]
    size: int


def binary_limit(max_bytes: int) -> int:
    """The largest value that fits as base64 where SQS takes `max_bytes`: base64 makes four bytes of three."""
    return max(0, max_bytes - RESERVE) // 4 * 3


def encode(message: Message, max_bytes: int) -> Encoded:
    """Encode a message.

    Raises:
        Permanent: SQS cannot carry it, or it is larger than `max_bytes`.
    """
    return encode_row(message.value, message.key, message.headers, message.id, message.timestamp_ms, max_bytes)


def encode_row(
    value: bytes | None,
    key: bytes | None,
    headers: Headers | None,
    id_: str | None,
    timestamp: int | None,
    max_bytes: int,
) -> Encoded:
    """Encode the columns of a row, as `encode` does. Raises Permanent."""
    try:
        texts, packed = pack_headers(headers, _native()) if headers else ({}, {})
        if id_ is not None:
            packed["id"] = id_
        if key is not None:
            packed["key"] = portable(key)
        if timestamp is not None:
            packed["timestamp"] = int(timestamp)
        body = _body(value, texts, packed, max_bytes)
        if packed:
            texts[PACKED] = _json(packed)
    except (TypeError, ValueError, AttributeError) as error:
        text = f"sqs: this row cannot be sent: its key, headers, id or timestamp have a wrong type ({error})"
        raise Permanent(text, code=Code.INVALID_MESSAGE) from error
    size = _size(body)
    for name, text in texts.items():
        size += _size(name) + len("String") + _size(text)
    if size > max_bytes:
        raise _too_large(size, max_bytes, "bytes")
    attributes = {name: {"DataType": "String", "StringValue": text} for name, text in texts.items()}
    return Encoded(body, attributes, size)


def fifo_fields(known_by: str | None, key: bytes | None, group: str | None) -> dict[str, str]:
    """Return the group and the de-duplication id that a FIFO queue requires.

    Text that SQS does not accept as either is replaced by its SHA-256. A row without `known_by` is never a duplicate.

    Args:
        known_by: the row's identity, or its id if it has none.
        key: of the row.
        group: for rows without a key; `EACH`: each row has its own group.

    Raises:
        Permanent: neither a key nor a group.
    """
    if key is None and group is None:
        text = (
            "sqs: this row cannot be sent: a FIFO queue requires a message group, and the row has no key; "
            "add a column 'key', or set sqs.message_group"
        )
        raise Permanent(text, code=Code.INVALID_MESSAGE)
    unique = uuid.uuid4().hex if known_by is None else deduplication_id(known_by)
    alone = key is None and group == EACH
    named = hashed_id((group or "").encode() if key is None else key, _is_fifo_id)
    return {"MessageGroupId": unique if alone else named, "MessageDeduplicationId": unique}


def deduplication_id(known_by: str) -> str:
    """Return the de-duplication id for an identity or id."""
    return hashed_id(known_by, _is_fifo_id)


def decode(raw: Mapping[str, Any]) -> tuple[Message, str | None]:
    """Decode a message that was received with all its attributes, ours or another producer's.

    Returns the message and what of it could not be decoded. Never raises: its neighbours are in the same answer.
    """
    body = str(raw.get("Body", ""))
    try:
        return _decode(body, raw.get("MessageAttributes") or {})
    except Exception as error:  # noqa: BLE001 - another producer wrote it; one message must not hold up the others
        fault = f"sqs: its attributes cannot be read ({type(error).__name__}: {error})"
        return Message(value=body.encode("utf-8", "surrogatepass")), fault


def _decode(body: str, attributes: Mapping[str, Any]) -> tuple[Message, str | None]:
    fault: str | None = None
    marked = attributes.get(TRANSFER, {}).get("StringValue") == "base64"
    own = {PACKED, TRANSFER} if marked else {PACKED}
    natives = {name: _native_value(each) for name, each in attributes.items() if name not in own}
    message = Message(value=body.encode("utf-8", "surrogatepass"), headers=unpack_headers({}, natives))
    placeholder = None
    if PACKED in attributes:
        text = attributes[PACKED].get("StringValue")
        try:
            packed = json.loads(text)
            message = replace(
                message,
                key=from_portable(packed.get("key")),
                headers=unpack_headers(packed, natives),
                id=_typed(packed, "id", str),
                timestamp_ms=_typed(packed, "timestamp", int),
            )
            placeholder = packed.get("body")
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            fault = f"sqs: its attribute {PACKED!r} is damaged ({error})"
    if placeholder is not None:
        if body == _PLACEHOLDERS.get(str(placeholder)):
            return replace(message, value=None if placeholder == "null" else b""), fault
        fault = f"sqs: its attribute {PACKED!r} contradicts its body"  # so we did not write it, and the body counts
    elif marked:
        try:
            lines = body.split()  # RFC 2045 breaks them
            message = replace(message, value=base64.b64decode("".join(lines), validate=True))
        except ValueError as error:
            fault = f"sqs: its body is marked as base64, but is not ({error})"
    return message, fault


def _typed(packed: Mapping[str, Any], name: str, kind: type) -> Any:
    value = packed.get(name)
    if value is not None and not isinstance(value, kind):
        raise TypeError(f"its {name} has a wrong type")
    return value


def _text(value: bytes) -> str | None:
    """Return these bytes as text; None if SQS does not accept it."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return None
    return text if (text.isascii() and text.isprintable()) or not _FORBIDDEN.search(text) else None


def _body(value: bytes | None, texts: dict[str, str], packed: dict[str, Any], max_bytes: int) -> str:
    """Return the body for a value; adds to the attributes, or to the packed one, how it is encoded."""
    if not value:
        packed["body"] = "null" if value is None else "empty"
        return _PLACEHOLDERS[packed["body"]]
    text = _text(value)
    if text is not None:
        return text
    if len(value) > binary_limit(max_bytes):
        raise _too_large(len(value), binary_limit(max_bytes), "bytes that are not text and go as base64,")
    texts[TRANSFER] = "base64"
    return base64.b64encode(value).decode()


def _native() -> Callable[[str, bytes], str | None]:
    """Make what decides, for the headers of one message, which become attributes: it returns their text."""
    count = 0

    def native(name: str, value: bytes) -> str | None:
        nonlocal count
        if not value or count == NATIVE_HEADERS:
            return None
        text = _native_text(name, value) if len(value) > _REPEATED else _repeated_text(name, value)
        count += text is not None
        return text

    return native


def _native_text(name: str, value: bytes) -> str | None:
    """Return a header's value as an attribute has it; None if it cannot be one."""
    return None if name in (PACKED, TRANSFER) or not _NAME.fullmatch(name) else _text(value)


#: Most headers of a batch of letters are the same in all of them.
_repeated_text = lru_cache(maxsize=1024)(_native_text)


def _native_value(attribute: Mapping[str, Any]) -> bytes | None:
    if "BinaryValue" in attribute:
        return bytes(attribute["BinaryValue"])
    text = attribute.get("StringValue")
    return None if text is None else str(text).encode("utf-8", "surrogatepass")


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def _is_fifo_id(text: str) -> bool:
    return _FIFO_ID.fullmatch(text) is not None


def _too_large(size: int, max_bytes: int, what: str) -> Permanent:
    text = f"sqs: this row cannot be sent: it has {size} {what} and SQS takes {max_bytes}"
    return Permanent(text, code=Code.TOO_LARGE)
