"""Encodes a message for SQS and decodes it: body, message attributes, and a FIFO queue's group and de-duplication id.

SQS takes non-empty text and ten attributes. Therefore:

- A body that SQS accepts is sent unchanged. Any other body is base64, and the attribute `content-transfer-encoding`
  says so: the name and the value of RFC 2045, which other readers know or can look up.
- A header with a plain name and plain text is its own attribute, for others to read (eight at most).
- Everything else is in one attribute, `redelivery` (`redelivery-2` beside another application's of that name), a JSON
  object: `id`, `key`, `timestamp`, `body` ("null" or "empty", if the body is a placeholder), `headers`: in their order,
  each an attribute's name or a pair of name and value. Bytes that are not UTF-8 are written as `{"base64": ...}`.

What another application's message holds beyond a `Message` is its `native` part: the types of its attributes, its body
where ours would be written in another form, its trace header, its group.
"""

from __future__ import annotations

import base64
import json
import logging
import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from redelivery.contract.message import Headers, Message
from redelivery.errors import Permanent
from redelivery.kit.errors import Code
from redelivery.kit.letters import MARKERS, strip
from redelivery.kit.packing import from_portable, hashed_id, pack_headers, portable, unpack_headers
from redelivery_sqs.client.limits import binary_limit

#: The attribute for the parts of a message that SQS has no place for, and the one where another application's attribute
#: has its name.
PACKED: Final = "redelivery"
PACKED_BESIDE: Final = "redelivery-2"
#: The attribute that names the body's encoding.
TRANSFER: Final = "content-transfer-encoding"
#: Attributes of a message at most, and headers that are attributes: ten less the two above.
MAX_ATTRIBUTES: Final = 10
NATIVE_HEADERS: Final = 8
#: The system attribute of AWS X-Ray, the one that SQS takes from a sender.
TRACE: Final = "AWSTraceHeader"

#: In place of a group's name: each row without a key has its own group, because no order is asked for.
EACH: Final = "*"

#: The bodies that stand for a null and for an empty value.
_PLACEHOLDERS: Final = {"null": "null", "empty": "-"}
#: The members of our attribute.
_MEMBERS: Final = frozenset({"id", "key", "timestamp", "body", "headers"})
#: What reading it raises where it is damaged.
_DAMAGED: Final = (ValueError, TypeError, LookupError, AttributeError, RecursionError)
#: Bytes of the longest header value whose text is kept.
_REPEATED: Final = 256
# Made once: `dumps` would make another for each row.
_json: Final = json.JSONEncoder(separators=(",", ":")).encode
# SQS accepts the characters of XML.
_FORBIDDEN = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_NAME = re.compile(r"(?!(?i:aws\.|amazon\.))(?!\.)(?!.*\.\.)[A-Za-z0-9_.-]{1,256}(?<!\.)")
#: A valid message group id or de-duplication id.
_FIFO_ID = re.compile(r"[A-Za-z0-9!-/:-@\[-`{-~]{1,128}")


class Native(NamedTuple):
    """The parts of an SQS message beyond a `Message`.

    Attributes:
        attributes: its message attributes, as boto3 gives them.
        body: where encoding its value would give another one.
        trace: its trace header.
        group: its message group id.
        named: attributes of our names that we did not write.
    """

    attributes: Mapping[str, Any]
    body: str | None
    trace: str | None
    group: str | None
    named: Mapping[str, Any] = MappingProxyType({})

    @property
    def packed(self) -> str:
        """The name of our attribute beside its own; if it has both, ours takes the place of one."""
        return PACKED_BESIDE if PACKED in self.named and PACKED_BESIDE not in self.named else PACKED

    @property
    def nbytes(self) -> int:
        """About its size: its attributes, and a body in another form, are kept a second time."""
        values = (each.get("StringValue") or each.get("BinaryValue") or "" for each in self.attributes.values())
        return 100 * len(self.attributes) + sum(map(len, values)) + len(self.body or "")


log = logging.getLogger("redelivery.sqs")


@dataclass(frozen=True, slots=True)
class Encoded:
    """An encoded message.

    Attributes:
        body, attributes, system: as boto3 takes them.
        size: counts against SQS's limit.
        bare: its application has set ten attributes, so the headers that redelivery added are left out.
    """

    body: str
    attributes: dict[str, Mapping[str, Any]]
    size: int
    system: Mapping[str, Any] = field(default_factory=dict)
    bare: bool = False

    @property
    def entry(self) -> dict[str, Any]:
        """The entry of a request, without `Id`."""
        entry: dict[str, Any] = {"MessageBody": self.body}
        if self.attributes:
            entry["MessageAttributes"] = self.attributes
        if self.system:
            entry["MessageSystemAttributes"] = self.system
        return entry


