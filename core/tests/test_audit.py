"""The audit log: one line for each thing that was done, and for what was killed the line of its beginning."""

from __future__ import annotations

import json
import multiprocessing
import stat
from pathlib import Path

import pytest

from redelivery.deadletters.audit import AuditLog
from redelivery.errors import JournalError


@pytest.fixture
def log(tmp_path: Path) -> AuditLog:
    return AuditLog(tmp_path / "state" / "audit.jsonl")


def test_an_operation_has_a_line_when_it_begins_and_one_when_it_ends(log: AuditLog) -> None:
    assert log.entries() == []
    with log.operation("redrive", "sqlite:orders", "code=FULL", who="ann") as told:
        assert [each.outcome for each in log.entries()] == ["began"]
        told["redriven"] = 7
    with pytest.raises(ValueError, match="no"), log.operation("purge", "sqlite:bills"):
        raise ValueError("no")
    entries = log.entries()
    assert [(each.action, each.outcome) for each in entries] == [
        ("purge", "failed"),
        ("purge", "began"),
        ("redrive", "done"),
        ("redrive", "began"),
    ]
    assert entries[2].details == {"redriven": 7}
    assert entries[2].operation == entries[3].operation != entries[0].operation
    assert (entries[2].who, entries[2].selection) == ("ann", "code=FULL")
    assert entries[0].details == {"error": "ValueError: no"}
    assert [each.action for each in log.entries("sqlite:bills")] == ["purge", "purge"]
    assert len(log.entries(last=1)) == 1
    assert stat.S_IMODE(log.path.stat().st_mode) == 0o600


def test_no_secret_and_no_line_break_gets_into_it(log: AuditLog) -> None:
    log.record("note", "amqp://u:hunter22x@h/q", "id=a\nb", details={"note": "password=hunter22x", "ids": ["x"] * 3})
    text = log.path.read_text()
    assert text.count("\n") == 1
    assert "hunter22x" not in text
    assert json.loads(text)["selection"] == "id=a\nb"


def test_a_line_that_a_kill_has_cut_harms_no_other(log: AuditLog) -> None:
    log.record("park", "sqlite:orders")
    with log.path.open("a") as file:
        file.write('{"at_ms": 17, "who": "an')
    log.record("unpark", "sqlite:orders")
    with log.path.open("a") as file:
        file.write("\n")
    log.record("note", "sqlite:orders")
    assert [each.action for each in log.entries()] == ["note", "unpark", "park"]
    log.path.write_text('[]\n{"at_ms": 1}\nnull\n' + "[" * 100_000 + "\n")
    assert log.entries() == []


def test_a_line_of_another_form_is_no_entry(log: AuditLog) -> None:
    log.record("park", "sqlite:a")
    whole = json.loads(log.path.read_text())
    with log.path.open("a") as file:
        for wrong in (
            {"details": None},
            {"details": []},
            {"at_ms": "now"},
            {"at_ms": True},
            {"place": 5},
            {"who": None},
        ):
            file.write(json.dumps({**whole, **wrong}) + "\n")
    assert [entry.action for entry in log.entries()] == ["park"]


def test_what_cannot_be_noted_is_not_done(log: AuditLog) -> None:
    log.path.parent.mkdir()
    log.path.mkdir()
    with pytest.raises(JournalError, match="cannot be written"), log.operation("purge", "sqlite:orders"):
        raise AssertionError("it was done")
    with pytest.raises(JournalError, match="cannot be read"):
        log.entries()


def test_the_size_of_a_log_that_cannot_be_looked_at_is_an_error_and_not_0(
    log: AuditLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(_path: Path) -> None:
        raise PermissionError(13, "Permission denied")

    assert log.size == 0, "it does not exist"
    monkeypatch.setattr("redelivery.deadletters.audit.status", denied)
    with pytest.raises(JournalError, match="cannot be read"):
        _ = log.size


def test_the_log_is_never_written_through_a_link(log: AuditLog, tmp_path: Path) -> None:
    log.path.parent.mkdir()
    log.path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(JournalError, match="symbolic link"):
        log.record("park", "sqlite:orders")


def _records(path: Path, who: str) -> None:
    for at in range(200):
        AuditLog(path).record("note", "sqlite:orders", who=who, details={"note": str(at) * 50})


def test_two_processes_may_append_at_once(log: AuditLog) -> None:
    context = multiprocessing.get_context("spawn")
    both = [context.Process(target=_records, args=(log.path, who)) for who in ("ann", "bob")]
    for each in both:
        each.start()
    for each in both:
        each.join(60)
    assert [each.exitcode for each in both] == [0, 0]
    entries = log.entries()
    assert [sum(each.who == who for each in entries) for who in ("ann", "bob")] == [200, 200]
    assert len([each for each in log.path.read_text().splitlines() if each]) == 400, "an empty line is none"
