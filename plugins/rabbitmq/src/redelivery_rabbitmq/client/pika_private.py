"""The private parts of pika that this plugin uses, all in one place.

`TRIED` lists the versions of pika with which the whole suite has passed, and a test fails with any other. To add a
version, run the tests and the conformance suite with it first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from pika import data
from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection
from pika.spec import Basic

TRIED: Final = ("1.4.0", "1.4.4")

#: A field value of a table, and the offset behind it.
Decoder = Callable[[bytes, int], tuple[Any, int]]
#: Appends a field value, and returns its size.
Encoder = Callable[[list[bytes], Any], int]

#: pika's own functions for the values in a field table.
decode_value: Final[Decoder] = data.decode_value
encode_value: Final[Encoder] = data.encode_value


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
