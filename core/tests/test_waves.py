"""Waves: where too many letters come back the rest is not sent, and what was killed goes on where it was."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_cli_letters import at_work, bury, lying, rows, run, url
from test_deadletters import CONTEXT, DeadLetterSetup, letter

from redelivery.codes import Code
from redelivery.contract.broker import Letter, Limits
from redelivery.contract.capabilities import Support
from redelivery.deadletters.journal import Journal, default_path
from redelivery.deadletters.queue import dead_letters
from redelivery.deadletters.redrive import RedriveReport, RedriveSettings
from redelivery.errors import ConfigurationError, JournalError
from redelivery.formats import dialects
from redelivery.policy import waves as policy
from redelivery.policy.waves import Begin, Done, Send, Stop, Wait, Wave, Waves

__all__ = ["url"]  # a fixture
SIZES = st.lists(st.integers(1, 50), min_size=1, max_size=4).map(tuple)
LIMITS = st.integers(1, 20) | st.fractions(Fraction(1, 1000), 1)
SOON = timedelta(milliseconds=20)


def ended(
    waves: Waves, letters: int, comes_back: Callable[[int], bool], kill: Callable[[], bool] = lambda: False
) -> tuple[list[Wave], int, bool]:
    """Do as a redrive does: return the waves, how many letters were sent, and whether it stopped."""
    now, sent, returned, seen = 0, 0, 0, []
    wave = Wave(began_ms=0)
    for _ in range(100_000):
        if kill():
            wave = Wave(**json.loads(json.dumps({name: getattr(wave, name) for name in wave.__slots__})))
        step = waves.step(wave, returned, now, more=sent < letters)
        if isinstance(step, Send):
            assert 0 < step.most <= waves.size(wave.number)
            count = min(step.most, letters - sent, 1 + (sent * 7) % step.most)
            returned += sum(comes_back(each) for each in range(sent, sent + count))
            sent += count
            wave = policy.sent(wave, count, 0)
        elif isinstance(step, Wait):
            assert 0 < step.seconds <= waves.wait.total_seconds()
            wave = policy.waiting(wave, now)
            now += max(1, int(step.seconds * 1000))
        elif isinstance(step, Begin):
            seen.append(wave)
            wave = waves.following(wave, returned, now)
        else:
            return [*seen, wave], sent, isinstance(step, Stop)
    raise AssertionError("it never ends")


@given(SIZES, st.integers(0, 300))
def test_without_returns_all_are_sent_in_waves_of_these_sizes(sizes: tuple[int, ...], letters: int) -> None:
    waves = Waves(sizes=sizes, wait=SOON)
    seen, sent, stopped = ended(waves, letters, lambda _: False)
    assert (sent, stopped) == (letters, False)
    planned = [size for times, size in waves.plan(letters) for _ in range(times)]
    assert [wave.sent for wave in seen if wave.sent] == planned
    assert all(wave.sent <= waves.size(wave.number) for wave in seen)
    assert all(wave.waits_since_ms is not None for wave in seen if wave.sent), "each was waited for"


@given(SIZES, LIMITS, st.integers(1, 300), st.sets(st.integers(0, 300)), st.randoms(use_true_random=False))
def test_it_stops_in_the_wave_where_too_many_come_back_wherever_it_is_killed(
    sizes: tuple[int, ...], stop_at: int | Fraction, letters: int, back: set[int], random: Any
) -> None:
    waves = Waves(sizes=sizes, stop_at=stop_at, wait=SOON)
    seen, sent, stopped = ended(waves, letters, back.__contains__)
    assert ended(waves, letters, back.__contains__, lambda: random.random() < 0.3) == (seen, sent, stopped)
    first = 0
    for wave in seen:
        harm = sum(first <= each < first + wave.sent for each in back)
        first += wave.sent
        too_many = harm > 0 and harm >= (stop_at * wave.sent if isinstance(stop_at, Fraction) else stop_at)
        assert too_many == (stopped and wave is seen[-1])
    assert stopped or sent == letters


@given(SIZES, st.integers(0, 10**6), st.integers(-(10**12), 10**12))
def test_no_clock_makes_a_wait_longer(sizes: tuple[int, ...], since: int, now: int) -> None:
    waves = Waves(sizes=sizes)
    step = waves.step(Wave(began_ms=0, sent=1, waits_since_ms=since), 0, now, more=True)
    assert isinstance(step, Begin) or (isinstance(step, Wait) and 0 < step.seconds <= 30)
    assert isinstance(waves.step(Wave(began_ms=0, sent=1, waits_since_ms=0), 0, 30_000, more=False), Done)


def test_texts_of_waves() -> None:
    assert Waves.parse("1, 10,100") == Waves(sizes=(1, 10, 100), stop_at=Fraction(1, 50), wait=timedelta(seconds=30))
    assert Waves.parse("5", "0.5%", "PT0S").stop_at == Fraction(1, 200)
    assert Waves.parse("5", "3").limit == "3"
    assert Waves.parse("5", "2.5 %").limit == "2.5 %"
    assert policy.plan_shown(Waves.parse("1,10").plan(35)) == "1, 3 x 10, 4"
    for bad in ("", "0", "1,", "1;2", "-1", "1.5", "x", "9" * 13, "²"):
        with pytest.raises(ConfigurationError):
            Waves.parse(bad)
    for bad in ("0", "0%", "101%", "-1", "x", "%", "1e2", "²"):
        with pytest.raises(ConfigurationError):
            Waves.parse("1", bad)
    with pytest.raises(ConfigurationError, match="PT5S"):
        Waves.parse("1", None, "30")
    for wrong in ({"sizes": ()}, {"sizes": (0,)}, {"stop_at": 0}, {"stop_at": Fraction(3, 2)}, {"wait": -SOON}):
        with pytest.raises(ConfigurationError):
            Waves(**wrong)


# --- redrives ------------------------------------------------------------------------------------------------------


def setup(count: int) -> DeadLetterSetup:
    return DeadLetterSetup(*(letter(f"n{at}") for at in range(count)))


def bouncing(here: DeadLetterSetup, *names: str) -> Callable[[RedriveReport], None]:
    """A consumer that fails again on these."""
    seen = 0

    def look(_: RedriveReport) -> None:
        nonlocal seen
        new, seen = here.work.stored[seen:], len(here.work.stored)
        for message in new:
            if (message.id or "").removesuffix("~1") in names:
                failed = replace(CONTEXT, hops=1, code=Code.UNAVAILABLE, reason=f"order {message.id} failed")
                again = dialects.attach(message, failed, dialect="json", limits=Limits(), prefix="ce-")
                died = time.time_ns() // 1_000_000 + 1
                here.place.letters.append(Letter(position=f"b-{message.id}", message=again, dead_lettered_ms=died))

    return look


def test_waves_grow_until_all_are_sent() -> None:
    here, told = setup(17), set[int]()
    with here.dlq() as dlq:
        settings = RedriveSettings(on_progress=lambda report: told.add(report.wave))
        report = dlq.redrive(waves=Waves(sizes=(1, 5), wait=SOON), settings=settings)
    assert (report.considered, report.redriven, report.removed, report.stopped) == (17, 17, 17, None)
    assert [(wave.number, wave.sent) for wave in report.waves] == [(1, 1), (2, 5), (3, 5), (4, 5), (5, 1)]
    assert {1, 2, 5} <= told


def test_it_stops_where_too_many_come_back_and_says_which() -> None:
    here = setup(30)
    with here.dlq() as dlq:
        settings = RedriveSettings(on_progress=bouncing(here, "n3", "n7"), max_returns=0)
        report = dlq.redrive(waves=Waves(sizes=(1, 10), stop_at=Fraction(2, 10), wait=SOON), settings=settings)
    assert report.redriven == 11, "two of the second wave came back"
    assert report.returned == 2
    assert report.stopped is not None
    assert report.stopped.startswith("wave 2: 2 of 10 came back and 0 were refused (stop at 20 %)")
    (cause, count), *others = report.causes.items()
    assert (count, others) == (2, []), "both have one cause, whatever ids it names"
    assert cause.startswith("UNAVAILABLE (group ")
    assert cause in report.stopped


def test_what_came_back_is_not_sent_again_by_the_same_redrive() -> None:
    here = setup(10)
    with here.dlq() as dlq:
        settings = RedriveSettings(on_progress=bouncing(here, "n1"))
        report = dlq.redrive(waves=Waves(sizes=(5,), stop_at=2, wait=SOON), settings=settings)
    assert (report.redriven, report.returned, sum(report.left.values())) == (10, 1, 1)
    assert [each.message.id for each in here.place.letters] == ["n1~1"]


def test_what_is_refused_counts_and_is_sent_once() -> None:
    here = setup(12)
    here.work.script = {"n0~1": ["permanent", "ok"], "n5~1": ["permanent", "ok"]}
    with here.dlq() as dlq:
        report = dlq.redrive(waves=Waves(sizes=(4,), stop_at=2, wait=SOON))
    assert (report.considered, report.redriven, report.failed, report.stopped) == (12, 10, 2, None)
    assert [(wave.sent, wave.failed) for wave in report.waves] == [(4, 1), (4, 1), (4, 0)]
    here.work.script = {"n0~1": ["permanent"], "n5~1": ["permanent"]}
    with here.dlq() as dlq:
        report = dlq.redrive(waves=Waves(sizes=(4,), stop_at=2, wait=SOON))
    assert (report.failed, len(here.place.letters)) == (2, 2)
    assert "0 of 2 came back and 2 were refused" in (report.stopped or "")


def test_too_many_refusals_end_a_wave_also_where_a_place_shows_its_first_letters_only() -> None:
    here = setup(40)
    here.work.script = {f"n{at}~1": ["permanent"] for at in range(0, 40, 2)}
    object.__setattr__(here.work.capabilities, "browse", Support.LOWER_BOUND)
    here.place.browse = lambda: iter(list(here.place.letters[:20]))  # type: ignore[method-assign]
    with here.dlq() as dlq:
        report = dlq.redrive(waves=Waves(sizes=(40,), stop_at=2, wait=SOON))
    assert (report.redriven, report.failed) == (10, 10), "the first look's"
    assert "of 20 came back" in (report.stopped or "")


def test_a_limit_ends_the_waves_and_what_comes_back_is_still_waited_for() -> None:
    here = setup(12)
    with here.dlq() as dlq:
        settings = RedriveSettings(limit=7, on_progress=bouncing(here, "n6"))
        report = dlq.redrive(waves=Waves(sizes=(5,), stop_at=9, wait=SOON), settings=settings)
        assert (report.redriven, report.returned, report.stopped) == (7, 1, "the limit of 7 letters is reached")
        report = dlq.redrive(waves=Waves(sizes=(2,), wait=SOON), settings=RedriveSettings(rate=100))
    assert [each.sent for each in report.waves] == [2, 2, 2], "the one that came back, too"


def test_a_dry_run_sends_no_wave() -> None:
    here = setup(5)
    with here.dlq() as dlq:
        report = dlq.redrive(waves=Waves(sizes=(2,)), settings=RedriveSettings(dry_run=True))
    assert (report.selected, report.redriven, report.waves) == (5, 0, [])


def test_an_interrupted_one_goes_on_in_its_wave_and_a_stopped_one_begins_again(tmp_path: Path) -> None:
    here, journal = setup(40), tmp_path / "journal"
    waves = Waves(sizes=(1, 10), stop_at=1, wait=SOON)
    stopped = RedriveSettings(stop=lambda: len(here.work.stored) >= 11)
    with here.dlq() as dlq:
        report = dlq.redrive(waves=waves, journal=journal, settings=stopped)
        assert (report.stopped, report.redriven) == ("it was interrupted", 11)
        report = dlq.redrive(waves=waves, journal=journal, settings=RedriveSettings(on_progress=bouncing(here, "n15")))
        assert [(each.number, each.sent) for each in report.waves] == [(2, 10), (3, 10)]
        assert (report.stopped or "").startswith("wave 3: 1 of 10 came back")
        report = dlq.redrive(waves=waves, journal=journal)
        assert [each.number for each in report.waves[:2]] == [1, 2], "it has given its account: mended, it begins small"


def test_two_at_once_are_one_and_a_refusal(tmp_path: Path) -> None:
    here, journal = setup(3), tmp_path / "journal"
    with Journal(journal, "scripted:native"), here.dlq() as dlq, pytest.raises(JournalError, match="another redrive"):
        dlq.redrive(waves=Waves(), journal=journal)
    assert not here.work.stored


KILLED = """
import os, sys
from redelivery import cli
from redelivery.deadletters import journal, redrive, wave_run
step, url = sys.argv[1:]
def die(*_, **__): os._exit(9)
def second(call, after):
    calls = []
    def counted(*arguments, **named):
        calls.append(1)
        if len(calls) == 3 and not after:
            os._exit(9)
        result = call(*arguments, **named)
        if len(calls) == 3:
            os._exit(9)
        return result
    return counted
