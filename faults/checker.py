"""Classifies each row of a history, and holds its claims, letters and reports against what an independent client read.

In the style of Jepsen's queue checker: what was acknowledged must be found; what is found must have been sent; what is
found though it was reported as failed or unknown is recovered. Pure: a history in, a verdict out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias, get_args

from faults.history import DESTINATION, LETTERS, SINK, Event, History
from faults.rows import PLACES, READ_AT, Rows, RowState, ids

#: ok: promised, and found once where it was promised.
#: dead-lettered: the same, at the dead letter place.
#: lost: promised, or seeded, and found nowhere.
#: duplicated, duplicated-ids: found more than once at one place, under one id or under several.
#: recovered: not promised (failed, or unknown), and found.
#: failed: not promised, and found nowhere; its job failed.
#: skipped: given up without a sink, as its spec allows, and counted.
#: waiting: still at its source.
#: handled: a subscriber has accepted it.
#: destroyed: stored before the fault destroyed its place.
Class: TypeAlias = Literal[
    "ok",
    "dead-lettered",
    "lost",
    "duplicated",
    "duplicated-ids",
    "recovered",
    "failed",
    "skipped",
    "waiting",
    "handled",
    "destroyed",
]
CLASSES: Final[tuple[Class, ...]] = get_args(Class)
#: Number of the rule that a run itself is broken: it shows nothing.
RUN: Final = 0


@dataclass(frozen=True, slots=True)
class Violation:
    """An invariant that does not hold.

    Attributes:
        invariant: its number in the README; RUN: the run itself shows nothing.
        what: one sentence.
        rows: numbers of the rows that it is about, if any.
    """

    invariant: int
    what: str
    rows: tuple[int, ...] = ()

    def __str__(self) -> str:
        some = ", ".join(map(str, self.rows[:10])) + (", ..." if len(self.rows) > 10 else "")  # noqa: PLR2004
        about = f" ({len(self.rows)} rows: {some})" if self.rows else ""
        return f"invariant {self.invariant}: {self.what}{about}" if self.invariant else f"the run: {self.what}{about}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on a history.

    Attributes:
        counts: rows by class, and `unexpected`: messages that no process sent.
        violations: none, if all invariants hold.
    """

    counts: Counter[str] = field(default_factory=Counter)
    violations: Sequence[Violation] = ()

    @property
    def ok(self) -> bool:
        """Whether every invariant holds."""
        return not self.violations


def check(history: History) -> Verdict:
    """Return the verdict on one history. Raises ValueError: it has no plan or no start."""
    return _Check(history).verdict()


