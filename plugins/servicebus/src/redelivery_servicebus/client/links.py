"""`Link`: one sender or receiver of the SDK, opened when it is needed and dropped when it fails.

The SDK waits without end for a peer that takes the connection and says nothing, so a link is opened by a thread of its
own, and whoever needs it waits for that with a bound. What has been opening for too long is given up for another
connection. This file must not send, receive, retry, nor know an error.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from socket import SHUT_RDWR
from typing import Any, Final, Generic, TypeVar

from azure.servicebus import ServiceBusReceiver, ServiceBusSender

from redelivery.errors import Fatal, Retriable
from redelivery_servicebus.client.private import close_at_once, socket_of
from redelivery_servicebus.errors import classified

Handler = TypeVar("Handler", ServiceBusSender, ServiceBusReceiver)

#: Seconds after which an unused link is opened anew. Service Bus detaches it after ten minutes; before that, within the
#: last 360 s of its hour, a token may run out that the SDK renews only where the link is used.
_IDLE: Final = 240.0
#: Seconds that a close may take: the SDK drains a receiver.
_CLOSE: Final = 5.0


class Link(Generic[Handler]):
    """Used by one thread at a time, in the process that made it.

    Args:
        make: gives a handler that is not open yet; no I/O.
        doing: what it is for, for errors.
        claim: what it needs.
        patience: seconds that opening may take, however often it was waited for.
    """

    def __init__(self, make: Callable[[], Handler], doing: str, claim: str, patience: float) -> None:
        self.doing = doing
        self.claim = claim
        self._make: Callable[[], Handler] = make
        self._patience = patience
        self._handler: Handler | None = None
        self._opening: _Opening[Handler] | None = None
        self._used = 0.0
        self._socket: Any = None
        self._pid = os.getpid()

    def open(self, within: float) -> Handler:
        """The handler, open.

        Raises:
            BrokerError: it cannot be opened, or was not within so many seconds.
        """
        if self._pid != os.getpid():
            raise Fatal(
                f"servicebus: {self.doing}: this was made by another process; open another", native_code="CLOSED"
            )
        unused = self._handler is not None and time.monotonic() - self._used > _IDLE
        if unused or (self._opening is not None and self._opening.is_stale(self._patience)):
            self.drop()
        if self._handler is None:
            self._opening = self._opening or _Opening(self._make)
            if not self._opening.done.wait(max(0.0, within)):  # it goes on; whoever asks next finds it further
                text = f"servicebus: {self.doing}: no link within {within:.1f} s; nothing was done"
                raise Retriable(text, native_code="OPEN_TIMEOUT")
            opening, self._opening = self._opening, None
            with classified(self.doing, claim=self.claim, asked=False):
                self._handler = opening.result()
            self._socket = socket_of(self._handler)
        self._used = time.monotonic()
        return self._handler

    def drop(self, *, wait: bool = False) -> None:
        """Close it; the next `open` makes another. In a fork the parent's is forgotten, and left as it is."""
        opening, self._opening = self._opening, None
        handler, self._handler = self._handler, None
        if self._pid != os.getpid():
            return
        if opening is not None:
            opening.abandon()
        if handler is not None:
            given = (handler, self._socket)
            closing = threading.Thread(target=_close, args=given, name="servicebus-close", daemon=True)
            closing.start()
            if wait:
                closing.join(_CLOSE)


class _Opening(Generic[Handler]):
    """A handler that is being opened, in a thread of its own."""

    def __init__(self, make: Callable[[], Handler]) -> None:
        self.done = threading.Event()
        self._make: Callable[[], Handler] = make
        self._began = time.monotonic()
        self._lock = threading.Lock()
        self._abandoned = False
        self._handler: Handler | None = None
        self._error: BaseException | None = None
        threading.Thread(target=self._run, name="servicebus-open", daemon=True).start()

    def is_stale(self, patience: float) -> bool:
        """Whether it takes too long, or nobody has asked for what came of it."""
        is_open = self.done.is_set() and self._error is None
        return time.monotonic() - self._began > (_IDLE if is_open else patience)

    def result(self) -> Handler:
        """The open handler, or what was raised."""
        if self._error is not None:
            raise self._error
        if self._handler is None:
            raise RuntimeError("it is not open yet")
        return self._handler

    def abandon(self) -> None:
        """Nobody waits for it any more: it is cut short, or closed."""
        self._abandoned = True
        socket = socket_of(self._handler)  # before the SDK forgets it
        threading.Thread(target=self._end, args=(socket,), name="servicebus-close", daemon=True).start()

    def _run(self) -> None:
        try:
            self._handler = self._make()
            self._handler.__enter__()
        except BaseException as error:  # noqa: BLE001 - told to whoever waits
            self._error = error
        self.done.set()
        if self._abandoned:
            self._close()

    def _end(self, socket: Any) -> None:
        end = time.monotonic() + _CLOSE
        while not self.done.wait(0.1) and time.monotonic() < end:  # it may be connecting, and have no socket yet
            with suppress(Exception):
                socket = socket_of(self._handler) or socket
                socket.shutdown(SHUT_RDWR)  # wakes the thread that reads it
        if self.done.is_set():
            self._close()
            with suppress(Exception):
                socket.close()

    def _close(self) -> None:
        with self._lock:
            handler, self._handler = self._handler, None
        if handler is not None:
            _close(handler, socket_of(handler))


def _close(handler: Any, socket: Any) -> None:
    with suppress(Exception):  # it is given up; what the other side thinks of it ends with the connection
        close_at_once(handler)
    with suppress(Exception):  # the SDK forgets the socket of a connection that was cut
        socket.close()
