"""The contexts of many letters by column: only the fields that are wanted, each as `read` returns it.

Letters of one writer look alike, so what is common to them is worked out once, in a `_Plan`: for the names of their
headers and the marker. A field is in the marker, in text headers, or in the JSON header, which counts most.
- Of text headers, only those that may give a wanted field are read, and equal values only once.
- JSON headers of the same members, in the same order, have one *outline*: a regular expression that admits any value
  of the same type in the same place, and captures those that are wanted. JSON that matches says what its outline says,
  so it need not be parsed.
Anything unusual is read row by row.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, Final

from redelivery.codes import Code
from redelivery.contract.context import DEFAULTS, INVALID, ErrorContext, checked, whole_text
from redelivery.contract.message import Batch, Headers, Message
from redelivery.formats.cloudevents import CONTENT_TYPE, STRUCTURED, is_structured
from redelivery.formats.dialects import _body, _marker, json_context
from redelivery.formats.dialects._fields import BOOKKEEPING
from redelivery.formats.dialects._marker import Marker
from redelivery.formats.dialects._reader import (
    BY_NAME,
    extension,
    forms_in,
    inserted_in,
    is_letter,
    known_dialects,
    others_places,
    written_texts,
)
from redelivery.formats.dialects._writer import CONTEXT, combined
from redelivery.formats.rows import headers_of, picker

#: JSON text in ASCII, and whole numbers that fit their field, whatever their digits are.
_TEXT: Final = rb'"[ !#-\[\]-~]*+(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[ !#-\[\]-~]*+)*+"'
_COUNT: Final = rb"(?:0|[1-9][0-9]{0,8})"
_MILLIS: Final = rb"(?:0|[1-9][0-9]{0,13})"
_NUMBER: Final = rb"-?(?:0|[1-9][0-9]{0,17})"
#: A code outside the vocabulary is read as a native code.
_CODE: Final = b'"(?:' + b"|".join(each.encode() for each in Code) + b')"'
_NUMBERS: Final = {
    **dict.fromkeys(("attempts", "attempts_total", "hops", "partition"), _COUNT),
    **dict.fromkeys(("first_failure_ms", "last_failure_ms"), _MILLIS),
}
#: Members of KIP-298 that give a field where ours do not.
_DERIVED: Final = {"stage": "stages", "attempts": "attempt", "last_failure_ms": "time_of_error"}
_TRACE: Final = ("exception",)
#: An outline holds at most so many values; a plan holds so many outlines, and gives up after so many failures.
_VALUES: Final = 200
_OUTLINES: Final = 8
#: Fewer letters that look alike are not worth a plan: it takes as long as to read so many, and anyone may write letters
#: that look like no other.
_FEWEST: Final = 8
#: A longer outline would hold deliberately long names; it is kept, and takes long to compile. Bytes.
_LONGEST: Final = 16_384
#: Plans are kept for markers and names of so many bytes or characters.
_LARGEST: Final = 4096


def read_columns(
    batch: Batch, names: Sequence[str], alone: Callable[[Message], ErrorContext | None], foreign: frozenset[str]
) -> dict[str, list[Any]]:
    """Return fields of the contexts of messages by name, one value per row.

    Args:
        batch: messages as stored.
        names: of the fields.
        alone: reads one message.
        foreign: headers in which other software may have written a context.
    """
    every = headers_of(batch)
    columns: dict[str, list[Any]] = {name: [DEFAULTS[name]] * len(batch) for name in names}
    alike: dict[Hashable, list[int]] = defaultdict(list)
    for row, form in enumerate(forms_in(batch)):
        alike[form].append(row)
    wanted = tuple(names)
    for rows in alike.values():
        first = every[rows[0]]
        if _says_nothing(first, foreign):
            continue
        plan = _plan_of(first, wanted) if len(rows) >= _FEWEST else None
        left = rows if plan is None else plan.fill(columns, rows, every, batch.value.values)
        for row in left:
            context = alone(batch.row(row)) or ErrorContext()
            for name in names:
                columns[name][row] = getattr(context, name)
    return columns


# --- plans ---------------------------------------------------------------------------------------------------------


def _says_nothing(headers: Headers, foreign: frozenset[str]) -> bool:
    """Whether messages with headers of these names have no context, neither ours nor another application's."""
    names = {name for name, _ in headers}
    if not names.isdisjoint(foreign) or not names.isdisjoint(_marker.NAMES):
        return False
    ours = any(name in each.gives or extension(name) for name in names for each in BY_NAME.values())
    return not ours and not is_structured(Message(value=None, headers=headers))


