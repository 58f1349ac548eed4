"""One seed chooses everything, and the same seed chooses the same."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from faults.plan import Plan, number_of

SEEDS = st.integers(0, 10**9)


@given(SEEDS, st.integers(100, 5_000), st.lists(st.sampled_from(["reset", "freeze", "slow"]), unique=True))
def test_the_same_seed_gives_the_same_plan(seed: int, rows: int, faults: list[str]) -> None:
    one, other = (Plan.make(seed, rows=rows, faults=faults, times=2) for _ in range(2))
    assert one == other
    assert Plan.from_dict(json.loads(json.dumps(one.to_dict()))) == one
    assert [one.row(number) for number in range(20)] == [other.row(number) for number in range(20)]


@given(SEEDS)
def test_another_seed_gives_other_rows_and_moments(seed: int) -> None:
    one, other = (Plan.make(each, rows=2_000, faults=["reset"]) for each in (seed, seed + 1))
    assert one.poison != other.poison
    assert one.row(7).value != other.row(7).value


@given(SEEDS, st.integers(1, 4))
def test_every_fault_begins_within_the_rows_so_often_as_asked(seed: int, times: int) -> None:
    plan = Plan.make(seed, rows=2_000, faults=["reset", "slow"], times=times, seconds=(1.0, 2.0))
    assert sorted(moment.fault for moment in plan.moments) == ["reset"] * times + ["slow"] * times
    assert [moment.row for moment in plan.moments] == sorted(moment.row for moment in plan.moments)
    assert all(0 < moment.row < 2_000 and 1.0 <= moment.seconds <= 2.0 for moment in plan.moments)


def test_some_rows_are_poison() -> None:
    assert len(Plan.make(7, rows=2_000, faults=[]).poison) == 20
    assert len(Plan.make(7, rows=50, faults=[]).poison) == 1
    assert len(Plan.make(7, rows=2_000, faults=[], poison=4).poison) == 4


@given(SEEDS, st.integers(0, 9_999_999))
def test_a_row_is_recognised_by_its_value(seed: int, number: int) -> None:
    assert number_of(Plan.make(seed, rows=1, faults=[]).row(number).value) == number


def test_other_values_are_no_rows() -> None:
    assert [number_of(value) for value in (None, b"", b"row", b"row 12 x", b"{}")] == [None] * 5
