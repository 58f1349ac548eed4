"""The marker: one header on every letter that lists what we wrote into it, and keeps its history over redrives.

A redriven message keeps a marker with its history only.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple

from redelivery.contract.message import Header, Headers
from redelivery.formats.dialects import json_context
from redelivery.formats.dialects._body import Inserted
from redelivery.formats.dialects._retype import Retyped

#: The marker's name, and the one it takes where a user's own header has the first.
NAMES: Final = ("redelivery-letter", "redelivery-letter-2")
_MOST: Final = 2**31
#: Longer markers are parsed each time. Bytes.
_REMEMBERED: Final = 2048
_FLAGS: Final = ("truncated", "maybe_delivered", "wrapped", "received", "own_id", "unresolved")
_MEMBERS: Final = ("dialect", "headers", "attributes", "attempts_total", "hops", *_FLAGS)


class Replaced(NamedTuple):
    """A user's header that is not in the letter, as it has the name of one of ours and the broker takes only one."""

    place: int
    name: str
    value: str | None

    @property
    def header(self) -> Header:
        """The header."""
        return self.name, None if self.value is None else base64.b64decode(self.value)

    @classmethod
    def of(cls, place: int, header: Header) -> Replaced:
        """Return a header that was at this place among the user's."""
        name, value = header
        return cls(place, name, None if value is None else base64.b64encode(value).decode())


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """The content of the marker.

    Attributes:
        dialect: in which the context was written, several separated by commas; None: no longer a letter.
        headers: names of headers that we wrote, besides the marker.
        attributes: extension attributes that we wrote into a structured event's body, at `inserted`.
        attempts_total, hops: over all redrives.
        truncated: the context was cut.
        maybe_delivered: the destination may hold the message, by an attempt before or after a redrive.
        retyped: an event's type before it was reposted under another.
        wrapped: the letter is an event that stands for the message (`events.wrapped`).
        received: the message was stored at its destination before it died there; any application may have written it.
        own_id: the message's own id ends as if we had written the mark of this hop.
        unresolved: a row made of a letter that only points to its message, which could not be read.
        replaced: the user's headers that ours stand for.
        mac: signs all of this, what we wrote, and the message (`dialects._signature`).
    """

    dialect: str | None = None
    headers: tuple[str, ...] = ()
    attributes: tuple[str, ...] = ()
    inserted: Inserted | None = None
    attempts_total: int = 0
    hops: int = 0
    truncated: bool = False
    maybe_delivered: bool = False
    retyped: Retyped | None = None
    wrapped: bool = False
    received: bool = False
    own_id: bool = False
    unresolved: bool = False
    replaced: tuple[Replaced, ...] = ()
    mac: str | None = None

    @property
    def dialects(self) -> tuple[str, ...]:
        """The dialects by name."""
        return () if self.dialect is None else tuple(self.dialect.split(","))

    @property
    def says_anything(self) -> bool:
        """Whether it holds anything that must not be lost."""
        return self != Marker()

    def dump(self) -> bytes:
        """Return the marker's value: the fields that differ from their defaults."""
        form: dict[str, Any] = {}
        for name in _MEMBERS:
            value = getattr(self, name)
            if value:
                form[name] = value
        if self.inserted is not None:
            form["inserted"] = [self.inserted.offset, self.inserted.length]
        if self.retyped is not None:
            form["retyped"] = list(astuple(self.retyped))
        if self.replaced:
            form["replaced"] = [list(each) for each in self.replaced]
        if self.mac is not None:
            form["mac"] = self.mac
        return json_context.dump(form)


def find(headers: Headers) -> tuple[int, Marker] | None:
    """Return the marker among headers and its index. A header of that name with other content belongs to the user."""
    for index, (name, value) in enumerate(headers):
        if name in NAMES:
            marker = _parsed(value) if value is not None and len(value) <= _REMEMBERED else _parse(value)
            if marker is not None:
                return index, marker
    return None


def free_name(headers: Headers) -> str | None:
    """Return a name for the marker that no header has; None where all are taken."""
    taken = {name.lower() for name, _ in headers}
    return next((name for name in NAMES if name not in taken), None)


def _parse(value: bytes | None) -> Marker | None:
    form = json_context.parse(value)
    return None if form is None else _read(form)


#: Letters of one cause have the same marker.
_parsed: Final = lru_cache(maxsize=1024)(_parse)


def _read(form: Mapping[str, Any]) -> Marker | None:
    """Return the marker if we could have written it: with an unknown name or number it belongs to another program."""
    dialect = form.get("dialect")
    names = [form.get("headers", []), form.get("attributes", [])]
    numbers = [form.get("attempts_total", 0), form.get("hops", 0)]
    inserted = form.get("inserted", [0, 0])
    retyped = form.get("retyped", ["", "", 0, ""])
    mac = form.get("mac")
    replaced = form.get("replaced", [])
    if not isinstance(retyped, list) or not _is_retyped(retyped) or not _are_replaced(replaced):
        return None
    if not form.keys() & {*_MEMBERS, "retyped", "replaced"} or not isinstance(dialect, str | None):
        return None
    if not all(isinstance(several, list) and all(isinstance(each, str) for each in several) for several in names):
        return None
    if not isinstance(inserted, list) or len(inserted) != 2:  # noqa: PLR2004 - offset and length
        return None
    if not all(type(number) is int and 0 <= number < _MOST for number in (*numbers, *inserted)):
        return None
    return Marker(
        dialect=dialect,
        headers=tuple(names[0]),
        attributes=tuple(names[1]),
        inserted=Inserted(*inserted) if inserted[1] else None,
        attempts_total=numbers[0],
        hops=numbers[1],
        **{name: form.get(name) is True for name in _FLAGS},
        retyped=Retyped(*retyped) if retyped[0] and retyped[1] else None,
        replaced=tuple(Replaced(*each) for each in replaced),
        mac=mac if isinstance(mac, str) else None,
    )


def _are_replaced(several: Any) -> bool:
    """Whether each of these has the parts of a `Replaced`."""
    return isinstance(several, list) and all(map(_is_replaced, several))


def _is_replaced(each: Any) -> bool:
    if not isinstance(each, list) or len(each) != len(Replaced._fields):
        return False
    place, name, value = each
    if type(place) is not int or not 0 <= place < _MOST or not isinstance(name, str) or not _is_unicode(name):
        return False
    try:
        return value is None or (isinstance(value, str) and base64.b64decode(value, validate=True) is not None)
    except ValueError:
        return False


def _is_retyped(parts: list[Any]) -> bool:
    """Whether these are the parts of a `Retyped`: a type with half a character is not valid."""
    texts = [each for each in parts if isinstance(each, str)]
    return [type(each) for each in parts] == [str, str, int, str] and all(map(_is_unicode, texts))


def _is_unicode(text: str) -> bool:
    return not any("\ud800" <= each <= "\udfff" for each in text)
