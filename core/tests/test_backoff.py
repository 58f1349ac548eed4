"""The waits before a retry: golden vectors for every profile, and what holds for all of them."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies_spec import specs

from redelivery.contract.spec import DeliverySpec
from redelivery.errors import InvalidSpec
from redelivery.formats.specs import options
from redelivery.policy.backoff import cap_of, wait_before_retry

VECTORS = json.loads((Path(__file__).parent / "vectors" / "backoff.json").read_text(encoding="utf-8"))
EXPONENTIAL = DeliverySpec(backoff_policy="exponential", backoff_delay=timedelta(seconds=1))
NUMBERS = st.one_of(st.integers(1, 100), st.integers(1, 10**9), st.just(10**9))
#: Random numbers up to the largest below 1.
RANDOM = st.floats(0, 1, exclude_max=True)


def never() -> float:
    raise AssertionError("no random number is needed here")


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])
def test_each_profile_waits_as_its_golden_vector_says(vector: dict[str, Any]) -> None:
    spec = options.read(vector["spec"])
    rolls = vector.get("random")
    random = never if rolls is None else lambda: rolls
    waits = [wait_before_retry(spec, int(n), random) for n in vector["waits"]]
    assert waits == list(vector["waits"].values())


def test_the_golden_vectors_name_every_profile_and_policy() -> None:
    named = {(each["spec"].get("backoffProfile"), each["spec"].get("backoffPolicy")) for each in VECTORS}
    assert named >= {
        (profile, policy) for profile in (None, "knative", "knative-code") for policy in ("linear", "exponential", None)
    }
    assert ("connect", None) in named


def highest(spec: DeliverySpec) -> float:
    said = [cap.total_seconds() for cap in (spec.backoff_max, spec.retry_delay_max) if cap is not None]
    if said:
        return min(said)
    if spec.backoff_delay is None:
        return 60.0
    return max(3600.0, 2 * (spec.backoff_delay / timedelta(seconds=1)))


@given(specs(), NUMBERS, RANDOM)
def test_no_wait_is_negative_or_above_the_cap(spec: DeliverySpec, n: int, roll: float) -> None:
    assert 0.0 <= wait_before_retry(spec, n, lambda: roll) <= highest(spec)


@given(specs(), NUMBERS, st.integers(0, 10**9))
def test_waits_never_shrink_as_retries_go_on_jitter_apart(spec: DeliverySpec, n: int, more: int) -> None:
    assert wait_before_retry(spec, n, lambda: 1.0) <= wait_before_retry(spec, n + more, lambda: 1.0)


@given(NUMBERS)
def test_the_lower_of_two_caps_counts(n: int) -> None:
    low, high = timedelta(seconds=2), timedelta(seconds=9)
    for spec in (
        DeliverySpec(backoff_max=low, retry_delay_max=high, backoff_delay=low),
        DeliverySpec(backoff_max=high, retry_delay_max=low, backoff_delay=low),
    ):
        assert wait_before_retry(spec, n, never) == 2.0


@given(RANDOM)
def test_past_its_cap_the_connect_profile_is_uniform_below_it(roll: float) -> None:
    wait = wait_before_retry(DeliverySpec(retry_delay_max=timedelta(seconds=10)), 10**9, lambda: roll)
    assert wait == pytest.approx(10.0 * roll)


def test_backoff_delay_selects_the_formula_of_knative_and_its_absence_that_of_connect() -> None:
    assert wait_before_retry(DeliverySpec(), 1, never) == 0.3
    assert wait_before_retry(DeliverySpec(backoff_delay=timedelta(seconds=1)), 1, never) == 2.0


@given(specs(), NUMBERS, RANDOM)
def test_the_cap_is_told_and_no_wait_exceeds_it(spec: DeliverySpec, n: int, roll: float) -> None:
    cap = cap_of(spec)
    assert wait_before_retry(spec, n, lambda: roll) <= cap.total_seconds() or cap == timedelta.max


def test_the_cap_that_is_not_said_is_an_hour_or_connects_minute() -> None:
    assert cap_of(EXPONENTIAL) == timedelta(hours=1)
    assert cap_of(DeliverySpec()) == timedelta(minutes=1)
    assert cap_of(DeliverySpec(backoff_delay=timedelta(hours=2))) == timedelta(hours=4)
    assert cap_of(DeliverySpec(backoff_delay=timedelta.max)) == timedelta.max


def test_an_hour_caps_thirty_doublings_of_a_second() -> None:
    assert wait_before_retry(EXPONENTIAL, 30, never) == 3600.0


@pytest.mark.parametrize("n", [0, -1])
def test_retries_are_counted_from_1(n: int) -> None:
    with pytest.raises(ValueError, match="counted from 1"):
        wait_before_retry(EXPONENTIAL, n, never)


@pytest.mark.parametrize("profile", ["knative", "knative-code"])
def test_a_profile_of_knative_needs_a_delay(profile: Any) -> None:
    with pytest.raises(InvalidSpec, match="backoffDelay"):
        DeliverySpec(backoff_profile=profile)


def test_the_profile_of_connect_takes_no_delay() -> None:
    with pytest.raises(InvalidSpec, match="does not heed backoffDelay"):
        DeliverySpec(backoff_profile="connect", backoff_delay=timedelta(seconds=1))
