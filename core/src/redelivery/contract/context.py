"""`ErrorContext`: why a message was dead-lettered, apart from how that is written down.

The header dialects in `dialects/` write it and read it back.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import partial
from typing import Any, Final, Literal, TypeAlias, get_args

from redelivery.codes import Code, code_of, label

#: Where it failed, in the order of Connect's stages. SEND is Connect's TASK_PUT.
Stage: TypeAlias = Literal["TRANSFORMATION", "KEY_CONVERTER", "VALUE_CONVERTER", "HEADER_CONVERTER", "TASK_PUT"]
STAGES: Final[tuple[Stage, ...]] = get_args(Stage)

#: Kind of a letter that holds what it cannot mean.
INVALID: Final = "invalid"
#: Kinds of what a broker gives up by itself, and the code of each: the same on every broker.
GIVEN_UP: Final[Mapping[str, Code]] = {"expired": Code.EXPIRED, "delivery-limit": Code.DELIVERY_LIMIT}
#: The last millisecond of the year 9999, since the epoch: no date is later.
LAST_MS: Final = 253_402_300_799_999


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorContext:
    """Why, where and after how many attempts a message was given up.

    Attributes:
        reason: one line for people; what letters are grouped by is `code` or, without one, `kind`.
        kind: error class: retriable, ambiguous, permanent, unattributed, invalid, expired, terminated, ...
        code: why, in the words that all brokers share; None: nobody said.
        native_code: the broker's or client's own short name for the error.
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
    code: Code | None = None
    native_code: str | None = None
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

    @property
    def label(self) -> str:
        """The code and the native code in one text; empty where neither is known."""
        return label(self.code, self.native_code)


_TYPES: Final = {item.name: str(item.type) for item in fields(ErrorContext)}
DEFAULTS: Final[Mapping[str, Any]] = {
    item.name: item.default_factory() if item.default_factory is not MISSING else item.default
    for item in fields(ErrorContext)
}
#: What whole numbers may be: a DataFrame has 32 bits for counts, and no later time.
_RANGES: Final[Mapping[str, range]] = {
    **dict.fromkeys(("attempts", "attempts_total", "hops", "partition"), range(2**31)),
    **dict.fromkeys(("first_failure_ms", "last_failure_ms"), range(LAST_MS + 1)),
}
_ANY: Final = range(-(2**63), 2**63)
_SURROGATES: Final = re.compile("[\ud800-\udfff]")


def checked(given: Any) -> ErrorContext:
    """A context out of fields that anyone may have written. Never raises.

    A field of another type, or out of its range, is unset, and the kind is "invalid". Unknown names are left out: they
    may be of a later version. Half a character becomes U+FFFD. A code that is not in the vocabulary is the client's own
    word: letters held it in this field before there was a vocabulary.

    Args:
        given: a mapping of field names to JSON values; anything else gives nothing.
    """
    known = {name: value for name, value in given.items() if name in _TYPES} if isinstance(given, Mapping) else {}
    found = {name: _whole(value) for name, value in known.items() if _fits(name, value)}
    if len(found) < len(known):
        found["kind"] = INVALID
    word = found.get("code")
    if word is not None:
        found["code"] = code_of(word)
        if found["code"] is None:
            found["native_code"] = found.get("native_code") or word
    return ErrorContext(**found)


def sound(context: ErrorContext) -> ErrorContext:
    """The context as `checked` lets it through: what a broker tells of a letter, somebody may have written.

    What the broker gave up by itself has the code of its kind (`GIVEN_UP`), where the plugin names no other.
    """
    if context.code is None and context.kind in GIVEN_UP:
        context = replace(context, code=GIVEN_UP[context.kind])
    given = {name: getattr(context, name) for name in _TYPES}
    fit = all(_fits(name, value) for name, value in given.items()) and isinstance(context.code, Code | None)
    return context if fit else checked(given)


def moment_ms(millis: Any) -> int | None:
    """Milliseconds since the epoch; None where they are none that a clock shows (1970 to 9999)."""
    return millis if _is_whole(millis, _RANGES["last_failure_ms"]) else None


def _fits(name: str, value: Any) -> bool:
    kind = _TYPES[name]
    if value is None:
        return kind.endswith("None")
    if name == "stage":
        return isinstance(value, str) and value in STAGES
    if name == "extra":
        return isinstance(value, Mapping) and all(isinstance(text, str) for pair in value.items() for text in pair)
    if kind.startswith("bool"):
        return isinstance(value, bool)
    if kind.startswith("int"):
        return _is_whole(value, _RANGES.get(name, _ANY))
    return isinstance(value, str)


def _is_whole(value: Any, within: range) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and within.start <= value < within.stop


def _whole(value: Any) -> Any:
    """Without half characters, which no database or terminal takes."""
    if isinstance(value, str):
        return _SURROGATES.sub("\ufffd", value)
    return {_whole(name): _whole(text) for name, text in value.items()} if isinstance(value, Mapping) else value


def qualified(thing: object) -> str:
    """The fully qualified name of a class, of a function, or of the class of anything else."""
    while isinstance(thing, partial):
        thing = thing.func
    named = thing if hasattr(thing, "__qualname__") else type(thing)
    return f"{named.__module__}.{getattr(named, '__qualname__', '')}"
