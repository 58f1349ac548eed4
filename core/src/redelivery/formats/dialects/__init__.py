"""Header dialects: how an `ErrorContext` is written into a letter, read back, and taken out again.

One small module per dialect: `connect`, `deadletter`, `knativeerror`, `json_context`. Each maps fields to its own
names. Fields that a dialect has no name for go into one JSON header beside it, so that every dialect returns the whole
context. One letter may hold several dialects (`chosen` says which). Plugins bring the dialects that read other
software's headers (`HeaderDialect`, passed in by `recognise`). A marker header lists what we wrote: a user's own header
is never overwritten, nor removed.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from redelivery.contract.broker import Limits
from redelivery.contract.capabilities import DIALECTS
from redelivery.contract.context import ErrorContext, checked
from redelivery.contract.hooks import HeaderDialect
from redelivery.contract.message import Headers, Message
from redelivery.errors import ContractViolation
from redelivery.formats import events
from redelivery.formats.dialects import (
    _body,
    _marker,
    _retype,
    _signature,
    connect,
    deadletter,
    json_context,
    knativeerror,
)
from redelivery.formats.dialects._fields import BOOKKEEPING, bounded, without
from redelivery.formats.dialects._marker import Marker
from redelivery.formats.dialects._writer import CONTEXT, Dialect, Letter, combined
from redelivery.formats.events import PREFIXES, event_in, is_structured

__all__ = [
    "MARKERS",
    "NAMES",
    "DeliveryHistory",
    "attach",
    "chosen",
    "document",
    "history",
    "included",
    "is_signed",
    "read",
    "recognise",
    "redriven",
    "renamed",
    "strip",
    "wrap",
]

log = logging.getLogger("redelivery.dialects")

_DIALECTS: Final[Mapping[str, Dialect]] = {
    "connect": Dialect("connect", connect.NAMES, connect.write, connect.read),
    "deadletter": Dialect("deadletter", deadletter.NAMES, deadletter.write, deadletter.read, extensions=True),
    "knativeerror": Dialect("knativeerror", knativeerror.NAMES, knativeerror.write, knativeerror.read, extensions=True),
    "json": Dialect("json", frozenset(), lambda _: [], lambda _: {}, whole=True),
}
#: Dialects of other software (`recognise`).
_others: Final[list[HeaderDialect]] = []
#: Every message that was ever a letter has one of these headers.
MARKERS: Final = _marker.NAMES
#: All dialects.
NAMES: Final = DIALECTS

#: An id that every broker accepts.
_PLAIN: Final = re.compile(r"[0-9A-Za-z_.~:-]{1,100}")

#: What Knative's code writes today, and what its design names.
_KNATIVE: Final = ("knativeerror", "deadletter")

_EXTENSIONS: Final = frozenset().union(*(each.names for each in _DIALECTS.values() if each.extensions))


@dataclass(frozen=True, slots=True)
class DeliveryHistory:
    """The history that a message keeps over its redrives.

    Attributes:
        attempts_total: attempts before the last redrive.
        hops: how often it was redriven.
        maybe_delivered: one of those attempts ended ambiguous, and the message has not been received since.
    """

    attempts_total: int = 0
    hops: int = 0
    maybe_delivered: bool = False


def attach(
    message: Message,
    context: ErrorContext,
    *,
    dialect: str | Sequence[str],
    limits: Limits,
    prefix: str | None,
    include_message: bool = False,
    configs: Mapping[str, str] | None = None,
    rename_type: str | None = None,
    wrapped: bool = False,
    key: bytes | None = None,
) -> Message:
    """Return the letter: the message with its context, within the limits.

    A context that we wrote before is replaced, so that letters do not grow. A context that does not fit is cut and
    marked. If nothing fits, the message is sent without a context rather than not at all. Never raises for what the
    message or the context holds.

    Args:
        message: the message to dead-letter.
        context: why; secrets are redacted here.
        dialect: one of `NAMES`, or several; the first is the last to be cut.
        limits: the sink's.
        prefix: the sink's prefix of CloudEvents headers; None where the sink has no prefix.
        include_message: write the record into the JSON header.
        configs: settings to write into the JSON header, redacted.
        rename_type: the type that an event gets; the marker keeps its own type, which `strip` and `redriven` restore.
        wrapped: write an event that stands for the message, for a sink that refuses its content (see `wrap`).
        key: signs the letter, so that a holder of the key can tell it from a forged one (`is_signed`).

    Raises:
        ContractViolation: the dialect does not exist.
    """
    names = (dialect,) if isinstance(dialect, str) else tuple(dict.fromkeys(dialect))
    for name in names or ("",):
        if name not in _DIALECTS:
            raise ContractViolation(f"no header dialect {name!r}; there are: {', '.join(NAMES)}")
    stripped = wrap(strip(message)) if wrapped else strip(message)
    found = _marker.find(stripped.headers)
    try:
        plain = stripped if found is None else replace(stripped, headers=_at(stripped.headers, found[0], None))
        marker = Marker() if found is None else found[1]
        sign = None if key is None else lambda letter, marker: _signature.of(key, *_signed_parts(letter, marker))
        ways = [(plain, marker)]  # without room to note its old type, it keeps that type
        renamed = _retype.rename(plain, rename_type) if rename_type and not wrapped else None
        if renamed is not None:
            ways.insert(0, (renamed[0], replace(marker, retyped=renamed[1])))
        safe = bounded(context)
        letters = (
            Letter(
                each,
                kept,
                [_DIALECTS[name] for name in names],
                prefix=prefix,
                limits=limits,
                include_message=include_message,
                configs=configs,
                sign=sign,
            ).fit(safe)
            for each, kept in ways
        )
        letter = next((each for each in letters if each is not None), None)
    except Exception:
        log.exception("the error context of a letter could not be written; the letter goes without it")
        letter = None
    return stripped if letter is None else letter


def chosen(asked: Sequence[str] | None, own: str, message: Message) -> tuple[str, ...]:
    """Return the dialects in which a letter's context is written.

    Args:
        asked: by the spec (`deadLetterDialects`); None: the sink's own, and also Knative's for an event.
        own: the sink's own.
        message: the message that becomes the letter.
    """
    if asked is None:
        return (own, *(each for each in _KNATIVE if each != own)) if event_in(message) is not None else (own,)
    return tuple(dict.fromkeys(each for name in asked for each in (_KNATIVE if name == "knative" else (name,))))


def document(
    message: Message, context: ErrorContext, *, include_message: bool, configs: Mapping[str, str] | None
) -> dict[str, Any]:
    """Return a context as KIP-298's JSON object, with our own fields under `redelivery`; secrets are redacted.

    Args:
        message: what failed, without a context; only its coordinates are written, unless it is included.
        context: why.
        include_message: write its key, value and headers too.
        configs: settings to write, redacted here.
    """
    safe = bounded(context)
    return json_context.document(safe, without(safe, {}), message, include_message=include_message, configs=configs)


def included(message: Message) -> dict[str, Any]:
    """Return the record and the stages with their settings, where our letter was asked to hold them."""
    found = _marker.find(message.headers)
    names = () if found is None else found[1].headers
    forms = [json_context.parse(value) or {} for name, value in message.headers if name in CONTEXT and name in names]
    return {name: value for form in forms for name, value in json_context.asked_for(form).items()}


def read(message: Message) -> ErrorContext | None:
    """Return the context of a letter, whichever dialect wrote it; None where it has no context. Never raises.

    In a letter that we wrote, only our headers count. Other headers are read as far as possible.
    """
    found = _marker.find(message.headers)
    if found is not None and _is_letter(found[1]):
        return _read_ours(message, found[1])
    for dialect in _DIALECTS.values():
        given = dialect.read(_texts(message, dialect))
        if given:
            return checked(given)
    return _read_others(message)


def is_signed(message: Message, keys: Sequence[bytes]) -> bool:
    """Whether a message is a letter that one of these keys has signed, and no signed part has changed.

    The signature covers the marker, the context as `read` returns it, and the message's key and value. Never raises.
    """
    found = _marker.find(message.headers)
    marker = Marker() if found is None else found[1]
    if marker.mac is None or not _is_letter(marker):
        return False
    mac, parts = marker.mac, _signed_parts(message, marker)
    return any(_signature.is_by(key, mac, *parts) for key in keys)


def _signed_parts(message: Message, marker: Marker) -> tuple[bytes, dict[str, str], list[bytes], Message]:
    """Return the signed parts: the marker, the texts and the JSON that a context is read from, the bare message."""
    unsigned = replace(marker, mac=None)
    return unsigned.dump(), _written_texts(message, marker), _written_json(message, marker), _bare(message, marker)


def recognise(others: Iterable[HeaderDialect]) -> None:
    """Also read letters by these dialects of other software, in place of those given before."""
    _others[:] = others


def _read_others(message: Message) -> ErrorContext | None:
    """Return what the dialects of other software read from a message."""
    for dialect in _others if message.headers else ():
        there = {name: value for name, value in message.headers if name in dialect.names and value is not None}
        try:
            given = dialect.read(there) if there else {}
        except Exception:
            log.exception("the header dialect %r could not read a letter; it is shown without its reason", dialect.name)
            continue
        if given:
            return checked(given)
    return None


def strip(message: Message, *, keep_type: bool = False) -> Message:
    """Return the message without the context that we wrote; other messages are unchanged. The history stays.

    Args:
        message: any.
        keep_type: an event that was given another type keeps it, and the marker still notes the old type.
    """
    found = _marker.find(message.headers)
    if found is None:
        return message
    marker = found[1]
    if not (_is_letter(marker) or marker.wrapped or (marker.retyped and not keep_type)):
        return message
    kept = Marker(
        attempts_total=marker.attempts_total,
        hops=marker.hops,
        maybe_delivered=marker.maybe_delivered,
        retyped=marker.retyped if keep_type else None,
    )
    bare = _bare(message, marker) if _is_letter(marker) else message
    if marker.retyped is not None and not keep_type:
        bare = _retype.restore(bare, marker.retyped)
    return _remark(_unwrapped(bare) if marker.wrapped else bare, kept)


def wrap(message: Message) -> Message:
    """Return the message as an event that stands for it, with a marker that notes it; `strip` and `redriven` undo it.

    Key, headers, id and time are in the body: any broker takes them, whatever they hold. The history stays.

    Args:
        message: without an error context.
    """
    found = _marker.find(message.headers)
    marker = replace(Marker() if found is None else found[1], wrapped=True)
    event = events.wrapped(replace(message, destination=None, extra={}))
    id_ = message.id if message.id is not None and _PLAIN.fullmatch(message.id) else None
    return replace(event, id=id_, headers=(*event.headers, (_marker.NAMES[0], marker.dump())))


def _unwrapped(message: Message) -> Message:
    """Return the message that an event stands for, without a destination: anyone may have written the event."""
    event = event_in(message)
    if event is None or event.get_type() != events.WRAPPED:
        return message
    inner = events.from_event(event)
    return replace(inner, destination=message.destination, extra=message.extra, identity=message.identity)


def renamed(message: Message, event_type: str) -> Message:
    """Return an event under another type, permanently: headers cannot hold the old type. Others are unchanged."""
    found = _retype.rename(message, event_type)
    return message if found is None else found[0]


def redriven(message: Message) -> Message:
    """Return the message as it is sent again: stripped, and one hop further."""
    stripped = strip(message)
    found = _marker.find(stripped.headers)
    marker = Marker() if found is None else found[1]
    return _remark(stripped, replace(marker, hops=marker.hops + 1))


def history(message: Message) -> DeliveryHistory:
    """Return the history in the message's marker; an empty one without a marker."""
    found = _marker.find(message.headers)
    return (
        DeliveryHistory()
        if found is None
        else DeliveryHistory(found[1].attempts_total, found[1].hops, found[1].maybe_delivered)
    )


