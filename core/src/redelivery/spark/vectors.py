"""Turns Arrow arrays into the lists and digests that a batch is made of, a column at a time.

None of these functions is called for a single row.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from redelivery.contract.message import Column, Header, Headers

_TRUE = pa.scalar(True)  # noqa: FBT003 - a value, not a switch
#: Characters that no header name may hold: clients cut names at them, or let them forge further headers.
CONTROL = r"[\x00-\x1f\x7f]"


def as_array(column: Any) -> Any:
    """Return a chunked array as one array; any other unchanged."""
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def as_binary(array: Any) -> Any:
    """Return text as its UTF-8 bytes, without copying; bytes unchanged."""
    return array if pa.types.is_binary(array.type) else array.cast(pa.binary())


def to_list(array: Any) -> list[Any]:
    """Return text or bytes as a list; nulls are None. Five times faster than `to_pylist` for bytes."""
    values: list[Any] = array.to_numpy(zero_copy_only=False).tolist()
    return values


def plain(array: Any) -> Any:
    """Return an array in the expected form: timestamps with a zone in UTC, text and bytes of Arrow's plain types.

    Spark uses the session's time zone, which varies, and large types where it is configured so.
    """
    kind = _plain_type(array.type)
    if kind == array.type:
        return array
    if pa.types.is_timestamp(kind):  # through numbers: Arrow lacks some zones that Spark knows
        return array.cast(pa.int64()).cast(kind)
    return array.cast(kind)


def _plain_type(kind: Any) -> Any:
    if pa.types.is_timestamp(kind):
        return kind if kind.tz is None else pa.timestamp(kind.unit, "UTC")
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_plain_type(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(_plain_type(kind.key_type), _plain_type(kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct([(each.name, _plain_type(each.type)) for each in kind])
    return _SMALL.get(kind, kind)


_SMALL = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}


def text_column(array: Any) -> Column[str | None]:
    """Return a text array as a column."""
    return Column(len(array), lambda: to_list(array), arrow=array)


def bytes_column(array: Any) -> Column[bytes | None]:
    """Return a bytes or text array as a column of bytes."""
    binary = as_binary(array)
    return Column(len(array), lambda: to_list(binary), arrow=binary)


def any_column(array: Any) -> Column[Any]:
    """Return an array of any type as a column of Python's own values."""
    return Column(len(array), array.to_pylist, arrow=array)


def timestamp_column(array: Any) -> Column[int | None]:
    """Return timestamps as milliseconds since the epoch, rounded down."""
    millis = pc.cast(pc.floor_temporal(array, unit="millisecond"), pa.timestamp("ms", array.type.tz)).cast(pa.int64())
    return Column(len(array), millis.to_pylist, arrow=millis)


def header_parts(array: Any) -> tuple[Any, Any, Any]:
    """Return names, values (as bytes) and row bounds of a column `array<struct<key, value>>`.

    Returns:
        The headers' names and values, all rows' one after the other, and `bounds`: row i has those from
        `bounds[i]` to `bounds[i + 1]`.
    """
    lengths = pc.fill_null(pc.list_value_length(array), 0)
    bounds = np.concatenate(([0], np.cumsum(lengths.to_numpy(zero_copy_only=False), dtype=np.int64)))
    names, values = array.flatten().flatten()
    return names, as_binary(values), bounds


def headers_column(array: Any) -> Column[Headers]:
    """Return Spark's headers as (name, bytes) pairs."""

    def load() -> list[Headers]:
        names, values, bounds = header_parts(array)
        pairs: list[Header] = list(zip(to_list(names), to_list(values), strict=True))
        return [tuple(pairs[start:end]) for start, end in itertools.pairwise(bounds.tolist())]

    return Column(len(array), load, arrow=array)


def bad_headers(array: Any, pattern: str) -> Any:
    """Return a mask (numpy) of the rows with a header that is null, has no name, or whose name matches the pattern."""
    names, _, bounds = header_parts(array)
    bad = pc.fill_null(pc.match_substring_regex(names, pattern), _TRUE)
    if not pc.any(bad).as_py():
        return np.zeros(len(array), dtype=bool)
    before = np.concatenate(([0], np.cumsum(bad.to_numpy(zero_copy_only=False))))
    return before[bounds[1:]] > before[bounds[:-1]]


