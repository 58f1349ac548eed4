"""Rare states: which of them a history has reached.

A fault that never meets a rare state proves little. Each state has a function that finds it in a history; a state that
no cell of the whole table reaches is a failure of the table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from faults.history import DESTINATION, LETTERS, SINK, STORED, Event, History
from faults.rows import AMBIGUOUS, Rows


@dataclass(frozen=True, slots=True)
class State:
    """A rare state.

    Attributes:
        name: short, for records.
        means: one line for people.
        reached: finds it in a history.
    """

    name: str
    means: str
    reached: Callable[[History], bool]


def reached(history: History) -> list[str]:
    """Return the names of the states that a history has reached, in the order of `STATES`."""
    return [state.name for state in STATES if state.reached(history)]


def _settled(history: History, to: str) -> Iterator[Event]:
    return (event for event in history.of("settled") if event.data["to"] == to)


def _then(first: str, *later: str) -> Callable[[History], bool]:
    """Return whether a row's attempt at the destination ended so, and a later one so."""

    def found(history: History) -> bool:
        before: set[int] = set()
        for event in _settled(history, DESTINATION):
            if event.data["as"] in later and before.intersection(event.rows):
                return True
            if event.data["as"] == first:
                before.update(event.rows)
        return False

    return found


def _any(to: str, *outcomes: str) -> Callable[[History], bool]:
    def found(history: History) -> bool:
        return any(event.data["as"] in outcomes for event in _settled(history, to))

    return found


def _part_of_a_batch(history: History) -> bool:
    """Whether some rows of one batch were stored and others were not."""
    batches = [frozenset(event.rows) for event in history.of("attempt") if event.data["to"] == DESTINATION]
    stored = {row for event in _settled(history, DESTINATION) if event.data["as"] == STORED for row in event.rows}
    unsure = {row for event in _settled(history, DESTINATION) if event.data["as"] == AMBIGUOUS for row in event.rows}
    return any(batch & unsure and (batch - unsure) & stored for batch in batches)


def _sink_down(history: History) -> bool:
    """Whether letters failed at their sink, and were stored later."""
    failed: set[int] = set()
    for event in _settled(history, SINK):
        if event.data["as"] == STORED and failed.intersection(event.rows):
            return True
        if event.data["as"] not in {STORED, "permanent"}:
            failed.update(event.rows)
    return False


def _copies(place: str) -> Callable[[History], bool]:
    def found(history: History) -> bool:
        return any(state.copies(place) > 1 for _, state in Rows(history).where())

    return found


def _recovered(history: History) -> bool:
    """Whether a row was found that was never confirmed."""
    return any(
        state.copies(DESTINATION) and DESTINATION not in state.stored and not state.handled
        for _, state in Rows(history).where(handed=True)
    )


def _unsettled(history: History) -> bool:
    """Whether a process was killed between an attempt and its settlement."""
    return any(True for _ in history.of("killed")) and any(
        number > 0 for _, state in Rows(history).where() for number in state.unsure.values()
    )


def _sent_not_removed(history: History) -> bool:
    """Whether a redriven letter was confirmed at its destination, and sent again by a next life."""
    seeded = {row for event in history.of("seeded") for row in event.rows}
    lives = [event.t for event in history.of("restarted")]
    stored: dict[int, float] = {}
    for event in history.of("attempt", "settled"):
        for row in seeded.intersection(event.rows):
            if event.kind == "settled" and event.data["as"] == STORED:
                stored[row] = event.t
            elif event.kind == "attempt" and row in stored and any(stored[row] < life < event.t for life in lives):
                return True
    return False


def _handled_twice(history: History) -> bool:
    return any(state.handled > 1 for _, state in Rows(history).where(seeded=True))


def _given_up_twice(history: History) -> bool:
    """Whether a handler gave a message up twice: its lease was lost while it was dead-lettered."""
    given_up: set[int] = set()
    for event in history.of("handled"):
        if event.data["as"] == "terminated":
            if given_up.intersection(event.rows):
                return True
            given_up.update(event.rows)
    return False


def _at_both(history: History) -> bool:
    """Whether a row was given up although it was stored."""
    return any(state.copies(DESTINATION) and state.copies(LETTERS) for _, state in Rows(history).where(handed=True))


STATES: Final = (
    State("ambiguous", "an attempt of which nobody knows whether it was stored", _any(DESTINATION, AMBIGUOUS)),
    State("ambiguous-then-stored", "an ambiguous attempt, stored by a later one", _then(AMBIGUOUS, STORED)),
    State(
        "ambiguous-then-refused",
        "an ambiguous attempt, followed by a refusal",
        _then(AMBIGUOUS, "retriable", "permanent", "fatal"),
    ),
    State("retried", "a refused attempt, stored by a later one", _then("retriable", STORED)),
    State("half-a-batch", "one batch of which some rows were confirmed and others ambiguous", _part_of_a_batch),
    State("sink-down", "a letter that failed at its sink, and was stored later", _sink_down),
    State("sink-ambiguous", "a letter of which nobody knows whether its sink has stored it", _any(SINK, AMBIGUOUS)),
    State("duplicate", "a row found twice at the destination", _copies(DESTINATION)),
    State("duplicate-letter", "a row found twice among the letters", _copies(LETTERS)),
    State("stored-and-dead", "a row given up after an ambiguous attempt, and stored all the same", _at_both),
    State("recovered", "a row found although nobody confirmed it", _recovered),
    State("killed-in-flight", "a process killed between an attempt and its answer", _unsettled),
    State("fatal", "an error after which no row would be accepted", _any(DESTINATION, "fatal")),
    State("handled-twice", "a message that its subscriber handled again, as its lease was lost", _handled_twice),
    State("given-up-twice", "a lease lost while its message was dead-lettered", _given_up_twice),
    State(
        "sent-not-noted", "a redriven letter, confirmed and not yet removed when its process died", _sent_not_removed
    ),
)
