"""A redrive is a Spark job: every letter once at its destination, whichever process is killed."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest
from buried import stored

from redelivery.contract.letters import Wanted
from redelivery.deadletters.groups import fingerprint
from redelivery.deadletters.journal import Journal, parts_folder
from redelivery.deadletters.queue import dead_letters
from redelivery.deadletters.triage import key_of
from redelivery.errors import ConfigurationError, JournalError
from redelivery.registry import connect
from redelivery.spark import letter_schema
from redelivery.spark.letters_reader import LetterScan, Selected
from redelivery.spark.options import read_read_options

pytest.importorskip("redelivery_sqlite")


def test_every_letter_goes_back_and_is_accounted_for(spark, place):
    place.bury(1_000)
    report = place.redrive(spark)
    assert (report.considered, report.redriven, report.removed, report.failed) == (1_000, 1_000, 1_000, 0)
    assert sorted(name for name, _ in place.sent) == sorted(f"n{at}~1" for at in range(1_000))
    assert place.letters == []
    assert not parts_folder(place.journal).exists()
    assert place.redrive(spark).considered == 0


def test_a_dry_run_counts_and_sends_nothing(spark, place):
    place.bury(10)
    place.bury(5, first=10, hops=9)
    report = place.redrive(spark, dry_run=True)
    assert (report.considered, report.selected, report.redriven) == (15, 10, 0)
    assert report.left == {"it was sent back 5 times already": 5}
    assert (len(place.sent), len(place.letters)) == (0, 15)
    assert not place.journal.exists()


def test_a_selection_a_hop_limit_and_a_limit_hold_for_the_whole_job(spark, place):
    place.bury(300)
    place.bury(20, first=300, hops=9)
    report = place.redrive(spark, where=["id~^n[0-9]*[02468]$", "kind=permanent"], limit=70)
    assert (report.selected, report.redriven, len(place.sent), len(place.letters)) == (70, 70, 70, 250)
    assert report.stopped == "the limit of 70 letters is reached"
    report = place.redrive(spark, where="kind=permanent", hop_limit=5)
    assert (report.redriven, report.left) == (230, {"it was sent back 5 times already": 20})
    assert report.stopped is None
    assert place.redrive(spark, hop_limit=10).redriven == 20
    assert len(place.sent) == len({name for name, _ in place.sent}) == 320
    with pytest.raises(ConfigurationError, match="did you mean"):
        place.redrive(spark, where="kidn=permanent")


@pytest.mark.parametrize("mend", [None, lambda letters: letters], ids=["sent", "mended"])
def test_parked_letters_stay(spark, place, tmp_path, mend):
    place.bury(30)
    place.bury(5, first=30, destination="sqlite:elsewhere")
    triage = tmp_path / "triage.db"
    with dead_letters(place.url, triage=triage) as letters:
        found = {letter.message.id: letter for letter in letters}
        letters.triage.park("letter", [key_of(found[each]) for each in ("n3", "n7")])
        letters.triage.park("group", [fingerprint(found["n33"].context)])
    report = place.redrive(spark, mend=mend, triage=triage)
    assert (report.considered, report.redriven, report.left) == (35, 28, {"parked": 7})
    assert sorted(name for name, _ in place.letters) == ["n3", "n30", "n31", "n32", "n33", "n34", "n7"]


def test_letters_are_read_by_what_is_parked(place, tmp_path, monkeypatch):
    """Without a session: what plans a read is a process of Spark's, with the user's own state folder."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    place.bury(6)
    with dead_letters(place.url) as letters:
        letters.triage.park("letter", [key_of(letter) for letter in letters if letter.message.id in {"n1", "n4"}])
        group = fingerprint(next(iter(letters)).context)
    for where, names in ((f"group={group}\nparked=true", ["n1", "n4"]), ("parked=false", ["n0", "n2", "n3", "n5"])):
        settings = read_read_options({"url": place.url, "deadLetters": "true", "where": where})
        with connect(place.url) as broker:
            columns = letter_schema.all_columns(broker.capabilities)
        scan = LetterScan.of(settings, columns)
        assert scan.wanted.columns is None
        with scan.on_the_driver() as (_, stored_letters):
            selected = Selected(settings, scan.now_ms, scan.parked)
            (batch,) = stored_letters.read(*stored_letters.splits(scan.wanted), scan.wanted)
            assert selected.of(batch).messages.id.values == names


