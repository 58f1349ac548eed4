"""Decides when tolerated errors are too many: poison is dead-lettered, an outage fails the job.

Counts in bounded memory. A limit fails the job when it is exceeded, not when it is reached.
"""

from __future__ import annotations

from typing import Final

from redelivery.contract.spec import UNLIMITED, DeliverySpec

_WINDOWS: Final = {"minute": 60.0, "hour": 3600.0, "day": 86400.0}
#: The sliding window moves in this many steps.
_STEPS: Final = 60


class Tolerance:
    """Counts the errors of one task, or of a whole job, against a spec's limits."""

    def __init__(self, spec: DeliverySpec) -> None:
        self._limit = limit_of(spec.tolerance_limit)
        self._rate_limit = limit_of(spec.tolerance_rate_limit)
        self._window = _WINDOWS[spec.tolerance_rate_duration or "minute"]
        self._total = 0
        self._steps: dict[int, int] = {}

    def room(self, now: float, errors: int) -> int:
        """Return how many of so many errors that happen at `now` are within the limits."""
        rooms = [errors]
        if self._limit is not None:
            rooms.append(self._limit - self._total)
        if self._rate_limit is not None:
            rooms.append(self._rate_limit - self._recent(now))
        return max(0, min(rooms))

    def count(self, now: float, errors: int = 1) -> str | None:
        """Count errors that happened at `now` (monotonic seconds); return which limit they exceed, or None."""
        self._total += errors
        if self._limit is not None and self._total > self._limit:
            return f"{self._total} records failed for good, more than the errors.tolerance.limit of {self._limit}"
        if self._rate_limit is None:
            return None
        step = self._step(now)
        recent = self._recent(now) + errors
        self._steps[step] = self._steps.get(step, 0) + errors
        if recent > self._rate_limit:
            return (
                f"{recent} records failed for good within {self._window:g} s, "
                f"more than the errors.tolerance.rate.limit of {self._rate_limit}"
            )
        return None

    def _step(self, now: float) -> int:
        return int(now * _STEPS / self._window)

    def _recent(self, now: float) -> int:
        """Return the errors within the window, and forget older ones."""
        step = self._step(now)
        for old in [each for each in self._steps if each <= step - _STEPS]:
            del self._steps[old]
        return sum(self._steps.values())


def limit_of(limit: int | None) -> int | None:
    """Return a limit of a spec as a number of errors; None: unlimited."""
    return None if limit == UNLIMITED else limit
