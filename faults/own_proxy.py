"""Our own proxy, for machines without toxiproxy and for what toxiproxy does not have: two threads per connection."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from faults.proxy import BYTES_PER_SECOND, CUT_AFTER, LATENCY, NetworkFault

_CHUNK: Final = 1 << 14
#: Closing a socket with this option sends RST.
_LINGER: Final = struct.pack("ii", 1, 0)


class _Connection:
    """A client's connection and the one to the broker.

    Attributes:
        fault: in effect; None: bytes pass.
        lost: bytes of it were dropped, or its peer is gone: it cannot go on.
    """

    def __init__(self, near: socket.socket, far: socket.socket, fault: NetworkFault | None) -> None:
        self.near, self.far = near, far
        self.fault = fault
        self.lost = False
        self._answered = 0
        self._ended: Callable[[], None] = lambda: None

    def serve(self, ended: Callable[[], None]) -> None:
        """Forward bytes in both directions, until it ends."""
        answers = threading.Thread(target=self._forward, args=(self.far, self.near, True), daemon=True)
        answers.start()
        self._forward(self.near, self.far, False)  # noqa: FBT003 - requests
        answers.join()
        self.near.close()
        self.far.close()
        ended()

    def end(self, *, reset: bool = False) -> None:
        """End it; its threads close the sockets."""
        for each in (self.near, self.far):
            with suppress(OSError):
                if reset:
                    each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER)
                each.shutdown(socket.SHUT_RDWR)

    def lose_peer(self) -> None:
        """End the broker's side only."""
        self.lost = True
        with suppress(OSError):
            self.far.shutdown(socket.SHUT_RDWR)

    def _forward(self, source: socket.socket, target: socket.socket, answers: bool) -> None:  # noqa: FBT001
        with suppress(OSError):
            while data := source.recv(_CHUNK):
                if not self._pass(target, data, answers=answers):
                    break
            if self.lost and answers:  # the client is not told that its peer is gone
                return
        self.end(reset=self.fault == "reset")

    def _pass(self, target: socket.socket, data: bytes, *, answers: bool) -> bool:
        """Forward some bytes as the fault wants; return whether the connection goes on."""
        fault = self.fault
        if self.lost or fault == "black-hole" or (fault == "black-hole-answers" and answers):
            self.lost = True
            return True
        if fault == "reset":
            return False
        if fault == "answers-cut" and answers:
            left = CUT_AFTER - self._answered
            self._answered += len(data)
            target.sendall(data[: max(left, 0)])
            return len(data) < left
        if fault == "slow":
            time.sleep(LATENCY + len(data) / BYTES_PER_SECOND)
        target.sendall(data)
        return True


class OwnProxy:
    """See `faults.proxy.NetworkProxy`.

    Attributes:
        alone: faults that only this proxy has.
    """

    kind = "own"
    alone: Final = frozenset({"half-open"})

    def __init__(self, port: int, host: str, target: int) -> None:
        self._target = (host, target)
        self._lock = threading.Lock()
        self._connections: set[_Connection] = set()
        self._fault: NetworkFault | None = None
        self._closed = False
        self._listener = socket.create_server(("127.0.0.1", port))
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def begin(self, fault: NetworkFault) -> None:
        self.end()
        with self._lock:
            for each in self._connections:
                if fault == "half-open":
                    each.lose_peer()
                else:
                    each.fault = fault
                if fault == "reset":
                    each.end(reset=True)
            self._fault = None if fault == "half-open" else fault

    def end(self) -> None:
        with self._lock:
            self._fault = None
            for each in self._connections:
                each.fault = None
                if each.lost:
                    each.end()

    def close(self) -> None:
        self._closed = True
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # or `accept` would keep the port open
        self._listener.close()
        self._thread.join()
        with self._lock:
            for each in self._connections:
                each.end()

    def _accept(self) -> None:
        while not self._closed:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(near,), daemon=True).start()

    def _serve(self, near: socket.socket) -> None:
        try:
            far = socket.create_connection(self._target)
        except OSError:
            near.close()
            return
        with self._lock:
            connection = _Connection(near, far, self._fault)
            self._connections.add(connection)
            if self._fault == "reset" or self._closed:
                connection.end(reset=True)
        connection.serve(lambda: self._forget(connection))

    def _forget(self, connection: _Connection) -> None:
        with self._lock:
            self._connections.discard(connection)
