"""CloudEvents from columns, a column at a time: which rows may be invalid events, and events in both content modes.

Computes only masks for all rows. `redelivery.formats.events` decides whether a suspicious row is a valid event.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from redelivery.codes import Code
from redelivery.contract.message import Column, Headers
from redelivery.errors import Permanent
from redelivery.formats import events
from redelivery.spark import rowjson, vectors
from redelivery.spark.ids import Ids

CONTENT_TYPE: Final = "content-type"
#: The body of an event in structured mode.
STRUCTURED: Final = "application/cloudevents+json"
JSON: Final = "application/json"

#: Texts that are certainly good; all others are checked row by row. Days 29 to 31 depend on the month.
_PLAIN: Final[Mapping[str, str]] = {
    "type": r"^[ -~]+$",
    "subject": r"^[ -~]+$",
    "source": r"^([a-z][a-z0-9+.-]*:)?((//[A-Za-z0-9._~-]+(:[0-9]+)?)?/[A-Za-z0-9._~/!$&()*+,;=-]*"
    r"|[A-Za-z0-9._~!$&()*+,;=-]+|//[A-Za-z0-9._~-]+(:[0-9]+)?)$",
    "specversion": r"^1\.0$",
    "datacontenttype": r"^[a-z]+/[a-z0-9.+-]+$",
    "dataschema": r"^[a-z][a-z0-9+.-]*://[A-Za-z0-9._~-]+(:[0-9]+)?(/[A-Za-z0-9._~/!$&()*+,;=-]*)?$",
    "id": r"^[ -~]+$",
    "time": r"^[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])"
    r"T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?Z$",
}
_REQUIRED: Final = ("type", "source")
_JSON_TYPE: Final = r"(?i)^[^;]*[/+]json\s*(;|$)"
_TEXT_TYPE: Final = r"(?i)^\s*text/"
#: How a member is written in structured mode: as the JSON that it already is, as a JSON string, as base64 (data only).
ENCODED: Final = ("json", "string", "base64")
_DATA: Final = "data"


@dataclass
class Events:
    """Rows seen as events.

    Attributes:
        length: number of rows.
        attributes: arrays by attribute name; `specversion` null means that the row is a plain message, no event.
        extensions: array of maps. A `time` among them is the exact time, where a timestamp cannot hold it. It counts
            while the attribute `time` is null, or differs from it only below a microsecond.
        encodings: array of maps: how `data` and extensions are written in structured mode (`ENCODED`).
        data: the values.
        data_is_json: they are certainly JSON.
        explicit_id: the `id` column.
    """

    length: int
    attributes: Mapping[str, Any]
    extensions: Any
    encodings: Any
    data: Any
    data_is_json: bool
    explicit_id: Any

    @cached_property
    def mask(self) -> Any:
        """Return an Arrow mask of the rows that are events; None where all are."""
        version = self.attributes.get("specversion")
        if version is None or not version.null_count:
            return None
        return version.is_valid()

    def is_event(self, index: int) -> bool:
        """Whether row `index` is an event."""
        return self.mask is None or bool(self.mask[index].as_py())

    @cached_property
    def texts(self) -> dict[str, Any]:
        """Return attributes as text arrays, null where the row is not an event; `specversion` always included."""
        texts = {"specversion": pa.repeat("1.0", self.length)} | dict(self.attributes)
        if "time" in texts and pa.types.is_timestamp(texts["time"].type):
            moments = texts["time"]
            if moments.type.tz is None:  # without a zone it is taken as UTC: an event's time needs one
                moments = moments.cast(pa.int64()).cast(pa.timestamp("us", "UTC"))
            texts["time"] = rowjson.timestamps(moments)
        if self.extensions is not None and pc.any(pc.equal(self.extensions.keys, pa.scalar("time"))).as_py():
            texts["time"] = _exact_times(texts.get("time"), self.extensions)
        if self.data_is_json and "datacontenttype" not in texts:
            texts["datacontenttype"] = pa.repeat(JSON, self.length)
        if self.mask is not None:
            nothing = pa.scalar(None, pa.string())
            texts = {name: pc.if_else(self.mask, array, nothing) for name, array in texts.items()}
        return texts

    @cached_property
    def json_typed(self) -> Any:
        """Return an Arrow mask of the rows whose data is declared as JSON."""
        if "datacontenttype" not in self.texts:
            return pa.array(np.zeros(self.length, dtype=bool))
        return pc.fill_null(pc.match_substring_regex(self.texts["datacontenttype"], _JSON_TYPE), pa.scalar(value=False))

    @cached_property
    def ways(self) -> list[dict[str, str]] | None:
        """Return each row's encodings; None where no row has any."""
        if self.encodings is None or self.encodings.null_count == self.length:
            return None
        return [dict(each or ()) for each in _of_events(self, self.encodings).to_pylist()]

    def own_extensions(self) -> list[dict[str, str]]:
        """Return each row's extensions, without those that are null, and without the time."""
        return [
            {name: value for name, value in each or () if value is not None and name != "time"}
            for each in _of_events(self, self.extensions).to_pylist()
        ]


