"""Dead letters as a DataFrame: the original columns unchanged, `_error` (why) and `_position` (where it is stored).

The reader reverses the writer: an event's attributes are columns and its data is `value`; a plain message has no
`specversion`. So rows can be repaired with ordinary DataFrame code and written again without `_error` and `_position`:
a redelivery, one hop further. So `id` is `<id>~<hop>`, the id of that hop; the first id is `_error.message_id`. A
letter's own target is in `_error.target`; columns hold it only where the reader has allowed that target. Reading leaves
the letters in place.
"""

from __future__ import annotations

import base64
import datetime as dt
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql import types as t
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_type

from redelivery import registry
from redelivery.base.json import dumps, loads
from redelivery.base.urls import unknown
from redelivery.contract.broker import Capabilities, Letter
from redelivery.contract.context import LAST_MS, ErrorContext
from redelivery.contract.message import Message
from redelivery.deadletters.operations import HOP_MARK, original_id
from redelivery.deadletters.trust import Targets, context_of
from redelivery.errors import ConfigurationError, RedeliveryError
from redelivery.formats import dialects, events, signing
from redelivery.formats.signing import Verified
from redelivery.spark.cloudevents import default_way, is_json_type
from redelivery.spark.job import local_property, plain, refuse_one_host
from redelivery.spark.options import ATTRIBUTES, ENCODINGS, EXTENSIONS, ReadSettings

if TYPE_CHECKING:
    from pyarrow import RecordBatch

#: A record batch holds at most so many letters, and about so many bytes of them.
_ROWS: Final = 1_000
_BYTES: Final = 16 * 1024 * 1024

_TEXT: Final = t.StringType()
#: The first millisecond of the year 1: no date is earlier.
_FIRST_MS: Final = -62_135_596_800_000
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_INSTANT: Final = t.TimestampType()
_HEADER: Final = t.StructType([t.StructField("key", _TEXT), t.StructField("value", t.BinaryType())])
_ERROR: Final[Mapping[str, t.DataType]] = {
    "code": _TEXT,
    "native_code": _TEXT,
    "message": _TEXT,
    "kind": _TEXT,
    "stage": _TEXT,
    "broker": _TEXT,
    "destination": _TEXT,
    "target": _TEXT,
    "message_id": _TEXT,
    "attempts": t.IntegerType(),
    "attempts_total": t.IntegerType(),
    "hops": t.IntegerType(),
    "maybe_delivered": t.BooleanType(),
    "first_failure": _INSTANT,
    "last_failure": _INSTANT,
    "dead_lettered": _INSTANT,
    "query": _TEXT,
    "batch": _TEXT,
    "partition": t.IntegerType(),
    "run": _TEXT,
}
_FIELDS: Final[Mapping[str, t.DataType]] = {
    "id": _TEXT,
    "key": t.BinaryType(),
    "value": t.BinaryType(),
    "headers": t.ArrayType(_HEADER),
    "destination": _TEXT,
    "timestamp": _INSTANT,
    **{name: _INSTANT if name == "time" else _TEXT for name in ATTRIBUTES},
    EXTENSIONS: t.MapType(_TEXT, _TEXT),
    ENCODINGS: t.MapType(_TEXT, _TEXT),
    "_error": t.StructType([t.StructField(name, kind) for name, kind in _ERROR.items()]),
    "_position": _TEXT,
}
_SQL_TYPES: Final[Mapping[type, t.DataType]] = {
    int: t.LongType(),
    float: t.DoubleType(),
    bool: t.BooleanType(),
    bytes: t.BinaryType(),
}


def schema(settings: ReadSettings) -> t.StructType:
    """Columns of dead letters: the same for all brokers, and the broker's own ones."""
    capabilities = registry.installed().by_url(settings.url).capabilities
    own = {name: _SQL_TYPES.get(kind, _TEXT) for name, kind in capabilities.columns.items()}
    return t.StructType([t.StructField(name, kind) for name, kind in {**own, **_FIELDS}.items()])


