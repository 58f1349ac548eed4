"""Files of ours are for their owner alone, and no link leads them elsewhere."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from redelivery.base.files import is_folder, make_private, status
from redelivery.cli import main
from redelivery.contract.message import Batch, Message
from redelivery.deadletters import triage
from redelivery.deadletters.audit import AuditLog
from redelivery.deadletters.journal import Journal
from redelivery.errors import JournalError
from redelivery.registry import connect


@pytest.fixture(autouse=True)
def open_mask():
    """As where a user has switched the mask off."""
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def with_letter(folder: Path) -> str:
    url = f"sqlite:{folder / 'orders.db'}?queue=orders"
    with connect(connect(url).native_sink()).sender() as sender:
        sender.send(Batch.of([Message(value=b"v", id="order-42")]), deadline=float("inf"))
        sender.collect(5)
    return url


def test_a_ledger_and_its_folder_are_for_their_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "state" / "redelivery" / "redrive.db"
    with Journal(path, "sqlite:orders.db") as journal:
        journal.sent({"1": "digest"})
        assert mode(path) == 0o600
        assert [mode(each) for each in (path.parent, path.parent.parent)] == [0o700, 0o700]
        assert all(mode(each) == 0o600 for each in path.parent.iterdir())


def test_a_journal_is_not_written_through_a_link(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    (tmp_path / "redrive.db").symlink_to(victim)
    with pytest.raises(JournalError, match="symbolic link"):
        Journal(tmp_path / "redrive.db", "sqlite:orders.db")
    assert not victim.exists()


def test_an_export_is_for_its_owner_alone_and_does_not_write_through_a_planted_link(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("untouched")
    output = tmp_path / "letters.jsonl"
    (tmp_path / ".letters.jsonl.part").symlink_to(victim)
    assert main(["dead-letters", "export", with_letter(tmp_path), "--output", str(output)]) == 0
    assert mode(output) == 0o600
    assert "order-42" in output.read_text()
    assert victim.read_text() == "untouched"


def test_a_queues_file_and_those_beside_it_are_for_their_owner_alone(tmp_path: Path) -> None:
    folder = tmp_path / "queues"
    folder.mkdir()
    broker = connect(f"sqlite:{folder / 'orders.db'}?queue=orders")
    with broker.sender() as sender:
        sender.send(Batch.of([Message(value=b"v")]), deadline=float("inf"))
        sender.collect(5)
        assert {each.name: oct(mode(each)) for each in folder.iterdir()} == dict.fromkeys(
            ["orders.db", "orders.db-wal", "orders.db-shm", "orders.db-reserve"], oct(0o600)
        )


def test_make_private_leaves_what_exists_and_refuses_a_link_that_leads_nowhere(tmp_path: Path) -> None:
    (tmp_path / "there").write_text("kept")
    assert not make_private(tmp_path / "there")
    assert (tmp_path / "there").read_text() == "kept"
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(OSError, match="leads nowhere"):
        make_private(tmp_path / "link")
    assert not (tmp_path / "nowhere").exists()


def test_a_path_that_cannot_be_looked_into_is_not_a_missing_one(tmp_path: Path) -> None:
    """From Python 3.14 on `Path.exists` says False of both. Too long a name is refused for every user, root too."""
    refused = tmp_path / ("x" * 300)
    for look in (status, is_folder):
        with pytest.raises(OSError, match="too long"):
            look(refused)
    with pytest.raises(JournalError, match="cannot be opened"):
        triage.exists(refused)
    with pytest.raises(JournalError, match="cannot be read"):
        _ = AuditLog(refused).size


def test_what_does_not_exist_has_no_status(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    for name in ("missing", "missing/below", "file/below", "loop", "\0"):
        assert status(tmp_path / name) is None
        assert not is_folder(tmp_path / name)
    assert is_folder(tmp_path)
    assert not is_folder(tmp_path / "file")
    assert AuditLog(tmp_path / "missing").size == 0
