"""`RateLimit`: rows per second, as a token bucket that may run into debt. Pure: the time is an argument."""

from __future__ import annotations

from typing import Final

#: The rate holds over intervals of this many seconds, so that it is a rate and not an occasional burst.
PIECE: Final = 0.1


class RateLimit:
    """Allows rows unless it is in debt; sent rows are deducted, so a batch larger than the rate is paid off.

    Args:
        rows_per_second: more than 0; None: no limit.
    """

    def __init__(self, rows_per_second: float | None) -> None:
        self._rate = rows_per_second
        self._paid_until = float("-inf")

    def next(self, now: float) -> float:
        """Return when rows may be sent again: `now` or later, monotonic seconds."""
        return max(now, self._paid_until)

    def take(self, rows: int, now: float) -> None:
        """Count rows that are sent now. Unused time is not saved up."""
        if self._rate is not None:
            self._paid_until = max(now, self._paid_until) + rows / self._rate

    @property
    def piece(self) -> int | None:
        """Return the rows that make a good batch under this limit; None: any number."""
        return None if self._rate is None else max(1, int(self._rate * PIECE))
