"""A message as SQS carries it, and back: body, message attributes, and a FIFO queue's group and de-duplication id.

SQS takes text only, not empty, and ten attributes. So:

- A body that SQS takes is sent as it is. Any other is base64, and the attribute `content-transfer-encoding` says so:
  the name and the value of RFC 2045, which a reader of another make knows or can look up.
- A header with a plain name and plain text is an attribute of its own, for others to read (eight at most).
- All else is one attribute, `redelivery`, a JSON object: `id`, `key`, `timestamp`, `body` ("null" or "empty", where the
  body stands for one), `headers`: in their order, each an attribute's name or a pair of name and value. Bytes that are
  no UTF-8 text are written `{"base64": ...}`.

This file must not call SQS.
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

#: The attribute that holds what has no place of its own.
PACKED: Final = "redelivery"
#: The attribute that says how the body is encoded.
TRANSFER: Final = "content-transfer-encoding"
#: Headers that are attributes of their own: ten, less the two above.
NATIVE_HEADERS: Final = 8
#: Kept free of a message's size for names, types and JSON's own characters.
RESERVE: Final = 4096

#: The column that names the group of a row without a key: a FIFO queue's letter goes back to its own.
GROUP: Final = "message_group"
#: In place of a group's name: every row without a key is one of its own, as no order is asked for.
EACH: Final = "*"

#: What a body is that stands for one.
_STAND_INS: Final = {"null": "null", "empty": "-"}
# What SQS takes is XML's characters.
_FORBIDDEN = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_NAME = re.compile(r"(?!(?i:aws\.|amazon\.))(?!\.)(?!.*\.\.)[A-Za-z0-9_.-]{1,256}(?<!\.)")
#: What a FIFO queue takes as group or de-duplication id.
_TOKEN = re.compile(r"[A-Za-z0-9!-/:-@\[-`{-~]{1,128}")


@dataclass(frozen=True, slots=True)
class Encoded:
    """A message as SQS carries it; `size` is what counts against SQS's limit."""

    body: str
    attributes: dict[str, dict[str, str]]
    size: int


def binary_limit(most: int) -> int:
    """How large a message may be for certain where SQS takes `most` bytes: base64 makes four bytes of three."""
    return max(0, most - RESERVE) // 4 * 3


def encode(message: Message, most: int) -> Encoded:
    """The message as SQS carries it.

    Raises:
        Permanent: it cannot be carried, or is larger than `most`.
    """
    return encode_row(message.value, message.key, message.headers, message.id, message.timestamp_ms, most)


def encode_row(
    value: bytes | None, key: bytes | None, headers: Headers | None, id_: str | None, timestamp: int | None, most: int
) -> Encoded:
    """`encode`, of a row's columns.

    Raises:
        Permanent
    """
    attributes: dict[str, dict[str, str]] = {}
    packed: dict[str, Any] = {}
    if value:
        text = _text(value)
        if text is None:
            if len(value) > binary_limit(most):
                raise _too_large(len(value), binary_limit(most), "bytes that are no text, which go as base64,")
            text = base64.b64encode(value).decode()
            attributes[TRANSFER] = {"DataType": "String", "StringValue": "base64"}
            size = len(text) + len(TRANSFER) + 12
        else:
            size = len(value)
    else:
        packed["body"] = "null" if value is None else "empty"
        text = _STAND_INS[packed["body"]]
        size = len(text)
    size += _pack(packed, attributes, key, headers, id_, timestamp)
    if size > most:
        raise _too_large(size, most, "bytes")
    return Encoded(text, attributes, size)


def fifo_fields(known_by: str | None, key: bytes | None, group: str | None) -> dict[str, str]:
    """What a FIFO queue asks for besides: the group from the key, the de-duplication id from the identity or id.

    What SQS does not take as such, or is too long, is replaced by its SHA-256. A row with neither is never a repeat.

    Args:
        known_by: the row's identity, or its id where it has none.
        key: the row's.
        group: of rows without a key; `EACH`: each is a group of its own.

    Raises:
        Permanent: neither a key nor a group.
    """
    if key is None and group is None:
        text = (
            "sqs: this row cannot be sent: a FIFO queue wants a message group, and the row has no key; "
            "add a column 'key', or set sqs.message_group"
        )
        raise Permanent(text, code="MissingParameter")
    unique = uuid.uuid4().hex if known_by is None else token(known_by)
    alone = key is None and group == EACH
    named = _token((group or "").encode() if key is None else key)
    return {"MessageGroupId": unique if alone else named, "MessageDeduplicationId": unique}


def token(known_by: str) -> str:
    """A de-duplication id of an identity or id."""
    return _token(known_by.encode("utf-8", "surrogatepass"))


def decode(raw: Mapping[str, Any]) -> tuple[Message, str | None]:
    """The message of one that SQS gave, ours or another's, and what of it could not be decoded.

    It must have been asked for with all message attributes. Never raises: its neighbours came in the same answer.
    """
    body = str(raw.get("Body", ""))
    try:
        return _decode(body, raw.get("MessageAttributes") or {})
    except Exception as error:  # noqa: BLE001 - somebody else wrote it; one message must not keep back the others
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
    stands_for = packed.get("body")
    if stands_for is not None:
        if body == _STAND_INS.get(str(stands_for)):
            value = None if stands_for == "null" else b""
        else:  # not written by us: the body is what there is
            fault = f"sqs: its attribute {PACKED!r} says of its body what that is not"
    elif marked:
        try:
            value = base64.b64decode("".join(body.split()), validate=True)  # RFC 2045 breaks its lines
        except (binascii.Error, ValueError) as error:
            fault = f"sqs: its body is said to be base64, and is not ({error})"
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
    """The text that these bytes are, if SQS takes it."""
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
    """Put all but the body into attributes; returns their bytes.

    Raises:
        Permanent: something is of a wrong type.
    """
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
        what = f"sqs: this row cannot be sent: its key, headers, id or timestamp are of a wrong type ({error})"
        raise Permanent(what, code="TYPE") from error
    return size


def _add_headers(headers: Headers, attributes: dict[str, dict[str, str]], packed: dict[str, Any]) -> int:
    """Put each header where it goes; returns the bytes of those that are attributes."""
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
    if listed != [headers[0][0]]:  # the order of one is known
        packed["headers"] = listed
    return size


def _in_order(listed: Any, natives: dict[str, bytes | None]) -> Headers:
    """The headers as they were sent; then those that somebody else added, by name."""
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
    """Our JSON, its bytes decoded.

    Raises:
        ValueError, TypeError: it is not as we write it.
    """
    found = json.loads(text)
    try:
        if "key" in found:
            found["key"] = _bytes(found["key"])
        if "headers" in found:
            found["headers"] = [
                each if isinstance(each, str) else (str(each[0]), _bytes(each[1])) for each in found["headers"]
            ]
        if not isinstance(found.get("timestamp"), int | None) or not isinstance(found.get("id"), str | None):
            raise TypeError("an id or a timestamp of another type")
    except (KeyError, IndexError, AttributeError) as error:
        raise ValueError(str(error)) from error
    return dict(found)


def _token(value: bytes) -> str:
    text = value.decode("ascii", "replace")
    return text if _TOKEN.fullmatch(text) else f"sha256-{hashlib.sha256(value).hexdigest()}"


def _too_large(size: int, most: int, what: str) -> Permanent:
    text = f"sqs: this row cannot be sent: it has {size} {what} and SQS takes {most}"
    return Permanent(text, code="InvalidParameterValue")
