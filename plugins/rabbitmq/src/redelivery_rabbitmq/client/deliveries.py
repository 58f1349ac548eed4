"""Reads delivered messages from their frames, at a fifth of what pika's objects for each frame cost."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import BodyTooLongError
from pika.spec import BasicProperties

from redelivery_rabbitmq.client import pika_private

_METHOD: Final = 1
_HEADER: Final = 2
_BODY: Final = 3
_END: Final = 0xCE
#: Class and method of `basic.deliver`.
_DELIVER: Final = 60 << 16 | 60
#: Bytes of a frame before its payload, and of a content header before its properties.
_FRAME_START: Final = 7
_HEADER_START: Final = 12

#: type, channel, size
_FRAME = struct.Struct(">BHI").unpack_from
_METHOD_ID = struct.Struct(">I").unpack_from
#: delivery tag, redelivered
_TAG = struct.Struct(">QB").unpack_from
#: body size, behind class and weight
_SIZE = struct.Struct(">4xQ").unpack_from

_MODE: Final = BasicProperties.FLAG_DELIVERY_MODE
_ID: Final = BasicProperties.FLAG_MESSAGE_ID
#: Flags of the properties that most messages have, which need no decoder: without an id, or where it begins.
_NO_ID: Final = frozenset(flags.to_bytes(2, "big") for flags in (0, _MODE))
_ID_AT: Final = {_ID.to_bytes(2, "big"): 2, (_MODE | _ID).to_bytes(2, "big"): 3}


class Delivery(NamedTuple):
    """A delivered message: also its lease.

    Attributes:
        holder: the consumer that holds it.
        tag: delivery tag.
        redelivered: it was delivered before.
        plain_id: its message id, if `decoded` is None.
        encoded: the properties as received.
        decoded: the properties; None where they are no more than a delivery mode and an id.
        body: the body.
    """

    holder: object
    tag: int
    redelivered: bool
    plain_id: str | None
    encoded: bytes
    decoded: BasicProperties | None
    body: bytes

    @property
    def properties(self) -> BasicProperties:
        """The properties."""
        return _decoded(self.encoded) if self.decoded is None else self.decoded


class Deliveries:
    """The messages that the consumers of one channel receive.

    Args:
        channel: number of the channel.
        holder: the consumer.
        limit: how many messages may come.
        wake: called when the first message has come, and when all have.

    Attributes:
        received: the messages, in their order.
    """

    def __init__(self, channel: int, holder: object, limit: int, wake: Callable[[], None]) -> None:
        self.received: list[Delivery] = []
        self._channel = channel
        self._holder = holder
        self._limit = limit
        self._wake = wake
        self._expected = _METHOD
        self._tag = 0
        self._redelivered = False
        self._encoded = b""
        self._parts: list[bytes] = []
        self._left = 0

    def take(self, buffer: bytes, at: int) -> int:
        """Take the whole frames of deliveries that begin at this offset; return the offset behind them."""
        size = len(buffer)
        while size - at > _FRAME_START:
            kind, channel, length = _FRAME(buffer, at)
            start = at + _FRAME_START
            end = start + length
            if channel != self._channel or end >= size or buffer[end] != _END:
                break
            if kind == _METHOD:
                self._expected = _METHOD  # a message that is cut off by the end of its channel never becomes whole
                self._parts.clear()
                if _METHOD_ID(buffer, start)[0] != _DELIVER:
                    break
                self._tag, redelivered = _TAG(buffer, start + 5 + buffer[start + 4])
                self._redelivered = bool(redelivered & 1)
                self._expected = _HEADER
            elif kind != self._expected:
                break
            elif kind == _HEADER:
                self._left = _SIZE(buffer, start)[0]
                self._encoded = buffer[start + _HEADER_START : end]
                self._expected = _BODY
                if not self._left:
                    self._add(b"")
            elif length == self._left and not self._parts:
                self._add(buffer[start:end])
            else:
                self._add_part(buffer[start:end])
            at = end + 1
        return at

    def _add_part(self, part: bytes) -> None:
        if len(part) > self._left:
            raise BodyTooLongError(len(part), self._left)
        self._parts.append(part)
        self._left -= len(part)
        if not self._left:
            self._add(b"".join(self._parts))
            self._parts.clear()

    def _add(self, body: bytes) -> None:
        self._expected = _METHOD
        if len(self.received) in {0, self._limit - 1}:
            self._wake()
        encoded, plain_id, decoded = self._encoded, None, None
        flags = encoded[:2]
        if flags not in _NO_ID:
            at = _ID_AT.get(flags)
            plain_id = None if at is None else _text(encoded[at + 1 : at + 1 + encoded[at]])
            decoded = _decoded(encoded) if plain_id is None else None
        self.received.append(Delivery(self._holder, self._tag, self._redelivered, plain_id, encoded, decoded, body))


@contextmanager
def delivered(channel: BlockingChannel, holder: object, limit: int) -> Iterator[list[Delivery]]:
    """Return a list to which up to `limit` messages are added that are delivered on this channel while entered."""
    taps = pika_private.taps(channel)
    deliveries = Deliveries(channel.channel_number, holder, limit, lambda: pika_private.wake(channel))
    taps[channel.channel_number] = deliveries.take
    try:
        yield deliveries.received
    finally:
        taps.pop(channel.channel_number, None)


def _decoded(encoded: bytes) -> BasicProperties:
    properties: BasicProperties = BasicProperties().decode(encoded)  # type: ignore[no-untyped-call]
    return properties


def _text(raw: bytes) -> str | None:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return None
