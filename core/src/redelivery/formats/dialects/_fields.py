"""The fields of an `ErrorContext` as JSON values, and text made safe."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, Final
from urllib.parse import quote

from redelivery.base.secrets import redact, redact_all
from redelivery.base.urls import has_scheme
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
        "traceparent",
    }
)


def bounded(context: ErrorContext) -> ErrorContext:
    """Return the context as any dialect may hold it: secrets redacted, no lone surrogates, everything bounded."""
    changes: dict[str, Any] = {}
    for name in _TYPES:
        value = getattr(context, name)
        if isinstance(value, str) and name != "code":
            (changes[name],) = _safe(name, [value])
    changes["extra"], cut = _safe_extra(context.extra)
    changes["stacktrace"] = changes.get("stacktrace") or None
    return shortened(replace(context, **changes, truncated=context.truncated or cut))


def bounded_all(
    context: ErrorContext, varying: Mapping[str, Sequence[Any]]
) -> tuple[ErrorContext, dict[str, Sequence[Any]]]:
    """Return `bounded` of many contexts: what they share, and the columns of what differs.

    Args:
        context: what they share.
        varying: by field, one value per context. The result has a column for `truncated` too where they differ in it.
    """
    common = bounded(replace(context, **{name: DEFAULTS[name] for name in varying}))
    columns: dict[str, Sequence[Any]] = {}
    cut: set[int] = set()
    for name, values in varying.items():
        columns[name], shorter = _bounded_extras(values) if name == "extra" else _bounded_texts(name, values)
        cut.update(shorter)
    if cut or "truncated" in varying:
        given = varying.get("truncated") or [context.truncated] * len(next(iter(varying.values())))
        columns["truncated"] = [each or common.truncated or row in cut for row, each in enumerate(given)]
    return common, columns


def _bounded_texts(name: str, values: Sequence[Any]) -> tuple[Sequence[Any], list[int]]:
    """Return the column of a field as `bounded` has it, and the rows whose text was cut."""
    texts = list({value for value in values if isinstance(value, str)}) if name != "code" else []
    safe = _safe(name, texts)
    short = [_short(name, text) for text in safe] if _longest(safe) > TEXT_BYTES else safe
    changed = {old: new for old, new in zip(texts, short, strict=True) if old != new}
    if name == "stacktrace":
        changed[""] = None
    if not changed:
        return values, []
    cut = {old for old, whole, new in zip(texts, safe, short, strict=True) if whole != (new or "")}
    column = [changed.get(value, value) if isinstance(value, str) else value for value in values]
    return column, [row for row, value in enumerate(values) if isinstance(value, str) and value in cut]


def _bounded_extras(values: Sequence[Mapping[str, str]]) -> tuple[Sequence[Mapping[str, str]], list[int]]:
    """Return the column `extra` as `bounded` has it, and the rows of which something was cut."""
    texts = list({text for value in values for pair in value.items() for text in pair})
    if max(map(len, values)) <= EXTRA_ENTRIES and _longest(texts) <= TEXT_BYTES and _safe("extra", texts) == texts:
        return values, []
    known: dict[tuple[tuple[str, str], ...], tuple[dict[str, str], bool]] = {}
    column: list[Mapping[str, str]] = []
    cut: list[int] = []
    for row, value in enumerate(values):
        pairs = tuple(value.items())
        if pairs not in known:
            safe, fewer = _safe_extra(value)
            short = {name: head(text, TEXT_BYTES) for name, text in safe.items()}
            known[pairs] = short, fewer or short != safe
        safe, shorter = known[pairs]
        column.append(safe)
        if shorter:
            cut.append(row)
    return column, cut


def _safe(name: str, texts: Sequence[str]) -> Sequence[str]:
    """Return texts of a field without secrets and half characters, and not much longer than they may be."""
    whole = [_SURROGATES.sub("\ufffd", text) for text in texts] if _SURROGATES.search("\0".join(texts)) else texts
    # Searching for secrets in text that is cut anyway takes time. Twice the room, as a cut may hide a secret.
    if _longest(whole) > 2 * REASON_BYTES:
        whole = [
            tail(text, 2 * STACKTRACE_BYTES) if name == "stacktrace" else head(text, 2 * REASON_BYTES) for text in whole
        ]
    return whole if name in _NAMES else redact_all(whole)


def _safe_extra(extra: Mapping[str, str]) -> tuple[dict[str, str], bool]:
    """Return entries without secrets and half characters, and whether some were left out."""
    safe = {_SURROGATES.sub("\ufffd", k): redact(_SURROGATES.sub("\ufffd", v)) for k, v in extra.items()}
    kept = {k: v for k, v in list(safe.items())[:EXTRA_ENTRIES] if len(k) <= TEXT_BYTES}
    return kept, len(kept) < len(safe)


def _longest(texts: Sequence[str]) -> int:
    """Return a size that none of these texts exceeds, in bytes of UTF-8."""
    return 4 * max(map(len, texts), default=0)


def shortened(
    context: ErrorContext, *, stacktrace: int = STACKTRACE_BYTES, reason: int = REASON_BYTES, text: int = TEXT_BYTES
) -> ErrorContext:
    """Return the context with its texts cut to so many bytes of UTF-8 each, and marked where anything was cut."""
    changes: dict[str, Any] = {"extra": {name: head(value, text) for name, value in context.extra.items()}}
    for name in _TYPES:
        value = getattr(context, name)
        if isinstance(value, str) and name != "code":
            changes[name] = _short(name, value, stacktrace=stacktrace, reason=reason, text=text)
    cut = replace(context, **changes)
    return context if cut == context else replace(cut, truncated=True)


def _short(
    name: str, value: str, *, stacktrace: int = STACKTRACE_BYTES, reason: int = REASON_BYTES, text: int = TEXT_BYTES
) -> str | None:
    if name == "stacktrace":
        return tail(value, stacktrace) or None
    return head(value, reason if name == "reason" else text)


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
