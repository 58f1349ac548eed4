"""The one table of a delivery spec's written names, and the reading and writing that all forms share.

A field may have a name in each dialect; giving it in two dialects is an error, even where both agree.

Where tolerance is not given: if Connect's own property names the sink, Connect's default holds, "none". Connect's older
text has no `errors.tolerance`, only limits. There, and wherever no deadLetterSink implies it, a limit of 0 means "none"
and any other "all".
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, get_args

from redelivery.base.urls import unknown
from redelivery.contract.spec import DeliverySpec, LetterDialect, Sink
from redelivery.errors import InvalidSpec
from redelivery.formats.specs import sinks
from redelivery.formats.specs.field_types import (
    DURATION,
    FLAG,
    INT16_MAX,
    INT32_MAX,
    INT64_MAX,
    SOME_DURATION,
    TEXT,
    FieldType,
    as_text,
    coded,
    milliseconds,
    whole,
    word,
    words,
)

#: Connect's names for a sink, and the names of its older examples for properties that it kept.
TOPIC: Final = "errors.deadletterqueue.topic.name"
ENABLE: Final = "errors.deadletterqueue.enable"
PRODUCER: Final = "errors.deadletterqueue.producer."
DEAD_LETTER_SINK: Final = "deadLetterSink"
_OLDER: Final = {"errors.dlq.": "errors.deadletterqueue.", "errors.retries.": "errors.retry."}


@dataclass(frozen=True, slots=True)
class Field:
    """One written name: its attribute of `DeliverySpec`, its type, and its help."""

    name: str
    attribute: str
    kind: FieldType
    help: str


KNATIVE: Final = (
    Field("retry", "retry", whole(0, INT32_MAX), "retries before the sink; n retries are n + 1 attempts"),
    Field("backoffPolicy", "backoff_policy", word("linear", "exponential"), "how waits grow: linear or exponential"),
    Field(
        "backoffDelay", "backoff_delay", DURATION, "the delay that waits grow from, ISO-8601; selects Knative's backoff"
    ),
    Field("backoffMax", "backoff_max", DURATION, "caps one wait, ISO-8601"),
    Field("timeout", "timeout", SOME_DURATION, "of one attempt, ISO-8601"),
    Field("retryAfterMax", "retry_after_max", DURATION, "caps a wait that the broker itself asks for, ISO-8601"),
    Field("format", "format", word("json", "binary"), "how events are written to the sink: json or binary"),
)
CONNECT: Final = (
    Field(
        "errors.retry.timeout",
        "retry_timeout",
        milliseconds(-1),
        "time for retrying one record, ms; 0: no retry, -1: forever",
    ),
    Field("errors.retry.limit", "retry", whole(-1, INT64_MAX), "retries of one record; -1: no limit"),
    Field("errors.retry.delay.max.ms", "retry_delay_max", milliseconds(1), "caps one wait, ms"),
    Field(
        "errors.tolerance",
        "tolerance",
        word("none", "all"),
        "whether the job goes on after a record failed for good: none or all",
    ),
    Field(
        "errors.tolerance.limit",
        "tolerance_limit",
        whole(-1, INT64_MAX),
        "more failed records fail the job; -1: no limit",
    ),
    Field(
        "errors.tolerance.rate.limit",
        "tolerance_rate_limit",
        whole(-1, INT64_MAX),
        "the same within the rate's duration",
    ),
    Field(
        "errors.tolerance.rate.duration",
        "tolerance_rate_duration",
        word("minute", "hour", "day"),
        "minute, hour or day",
    ),
    Field(
        "errors.tolerance.rate.duration.ms",
        "tolerance_rate_duration",
        coded({"60000": "minute", "3600000": "hour", "86400000": "day"}),
        "the same in ms: 60000, 3600000 or 86400000",
    ),
    Field("errors.log.enable", "log_enable", FLAG, "log every failure"),
    Field(
        "errors.log.include.messages", "log_include_messages", FLAG, "log the record with it, which may hold secrets"
    ),
    Field("errors.log.include.configs", "log_include_configs", FLAG, "log the redacted settings with it"),
    Field(
        "errors.deadletterqueue.context.headers.enable",
        "sink_context_headers",
        FLAG,
        "write the error context into the letter's headers",
    ),
    Field(
        "errors.deadletterqueue.include.messages", "sink_include_messages", FLAG, "put the record into the JSON context"
    ),
    Field(
        "errors.deadletterqueue.include.configs",
        "sink_include_configs",
        FLAG,
        "put the redacted settings into the JSON context",
    ),
    Field(
        "errors.deadletterqueue.topic.partitions",
        "sink_partitions",
        whole(1, INT32_MAX),
        "of a sink that provisioning makes",
    ),
    Field(
        "errors.deadletterqueue.topic.replication.factor",
        "sink_replication_factor",
        whole(1, INT16_MAX),
        "of a sink that provisioning makes",
    ),
)
OURS: Final = (
    Field(
        "backoffProfile",
        "backoff_profile",
        word("knative", "knative-code", "connect"),
        "whose formula of waiting counts: knative, knative-code or connect",
    ),
    Field(
        "deadLetterDialects",
        "dead_letter_dialects",
        words(*get_args(LetterDialect)),
        "how the error context is written into letters: comma list of connect, knative, knativeerror, deadletter, json",
    ),
    Field("deadLetterType", "dead_letter_type", TEXT, "the type under which events are reposted to sinks"),
    Field("letterKey", "letter_key", TEXT, "signs letters with the key behind this reference, env:NAME or file:PATH"),
    Field(
        "allowSkip", "allow_skip", FLAG, "permits tolerance without a sink: failed rows are counted, logged and gone"
    ),
)
SINKS: Final = {
    DEAD_LETTER_SINK: "where failed rows go: native, a URL, several URLs with spaces between, or Knative's JSON",
    TOPIC: "the sink as Connect names it: a queue or topic at the destination's broker; empty: none",
    ENABLE: "false turns the sink that Connect's property names off",
    PRODUCER + "*": "the sink's own client settings",
}
_BY_NAME: Final = {field.name.lower(): field for field in (*KNATIVE, *CONNECT, *OURS)}
_CAPS: Final = ("backoff_max", "retry_delay_max")
_LIMITS: Final = ("tolerance_limit", "tolerance_rate_limit")


@dataclass(frozen=True, slots=True)
class GivenField:
    """One value that a user wrote: its name in the table's spelling or any case, its value, and the name for errors."""

    name: str
    value: object
    label: str


