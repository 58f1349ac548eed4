"""One port for both protocols: it serves AMQP in one thread, and passes TLS to the administration endpoint.

Every thread uses the store only under `lock`.
"""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
import threading
from collections.abc import Callable, Mapping
from functools import partial

from proton import ProtonException

from servicebus_standin.admin import TLS
from servicebus_standin.amqp import Connection
from servicebus_standin.auth import Key
from servicebus_standin.box import StoreError
from servicebus_standin.store import Store

_READ = 1 << 18
_IDLE = 1.0

_log = logging.getLogger(__name__)


class Server:
    """Listens from its construction until it is closed. The store survives it.

    Args:
        store: the store to serve.
        keys: the shared access keys.
        lock: protects the store.
        port: port to listen on; 0: a free one.
        administer: called with each connection to the administration, which it then owns: TLS on the one port, and all
            on `admin_port`.
        admin_port: a port of its own for the administration; 0: a free one; None: it has none.
    """

    def __init__(
        self,
        store: Store,
        keys: Mapping[str, Key],
        lock: threading.RLock,
        port: int,
        administer: Callable[[socket.socket], None],
        admin_port: int | None = None,
    ) -> None:
        self.store = store
        self.keys = keys
        self.paused = False
        self.busy = 0
        self._lock = lock
        self._administer = administer
        self._connections: dict[socket.socket, Connection] = {}
        self._selector = selectors.DefaultSelector()
        self._bell, self._waiting = socket.socketpair()
        self._bell.settimeout(0)
        self._waiting.settimeout(0)
        self._listener = socket.create_server(("127.0.0.1", port))
        self._listener.settimeout(0)
        self.port: int = self._listener.getsockname()[1]
        self._admin_listener = None if admin_port is None else socket.create_server(("127.0.0.1", admin_port))
        self.admin_port = admin_port
        if self._admin_listener is not None:
            self._admin_listener.settimeout(0)
            self.admin_port = self._admin_listener.getsockname()[1]
        self._running = True
        self._selector.register(self._waiting, selectors.EVENT_READ)
        for each in filter(None, (self._listener, self._admin_listener)):
            self._selector.register(each, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="servicebus-stand-in", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Read the store now: another thread has changed it."""
        with contextlib.suppress(BlockingIOError):
            self._bell.send(b"!")

    def admit(self) -> None:
        """Let a client send. Raises StoreError if it is throttled."""
        if self.busy > 0:
            self.busy -= 1
            raise StoreError("com.microsoft:server-busy", 503, "The entity is being throttled. Error code: 50009.")

    def detach_all(self) -> None:
        """Detach every link of every connection. The caller holds the lock."""
        for connection in self._connections.values():
            connection.detach_all()

    def close(self) -> None:
        """Cut every connection without notice to the clients, and stop listening."""
        self._running = False
        self.wake()
        self._thread.join()
        for connection in self._connections.values():
            connection.gone()
        for each in filter(None, (*self._connections, self._listener, self._admin_listener, self._bell, self._waiting)):
            each.close()
        self._connections.clear()
        self._selector.close()

    def _run(self) -> None:
        due: float | None = None
        while self._running:
            wait = _IDLE if due is None or self.paused else min(max(due - self.store.clock(), 0.0), _IDLE)
            ready = self._selector.select(wait)
            with self._lock:
                for key, events in ready:
                    self._serve(key, events)
                if not self.paused:
                    due = self.store.advance()
                    for each, connection in list(self._connections.items()):
                        self._guard(each, partial(self._write, each, connection))
                    dues = [due, *(connection.due for connection in self._connections.values())]
                    due = min((each for each in dues if each is not None), default=None)
            if self.paused:
                threading.Event().wait(0.05)  # unread sockets stay readable

    def _serve(self, key: selectors.SelectorKey, events: int) -> None:
        """Do what a socket is ready for."""
        if key.fileobj is self._waiting:
            with contextlib.suppress(BlockingIOError):
                self._waiting.recv(4096)
        elif self.paused:
            return
        elif key.fileobj is self._listener:
            self._accept()
        elif key.fileobj is self._admin_listener:
            self._accept_administration(self._admin_listener)
        elif events & selectors.EVENT_READ and isinstance(key.fileobj, socket.socket):
            self._read(key.fileobj)

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError):
            accepted, _ = self._listener.accept()
            accepted.settimeout(0)
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._selector.register(accepted, selectors.EVENT_READ)

    def _accept_administration(self, listener: socket.socket) -> None:
        with contextlib.suppress(BlockingIOError):
            accepted, _ = listener.accept()
            accepted.settimeout(None)
            self._administer(accepted)

    def _read(self, each: socket.socket) -> None:
        connection = self._connections.get(each)
        if connection is None:
            self._guard(each, lambda: self._meet(each))
            connection = self._connections.get(each)
        if connection is not None:
            self._guard(each, lambda: self._feed(each, connection))

    def _meet(self, each: socket.socket) -> None:
        """Handle a new connection after its first byte."""
        if each.recv(1, socket.MSG_PEEK) == TLS:
            self._selector.unregister(each)
            each.settimeout(None)
            self._administer(each)
        else:
            self._connections[each] = Connection(self)

    def _feed(self, each: socket.socket, connection: Connection) -> None:
        data = each.recv(_READ)
        if not data:
            raise ConnectionResetError
        connection.receive(data)

    def _write(self, each: socket.socket, connection: Connection) -> None:
        connection.deliver()
        connection.tick(self.store.clock())
        blocked = False
        while not blocked and (data := connection.pending()):
            try:
                connection.sent(each.send(data))
            except BlockingIOError:
                blocked = True
        if connection.ended:
            raise ConnectionResetError
        self._selector.modify(each, selectors.EVENT_READ | (selectors.EVENT_WRITE if blocked else 0))

    def _guard(self, each: socket.socket, step: Callable[[], None]) -> None:
        """Close a connection that fails, so that it harms no other."""
        try:
            step()
        except BlockingIOError:
            return
        except Exception as error:  # noqa: BLE001 - on any error the other connections continue
            if not isinstance(error, OSError | ProtonException):
                _log.warning("the stand-in cut a connection: %r", error, exc_info=True)
            connection = self._connections.pop(each, None)
            if connection is not None:
                connection.gone()
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(each)
            each.close()
