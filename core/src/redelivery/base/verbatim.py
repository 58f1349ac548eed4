"""JSON that is written as it was read: a change elsewhere leaves every other character in its place.

`loads` returns dictionaries and lists that remember their text. `dumps` writes what was not changed from that text:
blanks, escapes, and numbers to the last digit. New members get the blanks of their neighbours.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, Final

#: Deeper values are refused: they would exhaust the stack of their reader.
DEPTH: Final = 200
_BLANKS: Final = re.compile(r"[ \t\n\r]*")
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?", re.ASCII)
_WORDS: Final[tuple[tuple[str, bool | None], ...]] = (("true", True), ("false", False), ("null", None))
_DECODER: Final = json.JSONDecoder()
_INDENT: Final = "  "


class Number:
    """A number as JSON writes it. Two are equal if they mean the same: 1 and 1.0, whatever their digits.

    Args:
        text: a number of JSON.

    Raises:
        ValueError: it is not one.
    """

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        if _NUMBER.fullmatch(text) is None:
            raise ValueError(f"{text!r} is not a number of JSON")
        self.text = text

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Number):
            return NotImplemented
        try:
            return self.text == other.text or Decimal(self.text) == Decimal(other.text)
        except InvalidOperation:  # an exponent of more than 18 digits
            return False

    def __hash__(self) -> int:
        try:
            return hash(Decimal(self.text))
        except InvalidOperation:
            return hash(self.text)

    def __repr__(self) -> str:
        return f"Number({self.text!r})"

    def __deepcopy__(self, _: object) -> Number:
        return self


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a value stands in its text, and the blanks around it.

    Attributes:
        value: as it was read.
        before: blanks before it, or before its name.
        name: its name in the object and what is between name and value; "" in a list.
        start, end: of its text.
        behind: blanks after it.
    """

    value: Any
    before: str
    name: str
    start: int
    end: int
    behind: str


class Object(dict[str, Any]):
    """An object of JSON, with the text that it was read from."""

    __slots__ = ("end", "places", "start", "text")
    text: str
    start: int
    end: int
    places: dict[str, _Place]


class Array(list[Any]):
    """A list of JSON, with the text that it was read from."""

    __slots__ = ("end", "places", "start", "text")
    text: str
    start: int
    end: int
    places: list[_Place]


def loads(text: str) -> Any:
    """Return the value of JSON text: `Object`, `Array`, `Number`, str, bool or None.

    Raises:
        ValueError: it is not JSON, one object has a name twice, or it is nested deeper than `DEPTH`.
    """
    at = _skip(text, 0)
    value, at = _read(text, at, DEPTH)
    if _skip(text, at) != len(text):
        raise ValueError("text behind the value")
    return value


def dumps(value: Any, text: str | None = None) -> str:
    """Return the JSON text of a value of `loads`, of `of`, or of both.

    Args:
        value: possibly changed.
        text: that the value was read from: what stands around the value is kept.
    """
    out: list[str] = []
    if text is not None and not isinstance(value, dict | list) and repr(loads(text)) == repr(value):
        return text
    _write(value, out)
    written = "".join(out)
    if text is None:
        return written
    return text[: _skip(text, 0)] + written + text[len(text.rstrip(" \t\n\r")) :]