def encode(message: Message, max_bytes: int) -> Encoded:
    """Encode a message.

    Raises:
        Permanent: SQS cannot carry it, or it is larger than `max_bytes`.
    """
    return encode_row(
        message.value, message.key, message.headers, message.id, message.timestamp_ms, max_bytes, message.native
    )


def encode_row(
    value: bytes | None,
    key: bytes | None,
    headers: Headers | None,
    id_: str | None,
    timestamp: int | None,
    max_bytes: int,
    native: object = None,
) -> Encoded:
    """Encode the columns of a row, as `encode` does. Raises Permanent."""
    known = native if isinstance(native, Native) else None
    packed: dict[str, Any] = {}
    try:
        if id_ is not None:
            packed["id"] = id_
        if key is not None:
            packed["key"] = portable(key)
        if timestamp is not None:
            packed["timestamp"] = int(timestamp)
        if known is not None:
            return _as_it_was(value, headers or (), packed, max_bytes, known)
        return _encoded(value, headers or (), packed, max_bytes)
    except (TypeError, ValueError, AttributeError) as error:
        text = f"sqs: this row cannot be sent: its key, headers, id or timestamp have a wrong type ({error})"
        raise Permanent(text, code=Code.INVALID_MESSAGE) from error


def _as_it_was(
    value: bytes | None, headers: Headers, packed: dict[str, Any], max_bytes: int, native: Native
) -> Encoded:
    """Encode a message that was read from SQS: what has not changed since is written as it was.

    Where its own attributes and ours are more than ten, ours are left out: the headers that redelivery added. Only if
    that does not suffice (headers were added to it, or its body was changed) an attribute goes into ours.
    """
    kept = _unchanged(headers, native)
    found = _encoded(value, headers, packed, max_bytes, native, kept, MAX_ATTRIBUTES)
    if len(found.attributes) > MAX_ATTRIBUTES and native.packed not in native.named:
        found = _encoded(value, headers, packed, max_bytes, native, kept)
    if len(found.attributes) > MAX_ATTRIBUTES:
        bare = tuple(each for each in strip(Message(value=None, headers=headers)).headers if each[0] not in MARKERS)
        found = replace(
            _encoded(value, bare, packed, max_bytes, native, kept, MAX_ATTRIBUTES), bare=len(bare) < len(headers)
        )
    if len(found.attributes) > MAX_ATTRIBUTES:
        kept = dict(list(kept.items())[:NATIVE_HEADERS])
        found = _encoded(value, headers, packed, max_bytes, native, kept)
    return found


def _unchanged(headers: Headers, native: Native) -> dict[str, Mapping[str, Any]]:
    """Return, by name, the attributes that the message had and of which the last header holds the same bytes."""
    kept: dict[str, Mapping[str, Any]] = {}
    for name, value in dict(headers).items():
        attribute = None if name == PACKED or name in native.named else native.attributes.get(name)
        if attribute is not None and value is not None and value == _native_value(attribute):
            kept[name] = attribute
    return kept


def _encoded(
    value: bytes | None,
    headers: Headers,
    more: Mapping[str, Any],
    max_bytes: int,
    native: Native | None = None,
    kept: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    most: int = NATIVE_HEADERS,
) -> Encoded:
    """Encode a message.

    Args:
        value: its body.
        headers: its headers.
        more: goes into the attribute of ours.
        max_bytes: of the message.
        native: its native part.
        kept: attributes that are written as they were, by the names of their headers.
        most: headers that become attributes, besides those that are kept.
    """
    as_it_was = native is not None and native.body is not None and _is_said_by(native.body, value)
    if TRANSFER in kept and not as_it_was and value and _text(value) is None:  # that attribute says how it is encoded
        kept = {name: attribute for name, attribute in kept.items() if name != TRANSFER}
    texts, packed = pack_headers(headers, _native(kept, most)) if headers else ({}, {})
    if native is not None and packed and _keeps_order(headers, packed):
        packed = {}
    packed |= more
    if native is not None and native.body is not None and as_it_was:
        body = native.body
        texts[TRANSFER] = "base64"
    else:
        body = _body(value, texts, packed, max_bytes)
    if native is not None and native.named:
        texts, kept = {**texts, **dict.fromkeys(native.named, "")}, {**kept, **native.named}
    if packed:
        name = PACKED if native is None else native.packed
        texts[name], kept = _json(packed), {each: kept[each] for each in kept if each != name}
    size = _size(body)
    attributes: dict[str, Mapping[str, Any]] = {}
    for name, text in texts.items():
        attribute = kept.get(name)
        if attribute is None:
            attributes[name] = {"DataType": "String", "StringValue": text}
            size += _size(name) + len("String") + _size(text)
        else:
            attributes[name] = attribute
            size += _size(name) + _size(attribute["DataType"]) + len(_native_value(attribute) or b"")
    if size > max_bytes:
        raise _too_large(size, max_bytes, "bytes")
    if native is None or native.trace is None:
        return Encoded(body, attributes, size)
    return Encoded(body, attributes, size, {TRACE: {"DataType": "String", "StringValue": native.trace}})