def test_what_an_earlier_run_has_sent_is_removed_and_not_sent_again(spark, place):
    from redelivery.deadletters.redrive import digest  # noqa: PLC0415

    place.bury(50)
    with connect(place.url, {}) as broker, broker.dead_letters() as letters:
        found = [each for batch in letters.read(letters.splits(Wanted())[0], Wanted()) for each in batch.letters()]
    with Journal(place.journal, f"{place.url}-dead-letters") as journal:
        journal.sent({each.position: digest(each) for each in found[10:20]})
    report = place.redrive(spark)
    assert (report.resumed, report.redriven, len(place.sent), place.letters) == (10, 40, 40, [])
    with Journal(place.journal, f"{place.url}-dead-letters") as journal:
        assert journal.pending() == {}


def test_two_redrives_of_one_place_at_once_are_refused(spark, place):
    place.bury(1)
    with (
        Journal(place.journal, f"{place.url}-dead-letters"),
        pytest.raises(JournalError, match="another redrive of this place is running"),
    ):
        place.redrive(spark)
    assert len(place.letters) == 1


def test_letters_go_no_faster_than_the_rate_of_the_whole_job(spark, place):
    place.bury(200)
    moments = []
    report = place.redrive(spark, rate=100, on_progress=lambda _: moments.append(1))
    assert report.redriven == 200
    with closing(sqlite3.connect(place.file)) as connection:
        first, last = connection.execute("SELECT min(enqueued_ms), max(enqueued_ms) FROM message_1").fetchone()
        if first is None or last == first:
            first, last = connection.execute("SELECT min(enqueued_ms), max(enqueued_ms) FROM message_2").fetchone()
    assert last - first >= 1_500
    assert moments


def test_it_stops_when_it_is_told_and_goes_on_at_the_next_call(spark, place):
    place.bury(400)
    seen = []
    report = place.redrive(spark, rate=100, on_progress=lambda each: seen.append(each.redriven), stop=lambda: any(seen))
    assert report.stopped == "it was interrupted"
    assert 0 < report.redriven < 400
    assert report.considered == report.redriven == len(place.sent) == 400 - len(place.letters)
    assert place.redrive(spark).redriven == 400 - report.redriven


def test_a_letter_for_a_target_that_is_not_allowed_stays(spark, place):
    place.bury(3)
    place.bury(2, first=3, target="other")
    report = place.redrive(spark)
    assert (report.redriven, sum(report.left.values()), len(place.letters)) == (3, 2, 2)
    assert place.redrive(spark, allow_targets=["oth*"]).redriven == 2
    assert len(stored(place.file, "other")) == 2


def test_mistakes_are_told_before_anything_is_sent(spark, place, monkeypatch):
    place.bury(1)
    with pytest.raises(ConfigurationError, match="is the place that the letters are in"):
        place.redrive(spark, to=f"{place.url}-dead-letters")
    with pytest.raises(ConfigurationError, match="limit: must be more than 0"):
        place.redrive(spark, limit=0)
    with pytest.raises(ConfigurationError, match="allow_targets is a list"):
        place.redrive(spark, allow_targets="x")
    from redelivery.spark import redriving  # noqa: PLC0415

    monkeypatch.setattr(redriving, "_setting", lambda _, name: {"spark.speculation": "true"}.get(name))
    with pytest.raises(ConfigurationError, match="switch it off"):
        place.redrive(spark)
    monkeypatch.setattr(redriving, "_setting", lambda _, name: {"spark.master": "spark://host:7077"}.get(name))
    with pytest.raises(ConfigurationError, match="is a file of one host"):
        place.redrive(spark)
    assert len(place.letters) == 1
