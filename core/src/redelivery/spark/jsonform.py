"""A row as JSON, the part that needs no data: which types have a JSON form, and Spark's own expression for it.

`rowjson.py` describes the form itself. Must not import an Arrow library: this module runs in each of the short
processes in which Spark plans a write.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
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
#: So many characters of a wrong value are shown.
_SHOWN: Final = 100
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

    # As SQL: built by calls, a row of 1,000 columns takes seconds, and as many conditions overflow Spark's stack.
    row = f.to_json(f.expr(as_struct(names)), TO_JSON)
    kinds = {each.name: each.dataType for each in schema.fields}
    texts = [quoted(name) for name in names if _holds_text(kinds[name])]
    if not texts:
        return row, None
    readable = f.expr(" AND ".join(f"coalesce(is_valid_utf8(CAST({each} AS string)), true)" for each in texts))
    return row, f.contains(row, f.lit(_REPLACED)) & ~readable


def decoded(text: Column, kind: t.StructType, where: Column) -> tuple[Column, Column, Column]:
    """Return columns of which `decoded_row` makes the row that JSON text stands for, read by Spark itself.

    Args:
        text: a JSON object, as `expression` and `rowjson.encode` write it.
        kind: of the row.
        where: text with which an error begins.
    """
    from pyspark.sql import functions as f  # noqa: PLC0415 - not needed on the workers

    # A letter holds a number with more digits than Python needs as text, and Spark reads such text only as a decimal.
    read = t.StructType([t.StructField(each.name, _floats_as_text(each.dataType)) for each in kind.fields])
    wrong = _wrong(kind)
    read.add(wrong, t.StringType())
    row = f.from_json(text, read, {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": wrong})
    return text.alias("text"), row.alias("row"), where.alias("place")


def decoded_row(kind: t.StructType) -> str:
    """Return the row, in SQL, from the columns of `decoded`.

    It fails the task where the text is no such row. Spark alone would show the reason deep in a trace of the JVM, and
    without `spark.sql.ansi.enabled` it would take text that is no number for null.
    """
    parts = ", ".join(
        f"{_floats(f'row.{quoted(each.name)}', each.dataType, each.name)} AS {quoted(each.name)}"
        for each in kind.fields
    )
    texts = ("text", "to_json(row, map('ignoreNullFields', 'false'))")
    given, taken = (f"from_json({each}, 'map<string,string>')" for each in texts)
    bad = f"filter(map_keys({given}), n -> {given}[n] IS NOT NULL AND {taken}[n] IS NULL)"
    names = f"nullif(concat_ws(', ', array_intersect({bad}, map_keys({taken}))), '')"
    error = f"concat(place, 'its value is not a row of this schema', coalesce(concat('; look at: ', {names}), ''))"
    is_row = f"row IS NOT NULL AND row.{quoted(_wrong(kind))} IS NULL"
    return f"CASE WHEN {is_row} THEN struct({parts}) ELSE raise_error({error}) END"


def _wrong(kind: t.StructType) -> str:
    """Return a name that no column has, for what Spark could not read."""
    names = {name.lower() for name in kind.names}
    return next(name for name in map("_wrong{}".format, itertools.count()) if name not in names)


def _floats(value: str, kind: t.DataType, name: str, depth: int = 0) -> str:
    """Return a value, in SQL, with floats in place of their text, at any depth; text that is none fails the task."""
    if _floats_as_text(kind) == kind:
        return value
    each = f"e{depth}"
    if isinstance(kind, t.ArrayType):
        return f"transform({value}, {each} -> {_floats(each, kind.elementType, f'{name}[]', depth + 1)})"
    if isinstance(kind, t.MapType):
        return f"transform_values({value}, (k, {each}) -> {_floats(each, kind.valueType, f'{name}{{}}', depth + 1)})"
    if isinstance(kind, t.StructType):
        of = [(part.dataType, part.name, quoted(part.name)) for part in kind.fields]
        parts = (f"{_floats(f'{value}.{sql}', part, f'{name}.{told}', depth)} AS {sql}" for part, told, sql in of)
        return f"CASE WHEN {value} IS NOT NULL THEN struct({', '.join(parts)}) END"
    number = f"try_cast({value} AS {kind.simpleString()})"
    said = f"the column {name!r} is of type {kind.simpleString()}, which this is not: "
    literal = said.replace("\\", r"\\").replace("'", r"\'")
    error = f"raise_error(concat(place, '{literal}', left({value}, {_SHOWN})))"
    return f"CASE WHEN {value} IS NOT NULL AND {number} IS NULL THEN {error} ELSE {number} END"


def _floats_as_text(kind: t.DataType) -> t.DataType:
    """Return a type with text in place of floats and doubles, at any depth."""
    if isinstance(kind, t.ArrayType):
        return t.ArrayType(_floats_as_text(kind.elementType), kind.containsNull)
    if isinstance(kind, t.MapType):
        return t.MapType(kind.keyType, _floats_as_text(kind.valueType), kind.valueContainsNull)
    if isinstance(kind, t.StructType):
        return t.StructType([t.StructField(each.name, _floats_as_text(each.dataType)) for each in kind.fields])
    return t.StringType() if isinstance(kind, t.FloatType | t.DoubleType) else kind


def _holds_text(kind: t.DataType) -> bool:
    if isinstance(kind, t.ArrayType):
        return _holds_text(kind.elementType)
    if isinstance(kind, t.MapType):
        return True
    if isinstance(kind, t.StructType):
        return any(_holds_text(each.dataType) for each in kind.fields)
    return isinstance(kind, t.StringType | t.CharType | t.VarcharType)


def as_struct(names: Iterable[str]) -> str:
    """Return the columns as one struct, in SQL."""
    return f"struct({', '.join(map(quoted, names))})"


def quoted(name: str) -> str:
    """Return a column name as Spark takes it literally, including dots."""
    return "`" + name.replace("`", "``") + "`"