def _plan_of(headers: Headers, wanted: tuple[str, ...]) -> _Plan | None:
    """Return how such letters are read; None where they are unusual."""
    found = _marker.find(headers)
    if found is None or sum(len(name) for name, _ in headers) + len(headers[found[0]][1] or b"") > _LARGEST:
        return None
    names = tuple(name for name, _ in headers)
    marker = replace(found[1], inserted=None, mac=None)  # which differ by row
    return _plan(names, found[0], marker, wanted, structured=is_structured(Message(value=None, headers=headers)))


@lru_cache(maxsize=128)
def _plan(
    names: tuple[str, ...], marked: int, marker: Marker, wanted: tuple[str, ...], *, structured: bool
) -> _Plan | None:
    others = others_places(names, marker, marked)
    documents = [at for at, name in enumerate(names) if name in CONTEXT and name in marker.headers and at not in others]
    dialects = known_dialects(marker)
    whole = bool(documents) and any(each.whole for each in dialects)
    inside = bool(marker.attributes) and not whole
    moved = any(extension(name) or name.lower() == CONTENT_TYPE for name in marker.headers)
    if not is_letter(marker) or len(documents) > 1 or (inside and not structured):
        return None
    if structured and not whole and moved:
        return None
    document = documents[0] if documents else None
    return _Plan(names, others, marker, document, wanted, whole=whole, marked=marked if inside else None)


