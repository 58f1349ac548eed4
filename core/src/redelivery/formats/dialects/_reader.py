"""Finds in a message what we wrote into it: texts by name, JSON, and the message without them."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from redelivery.contract.message import Batch, Headers, Message
from redelivery.formats.cloudevents import CONTENT_TYPE, PREFIXES, is_structured
from redelivery.formats.dialects import _body, _marker, connect, deadletter, knativeerror
from redelivery.formats.dialects._marker import Marker
from redelivery.formats.dialects._writer import CONTEXT, Dialect
from redelivery.formats.rows import headers_of, names_in

BY_NAME: Final[Mapping[str, Dialect]] = {
    "connect": Dialect("connect", connect.GIVES, connect.write, connect.read),
    "deadletter": Dialect("deadletter", deadletter.GIVES, deadletter.write, deadletter.read, extensions=True),
    "knativeerror": Dialect("knativeerror", knativeerror.GIVES, knativeerror.write, knativeerror.read, extensions=True),
    "json": Dialect("json", {}, lambda _: [], lambda _: {}, whole=True),
}
#: Where our text is in an event's body, as a marker says it: behind all but its signature.
_PLACE: Final = rb',"inserted":\[(0|[1-9][0-9]{0,8}),(0|[1-9][0-9]{0,8})\]'
_AT_END, _BEFORE_MAC = re.compile(_PLACE + rb"\}\Z"), re.compile(_PLACE + rb"\Z")
#: How a signed marker ends: with the signature, of 43 characters of base64.
_MAC: Final = re.compile(rb',"mac":"([0-9A-Za-z+/]{43})"\}\Z')
_MAC_BYTES: Final = 53
_MARKERS: Final = frozenset(_marker.NAMES)
#: Every extension attribute of ours.
EXTENSIONS: Final = frozenset().union(*(each.gives for each in BY_NAME.values() if each.extensions))


def forms_in(batch: Batch) -> Sequence[Hashable]:
    """Return `forms_of` the headers of a batch; worked out once."""
    if batch.headers is None:
        return [()] * len(batch)
    return batch.headers.once("forms", lambda: forms_of(headers_of(batch), names_in(batch)))


def forms_of(every: Sequence[Headers], names: Sequence[tuple[str, ...]]) -> Sequence[Hashable]:
    """Return the names of each row's headers, with the values that decide what a letter is.

    Of a marker, its signature and the place of what we inserted into a body are left out.
    """
    places = {each: tuple(at for at, name in enumerate(each) if matters(name)) for each in set(names)}
    if not any(places.values()):
        return names
    known = _Alike()
    return [(each, *[known[headers[at][1]] for at in places[each]]) for each, headers in zip(names, every, strict=True)]


class _Alike(dict[bytes | None, Hashable]):
    """Markers without what differs by row, signature and place of insertion; other values unchanged.

    Many rows have the same.
    """

    def __missing__(self, value: bytes | None) -> Hashable:
        found: Hashable = value
        if value is not None:
            signed, place = mac_in(value) is not None, _place_in(value)
            rest = value[: place.start()] if place is not None else value[:-_MAC_BYTES] if signed else value
            found = (rest, signed, place is not None) if signed or place is not None else value
        self[value] = found
        return found


def _place_in(value: bytes) -> re.Match[bytes] | None:
    return _AT_END.search(value) if mac_in(value) is None else _BEFORE_MAC.search(value[:-_MAC_BYTES])


def inserted_in(value: bytes) -> _body.Inserted | None:
    """Return where our text is in the body, as a marker says it at its end; None where it does not."""
    found = _place_in(value)
    return None if found is None or found[2] == b"0" else _body.Inserted(int(found[1]), int(found[2]))


def mac_in(value: bytes) -> bytes | None:
    """Return the signature at the end of a marker, where we write it; None where it is not there."""
    if value[-_MAC_BYTES:][:8] != b',"mac":"':
        return None
    found = _MAC.match(value, len(value) - _MAC_BYTES)
    return None if found is None else found[1]


def matters(name: str) -> bool:
    """Whether the value of a header decides what of a message is ours: its marker, its content type."""
    return name in _MARKERS or name.lower() == CONTENT_TYPE


def is_letter(marker: Marker) -> bool:
    """Whether a message with this marker has a context of ours."""
    return marker.dialect is not None or marker.truncated


def signed_parts(message: Message, marker: Marker) -> tuple[bytes, dict[str, str], list[bytes], Message]:
    """Return the signed parts: the marker, the texts and the JSON that a context is read from, the bare message."""
    unsigned = replace(marker, mac=None)
    return unsigned.dump(), written_texts(message, marker), written_json(message, marker), bare_of(message, marker)


def known_dialects(marker: Marker) -> list[Dialect]:
    """Return the dialects that the marker names, as far as this version has them."""
    return [BY_NAME[name] for name in marker.dialects if name in BY_NAME]


def own_places(names: Sequence[str], marker: Marker, at: int) -> frozenset[int]:
    """Return which headers the marker lists; of several with one name, the last one before the marker.

    The user's own stand before ours. What another program has added since stands behind the marker.

    Args:
        names: of the headers.
        marker: theirs.
        at: the index of the marker; behind all headers where they have none yet.
    """
    found: dict[str, int] = {}
    for place, name in enumerate(names):
        if name in marker.headers and (place < at or name not in found):
            found[name] = place
    return frozenset(found.values())


def others_places(names: Sequence[str], marker: Marker, at: int) -> frozenset[int]:
    """Return which headers have a name that the marker lists, and are not ours; arguments as of `own_places`."""
    listed = [place for place, name in enumerate(names) if name in marker.headers]
    return frozenset(listed) - own_places(names, marker, at)


def _without_others(message: Message, marker: Marker) -> Message:
    """Return a message without headers that only have the name of one that the marker lists."""
    names = [name for name, _ in message.headers if name in marker.headers]
    if len(names) == len(set(names)):
        return message
    found = _marker.find(message.headers)
    every = [name for name, _ in message.headers]
    others = others_places(every, marker, len(every) if found is None else found[0])
    return replace(message, headers=tuple(each for at, each in enumerate(message.headers) if at not in others))


def written_texts(message: Message, marker: Marker) -> dict[str, str]:
    """Return the text of each name that the marker lists, wherever it is now."""
    message = _without_others(message, marker)
    written = {extension(name) or name for name in marker.headers} | set(marker.attributes)
    found = (pair for dialect in known_dialects(marker) for pair in texts_of(message, dialect).items())
    return {name: value for name, value in found if name in written}


def written_json(message: Message, marker: Marker) -> list[bytes]:
    """Return our JSON headers."""
    headers = _without_others(message, marker).headers
    return [value or b"" for name, value in headers if name in CONTEXT and name in marker.headers]


def texts_of(message: Message, dialect: Dialect) -> dict[str, str]:
    """Return those of the dialect's names that a message has, wherever they are, with their text."""
    found: dict[str, str] = {}
    for name, value in message.headers:
        known = extension(name) if dialect.extensions else name
        if known is not None and known in dialect.gives and value is not None:
            found[known] = value.decode("utf-8", "replace")
    if dialect.extensions and is_structured(message):
        form = _body.attributes(message.value)
        found |= {name: str(form[name]) for name in dialect.gives if isinstance(form.get(name), str | int)}
    return found


