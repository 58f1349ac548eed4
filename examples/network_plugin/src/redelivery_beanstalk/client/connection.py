"""A connection to beanstalkd: commands are written, and answers come in their order."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from redelivery_beanstalk.errors import Refused

#: Words that are followed by a body, whose size is the last number of the line.
WITH_BODY = frozenset({"RESERVED", "FOUND", "OK"})
#: Commands that are written before their answers are read.
AT_ONCE = 100


class Answer(NamedTuple):
    """One answer: `RESERVED 17 5` and five bytes are the word, the numbers and the body."""

    word: str
    numbers: tuple[str, ...] = ()
    body: bytes = b""

    def expect(self, *words: str) -> Answer:
        """Return it, if it has one of these words. Raises Refused."""
        if self.word not in words:
            raise Refused(self.word)
        return self

    @property
    def job(self) -> int:
        """The number of the job that it is about."""
        return int(self.numbers[0])

    @property
    def statistics(self) -> Mapping[str, str]:
        """The body of an answer to `stats`, `stats-tube` or `stats-job`, which is a list in YAML."""
        lines = (line.partition(": ") for line in self.body.decode().splitlines())
        return {name: value.strip('"') for name, colon, value in lines if colon}


class Connection:
    """One connection. A thread may write while another reads. Every call raises OSError when the connection is lost.

    Args:
        host, port: of the server.
        patience: seconds to wait for the connection.
    """

    def __init__(self, host: str, port: int, patience: float) -> None:
        self._socket = socket.create_connection((host, port), timeout=patience)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._readable = select.poll()
        self._readable.register(self._socket, select.POLLIN)
        self._buffer = bytearray()

    def write(self, data: bytes, until: float) -> None:
        """Write commands. After an error nothing is known of them, so the connection is of no more use."""
        self._socket.settimeout(max(until - time.monotonic(), 0.001))
        self._socket.sendall(data)

    def answer(self, until: float | None) -> Answer:
        """Return the next answer, waiting until a time (monotonic seconds), or for as long as the connection lasts."""
        word, *numbers = self._take_line(until).decode("ascii", "replace").split(" ")
        body = b""
        if word in WITH_BODY:
            size = int(numbers[-1])
            while len(self._buffer) < size + 2:
                self._read(until)
            body = bytes(self._buffer[:size])
            del self._buffer[: size + 2]
        return Answer(word, tuple(numbers), body)

    def ask(self, commands: Iterable[bytes], until: float) -> list[Answer]:
        """Write commands, 100 at once, and return their answers. More would fill the buffers of both sides."""
        lines, answers = list(commands), []
        for start in range(0, len(lines), AT_ONCE):
            part = lines[start : start + AT_ONCE]
            self.write(b"".join(line + b"\r\n" for line in part), until)
            answers += [self.answer(until) for _ in part]
        return answers

    def end(self) -> None:
        """End the connection, so that a thread that waits for an answer learns of it."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:  # it has ended already
            return

    def close(self) -> None:
        """Give the socket back. The server then returns what was reserved."""
        self._socket.close()

    def _take_line(self, until: float | None) -> bytes:
        while (end := self._buffer.find(b"\r\n")) < 0:
            self._read(until)
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 2]
        return line

    def _read(self, until: float | None) -> None:
        left = None if until is None else max(until - time.monotonic(), 0) * 1000
        if not self._readable.poll(left):
            raise TimeoutError("no answer")
        data = self._socket.recv(1 << 16)
        if not data:
            raise ConnectionResetError("the server has ended the connection")
        self._buffer += data


def put(body: bytes, ttr: int) -> bytes:
    """Return the command that stores a message; `Connection.ask` ends the line."""
    return b"put 1024 0 %d %d\r\n%b" % (ttr, len(body), body)
