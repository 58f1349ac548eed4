"""By what a de-duplicating broker recognises a message, where its id is not enough: pure functions of what it says.

An id is the user's: consumers see it, it comes back unchanged, and two things that differ may share it. An identity is
ours: two messages of one identity are one message, sent again. It is stable when the same thing is sent again (an
ambiguous answer, a retried task, a replayed micro-batch, a process killed before it could note what it did), so it is
never made of times, attempts, or the text of an error.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from redelivery.contract.broker import Letter, Received
from redelivery.contract.context import ErrorContext
from redelivery.contract.message import Batch, Column, Message
from redelivery.formats import dialects
from redelivery.formats.events import source_of

#: Bytes of a digest: two of 10^12 messages are taken for one with a probability of 10^-15.
_BYTES: Final = 16


def of_event(source: str, id_: str) -> str:
    """The identity of a CloudEvent: source and id together; the length tells where the one ends."""
    return f"{len(source)} {source} {id_}"


def of_message(message: Message) -> str | None:
    """The identity of a message as it is first sent: an event's is of its source too; None: its id is enough."""
    if message.identity is not None or message.id is None:
        return message.identity
    source = source_of(message)
    return None if source is None else of_event(source, message.id)


def identified(batch: Batch) -> Batch:
    """The batch with the identities of its messages, computed when a plugin asks for them.

    An event says in a header that it is one: without headers there is none, and rows cost nothing.
    """
    if batch.identity is not None or batch.id is None or batch.headers is None:
        return batch
    column = Column(len(batch), lambda: [of_message(message) for message in batch.rows()])
    return replace(batch, identity=column)


def of_letter(message: Message, context: ErrorContext, received: Received | None) -> str:
    """The identity of a letter: what failed, where, for whom, in which run, from where, and in which life.

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
        return uuid.uuid4().hex  # nothing tells it from another: rather twice than not at all
    else:
        source = received.source
        come = () if source is None else (source.topic, source.partition, source.offset)
        come += (received.position,) if received.lasting else ()
    return _digest("letter", *where, len(come), *come, dialects.history(message).hops, *_content(message))


def of_redriven(message: Message) -> str | None:
    """The identity of a letter that is sent back, under the id that it is sent under; None: it has no id.

    Two letters of one id that differ are two; one that is sent again, as its redrive was killed before it was noted, is
    one.
    """
    return None if message.id is None else _digest("redriven", message.destination, *_content(message))


def of_unchanged(message: Message, context: ErrorContext) -> str | None:
    """The identity of a letter that is sent back under the id that it was sent under first.

    For one whose attempts were ambiguous: the broker may have it, and must be able to recognise it.
    """
    if context.truncated:  # what is left of it may be another's: rather twice than not at all
        return _digest("redriven", message.destination, *_content(message))
    return context.identity or of_message(message)


def of_forwarded(letter: Letter) -> str:
    """The identity of what a broker itself dead-lettered, on its way to a sink: the letter at this position."""
    reason = "" if letter.context is None else letter.context.reason
    return _digest("forwarded", letter.position, letter.dead_lettered_ms, reason, *_content(letter.message))


def _content(message: Message) -> tuple[object, ...]:
    extra: Mapping[str, object] = message.extra
    return (
        message.id,
        message.key,
        message.value,
        message.timestamp_ms,
        len(message.headers),
        *(part for header in message.headers for part in header),
        *(part for name in sorted(extra) if extra[name] is not None for part in (name, extra[name])),
    )


def _digest(kind: str, *parts: object) -> str:
    """A digest of parts, each with its type and length before it, so that no two lists of parts are written alike."""
    digest = hashlib.blake2b(digest_size=_BYTES)
    for each in _written((kind, *parts)):
        digest.update(each)
    return digest.hexdigest()


def _written(parts: Iterable[object]) -> Iterable[bytes]:
    for part in parts:
        if isinstance(part, bytes | bytearray | memoryview):
            marker, data = b"b", bytes(part)
        elif isinstance(part, str):
            marker, data = b"s", part.encode("utf-8", "surrogatepass")
        else:
            marker, data = b"o", repr(part).encode("utf-8", "surrogatepass")
        yield b"%s%d:" % (marker, len(data))
        yield data
