"""`Circuit`: whether a subscription's handler fails for everything now (an outage) or for single messages (poison).

Pure: the time is an argument. Closed, it counts messages that failed in a row for one retriable reason. Enough of them
open it: messages stay in the queue, and one at a time tries whether the outage is over, after growing pauses. The first
success closes it. From then on it is on trial: a few failures open it again, until as many messages were handled.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, TypeAlias

from redelivery.errors import BrokerError, ConfigurationError, Fatal, Permanent, Unattributed

#: Kind, code and the client's own code of an error. Its text differs from message to message.
Reason: TypeAlias = tuple[str, str, str | None]

#: Reasons that are counted at a time. More of them are not one outage.
_MOST_REASONS: Final = 16
#: On trial, this part of the failures opens it again, and never fewer than `_LEAST`: those before the last are settled
#: as usual, so that even poison that fails retriably is given up in the end.
_TRIAL: Final = 5
_LEAST: Final = 2
#: Seconds between two messages that are settled as usual while it is open, where all others at hand have failed.
_LET_GO: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Breaker:
    """When a subscription takes failures for an outage, and what it does then.

    Attributes:
        failures: so many different messages in a row, with no success between them, that fail for one retriable reason
            are an outage.
        pause: before the first try. It doubles after each try that fails.
        pause_max: the longest pause between two tries: an outage is noticed to be over within it.
        patience: how long a run with `until_empty` waits in an outage before it ends with `DeliveryFailed`.

    Raises:
        ConfigurationError: a value is out of its range.
    """

    failures: int = 20
    pause: timedelta = timedelta(seconds=0.5)
    pause_max: timedelta = timedelta(seconds=4)
    patience: timedelta = timedelta(seconds=60)

    def __post_init__(self) -> None:
        if self.failures < _LEAST:
            text = f"a breaker needs {_LEAST} failures or more: one message says nothing of the others"
            raise ConfigurationError(f"failures={self.failures}: {text}")
        if not timedelta(0) < self.pause <= self.pause_max:
            raise ConfigurationError("a breaker's pause must be more than 0, and pause_max no less than pause")
        if self.patience < timedelta(0):
            raise ConfigurationError("a breaker's patience must be 0 or more")


class Circuit:
    """The state of a breaker, derived from what became of messages.

    Args:
        settings: see `Breaker`.
        random: gives a number in [0, 1), for jitter: consumers that failed together try apart.

    Attributes:
        since: when it opened, monotonic seconds; None: it is closed.
        error: the last failure that counted while it was open, or that opened it.
    """

    def __init__(self, settings: Breaker, random: Callable[[], float]) -> None:
        self._failures = settings.failures
        self._first = self._pause = settings.pause.total_seconds()
        self._longest = settings.pause_max.total_seconds()
        self._random = random
        self._failed: dict[Reason, set[Hashable]] = {}  # messages since the last success
        self._trial = 0  # successes that end the trial
        self._next = self._last_let_go = 0.0
        self.since: float | None = None
        self.error: BrokerError | None = None

    @property
    def is_open(self) -> bool:
        """Whether messages stay in the queue."""
        return self.since is not None

    def is_due(self, now: float) -> bool:
        """Whether a message may be tried now."""
        return now >= self._next

    def tried(self, now: float) -> None:
        """Note that a try begins. If it has no answer for long, another one may follow."""
        self._next = now + self._longest

    def learned_nothing(self, now: float) -> None:
        """Note that a try has ended and says nothing of the others: the next may follow at once."""
        self._next = now

    def lets_go(self, now: float) -> bool:
        """Whether a message may be settled as usual for once; asked only where all others at hand have failed, too.

        Poison that fails retriably may look like an outage: so it does not block the queue forever.
        """
        if now - self._last_let_go < _LET_GO:
            return False
        self._last_let_go = now
        return True

    def succeeded(self, *, began: float) -> bool:
        """Record that a message was handled; return whether that closes the circuit.

        Args:
            began: when its handler began, monotonic seconds. What began before the outage says nothing of it.
        """
        if self.since is None:
            if self._failed:
                self._failed.clear()
            if self._trial:
                self._trial -= 1
                self._pause = max(self._first, self._pause / 2) if self._trial else self._first
            return False
        if began < self.since:
            return False
        self.since = None
        self._trial = self._failures
        return True

    def counts(self, error: BrokerError) -> bool:
        """Whether an error may be an outage's; other errors are the message's own."""
        return not isinstance(error, Permanent | Unattributed | Fatal)

    def failed(self, error: BrokerError, message: Hashable, *, began: float, now: float, asked: float = 0.0) -> bool:
        """Record that a message could not be handled; return whether that opens the circuit.

        Args:
            error: permanent ones are the message's own, and do not count.
            message: tells messages apart: one that fails again and again counts once.
            began: when its handler began.
            now: monotonic seconds.
            asked: seconds for which what failed asks to be left alone.
        """
        if not self.counts(error):
            return False
        if self.since is not None:
            if began >= self.since:
                self.error = error
                self._wait(now, asked)
            return False
        failed = self._failed.setdefault(reason_of(error), set())
        failed.add(message)
        if len(failed) < (max(_LEAST, self._failures // _TRIAL) if self._trial else self._failures):
            if len(self._failed) > _MOST_REASONS:
                del self._failed[next(iter(self._failed))]
            return False
        self._failed.clear()
        self.since, self.error, self._last_let_go = now, error, now
        self._wait(now, asked)
        return True

    def _wait(self, now: float, asked: float) -> None:
        """Have the next try wait for the pause, shortened by up to a quarter; the pause after that is twice as long."""
        self._next = now + max(asked, self._pause * (1 - self._random() / 4))
        self._pause = min(2 * self._pause, self._longest)


def reason_of(error: BrokerError) -> Reason:
    """Return the reason by which failures of messages are compared."""
    return error.kind, error.code, error.native_code