def of(value: Any) -> Any:
    """Return a Python value in the form of `loads`. Raises ValueError: JSON has no form for it."""
    if value is None or isinstance(value, bool | str | Number):
        return value
    if isinstance(value, int | float | Decimal):
        return Number(repr(value) if isinstance(value, float) else str(value))
    if isinstance(value, Mapping):
        if not all(isinstance(name, str) for name in value):
            raise ValueError("a name in an object is not text; write it in quotes")
        return {name: of(each) for name, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return [of(each) for each in value]
    raise ValueError(f"{type(value).__name__} has no form in JSON; write it as text, in quotes")


def pretty(value: Any) -> str:
    """Return JSON text for people: a line for each member, numbers to the last digit."""
    out: list[str] = []
    _indented(value, "\n", out)
    return "".join(out)


def _skip(text: str, at: int) -> int:
    found = _BLANKS.match(text, at)
    return at if found is None else found.end()


def _read(text: str, at: int, depth: int) -> tuple[Any, int]:
    """Return the value that begins here, and where it ends."""
    first = text[at : at + 1]
    if first == '"':
        return _DECODER.raw_decode(text, at)
    if first in {"{", "["}:
        if not depth:
            raise ValueError("nested too deeply")
        return (_object if first == "{" else _array)(text, at, depth - 1)
    for word, value in _WORDS:
        if text.startswith(word, at):
            return value, at + len(word)
    found = _NUMBER.match(text, at)
    if found is None:
        raise ValueError(f"no value at {at}")
    number = Number.__new__(Number)
    number.text = found[0]
    return number, found.end()


def _object(text: str, start: int, depth: int) -> tuple[Object, int]:
    found = Object()
    found.text, found.start, found.places = text, start, {}
    at = _skip(text, start + 1)
    if text[at : at + 1] == "}":
        found.end = at + 1
        return found, found.end
    before = text[start + 1 : at]
    while True:
        if text[at : at + 1] != '"':
            raise ValueError(f"no name at {at}")
        name, colon = _DECODER.raw_decode(text, at)
        if name in found:
            raise ValueError("a name is given twice")
        colon = _skip(text, colon)
        if text[colon : colon + 1] != ":":
            raise ValueError(f"no value at {colon}")
        first = _skip(text, colon + 1)
        value, end = _read(text, first, depth)
        behind = _skip(text, end)
        found[name] = value
        found.places[name] = _Place(value, before, text[at:first], first, end, text[end:behind])
        if text[behind : behind + 1] == "}":
            found.end = behind + 1
            return found, found.end
        at, before = _next(text, behind)


def _array(text: str, start: int, depth: int) -> tuple[Array, int]:
    found = Array()
    found.text, found.start, found.places = text, start, []
    at = _skip(text, start + 1)
    if text[at : at + 1] == "]":
        found.end = at + 1
        return found, found.end
    before = text[start + 1 : at]
    while True:
        value, end = _read(text, at, depth)
        behind = _skip(text, end)
        found.append(value)
        found.places.append(_Place(value, before, "", at, end, text[end:behind]))
        if text[behind : behind + 1] == "]":
            found.end = behind + 1
            return found, found.end
        at, before = _next(text, behind)


def _next(text: str, comma: int) -> tuple[int, str]:
    """Return where the member behind a comma begins, and the blanks before it."""
    if text[comma : comma + 1] != ",":
        raise ValueError(f"no comma at {comma}")
    at = _skip(text, comma + 1)
    return at, text[comma + 1 : at]


def _is_unchanged(value: Any) -> bool:
    """Whether a value is as it was read, with all that is in it."""
    if isinstance(value, Object):
        return list(value) == list(value.places) and all(
            value[name] is place.value and _is_unchanged(place.value) for name, place in value.places.items()
        )
    if isinstance(value, Array):
        return len(value) == len(value.places) and all(
            each is place.value and _is_unchanged(each) for each, place in zip(value, value.places, strict=True)
        )
    return not isinstance(value, dict | list)


def _write(value: Any, out: list[str]) -> None:
    if isinstance(value, Object) and value.places:
        _write_object(value, out)
    elif isinstance(value, Array) and value.places:
        _write_array(value, out)
    elif isinstance(value, Object | Array) and not value:
        out.append(value.text[value.start : value.end])
    elif isinstance(value, dict):
        for number, (name, each) in enumerate(value.items()):
            out.append(f"{',' if number else '{'}{_simple(name)}:")
            _write(each, out)
        out.append("}" if value else "{}")
    elif isinstance(value, list):
        for number, each in enumerate(value):
            out.append("," if number else "[")
            _write(each, out)
        out.append("]" if value else "[]")
    else:
        out.append(_simple(value))


def _write_object(value: Object, out: list[str]) -> None:
    """Write an object that had members: those that stay with their own blanks, new ones with those of the others."""
    if _is_unchanged(value):
        out.append(value.text[value.start : value.end])
        return
    places = list(value.places.values())
    last = places[-1]
    colon = ": " if last.name.endswith(" ") else ":"
    apart = last.before if len(places) > 1 or last.before else (" " if colon == ": " else "")
    out.append("{")
    for number, (name, each) in enumerate(value.items()):
        place = value.places.get(name)
        before = apart if place is None or (place is places[0] and number) else place.before
        out.append(("," + before) if number else places[0].before)
        out.append(_simple(name) + colon if place is None else place.name)
        _write_at(value.text, each, place, out)
        out.append(place.behind if place is not None and place is not last and number + 1 < len(value) else "")
    out.append((last.behind if value else "") + "}")


def _write_array(value: Array, out: list[str]) -> None:
    """Write a list that had members; see `_write_object`."""
    if _is_unchanged(value):
        out.append(value.text[value.start : value.end])
        return
    first, last = value.places[0], value.places[-1]
    known = {id(place.value): place for place in value.places}
    out.append("[")
    for number, each in enumerate(value):
        out.append(("," + (last.before if len(value.places) > 1 or first.before else "")) if number else first.before)
        _write_at(value.text, each, known.get(id(each)), out)
    out.append((last.behind if value else "") + "]")


def _write_at(text: str, value: Any, place: _Place | None, out: list[str]) -> None:
    """Write a member: as it stood, where it is still the value that it was."""
    if place is not None and place.value is value and not isinstance(value, dict | list):
        out.append(text[place.start : place.end])
    else:
        _write(value, out)


def _indented(value: Any, line: str, out: list[str]) -> None:
    deeper = line + _INDENT
    if isinstance(value, dict) and value:
        for number, (name, each) in enumerate(value.items()):
            out.append(f"{',' if number else '{'}{deeper}{_simple(name)}: ")
            _indented(each, deeper, out)
        out.append(line + "}")
    elif isinstance(value, list) and value:
        for number, each in enumerate(value):
            out.append(f"{',' if number else '['}{deeper}")
            _indented(each, deeper, out)
        out.append(line + "]")
    else:
        out.append("{}" if isinstance(value, dict) else "[]" if isinstance(value, list) else _simple(value))


def _simple(value: Any) -> str:
    """Return the text of a value without members. Text that is not Unicode is escaped."""
    if isinstance(value, Number):
        return value.text
    written = json.dumps(value, ensure_ascii=False)
    try:
        written.encode()
    except UnicodeEncodeError:
        return json.dumps(value)
    return written