class _Plan:
    """How letters with the same marker and the same names of headers are read.

    Args:
        names: of their headers.
        others: the places of headers that only have the name of one of ours.
        marker: theirs.
        document: the index of the JSON header; None where they have none.
        wanted: names of fields.
        whole: the JSON header holds the whole context, so that no text beside it is read.
        marked: the place of the marker, where further texts are in the body of an event; None: none are.
    """

    def __init__(
        self,
        names: tuple[str, ...],
        others: Collection[int],
        marker: Marker,
        document: int | None,
        wanted: tuple[str, ...],
        *,
        whole: bool,
        marked: int | None,
    ) -> None:
        self._marker = marker
        self._marked = marked
        self._document = document
        self._wanted = wanted
        self._whole = whole
        self._dialects = [] if whole else known_dialects(marker)
        self._texts = picker([at for at, name in enumerate(names) if at not in others and self._matters(name)])
        self._pieces: dict[bytes, bool] = {}
        self._outlines: list[_Outline] = []
        self._refused = 0

    def _matters(self, name: str) -> bool:
        """Whether a text header may give a wanted field, or a number that does not fit, which the kind tells."""
        keys = [(dialect, extension(name) if dialect.extensions else name) for dialect in self._dialects]
        given = {each for dialect, key in keys for each in dialect.gives.get(key or "", ())}
        return bool(given.intersection(self._wanted) or ("kind" in self._wanted and given.intersection(_NUMBERS)))

    def fill(
        self,
        columns: Mapping[str, list[Any]],
        rows: Sequence[int],
        every: Sequence[Headers],
        values: Sequence[bytes | None],
    ) -> Sequence[int]:
        """Put the fields of these rows into their columns. Return the remaining rows, which are unusual."""
        if self._marked is None:
            return self._fill_all(columns, rows, every, {})
        pieces = {row: self._piece(every[row][self._marked][1], values[row]) for row in rows}
        odd = [row for row, piece in pieces.items() if piece is None]
        usual = {row: piece for row, piece in pieces.items() if piece is not None}
        return [*odd, *(self._fill_all(columns, list(usual), every, usual) if usual else ())]

    def _piece(self, marker: bytes | None, body: bytes | None) -> bytes | None:
        """Return what we inserted at the end of an event's body, as JSON; None where that is not certain.

        Its members are the last of the body, so they are those that count.
        """
        where = inserted_in(marker or b"")
        if where is None or body is None:
            return None
        end = where.offset + where.length
        piece = body[where.offset : end]
        if not piece.startswith(b",") or body[end:].strip(b" \t\r\n") != b"}" or not _body.attributes(body):
            return None
        shown = b"{" + piece[1:] + b"}"
        if shown not in self._pieces:
            if len(self._pieces) >= _OUTLINES:
                self._pieces.clear()
            self._pieces[shown] = _body.attributes(shown).keys() == set(self._marker.attributes)
        return shown if self._pieces[shown] else None

    def _fill_all(
        self,
        columns: Mapping[str, list[Any]],
        rows: Sequence[int],
        every: Sequence[Headers],
        pieces: Mapping[int, bytes],
    ) -> Sequence[int]:
        """Put the fields of these rows into their columns; return the rows that are left.

        Args:
            columns: of fields.
            rows: the rows.
            every: headers of all rows.
            pieces: what we inserted into the body of each of the rows; empty where nothing is read from bodies.
        """
        if self._document is None:
            self._fill_texts(columns, rows, every, frozenset(), pieces)
            return []
        documents: Sequence[bytes] = [every[row][self._document][1] or b"" for row in rows]
        for outline in self._outlines:
            rows, documents = self._fill(outline, columns, rows, documents, every, pieces)
        left: list[int] = []
        while rows and self._refused < _OUTLINES and len(self._outlines) < _OUTLINES:
            new = _outlined(documents[0], self._wanted, whole=self._whole)
            if new is None:
                self._refused += 1
                left.append(rows[0])
                rows, documents = rows[1:], documents[1:]
            else:
                self._outlines.append(new)
                rows, documents = self._fill(new, columns, rows, documents, every, pieces)
        return [*left, *rows]

    def _fill(
        self,
        outline: _Outline,
        columns: Mapping[str, list[Any]],
        rows: Sequence[int],
        documents: Sequence[bytes],
        every: Sequence[Headers],
        pieces: Mapping[int, bytes],
    ) -> tuple[Sequence[int], Sequence[bytes]]:
        """Put the fields of the rows that an outline fits; return the other rows and their JSON."""
        matches = list(map(outline.match, documents))
        misses: list[int] = []
        if None in matches:
            misses = [at for at, match in enumerate(matches) if match is None]
            fit = [at for at, match in enumerate(matches) if match is not None]
            matches, others = [matches[at] for at in fit], [rows[at] for at in misses]
            rows = [rows[at] for at in fit]
        if rows:
            groups = list(zip(*[match.groups() for match in matches if match is not None], strict=True))
            for name, value in outline.values.items():
                found = value(groups) if callable(value) else [value] * len(rows)
                _put(columns[name], rows, found)
            self._fill_texts(columns, rows, every, outline.fields, pieces)
        return (others, [documents[at] for at in misses]) if misses else ((), ())

    def _fill_texts(
        self,
        columns: Mapping[str, list[Any]],
        rows: Sequence[int],
        every: Sequence[Headers],
        above: frozenset[str],
        pieces: Mapping[int, bytes],
    ) -> None:
        """Put the fields that come from the marker or from text headers: those that are not `above`, in JSON."""
        rest = [name for name in self._wanted if name not in above]
        if not rest and "kind" not in self._wanted:
            return
        numbers: dict[tuple[Headers, bytes | None], int] = {}
        if pieces:
            texts = [numbers.setdefault((self._texts(every[row]), pieces[row]), len(numbers)) for row in rows]
        else:
            texts = [numbers.setdefault((self._texts(every[row]), None), len(numbers)) for row in rows]
        contexts = [self._context(*each, above) for each in numbers]
        for name in rest:
            values = [getattr(context, name) for context in contexts]
            _put(columns[name], rows, values * len(rows) if len(values) == 1 else [values[each] for each in texts])
        if "kind" in above and "kind" in self._wanted:
            odd = [row for row, each in zip(rows, texts, strict=True) if contexts[each].kind == INVALID]
            _put(columns["kind"], odd, [INVALID] * len(odd))

    def _context(self, texts: Headers, body: bytes | None, above: frozenset[str]) -> ErrorContext:
        """Return what the marker, some text headers and a body say, without the fields that are in JSON."""
        message = Message(value=body, headers=texts if body is None else (*texts, (CONTENT_TYPE, STRUCTURED.encode())))
        fields: dict[str, Any] = {name: getattr(self._marker, name) for name in BOOKKEEPING}
        fields |= combined(self._dialects, written_texts(message, self._marker))
        return checked({name: value for name, value in fields.items() if name not in above})


def _put(column: list[Any], rows: Sequence[int], values: Sequence[Any]) -> None:
    if len(rows) == len(column):
        column[:] = values
        return
    for row, value in zip(rows, values, strict=True):
        column[row] = value


# --- outlines ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Outline:
    """The outline of JSON headers.

    Attributes:
        match: matches those that have it, and captures what is wanted.
        fields: the fields of a context that they give.
        values: the wanted ones: one value for all, or a function of the captured columns.
    """

    match: Callable[[bytes], re.Match[bytes] | None]
    fields: frozenset[str]
    values: Mapping[str, Any]


