"""`Job`: the one operation of a place that the page carries out. Its state is a file, so it outlives the page.

The file lies beside the place's journal. While an operation runs, its process holds a lock beside the file that a kill
releases: a file that says "running" without the lock is of an operation that was interrupted, and can be resumed.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from redelivery.base.files import make_private, make_private_folder, open_private, refuse_link
from redelivery.deadletters.audit import AuditLog
from redelivery.deadletters.journal import Journal, default_path
from redelivery.deadletters.queue import DeadLetterQueue
from redelivery.deadletters.redrive import INTERRUPTED as STOPPED
from redelivery.deadletters.redrive import RedriveReport, RedriveSettings
from redelivery.errors import ConfigurationError, JournalError, RedeliveryError
from redelivery.ui.orders import Count, Order, TooLong, count, only, outcome
from redelivery.ui.safety import one_line
from redelivery.ui.source import Source

#: How an operation stands. Of `RESUMABLE` ones the rest can be done.
RUNNING: Final = "running"
DONE: Final = "done"
FAILED: Final = "failed"
CANCELLED: Final = "cancelled"
INTERRUPTED: Final = "interrupted"
CHANGED: Final = "changed"
RESUMABLE: Final = (FAILED, CANCELLED, INTERRUPTED)
#: Seconds between two writes of the file.
_OFTEN: Final = 0.5
#: Letters that one operation removes at most, and one call.
MOST_REMOVED: Final = 1_000_000
_TOGETHER: Final = 5_000
#: Letters that the audit log names.
_NAMED: Final = 20
#: Seconds that an ending page waits for letters in flight.
_LEAVE: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How an operation stands. Plain data.

    Attributes:
        name: tells it from any other.
        order: what was confirmed.
        count: how many letters were confirmed.
        who: confirmed it.
        to: redacted URL that letters go to; empty: where they failed.
        phase: see above.
        began_ms, ended_ms: milliseconds since the epoch.
        report: what was done so far: of a redrive its account, else how many letters are removed.
        error: one line, where it has failed.
        note: what the operator should know, in one line.
        started: whether letters could move: what was confirmed was found unchanged.
        before: letters that it moved before it was resumed.
        tally: how many letters the journal had noted as sent when it began: after a kill it knows more than this file.
        marks: of the letters that were confirmed (`orders.Marks`); empty: only their number is known.
    """

    name: str
    order: Order
    count: int
    who: str
    to: str = ""
    phase: str = RUNNING
    began_ms: int = 0
    ended_ms: int | None = None
    report: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""
    note: str = ""
    started: bool = False
    before: int = 0
    tally: int = 0
    marks: str = ""

    @property
    def is_running(self) -> bool:
        """Whether it goes on."""
        return self.phase == RUNNING

    @property
    def can_resume(self) -> bool:
        """Whether its rest can be done."""
        return self.phase in RESUMABLE and self.order.action != "purge"

    @property
    def moved(self) -> int:
        """How many letters it has sent or removed."""
        return self.before + int(self.report.get("redriven" if self.order.sends else "removed", 0) or 0)


