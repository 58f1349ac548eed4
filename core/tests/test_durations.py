"""Durations: what is read, what is refused and how, and that writing and reading agree."""

from __future__ import annotations

import contextlib
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies_spec import DURATIONS

from redelivery.base import durations
from redelivery.errors import InvalidSpec


@given(DURATIONS)
def test_every_duration_is_read_back_as_it_was_written(duration: timedelta) -> None:
    assert durations.parse(durations.write(duration)) == duration


@given(DURATIONS)
def test_the_written_text_is_canonical(duration: timedelta) -> None:
    text = durations.write(duration)
    assert durations.write(durations.parse(text)) == text


@pytest.mark.parametrize(
    ("text", "duration"),
    [
        ("PT5S", timedelta(seconds=5)),
        ("PT0.3S", timedelta(milliseconds=300)),
        ("PT0,3S", timedelta(milliseconds=300)),
        ("PT0.000001S", timedelta(microseconds=1)),
        ("PT1H30M", timedelta(minutes=90)),
        ("PT90M", timedelta(minutes=90)),
        ("P1DT12H", timedelta(hours=36)),
        ("P2W", timedelta(weeks=2)),
        ("PT0S", timedelta(0)),
    ],
)
def test_iso_8601_is_read(text: str, duration: timedelta) -> None:
    assert durations.parse(text) == duration


@pytest.mark.parametrize(
    ("duration", "text"),
    [
        (timedelta(0), "P0D"),
        (timedelta(milliseconds=300), "PT0.3S"),
        (timedelta(seconds=5), "PT5S"),
        (timedelta(minutes=90), "PT1H30M"),
        (timedelta(weeks=1), "P7D"),
    ],
)
def test_one_text_is_written_for_a_duration(duration: timedelta, text: str) -> None:
    assert durations.write(duration) == text


NO_DURATIONS = [
    "",
    " ",
    "P",
    "PT",
    "P1DT",
    "5s",
    "300ms",
    "5",
    "pt5s",
    " PT5S",
    "PT5S ",
    "PT-5S",
    "PT1e3S",
    "P1DT5",
    "x",
]


@pytest.mark.parametrize("text", [*NO_DURATIONS, "P0001-00-00T00:00:01", "P" + "9" * 500 + "D", "P" + "9" * 5000 + "D"])
def test_other_text_is_refused_with_a_right_example(text: str) -> None:
    with pytest.raises(InvalidSpec, match=r"^must be an ISO-8601 duration, as in 'PT5S'") as caught:
        durations.parse(text)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("text", ["P1Y", "P1M", "P1Y2M3DT4H", "P1MT5S"])
def test_years_and_months_are_refused_for_they_have_no_fixed_length(text: str) -> None:
    with pytest.raises(InvalidSpec, match=r"no fixed length.*'P30D'"):
        durations.parse(text)


@pytest.mark.parametrize("text", ["-PT5S", "-P1D"])
def test_a_negative_duration_is_refused(text: str) -> None:
    with pytest.raises(InvalidSpec, match="must not be negative"):
        durations.parse(text)


def test_a_negative_duration_is_not_written() -> None:
    with pytest.raises(InvalidSpec, match="must not be negative"):
        durations.write(timedelta(seconds=-1))


@pytest.mark.parametrize("text", ["P9999999999D", "PT" + "9" * 60 + "S"])
def test_a_duration_beyond_pythons_longest_is_refused(text: str) -> None:
    with pytest.raises(InvalidSpec, match="too long a time"):
        durations.parse(text)


def test_an_error_quotes_no_password() -> None:
    with pytest.raises(InvalidSpec) as caught:
        durations.parse("scheme://user:hunter2@host")
    assert "hunter2" not in str(caught.value)


@given(st.text())
def test_any_text_is_either_read_or_refused(text: str) -> None:
    with contextlib.suppress(InvalidSpec):
        assert durations.parse(text) >= timedelta(0)
