"""A connection on which messages are put one behind the other, while a thread reads what becomes of them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from redelivery_beanstalk.client.connection import Answer, Connection, put

CLOSE = 5.0  # seconds that the thread may take to end


class Pipeline:
    """Puts messages and tells their answers, which come in the order of the commands.

    Args:
        connection: used by nobody else.
        on_lost: called once, from the thread, when the connection has ended.
    """

    def __init__(self, connection: Connection, on_lost: Callable[[Exception], None]) -> None:
        self.lost: Exception | None = None
        self._connection = connection
        self._on_lost = on_lost
        self._tube = "default"
        self._waiting: deque[Callable[[Answer], None]] = deque()
        self._thread = threading.Thread(target=self._read, name="beanstalk-answers", daemon=True)
        self._thread.start()

    def put(self, tube: str, body: bytes, ttr: int, on_answer: Callable[[Answer], None], until: float) -> None:
        """Send a message to a tube. `on_answer` is called from the thread. Raises OSError."""
        data = put(body, ttr) + b"\r\n"
        if tube != self._tube:
            self._tube = tube
            self._waiting.append(lambda answer: answer.expect("USING") and None)
            data = b"use " + tube.encode() + b"\r\n" + data
        self._waiting.append(on_answer)
        self._connection.write(data, until)

    def close(self) -> None:
        """End the connection and the thread."""
        self._connection.end()
        self._thread.join(CLOSE)
        self._connection.close()

    def _read(self) -> None:
        try:
            while True:
                answer = self._connection.answer(None)
                self._waiting.popleft()(answer)
        except Exception as error:  # noqa: BLE001 - whatever ends the thread is told
            self.lost = error
            self._on_lost(error)
