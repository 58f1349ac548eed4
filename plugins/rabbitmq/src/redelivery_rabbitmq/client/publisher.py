"""A connection that publishes with confirms, driven by its user: without a thread, nothing happens between calls."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Literal, TypeVar

import pika
from pika.adapters.select_connection import IOLoop
from pika.channel import Channel
from pika.exceptions import ChannelClosedByBroker

from redelivery_rabbitmq.address import Address
from redelivery_rabbitmq.client import pika_private
from redelivery_rabbitmq.client.connection import CLOSE_TIMEOUT, ConnectionAbandoned, version_of
from redelivery_rabbitmq.client.parameters import connection_parameters
from redelivery_rabbitmq.errors import ERRORS, OPENING
from redelivery_rabbitmq.options import Settings

T = TypeVar("T")


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
    def unwritten(self) -> int:
        """Bytes that were written and have not left this process."""
        return 0 if self.error is not None else pika_private.unwritten(self._connection)

    @property
    def broker_version(self) -> tuple[int, ...]:
        """The version that the broker reports."""
        return version_of(self._connection.server_properties)

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

    def missing_error(self, kind: Literal["exchange", "queue"], name: str, deadline: float) -> BaseException | None:
        """Check that an exchange or a queue exists. Return None, or the error."""
        return self._refusal(
            lambda channel, answer: getattr(channel, f"{kind}_declare")(name, passive=True, callback=answer),
            deadline,
            f"no answer whether the {kind} {name!r} exists",
        )

    def is_stream(self, queue: str, deadline: float) -> bool | None:
        """Return whether a queue is a stream; None: it does not exist, or this user has no configure permission.

        A stream can be declared with this argument where it exists; none can be created with it (seen on 3.10.8, 4.0.5
        and 4.3.6).
        """
        arguments = {"x-queue-type": "stream", "x-max-priority": "never"}
        error = self._refusal(
            lambda channel, answer: channel.queue_declare(queue, durable=True, arguments=arguments, callback=answer),
            deadline,
            f"no answer whether the queue {queue!r} is a stream",
        )
        if error is None:
            return True
        differs = isinstance(error, ChannelClosedByBroker) and error.reply_text.find("inequivalent arg") >= 0
        return False if differs else None

    def _refusal(
        self, ask: Callable[[Any, Callable[[object], None]], None], deadline: float, late: str
    ) -> BaseException | None:
        """Ask on a separate channel, because a refusal closes it. Return None, or the error."""
        answers: list[object] = []
        try:
            channel: Any = self._open_channel(deadline, lambda _, reason: answers.append(reason))
            ask(channel, lambda _: answers.append(None))
            answer = self._await(answers, deadline, late)
            if channel.is_open:
                channel.close()
        except ERRORS as error:
            return error
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
        for end in (self._loop.deactivate_poller, self._loop.close):
            with suppress(*ERRORS, AssertionError):
                end()
        self.error = self.error or ConnectionAbandoned("closed")

    def _open(self, parameters: pika.ConnectionParameters, deadline: float) -> None:
        parameters.blocked_connection_timeout = None  # the deadlines of the batches are the bound
        # pika gives up a connection that does not open in time; it has no call that ends the attempt from outside.
        left = max(0.01, deadline - time.monotonic())
        parameters.socket_timeout = min(left, parameters.socket_timeout or left)
        parameters.stack_timeout = min(left, parameters.stack_timeout or left)
        results: list[Any] = []
        pika.SelectConnection.create_connection([parameters], results.append, self._loop)
        result = self._await(results, deadline + CLOSE_TIMEOUT)
        if isinstance(result, BaseException):
            raise result
        self._connection = result
        self._connection.add_on_close_callback(self._lost)
        self._connection.add_on_connection_blocked_callback(self._block)
        self._connection.add_on_connection_unblocked_callback(self._unblock)

    def _open_channel(self, deadline: float, on_close: Callable[[Channel, Exception], None] | None = None) -> Channel:
        opened: list[Channel] = []
        channel: Channel = self._connection.channel(on_open_callback=opened.append)
        channel.add_on_close_callback(on_close or self._lost)
        return self._await(opened, deadline)

    def _select_confirms(self, deadline: float) -> None:
        selected: list[object] = []
        self.channel.add_on_return_callback(lambda _, *returned: self._on_return(*returned))
        self.channel.confirm_delivery(self._confirm, selected.append)
        self._await(selected, deadline)

    def _await(self, answers: list[T], deadline: float, late: str = "no answer in time") -> T:
        """Wait for an answer. Raises the error of the connection, or ConnectionAbandoned."""
        if not self.until(lambda: answers, deadline):
            raise self.error or ConnectionAbandoned(late)
        return answers[0]

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
