"""`Triage`: letters and groups that people have parked or noted something on: left out of redrives until unparked.

It lies beside the journal, never at the broker: an SQLite file for each place. Two processes may use it at once, and
each change is one transaction: what was decided, with who and when.

A letter is known by what it is, where it came from and whom it is for (`keys_of`), never by its id alone. Sent back and
dead again, it is another letter: it is no longer parked. A group is one row, however many letters it has, those that
come later included.
"""

from __future__ import annotations

import contextlib
import getpass
import hashlib
import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Literal, Self, TypeAlias

from redelivery.base.clock import Clock, SystemClock
from redelivery.base.files import make_private, make_private_folder, refuse_link, status
from redelivery.base.secrets import redact
from redelivery.contract.broker import Letter
from redelivery.contract.context import ErrorContext, whole_text
from redelivery.contract.letters import LetterBatch
from redelivery.deadletters.groups import check_fingerprint, fingerprints
from redelivery.deadletters.journal import default_path as journal_path
from redelivery.deadletters.redrive import digests_of
from redelivery.errors import ConfigurationError, JournalError
from redelivery.formats import dialects

#: The subject of a decision.
What: TypeAlias = Literal["letter", "group"]

#: Marks the file as ours (SQLite's `application_id`).
_MARK: Final = 0x72644C74
#: Seconds to wait for another process's change.
_BUSY: Final = 10.0
#: A broker's word on where a letter came from, and whom it is for.
_SOURCE: Final = ("destination", "target", "subscriber", "source_topic", "source_partition", "source_offset")
#: Digits of a key that its message alone decides.
_DIGEST: Final = 24
#: The longest note and the longest name, in characters.
_NOTE: Final = 4000
_WHO: Final = 200


def default_path(source: str) -> Path:
    """Return the default path of a place's triage: beside its journal. Raises as `journal.default_path`."""
    journal = journal_path(source)
    return journal.with_name(f"triage-{journal.stem.partition('-')[2]}.db")


def exists(path: Path) -> bool:
    """Whether there is a triage at a path. Raises JournalError: its folder cannot be looked into."""
    try:
        return status(path) is not None
    except OSError as error:
        raise JournalError(f"the triage {str(path)!r} cannot be opened: {error.strerror}") from error


def this_user() -> str:
    """Return the name of the user who runs this process; their number where they have no name."""
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return f"uid {os.getuid()}" if hasattr(os, "getuid") else "unknown"


def keys_of(letters: LetterBatch) -> list[str]:
    """Return what tells each letter from others: 36 hexadecimal digits.

    24 are a digest of its id, key, body, time and headers; the headers of a letter of ours say where it failed, for
    whom, and how often it was sent back. 12 are a digest of the letter's destination, of the broker's own columns, and
    of what the broker says of where it came from, where no header does. Letters that are alike in all of that are
    parked alike.
    """
    return [said + _source(letters, row) for row, said in enumerate(digests_of(letters))]


def key_of(letter: Letter) -> str:
    """Return what tells a letter from others; see `keys_of`."""
    return keys_of(LetterBatch.of([letter]))[0]


def _source(letters: LetterBatch, row: int) -> str:
    """Return the part of a letter's key that its message does not hold."""
    messages = letters.messages
    own = sorted((name, column.values[row]) for name, column in messages.extra.items())
    parts: list[object] = [(name, str(value)) for name, value in own if value is not None]
    parts.append(None if messages.destination is None else messages.destination.values[row])
    said = letters.contexts.get(row) or ErrorContext()
    source = [getattr(said, name) for name in _SOURCE]
    if any(each is not None for each in source) and dialects.read(messages.row(row)) is None:
        parts += source
    return hashlib.blake2b(repr(parts).encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()


@dataclass(frozen=True, slots=True)
class Parked:
    """The parked letters and groups of a place at some moment; plain data that travels to the tasks of a job.

    Attributes:
        groups: fingerprints.
        letters: keys of letters.
    """

    groups: frozenset[str] = frozenset()
    letters: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.groups or self.letters)

    def rows(self, batch: LetterBatch) -> list[int]:
        """Return the indices of the parked letters of a batch, whole as their broker returned them."""
        found: set[int] = set()
        if self.groups:
            found.update(row for row, each in enumerate(fingerprints(batch)) if each in self.groups)
        if self.letters:
            digests = _digests(self.letters)
            near = ((row, each) for row, each in enumerate(digests_of(batch)) if each in digests)
            found.update(row for row, each in near if each + _source(batch, row) in self.letters)
        return sorted(found)


