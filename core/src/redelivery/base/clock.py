"""Time, as an argument: the engines never ask the system clock themselves."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """The clock functions that the engines need."""

    def monotonic(self) -> float:
        """Return seconds that never go back; for deadlines and due times."""

    def wall_ms(self) -> int:
        """Return milliseconds since the epoch; for contexts and reports."""

    def sleep(self, seconds: float) -> None:
        """Wait for so many seconds."""


class SystemClock:
    """The machine's clocks."""

    def monotonic(self) -> float:
        return time.monotonic()

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)
