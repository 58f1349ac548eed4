"""How a de-duplicating broker recognises a message, where its id is not enough: pure functions of its content.

An id belongs to the user: consumers see it, it comes back unchanged, and two different messages may share it. An
identity is ours: two messages of one identity are one message, sent again. It is the same whenever the same message is
sent again (an ambiguous answer, a retried task, a replayed micro-batch, a process killed before it could note its
work). So it never depends on times, attempts, or the text of an error.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, repeat
from types import NoneType
from typing import Any, Final

from redelivery.contract.broker import Letter, Received
from redelivery.contract.context import ErrorContext
from redelivery.contract.message import Batch, Column, Headers, Message
from redelivery.formats import dialects
from redelivery.formats.events import source_of

#: Bytes of a digest: two of 10^12 messages are taken for one with a probability of 10^-15.
_BYTES: Final = 16
#: The longest id that an identity begins with, so that brokers with room for 128 characters take it as it is.
_NEAR: Final = 80


def of_event(source: str, id_: str) -> str:
    """Return the identity of a CloudEvent: source and id together; the length separates them."""
    return f"{len(source)} {source} {id_}"


def of_message(message: Message) -> str | None:
    """Return the identity of a message as first sent: an event's includes its source; None: its id is enough."""
    if message.identity is not None or message.id is None:
        return message.identity
    source = source_of(message)
    return None if source is None else of_event(source, message.id)


def identified(batch: Batch) -> Batch:
    """Return the batch with the identities of its messages, computed when a plugin reads them.

    An event declares itself in a header: without headers no row is an event, and rows cost nothing.
    """
    if batch.identity is not None or batch.id is None or batch.headers is None:
        return batch
    column = Column(len(batch), lambda: [of_message(message) for message in batch.rows()])
    return replace(batch, identity=column)


def of_letter(message: Message, context: ErrorContext, received: Received | None) -> str:
    """Return the identity of a letter: what failed, where, for whom, in which run, from where, after which redrive.

    Args:
        message: what failed, as it was first sent or received.
        context: of its letter: destination, run, subscriber, partition and position.
        received: the lease it was under, where it came by a subscription.
    """
    where = (context.destination, message.destination, context.run, context.subscriber)
    if received is None:
        # A retried task may get its rows in another order: what has an id is the same row wherever it stands.
        come: tuple[object, ...] = () if message.id is not None else (context.partition, context.position)
    elif message.id is None and received.source is None and not received.lasting:
        return uuid.uuid4().hex  # nothing tells it from another: better a duplicate than a loss
    else:
        source = received.source
        come = () if source is None else (source.topic, source.partition, source.offset)
        come += (received.position,) if received.lasting else ()
    digest = _digest("letter", *where, len(come), *come, dialects.history(message).hops, *_content(message))
    return _behind(message.id, digest)


def of_letters(batch: Batch, context: ErrorContext, varying: Mapping[str, Sequence[Any]]) -> list[str]:
    """Return the identities of the letters of rows that failed alike, as `of_letter` does without a lease.

    Args:
        batch: the messages, as they were first sent.
        context: what the contexts of their letters share.
        varying: what differs, by field of the context: one value per row.
    """
    count = len(batch)

    def said(name: str) -> list[bytes]:
        values = varying.get(name)
        return [_part(getattr(context, name))] * count if values is None else _column(values)

    def sent(column: Column[Any] | None) -> list[bytes]:
        return [_part(None)] * count if column is None else _column(column.values)

    named = [False] * count if batch.id is None else [each is not None for each in batch.id.values]
    places = [_NOWHERE] * count
    if not all(named):
        places = [
            _NOWHERE if name else b"%b%b%b" % (_part(2), *place)
            for name, *place in zip(named, said("partition"), said("position"), strict=True)
        ]
    columns = [
        [_part("letter")] * count,
        said("destination"),
        sent(batch.destination),
        said("run"),
        said("subscriber"),
        places,
        [_part(0)] * count if batch.headers is None else _column([each.hops for each in dialects.histories(batch)]),
        sent(batch.id),
        sent(batch.key),
        sent(batch.value),
        sent(batch.timestamp_ms),
        [_part(0)] * count
        if batch.headers is None
        else [_parts((len(each), *chain.from_iterable(each))) for each in batch.headers.values],
    ]
    if batch.extra:
        columns.append([_parts(_extra(each.extra)) for each in batch.rows()])
    digests = [hashlib.blake2b(b"".join(each), digest_size=_BYTES).hexdigest() for each in zip(*columns, strict=True)]
    return digests if batch.id is None else list(map(_behind, batch.id.values, digests))


