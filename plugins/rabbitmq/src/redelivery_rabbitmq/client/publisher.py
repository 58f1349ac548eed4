"""A connection that publishes with confirms, driven by its user: without a thread, nothing happens between calls."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pika
from pika.adapters.select_connection import IOLoop
from pika.channel import Channel

from redelivery_rabbitmq.address import Address
from redelivery_rabbitmq.client import pika_private
from redelivery_rabbitmq.client.connection import CLOSE_TIMEOUT, ConnectionAbandoned
from redelivery_rabbitmq.client.parameters import connection_parameters
from redelivery_rabbitmq.errors import ERRORS, OPENING
from redelivery_rabbitmq.options import Settings


class Publisher:
    """One connection with one channel in confirm mode.

    Args:
        address, settings: what to connect to.
        deadline: `time.monotonic()` by which it must be open.
        on_confirm: called for each confirm: delivery tag, whether it covers all tags up to it, whether it is an ack.
        on_return: called for each message that no queue takes, before its confirm: method, properties, body.

    Attributes:
        error: why the connection or its channel closed; None while both are open.
        blocked: whether an alarm of the broker blocks publishing.

    Raises:
        BrokerError: it could not be opened.
    """

    def __init__(
        self,
        address: Address,
        settings: Settings,
        deadline: float,
        *,
        on_confirm: Callable[[int, bool, bool], None],
        on_return: Callable[[Any, Any, bytes], None],
    ) -> None:
        self._on_confirm = on_confirm
        self._on_return = on_return
        self._loop = IOLoop()
        self._loop.activate_poller()
        self._connection: Any = None
        self.error: BaseException | None = None
        self.blocked = False
        try:
            parameters = connection_parameters(address, settings)
            with OPENING.while_doing(f"connecting to {address.where}", safe=True):
                self._open(parameters, deadline)
                self.channel = self._open_channel(deadline)
                self._select_confirms(deadline)
        except BaseException:
            self.abort()
            raise

    @property
    def is_open(self) -> bool:
        """Whether the connection and its channel are open."""
        return self.error is None and bool(self._connection.is_open and self.channel.is_open)

    @property
    def unwritten(self) -> int:
        """Bytes that were written and have not left this process."""
        return 0 if self.error is not None else pika_private.unwritten(self._connection)

    @property
    def frame_max(self) -> int:
        """Size of the largest frame in bytes, as negotiated."""
        return int(self._connection.params.frame_max)

    def write(self, frames: bytes) -> None:
        """Write complete, encoded frames of our channel."""
        pika_private.write_frames(self._connection, frames)

    def step(self, wait: float) -> None:
        """Send, receive and answer heartbeats. Waits for the first event, up to `wait` seconds."""
        timer = self._loop.call_later(max(wait, 0.0), _nothing)
        try:
            self._loop.poll()
            self._loop.process_timeouts()
        except ERRORS as error:
            self.error = self.error or error
        finally:
            self._loop.remove_timeout(timer)

    def until(self, done: Callable[[], object], deadline: float) -> bool:
        """Step until `done()` is true, the connection is lost or the deadline has passed. Return whether it is true."""
        while not done():
            left = deadline - time.monotonic()
            if left <= 0 or self.error is not None:
                return bool(done())
            self.step(left)
        return True

    def exchange_error(self, exchange: str, deadline: float) -> BaseException | None:
        """Check that an exchange exists. Return None, or the error."""
        return self._declare_error(
            lambda channel, answered: channel.exchange_declare(exchange, passive=True, callback=answered),
            f"no answer whether the exchange {exchange!r} exists",
            deadline,
        )

    def queue_error(self, queue: str, deadline: float) -> BaseException | None:
        """Check that a queue exists. Return None, or the error."""
        return self._declare_error(
            lambda channel, answered: channel.queue_declare(queue, passive=True, callback=answered),
            f"no answer whether the queue {queue!r} exists",
            deadline,
        )

    def _declare_error(
        self, declare: Callable[[Any, Callable[[Any], None]], None], late: str, deadline: float
    ) -> BaseException | None:
        """Declare passively on a separate channel, because a refusal closes it."""
        answers: list[object] = []
        try:
            channel = self._open_channel(deadline, lambda _, reason: answers.append(reason))
            declare(channel, lambda _: answers.append(None))
            if not self.until(lambda: answers, deadline):
                return self.error or ConnectionAbandoned(late)
            if channel.is_open:
                channel.close()
        except ERRORS as error:
            return error
        answer = answers[0]
        return answer if isinstance(answer, BaseException) else None

    def close(self) -> None:
        """Close in order if the broker answers soon, else at once. Never raises."""
        with suppress(*ERRORS):
            if self._connection is not None and self._connection.is_open and not self.unwritten:
                self._connection.close()
                self._await_close()
        self.abort()

    def abort(self) -> None:
        """Close the socket at once; messages that were written may arrive or not."""
        connection = self._connection
        if connection is not None and not connection.is_closed:
            with suppress(*ERRORS, AssertionError):
                pika_private.terminate(connection, ConnectionAbandoned("given up"))
                self._await_close()
        with suppress(*ERRORS, AssertionError):
            self._loop.deactivate_poller()
        with suppress(*ERRORS, AssertionError):
            self._loop.close()
        self.error = self.error or ConnectionAbandoned("closed")

    def _open(self, parameters: pika.ConnectionParameters, deadline: float) -> None:
        parameters.blocked_connection_timeout = None  # the deadlines of the batches are the bound
        # pika gives up a connection that does not open in time; it has no call that ends the attempt from outside.
        left = max(0.01, deadline - time.monotonic())
        parameters.socket_timeout = min(left, parameters.socket_timeout or left)
        parameters.stack_timeout = min(left, parameters.stack_timeout or left)
        results: list[Any] = []
        pika.SelectConnection.create_connection([parameters], results.append, self._loop)
        if not self.until(lambda: results, deadline + CLOSE_TIMEOUT):
            raise ConnectionAbandoned("no answer in time")
        if isinstance(results[0], BaseException):
            raise results[0]
        self._connection = results[0]
        self._connection.add_on_close_callback(self._lost)
        self._connection.add_on_connection_blocked_callback(self._block)
        self._connection.add_on_connection_unblocked_callback(self._unblock)

    def _open_channel(self, deadline: float, on_close: Callable[[Channel, Exception], None] | None = None) -> Channel:
        opened: list[Channel] = []
        channel: Channel = self._connection.channel(on_open_callback=opened.append)
        channel.add_on_close_callback(on_close or self._lost)
        if not self.until(lambda: opened, deadline):
            raise self.error or ConnectionAbandoned("no answer in time")
        return channel

    def _select_confirms(self, deadline: float) -> None:
        selected: list[object] = []
        self.channel.add_on_return_callback(lambda _, *returned: self._on_return(*returned))
        self.channel.confirm_delivery(self._confirm, selected.append)
        if not self.until(lambda: selected, deadline):
            raise self.error or ConnectionAbandoned("no answer in time")

    def _confirm(self, frame: Any) -> None:
        self._on_confirm(frame.method.delivery_tag, frame.method.multiple, frame.method.NAME == "Basic.Ack")

    def _await_close(self) -> None:
        end = time.monotonic() + CLOSE_TIMEOUT
        while not self._connection.is_closed and (left := end - time.monotonic()) > 0:
            self.step(left)

    def _lost(self, _: object, reason: BaseException) -> None:
        self.error = self.error or reason

    def _block(self, *_: object) -> None:
        self.blocked = True

    def _unblock(self, *_: object) -> None:
        self.blocked = False


def _nothing() -> None:
    """End a wait."""
