"""`redelivery dead-letters`: what operators see and do, on the embedded default."""

from __future__ import annotations

import argparse
import errno
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from redelivery import cli
from redelivery.cli import letters
from redelivery.cli.progress import Progress
from redelivery.codes import Code
from redelivery.contract.context import ErrorContext
from redelivery.contract.message import Batch, Message
from redelivery.contract.spec import DeliverySpec
from redelivery.deadletters.journal import Journal, default_path
from redelivery.deadletters.queue import dead_letters
from redelivery.deadletters.redrive import RedriveReport
from redelivery.errors import ExportFailed, Fatal
from redelivery.formats import dialects
from redelivery.registry import connect
from redelivery.spark import java

CONTEXT = ErrorContext(
    reason="no such airport: größe",
    kind="permanent",
    code=Code.INVALID_MESSAGE,
    native_code="NO_AIRPORT",
    attempts=3,
    attempts_total=3,
    run="r1",
)
EVIL = b"\x1b]0;owned\x07\x1b[2Jharmless \xe2\x80\xae text"


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("COLUMNS", "80")
    return f"sqlite:{tmp_path}/q.db?queue=orders"


def bury(url: str, *messages: Message, context: ErrorContext = CONTEXT, key: bytes | None = None) -> None:
    with connect(url) as broker:
        limits = broker.capabilities.limits
        options: dict[str, Any] = {"dialect": "json", "limits": limits, "prefix": "ce-", "key": key}
        letters = [dialects.attach(each, context, **options) for each in messages]
        with connect(broker.native_sink()) as sink, sink.sender() as sender:
            sender.send(Batch.of(letters), deadline=time.monotonic() + 10)
            assert [len(settled.failures) for settled in sender.collect(1.0)] == [0]


def at_work(url: str) -> list[str | None]:
    with connect(url) as broker, broker.dead_letters(direct=True) as place:
        return [letter.message.id for letter in place.browse()]


