"""Headers (`kafka_dlt-*`) with which Spring's recoverer says why a letter is dead. They are read, and never written.

Text is UTF-8; partition, offset and timestamp are big-endian integers of 4 and 8 bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from redelivery.contract.hooks import HeaderDialect

_PREFIX: Final = "kafka_dlt-"
_TEXTS: Final = {
    "exception-message": "reason",
    "exception-fqcn": "exception",
    "exception-stacktrace": "stacktrace",
    "original-topic": "source_topic",
    "original-consumer-group": "subscriber",
}
_NUMBERS: Final = {"original-partition": "source_partition", "original-offset": "source_offset"}


def _read(found: Mapping[str, bytes]) -> dict[str, Any]:
    fields: dict[str, Any] = {
        field: found[_PREFIX + name].decode("utf-8", "replace")
        for name, field in _TEXTS.items()
        if _PREFIX + name in found
    }
    for name, field in _NUMBERS.items():
        if _PREFIX + name in found:
            fields[field] = int.from_bytes(found[_PREFIX + name], "big", signed=True)
    return fields


SPRING: Final = HeaderDialect(
    name="spring", names=frozenset(_PREFIX + name for name in (*_TEXTS, *_NUMBERS)), read=_read
)
