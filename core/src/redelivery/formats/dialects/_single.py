"""One letter: written, read, taken apart, sent again. `_columns.py` does the same for many at once."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from redelivery.contract.broker import Limits
from redelivery.contract.capabilities import DIALECTS
from redelivery.contract.context import DEFAULTS, ErrorContext, checked
from redelivery.contract.hooks import HeaderDialect
from redelivery.contract.message import Batch, Headers, Message
from redelivery.errors import ContractViolation
from redelivery.formats import events
from redelivery.formats.dialects import _columns, _marker, _retype, _signature, json_context
from redelivery.formats.dialects._fields import BOOKKEEPING, bounded, bounded_all, without
from redelivery.formats.dialects._marker import Marker
from redelivery.formats.dialects._read_columns import read_columns
from redelivery.formats.dialects._reader import (
    BY_NAME,
    bare_of,
    forms_in,
    is_letter,
    known_dialects,
    signed_parts,
    texts_of,
    written_json,
    written_texts,
)
from redelivery.formats.dialects._restoring import restored
from redelivery.formats.dialects._verifying import signed_rows
from redelivery.formats.dialects._writer import Letter, Style, combined, in_the_way
from redelivery.formats.dialects.frameworks import FRAMEWORKS
from redelivery.formats.events import event_in, events_in
from redelivery.formats.rows import headers_of

log = logging.getLogger("redelivery.dialects")

#: Dialects of other software (`recognise`).
_others: Final[list[HeaderDialect]] = [*FRAMEWORKS]
#: Every message that was ever a letter has one of these headers.
MARKERS: Final = _marker.NAMES
#: All dialects.
NAMES: Final = DIALECTS

#: An id that every broker accepts.
_PLAIN: Final = re.compile(r"[0-9A-Za-z_.~:-]{1,100}")

#: What Knative's code writes today, and what its design names.
_KNATIVE: Final = ("knativeerror", "deadletter")


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
    style = style_of(
        dialect,
        limits=limits,
        prefix=prefix,
        include_message=include_message,
        configs=configs,
        rename_type=rename_type,
        wrapped=wrapped,
        key=key,
    )
    return letter_of(message, lambda: bounded(context), style)


def attach_all(
    batch: Batch,
    context: ErrorContext,
    varying: Mapping[str, Sequence[Any]],
    *,
    dialect: str | Sequence[str],
    limits: Limits,
    prefix: str | None,
    include_message: bool = False,
    configs: Mapping[str, str] | None = None,
    rename_type: str | None = None,
    wrapped: bool = False,
    key: bytes | None = None,
) -> Batch:
    """Return the letters of many messages that failed alike: each as `attach` returns it.

    Args:
        batch: the messages.
        context: what their contexts share.
        varying: what differs, by field of `ErrorContext`: one value per row, which counts in place of the common one.
        dialect: as of `attach`, as are the others.
        limits: as above.
        prefix: as above.
        include_message: as above.
        configs: as above.
        rename_type: as above.
        wrapped: as above.
        key: as above.

    Raises:
        ContractViolation: the dialect does not exist.
    """
    style = style_of(
        dialect,
        limits=limits,
        prefix=prefix,
        include_message=include_message,
        configs=configs,
        rename_type=rename_type,
        wrapped=wrapped,
        key=key,
    )

    try:
        common, columns = bounded_all(context, varying)
        alone = partial(_letter_at, batch, common, columns, lambda each: each, style)
        return _columns.attached(batch, common, columns, style, alone)
    except Exception:  # whatever it is: a fault in this faster way must not keep a row from its sink
        log.exception("the error contexts of a batch could not be written at once; they are written one by one")
    alone = partial(_letter_at, batch, context, varying, bounded, style)
    return Batch.of([alone(row) for row in range(len(batch))], number=batch.number)


def _letter_at(
    batch: Batch,
    context: ErrorContext,
    varying: Mapping[str, Sequence[Any]],
    bound: Callable[[ErrorContext], ErrorContext],
    style: Style,
    row: int,
) -> Message:
    """Return the letter of one row; arguments as of `attach_all`, and what bounds its context."""

    def own() -> ErrorContext:
        return bound(replace(context, **{name: values[row] for name, values in varying.items()}))

    return letter_of(batch.row(row), own, style)


def style_of(dialect: str | Sequence[str], **others: Any) -> Style:
    """Return how letters are written; arguments and errors as of `attach`."""
    names = (dialect,) if isinstance(dialect, str) else tuple(dict.fromkeys(dialect))
    for name in names or ("",):
        if name not in BY_NAME:
            raise ContractViolation(f"no header dialect {name!r}; there are: {', '.join(NAMES)}")
    return Style(dialects=tuple(BY_NAME[name] for name in names), **others)


def letter_of(message: Message, bound: Callable[[], ErrorContext], style: Style) -> Message:
    """Return the letter of a message, as `attach` does.

    Args:
        message: the message to dead-letter.
        bound: returns why, bounded.
        style: how it is written.
    """
    stripped = wrap(strip(message)) if style.wrapped else strip(message)
    found = _marker.find(stripped.headers)
    try:
        plain = stripped if found is None else replace(stripped, headers=_at(stripped.headers, found[0], None))
        marker = Marker() if found is None else found[1]
        ways = [(plain, marker)]  # without room to note its old type, it keeps that type
        renamed = _retype.rename(plain, style.rename_type) if style.rename_type and not style.wrapped else None
        if renamed is not None:
            ways.insert(0, (renamed[0], replace(marker, retyped=renamed[1])))
        safe = bound()
        sign = signer(style.key)
        letters = (
            Letter(each, kept, style, sign, replacing=replacing).fit(safe)
            for replacing in ((True, False) if in_the_way(plain.headers, style) else (True,))
            for each, kept in ways
        )
        letter = next((each for each in letters if each is not None), None)
    except Exception:  # whatever it is: a fault in this faster way must not keep a row from its sink
        log.exception("the error context of a letter could not be written; the letter goes without it")
        letter = None
    return stripped if letter is None else letter


def signer(key: bytes | None) -> Callable[[Message, Marker], str] | None:
    """Return what signs a letter with a marker; None without a key."""
    return None if key is None else lambda letter, marker: _signature.of(key, *signed_parts(letter, marker))


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


def chosen_all(
    asked: Sequence[str] | None, own: str, batch: Batch, *, wrapped: bool = False
) -> dict[tuple[str, ...], Sequence[int]]:
    """Return the rows of a batch by the dialects that `chosen` returns for them; arguments as of `chosen`.

    If `wrapped`, the letters are events that stand for the messages.
    """
    if asked is not None:
        return {chosen(asked, own, Message(value=None)): range(len(batch))}
    are_events = [True] * len(batch) if wrapped else events_in(batch)
    rows = {
        (own, *(each for each in _KNATIVE if each != own)): [row for row, each in enumerate(are_events) if each],
        (own,): [row for row, each in enumerate(are_events) if not each],
    }
    return {dialects: each for dialects, each in rows.items() if each}


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
    written = [] if found is None else written_json(message, found[1])
    forms = [json_context.parse(value) or {} for value in written]
    return {name: value for form in forms for name, value in json_context.asked_for(form).items()}


def read(message: Message) -> ErrorContext | None:
    """Return the context of a letter, whichever dialect wrote it; None where it has no context. Never raises.

    In a letter that we wrote, only our headers count. Other headers are read as far as possible.
    """
    found = _marker.find(message.headers)
    if found is not None and is_letter(found[1]):
        return _read_ours(message, found[1])
    for dialect in BY_NAME.values():
        given = dialect.read(texts_of(message, dialect))
        if given:
            return checked(given)
    return _read_others(message)


def is_signed(message: Message, keys: Sequence[bytes]) -> bool:
    """Whether a message is a letter that one of these keys has signed, and no signed part has changed.

    The signature covers the marker, the context as `read` returns it, and the message's key and value. Never raises.
    """
    found = _marker.find(message.headers)
    marker = Marker() if found is None else found[1]
    if marker.mac is None or not is_letter(marker):
        return False
    mac, parts = marker.mac, signed_parts(message, marker)
    return any(_signature.is_by(key, mac, *parts) for key in keys)


def are_signed(batch: Batch, keys: Sequence[bytes]) -> list[bool]:
    """Return `is_signed` of each message."""
    return signed_rows(batch, keys, partial(is_signed, keys=keys))


def recognise(others: Iterable[HeaderDialect]) -> None:
    """Also read letters by these dialects of other software, in place of those given before; then by `FRAMEWORKS`."""
    _others[:] = (*others, *FRAMEWORKS)


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
    if not (is_letter(marker) or marker.wrapped or (marker.retyped and not keep_type)):
        return message
    kept = Marker(
        attempts_total=marker.attempts_total,
        hops=marker.hops,
        maybe_delivered=marker.maybe_delivered,
        own_id=marker.own_id,
        retyped=marker.retyped if keep_type else None,
    )
    bare = bare_of(message, marker) if is_letter(marker) else message
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
    return replace(
        inner, destination=message.destination, extra=message.extra, identity=message.identity, native=message.native
    )


def renamed(message: Message, event_type: str) -> Message:
    """Return an event under another type, permanently: headers cannot hold the old type. Others are unchanged."""
    found = _retype.rename(message, event_type)
    return message if found is None else found[0]


def redriven(message: Message) -> Message:
    """Return the message that a redrive sends: stripped, and one hop further."""
    stripped = strip(message)
    found = _marker.find(stripped.headers)
    marker = Marker() if found is None else found[1]
    return _remark(stripped, replace(marker, hops=marker.hops + 1, own_id=False))


def with_own_id(message: Message) -> Message:
    """Return a message that was redriven, with a note that the end of its id is its own (`named`)."""
    found = _marker.find(message.headers)
    return message if found is None else _remark(message, replace(found[1], own_id=True))


def unresolved(message: Message) -> Message:
    """Return a message that was redriven, with a note that it only points to the message that it stands for."""
    found = _marker.find(message.headers)
    return message if found is None else _remark(message, replace(found[1], unresolved=True))


def is_unresolved(headers: Headers) -> bool:
    """Whether `unresolved` was noted."""
    found = _marker.find(headers)
    return found is not None and found[1].unresolved


def named(headers: Headers) -> int:
    """Return the hop whose mark a message's id may end with, as we wrote it; 0 if what looks like one is its own."""
    found = _marker.find(headers)
    return 0 if found is None or found[1].own_id else found[1].hops