def is_json_type(content_type: str) -> bool:
    """Whether data of this type is JSON."""
    return re.search(_JSON_TYPE, content_type) is not None


def default_way(data: bytes, content_type: str, *, is_text: bool = False) -> str:
    """Return how data is written in structured mode where the row does not specify it: bytes, or text as bytes."""
    if is_json_type(content_type):
        return "json"
    return "string" if is_text or (re.search(_TEXT_TYPE, content_type) and _is_utf8(data)) else "base64"


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _exact_times(times: Any, extensions: Any) -> Any:
    """Return times as text; the exact time in the extensions where it is the same to the microsecond."""
    told = [None] * len(extensions) if times is None else times.to_pylist()
    for index, each in enumerate(extensions.to_pylist()):
        exact = dict(each or ()).get("time")
        if exact is not None and (told[index] is None or _micros(exact) == _micros(str(told[index]))):
            told[index] = exact
    return pa.array(told, pa.string())


def _micros(text: str) -> dt.datetime | None:
    """Return a time, cut to microseconds; None where the text is not a time."""
    try:
        return dt.datetime.fromisoformat(text.upper())
    except ValueError:
        return None


def identities(rows: Events, ids: Any) -> Any:
    """Return `redelivery.formats.identity.of_event` of each event, null for a plain message or a null id."""
    source = rows.texts["source"]
    return pc.binary_join_element_wise(pc.utf8_length(source).cast(pa.string()), source, ids, " ")


def taken_names(prefix: str | None) -> str:
    """Return a regular expression of the header names that an event's own attributes are written to."""
    names = "(?i:^content-type$)"
    return names if prefix is None else f"{names}|^{re.escape(prefix)}"


def suspicious(rows: Events, require: tuple[str, ...], *, check_data: bool) -> Any:
    """Return a mask (numpy) of the rows that may not be valid events."""
    bad = np.zeros(rows.length, dtype=bool)
    texts = rows.texts if rows.explicit_id is None else {**rows.texts, "id": rows.explicit_id.cast(pa.string())}
    for name, array in texts.items():
        optional = name not in (*_REQUIRED, *require)
        plain = pc.fill_null(pc.match_substring_regex(array, _PLAIN[name]), pa.scalar(optional))
        bad |= ~plain.to_numpy(zero_copy_only=False)
    if rows.extensions is not None:
        bad |= pc.is_valid(rows.extensions).to_numpy(zero_copy_only=False)
    if check_data and rows.ways is not None:
        bad |= rows.encodings.is_valid().to_numpy(zero_copy_only=False)
    if check_data and not rows.data_is_json:
        bad |= rows.json_typed.to_numpy(zero_copy_only=False)
    if rows.mask is not None:
        bad &= rows.mask.to_numpy(zero_copy_only=False)
    return bad


def lacking(rows: Events, name: str) -> Any:
    """Return a mask (numpy) of the rows without an attribute, or with an empty one."""
    values = rows.explicit_id if name == "id" else rows.texts.get(name)
    if values is None:
        return np.ones(rows.length, dtype=bool)
    bad = values.is_null()
    if pa.types.is_string(values.type):
        bad = pc.or_(bad, pc.fill_null(pc.equal(values, pa.scalar("")), pa.scalar(value=False)))
    return bad.to_numpy(zero_copy_only=False)


def missing(name: str) -> Permanent:
    """Return the error of a row without a required attribute."""
    return Permanent(
        f"the attribute {name!r} is required (requireAttributes), and it is null",
        code=Code.INVALID_MESSAGE,
        native_code=f"missing-{name}",
    )


