"""The account of each row in a history: what was claimed of it, and what was found."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from faults.history import DESTINATION, LETTERS, SINK, SOURCE, STORED, Event, History
from faults.plan import Plan

AMBIGUOUS: Final = "ambiguous"
#: The code of a row that its sender did not try, because what went before it failed.
_HELD_BACK: Final = "NOT_SENT"
#: Where rows that were stored at `to` are read.
READ_AT: Final = {DESTINATION: DESTINATION, SINK: LETTERS}


@dataclass(slots=True)
class RowState:
    """One row.

    Attributes:
        handed, seeded: how it came into the run.
        attempts: attempts at each place.
        unsure: attempts at each place that may have stored it: ambiguous ones, and those that were never settled.
        stored: the last time at which each place has confirmed it.
        handled: how often a subscriber has accepted it.
        skipped: given up without a sink.
        refused: a place has refused it for good.
        unattributed: attempts at the destination that failed with their whole batch.
        held_back: attempts at the destination in which the sender did not try the row. The engine counts such an
            attempt only if it heard of no other row meanwhile.
        found: reads of it, by place.
    """

    handed: bool = False
    seeded: bool = False
    attempts: Counter[str] = field(default_factory=Counter)
    unsure: Counter[str] = field(default_factory=Counter)
    stored: dict[str, float] = field(default_factory=dict)
    handled: int = 0
    skipped: bool = False
    refused: bool = False
    unattributed: int = 0
    held_back: int = 0
    found: defaultdict[str, list[Event]] = field(default_factory=lambda: defaultdict(list))

    @property
    def promised(self) -> bool:
        """Whether the library may report the row as done."""
        return bool(self.stored) or self.skipped or self.handled > 0

    def copies(self, place: str) -> int:
        """How often it was read at a place."""
        return len(self.found[place])


class Rows:
    """All rows of a history.

    Attributes:
        plan: what was to be written.
        by_number: the rows that were handed over, seeded or found.
        strangers: reads that are not rows of this plan.
        lives: how often processes were started again.
    """

    def __init__(self, history: History) -> None:
        planned = history.first("plan")
        if planned is None:
            raise ValueError("a history begins with its plan")
        self.plan = Plan.from_dict(planned.data["plan"])
        self.by_number: defaultdict[int, RowState] = defaultdict(RowState)
        self.strangers: list[Event] = []
        self.lives = sum(1 for _ in history.of("restarted"))
        for event in history:
            self._take(event)

    def where(self, **wanted: bool) -> Iterator[tuple[int, RowState]]:
        """Return the rows with these attributes, in order of their numbers."""
        for number in sorted(self.by_number):
            state = self.by_number[number]
            if all(getattr(state, name) == value for name, value in wanted.items()):
                yield number, state

    def _take(self, event: Event) -> None:
        if event.kind == "read" and (event.data["row"] is None or not 0 <= event.data["row"] < self.plan.rows):
            self.strangers.append(event)
            return
        for number in event.rows:
            self._take_row(self.by_number[number], event)

    @staticmethod
    def _take_row(state: RowState, event: Event) -> None:
        if event.kind == "handed":
            state.handed = True
        elif event.kind == "seeded":
            state.seeded = True
        elif event.kind == "skipped":
            state.skipped = True
        elif event.kind == "handled":
            state.handled += event.data["as"] == "accepted"
        elif event.kind == "attempt":
            state.attempts[event.data["to"]] += 1
            state.unsure[event.data["to"]] += 1  # until it is settled
        elif event.kind == "settled":
            _settle(state, event)
        elif event.kind == "read":
            state.found[event.data["place"]].append(event)


def _settle(state: RowState, event: Event) -> None:
    place, outcome = event.data["to"], event.data["as"]
    if outcome != AMBIGUOUS:
        state.unsure[place] -= 1
    if outcome == STORED:
        state.stored[place] = event.t
    elif place == DESTINATION:
        state.refused |= outcome == "permanent"
        state.unattributed += outcome == "unattributed"
        state.held_back += event.data.get("code") == _HELD_BACK


def ids(events: Iterable[Event]) -> set[str | None]:
    """Return the ids under which a row was read."""
    return {event.data.get("id") for event in events}


#: Places where a row may be at the end without anything lost.
PLACES: Final = (DESTINATION, LETTERS, SOURCE)
