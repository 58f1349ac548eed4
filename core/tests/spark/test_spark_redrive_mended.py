"""A redrive mends letters by DataFrame code: what it drops stays, what it multiplies goes as a whole."""

from __future__ import annotations

import json
import time
from dataclasses import replace

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as f
from pyspark.sql import types as t

from redelivery.contract.letters import Wanted
from redelivery.contract.message import Column
from redelivery.deadletters.parts import Leader, Part
from redelivery.deadletters.queue import DeadLetterQueue
from redelivery.deadletters.redrive import RedriveSettings
from redelivery.errors import ConfigurationError, Fatal
from redelivery.registry import connect
from redelivery.spark import deliver, rows
from redelivery.spark.job import Job
from redelivery.spark.options import read_write_options
from redelivery.spark.redrive_tasks import Work, letters_of, letters_schema, send_rows

pytest.importorskip("redelivery_sqlite")


def test_mended_letters_go_back_and_those_that_the_mend_drops_stay(spark, place):
    place.bury(1_000)

    def mend(letters):
        assert "_error" in letters.columns
        number = f.col("value").cast("string").cast("int")
        return letters.where(number % 4 != 0).withColumn("value", f.concat(f.lit("mended "), number).cast("binary"))

    report = place.redrive(spark, mend=mend, where="kind=permanent")
    assert (report.considered, report.redriven, report.removed, report.failed) == (1_000, 750, 750, 0)
    assert report.left == {"the mend dropped it": 250}
    assert sorted(place.sent) == sorted((f"n{at}~1", b"mended %d" % at) for at in range(1_000) if at % 4)
    assert sorted(name for name, _ in place.letters) == sorted(f"n{at}" for at in range(0, 1_000, 4))


def test_a_mend_may_shuffle_join_and_sort(spark, place):
    place.bury(100)
    known = spark.createDataFrame([(f"n{at}~1", at) for at in range(0, 100, 2)], "id string, number int")

    def mend(letters):
        return letters.join(known, "id").orderBy(f.rand(3)).repartition(5).drop("number")

    report = place.redrive(spark, mend=mend)
    assert (report.redriven, report.left) == (50, {"the mend dropped it": 50})
    assert {name for name, _ in place.sent} == {f"n{at}~1" for at in range(0, 100, 2)}
    assert len(place.letters) == 50


def test_letters_of_a_split_keep_their_order(spark, place):
    place.bury(300)
    place.redrive(spark, rate=1e9, limit=100, mend=lambda letters: letters.orderBy(f.rand(1)))
    assert [int(value) for _, value in place.sent] == list(range(100)), "the oldest hundred lie in the first split"


def test_a_letter_that_became_several_rows_is_removed_when_all_are_confirmed(spark, place):
    place.bury(10)

    def mend(letters):
        twice = letters.withColumn("copy", f.explode(f.array(f.lit("a"), f.lit("b"))))
        bad = (f.col("copy") == "b") & (f.col("id") == "n3~1b")
        headers = f.array(f.struct(f.when(~bad, f.lit("copy")).alias("key"), f.encode("copy", "utf-8").alias("value")))
        return twice.withColumn("id", f.concat("id", "copy")).withColumn("headers", headers).drop("copy")

    report = place.redrive(spark, mend=mend)
    assert (report.redriven, report.failed, report.considered) == (9, 1, 10)
    assert len(place.sent) == 19, "one of the two rows of n3 has a header without a name"
    assert [name for name, _ in place.letters] == ["n3"]


