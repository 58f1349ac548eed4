"""Foreign text that is safe to show: characters that drive a terminal, or forge a log line, are escaped."""

from __future__ import annotations

import unicodedata
from typing import Final

#: Unicode categories that move the cursor, reorder text, or show nothing.
_HARMFUL: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def harmless(text: str, *, keep: str = "") -> str:
    """Return text that has no effect when shown: escape sequences, controls and marks of direction are escaped."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        each if each in keep or unicodedata.category(each) not in _HARMFUL else _escaped(each) for each in text
    )


def _escaped(character: str) -> str:
    return character.encode("unicode_escape", "backslashreplace").decode("ascii")