def _keeps_order(headers: Headers, packed: Mapping[str, Any]) -> bool:
    """Whether the headers have the order in which we read attributes, so that it need not be written.

    Wherever redelivery's own headers are among them: SQS keeps no order, so a message of another application has none.
    """
    if not all(isinstance(each, str) for each in packed["headers"]):
        return False
    for theirs in (headers, strip(Message(value=None, headers=headers)).headers):
        names = [name for name, _ in theirs if name not in MARKERS]
        if names == sorted(names):
            return True
    return False


@lru_cache(maxsize=1024)
def warn_of_bare(queue: str) -> None:
    """Log, once per process and queue, that a message was sent without our headers (`Encoded.bare`)."""
    text = (
        "%r: a message with ten attributes of its own is sent without redelivery's headers, for which SQS has no room: "
        "a letter without its reason, a redriven message without the count of its hops"
    )
    log.warning(text, queue)


def group_fields(key: bytes | None, group: object) -> dict[str, str]:
    """Return the group of a row for a standard queue, by its key or else this group; empty if it has neither."""
    if key is None:
        if group is None:
            return {}
        key = str(group).encode("utf-8", "surrogatepass")
    return {"MessageGroupId": hashed_id(key, _is_fifo_id)} if key else {}


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
        return _decode(body, raw.get("MessageAttributes") or {}, raw.get("Attributes") or {})
    except Exception as error:  # noqa: BLE001 - another producer wrote it; one message must not hold up the others
        fault = f"sqs: its attributes cannot be read ({type(error).__name__}: {error})"
        return Message(value=body.encode("utf-8", "surrogatepass")), fault


def _decode(body: str, attributes: Mapping[str, Any], system: Mapping[str, Any]) -> tuple[Message, str | None]:
    fault: str | None = None
    value: bytes | None = body.encode("utf-8", "surrogatepass")
    key, id_, timestamp, placeholder = None, None, None, None
    headers: Headers = ()
    marked, ours = False, None
    theirs: dict[str, Mapping[str, Any]] = {}
    if attributes:
        marked = _is_base64(attributes)
        ours, theirs = _of_our_names(attributes, body)
        natives = {
            name: _native_value(each)
            for name, each in attributes.items()
            if name not in theirs and name != ours and not (marked and name == TRANSFER)
        }
        headers = unpack_headers({}, natives)
        if ours is not None:
            try:
                packed = _unpacked(attributes[ours].get("StringValue"))
                found = _fields(packed, natives)
                placeholder = packed.get("body")
                key, headers, id_, timestamp = found
            except _DAMAGED as error:
                fault = f"sqs: its attribute {ours!r} is damaged ({error})"
                theirs[ours] = attributes[ours]
    if ours is not None and placeholder is not None:
        if body == _PLACEHOLDERS.get(str(placeholder)):
            value = None if placeholder == "null" else b""
        else:  # so we did not write it, and the body counts
            fault = f"sqs: its attribute {ours!r} contradicts its body"
            theirs[ours] = attributes[ours]
    elif marked:
        try:
            value = _from_base64(body)
        except ValueError as error:
            fault = f"sqs: its body is marked as base64, but is not ({error})"
    native = None
    trace, group = system.get(TRACE), system.get("MessageGroupId")
    as_written = body if marked and _would_be_another(body, value) else None
    if headers or as_written is not None or trace is not None or group is not None or theirs:
        native = Native(attributes, as_written, trace, group, theirs)
    message = Message(value=value, key=key, headers=headers, id=id_, timestamp_ms=timestamp, native=native)
    return message, fault


