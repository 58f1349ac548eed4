"""A message as Service Bus carries it, and back.

- The body is one data section; the message id is the id, or the identity of a message that has one: duplicate detection
  knows no other. A null body is an empty one, and is marked.
- A header whose value is text is an application property, for others to read; one named `content-type` is the native
  content type besides. The SDK takes text only, Service Bus a name once.
- All else is one application property, `redelivery`, a JSON object: `key`, `timestamp`, `body` ("null"), `headers` in
  their order (each a property's name, or a pair of name and value), `id` (false: the message id is none of the
  sender's; a text: it is that one), `gone` (properties that are none of its headers any more), `attempt` (deliveries of
  earlier copies). Bytes that are no plain text are written `{"base64": ...}`.

This file must not call Service Bus.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from redelivery.contract.message import Headers, Message
from redelivery.errors import Permanent

#: The property that holds what has no place of its own.
PACKED: Final = "redelivery"
#: What Service Bus itself writes into a dead letter.
REASON: Final = "DeadLetterReason"
DESCRIPTION: Final = "DeadLetterErrorDescription"
CONTENT_TYPE: Final = "content-type"
#: The column that says when a row's message is to be there, in milliseconds since the epoch.
SCHEDULED: Final = "scheduled_enqueue_time_ms"
#: Bytes of one property, and of all properties of a message, at Service Bus.
PROPERTY_BYTES: Final = 32 << 10
PROPERTIES_BYTES: Final = 64 << 10
#: Characters of a dead letter's reason, and of its description.
TEXT: Final = 4_096
#: The longest id, in characters.
ID_LENGTH: Final = 128
#: Headers of a message, and one header's value: even as base64 they fit into one property.
HEADERS_BYTES: Final = 23_000
HEADER_VALUE_BYTES: Final = 22_500
#: Kept free of a message's size for what AMQP and our JSON add.
RESERVE: Final = 16 << 10

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_OWN: Final = frozenset({PACKED, REASON, DESCRIPTION})
_NAME_BYTES: Final = 255


@dataclass(frozen=True, slots=True)
class Encoded:
    """A message as Service Bus carries it; `due`: when it becomes one, None: at once."""

    body: bytes
    properties: dict[str, str]
    message_id: str
    content_type: str | None
    due: datetime | None = None


@dataclass(frozen=True, slots=True)
class Decoded:
    """A message of a queue.

    Attributes:
        message: as far as it could be decoded.
        fault: what of it could not.
        attempt: deliveries of earlier copies of it.
    """

    message: Message
    fault: str | None
    attempt: int


def encode(message: Message, most: int | None, *, attempt: int = 0) -> Encoded:
    """The message as Service Bus carries it.

    Args:
        message: what is carried.
        most: bytes that it may have; None where it does not travel, being set where its message lies.
        attempt: deliveries of earlier copies of it.

    Raises:
        Permanent: it cannot be carried, or is larger than `most`.
    """
    row = (message.value, message.key, message.headers, message.id, message.timestamp_ms)
    return encode_row(*row, most, identity=message.identity, attempt=attempt)


def encode_row(
    value: bytes | None,
    key: bytes | None,
    headers: Headers | None,
    id_: str | None,
    timestamp: int | None,
    most: int | None,
    *,
    identity: str | None = None,
    attempt: int = 0,
) -> Encoded:
    """`encode`, of a row's columns.

    Raises:
        Permanent
    """
    packed: dict[str, Any] = {}
    properties: dict[str, str] = {}
    content_type = None
    try:
        if value is None:
            packed["body"] = "null"
        size = len(value or b"") + len(key or b"")
        if key is not None:
            packed["key"] = _portable(key)
        if timestamp is not None:
            packed["timestamp"] = int(timestamp)
        if headers:
            size += _add_headers(headers, properties, packed)
            content_type = properties.get(CONTENT_TYPE)
        known_by = id_ if identity is None or most is None else _message_id(identity)
        if not id_ or known_by != id_:
            packed["id"] = False if id_ is None else id_
        if attempt:
            packed["attempt"] = attempt
        if packed:
            properties[PACKED] = json.dumps(packed, separators=(",", ":"), ensure_ascii=False)
        if most is not None:
            _check_headers(headers or ())
            _check_sizes(size, most, id_)
            _check(properties)
        return Encoded(value or b"", properties, known_by or uuid.uuid4().hex, content_type)
    except (TypeError, ValueError, AttributeError) as error:
        raise _refused(f"its key, headers, id or timestamp cannot be written ({error})", "TYPE") from error


def scheduled(encoded: Encoded, due_ms: int) -> Encoded:
    """The same, to be there from `due_ms` on, milliseconds since the epoch. Raises Permanent."""
    try:
        return replace(encoded, due=_EPOCH + timedelta(milliseconds=due_ms))
    except (OverflowError, TypeError) as error:
        text = f"its {SCHEDULED}, {due_ms!r}, is no time in milliseconds since the epoch"
        raise _refused(text, "TYPE") from error


def decode(raw: Any) -> Decoded:
    """A message that the SDK received or peeked, ours or another's. Never raises: its neighbours are to be had."""
    try:
        return _decode(raw)
    except Exception as error:  # noqa: BLE001 - whatever another producer wrote, it is this message's fault alone
        return Decoded(Message(value=b""), f"servicebus: it cannot be read ({error!r:.300})", 0)


