"""CloudEvents for the rest of the library: any message as an event and back, content modes, rows without a message.

`cloudevents.py` recognises and checks one event; its names are re-exported here.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, time
from functools import singledispatch
from itertools import repeat
from typing import Any, Final
from urllib.parse import quote

from cloudevents.core.v1.event import CloudEvent

from redelivery.base.urls import redact
from redelivery.contract.message import ROW_OVERHEAD, Batch, Column, Headers, Message
from redelivery.contract.spec import EventFormat
from redelivery.errors import Permanent
from redelivery.formats.cloudevents import (
    ATTRIBUTES,
    CONTENT_TYPE,
    PREFIXES,
    STRUCTURED,
    binary_headers,
    build,
    clean,
    event_in,
    from_json,
    is_json,
    is_structured,
    is_valid_text,
    prefix_in,
    rfc3339,
    to_binary,
    to_json,
    to_structured,
    validate,
)
from redelivery.formats.rows import Changes, headers_of, names_in, size_of
from redelivery.formats.structured import members
from redelivery.formats.syntax import is_uri_reference

__all__ = [
    "ATTRIBUTES",
    "PREFIXES",
    "UNDELIVERABLE",
    "WRAPPED",
    "bare_form_of",
    "binary_headers",
    "event_in",
    "events_in",
    "form_of",
    "from_event",
    "from_json",
    "is_structured",
    "jsonable",
    "members_in",
    "message_of",
    "prefix_in",
    "reformat",
    "reformat_all",
    "row_json",
    "source_of",
    "to_event",
    "to_json",
    "undeliverable",
    "undeliverable_all",
    "validate",
    "wrapped",
]

#: Type of an event that stands for a message which is not an event.
WRAPPED: Final = "redelivery.message"
#: Type of an event that stands for a row which could not become a message.
UNDELIVERABLE: Final = "redelivery.undeliverable"

#: The extension attribute that holds what an event alone would lose of its message.
_ENVELOPE: Final = "redeliverymessage"
_REASON_CHARACTERS: Final = 1024
#: An id and a time that are valid.
_ANY_ID: Final = b"1"
_ANY_TIME: Final = b"2000-01-01T00:00:00Z"
_ROW: Final = json.JSONEncoder(separators=(",", ":")).encode
#: A list of texts becomes JSON at once, and is split at its line breaks: JSON text has none.
_LINES: Final = json.JSONEncoder(separators=("\n", ":")).encode
#: Characters that a path may hold besides letters and digits; not ":", before which a scheme would be.
_SAFE: Final = "/._~!$&'()*+,;=@-"


# --- any message as an event, and back -----------------------------------------------------------------------------


def to_event(message: Message) -> CloudEvent:
    """Return a message as an event, so that `from_event` returns the same message.

    A message that is an event (structured or binary) becomes that event. Any other message, and a malformed event, is
    wrapped: its value is the data, as text where it is UTF-8. One extension attribute holds the parts that the event
    alone would lose (key, headers, exact bytes, ...). Never raises.
    """
    event = event_in(message)
    if event is None or _ENVELOPE in event.get_attributes():
        return _wrap(message)
    if _as_structured(event) == message:
        return event
    kept = _describe(message)
    if message.value != _body(event, binary=not is_structured(message)):
        kept["value"] = _show(message.value)
        if not _is_finite(event):
            return _wrap(message)
    event.get_attributes()[_ENVELOPE] = json.dumps(kept)
    return event


def from_event(event: CloudEvent) -> Message:
    """Return the message that an event stands for; an event that stands for no message becomes a structured message.

    An event that was changed since `to_event` (repaired by hand) is taken with its changes, with the key and the other
    headers of its message.
    """
    try:
        kept = json.loads(event.get_attributes()[_ENVELOPE])
        return _restore(kept, event)
    except Exception:  # noqa: BLE001 - an attribute of that name which is not ours is the event's own
        return _as_structured(event)


def form_of(message: Message) -> dict[str, Any]:
    """Return the JSON form of the event that a message becomes: `to_json(to_event(message))`, in less time."""
    if is_structured(message) or prefix_in(message) is not None:
        return to_json(to_event(message))
    return _wrapped_form(message)


def bare_form_of(message: Message) -> dict[str, Any]:
    """Return the JSON form of the event that a message is, if the message is nothing else; else as `form_of`.

    It loses only how the event was written: its mode, and spaces within its JSON. Key, time and further headers are no
    part of an event: a message that has them keeps them as `form_of` does.
    """
    form = form_of(message)
    if form["type"] == WRAPPED or message.key is not None or message.timestamp_ms is not None:
        return form
    prefix = prefix_in(message)
    names = [name.lower() for name, _ in message.headers if prefix is None or not name.startswith(prefix)]
    alone = names in ([], [CONTENT_TYPE]) and message.id in {None, form["id"]}
    if alone and message.destination is None and not message.extra:
        form.pop(_ENVELOPE, None)
    return form


def message_of(form: Mapping[str, Any]) -> Message:
    """Return the message that an event in JSON stands for: `from_event(from_json(form))`, in less time.

    Raises:
        Permanent: as `from_json`.
    """
    message = _wrapped_in(form)
    return from_event(from_json(form)) if message is None else message


def reformat(message: Message, event_format: EventFormat, prefix: str | None) -> Message:
    """Return an event message in another content mode: "json" is structured, "binary" takes the header prefix.

    A raw message and a malformed event are unchanged, as is any message for "binary" without a prefix. Never raises.
    """
    event = event_in(message)
    if event is None:
        return message
    if event_format == "json":
        return message if is_structured(message) else to_structured(message, event)
    own = prefix_in(message)
    if prefix is None or (own == prefix and not is_structured(message)):
        return message
    return to_binary(message if is_structured(message) else to_structured(message, event), event, prefix)


def reformat_all(batch: Batch, event_format: EventFormat, prefix: str | None) -> Batch:
    """Return each message as `reformat` returns it."""
    changes = Changes(batch)
    for row, *_ in _perhaps_events(batch):
        message = batch.row(row)
        new = reformat(message, event_format, prefix)
        if new is not message:
            changes.put(row, new)
    return changes.batch()


def events_in(batch: Batch) -> list[bool]:
    """Return whether each message is an event, in either mode."""
    found = [False] * len(batch)
    known: dict[Headers, bool] = {}
    declared: dict[Headers, bool] = {}
    structured: list[int] = []
    for row, headers, prefix, typed in _perhaps_events(batch):
        if typed and headers not in declared:
            declared[headers] = is_structured(Message(value=None, headers=headers))
        if typed and declared[headers]:
            structured.append(row)
        elif prefix is not None:
            found[row] = _is_binary_event(headers, prefix, known)
    for row, names in zip(structured, members_in(batch, structured), strict=True):
        found[row] = names is not None
    return found


def members_in(batch: Batch, rows: Sequence[int]) -> Sequence[tuple[str, ...] | None]:
    """Return the names of the members of events in JSON; None where a value is not an event.

    Args:
        batch: messages.
        rows: those that declare their value to be an event.
    """

    def alone(row: int) -> Mapping[str, Any] | None:
        message = batch.row(row)
        return None if event_in(message) is None else json.loads(message.value or b"")

    return members(batch, rows, alone)


def _is_binary_event(headers: Headers, prefix: str, known: dict[Headers, bool]) -> bool:
    """Return whether `event_in` returns an event of headers with this prefix, whatever the body is.

    Each attribute is valid or not, whatever the others are. Those that differ by event, its id and time, are looked at
    alone; the others only once.

    Args:
        headers: of the message.
        prefix: theirs.
        known: what is known of headers, with the same id and time in all.
    """
    own = {f"{prefix}id": _ANY_ID, f"{prefix}time": _ANY_TIME}
    alike = tuple([(n, own.get(n, value)) for n, value in headers if n.startswith(prefix) or n.lower() == CONTENT_TYPE])
    if alike not in known:
        known[alike] = event_in(Message(value=None, headers=alike)) is not None
    if not known[alike]:
        return False
    return all(is_valid_text(name.removeprefix(prefix), value or b"") for name, value in headers if name in own)


def _perhaps_events(batch: Batch) -> Iterator[tuple[int, Headers, str | None, bool]]:
    """Return the rows that may be events by the names of their headers.

    Each with its headers, the prefix of an event in headers (`prefix_in`), and whether it has a content type.
    """
    every = headers_of(batch)
    names = names_in(batch)
    shapes: dict[tuple[str, ...], tuple[str | None, bool]] = {}
    for each in set(names):
        bare = Message(value=None, headers=tuple((name, None) for name in each))
        shapes[each] = prefix_in(bare), CONTENT_TYPE in map(str.lower, each)
    for row, each in enumerate(names) if any(map(any, shapes.values())) else ():
        prefix, typed = shapes[each]
        if prefix is not None or typed:
            yield row, every[row], prefix, typed


def source_of(message: Message) -> str | None:
    """Return the source of the event that a message is; None for a raw message and a malformed event. Never raises."""
    event = event_in(message) if message.headers else None
    return None if event is None else event.get_source()


def wrapped(message: Message) -> Message:
    """Return a message as a structured event that stands for it, in ASCII, with no other header. Never raises."""
    body = json.dumps(to_json(_wrap(message)), separators=(",", ":")).encode()
    return Message(
        value=body, headers=((CONTENT_TYPE, STRUCTURED.encode()),), identity=message.identity, native=message.native
    )


def _is_finite(event: CloudEvent) -> bool:
    """Whether JSON can hold the numbers of an event."""
    try:
        json.dumps(to_json(event), allow_nan=False)
    except ValueError:
        return False
    return True


def _wrap(message: Message) -> CloudEvent:
    return build(*_wrapping(message))


def _wrapping(message: Message) -> tuple[dict[str, Any], str | bytes | None]:
    """Return the attributes and the data of the event that a message is wrapped in."""
    shown = _show(message.value)
    data = shown if isinstance(shown, str) else message.value
    attributes: dict[str, Any] = {
        "specversion": "1.0",
        "type": WRAPPED,
        "source": "redelivery",
        "id": (message.id and clean(message.id)) or _digest(message),
        "time": _moment(message.timestamp_ms),
        _ENVELOPE: json.dumps(_describe(message)),
    }
    if isinstance(data, str):
        attributes["datacontenttype"] = "text/plain"
    return attributes, data


def _wrapped_form(message: Message) -> dict[str, Any]:
    """Return `to_json(_wrap(message))`. The package would need four times as long."""
    form, data = _wrapping(message)
    moment = form.pop("time")
    if moment is not None:
        form["time"] = rfc3339(moment)
    if isinstance(data, bytes):
        form["data_base64"] = base64.b64encode(data).decode()
    elif data is not None:
        form["data"] = data
    return form


def _wrapped_in(form: Mapping[str, Any]) -> Message | None:
    """Return the message whose form this is, as `_wrapped_form` makes it; None: it was made, or changed, otherwise."""
    if form.get("type") != WRAPPED:
        return None
    try:
        message = _described(json.loads(form[_ENVELOPE]))
        if "data" in form:
            message = replace(message, value=form["data"].encode())
        elif "data_base64" in form:
            message = replace(message, value=base64.b64decode(form["data_base64"]))
        return message if _wrapped_form(message) == form else None
    except Exception:  # noqa: BLE001 - anyone may have written it
        return None


def _described(kept: Mapping[str, Any]) -> Message:
    """Return the message that `_describe` described, without its value. Raises any error."""
    for name, kind in (("id", str), ("destination", str), ("timestamp_ms", int)):
        if not isinstance(kept.get(name), kind | None):
            raise TypeError(name)
    return Message(
        value=None,
        key=_unshow(kept.get("key")),
        headers=tuple((str(name), _unshow(value)) for name, value in kept.get("headers", ())),
        id=kept.get("id"),
        destination=kept.get("destination"),
        timestamp_ms=kept.get("timestamp_ms"),
        extra={name: _unshow_any(value) for name, value in kept.get("extra", {}).items()},
    )


def _restore(kept: Mapping[str, Any], event: CloudEvent) -> Message:
    attributes = event.get_attributes()
    raw = attributes["type"] == WRAPPED
    message = _described(kept)
    if raw:
        return replace(message, value=_body(event, binary=True))
    bare = build({name: value for name, value in attributes.items() if name != _ENVELOPE}, event.get_data())
    value = _unshow(kept["value"]) if "value" in kept else _body(bare, binary=not is_structured(message))
    exact = replace(message, value=value)
    if json.dumps(to_json(to_event(exact))) == json.dumps(to_json(event)):
        return exact
    mended = _as_structured(bare)
    prefix = prefix_in(message)
    others = (h for h in message.headers if h[0].lower() != CONTENT_TYPE and not (prefix and h[0].startswith(prefix)))
    return replace(message, value=mended.value, headers=(*others, *mended.headers), id=event.get_id())


def _as_structured(event: CloudEvent) -> Message:
    body = _body(event, binary=False)
    return Message(value=body, headers=((CONTENT_TYPE, STRUCTURED.encode()),), id=event.get_id())


def _body(event: CloudEvent, *, binary: bool) -> bytes | None:
    data = event.get_data() if binary else to_json(event)
    if data is None or isinstance(data, bytes):
        return data
    if isinstance(data, str) and not is_json(event.get_datacontenttype()):
        return data.encode("utf-8", "surrogatepass")
    return json.dumps(data, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")


def _describe(message: Message) -> dict[str, Any]:
    """Return all of a message except its value, as far as it exists."""
    kept: dict[str, Any] = {}
    if message.headers:
        kept["headers"] = [[name, _show(value)] for name, value in message.headers]
    if message.key is not None:
        kept["key"] = _show(message.key)
    for name in ("id", "destination", "timestamp_ms"):
        if getattr(message, name) is not None:
            kept[name] = getattr(message, name)
    if message.extra:
        kept["extra"] = {name: _show_any(value) for name, value in message.extra.items()}
    return kept


def _show(value: bytes | None) -> Any:
    """Return bytes as JSON: text where they are UTF-8, so that people can read it, else base64."""
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


def _unshow(shown: Any) -> bytes | None:
    if shown is None:
        return None
    return shown.encode() if isinstance(shown, str) else base64.b64decode(shown["base64"])


def _show_any(value: Any) -> Any:
    return {"bytes": _show(value)} if isinstance(value, bytes) else jsonable(value)


def _unshow_any(shown: Any) -> Any:
    return _unshow(shown["bytes"]) if isinstance(shown, dict) and shown.keys() == {"bytes"} else shown


def _digest(message: Message) -> str:
    """Return a stable id for a message without one."""
    parts = [_describe(message), _show(message.value)]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def _moment(timestamp_ms: int | None) -> datetime | None:
    try:
        return None if timestamp_ms is None else datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return None


# --- rows ----------------------------------------------------------------------------------------------------------


def undeliverable(
    row: Mapping[str, Any] | bytes,
    *,
    id: str,  # noqa: A002 - the word of CloudEvents and of `Message`
    error: Permanent,
    key: bytes | None = None,
    headers: Headers = (),
    source: str = "redelivery",
) -> Message:
    """Return the structured event that stands for a row which could not become a message.

    Args:
        row: the row by column name, written as JSON (see `jsonable`); or bytes, written as base64.
        id: stable, so that a repeated job gives the same; also the message's id.
        error: why; its text (redacted) and codes become the attributes `reason`, `code` and `nativecode`.
        key: kept as the message's own.
        headers: kept as the message's own. A `content-type` among the headers must give way to the event's and becomes
            the attribute `rowcontenttype`.
        source: the event's source; characters that a URI cannot hold are percent-encoded.
    """
    attributes: dict[str, Any] = {
        "specversion": "1.0",
        "type": UNDELIVERABLE,
        "source": (source if is_uri_reference(source) else quote(clean(source), safe=_SAFE)) or "redelivery",
        "id": clean(id) or "unknown",
        "code": error.code,
        "nativecode": clean(error.native_code or ""),
        "reason": clean(redact(str(error)))[:_REASON_CHARACTERS],
    }
    own = next((value for name, value in headers if name.lower() == CONTENT_TYPE and value), None)
    if own is not None:
        attributes["rowcontenttype"] = clean(own.decode("utf-8", "replace"))
    form: dict[str, Any] = {name: value for name, value in attributes.items() if value}
    if isinstance(row, bytes):
        form["data_base64"] = base64.b64encode(row).decode()
    else:
        form["datacontenttype"] = "application/json"
        form["data"] = jsonable(row)
    body = json.dumps(to_json(from_json(form)), separators=(",", ":")).encode()
    return Message(value=body, key=key, headers=_declared(headers), id=id)


def undeliverable_all(
    rows: Sequence[str],
    *,
    ids: Sequence[str],
    errors: Sequence[Permanent],
    keys: Sequence[bytes | None] | None = None,
    headers: Sequence[Headers] | None = None,
    source: str = "redelivery",
) -> Batch:
    """Return the events of many rows, each as `undeliverable` returns it: what differs is put into a template.

    Args:
        rows: the rows as JSON, as `row_json` writes them; at least one.
        ids: as of `undeliverable`, as are the others.
        errors: one for all, or one per row.
        keys: as above.
        headers: as above.
        source: as above.
    """
    reasons = repeat(errors[0]) if len(errors) == 1 else errors
    names = _LINES([clean(each) or "unknown" for each in ids])[1:-1].split("\n")
    every = [()] * len(rows) if headers is None else headers
    templates: dict[tuple[object, ...], str] = {}
    bodies: list[bytes | None] = []
    for row, name, own, error in zip(rows, names, every, reasons, strict=False):
        kind = tuple([each for each in own if each[0].lower() == CONTENT_TYPE])
        alike = str(error), error.code, error.native_code, kind
        if alike not in templates:
            templates[alike] = _template(error, kind, source)
        bodies.append((templates[alike] % (name, row)).encode())
    batch = Batch(
        number=0,
        length=len(rows),
        nbytes=0,
        value=Column.of(bodies),
        key=None if keys is None else Column.of(list(keys)),
        headers=Column.of([_declared(each) for each in every]),
        id=Column.of(list(ids)),
    )
    return replace(batch, nbytes=size_of(batch) + ROW_OVERHEAD * len(batch))


def _template(error: Permanent, headers: Headers, source: str) -> str:
    """Return the body of an event with `%s` in place of its id and its data; arguments as of `undeliverable`."""
    token = secrets.token_hex(16)
    body = undeliverable({token: token}, id=token, error=error, headers=headers, source=source).value or b""
    written = json.dumps({token: token}, separators=(",", ":")), json.dumps(token)
    return "%s".join(each.replace("%", "%%") for each in re.split("|".join(map(re.escape, written)), body.decode()))


def _declared(headers: Headers) -> Headers:
    others = tuple(header for header in headers if header[0].lower() != CONTENT_TYPE)
    return (*others, (CONTENT_TYPE, STRUCTURED.encode()))


def row_json(row: Mapping[str, Any]) -> str:
    """Return a row as the JSON text in the event that stands for it; see `jsonable`."""
    return _ROW(jsonable(row))


@singledispatch
def jsonable(value: Any) -> Any:
    """Return a value of a row as JSON can hold it, without losing its meaning.

    Bytes become base64, Decimal its text, times ISO 8601, NaN and infinities their names as text; a value without a
    JSON form becomes its text.
    """
    if hasattr(value, "tolist"):  # a NumPy scalar or array
        return jsonable(value.tolist())
    return str(value)


@jsonable.register
def _(value: bool | str | None) -> Any:  # noqa: FBT001 - singledispatch reads the type
    return value


@jsonable.register
def _(value: int) -> Any:
    return int(value)


@jsonable.register
def _(value: float) -> Any:
    if math.isnan(value):
        return "NaN"
    return float(value) if math.isfinite(value) else ("Infinity" if value > 0 else "-Infinity")


@jsonable.register
def _(value: bytes | bytearray | memoryview) -> Any:
    return base64.b64encode(value).decode()


@jsonable.register
def _(value: datetime) -> Any:
    return rfc3339(value) if value.tzinfo else value.isoformat()


@jsonable.register
def _(value: date | time) -> Any:
    return value.isoformat()


@jsonable.register
def _(value: Mapping) -> Any:  # type: ignore[type-arg]  # singledispatch takes no parametrised type
    return {str(name): jsonable(item) for name, item in value.items()}


@jsonable.register
def _(value: list | tuple | set | frozenset) -> Any:  # type: ignore[type-arg]  # as above
    named = getattr(value, "asDict", None)  # a Spark row is a tuple with names
    return [jsonable(item) for item in value] if named is None else jsonable(named())
