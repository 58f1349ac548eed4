"""What is wanted is compared with what is there."""

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redelivery.codes import Code
from redelivery.contract.broker import Difference
from redelivery.contract.spec import UNLIMITED, DeliverySpec
from redelivery.errors import Fatal
from redelivery.kit.plans import (
    MARGIN,
    compared,
    deliveries,
    deliveries_note,
    linear_backoff,
    longest_wait,
    none_if_missing,
)
from redelivery.policy.backoff import wait_before_retry

WANTED = {"kind": "quorum", "limit": "15"}


def test_what_is_missing_is_made_with_what_is_wanted() -> None:
    item = compared("queue", "orders", WANTED, None)
    assert (item.action, item.attributes, item.differences) == ("create", WANTED, ())


def test_what_is_as_wanted_is_kept_whatever_else_it_has() -> None:
    assert compared("queue", "orders", WANTED, {**WANTED, "more": "x"}).action == "keep"


def test_each_attribute_that_differs_or_is_missing_is_named() -> None:
    item = compared("queue", "orders", WANTED, {"kind": "classic"}, also=[Difference("session", "false", "true")])
    assert item.action == "differs"
    assert [str(each) for each in item.differences] == [
        "kind is 'classic', not 'quorum'",
        "limit is 'missing', not '15'",
        "session is 'true', not 'false'",
    ]


def test_only_what_is_asked_for_is_compared() -> None:
    assert compared("queue", "orders", WANTED, {"kind": "classic", "limit": "15"}, only={"limit"}).action == "keep"


@pytest.mark.parametrize(
    ("retry", "expected"), [(None, 100), (UNLIMITED, 100), (0, 1 + MARGIN), (5, 6 + MARGIN), (500, 100)]
)
def test_the_brokers_limit_is_above_cores_and_within_its_own(retry: int | None, expected: int) -> None:
    assert deliveries(DeliverySpec(retry=retry), 100) == expected


@pytest.mark.parametrize(("retry", "count"), [(None, 0), (89, 0), (90, 1), (UNLIMITED, 1)])
def test_a_limit_that_ends_retries_early_is_told(retry: int | None, count: int) -> None:
    notes = deliveries_note(DeliverySpec(retry=retry), 100, "Carrier")
    assert len(notes) == count
    assert all("100 times" in note and "Carrier" in note for note in notes)


def test_what_does_not_exist_is_none_and_another_error_is_raised() -> None:
    def missing() -> str:
        raise Fatal("no queue", code=Code.NO_SUCH_DESTINATION)

    def denied() -> str:
        raise Fatal("no right", code=Code.NOT_AUTHORIZED)

    assert none_if_missing(lambda: "there") == "there"
    assert none_if_missing(missing) is None
    with pytest.raises(Fatal, match="no right"):
        none_if_missing(denied)


@pytest.mark.parametrize(
    ("spec", "longest"),
    [
        (DeliverySpec(), 0),
        (DeliverySpec(retry=0), 0),
        (DeliverySpec(retry=3, backoff_policy="exponential", backoff_delay=timedelta(seconds=1)), 8),
        (DeliverySpec(retry=3, backoff_policy="linear", backoff_delay=timedelta(seconds=2)), 6),
        (DeliverySpec(retry=UNLIMITED, backoff_delay=timedelta(seconds=1), backoff_max=timedelta(minutes=1)), 60),
        (DeliverySpec(retry_timeout=timedelta(hours=1), backoff_max=timedelta(seconds=20)), 20),
    ],
)
def test_the_longest_wait_is_that_of_the_last_retry_within_the_cap(spec: DeliverySpec, longest: float) -> None:
    assert longest_wait(spec) == timedelta(seconds=longest)


SECOND = timedelta(seconds=1)


@pytest.mark.parametrize(
    ("spec", "found"),
    [
        ({"backoff_max": 5 * SECOND}, (SECOND, 5 * SECOND)),
        ({"backoff_max": SECOND / 2}, (SECOND / 2, SECOND / 2)),
        ({"backoff_max": 5 * SECOND, "retry_delay_max": None}, (SECOND, 5 * SECOND)),
        ({}, (SECOND, timedelta(hours=1))),
        ({"backoff_delay": timedelta(0)}, None),
        ({"backoff_policy": "exponential"}, None),
        ({"backoff_policy": None}, None),
        ({"backoff_profile": "knative-code"}, None),
        ({"retry": 0}, None),
    ],
)
def test_a_linear_backoff_is_its_delay_and_its_cap(spec: dict[str, Any], found: object) -> None:
    whole: dict[str, Any] = {"retry": 3, "backoff_policy": "linear", "backoff_delay": SECOND, **spec}
    assert linear_backoff(DeliverySpec(**whole)) == found


@given(st.integers(1, 5000), st.integers(1, 20_000), st.integers(1, 30))
def test_every_wait_of_a_linear_backoff_is_what_it_says(delay: int, cap: int, n: int) -> None:
    milli = timedelta(milliseconds=1)
    spec = DeliverySpec(retry=50, backoff_policy="linear", backoff_delay=delay * milli, backoff_max=cap * milli)
    found = linear_backoff(spec)
    assert found is not None
    first, longest = found
    assert min(first * n, longest) == timedelta(seconds=wait_before_retry(spec, n, lambda: 0.5))
