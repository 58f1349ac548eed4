"""A journal remembers what was sent and not yet removed, keeps a second run away, and is its own place's."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from redelivery.deadletters.journal import Journal, default_path, parts_folder
from redelivery.errors import ConfigurationError, JournalError

PLACE = "carrier://host/orders-dead-letters"


def test_what_was_sent_and_not_removed_is_pending_for_the_next_run(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "journal.db"
    with Journal(path, PLACE) as journal:
        assert journal.pending() == {}
        journal.sent({"1": "a", "2": "b", "3": "c"})
        journal.removed(["2"])
    with Journal(path, PLACE) as journal:
        assert journal.pending() == {"1": "a", "3": "c"}
        journal.sent({"1": "d"})
        assert journal.pending() == {"1": "d", "3": "c"}
        journal.removed(["1", "3", "never"])
        assert journal.pending() == {}


def test_it_is_durable_and_unlocked_when_its_process_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    code = (
        "import os, sys, pathlib; from redelivery.deadletters.journal import Journal; "
        f"Journal(pathlib.Path(sys.argv[1]), {PLACE!r}).sent({{'1': 'a'}}); os._exit(9)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(path)], check=False).returncode == 9
    with Journal(path, PLACE) as journal:
        assert journal.pending() == {"1": "a"}


def test_the_journal_of_an_earlier_version_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    with Journal(path, PLACE) as journal:
        journal.began("one")
        journal.sent({"1": "a"})
    with sqlite3.connect(path) as file:  # it kept no waves
        file.execute("ALTER TABLE unfinished DROP COLUMN wave")
    file.close()
    with Journal(path, PLACE) as journal:
        assert journal.pending() == {"1": "a"}
        assert journal.began("one") == 1
        assert journal.wave() is None
        journal.note_wave("w")
    with Journal(path, PLACE) as journal:
        assert journal.wave() == "w"
        assert journal.began("another") == 0
        assert journal.wave() is None


def test_two_redrives_of_one_place_at_once_are_refused(tmp_path: Path) -> None:
    with Journal(tmp_path / "l", PLACE), pytest.raises(JournalError, match="another redrive of this place"):
        Journal(tmp_path / "l", PLACE)
    Journal(tmp_path / "l", PLACE).close()


def test_a_ledger_of_another_place_is_refused(tmp_path: Path) -> None:
    Journal(tmp_path / "l", PLACE).close()
    with pytest.raises(ConfigurationError, match="belongs to carrier://host/orders-dead-letters, not to carrier://x"):
        Journal(tmp_path / "l", "carrier://x")
    Journal(tmp_path / "l", PLACE).close()


def test_another_programs_file_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    text, other = tmp_path / "text", tmp_path / "other.db"
    text.write_text("dear diary, today nothing happened at all\n" * 50)
    connection = sqlite3.connect(other)
    connection.execute("CREATE TABLE mine (x)")
    connection.commit()
    connection.close()
    for path in (text, other):
        before = path.read_bytes()
        with pytest.raises(ConfigurationError, match="journal"):
            Journal(path, PLACE)
        assert path.read_bytes() == before


@pytest.mark.skipif(os.name == "nt", reason="folders have no such permissions there")
def test_a_damaged_ledger_says_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    with Journal(path, PLACE) as journal:
        journal.sent({f"{n:040}": "digest" for n in range(2000)})
    whole = path.read_bytes()
    path.write_bytes(whole[:8192] + b"\xff" * (len(whole) - 8192))
    with (
        Journal(path, PLACE) as journal,
        pytest.raises(JournalError, match=r"is damaged.*move it away, or name another file"),
    ):
        journal.pending()


def test_without_a_home_folder_a_file_must_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    with pytest.raises(ConfigurationError, match="name a file for it, or set XDG_STATE_HOME"):
        default_path(PLACE)


def test_a_ledger_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(JournalError, match="cannot be opened"):
        Journal(tmp_path / "file" / "journal.db", PLACE)


def test_a_ledger_that_is_full_says_so_and_can_be_written_again_later(tmp_path: Path) -> None:
    with Journal(tmp_path / "journal.db", PLACE) as journal:
        (pages,) = journal._file.execute("PRAGMA page_count").fetchone()
        journal._file.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(JournalError, match=r"cannot be written: .*full; make room"):
            journal.sent({f"{at}": "d" * 100 for at in range(1_000)})
        assert journal.pending() == {}
        journal._file.execute("PRAGMA max_page_count = 1000")
        journal.sent({"1": "a"})
        assert journal.pending() == {"1": "a"}


def test_the_default_path_is_one_a_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert default_path(PLACE) == default_path(PLACE)
    assert default_path(PLACE) != default_path(PLACE + "2")
    assert default_path(PLACE).is_relative_to(tmp_path)


def test_what_a_part_has_sent_counts_once_however_often_the_next_run_is_killed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "journal.db"
    part = parts_folder(path) / "r-0.db"

    def killed(_path: Path) -> None:
        raise KeyboardInterrupt

    def noted() -> None:
        with Journal(part, PLACE) as journal:
            journal.sent({"1": "a", "2": "b"})

    with Journal(path, PLACE) as journal:
        journal.began("mine")
        noted()
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(Path, "unlink", killed)
            journal.absorb()
    with Journal(path, PLACE) as journal:
        assert journal.pending() == {"1": "a", "2": "b"}
        assert journal.began("mine") == 2
        assert not part.exists()
        noted()
        journal.absorb()
        assert journal.began("mine") == 4, "another part of that name"
