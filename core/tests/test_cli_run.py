"""`redelivery run`: a subscription from a terminal, on the embedded default."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from redelivery import cli
from redelivery.contract.broker import Broker
from redelivery.contract.message import Batch, Message
from redelivery.deadletters.queue import dead_letters
from redelivery.registry import connect

HANDLERS = """
import logging
import time

def handle(message):
    if message.id == "bad":
        raise ValueError("no such airport")

def slow(message):
    print("begun", flush=True)
    time.sleep(0.3)

async def awaits(message):
    if message.id == "bad":
        raise ValueError("no such airport")

def down(message):
    raise ConnectionError("the bank is down")

NOT_A_FUNCTION = 1
EVIL = "\\x1b]0;owned\\x07\\u202e\\n2026-01-01 00:00:00,000 INFO redelivery: all is well"

def evil(message):
    logging.getLogger("mine").warning("got %s", EVIL)
    try:
        raise KeyError(EVIL)
    except KeyError:
        logging.getLogger("mine").exception("no %s", EVIL)
    raise ValueError(EVIL)
"""


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "handlers_of_test.py").write_text(HANDLERS)
    monkeypatch.chdir(tmp_path)
    return f"sqlite:{tmp_path}/q.db"


def fill(url: str, *ids: str) -> None:
    broker: Broker
    with connect(url) as broker, broker.sender() as sender:
        sender.send(Batch.of([Message(value=b"v", id=name) for name in ids]), deadline=time.monotonic() + 10)
        assert [len(settled.failures) for settled in sender.collect(1.0)] == [0]


def test_without_a_breaker_whatever_fails_is_given_up(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    fill(url, *(f"m{number}" for number in range(30)))
    options = ["--until-empty", "--no-breaker", "--option", "deadLetterSink=native"]
    assert cli.main(["run", url, "handlers_of_test:down", *options]) == 0
    assert json.loads(capsys.readouterr().out)["dead_lettered"] == 30


@pytest.mark.parametrize("handler", ["handle", "awaits"])
def test_it_handles_what_is_there_and_prints_the_account(
    url: str, handler: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(url, "a", "bad", "b")
    options = ["--option", "retry=1", "--option", "backoffDelay=PT0.01S", "--option", "deadLetterSink=native"]
    status = cli.main(["run", url, f"handlers_of_test:{handler}", "--until-empty", *options])
    account = json.loads(capsys.readouterr().out)
    assert status == 0
    assert (account["accepted"], account["retried"], account["dead_lettered"]) == (2, 1, 1)
    with dead_letters(url) as dlq:
        (letter,) = dlq
    assert letter.context is not None
    assert "no such airport" in letter.context.reason


def test_it_reads_a_spec_from_a_file(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(url, "bad")
    (tmp_path / "spec.yaml").write_text("delivery:\n  retry: 0\n  deadLetterSink: {uri: native}\n")
    assert cli.main(["run", url, "handlers_of_test:handle", "--until-empty", "--spec", "spec.yaml"]) == 0
    assert json.loads(capsys.readouterr().out)["dead_lettered"] == 1


def test_sigterm_settles_what_is_in_hand_and_gives_the_rest_back(url: str, tmp_path: Path) -> None:
    fill(url, *(f"m{n}" for n in range(20)))
    command = [sys.executable, "-m", "redelivery", "run", url, "handlers_of_test:slow"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    os.kill(process.pid, signal.SIGTERM)
    out, _ = process.communicate(timeout=20)
    account = json.loads(out[out.index("{") :])
    assert process.returncode == 0
    assert account["accepted"] >= 1
    assert account["accepted"] + account["given_back"] == 20
    with connect(url) as broker, broker.admin() as admin:
        assert admin.depth() == account["given_back"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere:x", "handlers_of_test:handle"], "no plugin opens 'nowhere' URLs"),
        (["URL", "handle"], "a handler is written MODULE:HANDLER"),
        (["URL", "no_such_module:handle"], "'no_such_module' cannot be imported"),
        (["URL", "handlers_of_test:handel"], "has no function 'handel'"),
        (["URL", "handlers_of_test:NOT_A_FUNCTION"], "has no function"),
        (["URL", "handlers_of_test:handle", "--option", "retry"], "it is written NAME=VALUE"),
        (["URL", "handlers_of_test:handle", "--option", "retyr=1"], "did you mean 'retry'?"),
        (["URL", "handlers_of_test:handle", "--option", "sqlite.busytimeot=1"], "did you mean 'sqlite.busy_timeout'?"),
        (["URL", "handlers_of_test:handle", "--spec", "missing.yaml"], "missing.yaml: No such file"),
        (["URL", "handlers_of_test:handle", "--workers", "0"], "workers must be 1 or more"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    url: str, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status = cli.main(["run", *(url if each == "URL" else each for each in arguments)])
    assert status == 2
    assert said in capsys.readouterr().err


def test_events_that_die_are_reposted_under_the_type_that_an_option_says(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    attributes = {"specversion": "1.0", "id": "bad", "source": "/s", "type": "flight"}
    event = Message(
        value=json.dumps(attributes).encode(), headers=(("content-type", b"application/cloudevents+json"),), id="bad"
    )
    broker: Broker
    with connect(url) as broker, broker.sender() as sender:
        sender.send(Batch.of([event]), deadline=time.monotonic() + 10)
        assert [len(settled.failures) for settled in sender.collect(1.0)] == [0]
    options = ["--option", "deadLetterSink=native", "--option", "deadLetterType=flight.dead"]
    assert cli.main(["run", url, "handlers_of_test:handle", "--until-empty", *options]) == 0
    with dead_letters(url) as dlq:
        (letter,) = dlq
        assert json.loads(letter.message.value or b"")["type"] == "flight.dead"
        assert dlq.redrive().redriven == 1
    with connect(url) as broker, broker.dead_letters(direct=True) as place:
        assert [each.message.value for each in place.browse()] == [event.value]
    capsys.readouterr()


def test_what_handlers_and_messages_say_drives_no_terminal_and_forges_no_line_of_the_log(
    url: str, tmp_path: Path
) -> None:
    fill(url, "id\x1b[2J\nforged")
    options = ["--option", "deadLetterSink=native", "--option", "errors.log.enable=true"]
    done = subprocess.run(
        [sys.executable, "-m", "redelivery", "run", url, "handlers_of_test:evil", "--until-empty", *options],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert json.loads(done.stdout)["dead_lettered"] == 1
    assert not {"\x1b", "\x07", "\u202e"} & set(done.stderr + done.stdout)
    assert "KeyError" in done.stderr, "the traceback is not there"
    starts = [line for line in done.stderr.splitlines() if not line.startswith("    ")]
    assert starts
    assert all(re.match(r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} [A-Z]+ [a-z.]+: ", line) for line in starts), starts
    assert not any("INFO redelivery: all is well" in line[:60] for line in done.stderr.splitlines())