class Job:
    """The operation of a place: at most one at a time, in whatever process.

    Args:
        source: the place.
        ended: called when one has ended.
    """

    def __init__(self, source: Source, ended: Callable[[], None]) -> None:
        self._source = source
        self._ended = ended
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._progress: Progress | None = None
        self._stop = threading.Event()
        self._leaving = False

    @property
    def state(self) -> Progress | None:
        """How the last operation stands; None: there was none. A file that cannot be read says nothing."""
        with self._lock:
            if self._runs():
                return self._progress
        path = self._path()
        found = None if path is None else _read(path)
        if path is None or found is None or not found.is_running:
            return found
        try:
            _held(path).close()
        except JournalError:
            return replace(found, note="It runs in another process.")
        return replace(found, phase=INTERRUPTED)

    def start(
        self, order: Order, found: Count, to: Source | None, who: str, *, resumes: Progress | None = None
    ) -> None:
        """Begin an operation.

        Args:
            order: what was confirmed.
            found: how many letters were confirmed.
            to: the place whose destination letters go to; None: where they failed.
            who: confirmed it.
            resumes: the operation that goes on.

        Raises:
            JournalError: one goes on at this place already, or its file cannot be written.
            ConfigurationError: this user has no folder for a journal.
        """
        with self._lock:
            path = self._path()
            if self._thread is not None and self._progress is not None and not self._progress.is_running:
                self._thread.join(_LEAVE)  # its end is shown a moment before it is over
            if self._runs() or self._leaving:
                raise JournalError(f"{self._source.name}: an operation goes on already; wait for it, or cancel it")
            if path is None:
                raise ConfigurationError("this user has no home folder to keep a journal in: set XDG_STATE_HOME")
            guard = _held(path)
            self._progress = Progress(
                name=secrets.token_hex(6) if resumes is None else resumes.name,
                order=order,
                count=found.count,
                who=who,
                to="" if to is None else to.shown_destination,
                began_ms=_now_ms() if resumes is None else resumes.began_ms,
                started=resumes is not None and resumes.started,
                before=0 if resumes is None else resumes.moved,
                tally=0 if resumes is None else resumes.tally,
                marks=found.marks,
            )
            try:
                _write(path, self._progress)
            except BaseException:
                guard.close()
                raise
            self._stop.clear()
            self._thread = threading.Thread(
                target=self._run, args=(path, guard, found, to), name="redelivery-operation", daemon=True
            )
            self._thread.start()

    def cancel(self) -> None:
        """Stop it after the letters in flight."""
        self._stop.set()

    def leave(self) -> None:
        """End with the page: letters in flight are settled, and what is left can be resumed."""
        with self._lock:
            self._leaving = True
            thread = self._thread
        self._stop.set()
        if thread is not None:
            thread.join(_LEAVE)

    def _runs(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _path(self) -> Path | None:
        """Return the file of this place's operations, by what it was configured with: the broker need not answer."""
        source = self._source
        try:
            journal = default_path("\n".join(["page", source.url, source.sink or "", source.subscription or ""]))
        except ConfigurationError:
            return None
        return journal.with_name(f"page-{journal.stem.partition('-')[2]}.json")

    def _run(self, path: Path, guard: sqlite3.Connection, found: Count, to: Source | None) -> None:
        phase, error = FAILED, ""
        try:
            phase = self._do(path, found, to)
        except RedeliveryError as raised:
            if self._stop.is_set() and isinstance(raised, TooLong):
                phase = CANCELLED
            else:
                error = one_line(raised)
        except Exception as raised:  # noqa: BLE001 - it must be seen on the page, not in a lost thread
            error = f"{type(raised).__name__}: {one_line(raised)}"
        with contextlib.suppress(JournalError):
            self._say(path, phase=phase, error=error, ended_ms=_now_ms())
        guard.close()
        self._ended()

    def _do(self, path: Path, found: Count, to: Source | None) -> str:
        """Do what was confirmed; return the phase in which it ends."""
        progress = self._progress
        assert progress is not None  # noqa: S101 - set before the thread begins
        order = progress.order
        opened = self._source if to is None else self._source.with_options_of(to)
        url = None if to is None else to.destination()
        with opened.open() as dlq, Journal(default_path(dlq.place), dlq.place) as journal:
            if not progress.started:
                journal.finished()  # what another operation left undone is not this one's
                if note := self._changed(order, found, dlq, url):
                    self._say(path, note=note)
                    return CHANGED
                self._say(path, started=True, tally=journal.tally)
            elif order.sends:
                before = min(progress.count, max(progress.before, journal.tally - progress.tally))
                progress = replace(progress, before=before)
                self._say(path, before=before)
            with AuditLog().operation(order.action, dlq.place, _meant(progress), who=progress.who) as told:
                move = self._redrive if order.sends else self._remove
                stopped = move(path, dlq, journal, url, told)
        if not stopped:
            self._say(path, note=_missing(self._progress or progress))
        return CANCELLED if stopped else DONE

    def _changed(self, order: Order, found: Count, dlq: DeadLetterQueue, url: str | None) -> str:
        """Return how the letters differ from those that were confirmed, where that matters; else an empty text."""
        if found.marks or dlq.looking_takes:
            # Only the letters that were confirmed are selected; to count again where looking takes would take them.
            return ""
        now = count(order, dlq, url, stop=self._stop.is_set)
        if now.count > found.count:
            return f"{found.count:,} letters were confirmed, and now there are {now.count:,}: nothing was done"
        if set(now.targets) - set(found.targets):
            return "some letters would go to another target than was confirmed: nothing was done; look again"
        return ""

    def _redrive(
        self, path: Path, dlq: DeadLetterQueue, journal: Journal, url: str | None, told: dict[str, Any]
    ) -> bool:
        """Send the letters back; return whether it was stopped before all were sent."""
        progress = self._progress
        assert progress is not None  # noqa: S101 - as above
        order = progress.order
        said = 0.0

        def show(report: RedriveReport) -> None:
            nonlocal said
            self._progress = replace(progress, report=outcome(report))
            if time.monotonic() - said >= _OFTEN:
                said = time.monotonic()
                self._say(path)

        settings = RedriveSettings(limit=progress.count, rate=order.rate, stop=self._stop.is_set, on_progress=show)
        report = dlq.redrive(
            to=url,
            where=only(order.selection(), progress.marks),
            settings=settings,
            journal=journal,
            patch=order.edit(),
            waves=order.in_waves(),
        )
        told.update(outcome(report))
        self._progress = replace(progress, report=outcome(report))
        return report.stopped == STOPPED

    def _remove(
        self, path: Path, dlq: DeadLetterQueue, _journal: Journal, _url: str | None, told: dict[str, Any]
    ) -> bool:
        """Remove the letters; return whether it was stopped before all were removed. The journal is its lock."""
        progress = self._progress
        assert progress is not None  # noqa: S101 - as above
        if progress.order.action == "purge":
            told["removed"] = dlq.purge()
            self._say(path, report={"removed": told["removed"]})
            return False
        made = dlq.made()
        most = min(progress.count - progress.before, MOST_REMOVED)
        positions: list[str] = []
        where = only(progress.order.selection(), progress.marks)
        for some in dlq.scan(lambda batch: list(batch.position.values), where):
            positions += some
            if len(positions) >= most or self._stop.is_set():
                break
        removed = 0
        for first in range(0, min(len(positions), most), _TOGETHER):
            if self._stop.is_set():
                return True
            removed += dlq.remove_at(positions[first : min(first + _TOGETHER, most)], made=made)
            told["removed"] = removed
            self._say(path, report={"removed": removed})
        return self._stop.is_set() and removed < most

    def _say(self, path: Path, **more: Any) -> None:
        """Keep how it stands."""
        progress = self._progress
        assert progress is not None  # noqa: S101 - as above
        self._progress = replace(progress, **more)
        _write(path, self._progress)


def _missing(progress: Progress) -> str:
    """Return why fewer letters were moved than were confirmed; an empty text: all were, or its account says why."""
    missing = progress.count - progress.moved
    if missing <= 0 or progress.order.action == "purge" or progress.report.get("stopped"):
        return ""
    if not progress.order.sends and progress.moved - progress.before >= MOST_REMOVED:
        return f"One operation removes at most {MOST_REMOVED:,} letters. Count again to remove the other {missing:,}."
    missing -= sum(int(progress.report.get(each, 0) or 0) for each in ("failed", "resumed"))
    missing -= sum((progress.report.get("left") or {}).values())
    return f"{missing:,} of the letters that were confirmed were gone." if missing > 0 else ""


def _meant(progress: Progress) -> str:
    """Return what was confirmed, for the audit log."""
    order = progress.order
    which = f"position {', '.join(list(order.letters)[:_NAMED])}" if order.letters else order.shown
    said = [which, f"{progress.count:,} confirmed"]
    said += [
        f"{name} {value}"
        for name in ("rate", "waves", "stop_at", "wave_wait", "patch")
        if (value := getattr(order, name))
    ]
    said += [f"to {progress.to}"] if progress.to else []
    said += [f"{progress.before:,} of them before it was resumed"] if progress.before else []
    return ", ".join(said)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _held(path: Path) -> sqlite3.Connection:
    """Return the lock of a file of operations, held until it is closed. Raises JournalError."""
    lock = path.with_suffix(".lock")
    try:
        make_private_folder(lock.parent)
        refuse_link(lock)
        make_private(lock)
        file = sqlite3.connect(lock, timeout=0.2, isolation_level=None, check_same_thread=False)
    except (OSError, sqlite3.Error) as error:
        raise JournalError(f"{str(lock)!r} cannot be opened: {error}") from error
    try:
        file.execute("BEGIN EXCLUSIVE")
    except sqlite3.Error as error:
        file.close()
        raise JournalError("an operation of this place goes on in another process; wait for it") from error
    return file


def _write(path: Path, progress: Progress) -> None:
    """Replace the file in one step. Raises JournalError."""
    text = json.dumps(asdict(progress))
    part = path.with_suffix(f".{os.getpid()}.part")
    try:
        make_private_folder(path.parent)
        part.unlink(missing_ok=True)
        with os.fdopen(open_private(part), "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError as error:
        raise JournalError(f"the state of the operation {str(path)!r} cannot be written: {error}") from error


def _read(path: Path) -> Progress | None:
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
        return Progress(**{**said, "order": Order.of(said["order"])})
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None