def judge(rows: Events, index: int, require: tuple[str, ...], *, check_data: bool) -> Permanent | None:
    """Return why one row is not a valid event; None where it is valid."""
    attributes = {name: array[index].as_py() for name, array in rows.texts.items()}
    explicit = None if rows.explicit_id is None else rows.explicit_id[index].as_py()
    for name in require:
        value = explicit if name == "id" else attributes.get(name)
        if value is None or value == "":
            return missing(name)
    extensions: dict[str, Any] = {} if rows.extensions is None else dict(rows.extensions[index].as_py() or ())
    extensions.pop("time", None)  # it is already among the attributes
    ways = {} if rows.ways is None else rows.ways[index]
    taken = sorted(set(extensions) & {*events.ATTRIBUTES, "data"})
    if taken:
        return Permanent(
            f"the extension attribute {taken[0]!r} has a name that is not free",
            code=Code.INVALID_MESSAGE,
            native_code="invalid-attribute-name",
        )
    try:
        if check_data:
            extensions |= _typed(extensions, ways)
        # A row without its own id gets one that is valid.
        events.validate({**extensions, **attributes, "id": "derived" if explicit is None else str(explicit)})
    except Permanent as error:
        return error
    if not check_data or rows.data_is_json:
        return None
    data = vectors.as_binary(rows.data.slice(index, 1))[0].as_py()
    way, says = ways.get(_DATA), "the column 'encodings' says"
    if way is None and rows.json_typed[index].as_py():
        way, says = "json", "datacontenttype says"
    return None if data is None else _judge_data(data, way, says)


def _typed(extensions: Mapping[str, Any], ways: Mapping[str, str]) -> dict[str, Any]:
    """Return the values of those extensions that are JSON. Raises Permanent."""
    typed = {}
    for name, way in ways.items():
        if way not in ENCODED:
            raise Permanent(
                f"the column 'encodings' says {way!r:.40} of {name!r}; it must be one of {', '.join(ENCODED)}",
                code=Code.INVALID_MESSAGE,
                native_code="invalid-encodings",
            )
        if way == "json" and extensions.get(name) is not None:
            try:
                typed[name] = json.loads(extensions[name], parse_constant=_refuse_constant)
            except (ValueError, RecursionError) as error:
                text = f"the column 'encodings' says that the extension {name!r} is JSON, and it is not: {error}"
                raise Permanent(text, code=Code.INVALID_MESSAGE, native_code=f"invalid-{name}") from error
    return typed


def _judge_data(data: bytes, way: str | None, says: str) -> Permanent | None:
    """Return why data cannot be written this way."""
    try:
        if way == "json":
            json.loads(data.decode("utf-8"), parse_constant=_refuse_constant)
        if way == "string":
            data.decode("utf-8")
    except (ValueError, RecursionError) as error:
        what = "JSON" if way == "json" else "text"
        refused = Permanent(
            f"{says} {what}, and the value is not: {error}", code=Code.INVALID_MESSAGE, native_code="invalid-data"
        )
        refused.__cause__ = error
        return refused
    return None


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


# --- binary mode ---------------------------------------------------------------------------------------------------


def binary_headers(rows: Events, ids: Ids, own: Column[Headers] | None, prefix: str) -> Column[Headers]:
    """Return attributes as headers `<prefix><name>`, followed by the rows' own headers."""

    def load() -> list[Headers]:
        names = list(rows.texts)
        headers = [CONTENT_TYPE if name == "datacontenttype" else prefix + name for name in names]
        columns = [
            _pairs(header, vectors.as_binary(rows.texts[name])) for header, name in zip(headers, names, strict=True)
        ]
        columns.append(_pairs(prefix + "id", vectors.as_binary(_of_events(rows, ids.array))))
        if all(not rows.texts[name].null_count for name in names) and rows.mask is None:
            loaded: list[Headers] = list(zip(*columns, strict=True))
        else:
            loaded = [tuple(pair for pair in row if pair[1] is not None) for row in zip(*columns, strict=True)]
        if rows.extensions is not None:
            more = [
                tuple((prefix + name, value.encode()) for name, value in each.items()) for each in rows.own_extensions()
            ]
            loaded = [a + b for a, b in zip(loaded, more, strict=True)]
        return loaded if own is None else [a + b for a, b in zip(loaded, own.values, strict=True)]

    return Column(rows.length, load)


