"""SQLite's faults. Its broker is a file: what can break is the disk, the lock and the file."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Final

from faults import small_disk
from faults.actions import Fault, Make
from faults.broker import BrokerUnderTest

_TRIGGER: Final = "faults_full"


def _path(under_test: BrokerUnderTest) -> Path:
    place: Any = under_test.place
    path: Path = place.path
    return path


def _locked(under_test: BrokerUnderTest) -> Fault:
    """Another program holds the write lock, as one that was stopped in the middle of its transaction."""
    stack = ExitStack()
    return Fault("locked", lambda: stack.enter_context(under_test.place.outage()), stack.close)


def _disk_full(under_test: BrokerUnderTest) -> Fault:
    """Fill the disk, which is ours alone. Raises NotHere: it is not."""
    folder = _path(under_test).parent
    small_disk.check_small(folder)
    return Fault("disk-full", lambda: small_disk.fill(folder), lambda: (folder / "filler").unlink(missing_ok=True))


def _queue_deleted(under_test: BrokerUnderTest) -> Fault:
    """Delete the file, which has the letters too; a later sender makes it again."""
    return Fault(
        "queue-deleted",
        under_test.place.vanish,
        destroys=frozenset({"destination", "source", "letters"}),
    )


def _dead_letters_full(under_test: BrokerUnderTest) -> Fault:
    """Let the file refuse every letter, as an operator's limit would."""
    return Fault(
        "dead-letters-full",
        lambda: _on_letters(
            under_test,
            lambda table: f"CREATE TRIGGER {_TRIGGER} BEFORE INSERT ON {table} BEGIN SELECT RAISE(ABORT, 'full'); END",
        ),
        lambda: _on_letters(under_test, lambda _: f"DROP TRIGGER IF EXISTS {_TRIGGER}"),
    )


def _on_letters(under_test: BrokerUnderTest, statement: Callable[[str], str]) -> None:
    with closing(sqlite3.connect(_path(under_test), timeout=10)) as connection:
        found = connection.execute("SELECT number FROM queue WHERE name = ?", (under_test.letters,)).fetchone()
        connection.execute(statement(f"message_{found[0]}"))
        connection.commit()


FAULTS: Final[Mapping[str, Make]] = {
    "locked": _locked,
    "disk-full": _disk_full,
    "queue-deleted": _queue_deleted,
    "dead-letters-full": _dead_letters_full,
}

HARNESS: Final = small_disk.SmallDiskHarness
