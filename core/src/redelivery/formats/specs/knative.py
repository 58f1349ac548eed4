"""A delivery spec, and a delivery status, as Knative writes them: YAML or JSON text, or a mapping.

A spec stands alone, under `delivery:` or under `spec.delivery` (a Knative object). Names are Knative's, to the letter.
These are ours beyond them:

- `deadLetterSink` may be a list, a chain tried in turn; text instead of `{uri}`; and a sink may have `options`
  (see `sinks.py`);
- fields that Knative has no word for are under `redelivery:`, named as in options: `errors.*`, `backoffProfile`,
  `allowSkip`. Endless retries too: `redelivery: {errors.retry.limit: -1}`.

Must not resolve a ref or a relative uri: provisioning does that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from redelivery.base.urls import redact, unknown
from redelivery.contract.spec import DeliverySpec, DeliveryStatus
from redelivery.errors import InvalidSpec
from redelivery.formats.specs import fields, sinks
from redelivery.formats.specs.field_types import as_typed

_EXTENSION: Final = "redelivery"
_FIELDS: Final = (fields.DEAD_LETTER_SINK, *(field.name for field in fields.KNATIVE), _EXTENSION)
_OURS: Final = tuple(field.name for field in (*fields.CONNECT, *fields.OURS))
_SINK_URI: Final = "deadLetterSinkUri"
_CHANNEL: Final = "deadLetterChannel"


def read(document: Mapping[str, Any] | str) -> DeliverySpec:
    """Return the spec in YAML or JSON text, or in a mapping; an empty value (null) counts as not given.

    Raises:
        UnknownOption: an unknown field; names the nearest known one.
        InvalidSpec: text that does not parse, a value of the wrong type or out of range (the error names the field),
            one field given twice, or values that contradict each other.
    """
    if isinstance(document, str):
        from redelivery.formats.specs import text  # noqa: PLC0415 - with yaml, which jobs without a spec do without

        document = text.load(document)
    written = _delivery(document)
    said = []
    for name, value in written.items():
        if name not in _FIELDS:
            raise unknown("field", name, _FIELDS)
        if value is None:
            continue
        if name == _EXTENSION:
            said += _read_extension(value)
        elif name == fields.DEAD_LETTER_SINK:
            said.append(fields.GivenField(name, {"uri": value} if isinstance(value, str) else value, name))
        else:
            said.append(_typed(name, value, name))
    return fields.read(said, what="field", known=_FIELDS)


def write(spec: DeliverySpec) -> dict[str, Any]:
    """Return the mapping that `read` reads back, for YAML or JSON. Never log it: sinks' settings may hold secrets.

    Raises:
        InvalidSpec: a value that the form cannot express, as a retry timeout of half a millisecond.
    """
    written: dict[str, Any] = {}
    if spec.dead_letter_sink:
        label = fields.DEAD_LETTER_SINK
        written[label] = fields.labelled(label, sinks.write, spec.dead_letter_sink)
    said = fields.write(spec, fields.KNATIVE, fields.CONNECT, fields.OURS)
    written.update({name: value for name, value in said.items() if name in _FIELDS})
    extension = {name: value for name, value in said.items() if name not in _FIELDS}
    if extension:
        written[_EXTENSION] = extension
    return written


def status_to_dict(status: DeliveryStatus) -> dict[str, Any]:
    """Return a status as a mapping, in both texts' names; unset fields are left out. The URI is redacted."""
    written: dict[str, Any] = {}
    if status.dead_letter_sink_uri is not None:
        written[_SINK_URI] = redact(status.dead_letter_sink_uri)
    if status.dead_letter_channel is not None:
        written[_CHANNEL] = sinks.write_ref(status.dead_letter_channel)
    return written


def status_from_dict(written: Mapping[str, Any]) -> DeliveryStatus:
    """Return the status in a mapping.

    Raises:
        UnknownOption, InvalidSpec
    """
    for name in written:
        if name not in {_SINK_URI, _CHANNEL}:
            raise unknown("status field", name, (_SINK_URI, _CHANNEL))
    uri, channel = written.get(_SINK_URI), written.get(_CHANNEL)
    if uri is not None and not isinstance(uri, str):
        raise InvalidSpec(f"{_SINK_URI}: must be text, as in 'file:///letters'")
    ref = None if channel is None else fields.labelled(_CHANNEL, sinks.read_ref, channel)
    return DeliveryStatus(dead_letter_sink_uri=uri, dead_letter_channel=ref)


def _delivery(document: object) -> Mapping[str, Any]:
    """Return the bare spec in a document that may hold more."""
    path = ""
    outer = _mapping(document, "a delivery spec")
    for name in ("spec", "delivery"):
        if name in outer:
            beside = next((field for field in _FIELDS if field in outer), None)
            path += f".{name}" if path else name
            if beside is not None:
                raise InvalidSpec(f"{beside}: stands beside {path!r}, where it would be ignored; move it into the spec")
            outer = _mapping(outer[name], path)
            if name == "spec" and "delivery" not in outer:
                raise InvalidSpec("spec: has no 'delivery', so this document holds no delivery spec")
    return outer


def _mapping(value: object, what: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise InvalidSpec(f"{what} must be a mapping, as in {{retry: 3}}, not {type(value).__name__}")
    for name in value:
        if not isinstance(name, str):
            raise InvalidSpec(f"{what}: the field {name!r} is not text; quote it")
    return value


def _read_extension(value: object) -> list[fields.GivenField]:
    said = []
    for name, item in _mapping(value, _EXTENSION).items():
        if fields.canonical(name) not in _OURS:
            raise unknown("field", f"{_EXTENSION}.{name}", [f"{_EXTENSION}.{each}" for each in _OURS])
        if item is not None:
            said.append(_typed(name, item, f"{_EXTENSION}.{name}"))
    return said


def _typed(name: str, value: object, label: str) -> fields.GivenField:
    kind = fields.kind_of(fields.canonical(name))
    if kind is not None:
        value = fields.labelled(label, as_typed, kind, value)
    return fields.GivenField(name, value, label)
