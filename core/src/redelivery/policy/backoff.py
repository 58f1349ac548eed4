"""How long to wait before a retry: the formulas of Knative's text, of Knative's code and of Connect.

Before retry n (n = 1 is the first), with `d` for backoffDelay:

============== =============== ================== ==================================
profile        linear          exponential        else
============== =============== ================== ==================================
`knative`      d * n           d * 2^n
`knative-code` d * (n - 1)     d * 2^(n - 1)
`connect`                                         300 ms * 2^(n - 1); once that is past the cap: uniform in [0, cap)
============== =============== ================== ==================================

backoffDelay selects Knative's formula, its absence Connect's; `backoffProfile` names one. A backoffPolicy that is not
said is exponential. Every wait is capped, whether the spec says so or not.
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
#: Knative's formulas have no cap of their own; this is ours, or the first wait where that is longer.
KNATIVE_CAP: Final = timedelta(hours=1)

_MICROSECOND: Final = timedelta(microseconds=1)
_SECOND: Final = 1_000_000  # microseconds


def wait_before_retry(spec: DeliverySpec, n: int, random: Callable[[], float]) -> float:
    """Seconds to wait before retry `n`: never negative, never above the cap, safe for any `n`.

    Args:
        spec: the delivery spec.
        n: 1 is the first retry.
        random: gives a number in [0, 1); asked only past Connect's cap.

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
    """Whose formula counts for this spec."""
    return spec.backoff_profile or ("connect" if spec.backoff_delay is None else "knative")


def cap_of(spec: DeliverySpec) -> timedelta:
    """What no wait exceeds: what the spec says in either dialect, the lower of both.

    Unsaid, it is a minute for Connect's waits, else an hour, or the first wait where that is longer.
    """
    return _MICROSECOND * min(_cap(spec), timedelta.max // _MICROSECOND)


def _cap(spec: DeliverySpec) -> int:
    """The cap in microseconds: as a number it does not overflow."""
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
    """From which number Knative's profiles count the retries."""
    return 1 if profile == "knative" else 0


def _doubled(first: int, times: int, cap: int) -> int:
    """`first * 2**times`, or anything above the cap where that is; the number never grows much beyond the cap."""
    if first == 0:
        return 0
    return first << min(times, (cap + 1).bit_length())


def _micros(duration: timedelta) -> int:
    # Whole numbers: they neither overflow nor lose a microsecond, as timedelta and float do.
    return duration // _MICROSECOND
