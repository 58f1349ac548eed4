"""What a user sees of a job that cannot work: one line, from the driver, before any task; of a failed task, one too."""

import logging
import re

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.types import StringType, StructField, StructType

from redelivery.errors import RedeliveryError, UnknownOption
from redelivery.sending.report import DeliveryReport
from redelivery.spark import deliver
from redelivery.spark.job import Job
from redelivery.spark.options import read_write_options
from redelivery.spark.redelivered import Redelivered
from redelivery.spark.writer import RedeliveryWriter, TaskDone

#: Lines of an error that Spark shows: its own, the step that raised, and ours.
MOST_LINES = 6


@pytest.fixture
def rows(spark):
    return spark.createDataFrame([("a",), ("b",), ("c",), ("d",)], "value string").repartition(2)


def write(df, url, **options):
    df.write.format("redelivery").options(url=url, **options).mode("append").save()


def last_line(text):
    """The last line that says something: Spark adds one with its own code."""
    return [line for line in text.splitlines() if line.strip() and not re.fullmatch(r"\s*SQLSTATE: \w+", line)][-1]


def shown(call):
    """What a user is shown, and its last line."""
    with pytest.raises((PySparkException, RedeliveryError)) as caught:
        call()
    text = str(caught.value)
    assert len(text.splitlines()) <= MOST_LINES, text
    return last_line(text)


def cases(folder, shelf):
    """Options that can never work, and what must be said of each."""
    missing = folder / "missing"
    good = f"sqlite://{folder}/orders.db?queue=orders"
    return {
        "sqlite": ({"url": f"sqlite://{missing}/x.db"}, ["its folder is missing", "make it, or correct the URL"]),
        "sqlite sink": (
            {"url": good, "deadLetterSink": f"sqlite://{missing}/x.db"},
            ["its folder is missing", "make it, or correct the URL"],
        ),
        "file sink": (
            {"url": good, "deadLetterSink": f"file://{missing}"},
            [str(missing), "the folder is missing: make it, or provision it, or correct the URL"],
        ),
        "queue": ({"url": shelf.url("missing")}, ["has no queue 'missing'", "make it, or correct the URL"]),
        "sink's queue": (
            {"url": shelf.url(), "deadLetterSink": shelf.url("missing")},
            ["has no queue 'missing'", "make it, or correct the URL"],
        ),
        "password": (
            {"url": shelf.url(), "shelf.password": "env:SHELF_PASSWORD"},
            ["does not take this password", "correct shelf.password"],
        ),
    }


@pytest.mark.parametrize("case", ["sqlite", "sqlite sink", "file sink", "queue", "sink's queue", "password"])
def test_what_can_never_work_is_one_line_from_the_driver_before_any_task(rows, shelf, tmp_path, case):
    password = tmp_path / "password"
    password.write_text("wrong")
    options, said = cases(tmp_path, shelf)[case]
    options = {name: f"file:{password}" if value == "env:SHELF_PASSWORD" else value for name, value in options.items()}
    ran = tmp_path / "ran"

    def note(batches):
        ran.touch()
        yield from batches

    df = rows.mapInArrow(note, "value string")
    for call in (lambda: write(df, **options), lambda: deliver(df, **options)):
        line = shown(call)
        for each in [*said, "nothing was sent", "preflight=false"]:
            assert each in line
    assert not ran.exists(), "a task ran"
    assert not (tmp_path / "orders.db").exists(), "the destination was made by looking"


@pytest.mark.parametrize("strict", ["redelivery.strict", "redelivery.Strict"])
def test_what_is_insecure_is_refused_at_the_driver_where_strict_also_a_second_sink(rows, spark, shelf, strict):
    bad = shelf.url("unlocked")
    for url, sinks in ((bad, shelf.url("sink")), (shelf.url(), bad), (shelf.url(), f"native {bad}")):
        options = {"url": url, "deadLetterSink": sinks, strict: "true"}
        for call in (lambda: write(rows, **options), lambda: deliver(rows, **options)):  # noqa: B023 - called at once
            assert "anybody can take from it; lock it; redelivery.strict refuses that" in shown(call)
        assert not shelf.messages()
    read = {"url": shelf.url(), "deadLetters": "true", "deadLetterSink": bad}
    assert spark.read.format("redelivery").options(**read).load().count() == 0
    assert "redelivery.strict refuses that" in shown(
        lambda: spark.read.format("redelivery").options(**read, **{strict: "true"}).load()
    )


def test_without_preflight_a_task_refuses_what_is_insecure(rows, shelf):
    options = {"deadLetterSink": f"native {shelf.url('unlocked')}", "redelivery.strict": True, "preflight": False}
    assert "redelivery.strict refuses that" in shown(lambda: deliver(rows, shelf.url(), **options))


def test_an_unknown_option_is_one_line(rows, shelf):
    assert "unknown option 'retri'; did you mean 'retry'?" in shown(lambda: write(rows, shelf.url(), retri="3"))
    with pytest.raises(UnknownOption, match="did you mean 'retry'"):
        deliver(rows, shelf.url(), retri="3")