def of_redriven(message: Message) -> str | None:
    """Return the identity of a letter sent back under the id given; None: it has no id.

    Two different letters of one id are two messages. A letter that is sent again, because its redrive was killed before
    it could note it, is one message.
    """
    return (
        None
        if message.id is None
        else _behind(message.id, _digest("redriven", message.destination, *_content(message)))
    )


def of_redriven_all(batch: Batch) -> list[str | None]:
    """Return `of_redriven` of each message of a batch whose rows have no destination of their own."""
    if batch.id is None:
        return [None] * len(batch)
    length = len(batch)
    columns = [batch.id, batch.key, batch.value, batch.timestamp_ms]
    parts = [repeat(_part(None), length) if each is None else _column(each.values) for each in columns]
    headers: Iterable[Headers] = repeat((), length) if batch.headers is None else batch.headers.values
    written: dict[Headers, bytes] = {}  # letters of one cause have the same
    ends: list[bytes] = []
    for of_row in headers:
        end = written.get(of_row)
        if end is None:
            end = written[of_row] = _parts((len(of_row), *(part for header in of_row for part in header)))
        ends.append(end)
    extra: Iterable[bytes] = repeat(b"", length)
    if batch.extra:
        rows = zip(*(column.values for column in batch.extra.values()), strict=True)
        extra = [_parts(_extra(dict(zip(batch.extra, row, strict=True)))) for row in rows]
    begin = repeat(_parts(("redriven", None)), length)
    contents = map(b"".join, zip(begin, *parts, ends, extra, strict=True))
    return [
        None if id_ is None else _behind(id_, hashlib.blake2b(content, digest_size=_BYTES).hexdigest())
        for id_, content in zip(batch.id.values, contents, strict=True)
    ]


def of_unchanged(message: Message, context: ErrorContext) -> str | None:
    """Return the identity of a letter that is sent back under the id that it was first sent under.

    For a letter whose attempts were ambiguous: the broker may have it, and must be able to recognise it.
    """
    if context.truncated:  # the rest may equal another's: better a duplicate than a loss
        return _behind(message.id, _digest("redriven", message.destination, *_content(message)))
    return context.identity or of_message(message)


def of_forwarded(letter: Letter) -> str:
    """Return the identity of a message that a broker itself dead-lettered, on its way to a sink: by its position."""
    reason = "" if letter.context is None else letter.context.reason
    return _digest("forwarded", letter.position, letter.dead_lettered_ms, reason, *_content(letter.message))


def _behind(id_: str | None, digest: str) -> str:
    """Return a digest behind the id that it holds already.

    Ids of one job rise, and a broker's index takes rising names at nearly twice the speed of random ones (`sqlite:`,
    measured).
    """
    is_plain = id_ is not None and len(id_) <= _NEAR and id_.isascii() and id_.isprintable()
    return f"{id_}-{digest}" if is_plain else digest


def _content(message: Message) -> tuple[object, ...]:
    return (
        message.id,
        message.key,
        message.value,
        message.timestamp_ms,
        len(message.headers),
        *(part for header in message.headers for part in header),
        *_extra(message.extra),
    )


def _extra(extra: Mapping[str, object]) -> Iterable[object]:
    return (part for name in sorted(extra) if extra[name] is not None for part in (name, extra[name]))


def _digest(*parts: object) -> str:
    """Return a digest of parts, each preceded by its type and length, so that different lists never look alike."""
    return hashlib.blake2b(_parts(parts), digest_size=_BYTES).hexdigest()


def _column(values: Sequence[Any]) -> list[bytes]:
    """Return each value as a part."""
    kinds = set(map(type, values))
    if kinds <= {NoneType}:
        return [_part(None)] * len(values)
    if kinds == {bytes}:
        return [b"b%d:%b" % (len(value), value) for value in values]
    if kinds == {str}:
        if values.count(values[0]) == len(values):
            return [_part(values[0])] * len(values)
        encoded = [value.encode("utf-8", "surrogatepass") for value in values]
        return [b"s%d:%b" % (len(data), data) for data in encoded]
    return list(map(_part, values))


def _parts(parts: Iterable[object]) -> bytes:
    return b"".join(map(_part, parts))


def _part(part: object) -> bytes:
    if isinstance(part, bytes | bytearray | memoryview):
        return b"b%d:%b" % (len(part), bytes(part))
    if isinstance(part, str):
        data = part.encode("utf-8", "surrogatepass")
        return b"s%d:%b" % (len(data), data)
    data = repr(part).encode("utf-8", "surrogatepass")
    return b"o%d:%b" % (len(data), data)


#: The place of a letter that its id names already.
_NOWHERE: Final = _part(0)
