"""`Native`: what a message of Service Bus holds beyond a `Message`, so that it is sent again as it was.

What the fields of the `Message` say counts: a property whose bytes are still those that were decoded is written with
its own type; one that is gone stays away. What no field can say (subject, session, priority, ...) comes from here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from azure.servicebus import ServiceBusMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageHeader, AmqpMessageProperties

from redelivery_servicebus.client.private import as_message, sections
from redelivery_servicebus.client.typed import SEQUENCE, VALUE, Sections, plain

#: Fields of the properties section that a sender may set, besides the message id; None: it has another meaning when the
#: message is sent again.
_FIELDS: Final = (
    None, "user_id", "to", "subject", "reply_to", "correlation_id", "content_type", "content_encoding", None,
    "creation_time", "group_id", "group_sequence", "reply_to_group_id",
)  # fmt: skip
#: The header, and the property, that is also a field.
CONTENT_TYPE: Final = "content-type"
#: Its time to live ends with its death: a letter that kept it would be discarded (docs/decisions/0045).
_HEADER: Final = ("durable", "priority")
#: Annotations that Service Bus itself writes, and the schedule: it is over, or is a column.
_BROKERS: Final = frozenset({
    "x-opt-sequence-number", "x-opt-enqueue-sequence-number", "x-opt-enqueued-time", "x-opt-locked-until",
    "x-opt-message-state", "x-opt-deadletter-source", "x-opt-offset", "x-opt-partition-id", "x-opt-publisher",
    "x-opt-scheduled-enqueue-time",
})  # fmt: skip
#: Values of an AMQP value section that the SDK encodes by their own class: it takes a type only within a list or a map.
_PLAIN: Final = (str, float, bool)
_INT: Final = range(-(1 << 31), 1 << 31)


@dataclass(frozen=True, slots=True)
class Native:
    """What a `Message` does not hold. It is picklable.

    Attributes:
        message_id: the id, with its type; None: it has none.
        fields: of the properties section, by the SDK's names.
        header: durable, priority, where they are set.
        annotations: those that are not Service Bus's own.
        properties: application properties that are not texts.
        content: where its content type is: in the "field" alone; or "apart", where a property of that name says
            something else; "" where both say the same.
        damaged: a property of our name, which we did not write; None: it is ours, or missing.
        body: the body, where it is not one data section: as of `body_of`.
        value: the message's value as it was decoded, where `body` is set.
        ordered: the order of its headers was written.
    """

    message_id: Any = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    header: Mapping[str, Any] = field(default_factory=dict)
    annotations: Mapping[str, Any] = field(default_factory=dict)
    properties: Mapping[str, Any] = field(default_factory=dict)
    content: str = ""
    damaged: Any = None
    body: tuple[str, Any] | None = None
    value: bytes | None = None
    ordered: bool = False

    @property
    def nbytes(self) -> int:
        """About its size: a body of another kind is kept a second time."""
        return 100 * (len(self.fields) + len(self.annotations) + len(self.properties)) + len(self.value or b"")


def properties_of(raw: Any) -> dict[str, Any]:
    """Return a received message's application properties by name, each a text or with its type."""
    found = sections(raw)
    if found is not None:
        return dict(found.application)
    properties = raw.raw_amqp_message.application_properties or {}
    return {str(_guessed(name)): _guessed(value) for name, value in properties.items()}


def message_id_of(raw: Any) -> Any:
    """Return a received message's id, a text or with its type; None: it has none."""
    found = sections(raw)
    if found is None:
        return _guessed_id(raw.message_id)
    return found.properties[0] if found.properties else None


def body_of(raw: Any) -> tuple[str, Any] | None:
    """Return the body and the SDK's name for its kind, which is "" if the SDK cannot write it again as it was.

    It is None if the body is one data section.
    """
    annotated, found = raw.raw_amqp_message, sections(raw)
    kind = annotated.body_type.value
    if kind == "data":
        parts = list(annotated.body)
        return ("data_body", parts) if len(parts) > 1 else None
    bodies = [] if found is None else [value for code, value in found.bodies if code in (SEQUENCE, VALUE)]
    if annotated.body is None and not bodies:  # it has no body
        return "value_body", None
    if not bodies or None in bodies or (kind == "sequence" and len(bodies) != len([*annotated.body])):
        return "", kind  # cut off, described, or a null
    return ("sequence_body", bodies) if kind == "sequence" else ("value_body", bodies[0])