def unsent(headers: Headers) -> bool:
    """Whether a letter stands for a message of ours that never arrived. Others are as their applications wrote them."""
    found = _marker.find(headers)
    return found is not None and is_letter(found[1]) and not found[1].received


def history(message: Message) -> DeliveryHistory:
    """Return the history in the message's marker; an empty one without a marker."""
    found = _marker.find(message.headers)
    return (
        DeliveryHistory()
        if found is None
        else DeliveryHistory(found[1].attempts_total, found[1].hops, found[1].maybe_delivered)
    )


def is_cut(message: Message) -> bool:
    """Whether our writer had no room for all that it knew of a letter."""
    found = _marker.find(message.headers)
    return found is not None and found[1].truncated


def read_all(batch: Batch, names: Collection[str] | None = None) -> dict[str, list[Any]]:
    """Return fields of `read` of each message, by name, one value per row; the default where a message has no context.

    Args:
        batch: messages as stored.
        names: of the fields; None: all fields of `ErrorContext`.
    """
    foreign = frozenset(name for dialect in _others for name in dialect.names)
    return read_columns(batch, sorted(DEFAULTS if names is None else names), read, foreign)


def histories(batch: Batch) -> list[DeliveryHistory]:
    """Return the history of each message, as `history` does."""
    every = headers_of(batch)
    forms = forms_in(batch)
    first = dict(zip(forms, every, strict=True))
    known = {form: history(Message(value=None, headers=headers)) for form, headers in first.items()}
    return [known[form] for form in forms]


def strip_all(batch: Batch, *, keep_type: bool = False) -> Batch:
    """Return each message as `strip` returns it; its size is estimated."""
    return restored(batch, partial(strip, keep_type=keep_type))


def redriven_all(batch: Batch) -> Batch:
    """Return each message as `redriven` returns it; its size is estimated."""
    return restored(batch, redriven)


def _read_ours(message: Message, marker: Marker) -> ErrorContext:
    fields: dict[str, Any] = {name: getattr(marker, name) for name in BOOKKEEPING}
    known = known_dialects(marker)
    whole = any(dialect.whole for dialect in known)
    forms = [form for value in written_json(message, marker) if (form := json_context.parse(value))]
    if not (whole and forms):  # JSON that holds the whole context needs no texts beside it
        fields |= combined(known, written_texts(message, marker))
    for form in forms:
        fields |= json_context.read(form) if whole else json_context.ours(form)
    return checked(fields)


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