def canonical(name: str) -> str:
    """Return the name in the table's spelling. A sink's client setting and an unknown name are unchanged."""
    lower = name.lower()
    for older, newer in _OLDER.items():
        if lower.startswith(older):
            name = newer + name[len(older) :]
            lower = name.lower()
    if lower.startswith(PRODUCER) and lower != PRODUCER:
        return PRODUCER + name[len(PRODUCER) :]
    if lower in _BY_NAME:
        return _BY_NAME[lower].name
    return next((special for special in SINKS if special.lower() == lower), name)


def written(attribute: str, value: Any) -> tuple[str, str]:
    """Return one field's name and value as people know them, in the first dialect that can express it, Knative's first.

    Args:
        attribute: of `DeliverySpec`.
        value: its value; None: only the name counts.
    """
    candidates = [field for field in (*KNATIVE, *CONNECT, *OURS) if field.attribute == attribute]
    if not candidates:
        return DEAD_LETTER_SINK, " ".join(sink.uri or f"{sink.ref and sink.ref.group_kind}" for sink in value or ())
    for field in candidates if value is not None else ():
        try:
            return field.name, as_text(field.kind.write(value))
        except InvalidSpec:
            continue
    return candidates[0].name, "" if value is None else str(value)


def kind_of(name: str) -> FieldType | None:
    """Return how the value of a canonical name is written; None for the names of sinks."""
    field = _BY_NAME.get(name.lower())
    return field.kind if field else None


def read(said: Iterable[GivenField], *, what: str, known: Collection[str]) -> DeliverySpec:
    """Return the spec that was written.

    Args:
        said: what was written, in any dialect.
        what: what the form calls a name ("option", "property", "field"), for errors.
        known: every name that the form knows, for errors.

    Raises:
        UnknownOption: names the nearest known name.
        InvalidSpec: a malformed value, one field given twice, or values that contradict each other.
    """
    by_thing: dict[str, GivenField] = {}
    values: dict[str, Any] = {}
    for each in said:
        name = canonical(each.name)
        field = _BY_NAME.get(name.lower())
        if field is None and name not in SINKS and (name == PRODUCER or not name.startswith(PRODUCER)):
            raise unknown(what, each.label, [*known, *_in_older_names(each.label, known)])
        thing = field.attribute if field else name
        if thing in by_thing:
            raise _twice(by_thing[thing], each)
        by_thing[thing] = each
        if field is not None:
            values[field.attribute] = labelled(each.label, field.kind.read, _text(each))
    if all(cap in by_thing for cap in _CAPS):
        raise _twice(by_thing[_CAPS[0]], by_thing[_CAPS[1]], "both cap one wait")
    values["dead_letter_sink"] = _read_sinks(by_thing)
    if "tolerance" not in values:
        values["tolerance"] = _unsaid_tolerance(values, by_thing)
    return DeliverySpec(**values)


