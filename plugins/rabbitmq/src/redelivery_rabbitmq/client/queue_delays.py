"""Delays that a quorum queue keeps itself: from 4.3 on a failed message comes again after `min(min * failures, max)`.

The message stays in its queue: no retry queue, no copy. What fails is a rejected message, and one whose channel closed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from redelivery.contract.spec import DeliverySpec
from redelivery.kit.plans import linear_backoff
from redelivery_rabbitmq.options import Settings

#: From this version on; earlier ones ignore the arguments.
SINCE: Final = (4, 3)

_TYPE: Final = "x-delayed-retry-type"
_MIN: Final = "x-delayed-retry-min"
_MAX: Final = "x-delayed-retry-max"
#: The arguments of a queue that delays.
DELAY_ARGUMENTS: Final = (_TYPE, _MIN, _MAX)
#: Rejected messages are delayed, released ones are not; `all` delays both, `returned` only released ones.
_FAILED: Final = "failed"
_REJECTED: Final = (_FAILED, "all")
_MILLISECOND: Final = timedelta(milliseconds=1)
#: Largest number of milliseconds that we set: about 49 days.
_MOST: Final = 2**32 - 1


@dataclass(frozen=True, slots=True)
class QueueDelay:
    """The delay of one queue.

    Attributes:
        first, longest: milliseconds after the first failure, and at most.
    """

    first: int
    longest: int

    @classmethod
    def of_spec(cls, spec: DeliverySpec, settings: Settings, version: tuple[int, ...]) -> QueueDelay | None:
        """Return what a queue needs to keep the delays of a spec itself; None if it cannot."""
        linear = linear_backoff(spec)
        if linear is None or settings.queue_type != "quorum" or settings.delays == "emulated" or version < SINCE:
            return None
        first, longest = (min(-(-each // _MILLISECOND), _MOST) for each in linear)
        return cls(first, longest) if first else None

    @classmethod
    def of_arguments(cls, arguments: Mapping[str, str | int]) -> QueueDelay | None:
        """Return the delay of a queue with these arguments; None if it delays no rejected message."""
        if arguments.get("x-queue-type") != "quorum" or arguments.get(_TYPE) not in _REJECTED or _MIN not in arguments:
            return None
        first = int(arguments[_MIN])
        return cls(first, int(arguments.get(_MAX, first)))

    def __str__(self) -> str:
        return f"{self.first} ms more each time, up to {self.longest} ms"

    @property
    def arguments(self) -> dict[str, str | int]:
        """The arguments that make a queue delay like this."""
        return {_TYPE: _FAILED, _MIN: self.first, _MAX: self.longest}

    def after(self, failures: int) -> timedelta:
        """Return the delay after this many failures."""
        return min(self.first * failures, self.longest) * _MILLISECOND

    def keeps(self, delay: timedelta, failures: int) -> bool:
        """Whether the queue's delay after this many failures fits: never shorter, and at most twice as long."""
        return delay <= self.after(failures) <= 2 * delay
