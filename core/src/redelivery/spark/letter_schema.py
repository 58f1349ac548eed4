"""The columns of dead letters in a DataFrame: their types, which of them are wanted, and what they are read from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from pyspark.sql import types as t

from redelivery import registry
from redelivery.base.urls import unknown
from redelivery.contract.broker import Capabilities
from redelivery.errors import ConfigurationError
from redelivery.spark.options import ATTRIBUTES, ENCODINGS, EXTENSIONS, ReadSettings

#: The columns that say why a letter is dead, and where it is stored.
ERROR: Final = "_error"
POSITION: Final = "_position"

_TEXT: Final = t.StringType()
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
#: The columns that all brokers have.
FIELDS: Final[Mapping[str, t.DataType]] = {
    "id": _TEXT,
    "key": t.BinaryType(),
    "value": t.BinaryType(),
    "headers": t.ArrayType(_HEADER),
    "destination": _TEXT,
    "timestamp": _INSTANT,
    **{name: _INSTANT if name == "time" else _TEXT for name in ATTRIBUTES},
    EXTENSIONS: t.MapType(_TEXT, _TEXT),
    ENCODINGS: t.MapType(_TEXT, _TEXT),
    ERROR: t.StructType([t.StructField(name, kind) for name, kind in _ERROR.items()]),
    POSITION: _TEXT,
}
_SQL_TYPES: Final[Mapping[type, t.DataType]] = {
    int: t.LongType(),
    float: t.DoubleType(),
    bool: t.BooleanType(),
    bytes: t.BinaryType(),
}
#: Parts of `_error` that are read from more than headers: what the broker itself reports needs no column.
_ERROR_SOURCES: Final[Mapping[str, frozenset[str]]] = {
    "dead_lettered": frozenset(),
    "message_id": frozenset({"headers", "id"}),
    "target": frozenset({"headers", "destination", "extra"}),
}
_HEADERS: Final = frozenset({"headers"})
#: Columns of a DataFrame that are read from more than headers. An event's attributes are headers, or in its value.
_SOURCES: Final[Mapping[str, frozenset[str]]] = {
    "id": frozenset({"headers", "id"}),
    "key": frozenset({"headers", "key"}),
    "value": frozenset({"headers", "value"}),
    "destination": frozenset({"headers", "destination", "extra"}),
    "timestamp": frozenset({"headers", "timestamp_ms"}),
    POSITION: frozenset(),
}


def schema(settings: ReadSettings) -> t.StructType:
    """Return the columns of a read: the same for all brokers, and the broker's own ones; or those that it names.

    Raises:
        ConfigurationError: it names an unknown column.
    """
    whole = all_columns(registry.installed().by_url(settings.url).capabilities)
    return whole if not settings.columns else only(whole, settings.columns)


def all_columns(there: Capabilities) -> t.StructType:
    """Return all columns of dead letters at a broker with these capabilities."""
    own = {name: _SQL_TYPES.get(kind, _TEXT) for name, kind in there.columns.items()}
    return t.StructType([t.StructField(name, kind) for name, kind in {**own, **FIELDS}.items()])


def check(wanted: t.StructType, there: Capabilities) -> None:
    """Check the columns that a user names by `.schema(...)`.

    Raises:
        ConfigurationError: one is unknown, or has another type; or none is named.
    """
    if not wanted.fields:
        raise ConfigurationError("no column of the dead letters is asked for; name one, or give no schema")
    known = {each.name: each.dataType for each in all_columns(there).fields}
    for each in wanted.fields:
        kind = _of(each.name, known, "column")
        if each.name == ERROR and isinstance(each.dataType, t.StructType):
            for part in each.dataType.fields:
                _check_type(f"{ERROR}.{part.name}", part, _of(part.name, _ERROR, f"part of {ERROR}"))
        else:
            _check_type(each.name, each, kind)


def sources(wanted: t.StructType) -> frozenset[str]:
    """Return the columns of `Batch` that these columns are read from, unless a letter is an event in its value."""
    parts = [each.name for field in wanted.fields if field.name == ERROR for each in _fields(field)]
    found = [_SOURCES.get(name, _HEADERS | {"extra"}) for name in wanted.names if name != ERROR]
    return frozenset().union(*found, *(_ERROR_SOURCES.get(name, _HEADERS) for name in parts))


def error_parts(wanted: t.StructType) -> tuple[str, ...]:
    """Return the wanted parts of `_error`."""
    return tuple(each.name for field in wanted.fields if field.name == ERROR for each in _fields(field))


def _fields(field: t.StructField) -> list[t.StructField]:
    return field.dataType.fields if isinstance(field.dataType, t.StructType) else []


def only(whole: t.StructType, names: Iterable[str]) -> t.StructType:
    """Return the named columns, in the order of their names; `_error.code` is a part of one."""
    known = {each.name: each.dataType for each in whole.fields}
    parts: dict[str, list[str]] = {}
    for name in names:
        column, dot, part = name.partition(".")
        _of(column, known, "column")
        if dot and column != ERROR:
            raise ConfigurationError(f"columns: only {ERROR} has parts, and {name!r} is none of them")
        parts.setdefault(column, []).extend([_known(part, _ERROR, f"part of {ERROR}")] if dot else _ERROR)
    error = {name: _ERROR[name] for name in parts.get(ERROR, ())}
    kinds = {**known, ERROR: t.StructType([t.StructField(name, kind) for name, kind in error.items()])}
    return t.StructType([t.StructField(name, kinds[name]) for name in parts])


def _of(name: str, known: Mapping[str, t.DataType], what: str) -> t.DataType:
    return known[_known(name, known, what)]


def _known(name: str, known: Mapping[str, t.DataType], what: str) -> str:
    if name not in known:
        raise ConfigurationError(str(unknown(what, name, known)))
    return name


def _check_type(name: str, given: t.StructField, kind: t.DataType) -> None:
    if given.dataType != kind or not given.nullable:
        written = given.dataType.simpleString() + ("" if given.nullable else " not null")
        raise ConfigurationError(
            f"the column {name} of dead letters is {kind.simpleString()}, and may be null; it cannot be read as "
            f"{written}: cast it afterwards"
        )
