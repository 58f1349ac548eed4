"""What a message holds, on a terminal: never able to drive it, never wider than it.

This file must not read a place, nor print.
"""

from __future__ import annotations

import shutil
import unicodedata
from collections.abc import Iterator
from typing import Final

#: Bytes of a body that are shown unless all are asked for.
SHOWN: Final = 4096
_HEX_ROW: Final = 16
#: Unicode categories that move the cursor, reorder text, or show nothing.
_HARMFUL: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def columns() -> int:
    """How wide the terminal is; 80 where there is none."""
    return max(40, shutil.get_terminal_size((80, 24)).columns)


def harmless(text: str, *, keep: str = "") -> str:
    """Text that shows itself and does nothing: escape sequences, controls and marks of direction are written out."""
    return "".join(
        each if each in keep or unicodedata.category(each) not in _HARMFUL else _escaped(each) for each in text
    )


def one_line(text: str, width: int) -> str:
    """Harmless text on one line, cut to so many columns; wide characters count two."""
    text = harmless(" ".join(text.split()))
    if _width(text) <= width:
        return text
    room, out = width - 1, ""
    for each in text:
        room -= _width(each)
        if room < 0:
            break
        out += each
    return out + "…"


def padded(text: str, width: int) -> str:
    """Text filled up to so many columns."""
    return text + " " * max(0, width - _width(text))


def body(value: bytes | None, *, most: int | None = SHOWN) -> Iterator[str]:
    """A body as lines: text where it is text, else hexadecimal beside what can be shown of it."""
    if value is None:
        yield "(null)"
        return
    shown = value if most is None else value[:most]
    text = _text(shown, cut=len(shown) < len(value))
    if text is not None:
        yield from harmless(text, keep="\n\t").split("\n")
    else:
        yield from _hex(shown)
    if len(shown) < len(value):
        yield f"({len(value) - len(shown):,} more bytes: --all shows them)"


def _text(value: bytes, *, cut: bool) -> str | None:
    """The text that bytes are, or None; where they were cut within a character, they are still text."""
    try:
        text = value.decode("utf-8")
    except UnicodeDecodeError as error:
        if not cut or error.start < len(value) - 3:
            return None
        text = value[: error.start].decode("utf-8")
    return None if any(unicodedata.category(each) == "Cc" and each not in "\n\r\t\x1b" for each in text) else text


def _hex(value: bytes) -> Iterator[str]:
    for at in range(0, len(value), _HEX_ROW):
        row = value[at : at + _HEX_ROW]
        text = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in row)  # noqa: PLR2004 - printable ASCII
        yield f"{at:08x}  {row.hex(' '):<{_HEX_ROW * 3 - 1}}  {text}"


def _escaped(character: str) -> str:
    return character.encode("unicode_escape", "backslashreplace").decode("ascii")


def _width(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(each) in "WF" else not unicodedata.combining(each) for each in text)