def rows_with_header(array: Any, wanted: Collection[str]) -> list[int]:
    """Return the rows of a column of headers that have one of these names, ascending."""
    names, _, bounds = header_parts(array)
    found = np.flatnonzero(pc.is_in(names, value_set=pa.array(wanted, pa.string())).to_numpy(zero_copy_only=False))
    rows: list[int] = np.unique(np.searchsorted(bounds, found, side="right") - 1).tolist()
    return rows


def rows_with_text(array: Any, wanted: Collection[str], text: str) -> Any:
    """Return a mask (numpy) of the rows of a column of headers of which one with one of these names holds this text."""
    mask = np.zeros(len(array), dtype=bool)
    names, values, bounds = header_parts(array)
    found = np.flatnonzero(pc.is_in(names, value_set=pa.array(wanted, pa.string())).to_numpy(zero_copy_only=False))
    if len(found):
        holds = pc.fill_null(pc.match_substring(values.take(pa.array(found)), text), pa.scalar(value=False))
        found = found[holds.to_numpy(zero_copy_only=False)]
        mask[np.searchsorted(bounds, found, side="right") - 1] = True
    return mask


def unreadable(array: Any) -> Any:
    """Return a mask (numpy) of the rows whose text is not UTF-8, which Spark allows; None where all rows are good."""
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        return np.array([_is_unreadable(array.take([index])) for index in range(len(array))])
    return None


def _is_unreadable(row: Any) -> bool:
    try:
        row.validate(full=True)
    except pa.ArrowInvalid:
        return True
    return False


def text_as_bytes(kind: Any) -> Any:
    """Return an Arrow type with binary in place of text, at any depth."""
    if pa.types.is_string(kind):
        return pa.binary()
    if pa.types.is_list(kind):
        return pa.list_(text_as_bytes(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(text_as_bytes(kind.key_type), text_as_bytes(kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct([(each.name, text_as_bytes(each.type)) for each in kind])
    return kind


def digests(arrays: list[Any]) -> Any:
    """Return a 64-bit digest of each row over several columns: text, bytes, headers, timestamps; one uint64 per row.

    Nulls differ from empty values, and a value moved to the next column makes another digest.
    """
    total = np.full(len(arrays[0]), _SEED, dtype=np.uint64)
    for array in arrays:
        total = (total ^ (total >> np.uint64(29))) * _PRIME + _digest(array)
    return total ^ (total >> np.uint64(32))


_SEED = np.uint64(0x9E3779B97F4A7C15)
_PRIME = np.uint64(0xBF58476D1CE4E5B9)


def _digest(array: Any) -> Any:
    if pa.types.is_list(array.type):
        return _list_digest(array)
    if pa.types.is_map(array.type):
        pairs = pa.ListArray.from_arrays(
            array.offsets, pa.StructArray.from_arrays([array.keys, array.items], ["key", "value"])
        )
        return _list_digest(pairs)
    if not (pa.types.is_string(array.type) or pa.types.is_binary(array.type) or pa.types.is_large_string(array.type)):
        array = array.cast(pa.string())
    from pandas.util import hash_array  # noqa: PLC0415 - slow to import, and not needed where no id is derived

    nulls = array.is_null().to_numpy(zero_copy_only=False)
    hashed = hash_array(as_binary(array).to_numpy(zero_copy_only=False), categorize=False)
    return np.where(nulls, _SEED, hashed)


def _list_digest(array: Any) -> Any:
    """Return the digest of each row's list of (key, value) pairs, including their order."""
    names, values, bounds = header_parts(array)
    lengths = np.diff(bounds)
    if not len(names):
        return lengths.astype(np.uint64)
    within = np.arange(len(names), dtype=np.int64) - np.repeat(bounds[:-1], lengths)
    with np.errstate(over="ignore"):
        each = digests([names, values]) * (within.astype(np.uint64) * np.uint64(2) + np.uint64(1))
    sums = np.concatenate((np.zeros(1, dtype=np.uint64), np.cumsum(each, dtype=np.uint64)))
    return sums[bounds[1:]] - sums[bounds[:-1]] + lengths.astype(np.uint64)


def hexadecimal(numbers: Any) -> Any:
    """Return 64-bit numbers as an Arrow array of 16 hexadecimal digits each."""
    digits = numbers.astype(">u8").tobytes().hex().encode()
    offsets = np.arange(0, len(digits) + 1, 16, dtype=np.int32)
    return pa.StringArray.from_buffers(len(numbers), pa.py_buffer(offsets.tobytes()), pa.py_buffer(digits))
