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
import binascii
import hashlib
import json
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from redelivery.contract.message import Header, Headers, Message
from redelivery.errors import Permanent

#: The attribute for the parts of a message that SQS has no place for.
PACKED: Final = "redelivery"
#: The attribute that names the body's encoding.
TRANSFER: Final = "content-transfer-encoding"
#: Headers that are attributes: SQS's ten, less the two above.
NATIVE_HEADERS: Final = 8
#: Bytes of a message that are reserved for names, types and JSON's own characters.
RESERVE: Final = 4096

#: The column with the group of a row without a key: it brings a FIFO queue's letter back to its group.
GROUP: Final = "message_group"
#: In place of a group's name: each row without a key has its own group, because no order is asked for.
EACH: Final = "*"

#: The bodies that stand for a null and for an empty value.
_PLACEHOLDERS: Final = {"null": "null", "empty": "-"}
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
    attributes: dict[str, dict[str, str]] = {}
    packed: dict[str, Any] = {}
    if value:
        text = _text(value)
        if text is None:
            if len(value) > binary_limit(max_bytes):
                raise _too_large(len(value), binary_limit(max_bytes), "bytes that are not text and go as base64,")
            text = base64.b64encode(value).decode()
            attributes[TRANSFER] = {"DataType": "String", "StringValue": "base64"}
            size = len(text) + len(TRANSFER) + 12
        else:
            size = len(value)
    else:
        packed["body"] = "null" if value is None else "empty"
        text = _PLACEHOLDERS[packed["body"]]
        size = len(text)
    size += _pack(packed, attributes, key, headers, id_, timestamp)
    if size > max_bytes:
        raise _too_large(size, max_bytes, "bytes")
    return Encoded(text, attributes, size)


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
        raise Permanent(text, native_code="MissingParameter")
    unique = uuid.uuid4().hex if known_by is None else deduplication_id(known_by)
    alone = key is None and group == EACH
    named = _fifo_id((group or "").encode() if key is None else key)
    return {"MessageGroupId": unique if alone else named, "MessageDeduplicationId": unique}


def deduplication_id(known_by: str) -> str:
    """Return the de-duplication id for an identity or id."""
    return _fifo_id(known_by.encode("utf-8", "surrogatepass"))


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
    packed: dict[str, Any] = {}
    if PACKED in attributes:
        try:
            packed = _unpack(attributes[PACKED].get("StringValue"))
        except (ValueError, TypeError, RecursionError) as error:
            fault = f"sqs: its attribute {PACKED!r} is damaged ({error})"
    value: bytes | None = body.encode("utf-8", "surrogatepass")
    marked = attributes.get(TRANSFER, {}).get("StringValue") == "base64"
    placeholder = packed.get("body")
    if placeholder is not None:
        if body == _PLACEHOLDERS.get(str(placeholder)):
            value = None if placeholder == "null" else b""
        else:  # not written by us: the body counts
            fault = f"sqs: its attribute {PACKED!r} contradicts its body"
    elif marked:
        try:
            value = base64.b64decode("".join(body.split()), validate=True)  # RFC 2045 breaks its lines
        except (binascii.Error, ValueError) as error:
            fault = f"sqs: its body is marked as base64, but is not ({error})"
    own = {PACKED, TRANSFER} if marked else {PACKED}
    natives = {name: _native(each) for name, each in attributes.items() if name not in own}
    message = Message(
        value=value,
        key=packed.get("key"),
        headers=_in_order(packed.get("headers", ()), natives),
        id=packed.get("id"),
        timestamp_ms=packed.get("timestamp"),
    )
    return message, fault


def _text(value: bytes) -> str | None:
    """Return these bytes as text; None if SQS does not accept it."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return None
    return text if (text.isascii() and text.isprintable()) or not _FORBIDDEN.search(text) else None


def _pack(
    packed: dict[str, Any],
    attributes: dict[str, dict[str, str]],
    key: bytes | None,
    headers: Headers | None,
    id_: str | None,
    timestamp: int | None,
) -> int:
    """Add the attributes for everything but the body; return their size. Raises Permanent: a wrong type."""
    size = 0
    try:
        if id_ is not None:
            packed["id"] = id_
        if key is not None:
            packed["key"] = _portable(key)
        if timestamp is not None:
            packed["timestamp"] = int(timestamp)
        if headers:
            size += _add_headers(headers, attributes, packed)
        if packed:
            text = json.dumps(packed, separators=(",", ":"))
            attributes[PACKED] = {"DataType": "String", "StringValue": text}
            size += len(PACKED) + 6 + len(text)
    except (TypeError, ValueError, AttributeError) as error:
        text = f"sqs: this row cannot be sent: its key, headers, id or timestamp have a wrong type ({error})"
        raise Permanent(text, native_code="TYPE") from error
    return size


def _add_headers(headers: Headers, attributes: dict[str, dict[str, str]], packed: dict[str, Any]) -> int:
    """Add headers as attributes or to `packed`; return the size of the attributes."""
    listed: list[Any] = []
    size = natives = 0
    for name, value in headers:
        text = None
        if value and natives < NATIVE_HEADERS and name not in attributes and name not in (PACKED, TRANSFER):
            text = _text(value) if _NAME.fullmatch(name) else None
        if text is None:
            listed.append([name, None if value is None else _portable(value)])
        else:
            attributes[name] = {"DataType": "String", "StringValue": text}
            listed.append(name)
            natives += 1
            size += len(name) + 6 + len(value or b"")
    if listed != [headers[0][0]]:  # one header has no order
        packed["headers"] = listed
    return size


def _in_order(listed: Any, natives: dict[str, bytes | None]) -> Headers:
    """Return the headers as they were sent, then those that another producer added, by name."""
    found: list[Header] = []
    for each in listed:
        if isinstance(each, str):
            if each in natives:
                found.append((each, natives.pop(each)))
        else:
            found.append((each[0], each[1]))
    return (*found, *sorted(natives.items()))


def _native(attribute: Mapping[str, Any]) -> bytes | None:
    if "BinaryValue" in attribute:
        return bytes(attribute["BinaryValue"])
    text = attribute.get("StringValue")
    return None if text is None else str(text).encode("utf-8", "surrogatepass")


def _portable(value: bytes) -> Any:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


def _bytes(value: Any) -> bytes | None:
    if isinstance(value, dict):
        return base64.b64decode(value["base64"], validate=True)
    return None if value is None else str(value).encode("utf-8", "surrogatepass")


def _unpack(text: Any) -> dict[str, Any]:
    """Parse our JSON and decode its bytes. Raises ValueError, TypeError: we did not write it."""
    found = json.loads(text)
    try:
        if "key" in found:
            found["key"] = _bytes(found["key"])
        if "headers" in found:
            found["headers"] = [
                each if isinstance(each, str) else (str(each[0]), _bytes(each[1])) for each in found["headers"]
            ]
        if not isinstance(found.get("timestamp"), int | None) or not isinstance(found.get("id"), str | None):
            raise TypeError("its id or timestamp has a wrong type")
    except (KeyError, IndexError, AttributeError) as error:
        raise ValueError(str(error)) from error
    return dict(found)


def _fifo_id(value: bytes) -> str:
    text = value.decode("ascii", "replace")
    return text if _FIFO_ID.fullmatch(text) else f"sha256-{hashlib.sha256(value).hexdigest()}"


def _too_large(size: int, max_bytes: int, what: str) -> Permanent:
    text = f"sqs: this row cannot be sent: it has {size} {what} and SQS takes {max_bytes}"
    return Permanent(text, native_code="InvalidParameterValue")
