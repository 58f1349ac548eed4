"""Extension attributes put into the body of a structured event, and taken out again to the byte.

They are inserted as text before the last brace, so that nothing else of the body changes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

_SPACE = b" \t\r\n"


@dataclass(frozen=True, slots=True)
class Inserted:
    """Where in the body our text begins, and its bytes."""

    offset: int
    length: int


def insert(body: bytes, attributes: Mapping[str, Any]) -> tuple[bytes, Inserted]:
    """Return the body of an event with these attributes added. It must not have them yet; it has others."""
    at = len(body.rstrip(_SPACE)) - 1
    piece = b"," + json.dumps(dict(attributes), separators=(",", ":")).encode()[1:-1]
    return body[:at] + piece + body[at:], Inserted(at, len(piece))


def remove(body: bytes, names: Iterable[str], where: Inserted | None) -> bytes:
    """Return the body as it was before `insert`.

    If the body has been changed since, these attributes are removed and the rest is written again. A body that is no
    longer JSON is not changed.
    """
    names = frozenset(names)
    if where is not None and where.offset >= 0 and where.length > 0:
        end = where.offset + where.length
        if _holds(body[where.offset : end], names):
            return body[: where.offset] + body[end:]
    form = _parse(body)
    if form is None or not names & form.keys():
        return body
    return json.dumps({k: v for k, v in form.items() if k not in names}, separators=(",", ":")).encode()


class Remover:
    """Removes the same names from many bodies, as `remove` does. The inserted text is most often the same.

    Args:
        names: of the attributes.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(names)
        self._known: dict[bytes, bool] = {}

    def __call__(self, body: bytes, where: Inserted | None) -> bytes:
        """Return a body without them."""
        if where is None:
            return remove(body, self._names, None)
        begin, end = where.offset, where.offset + where.length
        piece = body[begin:end]
        ours = self._known.get(piece)
        if ours is None:
            ours = self._known[piece] = _holds(piece, self._names)
        return body[:begin] + body[end:] if ours else remove(body, self._names, None)


def _holds(piece: bytes, names: frozenset[str]) -> bool:
    """Whether a piece of a body is what `insert` writes of attributes of these names."""
    return piece[:1] == b"," and (_parse(b"{" + piece[1:] + b"}") or {}).keys() == names


def attributes(body: bytes | None) -> dict[str, Any]:
    """Return the members of a body; empty where it is not a JSON object."""
    return _parse(body or b"") or {}


def _parse(body: bytes) -> dict[str, Any] | None:
    try:
        form = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return form if isinstance(form, dict) else None