def native_of(raw: Any, own: frozenset[str], value: bytes | None, *, damaged: Any, ordered: bool) -> Native:
    """Return what a received message holds beyond a `Message`.

    Args:
        raw: as the SDK gave it.
        own: names of properties that are not the application's.
        value: the message's value.
        damaged: as in `Native`.
        ordered: as in `Native`.
    """
    annotated, found = raw.raw_amqp_message, sections(raw)
    named = annotated.properties
    set_ = {} if named is None else {name: getattr(named, name) for name in _FIELDS if name is not None}
    fields: dict[str, Any] = {
        name: each if name == "user_id" else _guessed(each) for name, each in set_.items() if each is not None
    }
    properties = properties_of(raw)
    content, given = fields.get("content_type"), properties.get(CONTENT_TYPE)
    if found is not None and "correlation_id" in fields:
        fields["correlation_id"] = found.properties[_FIELDS.index("correlation_id")]
    header = {} if annotated.header is None else {name: getattr(annotated.header, name) for name in _HEADER}
    return Native(
        message_id=message_id_of(raw),
        fields=fields,
        header={name: each for name, each in header.items() if each is not None},
        annotations=_annotations(annotated, found),
        properties={name: each for name, each in properties.items() if name not in own and not isinstance(each, str)},
        content="" if given == content else ("apart" if CONTENT_TYPE in properties else "field"),
        damaged=damaged,
        body=(body := body_of(raw)),
        value=None if body is None else value,
        ordered=ordered,
    )


def message_of(
    native: Native, value: bytes | None, message_id: Any, content_type: str | None, properties: Mapping[str, Any]
) -> ServiceBusMessage:
    """Return the message that is sent.

    Args:
        native: what no field of the `Message` says.
        value: the body; None: an empty one, or none.
        message_id: its id, which may have a type.
        content_type: its content type.
        properties: its application properties, which may have types.

    Raises:
        ValueError: its body is of a kind that the SDK does not write again as it was.
    """
    body: tuple[str, Any] = ("data_body", value or b"") if native.body is None or value != native.value else native.body
    if not body[0] or (body[0] == "sequence_body" and not all(isinstance(each, list) for each in body[1])):
        raise ValueError(f"its body is an AMQP {body[1] or 'sequence':.20} that the client cannot write as it was")
    if body[0] == "value_body":
        body = (body[0], _value(body[1]))
    content: dict[str, Any] = {body[0]: body[1]}
    made = AmqpAnnotatedMessage(**content)
    made.header = AmqpMessageHeader(**native.header)
    fields = {name: _id(each) for name, each in native.fields.items()}
    made.properties = AmqpMessageProperties(**{**fields, "message_id": _id(message_id), "content_type": content_type})
    annotations: dict[str | bytes, Any] = dict(native.annotations.items())
    named: dict[str | bytes, Any] = dict(properties.items())
    made.annotations, made.application_properties = annotations or None, named or None
    return as_message(made)


def _annotations(annotated: Any, found: Sections | None) -> dict[str, Any]:
    given: Mapping[Any, Any] = (annotated.annotations or {}) if found is None else found.annotations
    named = {str(_guessed(name)): _guessed(value) for name, value in given.items()}
    return {name: value for name, value in named.items() if name not in _BROKERS}


def _value(value: Any) -> Any:
    """Return the content of an AMQP value section as the SDK takes it. Raises ValueError."""
    bare = plain(value)
    kind = value["TYPE"] if isinstance(value, dict) and value.keys() == {"TYPE", "VALUE"} else None
    if value is None or (isinstance(value, list) and value):
        return value
    if kind == "MAP" and bare:
        return dict(_pairs(bare))
    if (kind is None and isinstance(value, _PLAIN) and value) or (kind == "BINARY" and bare):
        return bare
    if kind == "INT" and bare and bare in _INT:
        return bare
    if kind is None and type(value).__name__ == "UUID":
        return value
    raise ValueError(f"its body is an AMQP value of a kind that the client does not write ({kind or value!r:.40})")


def _pairs(entries: Any) -> Any:
    return (((plain(name) if isinstance(name, dict) else name), value) for name, value in entries)


def _id(value: Any) -> Any:
    """Return an id as the SDK takes it: it tells types by Python's."""
    return plain(value)


def _guessed_id(value: Any) -> Any:
    return value if isinstance(value, str | None) else {"TYPE": type(value).__name__, "VALUE": value}


def _guessed(value: Any) -> Any:
    """Return a value of the SDK, which gives texts as bytes and numbers without their types."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"TYPE": "BINARY", "VALUE": value}
    if not isinstance(value, int) or -(1 << 31) <= value < 1 << 31:
        return value
    return {"TYPE": "LONG" if value < 1 << 63 else "ULONG", "VALUE": value}
