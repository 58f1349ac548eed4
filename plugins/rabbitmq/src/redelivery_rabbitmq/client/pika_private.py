"""The private parts of pika that this plugin uses, all in one place.

`TRIED` lists the versions of pika with which the whole suite has passed, and a test fails with any other. To add a
version, run the tests and the conformance suite with it first.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final, TypeVar

from pika import SelectConnection, data
from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection
from pika.connection import Parameters
from pika.spec import Basic

TRIED: Final = ("1.4.0", "1.4.4")

Connection = TypeVar("Connection", bound=BlockingConnection)

#: A field value of a table, and the offset behind it.
Decoder = Callable[[bytes, int], tuple[Any, int]]
#: Appends a field value, and returns its size.
Encoder = Callable[[list[bytes], Any], int]

#: Takes the frames at an offset of the bytes that have come, and returns the offset behind them.
Tap = Callable[[bytes, int], int]

#: Bytes that are read from a socket at once; pika reads 4 KiB.
_READ_BYTES: Final = 1 << 16
#: Bytes of a frame beyond its payload.
_FRAME_OVERHEAD: Final = 8
#: channel, size, behind the type
_FRAME: Final = struct.Struct(">xHI")

#: pika's own functions for the values in a field table.
decode_value: Final[Decoder] = data.decode_value
encode_value: Final[Encoder] = data.encode_value


class TappedConnection(SelectConnection):
    """pika's asynchronous connection, with channels whose frames are ours to read.

    Attributes:
        taps: by channel; pika reads the frames that a tap does not take.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.taps: dict[int, Tap] = {}
        super().__init__(*args, **kwargs)

    def _on_data_available(self, data_in: bytes) -> None:
        if not self.taps:
            super()._on_data_available(data_in)
            return
        buffer = self._frame_buffer + data_in
        self._frame_buffer = b""
        at, size = 0, len(buffer)
        while size - at >= _FRAME_OVERHEAD:
            channel, length = _FRAME.unpack_from(buffer, at)
            tap = self.taps.get(channel)
            behind = at if tap is None else tap(buffer, at)
            if behind > at:
                self.frames_received += 1
                self.bytes_received += behind - at
            else:
                behind = at + length + _FRAME_OVERHEAD
                if behind > size:
                    break
                super()._on_data_available(buffer[at:behind])
                if self.is_closed:
                    return
            at = behind
        self._frame_buffer = buffer[at:]


def taps(channel: BlockingChannel) -> dict[int, Tap]:
    """Return the taps of a channel's connection, which must be beneath a `TappedConnection`."""
    return implementation(channel.connection).taps  # type: ignore[no-any-return]


def wake(channel: BlockingChannel) -> None:
    """Let the connection's `process_data_events` return: what it waits for came past pika."""
    channel.connection._request_channel_dispatch(-channel.channel_number)  # noqa: SLF001 - pika has no public call


def opened(kind: type[Connection], parameters: Parameters) -> Connection:
    """Open a blocking connection over a `TappedConnection` that reads much at once."""
    connection = kind(parameters, _impl_class=TappedConnection)  # type: ignore[arg-type]  # it is a class
    implementation(connection)._transport._MAX_RECV_BYTES = _READ_BYTES  # noqa: SLF001 - pika has no public setting
    return connection


def replace_field_codec(decode: Decoder, encode: Encoder) -> None:
    """Let pika read and write the values of field tables with these functions."""
    data.decode_value = decode  # type: ignore[assignment]
    data.encode_value = encode  # type: ignore[assignment]


def implementation(connection: BlockingConnection) -> Any:
    """Return the asynchronous connection beneath a blocking one.

    Only its timers run while the blocking one waits for an answer, and only it knows what was negotiated.
    """
    return connection._impl  # noqa: SLF001 - see above


def server_properties(connection: BlockingConnection) -> dict[str, Any]:
    """Return what the broker said about itself: product, version, capabilities."""
    return implementation(connection).server_properties or {}


def frame_max(connection: BlockingConnection) -> int:
    """Return the size of the largest frame in bytes, as negotiated."""
    return int(implementation(connection).params.frame_max)


def write_frames(connection: Any, frames: bytes) -> None:
    """Write encoded frames. pika's public calls encode each message by themselves, at half the speed."""
    connection._output_marshaled_frames((frames,))  # noqa: SLF001 - see above


def unwritten(connection: Any) -> int:
    """Return how many bytes were written to an asynchronous connection and have not left this process."""
    return int(connection._get_write_buffer_size())  # noqa: SLF001 - pika has no public call


def progress(connection: Any) -> tuple[int, int]:
    """Return two numbers that change when a frame other than a heartbeat arrives, or when written bytes leave."""
    checker = connection._heartbeat_checker  # noqa: SLF001 - pika has no public call
    heartbeats = checker._heartbeat_frames_received if checker else 0  # noqa: SLF001 - pika has no public call
    return connection.frames_received - heartbeats, unwritten(connection)


def terminate(connection: Any, reason: Exception) -> None:
    """Close the socket of an asynchronous connection at once. pika's `close` waits for an answer without a limit."""
    connection._terminate_stream(reason)  # noqa: SLF001 - see above


def send_cancel(channel: BlockingChannel, consumer_tag: str) -> None:
    """Tell the broker to cancel a consumer, without telling pika.

    pika's own cancel gives back the messages that arrive while it waits, and the broker counts each as a delivery.
    """
    cancel = Basic.Cancel(consumer_tag=consumer_tag, nowait=True)  # type: ignore[no-untyped-call]
    channel._impl._send_method(cancel)  # noqa: SLF001 - see above
