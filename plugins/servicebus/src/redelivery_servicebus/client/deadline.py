"""`Deadline`: one call's time, shared by the requests that it takes."""

from __future__ import annotations

import time
from typing import Final

from redelivery.codes import Code
from redelivery.errors import Retriable

#: Seconds below which no request is begun.
_LEAST: Final = 0.1


class Deadline:
    """Begins when it is created.

    Args:
        doing: what it is for, for errors.
        begin: seconds after which no further step is begun.
        end: seconds after which every request of a step ends: less than the contract's 30.
        step: seconds that one request may take.
    """

    def __init__(self, doing: str, *, begin: float, end: float, step: float) -> None:
        now = time.monotonic()
        self._doing = doing
        self._begin = now + begin
        self._end = now + end
        self._step = step

    def is_late(self) -> bool:
        """Return whether no further step may begin."""
        return time.monotonic() >= self._begin

    def left(self, *, reserve: float = 0.0) -> float:
        """Return the seconds for the next request, so that `reserve` seconds are left after it.

        Raises:
            Retriable: none are left.
        """
        left = min(self._step, self._end - reserve - time.monotonic())
        if left < _LEAST:
            text = f"servicebus: {self._doing}: no time was left to go on"
            raise Retriable(text, code=Code.DEADLINE_EXCEEDED)
        return left
