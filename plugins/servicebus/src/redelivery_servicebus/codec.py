"""A message in Service Bus's form, and back.

- The body is one data section. A null body is an empty one, and is marked. The message id is the id, or the identity of
  a message that has one: duplicate detection recognises messages by nothing else.
- A header whose value is text is an application property, for others to read; one named `content-type` is also the
  native content type. The SDK accepts text only, and Service Bus each name once.
- Everything else is in one application property, `redelivery`, a JSON object: `key`, `timestamp`, `body` ("null"),
  `headers` in their order (each the name of a property, or a pair of name and value), `id` (false: the sender gave no
  id; a text: the id that the sender gave), `gone` (properties that are not headers any more), `attempt` (deliveries of
  earlier copies), `theirs` (another application's property of this name). Bytes that are not plain text are written
  `{"base64": ...}`.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from azure.servicebus import ServiceBusMessage

from redelivery.codes import Code
from redelivery.contract.message import Headers, Message
from redelivery.errors import Permanent
from redelivery.kit.packing import as_text, from_portable, hashed_id, pack_headers, portable, unpack_headers
from redelivery_servicebus.client.limits import HEADER_VALUE_BYTES, HEADERS_BYTES, ID_LENGTH, RESERVE, SCHEDULED
from redelivery_servicebus.client.native import (
    CONTENT_TYPE,
    Native,
    message_id_of,
    message_of,
    native_of,
    properties_of,
)
from redelivery_servicebus.client.private import unreadable
from redelivery_servicebus.client.typed import plain

#: The property that holds what has no place in Service Bus's own form.
PACKED: Final = "redelivery"
#: Properties that Service Bus itself writes into a dead letter.
REASON: Final = "DeadLetterReason"
DESCRIPTION: Final = "DeadLetterErrorDescription"
#: Bytes of one property, and of all properties of a message, at Service Bus.
PROPERTY_BYTES: Final = 32 << 10
PROPERTIES_BYTES: Final = 64 << 10
#: Characters of a dead letter's reason, and of its description.
TEXT: Final = 4_096

# Made once: `dumps` would make another for each row.
_ENCODER: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_OWN: Final = frozenset({PACKED, REASON, DESCRIPTION})
#: Characters of a header's name that is a property's: at most 255 bytes.
_NAME_LENGTH: Final = 63
#: Members of our JSON object whose type is checked.
_TYPES: Final[Mapping[str, Any]] = {"timestamp": int, "id": str | bool, "attempt": int, "gone": list, "theirs": str}
MEMBERS: Final = frozenset({*_TYPES, "key", "body", "headers"})


@dataclass(frozen=True, slots=True)
class Encoded:
    """A message in Service Bus's form.

    Attributes:
        body: the bytes of its data section; None: a null body of another producer.
        properties: application properties: texts, and values with their types (`client.typed`).
        message_id: a text, or with its type; None: another producer's, which had none.
        content_type: the field.
        due: when it becomes visible; None: at once.
        session: its session id, if its queue requires one.
        native: what else the message had that it was.
    """

    body: bytes | None
    properties: dict[str, Any]
    message_id: Any
    content_type: str | None
    due: datetime | None = None
    native: Native | None = None
    session: str | None = None


@dataclass(frozen=True, slots=True)
class Decoded:
    """A message of a queue.

    Attributes:
        message: the parts that could be decoded.
        fault: the parts that could not be decoded.
        attempt: deliveries of earlier copies of it.
    """

    message: Message
    fault: str | None
    attempt: int


def encode(message: Message, most: int | None, *, attempt: int = 0) -> Encoded:
    """Return a message in Service Bus's form.

    Args:
        message: the message.
        most: its maximum size in bytes; None if it is not sent, but set on an existing message.
        attempt: deliveries of earlier copies of it.

    Raises:
        Permanent: Service Bus cannot carry it, or it is larger than `most`.
    """
    row = (message.value, message.key, message.headers, message.id, message.timestamp_ms)
    return encode_row(*row, most, identity=message.identity, attempt=attempt, native=message.native)


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
    native: object = None,
) -> Encoded:
    """`encode`, of a row's columns.

    Raises:
        Permanent
    """
    own = native if isinstance(native, Native) else None
    try:
        properties, packed = _pack(value, key, headers or (), timestamp, own)
        content_type = _content_type(properties, own)
        known_by: Any = id_ if identity is None or most is None else hashed_id(identity, _is_message_id)
        if own is not None and known_by == id_ == _id_text(own.message_id):
            known_by = own.message_id
        elif not id_ or known_by != id_:
            packed["id"] = False if id_ is None else id_
            known_by = known_by or uuid.uuid4().hex
        if attempt:
            packed["attempt"] = attempt
        if packed:
            properties[PACKED] = _json(packed | _theirs(own))
        elif own is not None and own.damaged is not None:
            properties[PACKED] = own.damaged
        if most is not None:
            headers_bytes = sum(len(name.encode()) + len(value or b"") for name, value in headers or ())
            _check_sizes(len(value or b"") + len(key or b"") + headers_bytes, most, id_, stored=own is not None)
            _check_headers(headers_bytes, headers or (), properties, stored=own is not None)
        body = (value or b"") if own is None else value
        return Encoded(body, properties, known_by, content_type, native=own)
    except (TypeError, ValueError, AttributeError) as error:
        text = f"its key, headers, id or timestamp cannot be written ({error})"
        raise _refused(text, Code.INVALID_MESSAGE) from error


def scheduled(encoded: Encoded, due_ms: int) -> Encoded:
    """Return the same message, visible from `due_ms` on, milliseconds since the epoch. Raises Permanent."""
    try:
        return replace(encoded, due=_EPOCH + timedelta(milliseconds=due_ms))
    except (OverflowError, TypeError) as error:
        text = f"its {SCHEDULED}, {due_ms!r}, is not a time in milliseconds since the epoch"
        raise _refused(text, Code.INVALID_MESSAGE) from error


def in_session(encoded: Encoded, key: bytes | None, default: str | None = None) -> Encoded:
    """Return the same message in the session that its key names.

    Without a key it is in the one that it had before, or else in the default one.

    A key that is not a session id (text of 1 to 128 characters) stands for one by its hash.

    Raises:
        Permanent: it has none of these.
    """
    if key is None:
        had = None if encoded.native is None else encoded.native.fields.get("group_id")
        if had is not None:
            return encoded
        if default is None:
            why = "its queue requires sessions, and it has no key to be its session id; see servicebus.session_id"
            raise _refused(why, Code.INVALID_MESSAGE)
        return replace(encoded, session=default)
    text = as_text(key)
    return replace(encoded, session=text if text and len(text) <= ID_LENGTH else hashed_id(key, lambda _: False))


def outgoing(encoded: Encoded) -> ServiceBusMessage:
    """Return the message as the SDK sends it. Raises Permanent."""
    if encoded.native is not None:
        named = (encoded.message_id, encoded.content_type, encoded.properties)
        try:
            made = message_of(encoded.native, encoded.body, *named)
        except (ValueError, TypeError, LookupError) as error:
            raise _refused(str(error), Code.INVALID_MESSAGE) from error
        if encoded.due is not None:
            made.scheduled_enqueue_time_utc = encoded.due
        if encoded.session is not None:
            made.partition_key = None  # it must be the session's, which is enough
            made.session_id = encoded.session
        return made
    properties: dict[str | bytes, Any] = dict(encoded.properties.items())
    return ServiceBusMessage(
        encoded.body,
        message_id=encoded.message_id,
        content_type=encoded.content_type,
        application_properties=properties or None,
        scheduled_enqueue_time_utc=encoded.due,
        session_id=encoded.session,
    )


def decode(raw: Any) -> Decoded:
    """Decode a message that the SDK received or peeked, ours or another producer's.

    It never raises, as other messages come with it.
    """
    if (found := unreadable(raw)) is not None:
        why, payload = found
        return Decoded(Message(value=payload), f"servicebus: the client cannot decode it ({why:.300})", 0)
    try:
        return _decode(raw)
    except Exception as error:  # noqa: BLE001 - whatever another producer wrote, it is this message's fault alone
        return Decoded(Message(value=b""), f"servicebus: it cannot be read ({error!r:.300})", 0)


def _decode(raw: Any) -> Decoded:
    properties = properties_of(raw)
    value, fault = _body(raw.raw_amqp_message)
    packed: dict[str, Any] = {}
    damaged = None
    try:
        packed = _unpacked(properties[PACKED]) if PACKED in properties else {}
        damaged = packed.get("theirs") if packed else properties.get(PACKED)
        key, headers = from_portable(packed.get("key")), unpack_headers(packed, _attributes(raw, properties, packed))
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        fault = f"servicebus: its property {PACKED!r} is damaged ({error})"
        packed, damaged = {}, properties.get(PACKED)
        key, headers = None, unpack_headers({}, _attributes(raw, properties, {}))
    id_ = packed.get("id", True)
    hidden = _OWN.union(packed.get("gone", ()))
    native = native_of(raw, hidden, value, damaged=damaged, ordered="headers" in packed)
    message = Message(
        value=None if packed.get("body") == "null" and not value else value,
        key=key,
        headers=headers,
        id=_id_text(native.message_id) if id_ is True else (id_ if isinstance(id_, str) else None),
        timestamp_ms=packed.get("timestamp"),
        native=native,
    )
    return Decoded(message, fault, packed.get("attempt", 0))


def changed_properties(letter: Encoded, raw: Any) -> dict[str, str]:
    """Return the properties that turn a received message with the same body into this letter.

    Properties of a message in its queue can be set, and not removed: ours lists those that are not the letter's.
    """
    found = properties_of(raw)
    wanted = dict(letter.properties)
    text = wanted.pop(PACKED, "{}")
    is_others = letter.native is not None and text is letter.native.damaged  # of our name: it is there already
    packed = {} if is_others else json.loads(text)
    its, stored = _id_text(letter.message_id), message_id(raw)
    if packed.get("id", True) is True and its != stored and (its is not None or letter.native is None):
        packed["id"] = its
    gone = [name for name in found if name not in wanted and name not in _OWN]
    if gone:
        packed["gone"] = gone
    if packed and is_others:
        packed |= _theirs(letter.native)
    if packed:
        wanted[PACKED] = _json(packed)
    return {
        name: value
        for name, value in wanted.items()
        if name not in found or _as_bytes(plain(found[name])) != _as_bytes(plain(value))
    }


def letter_in_place(letter: Encoded, raw: Any, reason: str, description: str) -> tuple[str, str, dict[str, str]]:
    """Return reason, description and properties of a received message that becomes this letter in its place.

    Parts that do not fit beside its own properties are left out, because the message cannot be stored elsewhere: first
    the letter's properties, then the description.
    """
    found = {name: str(plain(value)) for name, value in properties_of(raw).items()}
    reason, description = reason[:TEXT], description[:TEXT]
    for text, added in ((description, changed_properties(letter, raw)), (description, {})):
        if _why_too_large({**found, **added, REASON: reason, DESCRIPTION: text}) is None:
            return reason, text, added
    return reason, "", {}


def property_text(raw: Any, name: str) -> str:
    """Return a property as text, whatever another producer made it; empty if it is missing."""
    value = plain(properties_of(raw).get(name))
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str("" if value is None else value)


def message_id(raw: Any) -> str | None:
    """Return a received message's id as text: another producer's may be a number, a UUID or bytes."""
    return _id_text(message_id_of(raw))


def _id_text(value: Any) -> str | None:
    found = plain(value)
    if found is None or isinstance(found, str):
        return found
    if isinstance(found, bytes):
        text = as_text(found)
        return found.hex() if text is None else text
    return str(found)


def _json(packed: Mapping[str, Any]) -> str:
    return _ENCODER.encode(packed)


def _json_text(value: bytes) -> str | None:
    """Return the text of bytes, if JSON can hold it without escapes."""
    text = as_text(value)
    return text if text is not None and text.isprintable() and '"' not in text and "\\" not in text else None


def _as_property(name: str, value: bytes) -> str | None:
    """Return a header's value as an application property; None if it must be packed."""
    return as_text(value) if name and name not in _OWN and len(name) <= _NAME_LENGTH else None


