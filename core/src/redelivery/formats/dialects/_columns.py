"""Letters of many rows that failed alike: what is common is written once, what differs by row is filled in.

Rows have the same *shape* where the same is written into them, apart from the *slots*: values that stand in a header
unchanged (an id, a position, a time), and texts that differ in most rows (the reason, the stack trace). One
letter of each shape is written by `Letter`, with a token in each slot: random text that nothing else holds. Cut at its
tokens, each of its headers becomes a template that the columns fill.

The shape of a row: the names of its headers, the marker that it has from a redrive, whether it is an event in JSON and
which extensions that has, which fields of its context are set, and the values of fields that are not slots. Rows of a
rare or unusual shape, and rows whose letter would exceed a limit, are written one by one.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import secrets
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import add
from types import NoneType
from typing import Any, Final, TypeAlias

from redelivery.codes import Code
from redelivery.contract.broker import Limits
from redelivery.contract.context import ErrorContext
from redelivery.contract.message import Batch, Headers, Message
from redelivery.formats.cloudevents import is_plain, is_structured, prefix_in
from redelivery.formats.dialects import _marker, _signature
from redelivery.formats.dialects._fields import printable
from redelivery.formats.dialects._marker import Marker
from redelivery.formats.dialects._reader import forms_in, is_letter, signed_parts
from redelivery.formats.dialects._writer import CONTEXT, Letter, Style, in_the_way
from redelivery.formats.dialects.knativeerror import DATA_BYTES
from redelivery.formats.events import members_in
from redelivery.formats.rows import Changes, taken

#: A header of ours: its name, and its value: one for all rows, or one for each.
_Filled: TypeAlias = tuple[str, bytes | list[bytes]]

#: The time of the message itself; the other slots are fields of its context.
_TIME: Final = "message.timestamp_ms"
_SLOTS: Final[Mapping[str, type]] = {
    "message_id": str,
    "identity": str,
    "target": str,
    "extra": dict,
    "position": int,
    "source_offset": int,
    "first_failure_ms": int,
    "last_failure_ms": int,
    _TIME: int,
    "reason": str,
    "stacktrace": str,
}
#: Slots within other text too, in JSON's form; in a header the text itself, or base64 of it.
_TEXTS: Final = ("reason", "stacktrace")
_RAW, _BASE64 = " as it is", " in base64"
#: A text that fewer rows share on average differs by row: the rows of each text are too few for their own template.
_OFTEN: Final = 20
#: Slots of a signature, and where an event's body was changed.
_MAC, _DOCUMENT, _KEY, _VALUE, _OFFSET, _LENGTH = "mac", "document", "key", "value", "offset", "length"
_MORE: Final[Mapping[str, type]] = {_MAC: str, _DOCUMENT: str, _KEY: str, _VALUE: str, _OFFSET: int, _LENGTH: int}
#: The types of fields that are not slots; one column has one of them.
_PLAIN: Final = frozenset({int, str, bool, Code})
#: Smaller numbers are read back unchanged from header text, in every dialect.
_MOST: Final = 10**18
#: A shape with fewer rows is not worth its templates.
_FEWEST: Final = 3
_SPACE: Final = b" \t\r\n"

_COMPACT: Final = json.JSONEncoder(separators=(",", ":")).encode
#: A column becomes JSON at once, and is split at its line breaks: the text of a value has none.
_LINES: Final = json.JSONEncoder(separators=("\n", ":")).encode


def _token(number: int, kind: type) -> Any:
    """Return what stands in a slot of the one letter of a shape; of a whole number, 15 digits."""
    if kind is int:
        return int(f"8{secrets.randbelow(10**12):012}{number:02}")
    text = f"{secrets.token_hex(16)}{number:02}"
    return {text: text} if kind is dict else text


_TOKENS: Final = {name: _token(number, kind) for number, (name, kind) in enumerate({**_SLOTS, **_MORE}.items())}
#: The slots, by their tokens in JSON; of texts, without the quotes.
_BY_TOKEN: Final = {
    (token if name in _TEXTS else _COMPACT(token)).encode(): name for name, token in _TOKENS.items()
} | {base64.b64encode(_TOKENS[name].encode()): name + _BASE64 for name in _TEXTS}
_ANY_TOKEN: Final = re.compile(b"(" + b"|".join(map(re.escape, _BY_TOKEN)) + b")")


def attached(
    batch: Batch,
    context: ErrorContext,
    columns: Mapping[str, Sequence[Any]],
    style: Style,
    alone: Callable[[int], Message],
) -> Batch:
    """Return the letters of a batch.

    Args:
        batch: the messages.
        context: what their contexts share, bounded.
        columns: what differs, by field, bounded.
        style: how the letters are written.
        alone: writes one row's letter.
    """
    given = dict(columns) if batch.timestamp_ms is None else {**columns, _TIME: batch.timestamp_ms.values}
    letters = Changes(batch)
    if not style.wrapped and not style.include_message and all(map(_is_regular, given, given.values())):
        common, given = _settled(context, given)
        differing = _differing(given, style)
        for rows in _alike(batch, letters.before, {**given, **differing}, style):
            if len(rows) >= _FEWEST:
                first = {name: values[rows[0]] for name, values in given.items()}
                first |= {name: values[rows[0]] for name, values in differing.items()}
                drawn = _drawn(batch.row(rows[0]), common, first, style)
                if drawn is not None:
                    _fill(letters, rows, given, drawn, style)
    for row in letters.missing():
        letters.put(row, alone(row))
    return letters.batch()


# --- shapes --------------------------------------------------------------------------------------------------------


def _is_regular(name: str, values: Sequence[Any]) -> bool:
    """Whether a template can hold a column: values of one type, and of the type that its slot has."""
    kinds = set(map(type, values)) - {NoneType}
    if name not in _SLOTS:
        return len(kinds) <= 1 and kinds <= _PLAIN
    if kinds == {int}:
        numbers = [value for value in values if value is not None]
        return issubclass(_SLOTS[name], int) and min(numbers) > -_MOST and max(numbers) < _MOST
    return kinds <= {_SLOTS[name]}


def _settled(
    context: ErrorContext, columns: Mapping[str, Sequence[Any]]
) -> tuple[ErrorContext, dict[str, Sequence[Any]]]:
    """Return the context with the columns that hold one value only, and the other columns."""
    same = {
        name: each
        for name, each in columns.items()
        if (name not in _SLOTS or name in _TEXTS) and each.count(each[0]) == len(each)
    }
    context = replace(context, **{name: each[0] for name, each in same.items()})
    return context, {name: each for name, each in columns.items() if name not in same}


def _differing(columns: Mapping[str, Sequence[Any]], style: Style) -> dict[str, Sequence[str | None]]:
    """Return the columns of texts, with the token in place of each text that a slot can hold.

    The other texts are part of their row's shape: a dialect would change them, or many rows have them.
    """
    extensions = any(each.extensions for each in style.dialects)
    return {
        name: _tokens(name, columns[name], strict=extensions and name == "reason")
        for name in _TEXTS
        if name in columns and len(set(columns[name])) * _OFTEN > len(columns[name])
    }


def _tokens(name: str, values: Sequence[str | None], *, strict: bool) -> Sequence[str | None]:
    """Return the slot's token for each text that every dialect writes unchanged.

    Args:
        name: the slot.
        values: its column.
        strict: it becomes an attribute of an event too, and the data of another.
    """
    token = _TOKENS[name]

    def is_usual(text: str) -> bool:
        return printable(text) == text and (not strict or (is_plain(text) and len(text.encode()) <= DATA_BYTES))

    return [token if value and is_usual(value) else value for value in values]


def _alike(
    batch: Batch, headers: Sequence[Headers], columns: Mapping[str, Sequence[Any]], style: Style
) -> Iterable[Sequence[int]]:
    """Return the rows of each shape."""
    parts: list[Sequence[Hashable]] = []
    if batch.headers is not None:
        parts.append(_forms(batch, headers, style))
    for name, values in columns.items():
        if name not in _SLOTS or name in _TEXTS:
            parts.append(values)
        elif name == "extra":
            parts.append([not value for value in values])
        elif None in values:
            parts.append([value is None for value in values])
    if not parts:
        return [range(len(batch))]
    shapes: dict[Hashable, list[int]] = defaultdict(list)
    for row, shape in enumerate(zip(*parts, strict=True)):
        shapes[shape].append(row)
    return shapes.values()


def _forms(batch: Batch, every: Sequence[Headers], style: Style) -> Sequence[Hashable]:
    """Return what the headers of each row contribute to its shape: most often nothing but their names."""
    forms = forms_in(batch)
    ours: frozenset[str] = frozenset().union(*(each.gives for each in style.dialects if each.extensions))
    first = dict(zip(reversed(forms), reversed(every), strict=True))
    structured = {form for form, headers in first.items() if is_structured(Message(value=None, headers=headers))}
    if not ours or not structured:
        return forms
    rows = [row for row, form in enumerate(forms) if form in structured]
    inside: dict[tuple[str, ...] | None, Hashable] = {None: None}
    shapes = list(forms)
    for row, names in zip(rows, members_in(batch, rows), strict=True):
        if names not in inside:
            inside[names] = ours.intersection(names or ())
        shapes[row] = forms[row], inside[names]
    return shapes


# --- templates -----------------------------------------------------------------------------------------------------


class _Template:
    """Bytes with slots.

    Args:
        shown: the bytes, with a token in each slot.
        raw: it holds texts unchanged; otherwise as in JSON.

    Attributes:
        names: the slots in their order.
    """

    def __init__(self, shown: bytes, *, raw: bool = False) -> None:
        pieces = _ANY_TOKEN.split(shown)
        self._shown = shown
        self._format = b"%b".join(piece.replace(b"%", b"%%") for piece in pieces[::2])
        names = [_BY_TOKEN[piece] for piece in pieces[1::2]]
        self.names = tuple(name + _RAW if raw and name in _TEXTS else name for name in names)

    def fill(self, slots: Mapping[str, Sequence[bytes]]) -> bytes | list[bytes]:
        """Return the bytes of each row, or the same for all where nothing differs."""
        if not self.names:
            return self._shown
        return list(map(self._format.__mod__, zip(*(slots[name] for name in self.names), strict=True)))


@dataclass(frozen=True, slots=True)
class _Drawn:
    """The one letter of a shape.

    Attributes:
        marker_at: where each message has its marker; behind its headers where it has none.
        headers: ours, by name; the marker is the last.
        piece: inserted into the body of an event; None where the body stays.
        signed: the signed bytes; None without a key.
    """

    marker_at: int
    headers: Sequence[tuple[str, _Template]]
    piece: _Template | None
    signed: _Template | None


def _drawn(message: Message, context: ErrorContext, given: Mapping[str, Any], style: Style) -> _Drawn | None:
    """Return the one letter of a shape; None where the shape is unusual.

    Args:
        message: the first of the shape.
        context: what the contexts share.
        given: what differs, as the first has it; a text that differs by row as its token.
        style: how letters are written.
    """
    at, history = _marker.find(message.headers) or (len(message.headers), Marker())
    if is_letter(history) or history.wrapped or history.retyped or in_the_way(message.headers, style):
        return None
    if style.rename_type and (is_structured(message) or prefix_in(message)):
        return None
    tokens = {
        name: _TOKENS[name] if name in _SLOTS and name not in _TEXTS and value not in (None, {}) else value
        for name, value in given.items()
    }
    plain = replace(message, headers=_without(message.headers, at), timestamp_ms=tokens.pop(_TIME, None))
    letter = Letter(plain, history, style, None if style.key is None else _unsigned).whole(replace(context, **tokens))
    if letter is None or len(letter.headers) == len(plain.headers):
        return None
    return _cut(at, plain, letter, signed=style.key is not None)


def _unsigned(_letter: Message, _marker: Marker) -> str:
    return str(_TOKENS[_MAC])


def _cut(at: int, plain: Message, letter: Message, *, signed: bool) -> _Drawn | None:
    """Return a letter with tokens as templates; arguments as the attributes of `_Drawn`."""
    *ours, last = letter.headers[len(plain.headers) :]
    found = _marker.find((last,))
    if found is None:
        return None
    marker, piece, payload = found[1], None, None
    if marker.inserted is not None:
        begin, length = marker.inserted.offset, marker.inserted.length
        piece = _Template((letter.value or b"")[begin : begin + length])
        marker = replace(marker, inserted=replace(marker.inserted, offset=_TOKENS[_OFFSET], length=_TOKENS[_LENGTH]))
    if signed:
        text, texts, documents, _ = signed_parts(letter, marker)
        tokens = [_TOKENS[_DOCUMENT] for _ in documents]
        payload = _Template(_signature.payload(text, texts, tokens, _TOKENS[_KEY], _TOKENS[_VALUE]))
    headers = [(name, _Template(value or b"", raw=name not in CONTEXT)) for name, value in ours]
    headers.append((last[0], _Template(marker.dump())))
    return _Drawn(at, headers, piece, payload)


def _without(headers: Headers, at: int) -> Headers:
    return (*headers[:at], *headers[at + 1 :])


# --- rows ----------------------------------------------------------------------------------------------------------


def _fill(
    letters: Changes, rows: Sequence[int], columns: Mapping[str, Sequence[Any]], drawn: _Drawn, style: Style
) -> None:
    """Put the letters of the rows of one shape; rows whose letter exceeds a limit are left out."""
    values, keys, users = letters.bytes_of(rows)
    removed = users[0][drawn.marker_at : drawn.marker_at + 1]
    if removed:
        users = [_without(headers, drawn.marker_at) for headers in users]
    templates = [drawn.piece, drawn.signed, *(template for _, template in drawn.headers)]
    names = {name for template in templates if template is not None for name in template.names}
    slots = _slots(names, columns, rows)
    bodies, lengths = values, [0]
    if drawn.piece is not None:
        ends = [len(value.rstrip(_SPACE)) - 1 for value in values]
        filled = drawn.piece.fill(slots)
        pieces = [filled] * len(values) if isinstance(filled, bytes) else filled
        bodies = [value[:end] + piece + value[end:] for value, piece, end in zip(values, pieces, ends, strict=True)]
        lengths = list(map(len, pieces))
        slots |= {_OFFSET: _shown(_OFFSET, ends), _LENGTH: _shown(_LENGTH, lengths)}
    *first, (name, marker) = drawn.headers
    ours: list[_Filled] = [(each, template.fill(slots)) for each, template in first]
    if drawn.signed is not None and style.key is not None:
        slots[_MAC] = _macs(drawn.signed, slots, ours, keys, values, style.key)
    ours.append((name, marker.fill(slots)))
    fit = _fitting(style.limits, users, ours, bodies, keys)
    if fit is not None:
        rows, users, bodies = ([each[at] for at in fit] for each in (rows, users, bodies))  # type: ignore[assignment]
        lengths = [lengths[at] for at in fit] if drawn.piece is not None else lengths
        ours = [(name, found if isinstance(found, bytes) else [found[at] for at in fit]) for name, found in ours]
    if rows:
        grown = sum(_weight(name, found, len(rows)) for name, found in ours)
        grown -= sum(_weight(name, found or b"", len(rows)) for name, found in removed)
        grown += sum(lengths)
        letters.fill(rows, _joined(users, ours), None if drawn.piece is None else bodies, grown)


def _slots(
    names: Iterable[str], columns: Mapping[str, Sequence[Any]], rows: Sequence[int]
) -> dict[str, Sequence[bytes]]:
    """Return what fills the slots of these names, as far as columns have it."""
    slots: dict[str, Sequence[bytes]] = {}
    for name in names:
        text = name.removesuffix(_RAW).removesuffix(_BASE64)
        if text not in columns:
            continue
        values = taken(columns[text], rows)
        if name.endswith(_RAW):
            slots[name] = list(map(str.encode, values))
        elif name.endswith(_BASE64):
            slots[name] = [base64.b64encode(value.encode()) for value in values]
        else:
            shown = _shown(name, values)
            slots[name] = [each[1:-1] for each in shown] if name in _TEXTS else shown
    return slots


def _shown(name: str, values: Sequence[Any]) -> list[bytes]:
    """Return the JSON of each value."""
    if name == "extra":
        return [_COMPACT(value).encode() for value in values]
    return _LINES(list(values)).encode()[1:-1].split(b"\n")


def _macs(
    signed: _Template,
    slots: Mapping[str, Sequence[bytes]],
    ours: Sequence[_Filled],
    keys: Sequence[bytes],
    values: Sequence[bytes],
    key: bytes,
) -> list[bytes]:
    """Return the JSON of each letter's signature."""
    documents = next((found for name, found in ours if name in CONTEXT), b"")
    more = {
        _DOCUMENT: [documents] * len(values) if isinstance(documents, bytes) else documents,
        _KEY: keys,
        _VALUE: [hashlib.sha256(value).digest() for value in values],
    }
    quoted = {name: [b'"%b"' % _signature.base64_of(each).encode() for each in column] for name, column in more.items()}
    payloads = signed.fill({**slots, **quoted})
    return [b'"%b"' % _signature.seal(key, each).encode() for each in payloads if isinstance(each, bytes)]


