"""The fields of an `ErrorContext` as JSON values, and text made safe."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, Final
from urllib.parse import quote

from redelivery.base.urls import has_scheme, redact
from redelivery.contract.context import DEFAULTS, ErrorContext

#: Fields that a letter's marker holds for every dialect.
BOOKKEEPING: Final = ("attempts_total", "hops", "truncated", "maybe_delivered")

#: The most that any context holds, whatever the broker accepts: a trace must not make a letter too large for the next
#: sink. Bytes of UTF-8, and entries of `extra`.
STACKTRACE_BYTES: Final = 32 * 1024
REASON_BYTES: Final = 8 * 1024
TEXT_BYTES: Final = 2 * 1024
EXTRA_ENTRIES: Final = 32

_CUT: Final = "…"
#: What RFC 3986 allows in a URI, besides letters and digits.
_URI_CHARACTERS: Final = "-._~:/?#[]@!$&'()*+,;=%"
_SURROGATES: Final = re.compile("[\ud800-\udfff]")
_CONTROLS: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f]")
_TYPES: Final = {item.name: str(item.type) for item in fields(ErrorContext)}
#: Names that identify things: redaction by pattern leaves them alone.
_NAMES: Final = frozenset(
    {
        "message_id",
        "identity",
        "run",
        "query",
        "batch",
        "kind",
        "native_code",
        "stage",
        "broker",
        "exception",
        "component",
    }
)


def bounded(context: ErrorContext) -> ErrorContext:
    """Return the context as any dialect may hold it: secrets redacted, no lone surrogates, everything bounded."""
    changes: dict[str, Any] = {}
    for name in _TYPES:
        value = getattr(context, name)
        if isinstance(value, str) and name != "code":
            # Searching for secrets in text that is cut anyway takes time. Twice the room, as a cut may hide a secret.
            safe = _SURROGATES.sub("\ufffd", value)
            safe = tail(safe, 2 * STACKTRACE_BYTES) if name == "stacktrace" else head(safe, 2 * REASON_BYTES)
            changes[name] = safe if name in _NAMES else redact(safe)
    extra = {_SURROGATES.sub("\ufffd", k): redact(_SURROGATES.sub("\ufffd", v)) for k, v in context.extra.items()}
    changes["extra"] = {k: v for k, v in list(extra.items())[:EXTRA_ENTRIES] if len(k) <= TEXT_BYTES}
    changes["stacktrace"] = changes.get("stacktrace") or None
    cut = len(changes["extra"]) < len(extra)
    return shortened(replace(context, **changes, truncated=context.truncated or cut))


def shortened(
    context: ErrorContext, *, stacktrace: int = STACKTRACE_BYTES, reason: int = REASON_BYTES, text: int = TEXT_BYTES
) -> ErrorContext:
    """Return the context with its texts cut to so many bytes of UTF-8 each, and marked where anything was cut."""
    changes: dict[str, Any] = {"extra": {name: head(value, text) for name, value in context.extra.items()}}
    for name in _TYPES:
        value = getattr(context, name)
        if name == "stacktrace" and value is not None:
            changes[name] = tail(value, stacktrace) or None
        elif isinstance(value, str) and name != "code":
            changes[name] = head(value, reason if name == "reason" else text)
    cut = replace(context, **changes)
    return context if cut == context else replace(cut, truncated=True)


def head(text: str, limit: int) -> str:
    """Return the beginning of a text, at most `limit` bytes of UTF-8; an ellipsis shows the cut if it fits."""
    encoded = text.encode()
    if len(encoded) <= limit:
        return text
    room = limit - len(_CUT.encode())
    return (
        encoded[: max(limit, 0)].decode(errors="ignore") if room < 1 else encoded[:room].decode(errors="ignore") + _CUT
    )


def tail(text: str, limit: int) -> str:
    """Return the end of a text, where a stack trace names the error; at most `limit` bytes of UTF-8."""
    encoded = text.encode()
    if len(encoded) <= limit:
        return text
    room = limit - len(_CUT.encode())
    return "" if room < 1 else _CUT + encoded[-room:].decode(errors="ignore")


def printable(text: str) -> str:
    """Return text without control characters other than tab and newline: they become U+FFFD."""
    return _CONTROLS.sub("\ufffd", text)


def uri(text: str) -> str:
    """Return text as a URI-reference (RFC 3986): characters that it may not hold are percent-encoded."""
    return quote(_SURROGATES.sub("\ufffd", text), safe=_URI_CHARACTERS)


def subscriber_uri(context: ErrorContext) -> str | None:
    """Return who refused it: the destination, with the subscription as its fragment; None where neither is known."""
    name, place = context.subscriber, context.destination
    if not name:
        return uri(place) if place else None
    if has_scheme(name):
        return uri(name)
    return f"{uri((place or '').partition('#')[0])}#{quote(name, safe='')}"


def without(context: ErrorContext, known: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that `known` lacks, as JSON values."""
    out: dict[str, Any] = {}
    for name in _TYPES:
        value = getattr(context, name)
        if value != known.get(name, DEFAULTS[name]):
            out[name] = dict(value) if name == "extra" else value
    return out


def whole(text: str | None) -> int | None:
    """Return a whole number from header text; None where it is not one."""
    return int(text) if text is not None and re.fullmatch(r"-?[0-9]{1,18}", text) else None
