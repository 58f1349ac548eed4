"""A dead letter as a row of a DataFrame: the original columns unchanged, `_error` (why) and `_position` (where).

The reverse of a write: an event's attributes are columns and its data is `value`; a plain message has no
`specversion`. So rows can be repaired with ordinary DataFrame code and written again without `_error` and `_position`:
a redelivery, one hop further. So `id` is `<id>~<hop>`, the id of that hop; the first id is `_error.message_id`. A
letter's own target is in `_error.target`; columns hold it only where the reader has allowed that target.
`letter_columns.py` does the same for many letters at a time.
"""

from __future__ import annotations

import base64
import datetime as dt
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from redelivery.base.json import dumps, loads
from redelivery.contract.broker import Capabilities, Letter
from redelivery.contract.context import LAST_MS, UNRESOLVED, ErrorContext
from redelivery.contract.message import Headers, Message
from redelivery.deadletters.operations import HOP_MARK, original_id
from redelivery.deadletters.trust import Targets, context_of
from redelivery.formats import dialects, events
from redelivery.spark.cloudevents import default_way, is_json_type
from redelivery.spark.letter_schema import ERROR, FIELDS, POSITION
from redelivery.spark.options import ATTRIBUTES, ENCODINGS, EXTENSIONS

#: The first millisecond of the year 1: no date is earlier.
_FIRST_MS: Final = -62_135_596_800_000
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def unpack(letter: Letter, targets: Targets, there: Capabilities) -> dict[str, Any]:
    """Return one letter as the columns of a row.

    Args:
        letter: as stored.
        targets: targets that may become columns, so that a row which is written again goes there.
        there: the broker's capabilities.
    """
    context = context_of(letter)
    message = dialects.redriven(letter.message)
    if letter.context is not None and letter.context.kind == UNRESOLVED:
        message = dialects.unresolved(message)
    hop = dialects.history(message).hops
    attributes, message = _event(message)
    name = message.id or context.message_id or attributes.get("id")
    row: dict[str, Any] = dict.fromkeys(FIELDS)
    said = replace(letter, message=replace(letter.message, destination=message.destination, extra=message.extra))
    row |= attributes
    row |= message.extra
    row |= targets.columns(said, there, context)
    row |= {
        "id": name and f"{original_id(name, dialects.named(letter.message.headers))}{HOP_MARK}{hop}",
        "key": message.key,
        "value": message.value,
        "headers": [{"key": name, "value": value} for name, value in message.headers] or None,
        "timestamp": micros(message.timestamp_ms),
        ERROR: _error(context, letter.dead_lettered_ms)
        | {"message_id": context.message_id or letter.message.id, "target": targets.of(said, there, context)},
        POSITION: letter.position,
    }
    return row


def _event(message: Message, *, unwrap: bool = True) -> tuple[dict[str, Any], Message]:
    """Return the attributes of the event that a message is, and the message without them; none for a plain message.

    An event that stands for a message is unwrapped only once: anyone may have written one that stands for itself.
    """
    if events.is_structured(message):
        try:
            form = loads(message.value or b"")
            event = events.from_json(form)
        except Exception:  # noqa: BLE001 - it only says that it is an event: then it is a plain message
            return {}, message
        if unwrap and event.get_type() == events.WRAPPED:
            return _event(_unwrapped(events.from_event(event), message), unwrap=False)
        others = tuple(header for header in message.headers if header[0].lower() != "content-type")
        attributes = {name: value for name, value in form.items() if name not in ("data", "data_base64")}
        value, ways = _data(form)
        return attribute_columns(attributes, ways), replace(message, value=value, headers=others)
    prefix = events.prefix_in(message)
    if prefix is None:
        return {}, message
    attributes, headers = binary_event(message.headers, prefix)
    return attributes, replace(message, headers=headers)


def binary_event(headers: Headers, prefix: str) -> tuple[dict[str, Any], Headers]:
    """Return the columns of an event in binary mode, and the headers that are not its own."""
    attributes: dict[str, Any] = {}
    others: list[tuple[str, bytes | None]] = []
    for name, value in headers:
        if name.startswith(prefix):
            attributes[name.removeprefix(prefix)] = (value or b"").decode("utf-8", "replace")
        elif name.lower() == "content-type":
            attributes["datacontenttype"] = (value or b"").decode("utf-8", "replace")
        else:
            others.append((name, value))
    return attribute_columns(attributes, {}), tuple(others)


def _unwrapped(inner: Message, outer: Message) -> Message:
    """Return a plain message that was wrapped for its sink; what the sink's broker carried natively wins."""
    return replace(inner, key=outer.key or inner.key) if not events.is_structured(inner) else inner


def _data(form: Mapping[str, Any]) -> tuple[bytes | None, dict[str, str]]:
    """Return the data of a JSON event as bytes, and how it was written if a write would not do so by default."""
    kind = str(form.get("datacontenttype") or "")
    data = form.get("data")
    if data is None:
        if form.get("data_base64") is None:
            return None, {}
        value, way = base64.b64decode(form["data_base64"]), "base64"
    elif isinstance(data, str) and not is_json_type(kind):
        value, way = data.encode("utf-8", "surrogatepass"), "string"
    else:
        value, way = dumps(data).encode("utf-8", "surrogatepass"), "json"
    return value, {} if way == default_way(value, kind) else {"data": way}


def attribute_columns(attributes: Mapping[str, Any], ways: dict[str, str]) -> dict[str, Any]:
    """Return the columns of an event's attributes, and how its data (`ways`) and they are written in JSON."""
    columns: dict[str, Any] = {name: attributes[name] for name in ATTRIBUTES if name in attributes}
    others = {n: v for n, v in attributes.items() if n not in columns and n != "id" and v is not None}
    extensions = {name: value if isinstance(value, str) else dumps(value) for name, value in others.items()}
    ways |= {name: "json" for name, value in others.items() if not isinstance(value, str)}
    if columns.get("time") is not None:
        columns["time"], exact = _moment(str(columns["time"]))
        if not exact:  # not one that Spark has: kept unchanged
            extensions["time"] = str(attributes["time"])
    return {**columns, "id": attributes.get("id"), EXTENSIONS: extensions or None, ENCODINGS: ways or None}


def _moment(text: str) -> tuple[int | None, bool]:
    """Return RFC 3339 as microseconds since the epoch, or None, and whether they are exactly what the text says."""
    try:
        moment = dt.datetime.fromisoformat(text.upper())
        found = (moment - _EPOCH) // dt.timedelta(microseconds=1) if moment.tzinfo else None
    except (ValueError, OverflowError):
        return None, False
    return found, found is not None and not re.search(r"\.[0-9]{6}0*[1-9]", text)


def _error(context: ErrorContext, dead_lettered_ms: int | None) -> dict[str, Any]:
    return {
        "code": context.code,
        "native_code": context.native_code,
        "message": context.reason or None,
        "kind": context.kind or None,
        "stage": context.stage,
        "broker": context.broker,
        "destination": context.destination,
        "message_id": context.message_id,
        "attempts": context.attempts,
        "attempts_total": context.attempts_total,
        "hops": context.hops,
        "maybe_delivered": context.maybe_delivered,
        "first_failure": micros(context.first_failure_ms),
        "last_failure": micros(context.last_failure_ms),
        "dead_lettered": micros(dead_lettered_ms),
        "query": context.query,
        "batch": context.batch,
        "partition": context.partition,
        "run": context.run,
    }


def micros(millis: int | None) -> int | None:
    """Return a time as its column holds it; null where it is outside the range of dates."""
    return None if millis is None or not _FIRST_MS <= millis <= LAST_MS else millis * 1000
