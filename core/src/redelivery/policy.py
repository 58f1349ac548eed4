"""What follows from an error: pure functions of the spec, the error, the history, the time and a random number.

Nothing here waits, sends or counts: the engines do, on what is decided here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final

from redelivery.backoff import wait_before_retry
from redelivery.errors import BrokerError, Fatal, Permanent, Throttled, Unattributed
from redelivery.spec import FOREVER, UNLIMITED, DeliverySpec

#: One attempt may take this long where the spec does not say.
DEFAULT_TIMEOUT: Final = timedelta(seconds=30)
#: A sink's budget where the spec's own is unset or endless: a sink must never hold up the job for ever.
SINK_RETRIES: Final = 5
SINK_RETRY_TIMEOUT: Final = timedelta(seconds=60)
#: How many waits are added up, at most, to see whether the retries fit into the timeout.
_FORESEEN: Final = 1000


@dataclass(frozen=True, slots=True)
class TryAgain:
    """Send it again, not before `at` (monotonic seconds)."""

    at: float


@dataclass(frozen=True, slots=True)
class Isolate:
    """Send it again alone and at once, to learn whether it is the culprit; not counted as a retry."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """It failed for good; `why` says what ended it."""

    why: str


@dataclass(frozen=True, slots=True)
class Abort:
    """No message will be taken: the job fails, nothing is dead-lettered."""


Decision = TryAgain | Isolate | GiveUp | Abort


def decide(  # noqa: PLR0911 - a decision table reads best as one return a rule
    spec: DeliverySpec,
    error: BrokerError,
    *,
    attempts: int,
    first_attempt: float,
    isolated: bool,
    now: float,
    random: Callable[[], float],
) -> Decision:
    """What follows when a message's attempt failed.

    Args:
        spec: the delivery spec in force here.
        error: how this attempt failed.
        attempts: attempts made, this one included, isolating ones not counted apart.
        first_attempt: when the first of them began, monotonic seconds.
        isolated: it was sent alone.
        now: monotonic seconds.
        random: gives a number in [0, 1), for jitter.
    """
    if isinstance(error, Fatal):
        return Abort()
    if isinstance(error, Unattributed) and not isolated:
        return Isolate()
    if isinstance(error, Permanent | Unattributed):
        return GiveUp("it can never be delivered")
    if spec.retry is None and spec.retry_timeout is None:
        return GiveUp("no retries are asked for")
    if spec.retry is not None and spec.retry != UNLIMITED and attempts > spec.retry:
        return GiveUp(f"all {spec.retry} retries failed")
    at = now + wait_of(spec, error, attempts, random)
    if spec.retry_timeout is None or spec.retry_timeout == FOREVER:
        return TryAgain(at)
    end = first_attempt + spec.retry_timeout.total_seconds()
    if now >= end:
        return GiveUp(f"the retry timeout of {spec.retry_timeout.total_seconds():g} s is over")
    return TryAgain(min(at, end))


def wait_of(spec: DeliverySpec, error: BrokerError, attempts: int, random: Callable[[], float]) -> float:
    """Seconds to wait before the next attempt: the spec's backoff, or what the broker asks for, if that is longer."""
    wait = wait_before_retry(spec, attempts, random)
    if isinstance(error, Throttled):
        asked = error.retry_after
        if spec.retry_after_max is not None:
            asked = min(asked, spec.retry_after_max.total_seconds())
        wait = max(wait, asked)
    return wait


def attempt_timeout(spec: DeliverySpec) -> float:
    """Seconds that one attempt may take."""
    return (spec.timeout or DEFAULT_TIMEOUT).total_seconds()


def for_sink(spec: DeliverySpec) -> DeliverySpec:
    """The spec that governs deliveries to a sink: the same backoff, and always a bounded budget."""
    return replace(
        spec,
        dead_letter_sink=(),
        tolerance=None,
        retry=SINK_RETRIES if spec.retry in {None, UNLIMITED} else spec.retry,
        retry_timeout=min(spec.retry_timeout or SINK_RETRY_TIMEOUT, SINK_RETRY_TIMEOUT),
    )


def retries_that_do_not_fit(spec: DeliverySpec) -> str | None:
    """A warning where the timeout will end the retries before their number does; None where all is well."""
    if spec.retry is None or spec.retry_timeout is None or spec.retry_timeout == FOREVER:
        return None
    budget = spec.retry_timeout.total_seconds()
    if spec.retry == UNLIMITED or spec.retry > _FORESEEN:
        needed = None
    else:
        needed = sum(wait_before_retry(spec, n, lambda: 1.0) for n in range(1, spec.retry + 1))
    if needed is not None and needed <= budget:
        return None
    waits = "" if needed is None else f" (their waits add up to {needed:g} s)"
    return (
        f"the retry timeout of {budget:g} s may end before the {spec.retry} retries{waits}; the first reached ends it"
    )
