"""The connection of a receiving role: opened when first needed, kept alive while nobody uses it, opened anew when lost.

pika's connection serves one thread at a time and sends no heartbeats while it is not used: a thread of ours does both
with care while a handler works for minutes. This file must not know what the connection is used for.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from pika.adapters.blocking_connection import BlockingConnection
from pika.exceptions import AMQPError

from redelivery.errors import BrokerError, Fatal
from redelivery_rabbitmq.address import Address, Settings
from redelivery_rabbitmq.client.publisher import opened, unless_silent
from redelivery_rabbitmq.errors import classified


class Link:
    """One connection. No I/O until it is used.

    Attributes:
        version: the broker's, known once it was opened.
    """

    def __init__(self, address: Address, settings: Settings) -> None:
        self.version: tuple[int, ...] = ()
        self._address = address
        self._settings = settings
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._connection: BlockingConnection | None = None
        self._closed = threading.Event()

    @contextmanager
    def using(self, doing: str, *, needs: str = "", wait: float = 0.0) -> Iterator[BlockingConnection]:
        """The connection, for the caller alone; what pika raises is one of our errors.

        Args:
            doing: for the error's text.
            wait: seconds that the broker may be silent besides those of the settings, as there may be no message.
            needs: the permissions that it takes; the broker's refusal does not say which is missing.
        """
        if self._closed.is_set() or self._pid != os.getpid():
            why = "is closed" if self._closed.is_set() else "was made by another process"
            raise Fatal(f"rabbitmq: {doing}: this {why}; open another", native_code="CLOSED")
        with self._lock:
            connection = self._open()
            try:
                with classified(doing), unless_silent(connection, self._settings.blocked_connection_timeout + wait):
                    yield connection
            except BrokerError as error:
                if error.native_code != _REFUSED or not needs:
                    raise
                raise error.reclassified(type(error), f"{error}; it takes {needs}") from error.__cause__

    def close(self) -> None:
        """Close it; what it still holds goes back to the broker. In a fork the parent's is left alone."""
        self._closed.set()
        if self._pid != os.getpid():
            return
        with self._lock, suppress(AMQPError, OSError):
            if self._connection is not None and self._connection.is_open:
                self._connection.close()

    def _open(self) -> BlockingConnection:
        connection = self._connection
        if connection is None or not connection.is_open:
            began = connection is not None
            connection = self._connection = opened(self._address, self._settings)
            self.version = _version(connection)
            if not began:
                threading.Thread(target=self._tend, name="redelivery-rabbitmq", daemon=True).start()
        return connection

    def _tend(self) -> None:
        """Answer heartbeats while nobody uses the connection."""
        while not self._closed.wait(_TEND):
            if self._lock.acquire(blocking=False):
                try:
                    connection = self._connection
                    if connection is not None and connection.is_open:
                        with suppress(AMQPError, OSError):  # whoever uses it next is told
                            connection.process_data_events(0)
                finally:
                    self._lock.release()


#: Seconds between two looks for heartbeats.
_TEND: Final = 1.0
#: The broker's code where a permission is missing.
_REFUSED: Final = "403"


def _version(connection: BlockingConnection) -> tuple[int, ...]:
    properties: Any = connection._impl.server_properties or {}  # noqa: SLF001 - pika tells it nowhere else
    parts = str(properties.get("version", "")).split("-")[0].split(".")
    return tuple(int(part) for part in parts[:3] if part.isdigit())
