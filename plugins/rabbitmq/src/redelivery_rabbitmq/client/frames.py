"""Rows as AMQP frames: `basic.publish`, content header, body, many rows in one piece of bytes.

pika encodes a message in about ten objects; here what does not vary is encoded once. This file must not do I/O.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Final

from redelivery.errors import Permanent
from redelivery_rabbitmq.codec import SHORT

_PUBLISH: Final = (60, 40)
_MANDATORY: Final = b"\x01"
_END: Final = b"\xce"
#: What a frame is besides its payload.
_AROUND: Final = 8

_FRAME = struct.Struct(">BHI").pack
_METHOD = struct.Struct(">HHH").pack
#: type, channel, size; class, weight, body size
_HEADER = struct.Struct(">BHIHHQ").pack
#: what a content header's frame has before its properties
_HEADER_SIZE: Final = 12
#: end of the frame before; type, channel, size
_BODY = struct.Struct(">BBHI").pack


def fits(properties: bytes, frame_max: int) -> bool:
    """Whether one frame takes these properties: the broker closes the connection of who sends a larger one."""
    return len(properties) + _HEADER_SIZE + _AROUND <= frame_max


class Frames:
    """Encodes for one channel.

    Attributes:
        body_max: bytes of a body that one frame takes.
    """

    def __init__(self, channel: int, frame_max: int) -> None:
        self._channel = channel
        self._most = frame_max - _AROUND
        self.body_max = self._most
        self.publish = lru_cache(maxsize=1024)(self._publish)

    def row(self, publish: bytes, properties: bytes, body: bytes) -> tuple[bytes, ...]:
        """The frames of one row. Raises Permanent: its properties are more than a frame takes."""
        size, length, channel = len(properties) + _HEADER_SIZE, len(body), self._channel
        if size > self._most:
            text = f"its headers are {size} bytes as AMQP writes them; all must fit one frame of {self._most}"
            raise Permanent(f"rabbitmq: this row cannot be sent: {text}", native_code="HEADERS_TOO_LARGE")
        head = _HEADER(2, channel, size, 60, 0, length)
        if not length:
            return publish, head, properties, _END
        if length <= self.body_max:
            return publish, head, properties, _BODY(0xCE, 3, channel, length), body, _END
        pieces = [publish, head, properties]
        for start in range(0, length, self.body_max):
            part = body[start : start + self.body_max]
            pieces += (_BODY(0xCE, 3, channel, len(part)), part)
        return (*pieces, _END)

    def _publish(self, exchange: str, routing_key: str) -> bytes:
        """The frame of `basic.publish` to there, mandatory. Raises Permanent: a name that cannot be written."""
        names = _short(exchange, "exchange") + _short(routing_key, "routing key")
        payload = _METHOD(*_PUBLISH, 0) + names + _MANDATORY
        return _FRAME(1, self._channel, len(payload)) + payload + _END


def _short(text: str, what: str) -> bytes:
    raw = text.encode("utf-8", "surrogatepass")
    if len(raw) > SHORT or not _is_text(text):
        problem = f"its {what} is {len(raw)} bytes long, and {SHORT} are the most; or it is no text"
        raise Permanent(f"rabbitmq: this row cannot be sent: {problem}", native_code="TOO_LONG")
    return bytes((len(raw),)) + raw


def _is_text(text: str) -> bool:
    return not any("\ud800" <= each <= "\udfff" for each in text)