def _pairs(name: str, array: Any) -> list[tuple[str, bytes | None]]:
    return [(name, value) for value in vectors.to_list(array)]


def _of_events(rows: Events, array: Any) -> Any:
    """Return an array with null where the row is not an event."""
    return array if rows.mask is None else pc.if_else(rows.mask, array, pa.scalar(None, array.type))


# --- structured mode -----------------------------------------------------------------------------------------------


def structured_headers(rows: Events, own: Column[Headers] | None) -> Column[Headers]:
    """Return the content type of an event in JSON, followed by the rows' own headers."""

    def load() -> list[Headers]:
        said: Headers = ((CONTENT_TYPE, STRUCTURED.encode()),)
        mask = [True] * rows.length if rows.mask is None else rows.mask.to_pylist()
        if own is None:
            return [said if is_event else () for is_event in mask]
        return [said + each if is_event else each for is_event, each in zip(mask, own.values, strict=True)]

    return Column(rows.length, load)


def structured(rows: Events, ids: Any) -> Any:
    """Return events in JSON; where a row is not an event, its unchanged value.

    Args:
        rows: valid rows.
        ids: array of text.

    Returns:
        An Arrow array of text, or of bytes where some rows are not events.
    """
    parts = [pa.scalar('{"id":'), rowjson.quote(ids)]
    for name, array in rows.texts.items():
        parts.append(_member(name, rowjson.quote(array)))
    if rows.extensions is not None:
        parts.append(_extension_members(rows))
    parts += [_data(rows), pa.scalar("}")]
    body = pc.binary_join_element_wise(*parts, "")
    return body if rows.mask is None else pc.if_else(rows.mask, vectors.as_binary(body), vectors.as_binary(rows.data))


def _member(name: str, json_text: Any) -> Any:
    """Return `,"name":value`, or nothing where the value is null."""
    return pc.fill_null(pc.binary_join_element_wise(pa.scalar(f',"{name}":'), json_text, ""), "")


def _extension_members(rows: Events) -> Any:
    ways = rows.ways or [{}] * rows.length
    texts = [
        "".join(
            f",{json.dumps(n)}:{v if way.get(n) == 'json' else json.dumps(v, ensure_ascii=False)}"
            for n, v in each.items()
        )
        for each, way in zip(rows.own_extensions(), ways, strict=True)
    ]
    return pa.array(texts, pa.string())


def _data(rows: Events) -> Any:
    """Return the `data` member: JSON unchanged, text as a JSON string, bytes as base64; nothing where it is null."""
    data = rows.data
    if rows.data_is_json:
        return _member("data", data)
    if rows.ways is not None:
        return _data_members(rows, data, rows.ways)
    if pa.types.is_binary(data.type):
        # Only JSON data is known to be text.
        known = pc.if_else(rows.json_typed, data, pa.scalar(None, data.type)).cast(pa.string())
        rest = pc.if_else(rows.json_typed, pa.scalar(None, data.type), data)
        if rest.null_count == rows.length:
            return _member("data", known)
        return pc.binary_join_element_wise(_member("data", known), _data_members(rows, rest, None), "")
    return _member("data", pc.if_else(rows.json_typed, data, rowjson.quote(data)))


def _data_members(rows: Events, data: Any, ways: Sequence[Mapping[str, str]] | None) -> Any:
    """Return `data` members made one by one: by their row's encodings, else by its type, else by the column."""
    types = rows.texts["datacontenttype"].to_pylist() if "datacontenttype" in rows.texts else [None] * rows.length
    is_text = not pa.types.is_binary(data.type)
    members = []
    for index, value in enumerate(vectors.to_list(vectors.as_binary(data))):
        if value is None:
            members.append("")
            continue
        way = None if ways is None else ways[index].get(_DATA)
        way = way or default_way(value, types[index] or "", is_text=is_text)
        members.append(_data_member(value, way))
    return pa.array(members, pa.string())


def _data_member(data: bytes, way: str) -> str:
    if way == "base64":
        return f',"data_base64":"{base64.b64encode(data).decode()}"'
    return f',"data":{data.decode() if way == "json" else json.dumps(data.decode(), ensure_ascii=False)}'
