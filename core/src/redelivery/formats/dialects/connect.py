"""Kafka Connect's context headers (KIP-298): ten names, UTF-8 text: the error, and where the record came from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from redelivery.contract.context import STAGES, ErrorContext
from redelivery.formats.dialects._fields import printable, whole

_PREFIX: Final = "__connect.errors."
#: Header and field, the most important first: where a broker takes few headers the last ones are left out.
_TEXTS: Final = {
    "exception.message": "reason",
    "exception.class.name": "exception",
    "stage": "stage",
    "class.name": "component",
    "connector.name": "run",
    "topic": "source_topic",
    "exception.stacktrace": "stacktrace",
}
_NUMBERS: Final = {"partition": "source_partition", "offset": "source_offset", "task.id": "partition"}
_ORDER: Final = (
    "exception.message",
    "exception.class.name",
    "stage",
    "topic",
    "partition",
    "offset",
    "task.id",
    "connector.name",
    "class.name",
    "exception.stacktrace",
)
#: The fields that each header may give: a `class.name` may be the plugin (`read`).
GIVES: Final = {
    _PREFIX + name: frozenset({field, "broker"} if field == "component" else {field})
    for name, field in (_TEXTS | _NUMBERS).items()
}
NAMES: Final = frozenset(GIVES)


def write(context: ErrorContext) -> list[tuple[str, str | int]]:
    """Return the headers for the known fields."""
    fields = {name: getattr(context, field) for name, field in (_TEXTS | _NUMBERS).items()}
    return [(_PREFIX + name, printable(str(fields[name]))) for name in _ORDER if fields[name] not in (None, "")]


def read(found: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of these headers; a `class.name` that is not one is the plugin, as version 0.1 wrote it."""
    out: dict[str, Any] = {}
    for name, field in _TEXTS.items():
        if _PREFIX + name in found:
            out[field] = found[_PREFIX + name]
    for name, field in _NUMBERS.items():
        number = whole(found.get(_PREFIX + name))
        if number is not None:
            out[field] = number
    if out.get("stage") not in STAGES:
        out.pop("stage", None)
    if "." not in out.get("component", "."):
        out["broker"] = out.pop("component")
    return out
