"""Each rare state is found in a history that reached it, and not in one where all is well."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
from broken_histories import ROWS, Story, healthy, redriven, subscribed

from faults.history import LETTERS, SINK
from faults.states import STATES, reached


def _killed() -> Story:
    return healthy().attempt(1).add("killed", process="writer")


def _retried(first: str, *later: str) -> Story:
    story = Story().add("handed", rows=list(range(ROWS))).attempt(*range(ROWS)).settle(1, outcome=first)
    for outcome in later:
        story.attempt(1).settle(1, outcome=outcome)
    return story


REACHED: Mapping[str, Callable[[], Story]] = {
    "ambiguous": lambda: _retried("ambiguous"),
    "ambiguous-then-stored": lambda: _retried("ambiguous", "stored"),
    "ambiguous-then-refused": lambda: _retried("ambiguous", "retriable"),
    "retried": lambda: _retried("retriable", "stored"),
    "half-a-batch": lambda: _retried("ambiguous").settle(2),
    "sink-down": lambda: healthy().settle(3, outcome="retriable", to=SINK).settle(3, to=SINK),
    "sink-ambiguous": lambda: healthy().settle(3, outcome="ambiguous", to=SINK),
    "duplicate": lambda: healthy().read(1),
    "duplicate-letter": lambda: healthy().read(3, place=LETTERS),
    "stored-and-dead": lambda: healthy().read(3),
    "recovered": lambda: _retried("ambiguous").read(1),
    "killed-in-flight": _killed,
    "fatal": lambda: _retried("fatal"),
    "handled-twice": lambda: subscribed().add("handled", **{"rows": [1], "as": "accepted"}),
    "given-up-twice": lambda: (
        subscribed()
        .add("handled", **{"rows": [3], "as": "terminated"})
        .add("handled", **{"rows": [3], "as": "terminated"})
    ),
    "sent-not-noted": redriven,
}


def test_every_state_has_a_history_that_reaches_it() -> None:
    assert set(REACHED) == {state.name for state in STATES}


@pytest.mark.parametrize("name", REACHED)
def test_a_state_is_found_where_it_was_reached(name: str) -> None:
    assert name in reached(REACHED[name]().history())


@pytest.mark.parametrize("story", [healthy, subscribed])
def test_no_state_is_found_where_all_is_well(story) -> None:
    assert reached(story().history()) == []
