"""What follows from an error: pure functions of the spec, the error, the history, the time and a random number.

These functions do not wait, send or count: the engines carry out what is decided here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final

from redelivery.contract.spec import FOREVER, UNLIMITED, DeliverySpec
from redelivery.errors import BrokerError, Fatal, Permanent, Throttled, Unattributed
from redelivery.policy.backoff import wait_before_retry

#: One attempt may take this long where the spec does not say.
DEFAULT_TIMEOUT: Final = timedelta(seconds=30)
#: Seconds that a plugin may take to open a connection, which happens at its first use.
OPENING: Final = 30.0
#: Seconds after its deadline within which a plugin may still settle; later it has broken the contract.
GRACE: Final = 10.0
#: A sink's budget where the spec's own is unset or endless: a sink must never hold up the job forever.
SINK_RETRIES: Final = 5
SINK_RETRY_TIMEOUT: Final = timedelta(seconds=60)
#: How many waits are added up one by one; later ones count as much as the last of these.
_FORESEEN: Final = 1000


@dataclass(frozen=True, slots=True)
class TryAgain:
    """Send it again, not before `at` (monotonic seconds)."""

    at: float


@dataclass(frozen=True, slots=True)
class Isolate:
    """Send its halves again at once, a half of one row alone, to find the culprit; this does not count as a retry."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """It failed permanently; `why` says what ended it."""

    why: str


@dataclass(frozen=True, slots=True)
class Abort:
    """The destination will take no message: the job fails, and nothing is dead-lettered."""


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
    outage: float | None = None,
) -> Decision:
    """Decide what follows when an attempt to send a message failed, or several messages with the same history.

    Args:
        spec: the delivery spec that applies here.
        error: how this attempt failed.
        attempts: attempts made, this one included; isolating ones are not counted.
        first_attempt: when the first of them began, monotonic seconds.
        isolated: it was sent alone, so that only it can be the culprit.
        now: monotonic seconds.
        random: gives a number in [0, 1), for jitter.
        outage: seconds for which the destination has accepted nothing, once that is longer than all attempts of one
            message may take.
    """
    if isinstance(error, Fatal):
        return Abort()
    if isinstance(error, Unattributed) and not isolated:
        return Isolate()
    if isinstance(error, Permanent | Unattributed):
        return GiveUp("it can never be delivered")
    if outage is not None:
        return GiveUp(f"nothing was accepted there for {outage:.0f} s, longer than all attempts may take")
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
    """Return the seconds before the next attempt: the spec's backoff, or the broker's request, if that is longer."""
    return max(wait_before_retry(spec, attempts, random), asked_wait(spec, error))


def asked_wait(spec: DeliverySpec, error: BrokerError) -> float:
    """Return the seconds for which an error asks to be left alone, as far as the spec allows; mostly 0."""
    if not isinstance(error, Throttled):
        return 0.0
    most = spec.retry_after_max
    return error.retry_after if most is None else min(error.retry_after, most.total_seconds())


def attempt_timeout(spec: DeliverySpec) -> float:
    """Return the seconds that one attempt may take."""
    return (spec.timeout or DEFAULT_TIMEOUT).total_seconds()


def is_last(spec: DeliverySpec, *, attempts: int, first_attempt: float, now: float) -> bool:
    """Return whether an attempt that begins now is the last one, `attempts` having been made before it."""
    if spec.retry is None and spec.retry_timeout is None:
        return True
    if spec.retry is not None and spec.retry != UNLIMITED and attempts >= spec.retry:
        return True
    if spec.retry_timeout is None or spec.retry_timeout == FOREVER:
        return False
    return now >= (first_attempt if attempts else now) + spec.retry_timeout.total_seconds()


def budget_seconds(spec: DeliverySpec) -> float:
    """Return the seconds that all attempts of one record may take, with the waits between them; may be infinite."""
    return _budget(spec, attempt_timeout(spec))


def worst_case_seconds(spec: DeliverySpec) -> float:
    """Return the seconds after which a task has ended if its destination, or its sinks too, accept and answer nothing.

    The time counts from the moment when the destination stops accepting, or from the first row if it never accepted
    any. It is infinite where the spec asks for endless retries. Add to it the time that a working sink needs to store
    letters, and any pause that a broker requests.

    - One timeout passes before the first failure is known, and rows are sent until then.
    - Then all attempts are made, each as long as its timeout. One thread serves destination and sinks, so an attempt
      may wait for a call to another of them; the last attempt may wait for a neighbour's attempt, too.
    - Then come the sinks, one after the other. The attempt opens a sink that is not open yet.
    - At the end the connections are closed.
    """
    timeout, opening = attempt_timeout(spec), max(attempt_timeout(spec), OPENING)
    sinks = len(spec.dead_letter_sink)
    call = timeout + max(0, sinks - 1) * opening  # the last sink is not among them: if it fails, so does the job
    total = timeout + _budget(spec, call) + call
    for number in range(1, sinks + 1):
        call = timeout + max(sinks - 1, number) * opening
        total += _budget(for_sink(spec), call) + call
    return total + GRACE


def _budget(spec: DeliverySpec, call: float) -> float:
    """Return the seconds until a record is given up, if each attempt takes `call` seconds."""
    if spec.retry is None and spec.retry_timeout is None:
        return call
    by_count = by_time = math.inf
    if spec.retry is not None and spec.retry != UNLIMITED:
        by_count = (spec.retry + 1) * call + _waits(spec, spec.retry)
    if spec.retry_timeout is not None and spec.retry_timeout != FOREVER:
        by_time = spec.retry_timeout.total_seconds() + call
    return min(by_count, by_time)


def _waits(spec: DeliverySpec, retries: int) -> float:
    """Return the seconds that the waits before so many retries add up to, at most."""
    foreseen = sum(wait_before_retry(spec, n, lambda: 1.0) for n in range(1, min(retries, _FORESEEN) + 1))
    return foreseen + max(0, retries - _FORESEEN) * wait_before_retry(spec, max(1, retries), lambda: 1.0)


def for_sink(spec: DeliverySpec) -> DeliverySpec:
    """Return the spec that governs deliveries to a sink: the same backoff, and always a bounded budget."""
    return replace(
        spec,
        dead_letter_sink=(),
        tolerance=None,
        retry=SINK_RETRIES if spec.retry in {None, UNLIMITED} else spec.retry,
        retry_timeout=min(spec.retry_timeout or SINK_RETRY_TIMEOUT, SINK_RETRY_TIMEOUT),
    )


def retries_that_do_not_fit(spec: DeliverySpec) -> str | None:
    """Return a warning where the timeout will end the retries before their number does; else None."""
    if spec.retry is None or spec.retry_timeout is None or spec.retry_timeout == FOREVER:
        return None
    budget = spec.retry_timeout.total_seconds()
    needed = None if spec.retry == UNLIMITED or spec.retry > _FORESEEN else _waits(spec, spec.retry)
    if needed is not None and needed <= budget:
        return None
    waits = "" if needed is None else f" (their waits add up to {needed:g} s)"
    return (
        f"the retry timeout of {budget:g} s may end before the {spec.retry} retries{waits}; the first reached ends it"
    )