def write(spec: DeliverySpec, *dialects: Iterable[Field], default_none: bool = False) -> dict[str, int | bool | str]:
    """Return every field of the spec, except the sinks, by name, in the first dialect that can express it.

    Args:
        spec: the spec.
        dialects: fields in order of preference; together they must have every attribute.
        default_none: the form writes the sink by Connect's name, so unsaid tolerance would be read as "none".

    Raises:
        InvalidSpec: a value that no dialect can express, or one field given in two dialects.
    """
    if spec.backoff_max is not None and spec.retry_delay_max is not None:
        raise InvalidSpec("backoffMax and errors.retry.delay.max.ms both cap one wait; keep one of them")
    values: dict[str, Any] = {
        field.attribute: getattr(spec, field.attribute) for dialect in dialects for field in dialect
    }
    limited = any(values[limit] is not None for limit in _LIMITS) and not spec.dead_letter_sink
    if spec.tolerance is None and (limited or (default_none and spec.dead_letter_sink)):
        values["tolerance"] = "all" if spec.tolerates else "none"
    written: dict[str, int | bool | str] = {}
    for attribute, value in values.items():
        if value is not None and not (attribute == "allow_skip" and not value):
            name, form = _write_one([f for dialect in dialects for f in dialect if f.attribute == attribute], value)
            written[name] = form
    return written


def labelled(label: str, function: Any, *arguments: Any) -> Any:
    """Call a function whose errors name no field, and put the name before them."""
    try:
        return function(*arguments)
    except InvalidSpec as error:
        raise InvalidSpec(f"{label}: {error}") from None


def _in_older_names(name: str, known: Collection[str]) -> list[str]:
    """Return the known names in the spelling of a user who writes Connect's older names."""
    return [
        older + each.removeprefix(newer)
        for older, newer in _OLDER.items()
        for each in known
        if name.lower().startswith(older) and each.startswith(newer)
    ]


def _write_one(fields: list[Field], value: Any) -> tuple[str, int | bool | str]:
    for field in fields[:-1]:
        try:
            return field.name, field.kind.write(value)
        except InvalidSpec:
            continue
    last = fields[-1]
    return last.name, labelled(last.name, last.kind.write, value)


def _text(said: GivenField) -> str:
    return str(labelled(said.label, as_text, said.value)).strip()


def _twice(one: GivenField, other: GivenField, why: str = "are the same thing said twice") -> InvalidSpec:
    return InvalidSpec(f"{one.label} and {other.label} {why}; keep one of them")


def _read_sinks(said: Mapping[str, GivenField]) -> tuple[Sink, ...]:
    plain = said.get(DEAD_LETTER_SINK)
    settings = {name.removeprefix(PRODUCER): each for name, each in said.items() if name.startswith(PRODUCER)}
    if plain is not None:
        for name in (TOPIC, ENABLE, *(PRODUCER + each for each in settings)):
            if name in said:
                raise _twice(plain, said[name], "name a sink in two dialects")
        if isinstance(plain.value, str):
            found: tuple[Sink, ...] = labelled(plain.label, sinks.read_text, plain.value.strip())
        else:
            found = labelled(plain.label, sinks.read, plain.value)
        return found
    enable, topic = said.get(ENABLE), said.get(TOPIC)
    enabled = None if enable is None else labelled(enable.label, FLAG.read, _text(enable))
    options = {key: labelled(each.label, as_text, each.value) for key, each in settings.items()}
    if enabled is False:
        return ()
    if topic is not None and _text(topic):
        named: tuple[Sink, ...] = labelled(topic.label, sinks.read, {"uri": _text(topic), "options": options})
        return named
    asking = enable or next(iter(settings.values()), None)
    if asking is not None and (topic is None or enabled):
        raise InvalidSpec(f"{asking.label} asks for a sink, but {TOPIC} does not name one; set it, as in 'letters'")
    return ()


def _unsaid_tolerance(values: Mapping[str, Any], said: Mapping[str, GivenField]) -> str | None:
    if DEAD_LETTER_SINK in said:
        return None
    limits = [values[limit] for limit in _LIMITS if limit in values]
    if limits:
        return "none" if 0 in limits else "all"
    return "none" if values["dead_letter_sink"] else None
