"""The worlds of the redrive: `DeadLetterQueue.redrive` with its journal, alone, or two of them side by side.

Each redrive belongs to an operator, who starts it again when it was killed or has failed. The place may hide a letter
that one of them looks at, and the destination may recognise duplicates or not. At the end the network is quiet, and
one more redrive brings back what is left.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import ClassVar, Final

from redelivery.contract.broker import Limits, Support
from redelivery.contract.context import ErrorContext
from redelivery.contract.message import Header, Message
from redelivery.contract.spec import DeliverySpec
from redelivery.deadletters.patching import Patch
from redelivery.deadletters.queue import dead_letters
from redelivery.deadletters.redrive import RedriveReport, RedriveSettings
from redelivery.errors import Ambiguous, JournalError, Retriable
from redelivery.formats import dialects
from redelivery.policy.waves import Waves
from redelivery_conformance.memory import DEAD_LETTERS
from simulation import invariants
from simulation.broker import NOTHING, PLAIN, url_of
from simulation.choices import Choices
from simulation.invariants import End, Item
from simulation.scheduler import Killed, Process, Violated
from simulation.world import World, difference

WORK: Final = "work"
PLACE: Final = WORK + DEAD_LETTERS
#: Letters of one kind are as good as any other; the others test what a redrive must leave alone or leave unchanged.
KINDS: Final = ("ours", "hop", "maybe delivered", "foreign", "poison", "targeted", "spent")
#: Kinds of letters that stay where they are.
STAY: Final = frozenset({"poison", "targeted", "spent"})
#: The forms in which a letter may be sent: as it was, or edited in one of two ways.
FORMS: Final = (None, Patch(set_headers=(("edited", b"1"),)), Patch(set_headers=(("edited", b"2"),)))
#: How a redrive goes, if not all at once.
WAVES: Final = (None, None, None, Waves(sizes=(1, 2), stop_at=2, wait=timedelta(seconds=5)))
_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - only where it exists: a file system without a disk


@dataclass(eq=False, slots=True)
class Operator:
    """Somebody who redrives until it is done.

    Attributes:
        name: for the history.
        journal: the file; None: without one.
        limit: of letters.
        waves: how the redrive goes; None: all at once.
        sent: letters that have arrived under this limit.
        unnoted: of those, letters that could not be noted, as the redrive was killed or the disk was full.
    """

    name: str
    journal: Path | None
    limit: int | None
    waves: Waves | None
    sent: set[str] = field(default_factory=set)
    unnoted: set[str] = field(default_factory=set)


@dataclass(eq=False, slots=True)
class Life:
    """What one process has done.

    Attributes:
        operator: whose it is.
        sent: letters that it has sent.
        removing: letters that it has asked to remove.
    """

    operator: Operator
    sent: set[str] = field(default_factory=set)
    removing: set[str] = field(default_factory=set)
    looked: set[str] = field(default_factory=set)


class RedriveWorld(World):
    """One redrive, and its letters."""

    name = "redrive"
    states: ClassVar[tuple[str, ...]] = (
        "killed between a letter's send and its note",
        "killed between a letter's note and its removal",
        "killed between a letter's removal and the note of that",
        "a letter that was noted is removed, and not sent again",
        "the journal's disk is full",
        "a removal is carried out, perhaps in part, and not answered",
        "an ambiguous attempt is followed by a refusal",
        "what was stored without an answer is sent again",
        "an attempt without an answer arrived late",
        "a letter is hidden by somebody else who looked at it",
        "a limit holds for a killed redrive and the next one together",
        "a letter of another application comes back",
        "a letter that is refused stays",
    )
    operators_count: ClassVar[int] = 1

    def __init__(self, choices: Choices) -> None:
        super().__init__(choices)
        net = self.network
        seen = choices.pick("place", ("splits", "one reader", "hides", "shows some"))
        net.hides = seen == "hides"
        can = replace(PLAIN, deduplicate=Support.NATIVE) if choices.happens("recognises duplicates", 0.3) else PLAIN
        if seen != "splits":
            can = replace(can, splits=Support.NONE, cursors=Support.NONE)
        if seen == "shows some":
            can = replace(can, browse=Support.LOWER_BOUND)
        net.can[WORK] = net.can[PLACE] = can
        net.shown = 2 if seen == "shows some" else None
        net.differs, net.sent, net.told = self._differs, self._sent, self._told
        net.asked_to_remove, net.looked = self._asked_to_remove, self._looked
        self.spec = DeliverySpec(retry=choices.below("retry", 3), tolerance="all", allow_skip=True, log_enable=False)
        self.folder = Path(tempfile.mkdtemp(dir=_MEMORY if os.access(_MEMORY, os.W_OK) else None))
        self.kinds: dict[str, str] = {}
        self.hops: dict[str, int] = {}
        self.positions: dict[str, str] = {}
        for number in range(1 + choices.below("letters", 7)):
            self._bury(f"m{number}")
        self.edits = choices.happens("letters are edited", 0.4)
        self.operators = list(self._operators())
        self.lives_of: dict[Process, Life] = {}
        self.removing: set[tuple[object, str]] = set()
        self.licensed: dict[str, int] = {}
        self.hoped: set[str] = set()
        self.commanded: dict[str, str] = {}
        self.disk_full: set[Process] = set()
        self.done_by: dict[str, set[str]] = {}

    def _operators(self) -> Iterator[Operator]:
        # Only a common journal knows in which form a letter may have been sent.
        shared = self.edits or self.choices.happens("one journal for both", 0.5)
        for number in range(self.operators_count):
            without = not self.edits and self.choices.happens("no journal", 0.15)
            path = None if without else self.folder / f"journal{0 if shared else number}"
            # Another redrive with the same journal forgets the limit of one that was killed.
            alone = path is not None and not self.edits and not (shared and self.operators_count > 1)
            limit = self.choices.pick("limit", (None, None, 2, 3)) if alone else None
            yield Operator(f"operator-{number + 1}", path, limit, self.choices.pick("waves", WAVES))

    def _bury(self, name: str) -> None:
        choices, net = self.choices, self.network
        kind = KINDS[choices.often("kind of letter", len(KINDS) - 1, 0.4)]
        shared = name != "m0" and not net.can[WORK].deduplicate and choices.happens("shared id", 0.1)
        named = "m0" if shared else name
        message = Message(value=name.encode(), id=named, key=b"k", headers=(("mine", b"1"),))
        native = None
        if kind == "foreign":
            message = replace(message, native={"priority": 7}, headers=(("count", b"7"), ("x", None)))
            native = ErrorContext(kind="expired", reason="its time was over")
        self.send(message, name)
        self.kinds[name], self.hops[name] = kind, {"hop": 1, "spent": 5}.get(kind, 0)
        letter = message
        if kind != "foreign":
            context = ErrorContext(
                reason="no",
                kind="permanent",
                attempts=3,
                attempts_total=3,
                hops=self.hops[name],
                message_id=named,
                maybe_delivered=kind == "maybe delivered",
                target="victim" if kind == "targeted" else None,
            )
            stored = replace(message, id=f"{named}~{self.hops[name]}") if self.hops[name] else message
            letter = dialects.attach(stored, context, dialect="json", limits=Limits(), prefix="ce-")
        if kind == "poison":
            net.poison[WORK, name] = "permanent"
        position = net.store.add(PLACE, letter)
        if native is not None:
            net.store.queue(PLACE).why[position] = native
        self.positions[str(position)] = name

    # --- the run ---

    def run(self) -> None:
        try:
            tasks = [
                self.scheduler.spawn(partial(self._operate, each), each.name, Process(each.name))
                for each in self.operators
            ]
            self.scheduler.wait(lambda: all(task.done for task in tasks))
            for task in tasks:
                if task.failure is not None:
                    raise task.failure
            self._last()
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _operate(self, operator: Operator) -> None:
        """Start a redrive, and start it again if it was killed or has failed."""
        for process in self.lives(operator.name, 3, 70, 0.6):
            failure = self._one(operator, process, self.choices.pick("patch", FORMS) if self.edits else None)
            if failure is None:
                return
            if isinstance(failure, JournalError) and "is in use" in str(failure):
                self.scheduler.reach("the second redrive is refused: the journal is in use")
            elif not isinstance(failure, Killed | Retriable | Ambiguous | JournalError):
                why = f"{operator.name} ended with {failure!r}"
                self.scheduler.fail(_end_of(End(open=[], unexplained=why)))
            self.scheduler.sleep((1.0, 20.0)[self.choices.below("pause", 2)])

    def _one(self, operator: Operator, process: Process, patch: Patch | None) -> BaseException | None:
        life = self.lives_of[process] = Life(operator)
        failure = self.start(lambda: self._redrive(operator, operator.limit, patch), process)
        process.alive = False
        if process in self.disk_full:
            operator.unnoted |= life.sent
        return failure

    def _redrive(self, operator: Operator, limit: int | None, patch: Patch | None) -> None:
        stop = self.choices.happens("is interrupted", 0.1) and not self.network.quiet
        settings = RedriveSettings(
            limit=limit,
            rate=self.choices.pick("rate", (None, None, 4.0)),
            max_returns=None,
            stop=lambda: stop and self.choices.happens("now", 0.2),
        )
        waves = None if self.network.quiet else operator.waves
        with dead_letters(url_of(WORK), connection_factory=self.network.connected) as dlq:
            report = dlq.redrive(journal=operator.journal, settings=settings, spec=self.spec, patch=patch, waves=waves)
        self.scheduler.note(f"done: {report.redriven} redriven, {report.resumed} resumed, {report.stopped or 'all'}")
        if report.resumed:
            self.scheduler.reach("a letter that was noted is removed, and not sent again")
        self._check_report(operator, limit, report)

    def _last(self) -> None:
        """Bring back what is left, undisturbed."""
        self.network.quiet = True
        self.network.arrive(all_=True)
        self.scheduler.sleep(100.0)
        forms = FORMS if self.edits else (None,)
        for operator, patch in itertools.product(self.operators, forms):
            began = self.scheduler.now
            operator.limit = None
            failure = self._one(operator, Process(f"{operator.name}-last"), patch)
            took = self.scheduler.now - began
            invariants.at_the_end(
                End(
                    open=[],
                    unexplained="" if failure is None else f"the last redrive ended with {failure!r}",
                    late=f"the last redrive took {took:.0f} s" if took > 120 else "",
                )
            )
        invariants.always(self.items())
        there = self._there()
        # Where a place shows the first ones only, those that stay hide all others.
        shown = set(list(there)[: self.network.shown])
        open_ = [name for name, kind in self.kinds.items() if (name not in there if kind in STAY else name in shown)]
        invariants.at_the_end(End(open=[f"{name} ({self.kinds[name]})" for name in open_]))
        if any(kind == "poison" for kind in self.kinds.values()):
            self.scheduler.reach("a letter that is refused stays")

    # --- what the broker sees ---

    def _sent(self, process: Process, queue: str, name: str) -> None:
        life = self.lives_of[process]
        if name in life.sent:
            return
        life.sent.add(name)
        self.done_by.setdefault(name, set()).add(life.operator.name)
        if len(self.done_by[name]) > 1:
            self.scheduler.reach("two redrives have sent the same letter")
        if (life.operator.journal, name) not in self.removing:
            self.licensed[name] = self.licensed.get(name, 0) + 1

    def _told(self, process: Process, queue: str, name: str) -> None:
        self.lives_of[process].operator.sent.add(name)
        if self.kinds[name] == "foreign":
            self.scheduler.reach("a letter of another application comes back")

    def _asked_to_remove(self, process: Process, positions: Sequence[str]) -> None:
        life = self.lives_of[process]
        for position in positions:
            name = self.positions[position]
            life.removing.add(name)
            if life.operator.journal is not None and process not in self.disk_full:
                self.removing.add((life.operator.journal, name))
            if not self.network.book(WORK, name).confirmed:
                self.hoped.add(name)

    def _looked(self, process: Process, position: str) -> None:
        name, mine = self.positions[position], self.lives_of[process]
        mine.looked.add(name)
        for other, life in self.lives_of.items():
            if other.alive and life.operator is not mine.operator and name in life.looked and name in self._there():
                self.scheduler.reach("two redrives hold the same letter")
                return

    def journal_is_full(self) -> bool:
        if self.network.quiet or not self.choices.happens("the journal's disk is full", self.network.intensity / 8):
            return False
        self.scheduler.reach("the journal's disk is full")
        self.disk_full.add(self.scheduler.process)
        return True

    def on_kill(self, process: Process) -> None:
        life = self.lives_of.get(process)
        if life is None:
            return
        there, noted = self._there(), self._noted(life.operator)
        life.operator.unnoted |= life.sent - life.removing
        for name in life.sent:
            if name in there and name not in noted and self.network.book(WORK, name).arrived:
                self.scheduler.reach("killed between a letter's send and its note")
        for name in noted:
            if name in there:
                self.scheduler.reach("killed between a letter's note and its removal")
            elif name in life.removing:
                self.scheduler.reach("killed between a letter's removal and the note of that")

    def _noted(self, operator: Operator) -> set[str]:
        if operator.journal is None or not operator.journal.exists():
            return set()
        with (
            contextlib.closing(sqlite3.connect(operator.journal, timeout=0)) as file,
            contextlib.suppress(sqlite3.Error),
        ):
            return {self.positions[position] for (position,) in file.execute("SELECT position FROM letter")}
        return set()

    def _there(self) -> dict[str, None]:
        messages = self.network.store.queue(PLACE).messages
        return {name: None for position, name in self.positions.items() if int(position) in messages}

    # --- what is checked ---

    def items(self) -> Iterator[Item]:
        there = self._there()
        for name, kind in self.kinds.items():
            work = self.network.books.get((WORK, name), NOTHING)
            unanswered = max(0, len(work.arrived) - work.confirmed)
            recognises = bool(self.network.can[WORK].deduplicate)
            yield Item(
                name=f"{name} ({kind})",
                gone=name not in there,
                kept=bool(work.arrived),
                confirmed=name not in self.hoped,
                copies=len(work.arrived),
                excused=0 if recognises else unanswered + max(0, self.licensed.get(name, 0) - 1),
                ids=len({(message.id, _edit_of(message)) for message in work.arrived}),
                altered=work.altered,
                foreign=kind == "foreign",
                suppressed=work.misrecognised,
                harmed="it should have stayed" if work.arrived and kind in STAY else "",
                commanded=self.commanded.get(name, ""),
            )

    def _differs(self, queue: str, name: str, copy: Message) -> str:
        original, kind = self.originals[name], self.kinds[name]
        hop = self.hops[name] + 1
        edited = _edit_of(copy)
        same_id = kind == "foreign" or (kind == "maybe delivered" and not edited)
        copy = replace(copy, headers=tuple(each for each in copy.headers if each not in edited))
        wrong = difference(original if same_id else replace(original, id=f"{original.id}~{hop}"), copy)
        history = dialects.history(copy)
        if wrong or history.hops != hop:
            return wrong or f"it is sent back for the {hop}. time, and says {history.hops}"
        attempts = 0 if kind == "foreign" else 3
        if history.attempts_total != attempts:
            return f"it had {attempts} attempts, and says {history.attempts_total}"
        if copy.destination is not None:
            self.commanded[name] = f"it goes to {copy.destination!r}, as its headers say"
        return ""

    def _check_report(self, operator: Operator, limit: int | None, report: RedriveReport) -> None:
        left = sum(report.left.values())
        if report.considered != report.redriven + report.failed + left:
            account = f"considered {report.considered}, redriven {report.redriven}, failed {report.failed}, left {left}"
            self.scheduler.fail(_end_of(End(open=[], account=account)))
        if limit is not None and len(operator.sent - operator.unnoted) > limit:
            over = Item(name=operator.name, retries=len(operator.sent - operator.unnoted), allowed=limit)
            self.scheduler.fail(_item_of(over))
        if limit is not None and report.is_limited and "continued" in (report.stopped or ""):
            self.scheduler.reach("a limit holds for a killed redrive and the next one together")
        operator.sent.clear()
        operator.unnoted.clear()


class TwoRedrivesWorld(RedriveWorld):
    """Two redrives of one place, side by side."""

    name = "two-redrives"
    states = (
        "two redrives hold the same letter",
        "two redrives have sent the same letter",
        "the second redrive is refused: the journal is in use",
        "killed between a letter's send and its note",
        "killed between a letter's note and its removal",
        "a letter is hidden by somebody else who looked at it",
        "a removal is carried out, perhaps in part, and not answered",
    )
    operators_count = 2


def _edit_of(message: Message) -> tuple[Header, ...]:
    """Return what tells in which form a letter was sent."""
    return tuple(each for each in message.headers if each[0] == "edited")


def _end_of(end: End) -> Violated:
    return _raised(lambda: invariants.at_the_end(end))


def _item_of(item: Item) -> Violated:
    return _raised(lambda: invariants.always([item]))


def _raised(check: Callable[[], None]) -> Violated:
    try:
        check()
    except Violated as found:
        return found
    raise AssertionError("it holds")
