"""A message as a record in the file, and back."""

from __future__ import annotations

import time
from typing import NamedTuple

import msgpack

from redelivery.codes import Code
from redelivery.contract.message import ROW_OVERHEAD, Headers, Message
from redelivery.errors import Permanent

MESSAGE_BYTES = 16 << 20


class Record(NamedTuple):
    """A message and its lease. Times are milliseconds since the epoch."""

    value: bytes | None
    key: bytes | None
    headers: Headers
    id: str | None
    timestamp_ms: int | None
    arrived_ms: int
    attempts: int = 0
    first_ms: int | None = None
    hidden_until_ms: int = 0
    lease: bytes = b""
    undecodable: str | None = None  # why `value` is the record's own bytes

    @classmethod
    def of(cls, message: Message) -> Record:
        """Make the record of a message that arrives now. Raises Permanent: it is too large."""
        size = message.nbytes - ROW_OVERHEAD
        if size > MESSAGE_BYTES:
            text = f"the message has {size} bytes, and {MESSAGE_BYTES} are the most"
            raise Permanent(text, code=Code.TOO_LARGE)
        return cls(message.value, message.key, message.headers, message.id, message.timestamp_ms, now_ms())

    @classmethod
    def unpack(cls, data: bytes) -> Record:
        """Read a record; `undecodable` says why, if something else wrote it."""
        try:
            return cls(*msgpack.unpackb(data, use_list=False))
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            return cls(data, None, (), None, None, 0, undecodable=f"not written by redelivery-plainlmdb: {error}")

    def pack(self) -> bytes:
        """Return the record's bytes."""
        packed: bytes = msgpack.packb(tuple(self))
        return packed

    def message(self) -> Message:
        """Return the message as it was sent."""
        return Message(value=self.value, key=self.key, headers=self.headers, id=self.id, timestamp_ms=self.timestamp_ms)


def now_ms() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000
