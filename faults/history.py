"""A history: what happened in the run of one cell, one event per line of JSON.

Each process appends to its own file, at once, so that a killed process keeps what it wrote. All of them use the
machine's monotonic clock, so that the files of a cell merge into one history.

Kinds of events, who writes them, and their data:

- `plan` (the command, first): `plan`, as `Plan.to_dict`.
- `start` (the command): `broker`, `version`, `workload`, `fault`, `seconds` (limit of the cell), `ids` (whether ids
  travel), `survives` (the job must not fail), `refuses` (good rows may be refused), `processes` (that send the same row
  side by side).
- `seeded` (a workload): `rows` that are at their source, confirmed: they may never vanish.
- `handed` (a process under test): `rows` handed to the library; written before the call.
- `attempt` (a process under test): `rows`, `to`: `destination` or `sink`; written before the plugin is called.
- `settled` (a process under test): `rows`, `to`, `as`: `stored` or the class of the error, `code`, `error`.
- `handled` (a subscriber): `rows`, `as`: `accepted`, `raised` or `terminated`.
- `skipped` (a process under test): `rows` given up without a sink, as allowed.
- `reported` (a process under test, last): `report`, as `DeliveryReport.to_dict` or that of the workload.
- `failed` (a process under test, last): `error`, its class and text.
- `killed`, `restarted` (a workload): `process`.
- `fault`, `healed` (the command): `fault`, `destroys` (places whose rows may be gone), `met` (whether a process ran).
- `overrun` (the command): `seconds`; the processes did not end in time.
- `read` (the independent reader, last): `place`: `destination`, `letters` or `source`; `row`, `id`, `differs` (names of
  what differs from the plan: `value`, `key`, `headers`); of letters `attempts`, `reason`.
- `note` (anybody): `text`, for people.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, Self, TypeAlias, get_args

Kind: TypeAlias = Literal[
    "plan",
    "start",
    "seeded",
    "handed",
    "attempt",
    "settled",
    "handled",
    "skipped",
    "reported",
    "failed",
    "killed",
    "restarted",
    "fault",
    "healed",
    "overrun",
    "read",
    "note",
]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
#: How a `settled` event says that the broker has confirmed a row.
STORED: Final = "stored"
DESTINATION: Final = "destination"
SINK: Final = "sink"
LETTERS: Final = "letters"
SOURCE: Final = "source"
#: Beginning of the names of files that say which faults are in effect, for processes that wait for them.
BEGUN: Final = "begun-"
_ENDING: Final = ".history.jsonl"


@dataclass(frozen=True, slots=True)
class Event:
    """One event.

    Attributes:
        t: seconds of the machine's monotonic clock.
        who: the process, or the part of the command.
        kind: see the module.
        data: the rest, by name.
    """

    t: float
    who: str
    kind: Kind
    data: Mapping[str, Any] = field(default_factory=dict)

    @property
    def rows(self) -> Sequence[int]:
        """Numbers of the rows that it is about."""
        if "row" in self.data:
            return (self.data["row"],)
        rows: Sequence[int] = self.data.get("rows", ())
        return rows

    def to_json(self) -> str:
        """Return its line, without the end of line."""
        return json.dumps({"t": self.t, "who": self.who, "kind": self.kind, **self.data}, separators=(",", ":"))

    @classmethod
    def from_json(cls, line: str) -> Self:
        """Read a line. Raises ValueError: it is not an event."""
        data = json.loads(line)
        t, who, kind = (data.pop(name) for name in ("t", "who", "kind"))
        if kind not in KINDS:
            raise ValueError(f"unknown kind of event: {kind!r}")
        return cls(t, who, kind, data)


class Recorder:
    """Appends events to a file: `<who>.history.jsonl` of a folder.

    Each event is one `write` to a file opened for appending: threads may share a recorder, and a killed process leaves
    at most one incomplete line, its last.
    """

    def __init__(self, folder: Path, who: str) -> None:
        self.who = who
        self.path = folder / f"{who}{_ENDING}"
        self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, kind: Kind, **data: Any) -> None:
        """Append an event of this moment."""
        line = Event(time.monotonic(), self.who, kind, data).to_json() + "\n"
        os.write(self._file, line.encode())

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


class History(Sequence[Event]):
    """The events of one cell, in the order of their times."""

    def __init__(self, events: Iterable[Event]) -> None:
        self._events = sorted(events, key=lambda event: event.t)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read all files of a folder.

        Raises:
            ValueError: a line that is not the last of its file is not an event.
        """
        return cls(event for path in sorted(folder.glob(f"*{_ENDING}")) for event in _events(path))

    def of(self, *kinds: Kind) -> Iterator[Event]:
        """Return the events of these kinds."""
        return (event for event in self._events if event.kind in kinds)

    def first(self, kind: Kind) -> Event | None:
        """Return the first event of a kind."""
        return next(self.of(kind), None)

    def save(self, path: Path) -> None:
        """Write all events into one file."""
        path.write_text("".join(f"{event.to_json()}\n" for event in self._events), encoding="utf-8")

    def __getitem__(self, at: Any) -> Any:
        return self._events[at]

    def __len__(self) -> int:
        return len(self._events)


class Tail:
    """Counts the rows of some kinds of events while processes append them; each event is read once."""

    def __init__(self, folder: Path, *kinds: Kind) -> None:
        self._folder = folder
        self._kinds = kinds
        self._read: dict[Path, int] = {}
        self._rows: set[int] = set()

    def count(self) -> int:
        """Return the number of different rows so far."""
        for path in self._folder.glob(f"*{_ENDING}"):
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                whole, end, _ = file.read().rpartition(b"\n")
            self._read[path] = self._read.get(path, 0) + len(whole) + len(end)
            for line in whole.splitlines():
                event = Event.from_json(line.decode())
                if event.kind in self._kinds:
                    self._rows.update(event.rows)
        return len(self._rows)


def _events(path: Path) -> Iterator[Event]:
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    for line in lines[:-1]:  # what follows the last end of line was cut off when its process was killed
        yield Event.from_json(line)
