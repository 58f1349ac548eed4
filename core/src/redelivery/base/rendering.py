"""Foreign text that is safe to show: characters that drive a terminal, or forge a log line, are escaped."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from typing import Final

#: Unicode categories that move the cursor, reorder text, or show nothing.
_HARMFUL: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_HEX_ROW: Final = 16


def harmless(text: str, *, keep: str = "") -> str:
    """Return text that has no effect when shown: escape sequences, controls and marks of direction are escaped."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        each if each in keep or unicodedata.category(each) not in _HARMFUL else _escaped(each) for each in text
    )


def _escaped(character: str) -> str:
    return character.encode("unicode_escape", "backslashreplace").decode("ascii")


def text_of(value: bytes, *, cut: bool) -> str | None:
    """Return the text that bytes are, or None.

    Args:
        value: the bytes.
        cut: they are the beginning of more, so the last character may be incomplete.
    """
    try:
        text = value.decode("utf-8")
    except UnicodeDecodeError as error:
        if not cut or error.start < len(value) - 3:
            return None
        text = value[: error.start].decode("utf-8")
    return None if any(unicodedata.category(each) == "Cc" and each not in "\n\r\t\x1b" for each in text) else text


def hex_rows(value: bytes) -> Iterator[str]:
    """Return bytes in hexadecimal beside their printable characters, a line for each 16."""
    for at in range(0, len(value), _HEX_ROW):
        row = value[at : at + _HEX_ROW]
        text = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in row)  # noqa: PLR2004 - printable ASCII
        yield f"{at:08x}  {row.hex(' '):<{_HEX_ROW * 3 - 1}}  {text}"