def _decode(raw: Any) -> Decoded:
    annotated = raw.raw_amqp_message
    properties = texts(annotated.application_properties)
    fault = None
    packed: dict[str, Any] = {}
    if PACKED in properties:
        try:
            packed = _unpack(properties[PACKED])
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            fault = f"servicebus: its property {PACKED!r} is damaged ({error})"
    hidden = _OWN.union(packed.get("gone", ()))
    found = {name: value for name, value in properties.items() if name not in hidden}
    value, unread = _body(annotated)
    content_type = raw.content_type
    if content_type is not None and PACKED not in properties and CONTENT_TYPE not in found:
        found[CONTENT_TYPE] = content_type
    id_ = packed.get("id", True)
    message = Message(
        value=None if packed.get("body") == "null" and not value else value,
        key=packed.get("key"),
        headers=_in_order(packed.get("headers", ()), found),
        id=message_id(raw) if id_ is True else (id_ if isinstance(id_, str) else None),
        timestamp_ms=packed.get("timestamp"),
    )
    return Decoded(message, fault or unread, packed.get("attempt", 0))


def changed(letter: Encoded, raw: Any) -> dict[str, str]:
    """The properties that make a received message into this letter, where its body stays as it is.

    A property can be set where it lies and not removed: what is none of the letter's any more is listed in ours.
    """
    there = texts(raw.raw_amqp_message.application_properties)
    wanted = dict(letter.properties)
    packed = json.loads(wanted.pop(PACKED, "{}"))
    if packed.get("id", True) is True and letter.message_id != message_id(raw):
        packed["id"] = letter.message_id
    gone = [name for name in there if name not in wanted and name not in _OWN]
    if gone:
        packed["gone"] = gone
    wanted[PACKED] = json.dumps(packed, separators=(",", ":"), ensure_ascii=False)
    return {name: value for name, value in wanted.items() if there.get(name) != value}


def marks(letter: Encoded, raw: Any, reason: str, description: str) -> tuple[str, str, dict[str, str]]:
    """Reason, description and properties of a received message that becomes this letter where it lies.

    What does not fit beside its own properties is left out, as the message can lie nowhere else: the letter's
    properties first, then the description.
    """
    there = {name: str(value) for name, value in texts(raw.raw_amqp_message.application_properties).items()}
    reason, description = reason[:TEXT], description[:TEXT]
    for said, set_there in ((description, changed(letter, raw)), (description, {})):
        if _misfit({**there, **set_there, REASON: reason, DESCRIPTION: said}) is None:
            return reason, said, set_there
    return reason, "", {}


def message_id(raw: Any) -> str | None:
    """A received message's id as text: another producer's may be a number, a UUID or bytes."""
    found = raw.message_id
    if found is None or isinstance(found, str):
        return found
    return found.hex() if isinstance(found, bytes) else str(found)


def texts(properties: Mapping[Any, Any] | None) -> dict[str, Any]:
    """Application properties with names as text, values as text where they are UTF-8 text."""
    return {str(_text(name)): _text(value) for name, value in (properties or {}).items()}


def _message_id(identity: str) -> str:
    """An identity as a message id, which has a bound."""
    written = identity.encode("utf-8", "surrogatepass")
    fits = len(written) <= ID_LENGTH and identity.isprintable()
    return identity if fits else f"sha256-{hashlib.sha256(written).hexdigest()}"


def _text(value: Any) -> Any:
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode()  # the SDK gives text back as its bytes
    except UnicodeDecodeError:
        return value


def _add_headers(headers: Headers, properties: dict[str, str], packed: dict[str, Any]) -> int:
    """Put each header where it goes; returns their bytes."""
    listed: list[Any] = []
    size = 0
    names: set[str] = set()
    for name, value in headers:
        size += len(name.encode()) + len(value or b"")
        text = None
        if value is not None and name and name not in names and name not in _OWN and len(name) <= _NAME_BYTES // 4:
            text = _plain(value)
        names.add(name)
        if text is None:
            listed.append([name, None if value is None else _portable(value)])
        else:
            properties[name] = text
            listed.append(name)
    if listed != [headers[0][0]]:  # the order of one is known
        packed["headers"] = listed
    return size


