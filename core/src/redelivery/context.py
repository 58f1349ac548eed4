"""`ErrorContext`: why a message was dead-lettered, apart from how that is written down.

The header dialects in `dialects/` write it and read it back. This file must not know any header name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, TypeAlias

#: Where it failed, in the order of Connect's stages. SEND is Connect's TASK_PUT.
Stage: TypeAlias = Literal["TRANSFORMATION", "KEY_CONVERTER", "VALUE_CONVERTER", "HEADER_CONVERTER", "TASK_PUT"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorContext:
    """Why, where and after how many attempts a message was given up.

    Attributes:
        reason: one line for people; what letters are grouped by is `code` or, without one, `kind`.
        kind: error class: retriable, ambiguous, permanent, unattributed, invalid, expired, terminated, ...
        code: the broker's or client's own short name for the error.
        exception: fully qualified class of what was really thrown, by the client or a handler.
        stacktrace: text; only as far as limits allow.
        stage: where it failed.
        broker: name of the plugin that refused it.
        component: fully qualified name of what failed: the sender's class, the handler, the encoder's class.
        destination: redacted URL that it did not reach.
        target: the row's own destination, where it named one other than the URL's.
        message_id: the id that it was sent under.
        identity: what it was to be recognised by, where that was not its id.
        attempts: attempts in this life, the first included; 0 where it was never sent.
        attempts_total: over all lives.
        hops: how often it was redriven.
        first_failure_ms, last_failure_ms: milliseconds since the epoch.
        run, query, batch, partition, position: the job, streaming query, micro-batch, partition and row it came from.
        source_topic, source_partition, source_offset: where the record was read, where it was read from a queue.
        source_timestamp_type: whose time the record's timestamp is, where the queue tells.
        subscriber: the named subscription that gave up, redacted.
        maybe_delivered: an attempt ended ambiguous, so the message may lie at its destination, whatever ended the last.
        truncated: something was cut to the limits.
        extra: what a dialect held beyond all this, unaltered.
    """

    reason: str = ""
    kind: str = ""
    code: str | None = None
    exception: str | None = None
    stacktrace: str | None = None
    stage: Stage | None = None
    broker: str | None = None
    component: str | None = None
    destination: str | None = None
    target: str | None = None
    message_id: str | None = None
    identity: str | None = None
    attempts: int | None = None
    attempts_total: int | None = None
    hops: int = 0
    first_failure_ms: int | None = None
    last_failure_ms: int | None = None
    run: str | None = None
    query: str | None = None
    batch: str | None = None
    partition: int | None = None
    position: int | None = None
    source_topic: str | None = None
    source_partition: int | None = None
    source_offset: int | None = None
    source_timestamp_type: str | None = None
    subscriber: str | None = None
    maybe_delivered: bool = False
    truncated: bool = False
    extra: Mapping[str, str] = field(default_factory=dict)


def qualified(thing: object) -> str:
    """The fully qualified name of a class, of a function, or of the class of anything else."""
    while isinstance(thing, partial):
        thing = thing.func
    named = thing if hasattr(thing, "__qualname__") else type(thing)
    return f"{named.__module__}.{getattr(named, '__qualname__', '')}"