def _outlined(document: bytes, wanted: Sequence[str], *, whole: bool) -> _Outline | None:
    """Return the outline of a JSON header; None where it is unusual.

    Args:
        document: its value.
        wanted: names of fields.
        whole: whether it holds the whole context, in KIP-298's members too.
    """
    try:
        form = json.loads(document, object_pairs_hook=_unique)
        given = _given(form, whole=whole)
        paths: dict[tuple[Any, ...], str] = {(json_context.OURS, name): name for name in given}
        if whole and "stacktrace" not in form[json_context.OURS]:
            paths[_TRACE] = "stacktrace"
        drawing = _Drawing({path: name for path, name in paths.items() if name in wanted})
        pattern = drawing.draw(form, ())
        if len(pattern) > _LONGEST:
            return None
        match = re.compile(pattern).fullmatch
    except (ValueError, RecursionError):
        return None
    if match(document) is None:
        return None
    context = checked(given)
    values = {name: getattr(context, name) for name in wanted if name in given}
    return _Outline(match, frozenset(given), values | drawing.functions())


def _given(form: Any, *, whole: bool) -> dict[str, Any]:
    """Return the fields that a JSON header gives. Raises ValueError: it is unusual."""
    own = form.get(json_context.OURS) if isinstance(form, dict) else None
    if not isinstance(own, dict):
        raise ValueError("no fields of ours")  # noqa: TRY004 - of JSON that anyone may have written
    given = {name: value for name, value in own.items() if name in DEFAULTS}
    if whole:
        if any(member in form and name not in given for name, member in _DERIVED.items()):
            raise ValueError("fields of KIP-298 only")
        given = {"last_failure_ms": None, "stacktrace": form.get(*_TRACE), **given}
    if checked({**given, "kind": ""}).kind == INVALID or not isinstance(given.get("kind", ""), str):
        raise ValueError("a field that does not fit")
    return given


class _Drawing:
    """Draws the outline of one JSON header.

    Args:
        captured: the field that is captured at each path.
    """

    def __init__(self, captured: Mapping[tuple[Any, ...], str]) -> None:
        self._captured = captured
        self._groups: list[tuple[str, str, type]] = []
        self._count = 0

    def draw(self, value: Any, path: tuple[Any, ...]) -> bytes:
        """Return the pattern of the value at a path. Raises ValueError: it is unusual."""
        self._count += 1
        if self._count > _VALUES:
            raise ValueError("too many values")
        if isinstance(value, dict):
            return b"{" + b",".join(_literal(k) + b":" + self.draw(v, (*path, k)) for k, v in value.items()) + b"}"
        if isinstance(value, list):
            return b"\\[" + b",".join(self.draw(each, (*path, at)) for at, each in enumerate(value)) + b"]"
        name = path[-1] if path[:-1] == (json_context.OURS,) else None
        if value is None or isinstance(value, bool) or name == "stage":
            return _literal(value)
        if isinstance(value, float):
            raise ValueError("no whole number")  # noqa: TRY004 - of JSON that anyone may have written
        pattern = _CODE if name == "code" else _TEXT if isinstance(value, str) else _NUMBERS.get(name or "", _NUMBER)
        field = self._captured.get(path) or self._captured.get(path[:-1])
        if field is None:
            return pattern
        self._groups.append((field, str(path[-1]), type(value)))
        return b"(" + pattern + b")"

    def functions(self) -> dict[str, Callable[[Sequence[Sequence[bytes]]], list[Any]]]:
        """Return by field what makes its column of the captured ones."""
        found: dict[str, Callable[[Sequence[Sequence[bytes]]], list[Any]]] = {}
        for at, (name, _, kind) in enumerate(self._groups):
            found[name] = partial(_whole_numbers if kind is int else _codes if name == "code" else _texts, at)
        several = [(at, name) for at, (field, name, _) in enumerate(self._groups) if field == "extra"]
        return {**found, "extra": partial(_extras, several)} if several else found


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name twice")
    return found


def _literal(value: Any) -> bytes:
    return re.escape(json.dumps(value).encode())


class _Texts(dict[bytes, str]):
    """The text of each JSON text, decoded once."""

    def __missing__(self, shown: bytes) -> str:
        text = shown[1:-1].decode("ascii")
        if "\\" in text:
            text = whole_text(json.loads(shown))
        self[shown] = text
        return text


def _texts(at: int, groups: Sequence[Sequence[bytes]]) -> list[Any]:
    return list(map(_Texts().__getitem__, groups[at]))


def _codes(at: int, groups: Sequence[Sequence[bytes]]) -> list[Any]:
    return [*map({b'"%b"' % each.encode(): each for each in Code}.__getitem__, groups[at])]


def _whole_numbers(at: int, groups: Sequence[Sequence[bytes]]) -> list[Any]:
    return list(map(int, groups[at]))


def _extras(several: Sequence[tuple[int, str]], groups: Sequence[Sequence[bytes]]) -> list[Any]:
    names = [whole_text(name) for _, name in several]
    columns = [_texts(at, groups) for at, _ in several]
    return [dict(zip(names, each, strict=True)) for each in zip(*columns, strict=True)]