def _joined(users: Sequence[Headers], ours: Sequence[_Filled]) -> Sequence[Headers]:
    """Return the headers of each row and behind them ours; neighbours that are the same for all rows are shared."""
    shared: Headers = ()
    for name, found in ours:
        if isinstance(found, bytes):
            shared += ((name, found),)
            continue
        users = [(*headers, *shared, (name, value)) for headers, value in zip(users, found, strict=True)]
        shared = ()
    return [headers + shared for headers in users] if shared else users


def _weight(name: str, found: bytes | list[bytes], count: int) -> int:
    """Return the bytes of one header in so many rows."""
    values = len(found) * count if isinstance(found, bytes) else sum(map(len, found))
    return len(name) * count + values


def _fitting(
    limits: Limits,
    users: Sequence[Headers],
    ours: Sequence[_Filled],
    bodies: Sequence[bytes],
    keys: Sequence[bytes],
) -> list[int] | None:
    """Return which letters are within the limits, as `Letter` sees it; None: all are."""
    same = [len(found) for _, found in ours if isinstance(found, bytes)]
    lengths = [list(map(len, found)) for _, found in ours if not isinstance(found, bytes)]
    sizes: list[int] = []
    checks: list[tuple[Sequence[int], int | None]] = [
        ([len(users[0]) + len(ours)] * len(users), limits.header_count),
        ([max(same, default=0)] * len(users), limits.header_value_bytes),
        *((each, limits.header_value_bytes) for each in lengths),
    ]
    if limits.headers_bytes is not None or limits.message_bytes is not None:
        names = sum(len(name.encode("utf-8", "replace")) for name, _ in (*users[0], *ours)) + sum(same)
        sizes = [names + sum([len(value) for _, value in headers if value]) for headers in users]
        for each in lengths:
            sizes = list(map(add, sizes, each))
        whole = map(add, map(add, sizes, map(len, bodies)), map(len, keys))
        checks += [(sizes, limits.headers_bytes), (list(whole), limits.message_bytes)]
    exceeded = [(each, most) for each, most in checks if most is not None and max(each) > most]
    if not exceeded:
        return None
    return [at for at in range(len(users)) if all(each[at] <= most for each, most in exceeded)]
