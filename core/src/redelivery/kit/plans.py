"""The native objects that a spec needs, compared with those that exist."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import timedelta
from typing import Final, TypeVar

from redelivery.codes import Code
from redelivery.contract.broker import Difference, NativeObject
from redelivery.contract.spec import UNLIMITED, DeliverySpec
from redelivery.errors import BrokerError
from redelivery.policy.backoff import cap_of, profile_of, wait_before_retry

__all__ = ["MARGIN", "compared", "deliveries", "deliveries_note", "linear_backoff", "longest_wait", "none_if_missing"]

T = TypeVar("T")

#: Deliveries that the broker allows beyond core's own limit: only handlers that never return to core get so far.
MARGIN: Final = 10
#: Retries after which no delay grows any more.
_MOST_DOUBLINGS: Final = 64


def compared(
    kind: str,
    name: str,
    wanted: Mapping[str, str],
    found: Mapping[str, str] | None,
    *,
    only: Collection[str] | None = None,
    also: Iterable[Difference] = (),
) -> NativeObject:
    """Compare a native object with what a spec needs.

    Args:
        kind: the kind of object: "queue".
        name: its name.
        wanted: its attributes as they should be; also what it is created with where it is missing.
        found: the attributes that it has; None: it does not exist. An attribute that is not listed is missing.
        only: the attributes that are compared; None: all wanted ones.
        also: differences found by other means.
    """
    if found is None:
        return NativeObject(kind=kind, name=name, action="create", attributes=wanted)
    differences = [
        Difference(attribute, value, found.get(attribute, "missing"))
        for attribute, value in wanted.items()
        if (only is None or attribute in only) and found.get(attribute) != value
    ]
    return NativeObject.compared(kind, name, wanted, [*differences, *also])


def deliveries(spec: DeliverySpec, most: int) -> int:
    """Return the native limit of deliveries that backs up a spec's own: above it, so that core ends first.

    Args:
        spec: the spec; without a number of retries it needs the highest limit.
        most: the highest limit that the broker takes, or the value that means unlimited.
    """
    if spec.retry is None or spec.retry == UNLIMITED:
        return most
    return min(spec.retry + 1 + MARGIN, most)


def deliveries_note(spec: DeliverySpec, most: int, broker: str) -> list[str]:
    """Return what `Plan.approximations` says where the broker's highest limit ends a spec's retries early."""
    if spec.retry is None or 0 <= spec.retry <= most - 1 - MARGIN:
        return []
    wanted = "without a limit" if spec.retry == UNLIMITED else f"{spec.retry} times"
    return [f"retried {wanted}, but {broker} itself dead-letters what it has delivered {most} times"]


def longest_wait(spec: DeliverySpec) -> timedelta:
    """Return the longest delay of a retry that a spec can ask for; 0 where it has no retries."""
    if not spec.retry and not spec.retry_timeout:
        return timedelta(0)
    retries = _MOST_DOUBLINGS if spec.retry is None or spec.retry == UNLIMITED else min(spec.retry, _MOST_DOUBLINGS)
    waits = (wait_before_retry(spec, number, lambda: 1.0) for number in range(1, retries + 1))
    return timedelta(seconds=min(max(waits, default=0.0), timedelta.max.total_seconds() // 2))


def linear_backoff(spec: DeliverySpec) -> tuple[timedelta, timedelta] | None:
    """Return the delay and the cap of a spec whose wait before retry n is `min(delay * n, cap)`; None for any other.

    Brokers that delay retries themselves often know only this formula.
    """
    if spec.backoff_policy != "linear" or profile_of(spec) != "knative" or not (spec.retry or spec.retry_timeout):
        return None
    delay, cap = spec.backoff_delay or timedelta(0), cap_of(spec)
    return (min(delay, cap), cap) if delay else None


def none_if_missing(look: Callable[[], T]) -> T | None:
    """Return the object found; None where the broker says that it does not exist.

    Raises:
        BrokerError: the broker gave another error.
    """
    try:
        return look()
    except BrokerError as error:
        if error.code is Code.NO_SUCH_DESTINATION:
            return None
        raise