class _Check:
    def __init__(self, history: History) -> None:
        start = history.first("start")
        if start is None:
            raise ValueError("a history needs its start")
        self.history = history
        self.start = start.data
        self.rows = Rows(history)
        self.reports = [event.data["report"] for event in history.of("reported")]
        self.failures = list(history.of("failed"))
        lives = Counter(event.kind for event in history.of("killed", "restarted", "overrun"))
        #: The last process was ended, so no process promised anything by ending well.
        self.killed = lives["killed"] > lives["restarted"] or lives["overrun"] > 0
        self.destroyed = _destroyed(history)

    def verdict(self) -> Verdict:
        classes = {number: self._class(state) for number, state in self.rows.where()}
        counts: Counter[str] = Counter(classes.values())
        counts["unexpected"] = len(self.rows.strangers) + sum(
            state.copies(DESTINATION) + state.copies(LETTERS)
            for _, state in self.rows.where(handed=False, seeded=False)
        )
        return Verdict(counts, list(self._violations(classes, counts)))

    # --- rows -------------------------------------------------------------------------------------------------------

    def _class(self, state: RowState) -> Class:
        gone = [place for place in state.stored if not self._is_there(state, place)]
        if any(not self._is_excused(state, place) for place in gone):
            return "lost"
        found = _copies(state)
        several = [place for place in (DESTINATION, LETTERS) if state.copies(place) > 1]
        if several:
            return "duplicated" if all(len(ids(state.found[place])) == 1 for place in several) else "duplicated-ids"
        if gone and not found:
            return "destroyed"
        if not found:
            return self._of_absent(state)
        return self._of_found(state)

    def _of_absent(self, state: RowState) -> Class:
        if state.handled:
            return "handled"
        if state.skipped:
            return "skipped"
        if state.seeded:
            return "destroyed" if self.destroyed else "lost"
        return "failed"

    @staticmethod
    def _of_found(state: RowState) -> Class:
        if state.handled:
            return "handled"
        if state.copies(DESTINATION):
            return "ok" if DESTINATION in state.stored else "recovered"
        if state.copies(LETTERS):
            return "dead-lettered" if SINK in state.stored or state.seeded else "recovered"
        return "waiting"

    @staticmethod
    def _is_there(state: RowState, place: str) -> bool:
        return state.copies(READ_AT[place]) > 0

    def _is_excused(self, state: RowState, place: str) -> bool:
        until = self.destroyed.get(READ_AT[place])
        return until is not None and state.stored[place] <= until

    # --- invariants -------------------------------------------------------------------------------------------------

    def _violations(self, classes: dict[int, Class], counts: Counter[str]) -> Iterator[Violation]:
        yield from self._run()
        lost = tuple(number for number, each in classes.items() if each == "lost")
        if lost:
            yield Violation(1, "acknowledged and not found by an independent client", lost)
        changed = self._with(lambda state: any(event.data["differs"] for event in state.found[DESTINATION]))
        if changed:
            yield Violation(1, "delivered with another value, key or header than was handed over", changed)
        if counts["unexpected"]:
            yield Violation(1, f"{counts['unexpected']} messages found that nobody sent")
        yield from self._accounts()
        yield from self._duplicates()
        yield from self._letters()
        yield from self._reports()
        harmed = tuple(n for n, state in self.rows.where(refused=True) if n not in self.rows.plan.poison)
        if harmed and not self.destroyed and not self.start.get("refuses"):
            yield Violation(8, "refused for good although only other rows are poison", harmed)

    def _run(self) -> Iterator[Violation]:
        for event in self.history.of("overrun"):
            yield Violation(7, f"it had not ended after {event.data['seconds']:.0f} s")
        for event in self.history.of("fault"):
            if not event.data.get("met", True):
                yield Violation(RUN, f"the fault {event.data['fault']} met no running process")
        if not self.reports and not self.failures and not self.killed:
            yield Violation(RUN, "a process ended without a report and without an error")
        if self.failures and self.start.get("survives"):
            error = self.failures[0].data["error"]
            yield Violation(2, f"the job failed although the fault ended within its retries: {error}")

    def _accounts(self) -> Iterator[Violation]:
        if not self.reports or self.failures or self.killed:
            return
        missing = self._with(lambda state: state.handed and not state.promised)
        if missing and self._sees_attempts:
            yield Violation(2, "neither delivered, nor dead-lettered, nor skipped; and the job succeeded", missing)
        unread = tuple(
            number
            for number, state in self.rows.where(handed=True)
            if not state.promised and not any(state.copies(place) for place in PLACES) and not self.destroyed
        )
        if unread and not self._sees_attempts:
            yield Violation(1, "not found by an independent client; and the job succeeded", unread)

    def _duplicates(self) -> Iterator[Violation]:
        more, others = [], []
        for number, state in self.rows.where():
            for to, place in READ_AT.items():
                allowed = int(self.start.get("processes", 1)) + self.rows.lives + max(state.unsure[to], 0)
                if state.copies(place) > allowed:
                    more.append(number)
                if self.start["ids"] and state.copies(place) > 1 and len(ids(state.found[place])) > 1:
                    others.append(number)
        if more:
            yield Violation(3, "more copies than 1 + ambiguous attempts + restarts", tuple(more))
        if others:
            yield Violation(3, "copies under different ids", tuple(others))

    def _letters(self) -> Iterator[Violation]:
        changed = self._with(lambda state: any(event.data["differs"] for event in state.found[LETTERS]))
        if changed:
            yield Violation(4, "dead-lettered with another value, key or header than was handed over", changed)
        uncounted = self._with(
            lambda state: any(not _is_counted(event, state, self.rows.lives) for event in state.found[LETTERS])
        )
        if uncounted:
            yield Violation(4, "a letter that does not say how often its row was tried", uncounted)
        silent = self._with(lambda state: any(not event.data.get("reason") for event in state.found[LETTERS]))
        if silent:
            yield Violation(2, "dead-lettered without a reason", silent)

    def _reports(self) -> Iterator[Violation]:
        for report in self.reports:
            if "accounted" in report:
                yield from self._report(report)

    def _report(self, report: dict[str, Any]) -> Iterator[Violation]:
        handed = sum(1 for _ in self.rows.where(handed=True))
        if report["rows"] != handed:
            yield Violation(2, f"the report counts {report['rows']} rows of {handed} that were handed over")
        if report["rows"] != report["delivered"] + report["dead_lettered"] + report["skipped"]:
            yield Violation(2, "the report does not add up")
        for name, to, number in (("delivered", DESTINATION, 1), ("dead_lettered", SINK, 5)):
            if READ_AT[to] in self.destroyed:
                continue
            found = sum(1 for _, state in self.rows.where() if state.copies(READ_AT[to]))
            if report[name] > found:
                yield Violation(
                    number, f"the report says {name}: {report[name]}, and an independent client finds {found}"
                )
            said = sum(1 for _, state in self.rows.where() if to in state.stored)
            if self._sees_attempts and report[name] != said:
                yield Violation(2, f"the report says {name}: {report[name]}, and the broker confirmed {said}")
        more = sum(max(state.copies(DESTINATION) - 1, 0) for _, state in self.rows.where())
        if more > report["ambiguous"] and not self.rows.lives:
            yield Violation(3, f"{more} duplicates, and the report says ambiguous: {report['ambiguous']}")

    @property
    def _sees_attempts(self) -> bool:
        """Whether the processes under test wrote down what their plugin was asked."""
        return any(True for _ in self.history.of("attempt"))

    def _with(self, condition: Any) -> tuple[int, ...]:
        return tuple(number for number, state in self.rows.where() if condition(state))


def _copies(state: RowState) -> int:
    return sum(map(state.copies, PLACES))


def _is_counted(letter: Event, state: RowState, lives: int) -> bool:
    """Whether a letter's count of attempts is true, as far as attempts were seen.

    Attempts that only look for the culprit in a refused batch do not count, and a restarted process begins again.
    """
    said, seen = letter.data.get("attempts"), state.attempts[DESTINATION]
    if said is None or said < 1:
        return False
    return not seen or (1 if lives else seen - state.unattributed - state.held_back) <= said <= seen


def _destroyed(history: History) -> dict[str, float]:
    """Return until when rows that were stored at a place may be gone: the end of the fault that destroyed it."""
    until: dict[str, float] = {}
    for event in history.of("fault", "healed"):
        for place in event.data.get("destroys", ()):
            until[place] = event.t if event.kind == "healed" else float("inf")
    return until
