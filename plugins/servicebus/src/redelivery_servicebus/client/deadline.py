"""`Deadline`: one call's time, shared out to the requests that it takes.

This file must not wait, nor call Service Bus.
"""

from __future__ import annotations

import time
from typing import Final

from redelivery.errors import Retriable

#: Seconds below which no request is begun.
_LEAST: Final = 0.1


class Deadline:
    """Begins when it is made.

    Args:
        doing: what it is for, for errors.
        begin: seconds after which nothing further is begun.
        end: seconds after which no request of what was begun goes on: less than the contract's 30.
        step: seconds that one request may take.
    """

    def __init__(self, doing: str, *, begin: float, end: float, step: float) -> None:
        now = time.monotonic()
        self._doing = doing
        self._begin = now + begin
        self._end = now + end
        self._step = step

    def is_late(self) -> bool:
        """Whether nothing further is to be begun."""
        return time.monotonic() >= self._begin

    def left(self, *, reserve: float = 0.0) -> float:
        """Seconds for the next request, so that `reserve` are left after it.

        Raises:
            Retriable: there are none.
        """
        left = min(self._step, self._end - reserve - time.monotonic())
        if left < _LEAST:
            raise Retriable(f"servicebus: {self._doing}: there was no time left to go on", native_code="LATE")
        return left
