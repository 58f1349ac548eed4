"""The meaning of a DataFrame's columns: decided once, from the schema, before anything is sent.

Names follow Spark's own sink for messages (`key`, `value`, `headers`, `timestamp`), plus `id`, `destination`,
CloudEvents attributes and the broker's own columns.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from pyspark.sql import types as t

from redelivery.base.urls import unknown
from redelivery.contract.broker import Capabilities
from redelivery.errors import ConfigurationError, Unsupported
from redelivery.spark import jsonform
from redelivery.spark.options import ATTRIBUTES, ENCODINGS, EXTENSIONS, ContentMode

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: The message's own columns, in any mode.
MESSAGE: Final = ("value", "key", "headers", "id", "destination", "timestamp")
#: Name of the column that holds the rest of the row, encoded by Spark itself.
VALUE: Final = "value"
#: Name of the column that holds a row which Spark could not encode.
_UNENCODED: Final = "redelivery_unencoded"
#: Columns that the reader of dead letters adds; a write refuses them with a hint.
READ_ONLY: Final = ("_error", "_position")
POSITION: Final = "_position"

_TEXT: Final = (t.StringType,)
_BYTES: Final = (t.StringType, t.BinaryType)
_INSTANT: Final = (t.TimestampType, t.TimestampNTZType)
#: How the types begin that have no text of their own, but have JSON.
_NESTED: Final = ("array<", "map<", "struct<", "variant")
#: Names that are so much alike may be mistyped; `valid` is less like `value`.
_ALIKE: Final = 0.8
_WHOLE: Final = (t.ByteType, t.ShortType, t.IntegerType, t.LongType)
_TYPES: Final[Mapping[str, tuple[tuple[type[t.DataType], ...], str]]] = {
    "value": (_BYTES, "binary or string"),
    "key": (_BYTES, "binary or string"),
    "id": ((*_TEXT, *_WHOLE), "string"),
    "destination": (_TEXT, "string"),
    "timestamp": (_INSTANT, "timestamp"),
    "time": ((*_INSTANT, *_TEXT), "timestamp or string"),
}
_PYTHON: Final[Mapping[type, tuple[tuple[type[t.DataType], ...], str]]] = {
    str: (_TEXT, "string"),
    bytes: (_BYTES, "binary or string"),
    int: (_WHOLE, "int"),
    float: ((t.DoubleType, t.FloatType), "double"),
    bool: ((t.BooleanType,), "boolean"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The meaning of each column. Columns are named by their position in the DataFrame.

    Attributes:
        mode: how events are written; `raw` where rows are plain messages.
        names: the DataFrame's own column names, in order.
        message: positions of the message's columns by their standard names.
        attributes: positions of CloudEvents attributes; empty in raw mode.
        extensions: position of the map of extension attributes.
        encodings: position of the map that says how members of an event are written in structured mode.
        extra: positions of the broker's own columns, by the broker's names.
        row: positions of the columns that are encoded as JSON to be the value; empty where a `value` column exists.
        value_is_json: the values are certainly JSON (we made them).
        json_from: name of the column that holds the rest of the row as JSON, where Spark has already encoded it.
        unencoded: position of the column that holds a row itself where Spark could not encode it; null elsewhere. It
            comes after those of `names`.
        source: the layout of that row.
    """

    mode: ContentMode
    names: tuple[str, ...]
    message: Mapping[str, int]
    attributes: Mapping[str, int] = field(default_factory=dict)
    extensions: int | None = None
    encodings: int | None = None
    extra: Mapping[str, int] = field(default_factory=dict)
    row: tuple[int, ...] = ()
    value_is_json: bool = False
    json_from: str | None = None
    unencoded: int | None = None
    source: Layout | None = None


