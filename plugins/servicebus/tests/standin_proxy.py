"""A port in front of a stand-in: slow or silent, as networks are."""

from __future__ import annotations

import queue
import socket
import threading
import time
from contextlib import suppress
from typing import Self


class Proxy:
    """Passes bytes on.

    Args:
        port: of the stand-in.
        delay: seconds that each byte is on its way, there and back alike.

    Attributes:
        silent: so many of the next connections are taken, and not answered.
        held: those.
        taken: connections so far.
    """

    def __init__(self, port: int, *, delay: float = 0.0) -> None:
        self._target = port
        self._delay = delay
        self.silent = 0
        self.held: list[socket.socket] = []
        self.taken = 0
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        threading.Thread(target=self._run, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for each in (self._listening, *self.held):
            each.close()

    def _run(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listening.accept()
                self.taken += 1
                if self.silent:
                    self.silent -= 1
                    self.held.append(near)
                    continue
                far = socket.create_connection(("127.0.0.1", self._target))
                for given in ((near, far), (far, near)):
                    threading.Thread(target=self._pass, args=given, daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        waiting: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()
        threading.Thread(target=self._read, args=(source, waiting), daemon=True).start()
        with suppress(OSError):
            while True:
                due, data = waiting.get()
                time.sleep(max(0.0, due - time.monotonic()))
                if not data:
                    break
                target.sendall(data)
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _read(self, source: socket.socket, waiting: queue.SimpleQueue[tuple[float, bytes]]) -> None:
        data = b"-"
        while data:
            try:
                data = source.recv(65_536)
            except OSError:
                data = b""
            waiting.put((time.monotonic() + self._delay, data))
