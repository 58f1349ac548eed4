"""`AuditLog`: who did what to which letters, and how it ended. One line of JSON each, appended and never changed.

An operation that moves letters has a line when it begins and one when it ends: one without an end was killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from redelivery.base.clock import Clock, SystemClock
from redelivery.base.files import make_private, make_private_folder, refuse_link, status
from redelivery.base.secrets import redact
from redelivery.deadletters.journal import default_path as journal_path
from redelivery.deadletters.triage import this_user
from redelivery.errors import JournalError

#: How an operation stands, as its line says.
BEGAN: Final = "began"
DONE: Final = "done"
FAILED: Final = "failed"
#: The longest text in a line, in characters.
_LONGEST: Final = 4000
#: How much of the end of the log is read, at most. Bytes.
_READ: Final = 16 * 1024 * 1024
_TEXTS: Final = ("who", "host", "operation", "action", "place", "selection", "outcome")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One line.

    Attributes:
        at_ms: when, milliseconds since the epoch.
        who: name of the user; `host`: of the machine.
        operation: the same in the lines of one operation.
        action: redrive, forward, edit, remove, purge, park, unpark, note, ...
        place: redacted URL of the dead letter queue.
        selection: which letters were meant, for people.
        outcome: began, done or failed.
        details: counts of the outcome, notes, the error.
    """

    at_ms: int
    who: str
    host: str
    operation: str
    action: str
    place: str
    selection: str
    outcome: str
    details: Mapping[str, Any] = field(default_factory=dict)


class AuditLog:
    """The log of all places of one user of one host.

    Args:
        path: None: `audit.jsonl` in the folder of the journals. It is made by the first line, for its owner alone.
        clock: the time.
    """

    def __init__(self, path: Path | None = None, *, clock: Clock | None = None) -> None:
        self.path = path or journal_path("").with_name("audit.jsonl")
        self._clock = clock or SystemClock()

    def record(
        self,
        action: str,
        place: str,
        selection: str = "",
        *,
        outcome: str = DONE,
        details: Mapping[str, Any] | None = None,
        who: str | None = None,
        operation: str | None = None,
    ) -> str:
        """Append one line, durable on return; return the name of its operation.

        Args:
            action: as in `Entry`.
            place: URL of the dead letter queue.
            selection: which letters, for people.
            outcome: as in `Entry`.
            details: further facts, ready for JSON. Secrets are redacted here.
            who: does it; None: the user who runs this process.
            operation: of an earlier line; None: a new one.

        Raises:
            JournalError: it cannot be written.
        """
        operation = operation or secrets.token_hex(6)
        line = {
            "at_ms": self._clock.wall_ms(),
            "who": _plain(who or this_user()),
            "host": socket.gethostname(),
            "operation": operation,
            "action": action,
            "place": _plain(place),
            "selection": _plain(selection),
            "outcome": outcome,
            "details": _plain(dict(details or {})),
        }
        self._append(json.dumps(line).encode("ascii") + b"\n")
        return operation

    @contextlib.contextmanager
    def operation(
        self, action: str, place: str, selection: str = "", *, who: str | None = None
    ) -> Iterator[dict[str, Any]]:
        """Record an operation: a line before it, and one behind it with what the caller puts into the mapping.

        Raises:
            JournalError: the first line cannot be written; nothing is done then.
        """
        name = self.record(action, place, selection, outcome=BEGAN, who=who)
        details: dict[str, Any] = {}
        try:
            yield details
        except BaseException as error:
            told = {**details, "error": f"{type(error).__name__}: {error}"}
            with contextlib.suppress(JournalError):  # the error itself is what people must see
                self.record(action, place, selection, outcome=FAILED, details=told, who=who, operation=name)
            raise
        self.record(action, place, selection, details=details, who=who, operation=name)

    @property
    def size(self) -> int:
        """Its size in bytes; 0 where it does not exist. Raises JournalError: it cannot be read."""
        try:
            found = status(self.path)
        except OSError as error:
            raise JournalError(f"the audit log {str(self.path)!r} cannot be read: {error}") from error
        return 0 if found is None else found.st_size

    def entries(self, place: str | None = None, last: int = 1000) -> list[Entry]:
        """Return the last lines, the last one first. A line that was cut by a kill is left out.

        Args:
            place: only those of this place (redacted URL).
            last: how many, at most.

        Raises:
            JournalError: it cannot be read.
        """
        found: deque[Entry] = deque(maxlen=last)
        try:
            with self.path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - _READ))
                if size > _READ:
                    file.readline()
                for line in file:
                    entry = _entry(line)
                    if entry is not None and (place is None or entry.place == place):
                        found.append(entry)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise JournalError(f"the audit log {str(self.path)!r} cannot be read: {error}") from error
        return list(reversed(found))

    def _append(self, line: bytes) -> None:
        """Append a line in one write. A line that a killed process has cut is ended first.

        A line that another process is writing may look cut where it crosses a page of memory. An empty line then
        follows it, and readers skip it.
        """
        try:
            make_private_folder(self.path.parent)
            refuse_link(self.path)
            make_private(self.path)
            with self.path.open("ab+", buffering=0) as file:
                end = file.seek(0, os.SEEK_END)
                if end:
                    file.seek(end - 1)
                    if file.read(1) != b"\n":
                        line = b"\n" + line
                file.write(line)
                os.fsync(file.fileno())
        except OSError as error:
            text = f"the audit log {str(self.path)!r} cannot be written: {error}"
            raise JournalError(f"{text}; make room, or name another file") from error


def _entry(line: bytes) -> Entry | None:
    """Return what a line says; None where it is not one of ours, or was cut."""
    try:
        found = Entry(**json.loads(line))
    except (ValueError, TypeError, RecursionError):
        return None
    texts = (getattr(found, each) for each in _TEXTS)
    whole = (
        type(found.at_ms) is int and isinstance(found.details, dict) and all(isinstance(each, str) for each in texts)
    )
    return found if whole else None


def _plain(value: Any) -> Any:
    """Return a value as it is written: redacted, not too long."""
    if isinstance(value, str):
        return redact(value)[:_LONGEST]
    if isinstance(value, Mapping):
        return {_plain(str(name)): _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value if value is None or isinstance(value, bool | int | float) else _plain(str(value))