def _of_our_names(attributes: Mapping[str, Any], body: str) -> tuple[str | None, dict[str, Mapping[str, Any]]]:
    """Return the name of our attribute, None if it is missing, and those of our names that others wrote.

    Ours is beside a damaged one, too: it holds the letter of that message.
    """
    if PACKED not in attributes:
        return None, {}
    there = {name: attributes[name] for name in (PACKED, PACKED_BESIDE) if name in attributes}
    written = [name for name, attribute in there.items() if not _is_theirs(attribute)]
    if len(written) > 1 and not _is_whole(there[PACKED], body) and _is_whole(there[PACKED_BESIDE], body):
        written.remove(PACKED)
    ours = written[0] if written else None
    return ours, {} if ours == PACKED else {name: attribute for name, attribute in there.items() if name != ours}


def _is_theirs(attribute: Mapping[str, Any]) -> bool:
    """Whether another application wrote an attribute: no text, or no JSON object, or one without any member of ours."""
    text = attribute.get("StringValue")
    if attribute.get("DataType") != "String" or text is None or not str(text).startswith("{"):
        return True
    try:
        return not json.loads(text).keys() & _MEMBERS
    except (ValueError, RecursionError):
        return False  # it may be ours, and damaged


def _is_whole(attribute: Mapping[str, Any], body: str) -> bool:
    """Whether our attribute can be read, and belongs to this body."""
    try:
        packed = _unpacked(attribute["StringValue"])
        _fields(packed, {})
    except _DAMAGED:
        return False
    placeholder = packed.get("body")
    return placeholder is None or body == _PLACEHOLDERS.get(str(placeholder))


def _fields(
    packed: Mapping[str, Any], natives: Mapping[str, bytes | None]
) -> tuple[bytes | None, Headers, str | None, int | None]:
    """Return key, headers, id and timestamp. Raises one of `_DAMAGED`."""
    return (
        from_portable(packed.get("key")),
        unpack_headers(packed, natives),
        _typed(packed, "id", str),
        _typed(packed, "timestamp", int),
    )


def _unpacked(text: str) -> dict[str, Any]:
    """Read our attribute.

    Raises:
        ValueError, TypeError, AttributeError, RecursionError: it is damaged, or of a later version.
    """
    packed: dict[str, Any] = json.loads(text)
    unknown = packed.keys() - _MEMBERS
    if unknown:
        raise ValueError(f"unknown members: {', '.join(sorted(unknown))}")
    return packed


def _is_base64(attributes: Mapping[str, Any]) -> bool:
    """Whether these attributes say that the body is base64."""
    return bool(attributes.get(TRANSFER, {}).get("StringValue") == "base64")


def _from_base64(body: str) -> bytes:
    """Return the value that a body is. Raises ValueError."""
    try:
        return base64.b64decode(body, validate=True)
    except ValueError:
        return base64.b64decode("".join(body.split()), validate=True)  # RFC 2045 breaks its lines


def _would_be_another(body: str, value: bytes | None) -> bool:
    """Whether a body that is marked as base64 is not how we write its value."""
    return not value or _text(value) is not None or base64.b64encode(value).decode() != body


def _is_said_by(body: str, value: bytes | None) -> bool:
    """Whether a body that is marked as base64 has this value."""
    try:
        return _from_base64(body) == value
    except ValueError:
        return body.encode("utf-8", "surrogatepass") == value


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


def _native(
    kept: Mapping[str, object] = MappingProxyType({}), most: int = NATIVE_HEADERS
) -> Callable[[str, bytes], str | None]:
    """Make what decides, for the headers of one message, which become attributes: it returns their text.

    Args:
        kept: headers that are attributes already.
        most: attributes at most.
    """
    count = len(kept)

    def native(name: str, value: bytes) -> str | None:
        nonlocal count
        if name in kept:
            return ""
        if not value or count >= most:
            return None
        text = _native_text(name, value) if len(value) > _REPEATED else _repeated_text(name, value)
        count += text is not None
        return text

    return native


def _native_text(name: str, value: bytes) -> str | None:
    """Return a header's value as an attribute has it; None if it cannot be one."""
    return None if name in (PACKED, PACKED_BESIDE, TRANSFER) or not _NAME.fullmatch(name) else _text(value)


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
