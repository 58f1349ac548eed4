"""Rows as AMQP frames: `basic.publish`, content header and body of many rows in one piece of bytes.

pika encodes a message in about ten objects; here the constant parts are encoded once.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Final

from redelivery.codes import Code
from redelivery.errors import Permanent

#: Longest short string in bytes: ids and names.
SHORT_STRING: Final = 255
#: Limit for all headers of a message, names and values: a frame of 128 KiB, less what the broker adds to dead letters.
HEADERS_BYTES: Final = 96 << 10

_PUBLISH: Final = (60, 40)
_MANDATORY: Final = b"\x01"
_END: Final = b"\xce"
#: Bytes of a frame beyond its payload.
_OVERHEAD: Final = 8

_FRAME = struct.Struct(">BHI").pack
_METHOD = struct.Struct(">HHH").pack
#: type, channel, size; class, weight, body size
_HEADER = struct.Struct(">BHIHHQ").pack
#: Bytes of a content header before its properties.
_HEADER_SIZE: Final = 12
#: end of the frame before; type, channel, size
_BODY = struct.Struct(">BBHI").pack


def fits_frame(properties: bytes, frame_max: int) -> bool:
    """Whether these properties fit into one frame. The broker closes a connection that sends a larger one."""
    return len(properties) + _HEADER_SIZE + _OVERHEAD <= frame_max


def short_string(text: str, what: str) -> bytes:
    """Encode a short string. Raises Permanent: it is too long or cannot be written."""
    try:
        raw = text.encode()
    except UnicodeEncodeError:
        problem = f"its {what} cannot be written as UTF-8"
        raise Permanent(f"rabbitmq: this row cannot be sent: {problem}", code=Code.INVALID_MESSAGE) from None
    if len(raw) > SHORT_STRING:
        problem = f"its {what} is {len(raw)} bytes long; at most {SHORT_STRING} are possible"
        raise Permanent(f"rabbitmq: this row cannot be sent: {problem}", code=Code.TOO_LARGE)
    return bytes((len(raw),)) + raw


class FrameEncoder:
    """Encodes rows for one channel.

    Attributes:
        publish: cached; returns the frame of a mandatory `basic.publish` to an exchange with a routing key. Raises
            Permanent: a name cannot be written.
    """

    def __init__(self, channel: int, frame_max: int, body_max: int) -> None:
        self._channel = channel
        self._max_body = body_max
        self._max_payload = frame_max - _OVERHEAD
        self.publish = lru_cache(maxsize=1024)(self._publish)

    def row(self, publish: bytes, properties: bytes, body: bytes) -> tuple[bytes, ...]:
        """Return the frames of one row. Raises Permanent: its body is too large, or its properties for one frame."""
        size, length, channel = len(properties) + _HEADER_SIZE, len(body), self._channel
        if size > self._max_payload:
            text = f"its headers are {size} bytes as AMQP writes them; all must fit one frame of {self._max_payload}"
            raise Permanent(f"rabbitmq: this row cannot be sent: {text}", code=Code.TOO_LARGE)
        head = _HEADER(2, channel, size, 60, 0, length)
        if not length:
            return publish, head, properties, _END
        if length > self._max_body:
            text = f"its value is {length} bytes; the broker takes at most {self._max_body} (rabbitmq.message_bytes)"
            raise Permanent(f"rabbitmq: this row cannot be sent: {text}", code=Code.TOO_LARGE)
        if length <= self._max_payload:
            return publish, head, properties, _BODY(0xCE, 3, channel, length), body, _END
        pieces = [publish, head, properties]
        for start in range(0, length, self._max_payload):
            part = body[start : start + self._max_payload]
            pieces += (_BODY(0xCE, 3, channel, len(part)), part)
        return (*pieces, _END)

    def _publish(self, exchange: str, routing_key: str) -> bytes:
        names = short_string(exchange, "exchange") + short_string(routing_key, "routing key")
        payload = _METHOD(*_PUBLISH, 0) + names + _MANDATORY
        return _FRAME(1, self._channel, len(payload)) + payload + _END