def _is_letter(marker: Marker) -> bool:
    return marker.dialect is not None or marker.truncated


def _read_ours(message: Message, marker: Marker) -> ErrorContext:
    fields: dict[str, Any] = {name: getattr(marker, name) for name in BOOKKEEPING}
    known = _known(marker)
    fields |= combined(known, _written_texts(message, marker))
    whole = any(dialect.whole for dialect in known)
    for value in _written_json(message, marker):
        form = json_context.parse(value) or {}
        fields |= json_context.read(form) if whole else json_context.ours(form)
    return checked(fields)


def _known(marker: Marker) -> list[Dialect]:
    return [_DIALECTS[name] for name in marker.dialects if name in _DIALECTS]


def _written_texts(message: Message, marker: Marker) -> dict[str, str]:
    """Return the text of each name that the marker lists, wherever it is now."""
    written = {_extension(name) or name for name in marker.headers} | set(marker.attributes)
    found = (pair for dialect in _known(marker) for pair in _texts(message, dialect).items())
    return {name: value for name, value in found if name in written}


def _written_json(message: Message, marker: Marker) -> list[bytes]:
    return [value or b"" for name, value in message.headers if name in CONTEXT and name in marker.headers]


def _texts(message: Message, dialect: Dialect) -> dict[str, str]:
    """Return those of the dialect's names that a message has, wherever they are, with their text."""
    found: dict[str, str] = {}
    for name, value in message.headers:
        known = _extension(name) if dialect.extensions else name
        if known in dialect.names and value is not None:
            found[known] = value.decode("utf-8", "replace")
    if dialect.extensions and is_structured(message):
        form = _body.attributes(message.value)
        found |= {name: str(form[name]) for name in dialect.names if isinstance(form.get(name), str | int)}
    return found


