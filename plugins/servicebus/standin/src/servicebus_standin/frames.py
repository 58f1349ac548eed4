"""Find deliveries in the batch format. Proton does not report them, so this reads transfer frames before proton does.

It changes nothing. Only the message format marks a batch, not its body.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from servicebus_standin.codec import NULL, items, read, skip

BATCH_FORMAT: Final = 0x80013700
_ATTACH, _TRANSFER = 0x12, 0x14
_PREFIX: Final = 8


class FrameReader:
    """Reads one connection's incoming bytes."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._links: dict[tuple[int, int], str] = {}
        self._open: set[tuple[int, int]] = set()
        self._batches: dict[str, deque[bool]] = {}

    def is_batch(self, link: str) -> bool:
        """Return whether the next delivery of this link, in order of arrival, is a batch. Call it once per delivery."""
        return self._batches[link].popleft()

    def feed(self, data: bytes) -> None:
        """Read more bytes of the connection."""
        self._buffer += data
        buffer = self._buffer
        at = 0
        while len(buffer) - at >= _PREFIX:
            if buffer[at : at + 4] == b"AMQP":  # a protocol header
                at += _PREFIX
                continue
            size = max(int.from_bytes(buffer[at : at + 4]), _PREFIX)
            if len(buffer) - at < size:
                break
            self._frame(buffer, at, size)
            at += size
        del buffer[:at]

    def _frame(self, buffer: bytearray, at: int, size: int) -> None:
        start = at + 4 * buffer[at + 4]
        is_amqp, channel = buffer[at + 5] == 0, int.from_bytes(buffer[at + 6 : at + 8])
        # A performative: its descriptor is a small ulong.
        if not is_amqp or start + 3 > at + size or bytes(buffer[start : start + 2]) != b"\x00\x53":
            return
        code = buffer[start + 2]
        if code not in (_ATTACH, _TRANSFER):
            return
        head = bytes(buffer[start + 3 : at + size])
        fields = items(head[: skip(head, 0)])
        if code == _ATTACH:
            self._links[channel, read(fields[1])] = name = read(fields[0])
            self._batches.setdefault(name, deque())
            self._open.discard((channel, read(fields[1])))
            return
        number, _, _, message_format, _, more = (read(each) for each in (*fields, *[NULL] * 6)[:6])
        handle = channel, number
        if handle not in self._open:
            self._batches[self._links[handle]].append(message_format == BATCH_FORMAT)
        (self._open.add if more else self._open.discard)(handle)
