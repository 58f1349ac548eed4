"""`redelivery dead-letters`: groups, park, note, history, as operators use them."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

from redelivery import cli
from redelivery.codes import Code
from redelivery.contract.context import ErrorContext
from redelivery.contract.message import Batch, Message
from redelivery.deadletters.audit import AuditLog
from redelivery.deadletters.groups import fingerprint
from redelivery.deadletters.queue import dead_letters
from redelivery.formats import dialects
from redelivery.registry import connect

FULL = ErrorContext(
    reason="disk of node 7 is full", kind="retriable", code=Code.FULL, last_failure_ms=1_700_000_000_000
)
LATE = replace(FULL, reason="order 17 is late", code=Code.INVALID_MESSAGE, kind="permanent")
LATE_GROUP = fingerprint(LATE)


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("COLUMNS", "120")
    url = f"sqlite:{tmp_path}/q.db?queue=orders"
    bury(url, FULL, "f0", "f1", "f2")
    for at in range(5):
        bury(url, replace(LATE, reason=f"order {at} is late"), f"l{at}")
    return url


def bury(url: str, context: ErrorContext, *names: str) -> None:
    with connect(url) as broker, connect(broker.native_sink()) as sink, sink.sender() as sender:
        options = {"dialect": "json", "limits": broker.capabilities.limits, "prefix": "ce-"}
        stored = [dialects.attach(Message(value=b"v", id=name), context, **options) for name in names]
        sender.send(Batch.of(stored), deadline=time.monotonic() + 10)
        assert [len(settled.failures) for settled in sender.collect(1.0)] == [0]


def lying(url: str) -> list[str | None]:
    with dead_letters(url) as dlq:
        return sorted([letter.message.id for letter in dlq], key=str)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = cli.main(["dead-letters", *arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_stats_show_groups(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    lines = run(capsys, "stats", url, "--by", "fingerprint")[1].splitlines()
    assert lines[0].startswith("8 dead letters")
    assert lines[2] == "by fingerprint"
    assert lines[3].split()[:2] == ["5", LATE_GROUP]
    assert lines[3].endswith("permanent: INVALID_MESSAGE: order <*> is late")
    assert len(lines) == 5
    found = json.loads(run(capsys, "stats", url, "--by", "fingerprint", "--by", "code", "--json")[1])
    assert (found["groups"][0]["fingerprint"], found["groups"][0]["count"]) == (LATE_GROUP, 5)
    assert found["by_code"] == {"INVALID_MESSAGE": 5, "FULL": 3}
    assert "by_reason" not in found
    assert found["oldest_ms"] <= found["newest_ms"]
    with pytest.raises(SystemExit):
        run(capsys, "stats", url, "--by", "nonsense")


@pytest.mark.parametrize("command", ["list", "export", "stats"])
def test_a_group_is_looked_at(url: str, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, by_group, _ = run(capsys, command, url, "--group", LATE_GROUP)
    assert by_group == run(capsys, command, url, "--where", f"group={LATE_GROUP}")[1]
    assert by_group != run(capsys, command, url)[1]
    status, _, err = run(capsys, command, url, "--group", "late")
    assert (status, err.count("\n")) == (2, 1)
    assert "is not a fingerprint, which has 12 hexadecimal digits" in err


def test_a_group_is_moved_and_removed(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(run(capsys, "redrive", url, "--group", LATE_GROUP, "--limit", "2", "--json")[1])
    assert found["redriven"] == 2
    assert run(capsys, "remove", url, "--group", LATE_GROUP, "--yes")[1] == "3 letters removed.\n"
    assert lying(url) == ["f0", "f1", "f2"]


def test_what_is_parked_stays_until_it_is_unparked(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "park", url, "--group", LATE_GROUP, "--note", "ask the shop")[1] == "1 group parked.\n"
    assert run(capsys, "park", url, "--id", "f0", "--id", "f1", "--who", "ann")[1] == "2 letters parked.\n"
    assert run(capsys, "park", url, "--id", "f0")[1] == "0 letters parked; 1 were so already.\n"
    assert "7 of them are parked" in run(capsys, "stats", url)[1]
    listed = json.loads(run(capsys, "list", url, "--where", "parked=false", "--json")[1])
    assert [each["id"] for each in listed] == ["f2"]
    status, out, _ = run(capsys, "redrive", url)
    assert status == 0
    assert "7  stay: parked" in out
    assert lying(url) == ["f0", "f1", "l0", "l1", "l2", "l3", "l4"]
    assert run(capsys, "unpark", url, "--group", LATE_GROUP)[1] == "1 group unparked.\n"
    assert run(capsys, "unpark", url, "--id", "f0")[1] == "1 letter unparked.\n"
    assert json.loads(run(capsys, "redrive", url, "--json")[1])["redriven"] == 6
    assert lying(url) == ["f1"]
    assert run(capsys, "remove", url, "--id", "f1", "--yes")[0] == 0
    assert run(capsys, "unpark", url, "--id", "f1")[1] == "1 letter unparked.\n"  # it is gone


def test_history_tells_what_was_decided_and_done(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "history", url)[1] == "Nothing is parked or noted here, and nothing was done.\n"
    run(capsys, "park", url, "--group", LATE_GROUP, "--note", "ask \x1b[2J the shop", "--who", "ann")
    run(capsys, "note", url, "--id", "f1", "--note", "password=hunter22x", "--who", "bob")
    run(capsys, "redrive", url, "--limit", "1", "--who", "eve")
    run(capsys, "redrive", url, "--dry-run")
    run(capsys, "remove", url, "--id", "f1", "--yes")
    run(capsys, "purge", url, "--yes")
    _, out, _ = run(capsys, "history", url)
    assert "\x1b" not in out
    assert "hunter22x" not in out
    states, entries = (each.splitlines() for each in out.split("\n\n"))
    assert [line.split("  ", 1)[1] for line in states] == [
        "bob: letter f1 noted: password=***",
        f"ann: group {LATE_GROUP} parked: ask \\x1b[2J the shop (order <*> is late)",
    ]
    assert [line.split(": ")[1] for line in entries] == [
        *("purge", "purge began", "remove", "remove began", "redrive", "redrive began", "note", "park"),
    ]
    assert "all, limit 1: considered=1, selected=1, redriven=1, removed=1" in entries[4]
    found = json.loads(run(capsys, "history", url, "--json", "--limit", "3")[1])
    assert len(found["log"]) == 3
    assert len(found["states"]) == 2


def test_what_fails_is_told_in_the_log(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "text"
    text.write_text("no journal, only some text that is long enough to be none")
    assert run(capsys, "redrive", url, "--journal", str(text))[0] == 2
    (last, first) = AuditLog().entries()
    assert (last.outcome, first.outcome) == ("failed", "began")
    assert "is not a journal" in last.details["error"]


def test_nothing_is_changed_that_cannot_be_noted(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = AuditLog().path
    path.mkdir(parents=True)
    for command in (("redrive",), ("remove", "--id", "f1", "--yes"), ("purge", "--yes")):
        status, _, err = run(capsys, command[0], url, *command[1:])
        assert (status, "audit log" in err) == (2, True)
    assert len(lying(url)) == 8


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["park"], "name letters by --id, or groups by --group"),
        (["park", "--id", "f1", "--group", LATE_GROUP], "name letters by --id, or groups by --group"),
        (["unpark", "--group", "late"], "is not a fingerprint"),
        (["history", "--limit", "0"], "--limit: must be 1 or more"),
        (["list", "--where", "parked=perhaps"], "it is true or false"),
        (["list", "--where", "group>0123456789ab"], "a group is compared by = or !="),
    ],
)
def test_what_cannot_be_done_is_one_clear_line(
    url: str, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    status, _, err = run(capsys, arguments[0], url, *arguments[1:])
    assert (status, says in err, err.count("\n")) == (2, True, 1)


def test_an_id_that_no_letter_has_is_told(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, "park", url, "--id", "f1", "--id", "nobody")
    assert (status, out) == (1, "1 letter parked.\n")
    assert "no such letter: 'nobody'" in err
    assert run(capsys, "unpark", url, "--id", "nobody")[0] == 1
    assert "f1" not in err


def test_a_triage_may_lie_elsewhere(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    there = ("--triage", str(tmp_path / "shared" / "triage.db"))
    run(capsys, "park", url, "--group", LATE_GROUP, *there)
    assert "would be sent" in run(capsys, "redrive", url, "--dry-run")[1]
    assert "5  stay: parked" in run(capsys, "redrive", url, *there)[1]
    assert len(lying(url)) == 5


def test_a_user_without_a_home_folder_sees_what_there_is(
    url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in a container that runs as a number: nothing can be parked there."""

    def home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    bury(url, ErrorContext(reason="no", kind="permanent"), "n0", "n1")
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setattr(Path, "home", home)
    assert run(capsys, "stats", url, "--by", "fingerprint")[0] == 0
    assert run(capsys, "list", url, "--where", "parked=false")[0] == 0
    assert run(capsys, "park", url, "--id", "n0")[0] != 0


def test_a_folder_that_cannot_be_looked_into_is_one_clear_line(
    url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bury(url, ErrorContext(reason="no", kind="permanent"), "n0", "n1")

    def refused(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("redelivery.deadletters.triage.status", refused)
    status, _, error = run(capsys, "stats", url)
    assert status != 0
    assert "triage" in error
    assert "Permission denied" in error
    assert "output" not in error
