"""`ErrorContext`: why a message was dead-lettered, independent of how headers write it.

The header dialects in `dialects/` write and read it.
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

#: Kind of a letter whose fields hold impossible values.
INVALID: Final = "invalid"
#: Kind of a letter that only points to its message, which could not be read. It is shown, and stays.
UNRESOLVED: Final = "unresolved"
#: Kinds of the messages that a broker itself gives up, and the code of each: the same on every broker.
GIVEN_UP: Final[Mapping[str, Code]] = {"expired": Code.EXPIRED, "delivery-limit": Code.DELIVERY_LIMIT}
#: Kinds of what a broker does by itself, by the code that says the same.
KINDS: Final[Mapping[Code, str]] = {code: kind for kind, code in GIVEN_UP.items()} | {Code.TERMINATED: "terminated"}
#: The last millisecond of the year 9999, since the epoch: no date is later.
LAST_MS: Final = 253_402_300_799_999


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorContext:
    """Why, where and after how many attempts a message was given up.

    Attributes:
        reason: one line for people; what letters are grouped by is `code` or, without one, `kind`.
        kind: error class: retriable, ambiguous, permanent, unattributed, invalid, expired, terminated, ...
        code: why, in the words that all brokers share; None: not known.
        native_code: the broker's or client's own short name for the error.
        exception: fully qualified class of the exception that the client or a handler raised.
        stacktrace: text; shortened to the limits.
        stage: where it failed.
        broker: name of the plugin that refused it.
        component: fully qualified name of what failed: the sender's class, the handler, the encoder's class.
        destination: redacted URL of the destination that it did not reach.
        target: the row's own destination, where it named one other than the URL's.
        message_id: the id that it was sent under.
        identity: the text that brokers recognise it by, where that was not its id.
        attempts: attempts since it was last sent or redriven, the first included; 0 where it was never sent.
        attempts_total: attempts over all redrives.
        hops: how often it was redriven.
        first_failure_ms, last_failure_ms: milliseconds since the epoch.
        run, query, batch, partition, position: the job, streaming query, micro-batch, partition and row it came from.
        source_topic, source_partition, source_offset: where the record was read, where it was read from a queue.
        source_timestamp_type: which clock set the record's timestamp, where the queue reports it.
        subscriber: the named subscription that gave up, redacted.
        maybe_delivered: an attempt ended ambiguous, so the destination may hold the message, however the last one
            ended.
        traceparent: of the span in which it failed, where a program traced that; its message's own is a header.
        truncated: something was cut to the limits.
        extra: what else a dialect held, unchanged.
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
    traceparent: str | None = None
    truncated: bool = False
    extra: Mapping[str, str] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """Return the code and the native code as one text; empty where neither is known."""
        return label(self.code, self.native_code)


_TYPES: Final = {item.name: str(item.type) for item in fields(ErrorContext)}
DEFAULTS: Final[Mapping[str, Any]] = {
    item.name: item.default_factory() if item.default_factory is not MISSING else item.default
    for item in fields(ErrorContext)
}
#: Fields that hold any text.
_PLAIN_TEXTS: Final = frozenset(
    name for name, kind in _TYPES.items() if kind.startswith(("str", "Code")) and name != "stage"
)
#: Fields that hold whole numbers, all at least up to this one.
_NUMBERS: Final = frozenset(name for name, kind in _TYPES.items() if kind.startswith("int"))
_LEAST: Final = 2**31
#: The range of each whole number: a DataFrame has 32 bits for counts, and no later time.
_RANGES: Final[Mapping[str, range]] = {
    **dict.fromkeys(("attempts", "attempts_total", "hops", "partition"), range(2**31)),
    **dict.fromkeys(("first_failure_ms", "last_failure_ms"), range(LAST_MS + 1)),
}
_ANY: Final = range(-(2**63), 2**63)
_SURROGATES: Final = re.compile("[\ud800-\udfff]")


def checked(given: Any) -> ErrorContext:
    """Return a context made of fields that anyone may have written. Never raises.

    A field of another type, or out of its range, stays unset, and the kind is "invalid". Unknown names are ignored: a
    later version may have written them. Half a character becomes U+FFFD. A code outside the vocabulary becomes the
    native code: letters stored it in this field before the vocabulary existed.

    Args:
        given: a mapping of field names to JSON values; any other value gives an empty context.
    """
    found: dict[str, Any] = {}
    fits_all = True
    for name, value in given.items() if isinstance(given, Mapping) else ():
        kind = type(value)  # the first two are nearly all that any letter holds, and millions are read
        if (kind is str and name in _PLAIN_TEXTS and value.isascii()) or (
            kind is int and name in _NUMBERS and 0 <= value < _LEAST
        ):
            found[name] = value
        elif name in _TYPES:
            if _fits(name, value):
                found[name] = _whole(value)
            else:
                fits_all = False
    if not fits_all:
        found["kind"] = INVALID
    word = found.get("code")
    if word is not None:
        found["code"] = code_of(word)
        if found["code"] is None:
            found["native_code"] = found.get("native_code") or word
    return ErrorContext(**found)


def sound(context: ErrorContext) -> ErrorContext:
    """Return the context after `checked`: anyone may have written what a broker reports of a letter.

    A message that the broker itself gave up gets the code of its kind (`GIVEN_UP`), unless the plugin names another.
    """
    if context.code is None and context.kind in GIVEN_UP:
        context = replace(context, code=GIVEN_UP[context.kind])
    given = {name: getattr(context, name) for name in _TYPES}
    fit = all(_fits(name, value) for name, value in given.items()) and isinstance(context.code, Code | None)
    return context if fit else checked(given)


def moment_ms(millis: Any) -> int | None:
    """Return milliseconds since the epoch; None for a date that no clock shows (outside 1970 to 9999)."""
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


def whole_text(text: str) -> str:
    """Return text without half characters, which no database or terminal accepts."""
    return _SURROGATES.sub("\ufffd", text)


def _whole(value: Any) -> Any:
    if isinstance(value, str):
        return whole_text(value)
    return {_whole(name): _whole(text) for name, text in value.items()} if isinstance(value, Mapping) else value


def qualified(thing: object) -> str:
    """Return the fully qualified name of a class, of a function, or of the class of any other object."""
    while isinstance(thing, partial):
        thing = thing.func
    named = thing if hasattr(thing, "__qualname__") else type(thing)
    return f"{named.__module__}.{getattr(named, '__qualname__', '')}"