def extension(header: str) -> str | None:
    """Return the extension attribute of ours that a header carries, whatever its prefix."""
    return next((header.removeprefix(p) for p in ("", *PREFIXES) if header.removeprefix(p) in EXTENSIONS), None)


def bare_of(message: Message, marker: Marker) -> Message:
    """Return the message without what the marker lists, and with the user's headers that stood in our way.

    A name that no dialect writes is not ours, and stays.

    An event may have changed its content mode or prefix since: a former header is then in the body, or elsewhere.
    """
    there = {name for name, _ in message.headers}
    moved = {attribute for name in marker.headers if name not in there and (attribute := extension(name))}
    inside = EXTENSIONS & set(marker.attributes)
    structured = is_structured(message)
    gone = moved if structured else moved | inside
    found = _marker.find(message.headers)
    names = [name for name, _ in message.headers]
    own = own_places(names, marker, len(names) if found is None else found[0])
    kept = [
        (name, value)
        for at, (name, value) in enumerate(message.headers)
        if not (at in own and _ours(name)) and extension(name) not in gone
    ]
    for each in marker.replaced:
        kept.insert(each.place, each.header)
    value = message.value
    if value is not None and structured and inside | moved:
        value = _body.remove(value, inside | moved, marker.inserted)
    return replace(message, value=value, headers=tuple(kept))


def _ours(name: str) -> bool:
    return name in CONTEXT or name in connect.NAMES or name.endswith(tuple(EXTENSIONS))
