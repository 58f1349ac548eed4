"""Dead letters as columns of Arrow, many at a time: what `letter_rows.unpack` gives row by row.

Unusual events in their values, which are rare, take that way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql import types as t

from redelivery.contract.broker import Capabilities, Letter, LetterBatch
from redelivery.contract.context import UNRESOLVED
from redelivery.contract.message import Batch, Column, Headers, Message
from redelivery.deadletters.operations import HOP_MARK, is_marked, original_id
from redelivery.deadletters.trust import Targets, context_of, contexts_of
from redelivery.formats import dialects, events
from redelivery.formats.rows import headers_of, names_in
from redelivery.kit.collector import without_collector
from redelivery.spark import letter_schema
from redelivery.spark.features import arrow_schema
from redelivery.spark.letter_events import EventsInValues
from redelivery.spark.letter_rows import binary_event, micros, unpack
from redelivery.spark.letter_schema import ERROR, POSITION

if TYPE_CHECKING:
    from pyarrow import RecordBatch

#: Parts of `_error` and the field of a context that each shows.
_CONTEXT: Final[Mapping[str, str]] = {
    **{name: name for name in ("code", "native_code", "kind", "stage", "broker", "destination", "message_id")},
    **{name: name for name in ("attempts", "attempts_total", "hops", "maybe_delivered")},
    **{name: name for name in ("query", "batch", "partition", "run", "target")},
    "message": "reason",
    "first_failure": "first_failure_ms",
    "last_failure": "last_failure_ms",
}
_MOMENTS: Final = frozenset({"first_failure", "last_failure"})
#: Texts that a context holds as "" where they are unknown.
_TEXTS: Final = frozenset({"message", "kind"})
#: The key of `_error.target` among columns that are named by their own names.
_TARGET: Final = f"{ERROR}.target"
#: So many markers, and so many targets, of so many characters each, are remembered: anyone may write others.
_REMEMBERED: Final = 10_000
_LARGEST: Final = 2_048


class LetterColumns:
    """Makes record batches of letters.

    Args:
        wanted: the columns: some of `letter_schema.schema`.
        targets: targets of letters that may become columns.
        there: the broker's capabilities.

    Attributes:
        sources: columns of `Batch` that the wanted ones are read from; of an event in its value, see `reads_values`.
        reads_values: a letter that is an event in its value (`is_structured`) is read from its value, too.
    """

    def __init__(self, wanted: t.StructType, targets: Targets, there: Capabilities) -> None:
        self._names = wanted.names
        self._arrow = arrow_schema(wanted)
        self._parts = letter_schema.error_parts(wanted)
        self._targets = targets
        self._there = there
        self.sources = letter_schema.sources(wanted)
        self.reads_values = bool({*self._names, *self._parts} - {ERROR, POSITION, "dead_lettered"})
        self._events = EventsInValues(with_data="value" in self._names)
        self._hops: dict[bytes, int] = {}
        self._found: dict[tuple[str | None, ...], tuple[str | None, dict[str, str | None]]] = {}
        #: The columns that choose where a row is written: `destination`, and the broker's own.
        self._routes = tuple(self._of_letter(_nameless(Message(value=None)))[1])

    def record_batch(self, letters: LetterBatch) -> RecordBatch:
        """Return the letters as a record batch, in their order. No letter fails its neighbours, whatever it holds."""
        with without_collector():
            return self._record_batch(letters)

    def _record_batch(self, letters: LetterBatch) -> RecordBatch:
        columns, odd = self._columns(letters)
        if odd:
            rows = {index: self._alone(letters.letter(index)) for index in odd}
            for name in self._names:
                if name == ERROR:
                    parts = columns[ERROR]
                    for part in self._parts:
                        own = {index: row[ERROR][part] for index, row in rows.items()}
                        parts[part] = _patched(parts[part], own, len(letters))
                else:
                    own = {index: row.get(name) for index, row in rows.items()}
                    columns[name] = _patched(columns[name], own, len(letters))
        return self._assembled(columns, len(letters))

    def _alone(self, letter: Letter) -> dict[str, Any]:
        """Return one letter as the columns of a row, with headers as pairs."""
        row = unpack(letter, self._targets, self._there)
        if row["headers"] is not None:
            row["headers"] = tuple((header["key"], header["value"]) for header in row["headers"])
        return row

    def structured(self, messages: Batch) -> list[int]:
        """Return which messages declare that their value is an event."""
        every = headers_of(messages)
        names = names_in(messages)
        typed = {each for each in set(names) if any(name.lower() == "content-type" for name in each)}
        return [
            index
            for index, each in enumerate(names if typed else ())
            if each in typed and events.is_structured(Message(value=None, headers=every[index]))
        ]

    def _columns(self, letters: LetterBatch) -> tuple[dict[str, Any], list[int]]:
        """Return the wanted columns, None where all are null, and the rows of which they are not right."""
        messages, known, odd = letters.messages, self._contexts(letters), list[int]()
        targets = self._named_targets(letters, known)
        columns: dict[str, Any] = {}
        if {*self._names} - {ERROR, POSITION} or "target" in self._parts:
            again = self._unpacked(messages, len(letters))
            odd = again.odd
            columns |= again.attributes
            for name in {*self._names} & messages.extra.keys():
                columns[name] = _or(messages.extra[name].values, columns.get(name))
            columns["headers"] = _noted(again.headers, letters) if "headers" in self._names else again.headers
            if "id" in self._names:
                own, events_ids = again.messages.id, again.attributes.get("id")
                columns["id"] = _ids(own, known["message_id"], events_ids, again.hops, messages)
            columns["key"] = _as_is(again.messages.key)
            columns["value"] = _as_is(again.messages.value) if again.values is None else again.values
            if "timestamp" in self._names:
                columns["timestamp"] = _moments(again.messages.timestamp_ms)
        columns |= targets
        columns[POSITION] = letters.position.values
        columns[ERROR] = {part: self._part(part, letters, known, targets) for part in self._parts}
        return {name: columns.get(name) for name in self._names}, odd

    def _contexts(self, letters: LetterBatch) -> dict[str, list[Any]]:
        """Return the fields of the letters' contexts that the wanted columns show."""
        fields = {_CONTEXT[part] for part in self._parts if part in _CONTEXT}
        if "id" in self._names:
            fields.add("message_id")
        if "target" in fields or {*self._names} & {*self._routes}:
            fields |= {"target", "extra"}
        return contexts_of(letters, fields) if fields else {}

    def _unpacked(self, messages: Batch, count: int) -> _Unpacked:
        """Return letters in the form in which a redrive sends them, with their events as columns."""
        if messages.headers is None:
            return _Unpacked(messages, [()] * count, [1] * count)
        again = dialects.redriven_all(messages)
        found = headers_of(again)
        names = names_in(again)
        places = {each: [at for at, name in enumerate(each) if name in dialects.MARKERS] for each in set(names)}
        hops = [self._hop(headers, places[each]) for headers, each in zip(found, names, strict=True)]
        unpacked = _Unpacked(again, found, hops)
        structured = self.structured(again)
        first = dict(zip(names, found, strict=True))
        known = {each: events.prefix_in(Message(value=None, headers=headers)) for each, headers in first.items()}
        if not structured and not any(known.values()):
            return unpacked
        left, attributes, in_values = list(found), unpacked.attributes, frozenset(structured)
        for index, each in enumerate(names if any(known.values()) else ()):
            prefix = known[each]
            if prefix is not None and index not in in_values:
                own, left[index] = binary_event(found[index], prefix)
                for name, value in own.items():
                    if name not in attributes:
                        attributes[name] = [None] * count
                    attributes[name][index] = value
        if structured:
            unpacked.values = list(again.value.values)
            data, unpacked.odd = self._events.unpack(unpacked.values, structured, attributes)
            others: dict[Headers, Headers] = {}  # most often the same
            for index, value in data.items():
                unpacked.values[index], headers = value, found[index]
                if headers not in others:
                    others[headers] = tuple(each for each in headers if each[0].lower() != "content-type")
                left[index] = others[headers]
        unpacked.headers = left
        return unpacked

    def _hop(self, headers: Headers, places: Sequence[int]) -> int:
        """Return the hop in the marker of a message, which is at one of these places among its headers."""
        mark = headers[places[0]][1] if len(places) == 1 else None
        found = None if mark is None else self._hops.get(mark)
        if found is None:
            found = dialects.history(Message(value=None, headers=headers)).hops
            if mark is not None and len(mark) <= _LARGEST and len(self._hops) < _REMEMBERED:
                self._hops[mark] = found
        return found

    def _named_targets(self, letters: LetterBatch, known: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
        """Return the targets that may become columns, and all targets of a letter as one text (`_TARGET`)."""
        if "target" not in known:
            return {}
        count, messages = len(letters), letters.messages
        columns: dict[str, list[Any]] = {name: [None] * count for name in (*self._routes, _TARGET)}
        given = {name: messages.extra[name].values for name in self._routes if name in messages.extra}
        own = [None] * count if messages.destination is None else messages.destination.values
        signed = [None] * count if letters.signed is None else letters.signed.values
        rows = zip(own, known["target"], known["extra"], signed, strict=True)
        for index, (destination, target, extra, trusted) in enumerate(rows):
            if not (destination or target or extra or given):
                continue
            routes = {**extra, **{name: values[index] for name, values in given.items() if values[index] is not None}}
            named = (destination or target, *(str(routes.get(name) or "") for name in self._routes[1:]))
            if any(named):
                text, there = self._of_letter(letters.letter(index)) if trusted else self._of_names(named)
                columns[_TARGET][index] = text
                for name, value in there.items():
                    columns[name][index] = value
        return columns

    def _of_names(self, named: tuple[str | None, ...]) -> tuple[str | None, dict[str, str | None]]:
        """Return the targets of these names, one for each of `_routes`, as text and as columns."""
        found = self._found.get(named)
        if found is None:
            destination, *routes = named
            extra = dict(zip(self._routes[1:], routes, strict=True))
            found = self._of_letter(_nameless(Message(value=None, destination=destination, extra=extra)))
            if len(self._found) < _REMEMBERED and sum(map(len, filter(None, named))) <= _LARGEST:
                self._found[named] = found
        return found

    def _of_letter(self, letter: Letter) -> tuple[str | None, dict[str, str | None]]:
        context = context_of(letter)
        return self._targets.of(letter, self._there, context), self._targets.columns(letter, self._there, context)

    def _part(
        self,
        part: str,
        letters: LetterBatch,
        known: Mapping[str, list[Any]],
        targets: Mapping[str, list[Any]],
    ) -> list[Any] | None:
        """Return a part of `_error`."""
        if part == "dead_lettered":
            return _moments(letters.dead_lettered_ms)
        if part == "target":
            return targets[_TARGET]
        values = known[_CONTEXT[part]]
        if part in _MOMENTS:
            return _micros(values)
        if part in _TEXTS:
            return [each or None for each in values]
        if part == "message_id" and letters.messages.id is not None:
            return [each or own for each, own in zip(values, letters.messages.id.values, strict=True)]
        return values

    def _assembled(self, columns: Mapping[str, Any], count: int) -> RecordBatch:
        arrays = []
        for column in self._arrow:
            values = columns[column.name]
            if column.name == ERROR:
                parts = [arrow_array(values[each.name], each.type, count) for each in column.type]
                arrays.append(pa.StructArray.from_arrays(parts, fields=list(column.type)))
            elif column.name == "headers" and values is not None:
                arrays.append(_headers(values, column.type))
            else:
                arrays.append(arrow_array(values, column.type, count))
        return pa.RecordBatch.from_arrays(arrays, schema=self._arrow)


@dataclass(slots=True)
class _Unpacked:
    """Letters in the form in which a redrive sends them, with their events as columns.

    Attributes:
        messages: the letters without what we wrote.
        headers: those that are not attributes of an event.
        hops: in their markers.
        attributes: of events, by the column's name.
        values: with the data in place of an event; None: no value is one.
        odd: letters that must be looked at alone.
    """

    messages: Batch
    headers: Sequence[Headers]
    hops: list[int]
    attributes: dict[str, list[Any]] = field(default_factory=dict)
    values: list[bytes | None] | None = None
    odd: list[int] = field(default_factory=list)


def _nameless(message: Message) -> Letter:
    return Letter(position="", message=message)


def _as_is(column: Column[bytes | None] | None) -> Any:
    return None if column is None else column.values if column.arrow is None else column.arrow


def _moments(column: Column[int | None] | None) -> list[int | None] | None:
    return None if column is None else _micros(column.values)


def _micros(values: list[int | None]) -> list[int | None]:
    if _is_same(values):
        return [micros(values[0])] * len(values)
    return list(map(micros, values))


def _is_same(values: Any) -> bool:
    """Whether a column holds one value only. Of equal numbers, those of other types are others."""
    if not isinstance(values, list) or not values or values.count(values[0]) != len(values):
        return False
    return isinstance(values[0], str | bytes | None) or len(set(map(type, values))) == 1


def _noted(every: Sequence[Headers], letters: LetterBatch) -> Sequence[Headers]:
    """Return the headers of letters: in those that only point to their messages, a write finds that noted."""
    rows = [index for index, each in letters.contexts.items() if each.kind == UNRESOLVED]
    if not rows:
        return every
    noted = list(every)
    for index in rows:
        noted[index] = dialects.unresolved(Message(value=None, headers=every[index])).headers
    return noted


def _ids(
    own: Column[str | None] | None, first: list[Any], attribute: list[Any] | None, hops: list[int], stored: Batch
) -> list[Any]:
    """Return the id of each message's next hop, from its own, its first or its event's id. `stored`: their letters."""
    count = len(hops)
    several = zip(own.values if own is not None else [None] * count, first, attribute or [None] * count, strict=True)
    names = [mine or known or event for mine, known, event in several]
    found = zip(names, hops, headers_of(stored), strict=True)
    return [name and f"{_original_id(name, hop - 1, headers)}{HOP_MARK}{hop}" for name, hop, headers in found]


def _original_id(name: str, hop: int, headers: Headers) -> str:
    """Return an id without the mark of its letter's last hop."""
    return original_id(name, dialects.named(headers)) if is_marked(name, hop) else name


def _or(values: list[Any], others: list[Any] | None) -> list[Any]:
    if others is None:
        return values
    return [other if value is None else value for value, other in zip(values, others, strict=True)]


def _patched(values: Any, others: Mapping[int, Any], count: int) -> list[Any]:
    """Return a column with other values in some rows."""
    if values is None:
        return [others.get(index) for index in range(count)]
    patched = values.to_pylist() if isinstance(values, pa.Array) else list(values)
    for index, value in others.items():
        patched[index] = value
    return patched


def _headers(values: Sequence[Headers | None], kind: Any) -> Any:
    """Return lists of headers: built flat, as an object for each would take as long as all the rest."""
    flat = [pair for each in values if each for pair in each]
    offsets, end = [], 0
    for each in values:
        offsets.append(end if each else None)
        end += len(each or ())
    name, value = kind.value_type
    pairs = pa.StructArray.from_arrays(
        [
            arrow_array([key for key, _ in flat], name.type, end),
            arrow_array([body for _, body in flat], value.type, end),
        ],
        fields=[name, value],
    )
    return pa.ListArray.from_arrays(pa.array([*offsets, end], pa.int32()), pairs, type=kind)


def arrow_array(values: Any, kind: Any, count: int = 0) -> Any:
    """Return values as an array of this type; `count` nulls for None. A value that does not fit is null alone."""
    if values is None:
        return pa.nulls(count, kind)
    if isinstance(values, pa.Array):
        return values if values.type == kind else values.cast(kind)
    try:
        if _is_same(values) and isinstance(values[0], str | bytes | int | None):  # most columns of letters
            return pa.repeat(pa.scalar(values[0], kind), len(values))
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
