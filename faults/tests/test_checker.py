"""The checker finds what is wrong, in histories that are broken on purpose, and nothing where all is well."""

from __future__ import annotations

import pytest
from broken_histories import BROKEN, PLAN, ROWS, Story, healthy, is_read, redriven, subscribed, without
from hypothesis import given
from hypothesis import strategies as st

from faults.checker import CLASSES, check
from faults.history import DESTINATION, LETTERS, SINK, SOURCE, History

GOOD = [row for row in range(ROWS) if row not in PLAN.poison]


@pytest.mark.parametrize("name", BROKEN)
def test_each_broken_history_is_found(name: str) -> None:
    broken, invariant, words = BROKEN[name]
    found = check(broken().history()).violations
    assert any(each.invariant == invariant and words in str(each) for each in found), found


def test_every_invariant_that_a_history_can_show_is_broken_by_some_history() -> None:
    assert {invariant for _, invariant, _ in BROKEN.values()} == {0, 1, 2, 3, 4, 5, 7, 8}


@pytest.mark.parametrize("story", [healthy, redriven, subscribed])
def test_a_healthy_history_has_no_violation(story) -> None:
    assert check(story().history()).violations == []


def test_rows_are_classified() -> None:
    assert check(healthy().history()).counts == {"ok": 10, "dead-lettered": 2, "unexpected": 0}
    assert check(redriven().history()).counts == {"ok": 11, "duplicated": 1, "unexpected": 0}
    assert check(subscribed().history()).counts == {"handled": 10, "waiting": 2, "unexpected": 0}


def test_a_row_that_was_reported_as_unknown_and_is_there_is_recovered() -> None:
    story = Story(survives=False).add("handed", rows=[0, 1, 2]).attempt(0, 1, 2).settle(0)
    story.settle(1, 2, outcome="ambiguous").add("failed", error="DeliveryFailed: gave up").read(0, 1)
    verdict = check(story.history())
    assert verdict.ok, verdict.violations
    assert verdict.counts == {"ok": 1, "recovered": 1, "failed": 1, "unexpected": 0}


def test_a_second_copy_is_allowed_after_an_ambiguous_attempt() -> None:
    story = Story().add("handed", rows=[0]).attempt(0).settle(0, outcome="ambiguous").attempt(0).settle(0)
    story.report(rows=1, delivered=1, dead_lettered=0, ambiguous=1)
    verdict = check(story.read(0, 0).history())
    assert verdict.ok, verdict.violations
    assert verdict.counts["duplicated"] == 1
    assert not check(story.read(0).history()).ok


@pytest.mark.parametrize(("said", "true"), [(1, False), (2, True), (3, True), (4, False)])
def test_a_letter_need_not_count_an_attempt_in_which_its_row_was_held_back(said: int, true: bool) -> None:
    story = Story().add("handed", rows=[3]).attempt(3).settle(3, outcome="retriable", code="NOT_SENT")
    story.attempt(3).settle(3, outcome="retriable").attempt(3).settle(3, outcome="permanent")
    story.attempt(3, to=SINK).settle(3, to=SINK)

    found = check(story.read(3, place=LETTERS, attempts=said).history()).violations

    assert any("how often its row was tried" in each.what for each in found) is not true


def test_rows_that_were_stored_before_their_place_was_destroyed_are_not_lost() -> None:
    story = Story(survives=False).add("handed", rows=[0, 1]).attempt(0).settle(0)
    story.add("fault", fault="queue-deleted", destroys=["destination"])
    story.add("healed", fault="queue-deleted", destroys=["destination"]).attempt(1).settle(1)
    story.add("failed", error="DeliveryFailed: gone")
    verdict = check(story.history())
    assert [each.rows for each in verdict.violations] == [(1,)]
    assert verdict.counts["destroyed"] == 1


def test_a_message_that_nobody_handled_may_be_with_the_letters_and_at_its_source() -> None:
    story = without(subscribed(), is_read(11, SOURCE)).attempt(11, to=SINK).settle(11, to=SINK)
    assert check(story.read(11, place=LETTERS).history()).ok


def test_a_history_without_plan_or_start_is_refused() -> None:
    with pytest.raises(ValueError, match="start"):
        check(History([]))
    with pytest.raises(ValueError, match="plan"):
        check(History(healthy().events[1:]))


FATES = ("fine", "gone", "twice", "changed", "under two ids", "refused")


@given(st.lists(st.sampled_from(FATES), min_size=len(GOOD), max_size=len(GOOD)))
def test_each_violation_of_a_mixture_names_its_rows(fates: list[str]) -> None:
    story = without(healthy(), lambda event: event.kind == "read" and event.data["place"] == DESTINATION)
    for row, fate in zip(GOOD, fates, strict=True):
        if fate != "gone":
            story.read(row, differs=["key"] if fate == "changed" else [])
        if fate in {"twice", "under two ids"}:
            story.read(row, id="other" if fate == "under two ids" else f"7-{row}")
        if fate == "refused":
            story.attempt(row).settle(row, outcome="permanent")
    found = {each.what: each.rows for each in check(story.history()).violations if each.rows}
    rows = {fate: tuple(row for row, each in zip(GOOD, fates, strict=True) if each == fate) for fate in FATES}
    copies = tuple(sorted(rows["twice"] + rows["under two ids"]))
    expected = {
        "acknowledged and not found by an independent client": rows["gone"],
        "delivered with another value, key or header than was handed over": rows["changed"],
        "more copies than 1 + ambiguous attempts + restarts": copies,
        "copies under different ids": rows["under two ids"],
        "refused for good although only other rows are poison": rows["refused"],
    }
    assert found == {what: named for what, named in expected.items() if named}


@given(
    st.lists(st.sampled_from(["stored", "ambiguous", "retriable", "permanent"]), min_size=ROWS, max_size=ROWS),
    st.lists(st.integers(0, 3), min_size=ROWS, max_size=ROWS),
)
def test_every_row_has_one_class_and_only_true_losses_are_lost(outcomes: list[str], copies: list[int]) -> None:
    story = Story(survives=False).add("handed", rows=list(range(ROWS))).attempt(*range(ROWS))
    for row, outcome in enumerate(outcomes):
        story.settle(row, outcome=outcome)
        story.read(*[row] * copies[row])
    verdict = check(story.add("failed", error="DeliveryFailed").history())
    assert sum(number for name, number in verdict.counts.items() if name in CLASSES) == ROWS
    lost = [row for row in range(ROWS) if outcomes[row] == "stored" and not copies[row]]
    assert verdict.counts["lost"] == len(lost)
    assert [each.rows for each in verdict.violations if each.invariant == 1] == ([tuple(lost)] if lost else [])
    too_many = [row for row in range(ROWS) if copies[row] > 1 + (outcomes[row] == "ambiguous")]
    assert [each.rows for each in verdict.violations if each.invariant == 3] == ([tuple(too_many)] if too_many else [])


def test_the_places_of_the_checker_are_those_of_the_stories() -> None:
    assert {DESTINATION, LETTERS, SINK, SOURCE} == {"destination", "letters", "sink", "source"}
