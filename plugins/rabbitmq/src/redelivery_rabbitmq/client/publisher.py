"""pika's connections, opened within a time and never hanging: one that blocks, for requests, and one that streams.

This file must not know what a connection is used for, nor open one again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

import pika
from pika.adapters.blocking_connection import BlockingConnection
from pika.adapters.select_connection import IOLoop
from pika.channel import Channel
from pika.exceptions import AMQPConnectionError

from redelivery_rabbitmq.address import Address, Settings
from redelivery_rabbitmq.client.field_tables import install
from redelivery_rabbitmq.errors import ERRORS, classified
from redelivery_rabbitmq.options import parameters

install()

#: Seconds that a polite close may take, before the socket is just closed.
CLOSE: Final = 2.0


class _Late(AMQPConnectionError):
    """A time ran out."""


class Bounded(BlockingConnection):
    """pika's blocking connection, whose close comes to an end: an alarm, or a frozen broker, leaves it unanswered."""

    def close(self, reply_code: int = 200, reply_text: str = "Normal shutdown") -> None:
        # pika's own timers are not looked at while it waits for an answer; those of the connection below are.
        below: Any = self._impl
        late = below.ioloop.call_later(CLOSE, lambda: _drop(below, "no answer to the close"))
        try:
            super().close(reply_code, reply_text)
        finally:
            below.ioloop.remove_timeout(late)


def opened(address: Address, settings: Settings) -> BlockingConnection:
    """A new connection. Raises BrokerError, ConfigurationError; the error says what to do."""
    wanted = parameters(address, settings)
    with classified(f"connecting to {address.where}", opening=True):
        return Bounded(wanted)


@contextmanager
def unless_silent(connection: BlockingConnection, seconds: float) -> Iterator[None]:
    """While entered, the connection is lost once nothing has moved on it for so long, or up to twice so long.

    Heartbeats tell of a lost connection much later, and nothing of a queue that does not answer.
    """
    below: Any = connection._impl  # noqa: SLF001 - see `Bounded`
    seen = _moved(below)
    timer: Any = None

    def look() -> None:
        nonlocal seen, timer
        if (now := _moved(below)) == seen:
            _drop(below, f"no answer for {seconds:g} s")
            return
        seen = now
        timer = below.ioloop.call_later(seconds, look)

    timer = below.ioloop.call_later(seconds, look)
    try:
        yield
    finally:
        below.ioloop.remove_timeout(timer)


def drop(connection: BlockingConnection) -> None:
    """Close its socket at once: a call was left halfway, and nobody knows what the broker has sent by then."""
    with suppress(*ERRORS, AssertionError):
        _drop(connection._impl, "given up")  # noqa: SLF001 - see `Bounded`
        connection.process_data_events(0)