@lru_cache(maxsize=4)
def _digests(letters: frozenset[str]) -> frozenset[str]:
    """Return the parts of keys that messages alone decide. Asked for each batch, and as large as what is parked."""
    return frozenset(each[:_DIGEST] for each in letters)


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """A decision on a letter or a group.

    Attributes:
        what: a letter or a group.
        key: of the letter (`key_of`), or fingerprint of the group.
        parked: left out of redrives.
        note: for people; "" where none is.
        name: for people: the letter's id or position, or the group's message.
        who, at_ms: the last change; milliseconds since the epoch.
    """

    what: What
    key: str
    parked: bool
    note: str
    name: str
    who: str
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One change.

    Attributes:
        at_ms: when, milliseconds since the epoch.
        who: did it.
        action: park, unpark or note.
        what, key, name: as in `State`.
        note: as given then.
    """

    at_ms: int
    who: str
    action: str
    what: What
    key: str
    name: str
    note: str


class Triage:
    """The triage of one place.

    Args:
        path: of the file; it is made by the first change, for its owner alone. It must not be a symbolic link.
        source: redacted URL of the dead letter queue.
        clock: the time.

    Raises:
        ConfigurationError: the file is another place's triage, or is not a triage.
        JournalError: it cannot be opened.
    """

    def __init__(self, path: Path, source: str, *, clock: Clock | None = None) -> None:
        self.path = path
        self._source = source
        self._clock = clock or SystemClock()
        self._file: sqlite3.Connection | None = None
        self._lock = threading.RLock()
        self._seen: int | None = None
        self._parked = Parked()
        if exists(path):
            self._open()

    def park(
        self, what: What, keys: Iterable[str], note: str = "", *, who: str | None = None, names: Sequence[str] = ()
    ) -> int:
        """Leave letters or groups out of redrives from now on; return how many were not parked yet.

        Args:
            what: letters or groups.
            keys: of letters (`key_of`), or fingerprints.
            note: for people; "": a note that exists stays.
            who: does it; None: the user who runs this process.
            names: as many as keys: ids, for people.

        Raises:
            JournalError: it cannot be written; nothing is changed.
        """
        return self._change("park", what, keys, note, who, names)

    def unpark(
        self, what: What, keys: Iterable[str], note: str = "", *, who: str | None = None, names: Sequence[str] = ()
    ) -> int:
        """Let letters or groups be redriven again; return how many were parked. Arguments and errors as `park`."""
        return self._change("unpark", what, keys, note, who, names)

    def note(
        self, what: What, keys: Iterable[str], note: str, *, who: str | None = None, names: Sequence[str] = ()
    ) -> int:
        """Note something on letters or groups, parked or not; return how many. Arguments and errors as `park`."""
        return self._change("note", what, keys, note, who, names)

    def parked(self) -> Parked:
        """Return what is parked now. The file is read only where it has changed. Raises JournalError."""
        with self._lock:
            if self._file is None:
                if not exists(self.path):
                    return Parked()
                self._open()
            with self._reading() as file:
                (seen,) = file.execute("PRAGMA data_version").fetchone()
                if seen != self._seen:
                    found: dict[str, set[str]] = {"letter": set(), "group": set()}
                    for what, key in file.execute("SELECT what, key FROM state WHERE parked"):
                        found[what].add(key)
                    self._parked = Parked(frozenset(found["group"]), frozenset(found["letter"]))
                    self._seen = seen
            return self._parked

    def states(self, what: What | None = None) -> list[State]:
        """Return all that is decided, the last change first. Raises JournalError."""
        asked = "SELECT what, key, parked, note, name, who, at_ms FROM state"
        rows = self._rows(f"{asked} WHERE ? IS NULL OR what = ? ORDER BY at_ms DESC, key", (what, what))
        return [
            State(what=w, key=k, parked=bool(p), note=n, name=m, who=who, at_ms=at) for w, k, p, n, m, who, at in rows
        ]

    def history(self, last: int = 1000, key: str | None = None) -> list[Event]:
        """Return the last changes, the last one first.

        Args:
            last: how many, at most.
            key: only of this letter or group.

        Raises:
            JournalError: it cannot be read.
        """
        asked = "SELECT at_ms, who, action, what, key, name, note FROM event WHERE ? IS NULL OR key = ?"
        rows = self._rows(f"{asked} ORDER BY number DESC LIMIT ?", (key, key, last))
        return [
            Event(at_ms=at, who=who, action=action, what=w, key=k, name=name, note=note)
            for at, who, action, w, k, name, note in rows
        ]

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _change(
        self, action: str, what: What, keys: Iterable[str], note: str, who: str | None, names: Sequence[str]
    ) -> int:
        every = list(keys)
        if what == "group":
            for each in every:
                check_fingerprint(each)
        known = list(names) or [""] * len(every)
        note, who = _plain(note, _NOTE), _plain(who or this_user(), _WHO)
        now, changed = self._clock.wall_ms(), 0
        with self._lock, self._writing() as file:
            for key, name in zip(every, known, strict=True):
                changed += _put(file, action, what, key, _plain(name, _NOTE), note, who, now)
        return changed

    def _rows(self, asked: str, arguments: Sequence[object]) -> list[Any]:
        with self._lock:
            if self._file is None:
                if not exists(self.path):
                    return []
                self._open()
            with self._reading() as file:
                return file.execute(asked, arguments).fetchall()

    def _open(self) -> sqlite3.Connection:
        """Open the file, and make it where it is missing. Raises ConfigurationError, JournalError."""
        if self._file is not None:
            return self._file
        try:
            make_private_folder(self.path.parent)
            refuse_link(self.path)
            make_private(self.path)
            file = sqlite3.connect(self.path, timeout=_BUSY, isolation_level=None, check_same_thread=False)
        except (OSError, sqlite3.Error) as error:
            raise JournalError(f"the triage {str(self.path)!r} cannot be opened: {error}") from error
        try:
            self._claim(file)
        except sqlite3.OperationalError as error:
            file.close()
            raise JournalError(f"the triage {str(self.path)!r} cannot be used: {error}") from error
        except sqlite3.DatabaseError as error:
            file.close()
            text = f"{str(self.path)!r} is not a triage: {error}; name another file with --triage"
            raise ConfigurationError(text) from error
        except ConfigurationError:
            file.close()
            raise
        self._file, self._seen = file, None
        return file

    def _claim(self, file: sqlite3.Connection) -> None:
        run = file.execute
        (marker,) = run("PRAGMA application_id").fetchone()
        (tables,) = run("SELECT count(*) FROM sqlite_master").fetchone()
        if marker != _MARK:
            if tables:
                raise ConfigurationError(f"{str(self.path)!r} is another program's file, and no triage; name another")
            self._make(file)
        (known,) = run("SELECT source FROM place").fetchone()
        if known != self._source:
            raise ConfigurationError(
                f"the triage {str(self.path)!r} belongs to {known}, not to {self._source}; name another file"
            )

    def _make(self, file: sqlite3.Connection) -> None:
        """Make the tables, in one transaction; another process may do so too."""
        run = file.execute
        run("BEGIN IMMEDIATE")
        run("CREATE TABLE IF NOT EXISTS place (source TEXT NOT NULL)")
        run(
            "CREATE TABLE IF NOT EXISTS state (what TEXT NOT NULL, key TEXT NOT NULL, parked INTEGER NOT NULL, "
            "note TEXT NOT NULL, name TEXT NOT NULL, who TEXT NOT NULL, at_ms INTEGER NOT NULL, "
            "PRIMARY KEY (what, key)) WITHOUT ROWID"
        )
        run(
            "CREATE TABLE IF NOT EXISTS event (number INTEGER PRIMARY KEY, at_ms INTEGER NOT NULL, who TEXT NOT NULL, "
            "action TEXT NOT NULL, what TEXT NOT NULL, key TEXT NOT NULL, name TEXT NOT NULL, note TEXT NOT NULL)"
        )
        run("INSERT INTO place SELECT ? WHERE NOT EXISTS (SELECT 1 FROM place)", (self._source,))
        run(f"PRAGMA application_id = {_MARK}")
        run("COMMIT")

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        try:
            yield self._open()
        except sqlite3.Error as error:
            raise JournalError(f"the triage {str(self.path)!r} cannot be read: {error}") from error

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """One transaction, durable at its end. Raises JournalError."""
        file = self._open()
        try:
            file.execute("BEGIN IMMEDIATE")
            yield file
            file.execute("COMMIT")
        except sqlite3.Error as error:
            with contextlib.suppress(sqlite3.Error):
                file.execute("ROLLBACK")
            raise JournalError(
                f"the triage {str(self.path)!r} cannot be written: {error}; nothing is changed"
            ) from error
        self._seen = None  # `data_version` tells the changes of others alone


def _put(
    file: sqlite3.Connection, action: str, what: What, key: str, name: str, note: str, who: str, now_ms: int
) -> int:
    """Change one state and note the change; return whether it has changed."""
    found = file.execute("SELECT parked, note, name FROM state WHERE what = ? AND key = ?", (what, key)).fetchone()
    was, old_note, old_name = found or (0, "", "")
    parked = {"park": 1, "unpark": 0}.get(action, was)
    if action == "unpark" and not was:
        return 0
    row = (what, key, parked, note or old_note, name or old_name, who, now_ms)
    file.execute("INSERT OR REPLACE INTO state VALUES (?, ?, ?, ?, ?, ?, ?)", row)
    file.execute(
        "INSERT INTO event (at_ms, who, action, what, key, name, note) VALUES (?, ?, ?, ?, ?, ?, ?)",
        (now_ms, who, action, what, key, name or old_name, note),
    )
    return int(action == "note" or parked != was)


def _plain(text: str, most: int) -> str:
    """Return text as it is kept: redacted, without half characters, not too long."""
    return redact(whole_text(text))[:most]
