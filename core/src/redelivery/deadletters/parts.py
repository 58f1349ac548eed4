"""A redrive that several processes share: each has a part of the letters (`Part`), and one leads (`Leader`).

They share a folder, `<journal>.parts`. A part notes there what it has sent, in its own journal, and how far it is. The
leader holds the redrive's own journal, and with it the right to redrive this place, and writes there when all must
stop. A part whose leader has gone, or has been followed by another, stops by itself: no other part may send its letters
before.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Final, Self

from redelivery.base.files import make_private, make_private_folder
from redelivery.contract.broker import DeadLetters, Letter, LetterBatch, Wanted
from redelivery.deadletters.journal import CONTROL, PART, Journal, parts_folder
from redelivery.deadletters.redrive import INTERRUPTED, RedriveReport
from redelivery.deadletters.triage import Parked
from redelivery.errors import JournalError

log = logging.getLogger("redelivery.redriving")

#: Seconds to wait for processes that a killed leader has left behind. They end by themselves, a batch later.
_ORPHANS: Final = 30.0
#: Seconds between two reports of a part.
_REPORT: Final = 0.5
_PROGRESS: Final = ".json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One process's part of a redrive; plain data.

    Attributes:
        run: names the redrive.
        number: names the part within it.
        splits: the letters: splits of `DeadLetters.splits`.
        wanted: what the splits were planned for.
        folder: where the processes meet; None: nothing is sent, so that nothing has to be noted.
        earlier: letters that earlier runs have sent, and not removed as far as they knew: digests by position.
        unsure: letters that earlier runs may have sent: digest and form, by position (`Journal.unsure`).
        limit: the most letters that this part may send, however often its process is started again; None: any number.
        made: the place as its leader found it (`DeadLetterQueue.made`).
        now_ms: the time to which ages of letters are computed, by the leader's clock: the same for all parts.
        parked: what the leader's triage knows as parked: such letters stay.
    """

    run: str
    number: int
    splits: Sequence[str]
    wanted: Wanted
    folder: Path | None = None
    earlier: Mapping[str, str] = field(default_factory=dict)
    unsure: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    limit: int | None = None
    made: str | None = None
    now_ms: int
    parked: Parked = field(default_factory=Parked)

    def must_stop(self) -> bool:
        """Whether the leader has said so, or has gone."""
        return self.folder is not None and _control(self.folder, self.run) != ""

    def reporter(self, name: str = "") -> Reporter:
        """Return what tells the leader how far this part is; `name` tells several reports of a part from each other."""
        return Reporter(self, name)


class Reporter:
    """Writes a part's report for its leader to read, not too often."""

    def __init__(self, part: Part, name: str) -> None:
        self._path = None if part.folder is None else part.folder / f"{part.run}-{part.number}{name}{_PROGRESS}"
        self._next = 0.0

    def __call__(self, report: RedriveReport) -> None:
        """Write a report, if the last one is old enough. A report that cannot be written stops nothing."""
        if time.monotonic() >= self._next:
            with contextlib.suppress(JournalError):
                self.write(report)

    def write(self, report: RedriveReport) -> None:
        """Write a report now. Raises JournalError."""
        self._next = time.monotonic() + _REPORT
        if self._path is None:
            return
        partial = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            partial.write_text(json.dumps(asdict(report)), encoding="utf-8")
            partial.replace(self._path)
        except OSError as error:
            raise JournalError(f"{str(self._path)!r}, where a redrive notes how far it is: {error}") from error


class PartJournal(Journal):
    """The journal of a part. Its lock keeps a second process from the same part.

    Attributes:
        settled: of the letters that earlier runs had sent, those that are now removed.

    Raises:
        JournalError: the part's leader has gone, or another process still has the part.
    """

    def __init__(self, part: Part, source: str) -> None:
        if part.folder is None:
            raise AssertionError("a dry run has no journal")
        path = part.folder / f"{part.run}-{part.number}{PART}"
        super().__init__(path, source, wait=_ORPHANS)
        self._earlier = part.earlier
        self._unsure_before = part.unsure
        self.settled: list[str] = []
        if _control(part.folder, part.run) is None:  # after the lock, so that a new leader sees one of both
            self.close()
            raise JournalError(f"the redrive {part.run} has ended, or another one of {source} has begun")

    def pending(self) -> dict[str, str]:
        return {**self._earlier, **self.noted()}

    def unsure(self) -> dict[str, tuple[str, str]]:
        return {**self._unsure_before, **super().unsure()}

    def _write(
        self, removed: Sequence[str], sent: Mapping[str, str], count: int, refused: Collection[str] = ()
    ) -> None:
        super()._write(removed, sent, count, refused)
        self.settled += [each for each in removed if each in self._earlier]