class DeadLetterReader(DataSourceReader):
    """Reads one dead letter queue, oldest first."""

    def __init__(self, settings: ReadSettings, wanted: t.StructType) -> None:
        known = {each.name for each in schema(settings).fields}
        for each in wanted.fields:
            if each.name not in known:
                raise ConfigurationError(str(unknown("column", each.name, known)))
        self.settings = settings
        self.wanted = wanted

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:  # noqa: ARG002 - a place is read by one task
        try:
            yield from self._read()
        except RedeliveryError as error:
            raise plain(error) from None  # Spark would show each step of its way through our code

    def _read(self) -> Iterator[RecordBatch]:
        settings = self.settings
        keys = [signing.key(each) for each in settings.keys]
        refuse_one_host(settings.url, local_property("spark.master"), shared_mount=settings.shared_mount)
        with (
            registry.connect(settings.url, settings.client) as broker,
            broker.dead_letters(direct=settings.direct) as letters,
        ):
            rows: list[dict[str, Any]] = []
            weight = 0
            targets, there = Targets(allowed=settings.allow_targets), broker.capabilities
            for letter in Verified(letters, keys).browse():
                row = unpack(letter, targets, there)
                if settings.run is not None and row["_error"]["run"] != settings.run:
                    continue
                rows.append(row)
                weight += letter.message.nbytes
                if len(rows) >= _ROWS or weight >= _BYTES:
                    yield _record_batch(rows, self.wanted)
                    rows, weight = [], 0
            if rows:
                yield _record_batch(rows, self.wanted)


def unpack(letter: Letter, targets: Targets, there: Capabilities) -> dict[str, Any]:
    """Return one letter as the columns of a row.

    Args:
        letter: as stored.
        targets: targets that may become columns, so that a row which is written again goes there.
        there: the broker's capabilities.
    """
    context = context_of(letter)
    message = dialects.redriven(letter.message)
    hop = dialects.history(message).hops
    attributes, message = _event(message)
    name = message.id or context.message_id or attributes.get("id")
    row: dict[str, Any] = dict.fromkeys(_FIELDS)
    said = replace(letter, message=replace(letter.message, destination=message.destination, extra=message.extra))
    row |= attributes
    row |= message.extra
    row |= targets.columns(said, there)
    row |= {
        "id": name and f"{original_id(name, hop - 1)}{HOP_MARK}{hop}",
        "key": message.key,
        "value": message.value,
        "headers": [{"key": name, "value": value} for name, value in message.headers] or None,
        "timestamp": _micros(message.timestamp_ms),
        "_error": _error(context, letter.dead_lettered_ms)
        | {"message_id": context.message_id or letter.message.id, "target": targets.of(said, there)},
        "_position": letter.position,
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
        return _columns(attributes, ways), replace(message, value=value, headers=others)
    prefix = events.prefix_in(message)
    if prefix is None:
        return {}, message
    attributes = {}
    others = ()
    for name, value in message.headers:
        if name.startswith(prefix):
            attributes[name.removeprefix(prefix)] = (value or b"").decode("utf-8", "replace")
        elif name.lower() == "content-type":
            attributes["datacontenttype"] = (value or b"").decode("utf-8", "replace")
        else:
            others += ((name, value),)
    return _columns(attributes, {}), replace(message, headers=others)


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


def _columns(attributes: Mapping[str, Any], ways: dict[str, str]) -> dict[str, Any]:
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
        micros = (moment - _EPOCH) // dt.timedelta(microseconds=1) if moment.tzinfo else None
    except (ValueError, OverflowError):
        return None, False
    return micros, micros is not None and not re.search(r"\.[0-9]{6}0*[1-9]", text)


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
        "first_failure": _micros(context.first_failure_ms),
        "last_failure": _micros(context.last_failure_ms),
        "dead_lettered": _micros(dead_lettered_ms),
        "query": context.query,
        "batch": context.batch,
        "partition": context.partition,
        "run": context.run,
    }


def _micros(millis: int | None) -> int | None:
    """Return a time as its column holds it; null where it is outside the range of dates."""
    return None if millis is None or not _FIRST_MS <= millis <= LAST_MS else millis * 1000


def _array(values: list[Any], kind: Any) -> Any:
    try:
        return pa.array(values, kind)
    except (ValueError, TypeError, OverflowError):
        return pa.array([_fitting(each, kind) for each in values], kind)


def _fitting(value: Any, kind: Any) -> Any:
    """Return a value that its column can hold: half a character is replaced, a value that does not fit is null."""
    whole = _whole(value)
    try:
        pa.array([whole], kind)
    except (ValueError, TypeError, OverflowError):
        return None
    return whole


def _whole(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_whole(name): _whole(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_whole(each) for each in value]
    return value


def _record_batch(rows: list[dict[str, Any]], wanted: t.StructType) -> RecordBatch:
    arrays = [
        _array([row.get(each.name) for row in rows], to_arrow_type(each.dataType, timezone="UTC"))
        for each in wanted.fields
    ]
    return pa.RecordBatch.from_arrays(arrays, names=wanted.names)
