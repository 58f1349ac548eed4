"""How foreign content is shown: bodies as JSON, text or hexadecimal, ages and times, and what is hidden of them.

It returns text. Templates escape it, and nothing of it is ever rendered.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final

import re2

from redelivery.base.rendering import harmless, hex_rows, text_of
from redelivery.errors import ConfigurationError

#: Bytes of a body that are shown.
SHOWN: Final = 256 * 1024
#: Bytes of a body that is shown in hexadecimal.
SHOWN_HEX: Final = 16 * 1024
#: Bytes of a header or key that are shown.
SHOWN_HEADER: Final = 4096
#: Bytes behind the end of what is shown in which masks still look: half of what they hide is not shown either.
_MARGIN: Final = 4096
#: Levels of JSON that are laid out; deeper JSON is shown as text.
_DEEPEST: Final = 100
#: Blanks before its lines, at most: a list of digits deep inside would be a hundred times as long as its bytes.
_BLANKS: Final = 1024 * 1024
_HIDDEN: Final = "***"
_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{},:]|[^\s\[\]{},:"]+', re.DOTALL)
_OPENING: Final = ("{", "[")
_CLOSING: Final = ("}", "]")
#: Bars that a plot has room for, however few it has.
_FEWEST: Final = 30
_UNITS: Final = ((86400, "d"), (3600, "h"), (60, "min"))


class Mask:
    """Hides what regular expressions match (RE2: in time linear in the text).

    Args:
        patterns: regular expressions.

    Raises:
        ConfigurationError: one is not a regular expression, or matches the empty text.
    """

    def __init__(self, patterns: Sequence[str] = ()) -> None:
        options = re2.Options()
        options.log_errors = False
        self._texts, self._bytes = [], []
        for each in patterns:
            try:
                self._texts.append(re2.compile(each, options))
                self._bytes.append(re2.compile(each.encode(), options))
            except (re2.error, UnicodeEncodeError) as error:
                said = error.args[0] if error.args else ""
                why = said.decode("utf-8", "replace") if isinstance(said, bytes) else said
                raise ConfigurationError(
                    f"--mask: {each!r} is not a regular expression of RE2 (which has no look-ahead and no "
                    f"back-reference): {why}"
                ) from None
            if self._texts[-1].search("") is not None:
                raise ConfigurationError(f"--mask: {each!r} matches the empty text, so it would hide everything")

    def __bool__(self) -> bool:
        return bool(self._texts)

    def __call__(self, text: str) -> str:
        """Return a text with what matches hidden."""
        if self._texts:
            text = text.encode("utf-8", "replace").decode("utf-8")
        for each in self._texts:
            text = each.sub(_HIDDEN, text)
        return text

    def of_bytes(self, value: bytes) -> bytes:
        """Return bytes with what matches hidden, in the same length."""
        for each in self._bytes:
            value = each.sub(lambda found: b"*" * len(found.group()), value)
        return value


def lay_out(text: str) -> str | None:
    """Return JSON with a line for each member, its numbers and repeated names as they are.

    None: it is not JSON, or is too deep or too long to be laid out.
    """
    if text.lstrip()[:1] not in _OPENING:
        return None
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return None
    out: list[str] = []
    depth = 0
    parts = _TOKEN.findall(text)
    if not _fits(parts):
        return None
    for at, part in enumerate(parts):
        if part in _OPENING:
            depth += 1
            out.append(part if parts[at + 1] in _CLOSING else f"{part}\n{'  ' * depth}")
        elif part in _CLOSING:
            depth -= 1
            out.append(part if parts[at - 1] in _OPENING else f"\n{'  ' * depth}{part}")
        elif part == ",":
            out.append(f",\n{'  ' * depth}")
        else:
            out.append(": " if part == ":" else _plain(part))
    return "".join(out)


def _fits(parts: Sequence[str]) -> bool:
    """Whether JSON is neither too deep nor too long to be laid out."""
    depth = blanks = 0
    for part in parts:
        depth += (part in _OPENING) - (part in _CLOSING)
        blanks += 2 * depth if part == "," or part in _OPENING else 0
        if depth > _DEEPEST or blanks > _BLANKS:
            return False
    return True


def _plain(part: str) -> str:
    """Return a part of JSON with the characters that it escapes, where these do no harm."""
    if not part.startswith('"') or "\\" not in part:
        return part
    with suppress(ValueError):
        text = json.dumps(json.loads(part), ensure_ascii=False)
        return part if any(0xD800 <= ord(each) < 0xE000 for each in text) else text  # noqa: PLR2004 - halves of characters
    return part


def forms(value: bytes | None, mask: Mask) -> Iterator[tuple[str, str]]:
    """Return the forms of a body that it has, the best one first: name and text."""
    if value is None:
        return
    text = text_of(value[: SHOWN + _MARGIN], cut=len(value) > SHOWN + _MARGIN)
    if text is not None:
        shown = mask(text)[:SHOWN]
        laid = lay_out(shown) if len(value) <= SHOWN else None
        if laid is not None:
            yield "json", mask(laid)
        yield "text", shown
    yield "hex", "\n".join(hex_rows(mask.of_bytes(value[: SHOWN_HEX + _MARGIN])[:SHOWN_HEX]))


def short(value: bytes | None, mask: Mask, most: int = SHOWN_HEADER) -> str:
    """Return a header's value or a key as text, else in hexadecimal; of a long one the beginning."""
    if value is None:
        return "(null)"
    cut = value[: most + _MARGIN]
    text = text_of(cut, cut=len(value) > len(cut))
    shown = mask.of_bytes(cut)[:most].hex(" ") if text is None else mask(text)[:most]
    return shown + (f" … ({len(value):,} bytes)" if len(value) > most else "")


def age(since_ms: int | None, now_ms: int) -> str:
    """Return how long ago a time was, in its largest unit."""
    if since_ms is None:
        return "-"
    seconds = max(0, (now_ms - since_ms) // 1000)
    for size, unit in _UNITS:
        if seconds >= size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def moment(millis: int | None) -> str:
    """Return a time as ISO 8601, in UTC."""
    if millis is None:
        return "-"
    with suppress(ValueError, OverflowError, OSError):
        return datetime.fromtimestamp(millis / 1000, UTC).isoformat(sep=" ", timespec="seconds").replace("+00:00", "Z")
    return str(millis)


def bars(arrivals: Iterable[tuple[int, int]], *, width: int = 240, height: int = 36) -> list[dict[str, int | str]]:
    """Return the bars of a plot: position and size of each in pixels, and what it says.

    Args:
        arrivals: start of each span, milliseconds since the epoch, and how many came in it.
        width: of the plot.
        height: of the plot.
    """
    found = list(arrivals)
    most = max((count for _, count in found), default=0)
    if not most:
        return []
    step = max(1, width // max(len(found), _FEWEST))
    return [
        {
            "x": number * step,
            "y": height - (size := max(2, round(count * height / most))),
            "width": max(1, step - 1),
            "height": size,
            "title": f"{count:,} at {moment(start)}",
        }
        for number, (start, count) in enumerate(found)
        if count
    ]


def cut(text: str, most: int) -> str:
    """Return a text on one line, of a long one the beginning."""
    line = harmless(" ".join(text.split()))
    return line if len(line) <= most else line[: most - 1] + "…"
