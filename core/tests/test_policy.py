"""What follows from an error, as properties of a pure function."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redelivery.contract.spec import FOREVER, UNLIMITED, DeliverySpec, Sink
from redelivery.errors import Ambiguous, BrokerError, Fatal, Permanent, Retriable, Throttled, Unattributed
from redelivery.policy.decisions import (
    SINK_RETRIES,
    SINK_RETRY_TIMEOUT,
    Abort,
    Decision,
    GiveUp,
    Isolate,
    TryAgain,
    decide,
    for_sink,
    retries_that_do_not_fit,
)

transient = st.sampled_from([Retriable("r"), Ambiguous("a"), Throttled("t", retry_after=2.0)])
SECOND = timedelta(seconds=1)


def decided(spec: DeliverySpec, error: BrokerError, **given: object) -> Decision:
    facts: dict[str, object] = {"attempts": 1, "first_attempt": 0.0, "isolated": False, "now": 0.0}
    return decide(spec, error, random=lambda: 0.0, **{**facts, **given})  # type: ignore[arg-type]  # facts by name


@given(transient, st.integers(1, 100))
def test_nothing_is_retried_unless_asked_for(error: BrokerError, attempts: int) -> None:
    assert isinstance(decided(DeliverySpec(), error, attempts=attempts), GiveUp)


@given(transient, st.integers(0, 50), st.integers(1, 100))
def test_n_retries_are_n_plus_1_attempts(error: BrokerError, retry: int, attempts: int) -> None:
    again = isinstance(decided(DeliverySpec(retry=retry), error, attempts=attempts), TryAgain)
    assert again == (attempts < retry + 1)


@given(transient, st.integers(1, 10**9), st.floats(0, 10**9))
def test_unlimited_retries_never_end(error: BrokerError, attempts: int, now: float) -> None:
    assert isinstance(decided(DeliverySpec(retry=UNLIMITED), error, attempts=attempts, now=now), TryAgain)
    assert isinstance(decided(DeliverySpec(retry_timeout=FOREVER), error, attempts=attempts, now=now), TryAgain)


@given(transient, st.floats(0, 100), st.floats(0, 200), st.integers(1, 60))
def test_no_attempt_begins_after_the_retry_timeout(
    error: BrokerError, budget: float, now: float, attempts: int
) -> None:
    spec = DeliverySpec(retry_timeout=timedelta(seconds=budget))
    end = spec.retry_timeout.total_seconds() if spec.retry_timeout else 0.0
    decision = decided(spec, error, attempts=attempts, now=now)
    if now >= end:
        assert isinstance(decision, GiveUp)
    else:
        assert isinstance(decision, TryAgain)
        assert now <= decision.at <= end


def test_a_retry_timeout_of_zero_means_no_retry_even_where_retries_are_given() -> None:
    assert isinstance(decided(DeliverySpec(retry=9, retry_timeout=timedelta(0)), Retriable("r")), GiveUp)


@given(transient, st.integers(0, 10), st.integers(1, 20), st.floats(0, 20), st.floats(0, 20))
def test_of_count_and_timeout_whichever_is_reached_first_ends_it(
    error: BrokerError, retry: int, attempts: int, budget: float, now: float
) -> None:
    timeout = timedelta(seconds=budget)
    decision = decided(DeliverySpec(retry=retry, retry_timeout=timeout), error, attempts=attempts, now=now)
    assert isinstance(decision, TryAgain) == (attempts <= retry and now < timeout.total_seconds())


@given(st.integers(0, 9), st.integers(1, 9), st.booleans())
def test_a_permanent_error_is_never_retried(retry: int, attempts: int, isolated: bool) -> None:
    decision = decided(DeliverySpec(retry=retry), Permanent("p"), attempts=attempts, isolated=isolated)
    assert isinstance(decision, GiveUp)


@given(st.none() | st.integers(0, 9))
def test_the_culprit_of_a_failed_batch_is_looked_for_even_where_no_retries_are_asked_for(retry: int | None) -> None:
    assert decided(DeliverySpec(retry=retry), Unattributed("u")) == Isolate()


def test_alone_a_message_is_its_own_culprit() -> None:
    assert isinstance(decided(DeliverySpec(retry=9), Unattributed("u"), isolated=True), GiveUp)


def test_a_fatal_error_aborts_whatever_the_spec_says() -> None:
    spec = DeliverySpec(retry=UNLIMITED, tolerance="all", dead_letter_sink=(Sink(uri="native"),))
    assert decided(spec, Fatal("f")) == Abort()


@pytest.mark.parametrize(("cap", "waits"), [(None, 60.0), (timedelta(seconds=7), 7.0), (timedelta(0), 1.0)])
def test_a_broker_that_asks_for_a_pause_gets_it_up_to_retry_after_max(cap: timedelta | None, waits: float) -> None:
    spec = DeliverySpec(retry=1, backoff_policy="linear", backoff_delay=SECOND, retry_after_max=cap)
    assert decided(spec, Throttled("t", retry_after=60.0)) == TryAgain(waits)


@given(
    st.none() | st.integers(UNLIMITED, 9), st.none() | st.just(FOREVER) | st.integers(0, 99).map(lambda n: n * SECOND)
)
def test_a_sink_always_has_a_bounded_budget(retry: int | None, budget: timedelta | None) -> None:
    sink = for_sink(DeliverySpec(retry=retry, retry_timeout=budget, dead_letter_sink=(Sink(uri="native"),)))
    assert sink.retry is not None
    assert 0 <= sink.retry <= max(SINK_RETRIES, retry or 0)
    assert sink.retry_timeout is not None
    assert sink.retry_timeout <= SINK_RETRY_TIMEOUT
    assert sink.dead_letter_sink == ()


def test_retries_that_do_not_fit_into_the_timeout_are_warned_of() -> None:
    fits = DeliverySpec(retry=3, retry_timeout=6 * SECOND, backoff_policy="linear", backoff_delay=SECOND)
    assert retries_that_do_not_fit(fits) is None
    short = DeliverySpec(retry=3, retry_timeout=5 * SECOND, backoff_policy="linear", backoff_delay=SECOND)
    assert "add up to 6 s" in (retries_that_do_not_fit(short) or "")
    assert retries_that_do_not_fit(DeliverySpec(retry=UNLIMITED, retry_timeout=SECOND))
    assert retries_that_do_not_fit(DeliverySpec(retry=3)) is None
