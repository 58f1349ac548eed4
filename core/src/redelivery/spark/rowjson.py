"""A row as JSON: one meaning, whether Spark's JVM writes it (`jsonform.expression`) or Python does (`encode`).

Every column is a member, null ones too. Timestamps are RFC 3339 in UTC with microseconds (those without a time zone
have no offset), dates ISO 8601, binary base64, decimals numbers, NaN and the infinities strings, structs and maps
objects, arrays arrays.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from redelivery.base.json import dumps
from redelivery.spark import vectors


def encode(columns: Mapping[str, Any]) -> Any:
    """Return rows as JSON text, made from Arrow arrays a column at a time.

    Args:
        columns: arrays of equal length, by name; at least one.

    Returns:
        An Arrow array of text.
    """
    parts = []
    lead = "{"
    for name, array in columns.items():
        parts += [pa.scalar(f"{lead}{json.dumps(name, ensure_ascii=False)}:"), _fragments(array)]
        lead = ","
    return pc.binary_join_element_wise(*parts, pa.scalar("}"), "")


def _plain(value: Any) -> Any:
    """Return a value that holds no others as JSON-ready data. Decimals are unchanged."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, dt.datetime):
        return _instant(value)
    return value.isoformat() if isinstance(value, dt.date) else value


def quote(array: Any) -> Any:
    """Return text as JSON strings; null stays null. Quick where no character needs escaping."""
    # binary_join_element_wise and the regular expression work on the bytes, so nothing is decoded.
    risky = pc.match_substring_regex(array, r'[\x00-\x1f"\\]')
    if pc.any(risky).as_py():
        array = pa.array(
            [None if v is None else json.dumps(v, ensure_ascii=False)[1:-1] for v in array.to_pylist()], pa.string()
        )
    marker = pa.scalar('"')
    return pc.binary_join_element_wise(marker, array, marker, "")


def _instant(value: dt.datetime) -> str:
    if value.tzinfo is None:
        return value.isoformat(timespec="microseconds")
    return value.astimezone(dt.UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def timestamps(array: Any) -> Any:
    """Return timestamps as text: with a time zone RFC 3339 in UTC, without one no offset."""
    zone = "" if array.type.tz is None else "Z"
    naive = array.cast(pa.timestamp("us", array.type.tz)).cast(pa.int64()).cast(pa.timestamp("us"))
    text = pc.replace_substring(_signed(naive.cast(pa.string())), " ", "T", max_replacements=1)
    return pc.binary_join_element_wise(text, pa.scalar(zone), "")


def dates(array: Any) -> Any:
    """Return dates as ISO 8601 text."""
    return _signed(array.cast(pa.string()))


def _signed(texts: Any) -> Any:
    """Return dates with a sign where the year has more than four digits, as ISO 8601 and Spark write them."""
    late = pc.match_substring_regex(texts, "^[0-9]{5}")
    if not pc.any(late).as_py():
        return texts
    return pc.if_else(late, pc.binary_join_element_wise("+", texts, ""), texts)


def _fragments(array: Any) -> Any:
    """Return each value as JSON text, nulls as `null`."""
    kind = array.type
    if pa.types.is_null(kind):
        return pa.array(["null"] * len(array), pa.string())
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        text = quote(array)
    elif pa.types.is_timestamp(kind):
        text = in_quotes(timestamps(array))
    elif pa.types.is_date(kind):
        text = in_quotes(dates(array))
    elif pa.types.is_floating(kind):
        text = _float_fragments(array)
    elif pa.types.is_integer(kind) or pa.types.is_decimal(kind) or pa.types.is_boolean(kind):
        text = array.cast(pa.string())
    elif pa.types.is_binary(kind):
        values = vectors.to_list(array)
        text = in_quotes(pa.array([None if v is None else base64.b64encode(v).decode() for v in values], pa.string()))
    else:
        try:
            plain = [plain_of(value, kind) for value in array.to_pylist()]
        except OverflowError:  # a date or timestamp that Spark has, and Python has not
            plain = [plain_scalar(value) for value in array]
        return pa.array([dumps(value) for value in plain], pa.string())
    return pc.fill_null(text, "null")


def in_quotes(array: Any) -> Any:
    """Return text that needs no escaping as JSON strings; null stays null."""
    marker = pa.scalar('"')
    return pc.binary_join_element_wise(marker, array, marker, "")


def _float_fragments(array: Any) -> Any:
    text = array.cast(pa.string())
    # Arrow writes 3 for 3.0; a reader that distinguishes whole numbers from others must see no difference.
    whole = pc.match_substring_regex(text, "^-?[0-9]+$")
    text = pc.if_else(whole, pc.binary_join_element_wise(text, pa.scalar(".0"), ""), text)
    finite = pc.fill_null(pc.is_finite(array), pa.scalar(value=True))
    if pc.all(finite).as_py() in (True, None):
        return text
    names = pc.if_else(
        pc.is_nan(array), "NaN", pc.if_else(pc.greater(array, pa.scalar(0.0, array.type)), "Infinity", "-Infinity")
    )
    return pc.if_else(finite, text, in_quotes(names))


def plain_values(array: Any) -> list[Any]:
    """Return the values of an array as `plain_scalar` returns them. Raises ValueError, OverflowError: one has none."""
    kind = array.type
    values: list[Any] = array.to_pylist()
    if pa.types.is_string(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return values
    return [plain_of(value, kind) for value in values]


def plain_scalar(scalar: Any) -> Any:
    """Return an Arrow value as JSON-ready data, as `plain_of`; also dates and timestamps beyond Python's range."""
    kind = scalar.type
    try:
        return plain_of(scalar.as_py(), kind)
    except OverflowError:
        if pa.types.is_map(kind):
            return {str(_plain(each["key"].as_py())): plain_scalar(each["value"]) for each in scalar.values}
        if pa.types.is_list(kind):
            return [plain_scalar(each) for each in scalar.values]
        if pa.types.is_struct(kind):
            return {each.name: plain_scalar(scalar[index]) for index, each in enumerate(kind)}
        array = pa.array([scalar], kind)
        return (timestamps(array) if pa.types.is_timestamp(kind) else dates(array))[0].as_py()


def plain_of(value: Any, kind: Any) -> Any:
    """Return a value from `to_pylist` as JSON-ready data of the same meaning, by its Arrow type. Decimals stay."""
    if value is None:
        return None
    if pa.types.is_map(kind):
        return {str(_plain(name)): plain_of(each, kind.item_type) for name, each in value}
    if pa.types.is_list(kind):
        return [plain_of(each, kind.value_type) for each in value]
    if pa.types.is_struct(kind):
        return {each.name: plain_of(value[each.name], each.type) for each in kind}
    if pa.types.is_float32(kind) and math.isfinite(value):
        return float(str(np.float32(value)))  # the shortest text that means this float, as Spark writes it
    return _plain(value)