def resolve(
    schema: t.StructType,
    capabilities: Capabilities,
    *,
    broker: str,
    content_mode: ContentMode | None = None,
    require_attributes: tuple[str, ...] = (),
) -> Layout:
    """Find out what each column means.

    Args:
        schema: of the DataFrame that is written.
        capabilities: of the destination.
        broker: its name, for messages.
        content_mode: as requested; None: `binary` (or `structured`, where the broker has no binary mode) where the
            columns `type` and `source` exist, else `raw`.
        require_attributes: attributes that must have a column.

    Raises:
        ConfigurationError: duplicate columns, a wrong type, a column with no use, a required one missing.
        Unsupported: the broker cannot carry a column, or the content mode.
    """
    positions = _positions(schema)
    mode = content_mode or _mode_of(positions, capabilities)
    if mode == "binary" and capabilities.cloudevents_prefix is None:
        raise Unsupported(f"{broker!r} has no binary mode for CloudEvents; use contentMode=structured")
    whole_row = "value" not in positions
    if {"destination", capabilities.destination_column} <= positions.keys() and not whole_row:
        raise ConfigurationError(
            f"the columns 'destination' and {capabilities.destination_column!r} mean the same here; drop one of them"
        )
    found = _Found(capabilities, broker, events=mode != "raw", whole_row=whole_row)
    for name, position in positions.items():
        found.place(name, position, schema.fields[position].dataType)
    others = found.others
    if whole_row:
        for position in others:
            jsonform.check(schema.fields[position].name, schema.fields[position].dataType)
    elif others:
        own = [*capabilities.columns, *filter(None, [capabilities.destination_column])]
        known = (*MESSAGE, *ATTRIBUTES, EXTENSIONS, ENCODINGS, *own)
        raise _superfluous(schema.fields[others[0]].name, known, mode)
    there = {*found.attributes, *({"id"} & found.message.keys())}
    _check_required(mode, there, require_attributes)
    if whole_row and not others and mode == "raw":
        raise ConfigurationError("there is nothing to send: give a column `value`, or columns that make up the row")
    return Layout(
        mode=mode,
        names=tuple(each.name for each in schema.fields),
        message=found.message,
        attributes={name: position for name, position in found.attributes.items() if name in ATTRIBUTES},
        extensions=found.attributes.get(EXTENSIONS),
        encodings=found.attributes.get(ENCODINGS),
        extra=found.extra,
        row=tuple(others) if whole_row else (),
        value_is_json=whole_row,
    )


def encode_rows(df: DataFrame, layout: Layout, *more: str) -> tuple[DataFrame, Layout]:
    """Let Spark itself encode the rows as JSON, where the DataFrame has no `value` column.

    Args:
        df: the rows.
        layout: of `df` without the columns `more`.
        more: columns that are no part of the rows; they come last.
    """
    from pyspark.sql import functions as f  # noqa: PLC0415 - not needed on the workers

    if not layout.row:
        return (df.select(*map(jsonform.quoted, layout.names), *more) if more else df), layout
    encoded, bad = jsonform.encoded([layout.names[position] for position in layout.row], df.schema)
    row = set(layout.row)
    kept = [
        position
        for position, name in enumerate(layout.names)
        if position not in row or name.lower() in (*MESSAGE, *ATTRIBUTES)
    ]
    moved = {position: index for index, position in enumerate(kept)}
    made = [encoded.alias(VALUE)]
    if bad is not None:  # such a row is kept unencoded, so that the task can show it
        made = [
            f.when(~bad, encoded).alias(VALUE),
            f.when(bad, f.expr(jsonform.as_struct(layout.names))).alias(_UNENCODED),
        ]
    return df.select(*(jsonform.quoted(layout.names[position]) for position in kept), *made, *more), replace(
        layout,
        names=(*(layout.names[position] for position in kept), VALUE),
        message={**{name: moved[position] for name, position in layout.message.items()}, VALUE: len(kept)},
        attributes={name: moved[position] for name, position in layout.attributes.items()},
        extensions=None if layout.extensions is None else moved[layout.extensions],
        encodings=None if layout.encodings is None else moved[layout.encodings],
        extra={name: moved[position] for name, position in layout.extra.items()},
        row=(),
        json_from=VALUE,
        unencoded=None if bad is None else len(kept) + 1,
        source=None if bad is None else layout,
    )