def test_without_preflight_a_task_finds_out_and_says_it_in_one_line(rows, shelf, tmp_path):
    sink = f"file://{tmp_path / 'missing'}"
    for call in (
        lambda: write(rows, shelf.url(), deadLetterSink=sink, preflight="false"),
        lambda: deliver(rows, shelf.url(), deadLetterSink=sink, preflight=False),
    ):
        line = shown(call)
        assert "the folder is missing: make it" in line
        assert "this task sent nothing" in line


def test_a_task_that_fails_says_how_many_were_delivered(spark, shelf):
    df = spark.createDataFrame([("a",), ("b",), ("c",)], "value string").coalesce(1)
    assert deliver(df, shelf.url("good")).delivered == 3
    bad = spark.createDataFrame([("a",), ("permanent",), ("c",)], "value string").coalesce(1)
    line = shown(lambda: write(bad, shelf.url()))
    assert "the shelf refuses this" in line
    assert "errors.tolerance is 'none'" in line
    assert re.search(r"of this task's rows 2 were delivered and 0 dead-lettered", line)


def test_a_sinks_error_is_told_once(spark, shelf):
    df = spark.createDataFrame([("permanent",)], "value string")
    line = shown(lambda: write(df, shelf.url(), deadLetterSink=shelf.url("asleep"), retry="0"))
    assert line.count("the shelf is asleep") == 1
    assert "the shelf refuses this" in line
    assert "no dead letter sink could take it" in line


def test_a_broker_that_is_only_down_now_is_left_to_the_tasks(rows, shelf, caplog):
    with caplog.at_level(logging.WARNING, logger="redelivery.spark"):
        line = shown(lambda: deliver(rows, shelf.url("asleep")))
    assert "the shelf is asleep" in line
    assert "preflight=false" not in line
    assert any("preflight" in message and "the shelf is asleep" in message for message in caplog.messages)


def test_a_secret_that_only_the_workers_have_is_no_failure(rows, shelf, caplog, monkeypatch, tmp_path):
    """The driver says that it did not look; the task finds its secret."""
    monkeypatch.delenv("ONLY_ON_WORKERS", raising=False)
    secret = tmp_path / "secret"

    def reveal(batches):
        secret.write_text("open")
        yield from batches

    with caplog.at_level(logging.WARNING, logger="redelivery.spark"):
        report = deliver(rows.mapInArrow(reveal, "value string"), shelf.url(), **{"shelf.password": f"file:{secret}"})
    assert report.delivered == 4
    assert any("cannot be read on this machine" in message for message in caplog.messages)
    with pytest.raises(PySparkException, match="ONLY_ON_WORKERS"):
        deliver(rows, shelf.url(), **{"shelf.password": "env:ONLY_ON_WORKERS"})


def test_a_batch_write_looks_once(rows, shelf):
    write(rows.limit(0), shelf.url())
    assert len(shelf.opened()) == 1


def test_an_aborted_job_says_what_it_does_not_know(shelf):
    job = Job.plan(read_write_options({"url": shelf.url()}), StructType([StructField("value", StringType())]))
    writer = RedeliveryWriter(job)
    logger = logging.getLogger("redelivery.spark")
    said = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logger.addHandler(handler)
    try:
        writer.abort([None, None])
        report = DeliveryReport(rows=3, primary=shelf.url(), run=job.run)
        report.at(shelf.url()).delivered = 3
        done = TaskDone(report, speculation=False, started=0.0, redelivered=Redelivered(), spark={})
        writer.abort([None, done])
    finally:
        logger.removeHandler(handler)
    assert "0 rows" not in said[0]
    assert "what 2 of its 2 tasks delivered before they ended is not known here" in said[0]
    assert "3 rows: 3 delivered" in said[1]
    assert "what 1 of its 2 tasks delivered before they ended is not known here" in said[1]


def test_a_stream_whose_destination_is_missing_ends_with_one_line(spark, shelf, tmp_path):
    source = tmp_path / "in"
    source.mkdir()
    (source / "1.txt").write_text("a\nb\n")
    query = (
        spark.readStream.text(str(source))
        .writeStream.format("redelivery")
        .option("url", shelf.url("missing"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    with pytest.raises(PySparkException) as caught:
        query.awaitTermination(60)
    assert "the shelf has no queue 'missing'" in str(caught.value)
    assert "nothing was sent (the driver looked before any task" in str(caught.value)


def test_a_stream_looks_once_and_not_for_each_micro_batch(spark, shelf, tmp_path):
    source = tmp_path / "in"
    source.mkdir()
    for number in range(4):
        (source / f"{number}.txt").write_text(f"{number}\n")
    query = (
        spark.readStream.option("maxFilesPerTrigger", 1)
        .text(str(source))
        .writeStream.format("redelivery")
        .option("url", shelf.url())
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(60)
    assert len(shelf.messages()) == 4
    assert len(shelf.opened()) == 4 + 1, "a sender for each micro-batch's task, and one for the look before"
