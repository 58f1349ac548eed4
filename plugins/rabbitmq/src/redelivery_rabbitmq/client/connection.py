"""Blocking connections: bounded in time, dropped when silent, kept alive by heartbeats, opened again when lost."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final

from pika.adapters.blocking_connection import BlockingConnection
from pika.exceptions import AMQPConnectionError, AMQPError

from redelivery.kit.roles import Resource
from redelivery_rabbitmq.address import Address
from redelivery_rabbitmq.client import field_tables, pika_private
from redelivery_rabbitmq.client.parameters import connection_parameters
from redelivery_rabbitmq.errors import ERRORS, OPENING, TABLE
from redelivery_rabbitmq.options import Settings

field_tables.install()

#: Seconds that an orderly close may take before the socket is closed.
CLOSE_TIMEOUT: Final = 2.0
#: Seconds between two reads of an unused connection, which answer heartbeats.
_HEARTBEAT_CHECK: Final = 1.0


class ConnectionAbandoned(AMQPConnectionError):
    """We closed the connection: an answer did not come in time, or a call was interrupted."""


class BoundedConnection(BlockingConnection):
    """pika's blocking connection with a bounded `close`: a resource alarm or a frozen broker never answers it."""

    def close(self, reply_code: int = 200, reply_text: str = "Normal shutdown") -> None:
        # While pika waits for an answer it runs only the timers of the connection beneath, not those of this one.
        beneath = pika_private.implementation(self)
        late = ConnectionAbandoned("no answer to the close")
        timer = beneath.ioloop.call_later(CLOSE_TIMEOUT, lambda: pika_private.terminate(beneath, late))
        try:
            super().close(reply_code, reply_text)
        finally:
            beneath.ioloop.remove_timeout(timer)


def open_connection(address: Address, settings: Settings) -> BlockingConnection:
    """Open a connection. Raises BrokerError, ConfigurationError."""
    parameters = connection_parameters(address, settings)
    with OPENING.while_doing(f"connecting to {address.where}", safe=True):
        return pika_private.opened(BoundedConnection, parameters)


@contextmanager
def dropped_when_silent(connection: BlockingConnection, seconds: float) -> Iterator[None]:
    """Drop the connection if nothing moves on it for this long (twice this long at most) while entered.

    Heartbeats reveal a lost connection much later, and never reveal a queue that does not answer.
    """
    beneath = pika_private.implementation(connection)
    last = pika_private.progress(beneath)
    timer: Any = None

    def check() -> None:
        nonlocal last, timer
        if (now := pika_private.progress(beneath)) == last:
            pika_private.terminate(beneath, ConnectionAbandoned(f"no answer for {seconds:g} s"))
            return
        last = now
        timer = beneath.ioloop.call_later(seconds, check)

    timer = beneath.ioloop.call_later(seconds, check)
    try:
        yield
    finally:
        beneath.ioloop.remove_timeout(timer)


def drop(connection: BlockingConnection) -> None:
    """Close the socket at once: a call was interrupted, and what the broker has sent since then is unknown."""
    if connection.is_closed:
        return
    with suppress(*ERRORS, AssertionError):
        pika_private.terminate(pika_private.implementation(connection), ConnectionAbandoned("given up"))
        connection.process_data_events(0)


class QueueRole(Resource):
    """Base of the roles that work on one queue. Opens a connection when first used, and another after a loss.

    pika's connection serves one thread at a time and sends no heartbeats while it is unused. A lock ensures the first,
    and a thread answers heartbeats while a handler works for minutes.

    Attributes:
        broker_version: known once the connection was opened.
    """

    def __init__(self, address: Address, settings: Settings) -> None:
        super().__init__("rabbitmq", f"queue {address.queue!r}")
        self.broker_version: tuple[int, ...] = ()
        self._address = address
        self._settings = settings
        self._lock = threading.RLock()
        self._connection: BlockingConnection | None = None

    @contextmanager
    def connected(self, what: str, *, needs: str = "", wait: float = 0.0) -> Iterator[BlockingConnection]:
        """Lend the connection to this thread alone, and turn pika's errors into ours.

        Args:
            what: what the caller does with the queue, for the text of errors: "receiving from".
            needs: the permissions that this takes; the broker does not say which one is missing.
            wait: seconds that the broker may be silent beyond `blocked_connection_timeout`, because a queue is empty.
        """
        self.check_open(what)
        with self._lock:
            connection = self._opened()
            silence = self._settings.blocked_connection_timeout + wait
            with TABLE.while_doing(self.doing(what), needs=needs), dropped_when_silent(connection, silence):
                yield connection

    def _opened(self) -> BlockingConnection:
        connection = self._connection
        if connection is None or not connection.is_open:
            is_first = connection is None
            connection = self._connection = open_connection(self._address, self._settings)
            self.broker_version = version_of(pika_private.server_properties(connection))
            if is_first:
                threading.Thread(target=self._answer_heartbeats, name="redelivery-rabbitmq", daemon=True).start()
        return connection

    def _answer_heartbeats(self) -> None:
        while not self.sleep_unless_closed(_HEARTBEAT_CHECK):
            if self._lock.acquire(blocking=False):
                try:
                    connection = self._connection
                    if connection is not None and connection.is_open:
                        with suppress(AMQPError, OSError):  # the next user of the connection sees the error
                            connection.process_data_events(0)
                finally:
                    self._lock.release()

    def _release(self) -> None:
        with self._lock, suppress(AMQPError, OSError):
            if self._connection is not None and self._connection.is_open:
                self._connection.close()  # unacknowledged messages go back to their queues


def version_of(server_properties: Mapping[str, Any] | None) -> tuple[int, ...]:
    """Return the version that a broker calls itself when it is connected to."""
    parts = str((server_properties or {}).get("version", "")).split("-")[0].split(".")
    return tuple(int(part) for part in parts[:3] if part.isdigit())
