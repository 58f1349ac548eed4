"""All output of the command: no foreign text can drive a terminal, or forge a line of a log."""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
import time
import unicodedata
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Final

from redelivery.base.rendering import harmless, hex_rows, text_of

#: Why a secret is not taken from the command line.
SHOWN_TO_ALL: Final = "every user of this host can see (ps)"
#: Bytes of a body that are shown unless all are requested.
SHOWN: Final = 4096
#: Seconds that lines wait in a buffer for their reader.
_WAIT: Final = 0.2


def columns() -> int:
    """Return the width of the terminal; 80 where the output is not a terminal."""
    return max(40, shutil.get_terminal_size((80, 24)).columns)


def to_terminal() -> bool:
    """Whether people read the output at a terminal."""
    return sys.stdout is not None and sys.stdout.isatty()


def room(*, wide: bool) -> int | None:
    """Return how wide a line of the output may be; None: as wide as what it says, as for a program that reads it.

    Args:
        wide: lines are never cut.
    """
    told = os.environ.get("COLUMNS", "").isdigit()
    return columns() if not wide and (told or to_terminal()) else None


def say(text: str = "", *, error: bool = False, end: str = "\n") -> None:
    """Print one line, made harmless; a line break within the text is escaped.

    Args:
        text: what to print.
        error: print to stderr.
        end: printed after it.
    """
    print(harmless(text, keep="\t"), end=end, file=sys.stderr if error else sys.stdout, flush=error or _is_late())


def say_json(value: Any, *, indent: int | None = None) -> None:
    """Print JSON. It is ASCII without control characters, and still means the same."""
    print(json_line(value, indent=indent), flush=_is_late())


_said = 0.0


def _is_late() -> bool:
    """Whether lines have waited long enough for their reader, who may be `head`, or may look at each."""
    global _said  # noqa: PLW0603 - there is one output
    now = time.monotonic()
    late = now - _said > _WAIT
    _said = now if late else _said
    return late


def json_line(value: Any, *, indent: int | None = None) -> str:
    """Return a value as JSON that has no effect on a terminal."""
    return json.dumps(value, indent=indent).replace("\x7f", "\\u007f")  # only text can hold it


def overwrite(text: str) -> None:
    """Print over the last line of stderr; without text only clear it."""
    width = columns() - 1
    print(f"\r{harmless(text)[:width]:<{width}}", end="" if text else "\r", file=sys.stderr, flush=True)


class HarmlessFormatter(logging.Formatter):
    """Return a log record as one line, and its traceback as indented lines: no foreign text begins a line."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name in `logging`
        return harmless(super().formatMessage(record))

    def formatException(  # noqa: N802 - as above
        self,
        ei: tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None],
    ) -> str:
        return _indented(super().formatException(ei))

    def formatStack(self, stack_info: str) -> str:  # noqa: N802 - as above
        return _indented(super().formatStack(stack_info))


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in harmless(text, keep="\n").split("\n"))


def one_line(text: str, width: int | None) -> str:
    """Return harmless text on one line, cut to so many columns; wide characters count two. None: not cut."""
    text = harmless(" ".join(text.split()))
    if width is None or _width(text) <= width:
        return text
    room, out = width - 1, ""
    for each in text:
        room -= _width(each)
        if room < 0:
            break
        out += each
    return out + "…"


def moment(millis: int) -> str:
    """Return milliseconds since the epoch as a date and time; a number where no date is so."""
    with suppress(ValueError, OverflowError, OSError):
        return datetime.fromtimestamp(millis / 1000, UTC).isoformat(timespec="milliseconds")
    return str(millis)


def padded(text: str, width: int) -> str:
    """Return text padded to so many columns."""
    return text + " " * max(0, width - _width(text))


def body(value: bytes | None, *, most: int | None = SHOWN) -> Iterator[str]:
    """Return a body as lines: text where it is text, else hexadecimal beside its printable characters."""
    if value is None:
        yield "(null)"
        return
    shown = value if most is None else value[:most]
    text = text_of(shown, cut=len(shown) < len(value))
    if text is not None:
        yield from harmless(text, keep="\n\t").split("\n")
    else:
        yield from hex_rows(shown)
    if len(shown) < len(value):
        yield f"({len(value) - len(shown):,} more bytes: --all shows them)"


def _width(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(each) in "WF" else not unicodedata.combining(each) for each in text)
