"""A TCP proxy in front of a broker, for a harness. It refuses, silences or cuts connections, as networks do.

Statements about outages reach their place through it (`Place.outage_url`). Everything else connects to the broker.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Final

from redelivery_conformance.harness import Outage

_CHUNK: Final = 1 << 16


class Proxy:
    """Forwards bytes to a port of a host until it is closed.

    Attributes:
        port: a port of this host; connections to it reach the broker.
        target: the broker's host and port.
    """

    def __init__(self, host: str, port: int) -> None:
        self.target = (host, port)
        self._answering = threading.Event()
        self._answering.set()
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._accept_on(self._listener)

    def outage(self, kind: Outage) -> AbstractContextManager[None]:
        """Simulate this kind of outage for the length of the `with` block; see `Place.outage`."""
        ways: dict[Outage, Callable[[], AbstractContextManager[None]]] = {
            "refused": self.refused,
            "silent": self.silent,
            "reset": self.reset,
        }
        return ways[kind]()

    @contextmanager
    def refused(self) -> Iterator[None]:
        """End every connection and refuse new ones."""
        self._stop_listening()
        self.cut()
        try:
            yield
        finally:
            self._listener = socket.create_server(("127.0.0.1", self.port))
            self._accept_on(self._listener)

    @contextmanager
    def silent(self) -> Iterator[None]:
        """Forward requests and hold every answer back. At the end the answers arrive late."""
        self._answering.clear()
        try:
            yield
        finally:
            self._answering.set()

    @contextmanager
    def reset(self) -> Iterator[None]:
        """Cut every connection once; accept new ones at once."""
        self.cut()
        yield

    def cut(self) -> None:
        """End every connection."""
        with self._lock:
            found, self._open = self._open, set()
        for each in found:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Refuse connections from now on."""
        self._stop_listening()
        self.cut()
        self._answering.set()

    def _stop_listening(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # or `accept` would keep the port open
        self._listener.close()

    def _accept_on(self, listener: socket.socket) -> None:
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                near, _ = listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(self.target)
            except OSError:
                near.close()
                continue
            threading.Thread(target=self._serve, args=(near, far), daemon=True).start()

    def _serve(self, near: socket.socket, far: socket.socket) -> None:
        """Serve one connection until it ends."""
        with near, far:
            with self._lock:
                if self._listener.fileno() < 0:  # it arrived while the port was closed
                    return
                self._open |= {near, far}
            answers = threading.Thread(target=self._pass_on, args=(far, near, self._answering), daemon=True)
            answers.start()
            self._pass_on(near, far, None)
            answers.join()
            with self._lock:
                self._open -= {near, far}

    @staticmethod
    def _pass_on(source: socket.socket, target: socket.socket, gate: threading.Event | None) -> None:
        """Forward bytes, and the end of the stream, while the gate is open."""
        with suppress(OSError):
            while data := source.recv(_CHUNK):
                if gate:
                    gate.wait()
                target.sendall(data)
        if gate:
            gate.wait()  # it also holds back the end of a connection that the broker closes
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
