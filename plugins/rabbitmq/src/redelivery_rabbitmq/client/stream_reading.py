"""Reads a stream of RabbitMQ by offset over AMQP, without taking anything from it.

A stream is read by a consumer alone: it knows no `basic.get` and no `basic.nack`, and an acknowledgement only asks for
more. pika gives back what it has not handed over when a channel closes, which a stream answers by ending the
connection: so a consumer is cancelled and emptied first, and each reading has a connection of its own.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection
from pika.exceptions import AMQPError
from pika.spec import BasicProperties

from redelivery.errors import Retriable
from redelivery.kit.errors import Code
from redelivery_rabbitmq.client.connection import drop, dropped_when_silent
from redelivery_rabbitmq.client.pika_private import send_cancel

#: The broker's header with a message's offset.
OFFSET: Final = "x-stream-offset"
#: Messages that the broker sends ahead, and those after which more are asked for.
_AHEAD: Final = 200
_ASK: Final = 100
#: Seconds without a message although there must be more; and for one wait.
_SILENCE: Final = 20.0
_WAIT: Final = 0.2
#: Seconds for the first message of a consumer, if there may be none. The broker starts a stream's consumer beside its
#: channel: on a busy 4.0.5 the answer to a later question came before the first message.
_LATE: Final = 0.25
#: Seconds after which reading the last chunk asks whether it is still the last.
_LAST_CHUNK: Final = 1.0


class Entry(NamedTuple):
    """One message of a stream."""

    offset: int
    properties: BasicProperties
    body: bytes


class StreamReading:
    """One connection that reads one stream.

    Args:
        connect: opens a connection; again where the first was lost while nobody read.
        name: of the stream.
        silence: seconds that the broker may leave a question unanswered.
    """

    def __init__(self, connect: Callable[[], BlockingConnection], name: str, silence: float) -> None:
        self._connect = connect
        self._name = name
        self._silence = silence
        self._connection = connect()
        self._consumers: dict[BlockingChannel, str] = {}

    def close(self) -> None:
        """Close the connection."""
        try:
            for channel in list(self._consumers):
                self._end(channel)
            if self._connection.is_open:
                self._connection.close()
        except (AMQPError, OSError):
            drop(self._connection)

    def bounds(self) -> tuple[int, int]:
        """Return the first offset, and the one behind the last; 0, 0 where the stream is empty."""
        last = self.newest()
        return (self._first("first", 0), last.offset + 1) if last is not None else (0, 0)

    def newest(self) -> Entry | None:
        """Return a message that is as new as all that are there now; None where the stream is empty."""
        found = self._peek("last")
        if not found:
            return None
        newest = begin = found[0]  # of the last chunk that the broker has stored
        end = time.monotonic() + _LAST_CHUNK
        for newest in self.entries(begin.offset, None):
            if time.monotonic() > end:
                # More may come all the time. But what was there is older than a later chunk.
                end = time.monotonic() + _LAST_CHUNK
                later = self._peek("last")
                if later and later[0].offset > begin.offset:
                    return max(newest, later[0], key=lambda each: each.offset)
        return newest

    def since(self, milliseconds: int, high: int) -> int:
        """Return an offset at or before the first message stored at this time or later; `high` where none was."""
        try:
            moment = datetime.fromtimestamp(milliseconds // 1000, UTC)
        except (ValueError, OverflowError, OSError):
            return high if milliseconds > 0 else 0
        return self._first(moment, high)

    def entries(self, low: int, high: int | None) -> Iterator[Entry]:
        """Return the messages from `low` up to `high`, of which the last must exist; or those that the broker has now.

        Raises:
            Retriable: nothing comes.
        """
        if high is not None and low >= high:
            return
        channel, taken = self._consume(low, _AHEAD)
        tag, unasked, opened_at = 0, 0, low
        while high is None or low < high:
            try:
                if unasked >= _ASK:
                    channel.basic_ack(tag, multiple=True)
                    unasked = 0
                if not taken:
                    self._wait(channel, taken, more=high is not None, late=_LATE if opened_at == low else 0.0)
            except AMQPError:
                if opened_at == low:
                    raise
                # Whoever reads took long over a message, and the broker heard no heartbeat.
                self._consumers.clear()
                drop(self._connection)
                self._connection = self._connect()
                channel, taken = self._consume(low, _AHEAD)
                unasked, opened_at = 0, low
                continue
            if not taken:
                break
            tag, entry = taken.popleft()
            unasked += 1
            if entry.offset >= low and (high is None or entry.offset < high):
                yield entry
            low = entry.offset + 1
        self._end(channel)

    def _wait(
        self, channel: BlockingChannel, taken: deque[tuple[int, Entry]], *, more: bool, late: float = 0.0
    ) -> None:
        """Wait for messages. Without `more`, only until the broker has answered a question, then for `late` seconds."""
        if not more:
            with dropped_when_silent(self._connection, self._silence):
                channel.queue_declare(self._name, passive=True)
            self._connection.process_data_events(0)
            end = time.monotonic() + late
            while not taken and (left := end - time.monotonic()) > 0:
                self._connection.process_data_events(left)
            return
        end = time.monotonic() + _SILENCE
        while not taken:
            self._connection.process_data_events(_WAIT)
            if not taken and time.monotonic() > end:
                text = f"nothing came of stream {self._name!r} for {_SILENCE:g} s, though not all was read"
                raise Retriable(f"rabbitmq: {text}", code=Code.DEADLINE_EXCEEDED)

    def _first(self, where: str | datetime, default: int) -> int:
        found = self._peek(where)
        return found[0].offset if found else default

    def _peek(self, where: str | datetime) -> list[Entry]:
        """Return the first messages at a point, one at least if any is there."""
        channel, taken = self._consume(where, 1)
        self._wait(channel, taken, more=False, late=_LATE)
        self._end(channel)
        return [entry for _, entry in taken]

    def _consume(self, where: int | str | datetime, ahead: int) -> tuple[BlockingChannel, deque[tuple[int, Entry]]]:
        taken: deque[tuple[int, Entry]] = deque()

        def take(_channel: Any, method: Any, properties: BasicProperties, body: bytes) -> None:
            headers = dict(properties.headers or {})
            offset = int(headers.pop(OFFSET))
            properties.headers = headers or None
            taken.append((method.delivery_tag, Entry(offset, properties, body)))

        with dropped_when_silent(self._connection, self._silence):
            channel = self._connection.channel()
            channel.basic_qos(prefetch_count=ahead)
            self._consumers[channel] = channel.basic_consume(self._name, take, arguments={OFFSET: where})
        return channel, taken

    def _end(self, channel: BlockingChannel) -> None:
        """End a consumer. A connection that is lost has none."""
        tag = self._consumers.pop(channel)
        if channel.is_open:
            with dropped_when_silent(self._connection, self._silence):
                send_cancel(channel, tag)
                channel.queue_declare(self._name, passive=True)  # behind everything that was underway
                self._connection.process_data_events(0)
                channel.close()
