"""How single values are written: numbers, milliseconds, durations, words and flags, as text and back.

Sentences name no field and end with a right example; the caller puts the field's name before them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from redelivery.base import durations
from redelivery.base.durations import shown
from redelivery.contract.spec import FOREVER, UNLIMITED
from redelivery.errors import InvalidSpec

INT16_MAX: Final = 2**15 - 1
INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1

_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,19}")  # a longer number is out of any range here
_MILLISECOND: Final = timedelta(milliseconds=1)
_TYPES: Final[dict[type, str]] = {
    type(None): "empty",
    bool: "true or false",
    dict: "a mapping",
    float: "a fraction",
    int: "a number",
    list: "a list",
    str: "the text",
}
_FLAGS: Final = {"true": True, "false": False}


@dataclass(frozen=True, slots=True)
class FieldType:
    """One way of writing a value.

    Attributes:
        json: its type in YAML and JSON.
        read: text to value; raises InvalidSpec.
        write: value to its YAML and JSON form; raises InvalidSpec where this way cannot express it.
    """

    json: type[int | bool | str]
    read: Callable[[str], Any]
    write: Callable[[Any], int | bool | str]


def as_text(value: object) -> str:
    """Return the text of a value that may also be a number or flag.

    Raises:
        InvalidSpec: it is of another type.
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int):
        return str(value)
    raise InvalidSpec(f"must be text, a whole number or true or false, not {_type(value)}")


def as_typed(kind: FieldType, value: object) -> str:
    """Return the text of a value that must have its YAML type.

    Raises:
        InvalidSpec: it has another type.
    """
    if type(value) is not kind.json:
        word = {int: "a whole number", bool: "true or false", str: "text"}[kind.json]
        quoted = f" {shown(value)}" if isinstance(value, str) else ""
        raise InvalidSpec(f"must be {word}, not {_type(value)}{quoted}" + (_example(kind) if kind.json is str else ""))
    return as_text(value)


def _example(kind: FieldType) -> str:
    return ", as in 'PT5S'" if kind is DURATION or kind is SOME_DURATION else ""


def _type(value: object) -> str:
    return _TYPES.get(type(value), type(value).__name__)


def whole(least: int, most: int) -> FieldType:
    """A whole number within bounds; -1 as the lower bound means: unlimited."""
    no_limit = " (-1: no limit)" if least == UNLIMITED else ""
    must = f"must be a whole number from {least} to {most}{no_limit}, as in '{max(least, 3)}'"

    def read(text: str) -> int:
        if not _WHOLE.fullmatch(text) or not least <= int(text) <= most:
            raise InvalidSpec(f"{must}, not {shown(text)}")
        return int(text)

    def write(value: int) -> int:
        return read(str(value))

    return FieldType(int, read, write)


def milliseconds(least: int) -> FieldType:
    """A duration in whole milliseconds; -1 as the lower bound means: without end."""
    no_end = " (-1: forever)" if least == UNLIMITED else ""
    must = f"must be whole milliseconds from {least} on{no_end}, as in '60000'"
    longest = FOREVER // _MILLISECOND
    number = whole(least, INT64_MAX)

    def read(text: str) -> timedelta:
        try:
            count = number.read(text)
        except InvalidSpec:
            raise InvalidSpec(f"{must}, not {shown(text)}") from None
        # Connect's longest is longer than Python's: both outlive the job.
        return FOREVER if count == UNLIMITED or count > longest else count * _MILLISECOND

    def write(value: timedelta) -> int:
        if value == FOREVER:
            return UNLIMITED if least == UNLIMITED else INT64_MAX
        if value % _MILLISECOND or value < max(least, 0) * _MILLISECOND:
            raise InvalidSpec(f"{must}, not {value}")
        return int(value // _MILLISECOND)

    return FieldType(int, read, write)


def word(*words: str) -> FieldType:
    """One of a few words."""

    def read(text: str) -> str:
        if text not in words:
            raise InvalidSpec(f"must be one of {', '.join(words)}, as in {words[0]!r}, not {shown(text)}")
        return text

    return FieldType(str, read, read)


def _read_text(text: str) -> str:
    if not text:
        raise InvalidSpec("must not be empty; leave it out")
    return text


def words(*known: str) -> FieldType:
    """Some of a few words, each once, separated by commas."""
    must = f"must be some of {', '.join(known)}, each once, with commas between, as in '{known[0]},{known[1]}'"

    def read(text: str) -> tuple[str, ...]:
        found = tuple(each.strip() for each in text.split(","))
        if len({*found}) < len(found) or {*found} - {*known}:
            raise InvalidSpec(f"{must}, not {shown(text)}")
        return found

    return FieldType(str, read, ",".join)


def coded(codes: dict[str, str]) -> FieldType:
    """One of a few whole numbers, each standing for a word."""
    words = {word: int(code) for code, word in codes.items()}

    def read(text: str) -> str:
        if text not in codes:
            ways = ", ".join(f"{code} ({word})" for code, word in codes.items())
            raise InvalidSpec(f"must be one of {ways}, not {shown(text)}")
        return codes[text]

    return FieldType(int, read, words.__getitem__)


def _read_flag(text: str) -> bool:
    if text.lower() not in _FLAGS:
        raise InvalidSpec(f"must be 'true' or 'false', not {shown(text)}")
    return _FLAGS[text.lower()]


def _read_some_duration(text: str) -> timedelta:
    duration = durations.parse(text)
    if not duration:
        raise InvalidSpec(f"must be more than 0, as in 'PT5S', not {shown(text)}")
    return duration


TEXT: Final = FieldType(str, _read_text, str)
FLAG: Final = FieldType(bool, _read_flag, bool)
DURATION: Final = FieldType(str, durations.parse, durations.write)
SOME_DURATION: Final = FieldType(str, _read_some_duration, durations.write)
