"""Histories for tests of the checker: a run in which all is well, and ways to break it on purpose."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from faults.history import DESTINATION, LETTERS, SINK, SOURCE, STORED, Event, History, Kind
from faults.plan import Plan

ROWS = 12
PLAN = Plan(7, ROWS, frozenset({3, 8}), ())


class Story:
    """Events that are added one by one; each happens after the one before."""

    def __init__(self, **start: Any) -> None:
        self.events: list[Event] = []
        self.add("plan", plan=PLAN.to_dict())
        self.add("start", **{"ids": True, "survives": True, "processes": 1, **start})

    def add(self, kind: Kind, **data: Any) -> Story:
        self.events.append(Event(float(len(self.events)), "test", kind, data))
        return self

    def attempt(self, *rows: int, to: str = DESTINATION) -> Story:
        return self.add("attempt", rows=list(rows), to=to)

    def settle(self, *rows: int, outcome: str = STORED, to: str = DESTINATION, code: str | None = None) -> Story:
        return self.add("settled", **{"rows": list(rows), "to": to, "as": outcome, "code": code})

    def read(self, *rows: int | None, place: str = DESTINATION, **data: Any) -> Story:
        for row in rows:
            letter = {"attempts": 1, "reason": "refused"} if place == LETTERS else {}
            told = {"row": row, "id": f"7-{row}", "differs": [], **letter, **data}
            self.add("read", place=place, **told)
        return self

    def report(self, **changes: int) -> Story:
        counts = {"rows": ROWS, "delivered": ROWS - 2, "dead_lettered": 2, "skipped": 0, "ambiguous": 0}
        return self.add("reported", report={**counts, "accounted": True, **changes})

    def history(self) -> History:
        return History(self.events)


def without(story: Story, condition: Callable[[Event], bool]) -> Story:
    """Leave out events."""
    story.events = [event for event in story.events if not condition(event)]
    return story


def changed(story: Story, condition: Callable[[Event], bool], **data: Any) -> Story:
    """Change the data of events."""
    story.events = [
        Event(each.t, each.who, each.kind, {**each.data, **data}) if condition(each) else each for each in story.events
    ]
    return story


def is_read(row: int, place: str = DESTINATION) -> Callable[[Event], bool]:
    """Whether an event is a read of a row at a place."""
    return lambda event: event.kind == "read" and event.data["row"] == row and event.data["place"] == place


def healthy(**start: Any) -> Story:
    """A job that delivers ten rows and dead-letters two."""
    story = Story(**start)
    good = [row for row in range(ROWS) if row not in PLAN.poison]
    poison = sorted(PLAN.poison)
    story.add("handed", rows=list(range(ROWS))).attempt(*range(ROWS))
    story.settle(*good).settle(*poison, outcome="permanent")
    story.attempt(*poison, to=SINK).settle(*poison, to=SINK).report()
    return story.read(*good).read(*poison, place=LETTERS)


def redriven() -> Story:
    """A redrive of twelve letters that is killed after a confirmation, and started again."""
    story = Story().add("seeded", rows=list(range(ROWS)))
    story.attempt(*range(6)).settle(*range(6)).add("killed", process="redrive").add("restarted", process="redrive")
    story.attempt(*range(5, ROWS)).settle(*range(5, ROWS)).add("reported", report={"redriven": ROWS})
    return story.read(*range(ROWS)).read(5)


def subscribed() -> Story:
    """A subscription that accepts ten of twelve messages and leaves two."""
    story = Story().add("seeded", rows=list(range(ROWS)))
    story.add("handled", **{"rows": list(range(10)), "as": "accepted"}).add("reported", report={"accepted": 10})
    return story.read(10, 11, place=SOURCE)


Break = Callable[[], Story]


def _accounted(**changes: int) -> Break:
    def broken() -> Story:
        story = healthy()
        is_report: Callable[[Event], bool] = lambda event: event.kind == "reported"  # noqa: E731 - a condition
        report: Mapping[str, Any] = next(event.data["report"] for event in story.events if is_report(event))
        return changed(story, is_report, report={**report, **changes})

    return broken


def _two_ids() -> Story:
    return healthy(processes=2).read(1, id="other")


def _unsettled() -> Story:
    story = healthy()
    story.events = [
        Event(each.t, each.who, each.kind, {**each.data, "rows": [row for row in each.rows if row != 5]})
        if each.kind == "settled" and each.data["to"] == DESTINATION
        else each
        for each in story.events
    ]
    return story


def _failed() -> Story:
    return without(healthy(), lambda event: event.kind == "reported").add("failed", error="DeliveryFailed: no")


def _harmed() -> Story:
    return healthy().settle(1, outcome="permanent")


#: By the defect: a history with it, the number of the invariant, and words of its violation.
BROKEN: Mapping[str, tuple[Break, int, str]] = {
    "an acknowledged row is gone": (lambda: without(healthy(), is_read(1)), 1, "acknowledged and not found"),
    "a letter is gone": (lambda: without(healthy(), is_read(3, LETTERS)), 1, "acknowledged and not found"),
    "a letter of a redrive is gone": (
        lambda: without(redriven(), lambda e: 9 in e.rows and e.kind == "read"),
        1,
        "acknowledged and not found",
    ),
    "a message of a subscription is gone": (
        lambda: without(subscribed(), is_read(11, SOURCE)),
        1,
        "acknowledged and not found",
    ),
    "a delivered row has other bytes": (
        lambda: changed(healthy(), is_read(1), differs=["value"]),
        1,
        "with another value",
    ),
    "a message that nobody sent": (lambda: healthy().read(None), 1, "nobody sent"),
    "a row that was not handed over": (
        lambda: changed(healthy(), lambda e: e.kind == "handed", rows=list(range(11))),
        1,
        "nobody sent",
    ),
    "a row of which nothing is known, and the job succeeded": (_unsettled, 2, "neither delivered"),
    "a job that fails in a fault that ends": (_failed, 2, "the job failed"),
    "a report that misses a row": (_accounted(rows=ROWS - 1), 2, "counts 11 rows of 12"),
    "a report that does not add up": (_accounted(skipped=1), 2, "does not add up"),
    "a report of rows that nobody confirmed": (_accounted(delivered=11, dead_lettered=1), 1, "finds 10"),
    "a report of letters that nobody confirmed": (_accounted(delivered=9, dead_lettered=3), 5, "finds 2"),
    "a report of fewer rows than were confirmed": (_accounted(rows=ROWS, delivered=9, skipped=1), 2, "confirmed 10"),
    "a letter without a reason": (lambda: changed(healthy(), is_read(3, LETTERS), reason=""), 2, "without a reason"),
    "a copy without an ambiguous attempt": (lambda: healthy().read(1), 3, "more copies"),
    "a copy under another id": (_two_ids, 3, "different ids"),
    "a duplicate that the report does not admit": (lambda: healthy(processes=2).read(1), 3, "ambiguous: 0"),
    "a letter with another header": (
        lambda: changed(healthy(), is_read(3, LETTERS), differs=["headers"]),
        4,
        "dead-lettered with another",
    ),
    "a letter that counts too many attempts": (
        lambda: changed(healthy(), is_read(3, LETTERS), attempts=2),
        4,
        "how often its row was tried",
    ),
    "a letter that counts too few attempts": (
        lambda: changed(healthy().attempt(3).settle(3, outcome="retriable"), is_read(3, LETTERS), attempts=1),
        4,
        "how often its row was tried",
    ),
    "a letter that counts no attempt": (
        lambda: changed(healthy(), is_read(3, LETTERS), attempts=None),
        4,
        "how often its row was tried",
    ),
    "a process that does not end": (lambda: healthy().add("overrun", seconds=90.0), 7, "had not ended after 90 s"),
    "a good row that is refused for good": (_harmed, 8, "refused for good"),
    "a fault that met nobody": (lambda: healthy().add("fault", fault="reset", met=False), 0, "met no running process"),
    "a process that ends without a word": (
        lambda: without(healthy(), lambda e: e.kind == "reported"),
        0,
        "without a report",
    ),
}
