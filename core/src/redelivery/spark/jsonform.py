"""A row as JSON, the part that needs no data: which types have a JSON form, and Spark's own expression for it.

`rowjson.py` describes the form itself. Must not import an Arrow library: this module runs in each of the short
processes in which Spark plans a write.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql import types as t

from redelivery.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import Column

#: Options of Spark's `to_json` for the form that `rowjson.py` describes.
TO_JSON: Final = {
    "ignoreNullFields": "false",
    "timeZone": "UTC",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "dateFormat": "yyyy-MM-dd",
}

#: The character that Spark writes for bytes that are not a character.
_REPLACED: Final = "\ufffd"
_NOT_UTF8: Final = (
    "redelivery: a text column of a row is not UTF-8, so the row has no JSON form; write it by "
    'df.write.format("redelivery"), which dead-letters such rows, or make the column valid (make_valid_utf8)'
)
_SIMPLE: Final = (
    t.StringType,
    t.BinaryType,
    t.BooleanType,
    t.ByteType,
    t.ShortType,
    t.IntegerType,
    t.LongType,
    t.FloatType,
    t.DoubleType,
    t.DecimalType,
    t.DateType,
    t.TimestampType,
    t.TimestampNTZType,
    t.NullType,
    t.CharType,
    t.VarcharType,
)
#: Types that Spark does not cast to text.
_SHAPES: Final = ("geography", "geometry")


def check(name: str, kind: t.DataType) -> None:
    """Refuse a type that has no JSON form here.

    Raises:
        ConfigurationError: names the column, and says to cast it.
    """
    if isinstance(kind, t.ArrayType):
        check(f"{name}[]", kind.elementType)
    elif isinstance(kind, t.StructType):
        for each in kind.fields:
            check(f"{name}.{each.name}", each.dataType)
    elif isinstance(kind, t.MapType):
        check(f"{name}{{}}", kind.valueType)
        if not isinstance(kind.keyType, t.StringType):
            raise ConfigurationError(
                f"the map {name!r} has keys that are not text, which JSON has not; "
                f"cast them: .cast('map<string,{kind.valueType.simpleString()}>')"
            )
    elif not isinstance(kind, _SIMPLE):
        how = "write it as binary, st_asbinary" if kind.typeName() in _SHAPES else "cast it to string"
        raise ConfigurationError(
            f"the column {name!r} of type {kind.simpleString()} has no JSON form; {how}, or drop it"
        )


def expression(names: Sequence[str], schema: t.StructType) -> Column:
    """Return the row as JSON text, made by Spark itself. It fails the task where text is not UTF-8.

    Spark alone would silently replace invalid bytes by another character.
    """
    from pyspark.sql import functions as f  # noqa: PLC0415 - not needed on the workers

    row, bad = encoded(names, schema)
    return row if bad is None else f.when(~bad, row).otherwise(f.raise_error(f.lit(_NOT_UTF8)))


def encoded(names: Sequence[str], schema: t.StructType) -> tuple[Column, Column | None]:
    """Return the row as JSON text, made by Spark itself, and whether it is wrong, because text is not UTF-8.

    Returns:
        The text, and a condition; None where no column holds text.
    """
    from pyspark.sql import functions as f  # noqa: PLC0415 - not needed on the workers

    row = f.to_json(f.struct(*(f.col(quoted(name)) for name in names)), TO_JSON)
    texts = [f.col(quoted(name)).cast("string") for name in names if _holds_text(schema[name].dataType)]
    if not texts:
        return row, None
    readable = functools.reduce(operator.and_, (f.coalesce(f.is_valid_utf8(each), f.lit(True)) for each in texts))  # noqa: FBT003 - Spark's signature
    return row, f.contains(row, f.lit(_REPLACED)) & ~readable


def floats_as_text(kind: t.DataType) -> t.DataType:
    """Return a type with text in place of floats and doubles, at any depth."""
    if isinstance(kind, t.ArrayType):
        return t.ArrayType(floats_as_text(kind.elementType), kind.containsNull)
    if isinstance(kind, t.MapType):
        return t.MapType(kind.keyType, floats_as_text(kind.valueType), kind.valueContainsNull)
    if isinstance(kind, t.StructType):
        return t.StructType([t.StructField(each.name, floats_as_text(each.dataType)) for each in kind.fields])
    return t.StringType() if isinstance(kind, t.FloatType | t.DoubleType) else kind


def _holds_text(kind: t.DataType) -> bool:
    if isinstance(kind, t.ArrayType):
        return _holds_text(kind.elementType)
    if isinstance(kind, t.MapType):
        return True
    if isinstance(kind, t.StructType):
        return any(_holds_text(each.dataType) for each in kind.fields)
    return isinstance(kind, t.StringType | t.CharType | t.VarcharType)


def quoted(name: str) -> str:
    """Return a column name as Spark takes it literally, including dots."""
    return "`" + name.replace("`", "``") + "`"