def _mode_of(names: Collection[str], capabilities: Capabilities) -> ContentMode:
    """Return the content mode where none was requested."""
    if "type" not in names or "source" not in names:
        return "raw"
    return "binary" if capabilities.cloudevents_prefix else "structured"


class _Found:
    """Columns by their meaning, while they are being sorted."""

    def __init__(self, capabilities: Capabilities, broker: str, *, events: bool, whole_row: bool) -> None:
        self.message: dict[str, int] = {}
        self.attributes: dict[str, int] = {}
        self.extra: dict[str, int] = {}
        self.others: list[int] = []
        self._capabilities = capabilities
        self._broker = broker
        self._events = events
        self._whole_row = whole_row
        self._own = {name.lower(): name for name in capabilities.columns}
        self._brokers_words = {*self._own, capabilities.destination_column}

    def place(self, name: str, position: int, kind: t.DataType) -> None:
        """Find out the meaning of one column. Raises ConfigurationError, Unsupported."""
        if name == "timestamp" and self._whole_row and not isinstance(kind, _INSTANT):
            self.others.append(position)
        elif self._whole_row and name in self._brokers_words:
            self.others.append(position)  # a table's own `topic` or `partition` is data as a rule: the row keeps it
        elif name == self._capabilities.destination_column:
            _check_message_column("destination", kind, self._capabilities, self._broker, called=name)
            self.message["destination"] = position
        elif name in MESSAGE:
            _check_message_column(name, kind, self._capabilities, self._broker)
            self.message[name] = position
            if self._whole_row and not self._events and name in ("id", "timestamp"):
                self.others.append(position)  # a table's own columns as a rule: the row keeps them
        elif self._events and (name in (*ATTRIBUTES, EXTENSIONS) or (name == ENCODINGS and not self._whole_row)):
            _check_attribute(name, kind)
            self.attributes[name] = position
        elif name in self._own:
            _check_type(name, kind, *_PYTHON.get(self._capabilities.columns[self._own[name]], (_TEXT, "string")))
            self.extra[self._own[name]] = position
        else:
            self.others.append(position)


def maybe_misspelt(layout: Layout) -> str | None:
    """Return a warning where a column of whole rows has nearly the name of a column that is missing; None: none has."""
    for name in (layout.names[position] for position in layout.row):
        for wanted in ("value", "key", "headers"):
            if wanted not in layout.message and difflib.SequenceMatcher(a=name.lower(), b=wanted).ratio() >= _ALIKE:
                return f"the column {name!r} goes into the JSON of the row; if it is the {wanted}, call it {wanted!r}"
    return None


def without_letters(schema: t.StructType) -> tuple[t.StructType, int]:
    """Return the columns of rows that are mended letters, without those of the reader, and where `_position` is.

    Raises:
        ConfigurationError: it has no text column `_position`.
    """
    found = [at for at, each in enumerate(schema.fields) if each.name.lower() == POSITION]
    if len(found) != 1 or not isinstance(schema.fields[found[0]].dataType, t.StringType):
        raise ConfigurationError(
            f"the rows have no text column {POSITION!r}, which says which letter a row stands for: keep it as it was"
        )
    return t.StructType([each for each in schema.fields if each.name.lower() not in READ_ONLY]), found[0]


def _positions(schema: t.StructType) -> dict[str, int]:
    positions: dict[str, int] = {}
    for position, each in enumerate(schema.fields):
        if each.name.lower() in positions:
            raise ConfigurationError(
                f"duplicate column {each.name!r} (case does not count); drop or rename one of them"
            )
        positions[each.name.lower()] = position
    for name in READ_ONLY:
        if name in positions:
            raise ConfigurationError(
                f"the column {name!r} comes from reading dead letters; drop it before writing, "
                ".drop('_error', '_position'), or set removeRedelivered to have the letters removed"
            )
    return positions


