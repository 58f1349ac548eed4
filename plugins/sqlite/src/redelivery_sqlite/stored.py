"""A row of a queue as a message. Text is read as bytes, so that a damaged row is told of and harms no other.

This file must not run a statement.
"""

from __future__ import annotations

from redelivery.contract.message import Headers, Message
from redelivery_sqlite import headers

#: What `message` takes, behind the row's number; the table is called m.
COLUMNS = "m.seq, CAST(m.id AS BLOB), m.timestamp_ms, m.key, CAST(m.headers AS BLOB), m.value"


def message(
    id_: bytes | None, timestamp_ms: int | None, key: bytes | None, encoded: bytes | None, value: bytes | None
) -> tuple[Message, str | None]:
    """The message, and what of it could not be decoded: that part is missing from it, or replaced."""
    fault: str | None = None
    found: Headers = ()
    if encoded is not None:
        try:
            found = headers.read(encoded.decode())
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            fault = f"sqlite: its headers are damaged ({type(error).__name__}: {error})"
    name: str | None = None
    if id_ is not None:
        try:
            name = id_.decode()
        except UnicodeDecodeError as error:
            name = id_.decode(errors="replace")
            fault = f"sqlite: its id is damaged ({error})"
    return Message(value=value, key=key, headers=found, id=name, timestamp_ms=timestamp_ms), fault