def test_a_mend_that_raises_sends_nothing(spark, place):
    place.bury(50)
    with pytest.raises(ZeroDivisionError):
        place.redrive(spark, mend=lambda letters: letters.limit(1 // 0))
    with pytest.raises(PySparkException, match="broken letter"):
        place.redrive(
            spark,
            mend=lambda letters: letters.withColumn(
                "value",
                f.when(f.col("id") == "n49~1", f.raise_error(f.lit("broken letter"))).otherwise(f.col("value")),
            ),
        )
    assert (len(place.sent), len(place.letters)) == (0, 50)
    assert place.redrive(spark).redriven == 50


def test_the_position_of_a_letter_must_be_kept(spark, place):
    place.bury(2)
    with pytest.raises(ConfigurationError, match="mend must return a DataFrame, not NoneType"):
        place.redrive(spark, mend=lambda letters: None)
    with pytest.raises(ConfigurationError, match="have no text column '_position'"):
        place.redrive(spark, mend=lambda letters: letters.drop("_position"))
    with pytest.raises(PySparkException, match="which no letter has"):
        place.redrive(spark, mend=lambda letters: letters.withColumn("_position", f.lit("1")))
    with pytest.raises(ConfigurationError, match="unknown column 'more'"):
        place.redrive(spark, mend=lambda letters: letters.withColumn("more", f.lit("1")))
    assert (len(place.sent), len(place.letters)) == (0, 2)


def test_rows_that_never_became_messages_are_mended(spark, place):
    bad = spark.sql("SELECT '/s' AS source, IF(id = 1, NULL, 't') AS type, string(id) AS subject FROM range(3)")
    deliver(bad, place.url, deadLetterSink="native")
    schema = bad.schema

    report = place.redrive(spark, mend=lambda letters: rows(letters, schema).withColumn("type", f.lit("mended")))
    assert (report.redriven, report.failed) == (1, 0)
    assert (len(place.sent), place.letters) == (3, [])


@pytest.mark.parametrize("mended", [False, True])
def test_a_limit_counts_letters_that_are_sent_and_not_those_that_an_earlier_run_has_sent(spark, place, mended):
    from redelivery.deadletters.journal import Journal  # noqa: PLC0415
    from redelivery.deadletters.redrive import digest  # noqa: PLC0415

    place.bury(40)
    with connect(place.url, {}) as broker, broker.dead_letters() as letters:
        found = list(letters.browse())
    with Journal(place.journal, f"{place.url}-dead-letters") as journal:
        journal.sent({each.position: digest(each) for each in found[:15]})
    report = place.redrive(spark, limit=20, mend=(lambda letters: letters) if mended else None)
    assert (report.resumed, report.redriven, len(place.letters)) == (15, 20, 5)
    assert report.stopped == "the limit of 20 letters is reached"


def test_a_limit_counts_rows_that_never_became_messages_where_they_are_mended(spark, place):
    bad = spark.sql("SELECT '/s' AS source, STRING(NULL) AS type, string(id) AS subject FROM range(10)")
    deliver(bad, place.url, deadLetterSink="native")
    mend = lambda letters: rows(letters, bad.schema).withColumn("type", f.lit("mended"))  # noqa: E731
    report = place.redrive(spark, mend=mend, limit=4)
    assert (report.redriven, len(place.letters)) == (4, 6)


def test_limit_rate_and_hop_limit_hold(spark, place):
    place.bury(60)
    place.bury(5, first=60, hops=9)
    report = place.redrive(spark, mend=lambda letters: letters, limit=20, rate=50)
    assert (report.redriven, report.considered - sum(report.left.values()), len(place.sent)) == (20, 20, 20)
    assert report.stopped == "the limit of 20 letters is reached"
    report = place.redrive(spark, mend=lambda letters: letters)
    assert (report.redriven, report.left) == (40, {"it was sent back 5 times already": 5})


def test_what_an_earlier_run_has_sent_is_not_mended_again(spark, place):
    from redelivery.contract.letters import WHOLE, Wanted  # noqa: PLC0415
    from redelivery.deadletters.journal import Journal  # noqa: PLC0415
    from redelivery.deadletters.redrive import digest  # noqa: PLC0415

    place.bury(20)
    with connect(place.url, {}) as broker, broker.dead_letters() as letters:
        found = list(letters.browse())
        assert WHOLE is not None
        assert letters.splits(Wanted())
    with Journal(place.journal, f"{place.url}-dead-letters") as journal:
        journal.sent({each.position: digest(each) for each in found[5:10]})
    report = place.redrive(spark, mend=lambda letters: letters)
    assert (report.resumed, report.redriven, len(place.sent), place.letters) == (5, 15, 15, [])


class Parts:
    """A redrive of one part, whose stages are called as Spark calls them: once, or again."""

    def __init__(self, place, *, limit=None):
        self.work = Work(
            url=place.url, sink=None, to=None, options={}, key=None, where=(), spec=None, hop_limit=5, allow_targets=(),
            shared_mount=False, settings=RedriveSettings(rate=100),
        )  # fmt: skip
        with self.work.opened() as letters:
            self.leader = Leader(place.journal, letters.place, "r")
            wanted = Wanted(removing=True)
            self.plan = [
                Part(
                    run="r",
                    number=0,
                    splits=letters.splits(wanted),
                    wanted=wanted,
                    folder=self.leader.folder,
                    limit=limit,
                    made=letters.made(),
                    now_ms=time.time_ns() // 1_000_000,
                )
            ]
        settings = read_write_options({"url": place.url})
        fields = [each for each in letters_schema(place.url) if each.name not in ("_error", "_position")]
        self.body = [each.name for each in fields]
        self.layout = Job.plan(settings, t.StructType(fields)).layout

    def read(self):
        """The rows that the first stage gives."""
        batches = letters_of(self.work, self.plan, [pa.record_batch([pa.array([0])], names=["id"])])
        return [each.select([*self.body, "_position"]) for each in batches]

    def send(self, rows):
        """What the second stage says."""
        (answer,) = send_rows(self.work, self.plan, self.layout, rows)
        _, report, settled = json.loads(answer.column(0)[0].as_py())
        return report, settled


@pytest.mark.parametrize("noted", [0, 7, 30])
@pytest.mark.parametrize("reads_again", [False, True])
def test_a_task_that_is_started_again_sends_only_what_it_had_not_sent(place, noted, reads_again):
    place.bury(30)
    parts = Parts(place)
    with parts.leader:
        rows = parts.read()
        if noted:
            parts.send([each.slice(0, noted) for each in rows])
        assert len(place.sent) == noted
        rows = parts.read() if reads_again else rows
        if rows:
            report, settled = parts.send(rows)
            assert (report["redriven"], report["removed"], settled) == (30, 30, [])
    assert sorted(name for name, _ in place.sent) == sorted(f"n{at}~1" for at in range(30))
    assert place.letters == []


def test_a_place_that_was_made_again_meanwhile_keeps_its_letters(place):
    place.bury(5)
    parts = Parts(place)
    with parts.leader:
        rows = parts.read()
        place.file.unlink()
        for each in place.file.parent.glob("q.db-*"):
            each.unlink()
        place.bury(5, first=5)
        with pytest.raises(Fatal, match="created again"):
            parts.send(rows)
    assert [name for name, _ in place.letters] == [f"n{at}" for at in range(5, 10)]


@pytest.mark.parametrize("reads_again", [False, True])
def test_a_part_keeps_to_its_limit_also_when_both_stages_are_repeated(place, reads_again):
    place.bury(30)
    parts = Parts(place, limit=20)
    with parts.leader:
        rows = parts.read()
        parts.send([each.slice(0, 12) for each in rows])
        report, _ = parts.send(parts.read() if reads_again else rows)
    assert (report["redriven"], report["removed"]) == (20, 20)
    assert [name for name, _ in place.sent] == [f"n{at}~1" for at in range(20)]
    assert [name for name, _ in place.letters] == [f"n{at}" for at in range(20, 30)]


def test_a_row_whose_letter_is_gone_is_not_sent_and_one_that_is_not_shown_stays(place, monkeypatch):
    """Both have a native part, so their letters are looked at again before they are sent."""
    place.bury(30)
    read, hidden = DeadLetterQueue.read, set()

    def with_native(batches):
        for batch in batches:
            shown = batch.take([at for at, each in enumerate(batch.position.values) if each not in hidden])
            natives = [int(each) for each in shown.position.values]
            yield replace(shown, messages=replace(shown.messages, native=Column.of(natives)))

    stored = DeadLetterQueue.stored
    monkeypatch.setattr(DeadLetterQueue, "read", lambda *given, **more: with_native(read(*given, **more)))
    monkeypatch.setattr(DeadLetterQueue, "stored", lambda *given: with_native(stored(*given)))
    parts = Parts(place)
    with parts.leader:
        rows = parts.read()
        with connect(place.url, {}) as broker, broker.dead_letters() as letters:
            positions = [each.position for each in letters.browse()]
            assert letters.remove(positions[:5]) == 5
        hidden.add(positions[7])
        report, _ = parts.send(rows)
    left = {"it is gone, or not shown now with all that it had": 6}
    assert (report["redriven"], report["removed"], report["failed"], report["left"]) == (24, 24, 0, left)
    assert sorted(name for name, _ in place.sent) == sorted(f"n{at}~1" for at in range(5, 30) if at != 7)
    assert [name for name, _ in place.letters] == ["n7"]