def lying(url: str) -> list[str | None]:
    with dead_letters(url) as dlq:
        return [letter.message.id for letter in dlq]


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = cli.main(["dead-letters", *arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def rows(count: int) -> list[Message]:
    return [Message(value=b"body", id=f"n{at}") for at in range(count)]


def test_a_list_keeps_within_the_terminal_and_cannot_drive_it(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    bury(url, Message(value=EVIL, id="evil\x1b[31m"), context=replace(CONTEXT, reason=EVIL.decode() * 9))
    bury(url, Message(value=b"v", id="漢字" * 30))
    status, out, _ = run(capsys, "list", url)
    assert status == 0
    assert "\x1b" not in out
    assert "\\x1b" in out
    assert out.isprintable() or set(out) - {"\n"} == {each for each in out if each.isprintable()}
    assert all(len(line) <= 80 for line in out.splitlines())
    assert "NO_AIRPORT" in out


def test_with_a_key_no_header_of_an_unsigned_letter_meets_a_condition(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLI_LETTER_KEY", "a key that signs letters")
    bury(url, *rows(1))
    bury(url, Message(value=b"v", id="signed"), key=b"a key that signs letters")
    condition = ("--where", "kind=permanent", "--json")
    assert len(json.loads(run(capsys, "list", url, *condition)[1])) == 2
    key = ("--key", "env:CLI_LETTER_KEY")
    assert [each["id"] for each in json.loads(run(capsys, "list", url, *condition, *key)[1])] == ["signed"]
    assert run(capsys, "redrive", url, "--where", "kind=permanent", *key)[0] == 0
    assert at_work(url) == ["signed~1"]
    status, _, err = run(capsys, "list", url, "--key", "canary of a key")
    assert (status, "letterKey: write references" in err, "canary" in err) == (2, True, False)


def test_without_letters_it_says_so(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    bury(url, *rows(1))
    run(capsys, "purge", url, "--yes")
    assert run(capsys, "list", url)[1] == "No dead letters.\n"


@pytest.mark.parametrize("form", ["--json", "--jsonl"])
def test_pipes_get_json(url: str, capsys: pytest.CaptureFixture[str], form: str) -> None:
    bury(url, *rows(2), Message(value=b"\xff\0", id="bytes", key=b"k", headers=(("h", b"\xfe"), ("none", None))))
    out = run(capsys, "list", url, form)[1]
    found: list[dict[str, Any]] = (
        json.loads(out) if form == "--json" else [json.loads(line) for line in out.splitlines()]
    )
    assert [each["id"] for each in found] == ["n0", "n1", "bytes"]
    assert found[0]["value"] == "body"
    assert (found[2]["value_base64"], found[2]["key"]) == ("/wA=", "k")
    assert {"name": "h", "value_base64": "/g=="} in found[2]["headers"]
    assert {"name": "none", "value": None} in found[2]["headers"]
    assert found[0]["error"]["reason"] == CONTEXT.reason


def test_a_list_is_filtered_and_limited(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    bury(url, *rows(3))
    bury(url, Message(value=b"v", id="other"), context=replace(CONTEXT, kind="expired"))
    found = json.loads(run(capsys, "list", url, "--json", "--where", "kind=permanent", "--limit", "2")[1])
    assert [each["id"] for each in found] == ["n0", "n1"]
    assert [each["id"] for each in json.loads(run(capsys, "list", url, "--json", "--id", "other")[1])] == ["other"]


def test_one_letter_is_shown_whole_and_harmless(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    bury(url, Message(value=EVIL, id="evil", key=b"\xff", headers=(("trace\x1b", b"\x1b[31m"),)))
    bury(url, Message(value=bytes(range(256)) * 40, id="binary"))
    out = run(capsys, "show", url, "evil")[1]
    assert "\x1b" not in out
    assert "\u202e" not in out
    for each in ("NO_AIRPORT", "größe", "body (", "key (1 bytes)", "trace", "\\x1b[31m"):
        assert each in out
    out = run(capsys, "show", url, "binary")[1]
    assert "00000010  10 11 12" in out
    assert "6,144 more bytes: --all shows them" in out
    assert "more bytes" not in run(capsys, "show", url, "binary", "--all")[1]
    assert json.loads(run(capsys, "show", url, "binary", "--json")[1])["id"] == "binary"
    status, _, err = run(capsys, "show", url, "nobody")
    assert (status, "no such letter: 'nobody'" in err) == (2, True)


def test_stats_count_by_reason_age_and_source(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    bury(url, *rows(3), context=replace(CONTEXT, destination="sqlite:orders"))
    bury(url, Message(value=b"v", id="old"), context=ErrorContext(kind="expired"))
    out = run(capsys, "stats", url)[1]
    assert "4 dead letters" in out
    assert "3  INVALID_MESSAGE" in out
    found = json.loads(run(capsys, "stats", url, "--json")[1])
    assert found["by_reason"] == {"permanent: INVALID_MESSAGE (NO_AIRPORT)": 3, "expired: EXPIRED": 1}
    assert found["by_code"] == {"INVALID_MESSAGE": 3, "EXPIRED": 1}
    assert found["by_native_code"] == {"NO_AIRPORT": 3, "unknown": 1}
    assert found["by_source"]["sqlite:orders"] == 3
    assert found["by_age"] == {"under a minute": 4}


def test_what_may_have_been_delivered_is_told_apart(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    bury(url, *rows(2))
    bury(url, Message(value=b"v", id="maybe"), context=replace(CONTEXT, maybe_delivered=True))
    listed = run(capsys, "list", url)[1].splitlines()
    assert [line.split()[3] for line in listed if "maybe delivered; IN" in line] == ["maybe"]
    assert len(listed) == 4
    assert "maybe_delivered    True" in run(capsys, "show", url, "maybe")[1]
    assert "1 of them may have been delivered all the same" in run(capsys, "stats", url)[1]
    assert json.loads(run(capsys, "stats", url, "--json")[1])["maybe_delivered"] == 1
    found = json.loads(run(capsys, "list", url, "--json", "--where", "maybe_delivered=true")[1])
    assert [(each["id"], each["error"]["maybe_delivered"]) for each in found] == [("maybe", True)]


def test_an_export_is_whole_or_not_there_and_replaces_nothing_unasked(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bury(url, *rows(2))
    output = tmp_path / "letters.jsonl"
    assert run(capsys, "export", url, "--output", str(output))[0] == 0
    assert [json.loads(line)["id"] for line in output.read_text().splitlines()] == ["n0", "n1"]
    output.write_text("mine")
    status, _, err = run(capsys, "export", url, "--output", str(output))
    assert (status, output.read_text()) == (2, "mine")
    assert "add --yes" in err
    assert run(capsys, "export", url, "--output", str(output), "--yes", "--where", "id=n1")[0] == 0
    assert json.loads(output.read_text())["id"] == "n1"
    assert sorted(each.name for each in tmp_path.iterdir() if each.name.startswith(".")) == []
    assert run(capsys, "export", url)[1].count("\n") == 2
    assert run(capsys, "export", url, "--output", "-") == run(capsys, "export", url)
    assert "is a folder" in run(capsys, "export", url, "--output", str(tmp_path), "--yes")[2]
    assert lying(url) == ["n0", "n1"]


def test_an_export_that_cannot_be_written_fails_and_is_no_error_of_configuration(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bury(url, *rows(2))

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ExportFailed, match="cannot be written: No space left"):
        letters._write(tmp_path / "letters.jsonl", iter(["{}"]))
    status, _, err = run(capsys, "export", url, "--output", str(tmp_path / "letters.jsonl"))
    assert (status, "still in their place" in err, list(tmp_path.glob("*jsonl*"))) == (2, True, [])


def test_redrive_sends_back_and_prints_the_account(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    bury(url, *rows(3))
    status, out, _ = run(capsys, "redrive", url, "--dry-run")
    assert (status, "3  would be sent" in out, lying(url)) == (0, True, ["n0", "n1", "n2"])
    status, out, _ = run(capsys, "redrive", url, "--where", "id!=n1", "--limit", "1", "--rate", "100")
    assert (status, at_work(url), lying(url)) == (0, ["n0~1"], ["n1", "n2"])
    assert "Stopped: the limit of 1 letters is reached." in out
    status, out, _ = run(capsys, "redrive", url, "--json")
    assert (status, json.loads(out)["redriven"], lying(url)) == (0, 2, [])


def test_what_stays_is_said_with_its_reason(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    bury(url, *rows(1), context=replace(CONTEXT, hops=5))
    status, out, _ = run(capsys, "redrive", url)
    assert (status, "1  stay: it was sent back 5 times already" in out) == (0, True)


def test_letters_go_to_another_destination_where_one_is_named(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    bury(url, *rows(1))
    other = url.replace("orders", "other")
    assert run(capsys, "redrive", url, "--to", other)[0] == 0
    assert (at_work(other), lying(url)) == (["n0~1"], [])


def test_options_go_to_the_plugin_of_their_prefix(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bury(url, *rows(1))
    letters = tmp_path / "letters"
    letters.mkdir()
    options = ("--option", "sqlite.busy_timeout=1")
    status, _, err = run(capsys, "redrive", url, "--to", f"file:{letters}", *options)
    assert (status, err, len(list(letters.iterdir()))) == (0, "", 1)
    status, _, err = run(capsys, "list", url, "--option", "sqlte.busy_timeout=1")
    assert (status, "did you mean 'sqlite.busy_timeout'" in err) == (2, True)


def test_removing_what_is_selected_removes_no_letter_that_is_called_like_its_place(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Here places are numbers, as ids may be."""
    bury(url, Message(value=b"first", id="3"), Message(value=b"second", id="1"), Message(value=b"third", id="2"))
    with dead_letters(url) as dlq:
        positions = {letter.position: letter.message.id for letter in dlq}
    assert set(positions) & set(positions.values()), "this shows nothing"
    assert run(capsys, "remove", url, "--where", "id=1", "--yes")[1] == "1 letters removed.\n"
    assert lying(url) == ["3", "2"]


def test_a_relative_path_is_another_place_in_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What one redrive had sent when it was killed is not removed from the other's letters."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    relative = "sqlite:q.db?queue=orders"
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        monkeypatch.chdir(tmp_path / folder)
        bury(relative, *rows(2))
    with dead_letters(relative) as dlq, Journal(default_path(dlq.place), dlq.place) as journal:
        journal.sent({letter.position: "whatever" for letter in dlq})
    monkeypatch.chdir(tmp_path / "a")
    assert run(capsys, "redrive", relative)[0] == 0
    assert (at_work(relative), lying(relative)) == (["n0~1", "n1~1"], [])


@pytest.mark.parametrize("relative", ["sqlite:q.db?queue=dead", "file:dead"])
def test_a_sink_by_a_relative_path_is_another_place_in_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, relative: str
) -> None:
    places = []
    for folder in ("a", "b"):
        (tmp_path / folder / "dead").mkdir(parents=True)
        monkeypatch.chdir(tmp_path / folder)
        with dead_letters("sqlite:q.db?queue=orders", sink=relative) as dlq:
            places.append(dlq.place)
    assert [str(tmp_path / folder) in place for folder, place in zip("ab", places, strict=True)] == [True, True]


def test_what_was_sent_and_not_removed_is_said_and_is_no_success(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bury(url, *rows(3))
    monkeypatch.setattr("redelivery_sqlite.dead_letters.SqliteDeadLetters.remove", lambda *_: 0)
    status, out, _ = run(capsys, "redrive", url)
    assert (status, "3  of those were not removed" in out, lying(url)) == (1, True, ["n0", "n1", "n2"])


def test_a_letter_is_named_as_it_is_listed_also_where_only_its_context_knows_its_id(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    bury(url, Message(value=b"v"), context=replace(CONTEXT, message_id="order-7"))
    assert "order-7" in run(capsys, "list", url)[1]
    assert run(capsys, "remove", url, "--id", "order-7", "--yes")[1] == "1 letters removed.\n"


def test_a_dead_letter_place_by_its_own_name_is_not_sent_into_itself(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    bury(url, *rows(1))
    status, _, err = run(capsys, "redrive", f"{url}-dead-letters")
    assert (status, "is the place that the letters are in; say where to" in err, lying(url)) == (2, True, ["n0"])
    assert run(capsys, "redrive", f"{url}-dead-letters", "--to", url)[0] == 0
    assert (at_work(url), lying(url)) == (["n0~1"], [])


def test_the_place_itself_is_no_destination(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    bury(url, *rows(1))
    with connect(url) as broker:
        place = broker.native_sink()
    status, _, err = run(capsys, "redrive", url, "--to", place)
    assert (status, "is the place that the letters are in" in err, lying(url)) == (2, True, ["n0"])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["list", "--where", "knd=x"], "did you mean 'kind'"),
        (["redrive", "--where", "reason~("], "not a regular expression"),
        (["list", "--limit", "-1"], "must be 0 or more"),
        (["redrive", "--limit", "0"], "must be more than 0"),
        (["move-back"], "redrive"),
        (["remove"], "name letters by --id or --where"),
        (["purge"], "add --yes"),
        (["remove", "--id", "n0"], "add --yes"),
    ],
)
def test_what_cannot_be_done_is_one_clear_line(
    url: str, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    bury(url, *rows(1))
    what, *rest = arguments
    status, _, err = run(capsys, what, url, *rest)
    assert (status, says in err, err.count("\n")) == (2, True, 1)
    assert lying(url) == ["n0"]


def test_remove_and_purge_say_how_many(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    bury(url, *rows(4))
    assert run(capsys, "remove", url, "--id", "n1", "--yes")[1] == "1 letters removed.\n"
    assert lying(url) == ["n0", "n2", "n3"]
    assert run(capsys, "purge", url, "--yes")[1] == "3 letters removed.\n"
    assert lying(url) == []


@pytest.mark.parametrize(("answer", "left"), [("y", []), ("n", ["n0"]), ("", ["n0"])])
def test_at_a_terminal_it_asks_before_letters_are_gone(url: str, answer: str, left: list[str]) -> None:
    bury(url, *rows(1))
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "redelivery", "dead-letters", "purge", url],
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        os.write(ours, answer.encode() + b"\n")
        _, err = process.communicate(timeout=30)
    os.close(ours)
    os.close(theirs)
    assert b"Remove all 1 letters" in err
    assert (process.returncode, lying(url)) == (0 if answer == "y" else 1, left)


def test_a_narrow_terminal_shows_how_a_reason_begins(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bury(url, *rows(1))
    monkeypatch.setenv("COLUMNS", "40")
    (_, line) = run(capsys, "list", url)[1].splitlines()
    assert line.endswith("…")
    assert len(line.split("n0")[1].strip()) == 20


WITHOUT_RICH = "import sys; sys.modules['rich'] = None; from redelivery.cli import main; sys.exit(main())"


def at_a_terminal(*command: str) -> tuple[int, str, bytes]:
    """Run a command with its stderr at a terminal; return its status, what that showed, and its output."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": "60", "TERM": "xterm"}
    with subprocess.Popen(
        [sys.executable, *command], stdout=subprocess.PIPE, stderr=theirs, env=environment
    ) as process:
        os.close(theirs)
        shown = b""
        with suppress(OSError):  # what a terminal says whose other side is closed
            while piece := os.read(ours, 4096):
                shown += piece
        out, _ = process.communicate(timeout=30)
    os.close(ours)
    return process.returncode, shown.decode(), out


@pytest.mark.parametrize("command", [("-m", "redelivery"), ("-c", WITHOUT_RICH)], ids=["rich", "no rich"])
def test_at_a_terminal_it_shows_how_far_it_is_and_leaves_nothing_behind(url: str, command: tuple[str, ...]) -> None:
    bury(url, *rows(250))
    status, shown, out = at_a_terminal(*command, "dead-letters", "redrive", url, "--rate", "100", "--limit", "240")
    done = [int(each) for each in re.findall(r"(\d+) of 240 letters, \d+/s", shown)]
    assert (status, 0 < done[0] < 240, done) == (0, True, sorted(done))
    assert "left" in shown
    assert shown.endswith(("\r", "\x1b[2K", "\x1b[?25h")), "the line is still there"
    assert b"are confirmed at their destination" in out
    assert b"\r" not in out


def test_nobody_who_asked_for_quiet_sees_progress(url: str) -> None:
    bury(url, *rows(150))
    command = ("-m", "redelivery", "dead-letters", "redrive", url, "--rate", "100", "--quiet")
    assert at_a_terminal(*command)[:2] == (0, "")


def test_a_log_gets_lines_where_they_are_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    asked = argparse.Namespace(progress=True, quiet=False)
    with Progress(asked, 100) as progress:
        progress._next = 0.0
        progress(40, "3 refused")
    assert re.fullmatch(
        r"redelivery: 40 of 100 letters, [\d,]+/s, 0:00, 0:00 left, 3 refused\n", capsys.readouterr().err
    )


@pytest.mark.parametrize(
    "command",
    [("list",), ("list", "--json"), ("stats",), ("export",), ("redrive",), ("forward", "--to", "SINK"), ("remove",)],
)
def test_an_id_that_no_letter_has_is_a_failure_in_one_line(
    url: str, tmp_path: Path, command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    bury(url, *rows(1))
    name, *rest = [each.replace("SINK", f"sqlite:{tmp_path}/s.db?queue=s") for each in command]
    status, out, err = run(capsys, name, url, *rest, "--id", "another")
    text = "redelivery: no such letter: 'another'; `redelivery dead-letters list` shows them\n"
    assert (status, out, err) == (1, "", text)
    assert lying(url) == ["n0"]


def test_what_a_program_reads_is_not_cut(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name, reason = "a-long-name-" * 10, "a long reason " * 20
    bury(url, Message(value=b"v", id=name), context=replace(CONTEXT, reason=reason))
    for arguments in (("--wide",), ()):
        _, out, _ = run(capsys, "list", url, *arguments)
        assert name in out
        assert reason.strip() in out
        monkeypatch.delenv("COLUMNS", raising=False)
        monkeypatch.setattr("shutil.get_terminal_size", lambda *_, **__: os.terminal_size((80, 24)))


def test_a_list_of_many_begins_at_once_and_ends_when_its_reader_leaves(url: str) -> None:
    """`head` leaves after ten lines: the command ends as one that dies of SIGPIPE, without a word."""
    bury(url, *rows(30_000))
    command = f"{sys.executable} -m redelivery dead-letters list '{url}' --limit 0; echo $? >&2"
    done = subprocess.run(
        ["bash", "-c", f"({command}) | head -n 3"], capture_output=True, text=True, timeout=60, check=True
    )
    assert len(done.stdout.splitlines()) == 3
    assert done.stderr == "141\n"


def test_ctrl_c_while_looking_is_one_line_and_a_status_of_its_own(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(letters, "_stats", interrupted)
    assert run(capsys, "stats", url) == (130, "", "redelivery: interrupted\n")


def test_a_queue_that_does_not_exist_is_not_an_empty_one(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    bury(url, Message(value=b"v", id="m"))
    status, out, err = run(capsys, "stats", url.replace("=orders", "=ordres"))
    assert (status, out, err.count("\n")) == (cli.FAILED, "", 1)
    assert "there is no queue 'ordres'" in err
    assert "the destination exists" not in err
    run(capsys, "purge", url, "--yes")
    assert run(capsys, "stats", url) == (0, "0 dead letters, 0 bytes\n", "")


def test_a_dead_letter_queue_that_is_missing_at_an_existing_destination_is_told_apart(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a broker whose dead letter queues do not come by themselves."""
    with connect(url) as broker, broker.admin() as admin:
        admin.provision(DeliverySpec())

    def missing(*_: object, **__: object) -> None:
        raise Fatal("no queue 'orders-dead-letters'", code=Code.NO_SUCH_DESTINATION)

    monkeypatch.setattr("redelivery.cli.arguments.dead_letters", missing)
    for what in (["stats"], ["list"], ["export"], ["show"]):
        status, out, err = run(capsys, what[0], url, *(["m"] if what == ["show"] else []))
        assert (status, out, err.count("\n")) == (cli.FAILED, "", 1)
        assert "no queue 'orders-dead-letters'; the destination exists, only its dead letter queue does not" in err
        assert f"`redelivery apply '{url}'` creates it" in err
    assert "the destination exists" not in run(capsys, "stats", url.replace("=orders", "=other"))[2]
    assert "the destination exists" not in run(capsys, "stats", url, "--sink", url)[2]


def test_stats_of_many_splits_are_those_of_one(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    for at in range(5):
        bury(url, *[Message(value=b"v", id=f"{at}.{n}") for n in range(300)], context=replace(CONTEXT, reason=f"r{at}"))
    told = [run(capsys, "stats", url, "--threads", str(threads)) for threads in (1, 2, 4)]
    assert "1,500 dead letters" in told[0][1]
    assert told[0] == told[1] == told[2]


class Session:
    """In place of a Spark session."""

    stopped = False

    def stop(self) -> None:
        self.stopped = True


@pytest.mark.spark
def test_a_redrive_as_a_spark_job_is_told_what_the_command_was_told(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    session, told = Session(), {}

    def started(name: str, *, master: str, **_: Any) -> Session:
        told["master"] = master
        return session

    def redriven(spark: Session, where_to: str, **arguments: Any) -> RedriveReport:
        told.update(arguments, spark=spark, url=where_to)
        return RedriveReport(considered=3, selected=3, redriven=3, removed=3)

    monkeypatch.setattr(java, "local_session", started)
    monkeypatch.setattr("redelivery.spark.redrive", redriven, raising=False)
    options = ("--where", "kind=permanent", "--rate", "9", "--limit", "7", "--hop-limit", "2", "--max-returns", "1")
    status, out, _ = run(capsys, "redrive", url, "--spark", "local[2]", *options, "--json")
    assert (status, json.loads(out)["redriven"], session.stopped) == (0, 3, True)
    assert (told["master"], told["spark"], told["url"], told["where"]) == ("local[2]", session, url, ["kind=permanent"])
    assert (told["rate"], told["limit"], told["hop_limit"], told["max_returns"]) == (9, 7, 2, 1)
    assert not told["dry_run"]


def test_a_spark_job_needs_pyspark_and_takes_no_ids(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(java, "ensure_java", lambda: None)
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    told = (2, "", "redelivery: pyspark is not installed: pip install 'redelivery[spark]'\n")
    assert run(capsys, "redrive", url, "--spark", "local[2]") == told
    status, _, err = run(capsys, "redrive", url, "--spark", "local[2]", "--id", "n0")
    assert (status, "write --where id=..." in err) == (2, True)


def test_ctrl_c_leaves_every_letter_in_one_place_and_the_rest_for_the_next_run(url: str) -> None:
    bury(url, *rows(200))
    command = [sys.executable, "-m", "redelivery", "dead-letters", "redrive", url, "--rate", "50", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        end = time.monotonic() + 20
        while not at_work(url):
            assert time.monotonic() < end
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
    assert process.returncode == 130, err
    assert b"the same command goes on where this one has ended" in err
    report = json.loads(out)
    assert report["stopped"] == "it was interrupted"
    assert len(at_work(url)) == report["redriven"] < 200
    assert len(lying(url)) == 200 - report["redriven"]


KILLED = """
import os, sys
from redelivery import cli
from redelivery.deadletters import journal, redrive
step, url = sys.argv[1:]
from redelivery_sqlite.dead_letters import SqliteDeadLetters as Place
def die(*_): os._exit(9)
def after(call):
    def both(*arguments):
        call(*arguments)
        os._exit(9)
    return both
where = {
    "before-it-is-sent": lambda: setattr(redrive.Transfer, "_send", die),
    "before-it-is-noted": lambda: setattr(journal.Journal, "sent", die),
    "before-it-is-removed": lambda: setattr(Place, "remove", die),
    "after-it-is-removed": lambda: setattr(Place, "remove", after(Place.remove)),
}
where[step]()
cli.main(["dead-letters", "redrive", url])
"""


@pytest.mark.parametrize(
    "step", ["before-it-is-sent", "before-it-is-noted", "before-it-is-removed", "after-it-is-removed"]
)
def test_killed_between_any_two_steps_no_letter_is_lost_and_the_next_run_goes_on(
    url: str, step: str, capsys: pytest.CaptureFixture[str]
) -> None:
    bury(url, *rows(3))
    assert subprocess.run([sys.executable, "-c", KILLED, step, url], check=False).returncode == 9
    ids = {f"n{at}" for at in range(3)}
    there = {(name or "").removesuffix("~1") for name in at_work(url)}
    assert there | set(lying(url)) == ids, "a letter is nowhere"
    assert run(capsys, "redrive", url)[0] == 0
    assert sorted(map(str, at_work(url))) == ["n0~1", "n1~1", "n2~1"]
    assert lying(url) == []


def expire(url: str, name: str) -> None:
    """Have the broker itself dead-letter a message."""
    with connect(url, {"sqlite.message_ttl": "0.05"}) as broker:
        with broker.sender() as sender:
            sender.send(Batch.of([Message(value=b"v", id=name)]), deadline=time.monotonic() + 10)
            assert [len(settled.failures) for settled in sender.collect(1.0)] == [0]
        with broker.receiver(lease=timedelta(milliseconds=10)) as receiver, broker.admin() as admin:
            until(lambda: not receiver.receive(1, wait=0.1) and admin.depth() == 0)


def until(true: Callable[[], object]) -> None:
    end = time.monotonic() + 20
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_forwarding_follows_what_is_dead_lettered_later_until_it_is_told_to_end(url: str, tmp_path: Path) -> None:
    expire(url, "a")
    sink = f"sqlite:{tmp_path}/sink.db?queue=kept"
    with connect(sink) as broker, broker.admin() as admin:
        admin.provision(DeliverySpec())
    command = [sys.executable, "-m", "redelivery", "dead-letters", "forward", url, "--to", sink, "--json"]
    command += ["--follow", "--interval", "0.1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            until(lambda: len(at_work(sink)) == 1)
            expire(url, "b")
            until(lambda: len(at_work(sink)) == 2)
            os.kill(process.pid, signal.SIGTERM)
            out, _ = process.communicate(timeout=20)
        finally:
            process.kill()
    account = json.loads(out)
    assert (account["redriven"], account["removed"], account["failed"]) == (2, 2, 0)
    assert process.returncode == 0
    assert (at_work(sink), lying(url)) == (["a", "b"], [])


@pytest.mark.parametrize("interval", ["0", "-1", "nan", "inf"])
def test_an_interval_that_cannot_be_is_refused(
    interval: str, url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sink = f"sqlite:{tmp_path}/sink.db?queue=kept"
    status, _, err = run(capsys, "forward", url, "--to", sink, "--follow", f"--interval={interval}")
    assert status == 2
    assert "interval" in err
