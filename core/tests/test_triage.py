"""Triage: letters that people have parked stay in place, in every redrive, whatever kills or races it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sqlite3
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from redelivery.codes import Code
from redelivery.contract.broker import Letter
from redelivery.contract.context import ErrorContext
from redelivery.contract.letters import LetterBatch
from redelivery.contract.message import Batch, Message
from redelivery.deadletters.groups import fingerprint
from redelivery.deadletters.journal import default_path as journal_path
from redelivery.deadletters.queue import dead_letters
from redelivery.deadletters.redrive import RedriveSettings
from redelivery.deadletters.selection import Selection
from redelivery.deadletters.summary import summarise
from redelivery.deadletters.triage import Parked, Triage, default_path, key_of, keys_of
from redelivery.deadletters.trust import context_of
from redelivery.errors import ConfigurationError, JournalError
from redelivery.formats import dialects
from redelivery.registry import connect

CONTEXT = ErrorContext(reason="no such airport", kind="permanent", code=Code.INVALID_MESSAGE, attempts=3)
LATE = replace(CONTEXT, reason="order 17 is late")


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return f"sqlite:{tmp_path}/q.db?queue=orders"


@pytest.fixture
def triage(tmp_path: Path) -> Iterator[Triage]:
    with Triage(tmp_path / "t" / "triage.db", "sqlite:place") as triage:
        yield triage


def bury(url: str, *messages: Message, context: ErrorContext = CONTEXT) -> None:
    with connect(url) as broker, connect(broker.native_sink()) as sink, sink.sender() as sender:
        limits = broker.capabilities.limits
        letters = [dialects.attach(each, context, dialect="json", limits=limits, prefix="ce-") for each in messages]
        sender.send(Batch.of(letters), deadline=time.monotonic() + 10)
        assert [len(settled.failures) for settled in sender.collect(1.0)] == [0]


def rows(count: int, name: str = "n") -> list[Message]:
    return [Message(value=b"v", id=f"{name}{at}") for at in range(count)]


def at_work(url: str) -> list[str | None]:
    with connect(url) as broker, broker.dead_letters(direct=True) as place:
        return [letter.message.id for letter in place.browse()]


def lying(url: str) -> list[str | None]:
    with dead_letters(url) as dlq:
        return [letter.message.id for letter in dlq]


def park_letter(url: str, name: str) -> None:
    with dead_letters(url) as dlq:
        (letter,) = dlq.select(Selection().of([name]))
        assert dlq.triage.park("letter", [key_of(letter)], "wait", who="ann", names=[name]) == 1


def test_a_parked_letter_stays_until_it_is_unparked(url: str) -> None:
    bury(url, *rows(3))
    park_letter(url, "n1")
    for part in (1, 2):
        with dead_letters(url) as dlq:
            report = dlq.redrive()
            assert report.left == {"parked": 1}
            assert report.considered == report.redriven + 1 == (3 if part == 1 else 1)
    assert lying(url) == ["n1"]
    with dead_letters(url) as dlq:
        (letter,) = dlq
        assert dlq.triage.unpark("letter", [key_of(letter)], who="bob") == 1
        assert dlq.redrive().redriven == 1
    assert len(at_work(url)) == 3


def test_a_parked_group_stays_with_all_that_come_later(url: str) -> None:
    bury(url, *rows(2))
    bury(url, *rows(2, "late"), context=LATE)
    with dead_letters(url) as dlq:
        dlq.triage.park("group", [fingerprint(next(dlq.select(Selection().of(["late0"]))).context or CONTEXT)])
        bury(url, *rows(2, "later"), context=replace(LATE, reason="order 18 is late"))
        assert dlq.redrive(settings=RedriveSettings(dry_run=True)).selected == 2
        report = dlq.redrive()
        assert (report.redriven, report.left) == (2, {"parked": 4})
        assert dlq.redrive(["late0"]).left == {"parked": 1}
    assert sorted(map(str, lying(url))) == ["late0", "late1", "later0", "later1"]


def test_what_is_parked_while_a_redrive_runs_stays(url: str) -> None:
    bury(url, *rows(1500))
    done: list[int] = []

    def park(_: object) -> None:
        if not done:
            done.append(1)
            with Triage(default_path(place), place) as other:
                other.park("group", [fingerprint(CONTEXT if dlq_context is None else dlq_context)])

    with dead_letters(url) as dlq:
        place, dlq_context = dlq.place, next(iter(dlq)).context
        report = dlq.redrive(settings=RedriveSettings(on_progress=park))
    assert 0 < report.redriven < 1500
    assert report.left == {"parked": 1500 - report.redriven}


def test_a_forward_leaves_what_is_parked(url: str, tmp_path: Path) -> None:
    bury(url, *rows(2))
    with connect(url) as broker, broker.dead_letters(direct=False) as place:
        assert len(list(place.browse())) == 2
    native = LetterBatch.of([Letter(position="1", message=Message(value=b"v"), context=ErrorContext(kind="expired"))])
    assert Parked(groups=frozenset({fingerprint(ErrorContext(kind="expired"))})).rows(native) == [0]
    with dead_letters(url) as dlq:
        dlq.triage.park("group", [fingerprint(next(iter(dlq)).context or CONTEXT)])
        report = dlq.forward(f"sqlite:{tmp_path}/s.db?queue=s")
    assert report.left == {"parked": 2}


def test_the_broker_moves_nothing_back_where_something_is_parked(url: str) -> None:
    bury(url, *rows(1))
    park_letter(url, "n0")
    with dead_letters(url) as dlq, pytest.raises(ConfigurationError, match="parked here"):
        dlq.move_back()


def test_parked_letters_are_selected_and_counted(url: str) -> None:
    bury(url, *rows(3))
    bury(url, *rows(2, "late"), context=LATE)
    park_letter(url, "n2")
    with dead_letters(url) as dlq:
        late = fingerprint(next(dlq.select(Selection().of(["late1"]))).context or CONTEXT)
        dlq.triage.park("group", [late])
        parked = [each.message.id for each in dlq.select(Selection.parse("parked=true"))]
        assert parked == ["n2", "late0", "late1"]
        assert [each.message.id for each in dlq.select(Selection.parse("parked!=true"))] == ["n0", "n1"]
        found = summarise(dlq, triage=dlq.triage)
        assert found.parked == 3
        assert {each.fingerprint: each.parked for each in found.groups}[late] == 2
        assert dlq.redrive(where=Selection.parse("parked=true")).left == {"parked": 3}
    with pytest.raises(ConfigurationError, match="it is true or false"):
        Selection.parse("parked=yes")
    with pytest.raises(ConfigurationError, match="triage of no place is known"):
        Selection.parse("parked=true").admits(Letter(position="1", message=Message(value=b"")), 0)


def test_a_letter_is_known_by_more_than_its_id() -> None:
    message = Message(value=b"v", id="one", key=b"k", headers=(("h", b"1"),), timestamp_ms=5)
    first = Letter(position="1", message=message)
    others = [
        replace(first, message=replace(message, id="two")),
        replace(first, message=replace(message, value=b"w")),
        replace(first, message=replace(message, key=None)),
        replace(first, message=replace(message, headers=())),
        replace(first, message=replace(message, destination="there")),
        replace(first, message=replace(message, extra={"routing_key": "x"})),
        replace(first, context=ErrorContext(kind="expired", source_topic="orders")),
        replace(first, context=ErrorContext(kind="expired", source_topic="bills")),
        replace(first, context=ErrorContext(kind="expired", source_topic="bills", source_offset=7)),
        replace(first, context=ErrorContext(kind="expired", subscriber="shop")),
    ]
    assert len({key_of(each) for each in (first, *others)}) == 11
    for each in (first, *others):
        whole = replace(each, context=context_of(each))  # as people see it
        assert key_of(whole) == key_of(each)
        batch = LetterBatch.of([replace(each, position="elsewhere"), *others])
        assert keys_of(batch)[0] == key_of(each)
        assert 0 in Parked(letters=frozenset({key_of(each)})).rows(batch)


def test_a_letter_that_was_sent_back_and_died_again_is_another_one(url: str) -> None:
    bury(url, *rows(1))
    park_letter(url, "n0")
    with dead_letters(url, triage=Path(os.environ["XDG_STATE_HOME"]) / "none.db") as other:  # knows nothing of it
        assert other.redrive().redriven == 1
    with connect(url) as broker, broker.dead_letters(direct=True) as place:
        (again,) = [letter.message for letter in place.browse()]
    bury(url, again, context=replace(CONTEXT, hops=1))
    with dead_letters(url) as dlq:
        assert list(dlq.select(Selection.parse("parked=true"))) == []
        assert len(dlq.triage.states()) == 1


def test_states_and_history_tell_who_when_and_why(triage: Triage) -> None:
    key = "ab" * 18
    assert (triage.states(), triage.history(), triage.parked()) == ([], [], Parked())
    assert triage.park("letter", [key], "wait for ann", who="bob", names=["n1"]) == 1
    assert triage.park("letter", [key], who="eve") == 0
    assert triage.note("letter", [key], "ann has called", who="eve") == 1
    assert triage.note("group", ["0123456789ab"], "known", who="eve") == 1
    assert triage.unpark("letter", [key, "cd" * 18], who="ann") == 1
    states = {each.key: each for each in triage.states()}
    assert (states[key].parked, states[key].note, states[key].name, states[key].who) == (
        False,
        "ann has called",
        "n1",
        "ann",
    )
    assert states["0123456789ab"].what == "group"
    assert not states["0123456789ab"].parked
    told = [(each.action, each.who, each.note) for each in triage.history()]
    assert told == [
        ("unpark", "ann", ""),
        ("note", "eve", "known"),
        ("note", "eve", "ann has called"),
        ("park", "eve", ""),
        ("park", "bob", "wait for ann"),
    ]
    assert len(triage.history(last=2)) == 2
    assert [each.key for each in triage.history(key=key)] == [key] * 4
    with pytest.raises(ConfigurationError, match="not a fingerprint"):
        triage.park("group", ["orders"])


def test_the_file_is_private_and_of_one_place(tmp_path: Path) -> None:
    path = tmp_path / "state" / "triage.db"
    with Triage(path, "sqlite:place") as triage:
        assert not path.exists()  # nothing was decided yet
        triage.park("group", ["0123456789ab"], "password=hunter22x", who="x" * 9999)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert "hunter22x" not in triage.states()[0].note
        assert len(triage.states()[0].who) == 200
    with pytest.raises(ConfigurationError, match="belongs to sqlite:place, not to sqlite:other"):
        Triage(path, "sqlite:other")
    (tmp_path / "text").write_text("no database, as it is much too short or not")
    with pytest.raises(ConfigurationError, match="is not a triage"):
        Triage(tmp_path / "text", "sqlite:place")
    sqlite3.connect(tmp_path / "foreign.db").execute("CREATE TABLE x (y)").connection.close()
    with pytest.raises(ConfigurationError, match="another program's file"):
        Triage(tmp_path / "foreign.db", "sqlite:place")
    (tmp_path / "link.db").symlink_to(path)
    with pytest.raises(JournalError, match="symbolic link"):
        Triage(tmp_path / "link.db", "sqlite:place")


def test_a_redrive_that_cannot_read_what_is_parked_sends_nothing(url: str) -> None:
    bury(url, *rows(2))
    park_letter(url, "n0")
    with dead_letters(url) as dlq:
        path = dlq.triage.path
    path.write_bytes(b"broken" * 1000)
    with dead_letters(url) as dlq, pytest.raises(ConfigurationError, match="is not a triage"):
        dlq.redrive()
    assert len(lying(url)) == 2


def test_it_lies_beside_the_journal(url: str) -> None:
    assert default_path(url).parent == journal_path(url).parent
    assert default_path(url).stem.removeprefix("triage-") == journal_path(url).stem.removeprefix("redrive-")


def _parks(path: Path, begin: int) -> None:
    for at in range(begin, begin + 40):
        with Triage(path, "sqlite:place") as triage:
            triage.park("letter", [f"{at:036x}"], who=str(begin))


def test_two_processes_may_decide_at_once(tmp_path: Path) -> None:
    path = tmp_path / "triage.db"
    context = multiprocessing.get_context("spawn")
    both = [context.Process(target=_parks, args=(path, begin)) for begin in (0, 1000)]
    for each in both:
        each.start()
    for each in both:
        each.join(60)
    assert [each.exitcode for each in both] == [0, 0]
    with Triage(path, "sqlite:place") as triage:
        assert len(triage.parked().letters) == len(triage.history()) == 80


def test_a_kill_at_any_moment_leaves_whole_changes(tmp_path: Path) -> None:
    path = tmp_path / "triage.db"
    code = (
        "import sys; from pathlib import Path; from redelivery.deadletters.triage import Triage\n"
        "triage = Triage(Path(sys.argv[1]), 'sqlite:place')\n"
        "for at in range(10**6):\n"
        "    triage.park('letter', [f'{at:032x}{n:04x}' for n in range(20)], who='x')\n"
        "    print(at, flush=True)\n"
    )
    for _ in range(3):
        path.unlink(missing_ok=True)
        with subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            told = [process.stdout.readline() for _ in range(4)]
            os.kill(process.pid, signal.SIGKILL)
            process.wait(30)
        assert told[3] == "3\n"
        with Triage(path, "sqlite:place") as triage:
            letters = triage.parked().letters
            assert len(letters) >= 80
            assert len(letters) % 20 == 0
            assert len(letters) == len(triage.history(last=10**6))


def test_a_parked_group_is_one_row_and_costs_no_letter_anything(tmp_path: Path) -> None:
    with Triage(tmp_path / "triage.db", "sqlite:place") as triage:
        triage.park("group", ["0123456789ab"])
        batch = LetterBatch.of([Letter(position=str(at), message=Message(value=b"v")) for at in range(10_000)])
        began = time.process_time()
        assert triage.parked().rows(batch) == []
        assert time.process_time() - began < 1
        assert len(triage.states()) == 1


Look = Callable[[], Parked]


def test_a_reader_sees_the_changes_of_others_and_its_own(tmp_path: Path) -> None:
    path = tmp_path / "triage.db"
    reader = Triage(path, "sqlite:place")
    look: Look = reader.parked
    assert not look()
    with Triage(path, "sqlite:place") as writer:
        writer.park("group", ["0123456789ab"])
        assert look().groups == {"0123456789ab"}
        assert look() is look()
        writer.unpark("group", ["0123456789ab"])
        assert not look()
    reader.park("group", ["ffffffffffff"])
    assert look().groups == {"ffffffffffff"}
    reader.close()