where, name, after = {
    "before-a-letter-is-sent": (redrive.Transfer, "_send", False),
    "before-it-is-noted": (journal.Journal, "sent", False),
    "after-it-is-noted": (journal.Journal, "sent", True),
    "after-a-wave-is-sent": (wave_run.WaveRun, "waiting", False),
    "while-it-waits": (wave_run.WaveRun, "waiting", True),
    "before-the-next-wave": (wave_run.WaveRun, "following", False),
    "after-the-next-wave-began": (wave_run.WaveRun, "following", True),
}[step]
setattr(where, name, second(getattr(where, name), after))
cli.main(["dead-letters", "redrive", url, "--waves", "1,2,3", "--wave-wait", "PT0.02S"])
"""
#: The wave in which each is killed, and how many letters of the waves are noted then.
STEPS = {
    "before-a-letter-is-sent": (3, 3),
    "before-it-is-noted": (3, 3),
    "after-it-is-noted": (3, 6),
    "after-a-wave-is-sent": (3, 6),
    "while-it-waits": (3, 6),
    "before-the-next-wave": (3, 6),
    "after-the-next-wave-began": (4, 6),
}


@pytest.mark.parametrize("step", STEPS)
def test_killed_at_any_step_the_same_command_goes_on_in_its_wave(
    url: str,
    step: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    bury(url, *rows(11))
    assert subprocess.run([sys.executable, "-c", KILLED, step, url], check=False).returncode == 9
    wave, noted = STEPS[step]
    with dead_letters(url) as dlq, Journal(default_path(dlq.place), dlq.place) as journal:
        assert json.loads(journal.wave() or "{}")["wave"]["number"] == wave
        assert journal.tally == noted
    options = ("--waves", "1,2,3", "--wave-wait", "PT0.02S", "--json")
    status, out, _ = run(capsys, "redrive", url, *options)
    report = json.loads(out)
    assert (status, report["waves"][0]["number"]) == (0, wave)
    assert [each["sent"] for each in report["waves"]] == [3, 3, 2][wave - 3 :]
    assert sorted(str(each) for each in at_work(url)) == sorted(f"n{at}~1" for at in range(11))
    assert lying(url) == []


def test_the_command_stops_with_a_line_and_a_status_of_its_own(
    url: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    bury(url, *rows(5))
    status, out, _ = run(capsys, "redrive", url, "--waves", "1,10", "--dry-run")
    assert (status, "Waves: 1, 4." in out) == (0, True)
    status, out, _ = run(capsys, "redrive", url, "--waves", "2", "--wave-wait", "PT0.02S")
    assert status == 0
    assert "2  were sent in wave 1: 0 refused, 0 dead again" in out
    for options, why in (
        (("--waves", "x"), "1,10,100,1000"),
        (("--stop-at", "2%"), "belongs to --waves"),
        (("--wave-wait", "PT1S"), "belongs to --waves"),
        (("--waves", "1", "--stop-at", "x"), "as in 2%"),
        (("--waves", "1", "--spark", "local[1]"), "leave out --spark"),
    ):
        status, _, err = run(capsys, "redrive", url, *options)
        assert (status, why in err, err.count("\n")) == (2, True, 1), err


def test_the_command_edits_and_shows_what_it_would(
    url: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    bury(url, *(replace(each, value=b'{"amount":1.0,"iban":"DE99"}') for each in rows(2)), rows(3)[2])
    patch = tmp_path / "patch.yaml"
    patch.write_text("body: [{op: replace, path: /amount, value: 2}]\n")
    status, out, _ = run(capsys, "redrive", url, "--patch", str(patch), "--dry-run", "--mask", "DE[0-9]+")
    assert status == 0
    assert '-  "amount": 1.0,\n+  "amount": 2,\n   "iban": "***"\n' in out
    assert "stay: the patch does not fit" in out
    assert run(capsys, "redrive", url, "--patch", str(patch), "--waves", "1", "--wave-wait", "PT0.01S")[0] == 0
    with dead_letters(url) as dlq:
        assert [each.message.value for each in dlq] == [b"body"]
    assert sorted(str(each) for each in at_work(url)) == ["n0~1", "n1~1"]
    patch.write_text("bod: 1")
    status, _, err = run(capsys, "redrive", url, "--patch", str(patch))
    assert (status, "did you mean 'body'" in err, err.count("\n")) == (2, True, 1)
    patch.write_text("key: k")
    assert run(capsys, "redrive", url, "--patch", str(patch), "--spark", "local[1]")[0] == 2