class PartLetters(DeadLetters):
    """The letters of some splits of a place. Closing it leaves the place open."""

    def __init__(self, letters: DeadLetters, splits: Sequence[str], wanted: Wanted) -> None:
        self._letters = letters
        self._splits = splits
        self._wanted = wanted

    def browse(self) -> Iterator[Letter]:
        for split in self._splits:
            for batch in self._letters.read(split, self._wanted):
                yield from batch.letters()

    def splits(self, wanted: Wanted) -> Sequence[str]:  # noqa: ARG002 - they are planned
        return self._splits

    def read(self, split: str, wanted: Wanted) -> Iterator[LetterBatch]:
        return self._letters.read(split, replace(self._wanted, columns=wanted.columns))

    def remove(self, positions: Sequence[str]) -> int:
        return self._letters.remove(positions)

    def purge(self) -> int:
        return self._letters.purge()

    def close(self) -> None:
        pass


class Leader:
    """The process that leads a redrive: as long as it is open, no other redrive of the place can begin.

    Args:
        journal: the file of the redrive's own journal, as for a redrive by one process.
        source: redacted URL of the dead letter queue.
        run: names the redrive.

    Attributes:
        folder: where the processes meet.
        earlier: letters that earlier runs have sent, and not removed as far as they knew: digests by position.
        unsure: letters that earlier runs may have sent (`Journal.unsure`).

    Raises:
        ConfigurationError: the file is another queue's journal, or is not a journal.
        JournalError: another redrive of the place is running, or the files cannot be written.
    """

    def __init__(self, journal: Path, source: str, run: str) -> None:
        self.folder = parts_folder(journal)
        self._run = run
        self._journal = Journal(journal, source)
        try:
            make_private_folder(self.folder)
            self._journal.disown()  # first: parts of a dead leader see that it is gone
            for path in self.folder.glob(f"*{_PROGRESS}"):
                path.unlink(missing_ok=True)
            self._journal.absorb(wait=_ORPHANS)
            self.earlier = self._journal.noted()
            self.unsure = self._journal.unsure()
            make_private(self._control)
        except OSError as error:
            self._journal.close()
            text = f"the folder {str(self.folder)!r}, where the processes of a redrive meet, cannot be used"
            raise JournalError(f"{text}: {error}") from error
        except BaseException:
            self._journal.close()
            raise

    @property
    def _control(self) -> Path:
        return self.folder / f"{self._run}{CONTROL}"

    def stop(self, reason: str) -> None:
        """Make all parts stop after the letters in flight are settled."""
        with contextlib.suppress(OSError):
            self._control.write_text(reason, encoding="utf-8")

    @property
    def stopped(self) -> str | None:
        """Why all parts were told to stop; None where they were not."""
        return _control(self.folder, self._run) or None

    def progress(self, name: str = "") -> RedriveReport:
        """Return how far all parts are, as far as they have told in the reports of this name."""
        found = []
        for path in self.folder.glob(f"{self._run}-*{name}{_PROGRESS}"):
            if not path.name.removeprefix(f"{self._run}-").removesuffix(f"{name}{_PROGRESS}").isdecimal():
                continue  # a report of another name
            with contextlib.suppress(OSError, ValueError, TypeError):
                found.append(RedriveReport(**json.loads(path.read_text(encoding="utf-8"))))
        return RedriveReport.total(found)

    def began(self, redrive: str) -> int:
        """Return how many letters this redrive has sent already; see `Journal.began`."""
        return self._journal.began(redrive)

    def finish(self, settled: Sequence[str]) -> None:
        """Note what the parts have removed, and take over their journals. All parts have ended, none by an error.

        A redrive that was interrupted is not finished: the next one of its name goes on with what is left of its limit.

        Args:
            settled: of `earlier`, what is removed now.
        """
        try:
            self._journal.removed(settled)
            self._journal.absorb()
            if self.stopped != INTERRUPTED:
                self._journal.finished()
        except JournalError as error:
            log.warning("the next redrive takes over what this one has noted: %s", error)

    def close(self) -> None:
        """Let another redrive of the place begin. Parts that still run stop."""
        with contextlib.suppress(OSError):
            for path in [self._control, *self.folder.glob(f"{self._run}-*{_PROGRESS}")]:
                path.unlink(missing_ok=True)
            self.folder.rmdir()
        self._journal.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _control(folder: Path, run: str) -> str | None:
    """Return why all parts must stop, "" where they need not; None where the leader has gone."""
    try:
        return (folder / f"{run}{CONTROL}").read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise JournalError(f"the folder {str(folder)!r} of this redrive cannot be read: {error}") from error