class Stream:
    """One connection with one channel in confirm mode, driven by whoever uses it: no thread, nothing happens unasked.

    Args:
        address, settings: where to.
        deadline: `time.monotonic()` by which it must be open.
        confirmed: called for each confirm: delivery tag, whether all up to it, whether it was taken.
        returned: called for each message that no queue takes, before its confirm: method, properties, body.

    Raises:
        BrokerError: it could not be opened.
    """

    def __init__(
        self,
        address: Address,
        settings: Settings,
        deadline: float,
        *,
        confirmed: Callable[[int, bool, bool], None],
        returned: Callable[[Any, Any, bytes], None],
    ) -> None:
        self._confirmed = confirmed
        self._returned = returned
        self._loop = IOLoop()
        self._loop.activate_poller()
        self._connection: Any = None
        self._done: list[Any] = []
        self.error: BaseException | None = None
        self.blocked = False
        try:
            wanted = parameters(address, settings)
            with classified(f"connecting to {address.where}", opening=True):
                self._open(wanted, deadline)
                self.channel = self._new_channel(deadline)
                self._confirm(deadline)
        except BaseException:
            self.abort()
            raise

    @property
    def is_open(self) -> bool:
        """Whether both the connection and its channel are."""
        return self.error is None and bool(self._connection.is_open and self.channel.is_open)

    @property
    def waiting(self) -> int:
        """Bytes that were written and have not left this process."""
        return 0 if self.error is not None else int(self._connection._get_write_buffer_size())  # noqa: SLF001 - see `write`

    @property
    def frame_max(self) -> int:
        """Bytes of the largest frame, as negotiated."""
        return int(self._connection.params.frame_max)

    def write(self, frames: bytes) -> None:
        """Hand over whole frames of our channel, encoded already."""
        # pika has no public call for frames that are encoded already, and its own encoding halves the speed.
        self._connection._output_marshaled_frames((frames,))  # noqa: SLF001 - see above

    def step(self, wait: float) -> None:
        """Send, receive and serve heartbeats; wait for something to happen, up to so many seconds."""
        timer = self._loop.call_later(max(wait, 0.0), _nothing)
        try:
            self._loop.poll()
            self._loop.process_timeouts()
        except ERRORS as error:
            self.error = self.error or error
        finally:
            self._loop.remove_timeout(timer)

    def until(self, done: Callable[[], object], deadline: float) -> bool:
        """Go on until something is so, or the connection is lost, or the deadline has passed; whether it is so."""
        while not done():
            left = deadline - time.monotonic()
            if left <= 0 or self.error is not None:
                return bool(done())
            self.step(left)
        return True

    def exchange_error(self, exchange: str, deadline: float) -> BaseException | None:
        """Ask, on a channel of its own, whether there is such an exchange: None, or what went wrong."""
        return self._error_of(
            lambda channel, told: channel.exchange_declare(exchange, passive=True, callback=told),
            f"no answer whether there is an exchange {exchange!r}",
            deadline,
        )

    def queue_error(self, queue: str, deadline: float) -> BaseException | None:
        """Ask, on a channel of its own, whether there is such a queue: None, or what went wrong."""
        return self._error_of(
            lambda channel, told: channel.queue_declare(queue, passive=True, callback=told),
            f"no answer whether there is a queue {queue!r}",
            deadline,
        )

    def _error_of(
        self, ask: Callable[[Any, Callable[[Any], None]], None], late: str, deadline: float
    ) -> BaseException | None:
        asked: list[object] = []
        try:
            channel = self._new_channel(deadline, lambda _, reason: asked.append(reason))
            ask(channel, lambda _: asked.append(None))
            if not self.until(lambda: asked, deadline):
                return self.error or _Late(late)
            if channel.is_open:
                channel.close()
        except ERRORS as error:
            return error
        said = asked[0]
        return said if isinstance(said, BaseException) else None

    def close(self) -> None:
        """Close politely, if the broker answers soon; at once otherwise. Never raises."""
        with suppress(*ERRORS):
            if self._connection is not None and self._connection.is_open and not self.waiting:
                self._connection.close()
                self._await_end()
        self.abort()

    def abort(self) -> None:
        """Close the socket at once; what was written may arrive or not."""
        connection = self._connection
        if connection is not None and not connection.is_closed:
            with suppress(*ERRORS, AssertionError):
                _drop(connection, "given up")
                self._await_end()
        with suppress(*ERRORS, AssertionError):
            self._loop.deactivate_poller()
        with suppress(*ERRORS, AssertionError):
            self._loop.close()
        self.error = self.error or _Late("closed")

    def _open(self, wanted: pika.ConnectionParameters, deadline: float) -> None:
        wanted.blocked_connection_timeout = None  # the deadlines of what is sent are the bound
        # pika ends a connection that does not open in time by itself; by its own call it cannot be ended.
        left = max(0.01, deadline - time.monotonic())
        wanted.socket_timeout = min(left, wanted.socket_timeout or left)
        wanted.stack_timeout = min(left, wanted.stack_timeout or left)
        pika.SelectConnection.create_connection([wanted], self._done.append, self._loop)
        if not self.until(lambda: self._done, deadline + CLOSE):
            raise _Late("no answer in time")
        if isinstance(self._done[0], BaseException):
            raise self._done[0]
        self._connection = self._done[0]
        self._connection.add_on_close_callback(self._lost)
        self._connection.add_on_connection_blocked_callback(self._block)
        self._connection.add_on_connection_unblocked_callback(self._unblock)

    def _new_channel(self, deadline: float, closed: Callable[[Channel, Exception], None] | None = None) -> Channel:
        ready: list[Channel] = []
        channel: Channel = self._connection.channel(on_open_callback=ready.append)
        channel.add_on_close_callback(closed or self._lost)
        if not self.until(lambda: ready, deadline):
            raise self.error or _Late("no answer in time")
        return channel

    def _confirm(self, deadline: float) -> None:
        ready: list[object] = []
        self.channel.add_on_return_callback(lambda _, *told: self._returned(*told))
        self.channel.confirm_delivery(self._answer, ready.append)
        if not self.until(lambda: ready, deadline):
            raise self.error or _Late("no answer in time")

    def _answer(self, frame: Any) -> None:
        self._confirmed(frame.method.delivery_tag, frame.method.multiple, frame.method.NAME == "Basic.Ack")

    def _await_end(self) -> None:
        end = time.monotonic() + CLOSE
        while not self._connection.is_closed and (left := end - time.monotonic()) > 0:
            self.step(left)

    def _lost(self, _: object, reason: BaseException) -> None:
        self.error = self.error or reason

    def _block(self, *_: object) -> None:
        self.blocked = True

    def _unblock(self, *_: object) -> None:
        self.blocked = False


def _moved(connection: Any) -> tuple[int, int]:
    """What changes when a frame comes that is no heartbeat, or when what was written leaves."""
    checker = connection._heartbeat_checker  # noqa: SLF001 - see `write`
    beats = checker._heartbeat_frames_received if checker else 0  # noqa: SLF001 - see `write`
    return connection.frames_received - beats, connection._get_write_buffer_size()  # noqa: SLF001 - see `write`


def _drop(connection: Any, why: str) -> None:
    """Close the socket at once: pika does so for itself only, and its `close` waits for an answer without an end."""
    connection._terminate_stream(_Late(why))  # noqa: SLF001 - see above


def _nothing() -> None:
    """A timer that only ends a wait."""
