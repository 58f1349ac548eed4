"""Headers by which messaging frameworks say why a letter is dead. They are read, and never written or removed.

These frameworks run on several brokers, so their dialects belong to no plugin. All values are text, or numbers that a
plugin shows as text.

- Spring AMQP, `RepublishMessageRecoverer` (3.x).
- MassTransit (8.x), which moves what failed to `<queue>_error`, and what nobody consumes to `<queue>_skipped`.
- NServiceBus (5 to 9), which moves it to one queue for all endpoints, `error` by default.

A letter's target is the queue where it failed. As every target that a header names, it is followed only where the
operator allows it, or where it is the destination itself.

Celery has none: what its workers reject is dead-lettered by the broker, without a reason of theirs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import unquote

from redelivery.contract.hooks import HeaderDialect

#: The longest first part of a stack trace in which the cause is looked for.
_TRACE: Final = 64 << 10
#: More digits than any count of attempts has.
_DIGITS: Final = 9

_SPRING_TEXTS: Final = {"x-exception-message": "reason", "x-exception-stacktrace": "stacktrace"}
_EXCHANGE: Final = "x-original-exchange"
_ROUTING_KEY: Final = "x-original-routingKey"
#: A line of a Java stack trace that names an exception.
_THROWN: Final = re.compile(r"(?:Caused by: )?([A-Za-z_$][\w$]*(?:\.[\w$]+)+)(?::|$)", re.ASCII)
_CAUSED: Final = "Caused by: "

_FAULT: Final = "MT-Fault-"
_FAULT_TEXTS: Final = {
    "Message": "reason",
    "ExceptionType": "exception",
    "StackTrace": "stacktrace",
    "ConsumerType": "component",
}
_MORE_FAULTS: Final = ("Timestamp", "RetryCount", "MessageType", "InputAddress")
_REASON: Final = "MT-Reason"
_SKIPPED: Final = "dead-letter"

_INFO: Final = "NServiceBus.ExceptionInfo."
_INFO_TEXTS: Final = {"Message": "reason", "ExceptionType": "exception", "StackTrace": "stacktrace"}
_MORE_INFO: Final = ("InnerExceptionType", "Source")
_FAILED_QUEUE: Final = "NServiceBus.FailedQ"
_FAILED_AT: Final = "NServiceBus.TimeOfFailure"
_ENDPOINT: Final = "NServiceBus.ProcessingEndpoint"


def _read_spring(found: Mapping[str, bytes]) -> dict[str, Any]:
    """Return the fields of Spring AMQP's headers. Its message is the cause's; so is the exception, where shown."""
    fields: dict[str, Any] = {field: _text(found[name]) for name, field in _SPRING_TEXTS.items() if name in found}
    exchange, key = (None if name not in found else _text(found[name]) for name in (_EXCHANGE, _ROUTING_KEY))
    thrown = _thrown(fields.get("stacktrace", ""))
    if thrown:
        fields["exception"] = thrown
    if not fields and exchange is None:
        return {}
    if exchange == "" and key:  # through the default exchange, a routing key is the name of a queue
        fields["target"] = key
    elif exchange:
        fields["extra"] = {"original-exchange": exchange} | ({} if key is None else {"original-routing-key": key})
    return fields


def _thrown(stacktrace: str) -> str | None:
    """Return the class of the first cause in a Java stack trace; without a cause, of the exception itself."""
    lines = stacktrace[:_TRACE].splitlines()
    shown = next((line for line in lines if line.startswith(_CAUSED)), lines[0] if lines else "")
    match = _THROWN.match(shown)
    return None if match is None else match[1]


def _read_masstransit(found: Mapping[str, bytes]) -> dict[str, Any]:
    given = {name.removeprefix(_FAULT): _text(value) for name, value in found.items()}
    fields: dict[str, Any] = {field: given[name] for name, field in _FAULT_TEXTS.items() if name in given}
    if not fields:
        skipped = given.get(_REASON) == _SKIPPED
        return {"reason": "no consumer takes this type of message"} if skipped else {}
    moment = _moment(given.get("Timestamp", ""))
    if moment is not None:
        fields["last_failure_ms"] = moment
    retries = given.get("RetryCount", "")
    if retries.isascii() and retries.isdecimal() and len(retries) <= _DIGITS:
        fields["attempts"] = int(retries) + 1
    queue = unquote(given.get("InputAddress", "").partition("?")[0].rstrip("/").rpartition("/")[2])
    if queue:
        fields["target"] = queue.removeprefix("queue:")
    if "MessageType" in given:
        fields["extra"] = {"message-type": given["MessageType"]}
    return fields


def _read_nservicebus(found: Mapping[str, bytes]) -> dict[str, Any]:
    given = {name.removeprefix(_INFO): _text(value) for name, value in found.items()}
    fields: dict[str, Any] = {field: given[name] for name, field in _INFO_TEXTS.items() if name in given}
    queue = given.get(_FAILED_QUEUE)
    if not fields and not queue:
        return {}
    if queue:
        fields["target"] = queue
    if given.get(_ENDPOINT):
        fields["subscriber"] = given[_ENDPOINT]
    moment = _moment(given.get(_FAILED_AT, ""))
    if moment is not None:
        fields["last_failure_ms"] = moment
    extra = {name: given[name] for name in _MORE_INFO if given.get(name)}
    return fields | ({"extra": extra} if extra else {})


def _moment(text: str) -> int | None:
    """Return a time of .NET in milliseconds: `2024-05-01T10:15:30.1234567Z`, or `2024-05-01 10:15:30:123456 Z`."""
    try:
        if "T" in text:
            moment = datetime.fromisoformat(text)
        else:
            moment = datetime.strptime(text, "%Y-%m-%d %H:%M:%S:%f Z").replace(tzinfo=UTC)
        return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
    except (ValueError, OverflowError):
        return None


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")


FRAMEWORKS: Final = (
    HeaderDialect(name="spring-amqp", names=frozenset({*_SPRING_TEXTS, _EXCHANGE, _ROUTING_KEY}), read=_read_spring),
    HeaderDialect(
        name="masstransit",
        names=frozenset({_REASON, *(_FAULT + name for name in (*_FAULT_TEXTS, *_MORE_FAULTS))}),
        read=_read_masstransit,
    ),
    HeaderDialect(
        name="nservicebus",
        names=frozenset({_FAILED_QUEUE, _FAILED_AT, _ENDPOINT, *(_INFO + n for n in (*_INFO_TEXTS, *_MORE_INFO))}),
        read=_read_nservicebus,
    ),
)
