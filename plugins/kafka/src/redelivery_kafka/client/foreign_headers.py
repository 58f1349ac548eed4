"""Headers with which other writers of dead letter topics say why a letter is dead. They are read, and never written.

- Spring (`kafka_dlt-*`, and `kafka_*` of its retry topics): text is UTF-8; partition and offset are big-endian integers
  of 4 and 8 bytes.
- Kafka Streams since 4.2 (KIP-1034, `__streams.errors.*`) and the dead letter queues of share groups since 4.4
  (KIP-1191, `__dlq.errors.*`): all is UTF-8 text.

A letter's target is the topic that it came from. As every target that a header names, it is followed only where the
operator allows it, or where it is the destination itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from redelivery.contract.hooks import HeaderDialect
from redelivery_kafka.client.pointers import NAMES, Death

_SPRING: Final = ("kafka_dlt-", "kafka_")
_SPRING_TEXTS: Final = {
    "exception-message": "reason",
    "exception-fqcn": "exception",
    "exception-stacktrace": "stacktrace",
    "original-topic": "source_topic",
    "original-consumer-group": "subscriber",
}
_SPRING_NUMBERS: Final = {"original-partition": "source_partition", "original-offset": "source_offset"}
_CAUSE: Final = "exception-cause-fqcn"
_TYPE: Final = "original-timestamp-type"
_CLOCKS: Final = {"CreateTime": "CREATE_TIME", "LogAppendTime": "LOG_APPEND_TIME"}

_STREAMS: Final = "__streams.errors."
_STREAMS_TEXTS: Final = {"message": "reason", "stacktrace": "stacktrace", "topic": "source_topic"}
_STREAMS_NUMBERS: Final = {"partition": "source_partition", "offset": "source_offset"}
_EXCEPTION: Final = "exception"
#: Digits of 64 bits, and a sign.
_DIGITS: Final = 20


def _read_spring(found: Mapping[str, bytes]) -> dict[str, Any]:
    """Return the fields of Spring's headers.

    The exception is the listener's own (the cause) where it is named: the other one is Spring's, which wraps it.
    """
    given = {
        name.removeprefix(prefix): value
        for prefix in reversed(_SPRING)
        for name, value in found.items()
        if name.startswith(prefix)
    }
    fields: dict[str, Any] = {field: _text(given[name]) for name, field in _SPRING_TEXTS.items() if name in given}
    for name, field in _SPRING_NUMBERS.items():
        if name in given:
            fields[field] = int.from_bytes(given[name][:9], "big", signed=True)
    if _CAUSE in given:
        if "exception" in fields:
            fields["extra"] = {"exception-fqcn": fields["exception"]}
        fields["exception"] = _text(given[_CAUSE])
    clock = _CLOCKS.get(_text(given.get(_TYPE, b"")))
    return _targeted(fields if clock is None or not fields else {**fields, "source_timestamp_type": clock})


def _read_streams(found: Mapping[str, bytes]) -> dict[str, Any]:
    """Return the fields of Kafka Streams' headers. `exception` is a text as of Java's: class, colon, message."""
    given = {name.removeprefix(_STREAMS): _text(value) for name, value in found.items()}
    fields: dict[str, Any] = {field: given[name] for name, field in _STREAMS_TEXTS.items() if name in given}
    for name, field in _STREAMS_NUMBERS.items():
        number = given.get(name, "")
        if number.removeprefix("-").isascii() and number.removeprefix("-").isdigit() and len(number) <= _DIGITS:
            fields[field] = int(number)
    shown = given.get(_EXCEPTION, "")
    name, _, message = shown.partition(": ")
    if name:
        fields["exception"] = name
        fields.setdefault("reason", message or shown)
    return _targeted(fields)


def _read_kafka(found: Mapping[str, bytes]) -> dict[str, Any]:
    """Return the fields of the headers of Kafka's own dead letter queue, of a letter that also has other headers."""
    death = Death.of(found)
    return {} if death is None else death.fields


def _targeted(fields: dict[str, Any]) -> dict[str, Any]:
    return {**fields, "target": fields["source_topic"]} if fields.get("source_topic") else fields


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")


_suffixes: Final = (*_SPRING_TEXTS, *_SPRING_NUMBERS, _CAUSE, _TYPE)
SPRING: Final = HeaderDialect(
    name="spring",
    names=frozenset(prefix + name for prefix in _SPRING for name in _suffixes),
    read=_read_spring,
)
STREAMS: Final = HeaderDialect(
    name="kafka-streams",
    names=frozenset(_STREAMS + name for name in (*_STREAMS_TEXTS, *_STREAMS_NUMBERS, _EXCEPTION)),
    read=_read_streams,
)
SHARE_GROUPS: Final = HeaderDialect(name="kafka-share-groups", names=frozenset(NAMES), read=_read_kafka)