def _is_message_id(text: str) -> bool:
    return text.isprintable() and len(text.encode("utf-8", "surrogatepass")) <= ID_LENGTH


def _pack(
    value: bytes | None, key: bytes | None, headers: Headers, timestamp: int | None, native: Native | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the headers that are properties, and our JSON object."""
    if native is None:
        properties, packed = pack_headers(headers, _as_property, _json_text)
    else:
        properties, packed = _pack_stored(headers, native)
    if value is None and (native is None or native.body is None or native.value is not None):
        packed["body"] = "null"
    if key is not None:
        packed["key"] = portable(key, _json_text)
    if timestamp is not None:
        packed["timestamp"] = int(timestamp)
    return properties, packed


def _pack_stored(headers: Headers, native: Native) -> tuple[dict[str, Any], dict[str, Any]]:
    """`pack_headers`, of a message that was stored before: unchanged properties keep their types.

    Another producer's properties have no order, so none is written.
    """

    def as_property(name: str, value: bytes) -> Any:
        its = native.properties.get(name)
        if its is not None and _as_bytes(plain(its)) == value:
            return its
        if native.ordered:
            return _as_property(name, value)
        return as_text(value) if name and name not in _OWN else None

    nulls = {name: None for name, value in headers if value is None and native.properties.get(name, 0) is None}
    rest = tuple(each for each in headers if each[0] not in nulls or each[1] is not None)
    properties, packed = pack_headers(rest, as_property, _json_text)
    if not native.ordered and all(isinstance(each, str) for each in packed.get("headers", ())):
        packed.pop("headers", None)
    return {**properties, **nulls}, packed


def _content_type(properties: dict[str, Any], native: Native | None) -> str | None:
    """Return the field; the property is taken out where another producer has the field alone."""
    given: str | None = properties.get(CONTENT_TYPE)
    field = None if native is None else native.fields.get("content_type")
    if native is not None and native.content == "field" and given == field:
        del properties[CONTENT_TYPE]
    return field if native is not None and native.content == "apart" else given


def _check_headers(size: int, headers: Headers, properties: Mapping[str, Any], *, stored: bool) -> None:
    """Raises Permanent. What Service Bus has stored before fits as it is."""
    if size > HEADERS_BYTES and not stored:
        raise _refused(f"its headers have {size} bytes, and {HEADERS_BYTES} are sure to fit", Code.TOO_LARGE)
    if not stored and any(len(value or b"") > HEADER_VALUE_BYTES for _, value in headers):
        raise _refused(f"a header has more than {HEADER_VALUE_BYTES} bytes", Code.TOO_LARGE)
    misfit = _why_too_large(properties)
    if misfit is not None:
        raise _refused(f"{misfit}; put large keys and headers into the value", Code.TOO_LARGE)


def _check_sizes(size: int, most: int, id_: str | None, *, stored: bool) -> None:
    reserve = 0 if stored else RESERVE
    if size + reserve > most:
        text = f"it has {size} bytes, and at most {most - reserve} are sure to fit (servicebus.max_message_bytes)"
        raise _refused(text, Code.TOO_LARGE)
    if id_ is not None and len(id_.encode()) > ID_LENGTH:
        raise _refused(f"its id has {len(id_)} characters, and Service Bus accepts {ID_LENGTH} bytes", Code.TOO_LARGE)


def _why_too_large(properties: Mapping[str, Any]) -> str | None:
    """Return why properties do not fit into a message."""
    sizes = [len(name.encode()) + len(str(plain(value)).encode()) + 8 for name, value in properties.items()]
    if max(sizes, default=0) <= PROPERTY_BYTES and sum(sizes) <= PROPERTIES_BYTES:
        return None
    return f"its properties have {sum(sizes)} bytes; {PROPERTY_BYTES} fit for one and {PROPERTIES_BYTES} for all"


def _theirs(native: Native | None) -> dict[str, str]:
    """Return the member that holds another application's property of our name."""
    return {"theirs": native.damaged} if native is not None and isinstance(native.damaged, str) else {}


def _unpacked(text: Any) -> dict[str, Any]:
    """Read our JSON object; empty if it is another application's.

    Raises:
        ValueError, TypeError, LookupError, AttributeError, RecursionError: it is damaged, or of a later version.
    """
    found = json.loads(text)
    if not isinstance(found, dict):
        raise TypeError("it is not a JSON object")
    if found.keys().isdisjoint(MEMBERS):
        return {}
    if unknown := found.keys() - MEMBERS:
        raise ValueError(f"unknown members: {', '.join(sorted(unknown))}")
    for name, kind in _TYPES.items():
        if name in found and not isinstance(found[name], kind):
            raise TypeError(f"{name} has another type")
    if not all(isinstance(name, str) for name in found.get("gone", ())):
        raise TypeError("gone is a list of names")
    return found


def _attributes(raw: Any, properties: Mapping[str, Any], packed: Mapping[str, Any]) -> dict[str, bytes | None]:
    """Return the headers that are properties, and the content type of another producer."""
    hidden = _OWN.union(packed.get("gone", ()))
    found = {name: _as_bytes(plain(value)) for name, value in properties.items() if name not in hidden}
    if raw.content_type is not None and CONTENT_TYPE not in hidden:
        found.setdefault(CONTENT_TYPE, _as_bytes(raw.content_type))
    return found


def _as_bytes(value: Any) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    return (str(value).lower() if isinstance(value, bool) else str(value)).encode("utf-8", "surrogatepass")


def _body(annotated: Any) -> tuple[bytes | None, str | None]:
    """Return the body's bytes, and why it has none."""
    body = annotated.body
    match annotated.body_type.value:
        case "data":
            return b"".join(body), None
        case "value" if body is None:
            return None, None
        case "value" if isinstance(body, bytes | str):
            return (body if isinstance(body, bytes) else body.encode()), None
        case other:
            return b"", f"servicebus: its body is an AMQP {other} section of a type that is neither text nor bytes"


def _refused(why: str, code: Code) -> Permanent:
    return Permanent(f"servicebus: this row cannot be sent: {why}", code=code)
