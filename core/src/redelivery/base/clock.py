"""Time, as an argument: the engines never ask the system clock themselves."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What the engines need of time."""

    def monotonic(self) -> float:
        """Seconds that never go back; for deadlines and due times."""

    def wall_ms(self) -> int:
        """Milliseconds since the epoch; for contexts and reports."""

    def sleep(self, seconds: float) -> None:
        """Let time pass."""


class SystemClock:
    """The machine's clocks."""

    def monotonic(self) -> float:
        return time.monotonic()

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)
