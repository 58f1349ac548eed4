"""Limits fail when they are exceeded, and tell poison from an outage."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redelivery.contract.spec import UNLIMITED, DeliverySpec
from redelivery.errors import ToleranceExceeded
from redelivery.policy.tolerance import Tolerance
from redelivery.sending.report import MAX_REASONS, OTHER, DeliveryReport, settle_job


@given(st.integers(0, 50))
def test_the_limit_fails_when_exceeded_not_when_reached(limit: int) -> None:
    tolerance = Tolerance(DeliverySpec(tolerance_limit=limit))
    said = [tolerance.count(0.0) for _ in range(limit + 1)]
    assert said[:limit] == [None] * limit
    assert f"limit of {limit}" in (said[limit] or "")


@pytest.mark.parametrize("limit", [None, UNLIMITED])
def test_without_a_limit_any_number_is_tolerated(limit: int | None) -> None:
    tolerance = Tolerance(DeliverySpec(tolerance_limit=limit, tolerance_rate_limit=limit))
    assert tolerance.count(0.0, 10**9) is None


@given(st.lists(st.floats(0, 300), max_size=60).map(sorted), st.integers(0, 10))
def test_the_rate_counts_a_sliding_window_to_within_one_step(times: list[float], limit: int) -> None:
    tolerance = Tolerance(DeliverySpec(tolerance_rate_limit=limit, tolerance_rate_duration="minute"))
    for n, now in enumerate(times):
        said = tolerance.count(now)
        certain = sum(1 for t in times[: n + 1] if t > now - 59)
        possible = sum(1 for t in times[: n + 1] if t > now - 61)
        if certain > limit:
            assert said is not None
        if possible <= limit:
            assert said is None


def test_a_rate_needs_no_memory_that_grows_with_errors() -> None:
    tolerance = Tolerance(DeliverySpec(tolerance_rate_limit=10**9, tolerance_rate_duration="day"))
    for n in range(10_000):
        tolerance.count(n * 100.0)
    assert len(tolerance._steps) <= 61


def task(**counts: int) -> DeliveryReport:
    return DeliveryReport(primary="x:", **counts)  # type: ignore[arg-type]  # counts only


def test_the_job_as_a_whole_is_held_to_the_limit_of_its_tasks() -> None:
    tasks = [task(rows=5, record_errors=2, dead_lettered=2), task(rows=5, record_errors=2, dead_lettered=2)]
    assert settle_job(DeliverySpec(tolerance_limit=4), tasks, run="r", seconds=1.0).dead_lettered == 4
    with pytest.raises(ToleranceExceeded, match="4 records of the job"):
        settle_job(DeliverySpec(tolerance_limit=3), tasks, run="r", seconds=1.0)


def test_reports_add_up_and_survive_json() -> None:
    one = task(rows=3, skipped=1, retries=2, record_failures=3)
    one.at("x:").delivered = 2
    one.because("Poison")
    one.last_error_ms = 7
    two = task(rows=1)
    two.at("x:").delivered = 1
    total = DeliveryReport.total([one, two], run="r", seconds=2.0)
    assert (total.rows, total.delivered, total.skipped, total.tasks, total.accounted) == (4, 3, 1, 2, True)
    assert DeliveryReport.from_dict(total.to_dict()) == total
    assert total.metrics()["total-records-skipped"] == 1


def test_a_report_does_not_grow_with_the_number_of_reasons() -> None:
    report = task()
    for n in range(10 * MAX_REASONS):
        report.because(f"reason {n}")
    assert len(report.reasons) == MAX_REASONS + 1
    assert report.reasons[OTHER] == 9 * MAX_REASONS
    assert isinstance(report.reasons, Counter)
