"""`ReceiveOutage`: when a subscription asks again a broker that failed to give messages. Pure: time is an argument."""

from __future__ import annotations

import math
from collections.abc import Callable

from redelivery.errors import BrokerError, Fatal, Permanent, Unattributed
from redelivery.policy.breaker import Breaker


class ReceiveOutage:
    """Failures of receiving since the last success.

    Args:
        settings: its pauses.
        random: returns a number in [0, 1), for jitter: consumers that failed together ask apart.

    Attributes:
        since: time of the first failure, monotonic seconds; None: the last call succeeded.
        error: the last failure.
        next: when the broker is asked again, monotonic seconds.
    """

    def __init__(self, settings: Breaker, random: Callable[[], float]) -> None:
        self._first = self._pause = settings.pause.total_seconds()
        self._longest = settings.pause_max.total_seconds()
        self._random = random
        self.since: float | None = None
        self.error: BrokerError | None = None
        self.next = -math.inf

    def passes(self, error: BrokerError) -> bool:
        """Return whether an error may pass by itself; any other ends the subscription."""
        return not isinstance(error, Permanent | Unattributed | Fatal)

    def failed(self, error: BrokerError, now: float, *, asked: float = 0.0) -> bool:
        """Record a failure; return whether the outage begins with it.

        Args:
            error: one that passes.
            now: monotonic seconds.
            asked: seconds for which the broker asks to be left alone.
        """
        begins = self.since is None
        if begins:
            self.since, self._pause = now, self._first
        self.error = error
        self.next = now + max(asked, self._pause * (1 - self._random() / 4))
        self._pause = min(2 * self._pause, self._longest)
        return begins

    def succeeded(self, now: float) -> float | None:
        """Record that the broker answered; return the length of the outage that ends with it, in seconds."""
        since, self.since = self.since, None
        return None if since is None else now - since
