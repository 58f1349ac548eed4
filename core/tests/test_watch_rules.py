"""Alerts of a place: each is raised once and resolved once, whatever looks find, and across restarts."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redelivery.watch.rules import (
    MORE,
    MOST_KNOWN,
    MOST_NEW,
    NEW_FOR_MS,
    Alerts,
    Change,
    Growth,
    Rule,
    Rules,
    SeenGroup,
    Snapshot,
    span,
)

HOUR, MINUTE = 3_600_000, 60_000
ALL = Rules(older_than=timedelta(hours=1), growth=Growth(100, timedelta(minutes=5)), new_group=True)


def groups(*names: str) -> tuple[SeenGroup, ...]:
    return tuple(SeenGroup(fingerprint=each, count=3, code="FULL", message="no room") for each in names)


def told(changes: list[Change]) -> list[tuple[str, str, str]]:
    return [(each.alert.rule, each.alert.subject, "resolved" if each.resolved_ms else "raised") for each in changes]


def again(alerts: Alerts, rules: Rules) -> Alerts:
    """Alerts after a restart."""
    return Alerts.from_dict(rules, json.loads(json.dumps(alerts.to_dict())))


# --- by age ---


def test_an_old_letter_is_alerted_once_and_resolved_once_it_is_clearly_younger() -> None:
    alerts = Alerts(ALL)
    ages = [30, 59, 60, 61, 59, 55, 60, 61, 53, 59, 60]
    found = [
        told(alerts.judge(Snapshot(at_ms=HOUR * 9 + at, count=1, oldest_ms=HOUR * 9 + at - age * MINUTE)))
        for at, age in enumerate(ages)
    ]
    raised, resolved = [("oldest", "", "raised")], [("oldest", "", "resolved")]
    assert found == [[], [], raised, [], [], [], [], [], resolved, [], raised]


def test_an_empty_place_resolves_what_its_age_raised() -> None:
    alerts = Alerts(ALL)
    assert told(alerts.judge(Snapshot(at_ms=HOUR * 2, count=1, oldest_ms=1))) == [("oldest", "", "raised")]
    assert told(alerts.judge(Snapshot(at_ms=HOUR * 2 + 1, count=0))) == [("oldest", "", "resolved")]


def test_an_age_that_is_not_known_changes_nothing() -> None:
    alerts = Alerts(ALL)
    alerts.judge(Snapshot(at_ms=HOUR * 2, count=1, oldest_ms=1))
    assert alerts.judge(Snapshot(at_ms=HOUR * 2 + 1, count=5)) == []
    assert [each.rule for each in alerts.active] == [Rule.OLDEST]


def test_a_letter_from_the_future_is_not_old() -> None:
    assert Alerts(ALL).judge(Snapshot(at_ms=HOUR, count=1, oldest_ms=HOUR * 9)) == []


# --- by growth ---


def arrivals(at_ms: int, since_ms: int | None, count: int) -> Snapshot:
    return Snapshot(at_ms=at_ms, since_ms=since_ms, arrived={"FULL": count}, count=9)


def test_growth_is_counted_within_its_window_and_resolved_at_half() -> None:
    alerts = Alerts(ALL)
    found = []
    for turn, count in enumerate([60, 39, 1, 0, 0, 0, 0, 0, 60], start=1):
        found.append(told(alerts.judge(arrivals(turn * MINUTE, (turn - 1) * MINUTE, count))))
    # 60, 99, 100, 100, 100, 40 (the first has left the window), ...
    assert found == [[], [], [("growth", "", "raised")], [], [], [("growth", "", "resolved")], [], [], []]


def test_what_was_there_at_the_first_look_has_not_arrived() -> None:
    assert Alerts(ALL).judge(arrivals(MINUTE, None, 10_000)) == []


def test_what_arrived_while_nobody_looked_counts_as_its_rate() -> None:
    assert Alerts(ALL).judge(arrivals(600 * MINUTE, 0, 10_000)) == []  # 83 in 5 minutes
    assert told(Alerts(ALL).judge(arrivals(600 * MINUTE, 0, 12_000))) == [("growth", "", "raised")]


def test_a_day_of_looks_each_second_takes_little_memory() -> None:
    alerts = Alerts(replace(ALL, growth=Growth(10**9, timedelta(hours=1))))
    for second in range(1, 20_000):
        alerts.judge(arrivals(second * 1000, second * 1000 - 1000, 1))
    assert len(alerts.to_dict()["arrivals"]) < 150
    within = sum(each.within(19_999_000 - HOUR) for each in alerts._samples)
    assert within == pytest.approx(3600, rel=0.01)


# --- by group ---


def test_groups_of_the_first_look_are_not_new_and_a_later_one_is_once() -> None:
    alerts = Alerts(ALL)
    assert alerts.judge(Snapshot(at_ms=1, groups=groups("a", "b"), whole=True)) == []
    (change,) = alerts.judge(Snapshot(at_ms=2, groups=groups("c"), since_ms=1))
    assert (change.alert.rule, change.alert.subject, change.resolved_ms) == (Rule.NEW_GROUP, "c", None)
    assert change.alert.text == "dead letters of a new group, c: 3, FULL: no room"
    assert alerts.judge(Snapshot(at_ms=3, groups=groups("a", "c"), since_ms=2)) == []


def test_a_new_group_is_resolved_when_its_letters_are_gone_and_is_not_new_again() -> None:
    alerts = Alerts(ALL)
    alerts.judge(Snapshot(at_ms=1, groups=(), whole=True))
    alerts.judge(Snapshot(at_ms=2, groups=groups("c")))
    assert alerts.judge(Snapshot(at_ms=3, groups=())) == []  # no letter of it arrived
    assert told(alerts.judge(Snapshot(at_ms=4, groups=(), whole=True))) == [("new-group", "c", "resolved")]
    assert alerts.judge(Snapshot(at_ms=5, groups=groups("c"))) == []


def test_a_group_is_new_for_an_hour() -> None:
    alerts = Alerts(ALL)
    alerts.judge(Snapshot(at_ms=1, groups=(), whole=True))
    alerts.judge(Snapshot(at_ms=2, groups=groups("c")))
    assert alerts.judge(Snapshot(at_ms=1 + NEW_FOR_MS, groups=groups("c"), whole=True)) == []
    assert told(alerts.judge(Snapshot(at_ms=2 + NEW_FOR_MS))) == [("new-group", "c", "resolved")]


def test_a_restart_does_not_cry_wolf() -> None:
    alerts = Alerts(ALL)
    alerts.judge(Snapshot(at_ms=1, groups=groups("a"), whole=True))
    alerts.judge(Snapshot(at_ms=2, groups=groups("c"), count=1, oldest_ms=-HOUR))
    restarted = again(alerts, ALL)
    assert restarted.active == alerts.active
    assert restarted.judge(Snapshot(at_ms=3, groups=groups("a", "c"), whole=True, count=1, oldest_ms=-HOUR)) == []


def test_letters_that_all_differ_raise_a_bounded_number_of_alerts() -> None:
    alerts = Alerts(ALL)
    alerts.judge(Snapshot(at_ms=1, groups=(), whole=True))
    changes = alerts.judge(Snapshot(at_ms=2, groups=groups(*(f"g{each}" for each in range(500)))))
    assert len(changes) == MOST_NEW + 1
    assert changes[-1].alert.subject == MORE
    assert "480 more new groups" in changes[-1].alert.text
    assert alerts.judge(Snapshot(at_ms=3, groups=groups(*(f"h{each}" for each in range(500))))) == []


def test_where_groups_are_not_all_told_apart_one_alert_speaks_for_the_new_ones() -> None:
    alerts = Alerts(ALL)
    alerts.judge(Snapshot(at_ms=1, groups=groups("a"), whole=True, others=7))
    changes = alerts.judge(Snapshot(at_ms=2, groups=groups("b"), whole=True, others=7))
    assert told(changes) == [("new-group", MORE, "raised")]


def test_known_groups_are_bounded_and_those_seen_last_are_kept() -> None:
    alerts = Alerts(ALL)
    alerts.judge(Snapshot(at_ms=1, groups=groups(*(f"g{each}" for each in range(MOST_KNOWN))), whole=True))
    alerts.judge(Snapshot(at_ms=2, groups=groups("g0", "x")))
    known = alerts.to_dict()["known"]
    assert len(known) == MOST_KNOWN
    assert {"g0", "x"} <= set(known)
    assert "g1" not in known


# --- reachable ---


def test_a_place_is_unreachable_after_two_looks_and_reachable_after_two() -> None:
    alerts = Alerts(ALL)
    down, up = Snapshot(at_ms=1, failed="refused"), Snapshot(at_ms=2)
    found = [told(alerts.judge(each)) for each in (down, up, down, down, down, up, down, up, up, down, up)]
    raised, resolved = [("unreachable", "", "raised")], [("unreachable", "", "resolved")]
    assert found == [[], [], [], raised, [], [], [], [], resolved, [], []]


def test_a_place_that_does_not_exist_is_told_as_that() -> None:
    alerts = Alerts(replace(ALL, confirm=1))
    (change,) = alerts.judge(Snapshot(at_ms=1, failed="no topic 'orders'", missing=True))
    assert change.alert.text == "does not exist: no topic 'orders'"


def test_a_failed_look_leaves_alerts_about_letters_alone() -> None:
    alerts = Alerts(ALL)
    alerts.judge(Snapshot(at_ms=1, groups=(), whole=True))
    alerts.judge(Snapshot(at_ms=2, groups=groups("c"), count=1, oldest_ms=-HOUR))
    alerts.judge(Snapshot(at_ms=9 * HOUR, failed="refused"))
    assert {each.rule for each in alerts.active} == {Rule.OLDEST, Rule.NEW_GROUP}


# --- whatever happens ---

NAMES = st.sampled_from(["a", "b", "c", "d"])
FOUND = st.one_of(
    st.builds(Snapshot, at_ms=st.just(0), failed=st.just("refused"), missing=st.booleans()),
    st.builds(
        Snapshot,
        at_ms=st.just(0),
        count=st.none() | st.integers(0, 5),
        oldest_ms=st.none() | st.integers(-3 * HOUR, 9 * HOUR),
        arrived=st.dictionaries(st.sampled_from(["FULL", "BUG"]), st.integers(0, 200)),
        since_ms=st.none() | st.integers(-HOUR, 9 * HOUR),
        groups=st.none() | st.lists(NAMES, unique=True).map(lambda names: groups(*names)),
        whole=st.booleans(),
        others=st.sampled_from([0, 0, 0, 5]),
    ),
)
#: Looks, how long after the one before (a clock may be set back), and whether the process starts again before it.
LOOKS = st.lists(st.tuples(FOUND, st.integers(-HOUR, HOUR), st.booleans()), max_size=40)


@given(LOOKS)
def test_each_alert_is_raised_and_resolved_in_turn_and_a_restart_changes_nothing(
    looks: list[tuple[Snapshot, int, bool]],
) -> None:
    alerts, never = Alerts(ALL), Alerts(ALL)
    active: set[tuple[str, str]] = set()
    at_ms = 10 * HOUR
    for found, later, restarts in looks:
        at_ms += later
        found = replace(found, at_ms=at_ms)  # noqa: PLW2901 - the same look at its time
        alerts = again(alerts, ALL) if restarts else alerts
        changes = alerts.judge(found)
        assert changes == never.judge(found)
        for change in changes:
            key = (change.alert.rule, change.alert.subject)
            assert (key in active) == (change.resolved_ms is not None)
            active ^= {key}
        assert {(each.rule, each.subject) for each in alerts.active} == active


@given(LOOKS)
def test_no_group_is_new_twice(looks: list[tuple[Snapshot, int, bool]]) -> None:
    alerts, raised = Alerts(ALL), []
    for at_ms, (found, _, _) in enumerate(looks):
        changes = alerts.judge(replace(found, at_ms=at_ms * HOUR))
        raised += [
            each.alert.subject
            for each in changes
            if each.resolved_ms is None and each.alert.rule is Rule.NEW_GROUP and each.alert.subject != MORE
        ]
    assert len(raised) == len(set(raised))


@given(st.lists(st.integers(54, 66), max_size=60))
def test_an_age_about_its_limit_is_alerted_once(minutes: list[int]) -> None:
    alerts = Alerts(ALL)
    changes = [
        change
        for at, age in enumerate(minutes)
        for change in alerts.judge(Snapshot(at_ms=HOUR * 9 + at, count=1, oldest_ms=HOUR * 9 + at - age * MINUTE))
    ]
    assert told(changes) == ([("oldest", "", "raised")] if max(minutes, default=0) >= 60 else [])


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.floats(),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["active", "arrivals", "known", "failed", "succeeded", "x"]), inner)
        ),
        max_leaves=12,
    )
)
def test_a_damaged_memory_is_an_error_that_is_known(said: object) -> None:
    try:
        found = Alerts.from_dict(ALL, said)  # type: ignore[arg-type]
    except ValueError:
        return
    found.judge(Snapshot(at_ms=1))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (59.6, "1 min"), (3600, "1 h"), (3725, "1 h 2 min"), (86400 * 3 + 7300, "3 d 2 h"), (61, "1 min 1 s")],
)
def test_a_time_is_said_in_two_units(seconds: float, text: str) -> None:
    assert span(seconds) == text
