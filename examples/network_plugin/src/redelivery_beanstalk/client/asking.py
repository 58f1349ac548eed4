"""The base of the roles that ask and wait for the answer: one connection, opened when it is first needed."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from redelivery.errors import BrokerError
from redelivery.kit.roles import Resource
from redelivery_beanstalk.address import Address
from redelivery_beanstalk.client.connection import Connection
from redelivery_beanstalk.errors import TABLE
from redelivery_beanstalk.options import Settings

PATIENCE = 10.0  # seconds to wait for answers, where the contract gives no deadline
ROUND_TRIP = 3.0  # seconds to wait for one, where the contract gives little time


class Asking(Resource):
    """A role with a connection. After an error the connection is closed, and with it every lease ends."""

    #: What is written when the connection is opened, before anything else.
    greeting: Sequence[bytes] = ()

    def __init__(self, address: Address, settings: Settings) -> None:
        super().__init__("beanstalk", f"tube {address.tube!r}")
        self._address = address
        self._settings = settings
        self._connection: Connection | None = None

    @contextmanager
    def _connected(self, doing: str, *, safe: bool = False) -> Iterator[Connection]:
        """Open the connection, or go on with it. Raises BrokerError for what fails inside."""
        self.check_open(doing)
        try:
            with TABLE.while_doing(self.doing(doing), safe=safe):
                if self._connection is None:
                    self._connection = self._open()
                yield self._connection
        except BrokerError:
            self._release()
            raise

    def _open(self) -> Connection:
        with TABLE.while_doing(self.doing("connecting to"), safe=True):
            connection = Connection(self._address.host, self._address.port, self._settings.connect_timeout)
            try:
                for answer in connection.ask(self.greeting, until()):
                    answer.expect("USING", "WATCHING")
            except BaseException:
                connection.close()
                raise
        return connection

    def _release(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def until(seconds: float = PATIENCE) -> float:
    """When to stop waiting for answers, monotonic seconds."""
    return time.monotonic() + seconds