def _extension(header: str) -> str | None:
    """Return the extension attribute of ours that a header carries, whatever its prefix."""
    return next((header.removeprefix(p) for p in ("", *PREFIXES) if header.removeprefix(p) in _EXTENSIONS), None)


def _bare(message: Message, marker: Marker) -> Message:
    """Return the message without what the marker lists. A name that no dialect writes is not ours, and stays.

    An event may have changed its content mode or prefix since: a former header is then in the body, or elsewhere.
    """
    there = {name for name, _ in message.headers}
    moved = {attribute for name in marker.headers if name not in there and (attribute := _extension(name))}
    inside = _EXTENSIONS & set(marker.attributes)
    structured = is_structured(message)
    gone = moved if structured else moved | inside
    headers = tuple(
        (name, value)
        for name, value in message.headers
        if not (name in marker.headers and _ours(name)) and _extension(name) not in gone
    )
    value = message.value
    if value is not None and structured and inside | moved:
        value = _body.remove(value, inside | moved, marker.inserted)
    return replace(message, value=value, headers=headers)


def _ours(name: str) -> bool:
    return name in CONTEXT or name in connect.NAMES or name.endswith(tuple(_EXTENSIONS))


def _remark(message: Message, marker: Marker) -> Message:
    """Return the message with its marker replaced; without a marker if the new one would be empty."""
    found = _marker.find(message.headers)
    if found is not None:
        return replace(message, headers=_at(message.headers, found[0], marker))
    name = _marker.free_name(message.headers) if marker.says_anything else None
    return message if name is None else replace(message, headers=(*message.headers, (name, marker.dump())))


def _at(headers: Headers, index: int, marker: Marker | None) -> Headers:
    """Return headers with the marker at `index` replaced, or removed."""
    kept = () if marker is None or not marker.says_anything else ((headers[index][0], marker.dump()),)
    return (*headers[:index], *kept, *headers[index + 1 :])
