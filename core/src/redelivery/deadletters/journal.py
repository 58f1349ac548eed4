"""`Journal`: the letters that a redrive has sent and not yet removed, on disk, so that a killed run can continue.

A letter is written here after its destination has confirmed it and before it is removed. At the next start, letters
found here are removed and not sent again, if they are still the same letters: hence the digest. Before a redrive sends
letters it notes in which form: as they were, or edited by which patch. A letter that may have been sent in one form is
never sent in another.

It is an SQLite file, for its durable transactions, and for a lock that a killed process does not keep.

Processes that share one redrive have a journal each, in the folder `parts_folder` beside that of the redrive. The next
run of any kind takes over what they noted.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sqlite3
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Self

from redelivery.base.files import make_private, make_private_folder, refuse_link
from redelivery.errors import ConfigurationError, JournalError

#: Marks the file as ours (SQLite's `application_id`).
_MARK: Final = 0x72644C67
_BUSY: Final = 0.5
#: How the name of a journal of one process ends.
PART: Final = ".db"
#: How the name of the file ends that lives as long as the leader of a shared redrive does.
CONTROL: Final = ".run"


def default_path(source: str) -> Path:
    """Return the default path of a dead letter queue's journal: in the user's state folder.

    One place has one file, so two redrives of it by one user of one host use the same one.

    Raises:
        ConfigurationError: the user has no state folder.
    """
    try:
        state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    except RuntimeError as error:
        text = "this user has no home folder to keep a redrive's journal in: name a file for it, or set XDG_STATE_HOME"
        raise ConfigurationError(text) from error
    return Path(state) / "redelivery" / f"redrive-{hashlib.sha256(source.encode()).hexdigest()[:16]}.db"


def parts_folder(path: Path) -> Path:
    """Return the folder for the journals of processes that share the redrive whose journal is at `path`."""
    return path.with_name(f"{path.name}.parts")


class Journal:
    """The journal of one dead letter queue, locked for as long as it is open.

    Args:
        path: created if it is missing, with its folder, for its owner alone; must not be a symbolic link.
        source: redacted URL of the dead letter queue.
        wait: seconds to wait for another process's lock.

    Raises:
        ConfigurationError: the file is another queue's journal, or is not a journal.
        JournalError: it is in use by another redrive, or cannot be opened.
    """

    def __init__(self, path: Path, source: str, *, wait: float = _BUSY) -> None:
        self.path = path
        self._source = source
        #: Positions that the file holds; None: not known yet.
        self._held: set[str] | None = None
        #: Positions of letters that may have been sent, as noted by earlier requests; None: not known yet.
        self._unsure: set[str] | None = None
        try:
            make_private_folder(path.parent)
            refuse_link(path)
            make_private(path)
            self._file = sqlite3.connect(path, timeout=wait, isolation_level=None)
        except (OSError, sqlite3.Error) as error:
            raise JournalError(f"the journal {str(path)!r} cannot be opened: {error}") from error
        try:
            self._claim(source)
        except sqlite3.OperationalError as error:
            self._file.close()
            why = (
                "is in use: another redrive of this place is running" if _locked(error) else f"cannot be used: {error}"
            )
            raise JournalError(f"the journal {str(path)!r} {why}") from error
        except sqlite3.DatabaseError as error:
            self._file.close()
            raise ConfigurationError(f"{str(path)!r} is not a journal: {error}; name another file") from error
        except ConfigurationError:
            self._file.close()
            raise

    def _claim(self, source: str) -> None:
        run = self._file.execute
        run("PRAGMA locking_mode = EXCLUSIVE")
        run("BEGIN EXCLUSIVE")
        (marker,) = run("PRAGMA application_id").fetchone()
        (tables,) = run("SELECT count(*) FROM sqlite_master").fetchone()
        if marker != _MARK and tables:
            raise ConfigurationError(f"{str(self.path)!r} is another program's file, and no journal; name another file")
        run(f"PRAGMA application_id = {_MARK}")
        run("CREATE TABLE IF NOT EXISTS place (source TEXT NOT NULL, sent INTEGER NOT NULL)")
        run("CREATE TABLE IF NOT EXISTS letter (position TEXT PRIMARY KEY, digest TEXT NOT NULL) WITHOUT ROWID")
        run("CREATE TABLE IF NOT EXISTS unfinished (redrive TEXT NOT NULL, began INTEGER NOT NULL, wave TEXT)")
        if "wave" not in {name for _, name, *_ in run("PRAGMA table_info(unfinished)")}:
            run("ALTER TABLE unfinished ADD COLUMN wave TEXT")  # an earlier version made the file
        run("CREATE TABLE IF NOT EXISTS absorbed (part TEXT PRIMARY KEY) WITHOUT ROWID")
        # Letters of the request in flight, as one text: a row for each would cost ten times as much.
        run("CREATE TABLE IF NOT EXISTS sending (form TEXT NOT NULL, letters TEXT NOT NULL)")
        run(
            "CREATE TABLE IF NOT EXISTS unsure"
            " (position TEXT PRIMARY KEY, digest TEXT NOT NULL, form TEXT NOT NULL) WITHOUT ROWID"
        )
        run("INSERT INTO place SELECT ?, 0 WHERE NOT EXISTS (SELECT 1 FROM place)", (source,))
        (known,) = run("SELECT source FROM place").fetchone()
        if known != source:
            run("ROLLBACK")
            raise ConfigurationError(
                f"the journal {str(self.path)!r} belongs to {known}, not to {source}; name another file"
            )
        run("COMMIT")

    def sending(self, letters: Mapping[str, str], form: str) -> None:
        """Note that these letters are about to be sent. Durable on return.

        Args:
            letters: digests by position.
            form: in which they are sent (`LetterOperation.form`).

        Raises:
            JournalError: it cannot be written.
        """
        with self._writing():
            self._keep_unsure()
            self._file.execute("INSERT INTO sending VALUES (?, ?)", (form, json.dumps(letters)))

    def _keep_unsure(self, but: Collection[str] = ()) -> None:
        """Keep the letters of the last request as letters that may have been sent, except those whose fate is known."""
        for form, letters in self._file.execute("SELECT form, letters FROM sending").fetchall():
            kept = [(each, said, form) for each, said in json.loads(letters).items() if each not in but]
            if kept:
                self._unsure = None
                self._file.executemany("INSERT OR REPLACE INTO unsure VALUES (?, ?, ?)", kept)
        self._file.execute("DELETE FROM sending")

    def unsure(self) -> dict[str, tuple[str, str]]:
        """Return the letters that may have been sent: digest and form, by position. Raises JournalError."""
        try:
            found = {
                position: (said, form)
                for position, said, form in self._file.execute("SELECT position, digest, form FROM unsure")
            }
            for form, letters in self._file.execute("SELECT form, letters FROM sending").fetchall():
                found |= {position: (said, form) for position, said in json.loads(letters).items()}
        except (sqlite3.Error, ValueError) as error:
            raise JournalError(f"the journal {str(self.path)!r} is damaged: {error}; move it away") from error
        return found

    def sent(self, letters: Mapping[str, str], removed: Sequence[str] = (), refused: Collection[str] = ()) -> None:
        """Note that these letters are confirmed at their destination. Durable on return.

        Args:
            letters: digests by position.
            removed: letters that have been removed: one transaction notes both.
            refused: letters that `sending` noted and that have surely not arrived now. Its other letters may have.

        Raises:
            JournalError: it cannot be written.
        """
        self._write(removed, letters, len(letters), refused)

    @property
    def tally(self) -> int:
        """How many letters were ever noted as sent here: a redrive that goes on has its limit lowered by it."""
        return int(self._file.execute("SELECT sent FROM place").fetchone()[0])

    def removed(self, positions: Sequence[str]) -> None:
        """Note that these letters have been removed. Raises as `sent`."""
        self._write(positions, {}, 0)

    def began(self, redrive: str) -> int:
        """Return how many letters this redrive has sent already: if it was killed or has failed, it goes on now.

        Args:
            redrive: names it, by its arguments. Any other that was not finished is forgotten.

        Raises:
            JournalError: it cannot be written.
        """
        found = self._file.execute("SELECT redrive, began FROM unfinished").fetchone()
        if found is not None and found[0] == redrive:
            return self.tally - int(found[1])
        with self._writing():
            self._file.execute("DELETE FROM unfinished")
            self._file.execute("INSERT INTO unfinished SELECT ?, sent, NULL FROM place", (redrive,))
        return 0

    def wave(self) -> str | None:
        """Return what `note_wave` noted for the redrive that `began` named; None: nothing. Raises JournalError."""
        try:
            found = self._file.execute("SELECT wave FROM unfinished").fetchone()
        except sqlite3.Error as error:
            raise JournalError(f"the journal {str(self.path)!r} is damaged: {error}; name another file") from error
        return None if found is None else found[0]

    def note_wave(self, text: str) -> None:
        """Note in which wave the redrive is that `began` named. Durable on return. Raises JournalError."""
        with self._writing():
            self._file.execute("UPDATE unfinished SET wave = ?", (text,))

    def finished(self) -> None:
        """Note that the redrive has given its account: the next one is another. Raises JournalError."""
        with self._writing():
            self._file.execute("DELETE FROM unfinished")

    def _write(
        self, removed: Sequence[str], sent: Mapping[str, str], count: int, refused: Collection[str] = ()
    ) -> None:
        """Note what is removed and what is sent, and that so many letters were sent."""
        if self._held is None:
            self._held = set(self.noted())
        if self._unsure is None:
            self._unsure = {each for (each,) in self._file.execute("SELECT position FROM unsure")}
        with self._writing():
            self._change(removed, sent, count)
            if sent or refused:
                settled = self._unsure.intersection(sent)  # refused now, it may have arrived before
                self._file.executemany("DELETE FROM unsure WHERE position = ?", [(each,) for each in settled])
                self._keep_unsure(but={*sent, *refused})
        self._held = self._held.difference(removed).union(sent)

    def _change(self, removed: Sequence[str], sent: Mapping[str, str], count: int) -> None:
        if self._held is not None and self._held <= set(removed):
            self._file.execute("DELETE FROM letter")  # in a fraction of the time
        else:
            self._file.executemany("DELETE FROM letter WHERE position = ?", [(each,) for each in removed])
        self._file.executemany("INSERT OR REPLACE INTO letter VALUES (?, ?)", list(sent.items()))
        if count:
            self._file.execute("UPDATE place SET sent = sent + ?", (count,))

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """One transaction, durable at its end. Raises JournalError."""
        try:
            self._file.execute("BEGIN")
            yield
            self._file.execute("COMMIT")
        except sqlite3.Error as error:
            with contextlib.suppress(sqlite3.Error):
                self._file.execute("ROLLBACK")
            text = f"the journal {str(self.path)!r} cannot be written: {error}; make room, or name another file"
            raise JournalError(text) from error

    def absorb(self, *, wait: float = _BUSY) -> None:
        """Take over what the processes of an earlier shared redrive noted, and delete their journals.

        Args:
            wait: seconds to wait for each that is still open: a process that was left alone ends soon.

        Raises:
            ConfigurationError, JournalError: as opening; one of these processes still runs.
        """
        paths = sorted(parts_folder(self.path).glob(f"*{PART}"))
        for path in paths:
            with Journal(path, self._source, wait=wait) as part:
                self._absorb(path.name, part.noted(), part.tally, part.unsure())
            path.unlink()
        if paths:
            with self._writing():
                self._file.execute("DELETE FROM absorbed")

    def _absorb(self, part: str, noted: Mapping[str, str], tally: int, unsure: Mapping[str, tuple[str, str]]) -> None:
        """Take over what a part noted, once: this process may be killed before the part's file is gone."""
        self._held = self._unsure = None
        with self._writing():
            if self._file.execute("INSERT OR IGNORE INTO absorbed VALUES (?)", (part,)).rowcount:
                self._change((), noted, tally)
                self._file.executemany(
                    "INSERT OR REPLACE INTO unsure VALUES (?, ?, ?)", [(each, *said) for each, said in unsure.items()]
                )

    def pending(self) -> dict[str, str]:
        """Return the letters that killed redrives had sent and, as far as they knew, not yet removed: their digests.

        Raises:
            ConfigurationError, JournalError: the file is damaged, or a process of a shared redrive still runs.
        """
        self.disown()
        self.absorb()
        return self.noted()

    def disown(self) -> None:
        """Let processes of an earlier shared redrive see that it is over, also those that have not begun yet.

        Raises:
            JournalError: the folder where they meet cannot be written.
        """
        try:
            for path in parts_folder(self.path).glob(f"*{CONTROL}"):
                path.unlink(missing_ok=True)
        except OSError as error:
            folder = str(parts_folder(self.path))
            raise JournalError(f"the folder {folder!r} of an earlier redrive cannot be written: {error}") from error

    def noted(self) -> dict[str, str]:
        """Return what this file alone holds. Raises JournalError."""
        try:
            return dict(self._file.execute("SELECT position, digest FROM letter"))
        except sqlite3.Error as error:
            text = f"the journal {str(self.path)!r} is damaged: {error}; what it noted as sent is sent again without it"
            raise JournalError(f"{text}: move it away, or name another file") from error

    def close(self) -> None:
        """Release the lock."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _locked(error: sqlite3.Error) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
