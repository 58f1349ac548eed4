"""How long to wait before a retry: the formulas of Knative's text, of Knative's code and of Connect.

Before retry n (n = 1 is the first), with `d` for backoffDelay:

============== =============== ================== ==================================
profile        linear          exponential        else
============== =============== ================== ==================================
`knative`      d * n           d * 2^n
`knative-code` d * (n - 1)     d * 2^(n - 1)
`connect`                                         300 ms * 2^(n - 1); once that is past the cap: uniform in [0, cap)
============== =============== ================== ==================================

With backoffDelay Knative's formula applies, without it Connect's; `backoffProfile` names one explicitly. Without
backoffPolicy, the policy is exponential. Every wait is capped, even where the spec gives no cap.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Final

from redelivery.contract.spec import BackoffProfile, DeliverySpec

#: Connect's first wait.
CONNECT_FIRST: Final = timedelta(milliseconds=300)
#: Connect's cap where the spec names none.
CONNECT_CAP: Final = timedelta(seconds=60)
#: Knative's formulas define no cap; this is ours, or the first wait where that is longer.
KNATIVE_CAP: Final = timedelta(hours=1)

_MICROSECOND: Final = timedelta(microseconds=1)
_SECOND: Final = 1_000_000  # microseconds


def wait_before_retry(spec: DeliverySpec, n: int, random: Callable[[], float]) -> float:
    """Return the seconds to wait before retry `n`: never negative, never above the cap, safe for any `n`.

    Args:
        spec: the delivery spec.
        n: 1 is the first retry.
        random: returns a number in [0, 1); called only past Connect's cap.

    Raises:
        ValueError: n is below 1.
    """
    if n < 1:
        msg = f"retries are counted from 1, not from {n}"
        raise ValueError(msg)
    profile, cap = profile_of(spec), _cap(spec)
    if profile == "connect":
        wait = _doubled(_micros(CONNECT_FIRST), n - 1, cap)
        return (cap * random() if wait > cap else wait) / _SECOND
    delay = _micros(spec.backoff_delay or timedelta(0))
    turn = n - 1 + _start(profile)
    if spec.backoff_policy == "linear":
        return min(delay * turn, cap) / _SECOND
    return min(_doubled(delay, turn, cap), cap) / _SECOND


def profile_of(spec: DeliverySpec) -> BackoffProfile:
    """Return whose formula applies to this spec."""
    return spec.backoff_profile or ("connect" if spec.backoff_delay is None else "knative")


def cap_of(spec: DeliverySpec) -> timedelta:
    """Return the longest wait: the lower of the limits that the spec gives in either dialect.

    By default it is a minute for Connect's waits, else an hour, or the first wait where that is longer.
    """
    return _MICROSECOND * min(_cap(spec), timedelta.max // _MICROSECOND)


def _cap(spec: DeliverySpec) -> int:
    """Return the cap in microseconds: as a whole number it does not overflow."""
    said = [_micros(cap) for cap in (spec.backoff_max, spec.retry_delay_max) if cap is not None]
    if said:
        return min(said)
    profile = profile_of(spec)
    if profile == "connect":
        return _micros(CONNECT_CAP)
    delay = _micros(spec.backoff_delay or timedelta(0))
    first = delay if spec.backoff_policy == "linear" else delay << _start(profile)
    return max(_micros(KNATIVE_CAP), first)


def _start(profile: BackoffProfile) -> int:
    """Return the number from which Knative's profiles count the retries."""
    return 1 if profile == "knative" else 0


def _doubled(first: int, times: int, cap: int) -> int:
    """Return `first * 2**times`, or a number above the cap if that is above it; the number never grows much larger."""
    if first == 0:
        return 0
    return first << min(times, (cap + 1).bit_length())


def _micros(duration: timedelta) -> int:
    # Whole numbers: they neither overflow nor lose a microsecond, as timedelta and float do.
    return duration // _MICROSECOND