def _check_headers(headers: Headers) -> None:
    size = sum(len(name.encode()) + len(value or b"") for name, value in headers)
    if size > HEADERS_BYTES:
        raise _refused(f"its headers have {size} bytes, and {HEADERS_BYTES} are sure to fit", "HEADERS")
    if any(len(value or b"") > HEADER_VALUE_BYTES for _, value in headers):
        raise _refused(f"a header has more than {HEADER_VALUE_BYTES} bytes", "HEADERS")


def _check_sizes(size: int, most: int, id_: str | None) -> None:
    if size + RESERVE > most:
        text = f"it has {size} bytes, and at most {most - RESERVE} are sure to fit (servicebus.max_message_bytes)"
        raise _refused(text, "amqp:link:message-size-exceeded")
    if id_ is not None and len(id_.encode()) > ID_LENGTH:
        raise _refused(f"its id has {len(id_)} characters, and Service Bus takes {ID_LENGTH} bytes", "ID")


def _check(properties: Mapping[str, str]) -> None:
    text = _misfit(properties)
    if text is not None:
        raise _refused(f"{text}; large keys and headers belong into the value", "PROPERTIES")


def _misfit(properties: Mapping[str, str]) -> str | None:
    """What is too large of them."""
    sizes = [len(name.encode()) + len(value.encode()) + 8 for name, value in properties.items()]
    if max(sizes, default=0) <= PROPERTY_BYTES and sum(sizes) <= PROPERTIES_BYTES:
        return None
    return f"its properties have {sum(sizes)} bytes: {PROPERTY_BYTES} each, {PROPERTIES_BYTES} together are taken"


def _in_order(listed: Any, natives: dict[str, Any]) -> Headers:
    """The headers as they were sent; then those that somebody else added, by name."""
    found: list[tuple[str, bytes | None]] = []
    for each in listed:
        if isinstance(each, str):
            if each in natives:
                found.append((each, _native(natives.pop(each))))
        else:
            found.append((each[0], each[1]))
    return (*found, *((name, _native(value)) for name, value in sorted(natives.items())))


def _native(value: Any) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    return (str(value).lower() if isinstance(value, bool) else str(value)).encode("utf-8", "surrogatepass")


def _body(annotated: Any) -> tuple[bytes | None, str | None]:
    """The body's bytes, and what is wrong where it has none."""
    body = annotated.body
    match annotated.body_type.value:
        case "data":
            return b"".join(body), None
        case "value" if body is None:
            return None, None
        case "value" if isinstance(body, bytes | str):
            return (body if isinstance(body, bytes) else body.encode()), None
        case other:
            return b"", f"servicebus: its body is an AMQP {other} section of a type that is no text and no bytes"


def _plain(value: bytes) -> str | None:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


def _portable(value: bytes) -> Any:
    text = _plain(value)
    if text is not None and text.isprintable() and '"' not in text and "\\" not in text:
        return text
    return {"base64": base64.b64encode(value).decode()}


def _bytes(value: Any) -> bytes | None:
    if isinstance(value, dict):
        try:
            return base64.b64decode(value["base64"], validate=True)
        except binascii.Error as error:
            raise ValueError(str(error)) from error
    return None if value is None else str(value).encode("utf-8", "surrogatepass")


def _unpack(text: Any) -> dict[str, Any]:
    """Our JSON, its bytes decoded. Raises ValueError, TypeError, LookupError, AttributeError, RecursionError."""
    found = json.loads(text)
    if not isinstance(found, dict):
        raise TypeError("it is no JSON object")
    if "key" in found:
        found["key"] = _bytes(found["key"])
    if "headers" in found:
        found["headers"] = [
            each if isinstance(each, str) else (str(each[0]), _bytes(each[1])) for each in found["headers"]
        ]
    kinds: dict[str, Any] = {"timestamp": int, "id": str | bool, "attempt": int, "gone": list}
    for name, kind in kinds.items():
        if not isinstance(found.get(name, kind() if isinstance(kind, type) else True), kind):
            raise TypeError(f"{name} is of another type")
    if not all(isinstance(name, str) for name in found.get("gone", ())):
        raise TypeError("gone is a list of names")
    return found


def _refused(why: str, code: str) -> Permanent:
    return Permanent(f"servicebus: this row cannot be sent: {why}", native_code=code)