def _check_message_column(
    name: str, kind: t.DataType, capabilities: Capabilities, broker: str, *, called: str | None = None
) -> None:
    support = {"key": capabilities.keys, "headers": capabilities.headers, "destination": capabilities.destinations}
    if name in support and not support[name]:
        what = "per-row destinations" if name == "destination" else name if name == "headers" else "keys"
        raise Unsupported(
            f"{broker!r} destinations have no {what}, so the column {called or name!r} would be lost; drop it"
        )
    if name == "headers":
        if not _is_headers(kind):
            wanted = "array<struct<key:string,value:binary>>"
            how = "make them: array(named_struct('key', 'name', 'value', cast('text' as binary)))"
            if isinstance(kind, t.ArrayType) and isinstance(kind.elementType, t.StructType):
                how = f"cast it: .withColumn('headers', col('headers').cast('{wanted}'))"
            elif isinstance(kind, t.MapType):
                text = "e.value" if isinstance(kind.valueType, _BYTES) else "cast(e.value as string)"
                made = f"named_struct('key', e.key, 'value', cast({text} as binary))"
                how = f"""make them: .withColumn('headers', expr("transform(map_entries(headers), e -> {made})"))"""
            raise ConfigurationError(f"the column 'headers' must be {wanted}, not {kind.simpleString()}; {how}")
        return
    _check_type(called or name, kind, *_TYPES[name])


def _is_headers(kind: t.DataType) -> bool:
    if not isinstance(kind, t.ArrayType) or not isinstance(kind.elementType, t.StructType):
        return False
    fields = kind.elementType.fields
    return (
        [each.name.lower() for each in fields] == ["key", "value"]
        and isinstance(fields[0].dataType, _TEXT)
        and isinstance(fields[1].dataType, _BYTES)
    )


def _check_attribute(name: str, kind: t.DataType) -> None:
    if name in (EXTENSIONS, ENCODINGS):
        if not (isinstance(kind, t.MapType) and isinstance(kind.keyType, _TEXT) and isinstance(kind.valueType, _TEXT)):
            raise ConfigurationError(
                f"the column {name!r} must be map<string,string>, not {kind.simpleString()}; cast it"
            )
        return
    accepted, wanted = _TYPES.get(name, (_TEXT, "string"))
    _check_type(name, kind, accepted, wanted)


def _check_type(name: str, kind: t.DataType, accepted: tuple[type[t.DataType], ...], wanted: str) -> None:
    if not isinstance(kind, accepted):
        column, text = f"col({name!r})", accepted == _BYTES or issubclass(t.StringType, accepted)
        if text and kind.simpleString().startswith(_NESTED):
            to = f"write it as JSON: .withColumn({name!r}, to_json({column}))"
        else:  # a number cast to binary would be its bytes
            to = f"cast it: .withColumn({name!r}, {column}.cast({'string' if text else wanted.partition(' ')[0]!r}))"
        raise ConfigurationError(f"the column {name!r} must be {wanted}, not {kind.simpleString()}; {to}")


def _superfluous(name: str, known: tuple[str, ...], mode: ContentMode) -> ConfigurationError:
    if mode == "raw" and name.lower() in (*ATTRIBUTES, EXTENSIONS, ENCODINGS):
        return ConfigurationError(
            f"the column {name!r} is a CloudEvents attribute, which raw messages do not carry; "
            "set contentMode to binary or structured (`type` and `source` are needed), or drop it"
        )
    error = unknown("column", name, known)
    return ConfigurationError(
        f"{error}. With a `value` column every other one must be known, or its data would be lost: "
        "rename or drop it, put it into `headers`, or drop `value` to send the whole row as JSON"
    )


def _check_required(mode: ContentMode, there: Collection[str], require: tuple[str, ...]) -> None:
    if mode == "raw":
        if require:
            raise ConfigurationError(
                "requireAttributes is for events; these rows are raw messages: give columns `type` and `source`"
            )
        return
    missing = [name for name in dict.fromkeys(("type", "source", *require)) if name not in there]
    if missing:
        raise ConfigurationError(
            f"contentMode={mode} needs the columns {', '.join(missing)}; `redelivery.spark.events` makes them"
        )
