"""`Link`: one sender or receiver of the SDK, opened when it is needed and dropped when it fails.

The SDK waits forever for a peer that accepts the connection and is silent. So another thread opens a link, and its user
waits for that thread for a limited time. A link that has been opening for too long is given up for another connection.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from socket import SHUT_RDWR
from typing import Any, Final, Generic, TypeVar

from azure.servicebus import ServiceBusReceiver, ServiceBusSender

from redelivery.codes import Code
from redelivery.errors import BrokerError, Permanent, Retriable
from redelivery.kit.leases import Lease
from redelivery_servicebus.client.private import close_at_once, socket_of
from redelivery_servicebus.errors import TABLE, is_lost

Handler = TypeVar("Handler", ServiceBusSender, ServiceBusReceiver)

#: Seconds after which an unused link is opened again. Service Bus detaches it after ten minutes; before that, within
#: the last 360 s of its hour, a token may run out that the SDK renews only where the link is used.
_IDLE: Final = 240.0
#: The native code of the error of a link that is still being opened.
OPENING: Final = "OPEN_TIMEOUT"
#: Seconds that a close may take: the SDK drains a receiver.
_CLOSE: Final = 5.0


class Link(Generic[Handler]):
    """One sender or receiver. One thread at a time uses it, in the process that created it.

    Args:
        make: returns a handler that is not open yet, without I/O.
        doing: what it is for, for errors: "sending to queue 'orders'".
        needs: the claim that it needs, for errors.
        patience: seconds that opening may take, over all waits for it.
        own_target: the link leads to the queue of the URL, and not to a row's own queue.
    """

    def __init__(
        self, make: Callable[[], Handler], doing: str, needs: str, patience: float, *, own_target: bool = True
    ) -> None:
        self.doing = doing
        self.needs = needs
        self.own_target = own_target
        self._make: Callable[[], Handler] = make
        self._patience = patience
        self._handler: Handler | None = None
        self._opening: _Opening[Handler] | None = None
        self._used = 0.0
        self._socket: Any = None

    def open(self, within: float) -> Handler:
        """Return the handler, open.

        Raises:
            BrokerError: it cannot be opened, or was not opened within this many seconds.
        """
        unused = self._handler is not None and time.monotonic() - self._used > _IDLE
        if unused or (self._opening is not None and self._opening.is_stale(self._patience)):
            self.drop()
        if self._handler is None:
            with TABLE.while_doing(self.doing, safe=True, needs=self.needs, own_target=self.own_target):
                self._opening = self._opening or _Opening(self._make())
                if not self._opening.done.wait(max(0.0, within)):  # it keeps opening until the next call
                    text = f"servicebus: {self.doing}: no link within {within:.1f} s; nothing was done"
                    raise Retriable(text, code=Code.DEADLINE_EXCEEDED, native_code=OPENING)
                opening, self._opening = self._opening, None
                if opening.error is not None:
                    raise opening.error
            self._handler, self._socket = opening.handler, socket_of(opening.handler)
        self._used = time.monotonic()
        return self._handler

    @contextmanager
    def using(self, within: float, doing: str | None = None, *, safe: bool = False, rows: int = 1) -> Iterator[Handler]:
        """Open it, and turn errors of the SDK into redelivery's. It is dropped after an error that may concern it.

        Args:
            within: as in `open`.
            doing: what is being done; None: what the link is for.
            safe: as in `ErrorTable.error`.
            rows: as in `ErrorTable.error`.
        """
        handler = self.open(within)
        try:
            with TABLE.while_doing(
                doing or self.doing, safe=safe, rows=rows, needs=self.needs, own_target=self.own_target
            ):
                yield handler
        except BrokerError as error:
            if error.code is not Code.TOO_LARGE and not is_lost(error):
                self.drop()
            raise

    def drop(self, *, wait: bool = False) -> None:
        """Close it; the next `open` opens another.

        Args:
            wait: wait until it is closed, for a limited time.
        """
        opening, self._opening = self._opening, None
        handler, self._handler = self._handler, None
        if opening is not None:
            _in_thread("servicebus-close", opening.abandon)
        if handler is not None:
            closing = _in_thread("servicebus-close", _close, handler, self._socket)
            if wait:
                closing.join(_CLOSE)


class SessionLink(Link[ServiceBusReceiver]):
    """A link to the next free session of a queue. It is opened once: another opening would be another session's.

    Attributes:
        leases: those of its messages.
        found: when it last gave a message, or was opened; monotonic seconds.
        locked: when its lock began, as far as is known; monotonic seconds.
        length: seconds that a lock lasts, as far as is known.
        renewal: the call that renewed it last, and when the lock ends since.
    """

    def __init__(self, make: Callable[[], ServiceBusReceiver], doing: str, needs: str, patience: float) -> None:
        super().__init__(make, doing, needs, patience)
        self.leases: list[Lease] = []
        self.found = self.locked = self.length = 0.0
        self.renewal: tuple[object, float] = (None, 0.0)
        self._is_open = False

    def open(self, within: float) -> ServiceBusReceiver:
        """As `Link.open`. Raises Permanent with the code LEASE_LOST where its session has been left."""
        if self._is_open:
            if self._handler is None:
                raise Permanent(f"servicebus: {self.doing}: the session was left", code=Code.LEASE_LOST)
            self._used = time.monotonic()  # a session that is not used loses its lock, and is never opened again
        elif self._opening is not None and not self._opening.done.is_set() and self._opening.is_stale(self._patience):
            self.drop()
            text = f"servicebus: {self.doing}: no answer within {self._patience:.0f} s; nothing was done"
            raise Retriable(text, code=Code.DEADLINE_EXCEEDED)
        handler = super().open(within)
        if not self._is_open:
            self._is_open = True
            self.found = time.monotonic()
            self.renewed(handler.session.locked_until_utc)
        return handler

    def renewed(self, until: datetime | None) -> None:
        """Note that the lock has begun, and lasts until this time."""
        self.locked = time.monotonic()
        self.length = 0.0 if until is None else until.timestamp() - time.time()

    def in_hand(self) -> list[Lease]:
        """Return the leases that are not settled."""
        self.leases = [each for each in self.leases if not each.is_settled]
        return self.leases


class _Opening(Generic[Handler]):
    """A handler that another thread opens."""

    def __init__(self, handler: Handler) -> None:
        self.handler: Handler = handler
        self.done = threading.Event()
        self.error: BaseException | None = None
        self._began = time.monotonic()
        _in_thread("servicebus-open", self._run)

    def is_stale(self, patience: float) -> bool:
        """Return whether it takes too long, or has been open and unused for too long."""
        is_open = self.done.is_set() and self.error is None
        return time.monotonic() - self._began > (_IDLE if is_open else patience)

    def abandon(self) -> None:
        """Cut it short, and close it."""
        socket, wait = socket_of(self.handler), 0.1  # before the SDK forgets the socket
        while not self.done.wait(wait):  # it may be connecting, and have no socket yet
            wait = min(2 * wait, _CLOSE)
            with suppress(Exception):
                socket = socket_of(self.handler) or socket
                socket.shutdown(SHUT_RDWR)  # wakes the thread that reads it
        _close(self.handler, socket_of(self.handler) or socket)

    def _run(self) -> None:
        try:
            self.handler.__enter__()
        except BaseException as error:  # noqa: BLE001 - the thread that waits raises it
            self.error = error
        self.done.set()


def _in_thread(name: str, target: Callable[..., None], *given: Any) -> threading.Thread:
    thread = threading.Thread(target=target, args=given, name=name, daemon=True)
    thread.start()
    return thread


def _close(handler: Any, socket: Any) -> None:
    with suppress(Exception):  # it is given up, so its errors do not matter
        close_at_once(handler)
    with suppress(Exception):  # the SDK forgets the socket of a connection that was cut
        socket.close()
