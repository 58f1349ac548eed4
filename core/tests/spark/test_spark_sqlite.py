"""What can be wrong with a queue in a file, seen from a Spark job: the message shows, and no row is lost silently."""

import sqlite3
import subprocess
import threading
import time
from contextlib import closing, contextmanager

import pytest
from pyspark.errors import PySparkException

from redelivery.spark import deliver, undelivered

pytest.importorskip("redelivery_sqlite")
pytest.importorskip("redelivery_file")


def rows(spark, count=20, body="'x'"):
    return spark.range(0, count, 1, 2).selectExpr(f"concat(id, {body}) AS value")


def failed(df, url, **options):
    """What the user sees of a failed write, both ways of writing."""
    with pytest.raises(PySparkException) as caught:
        df.write.format("redelivery").options(url=url, **options).mode("append").save()
    return str(caught.value)


def count(file, queue="orders"):
    with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as connection:
        (number,) = connection.execute("SELECT number FROM queue WHERE name = ?", (queue,)).fetchone()
        return connection.execute(f"SELECT count(*) FROM message_{number}").fetchone()[0]  # noqa: S608 - a number


@pytest.fixture
def letters(tmp_path):
    """A folder for dead letters, on a disk that is well."""
    folder = tmp_path / "letters"
    folder.mkdir()
    return folder


@contextmanager
def locked(file, seconds=None):
    """Another process's write lock, for so long; it is another thread's here, which is the same to SQLite."""
    held, release = threading.Event(), threading.Event()

    def hold():
        with closing(sqlite3.connect(file, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            held.set()
            release.wait(seconds)
            connection.execute("ROLLBACK")

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(10)
    try:
        yield
    finally:
        release.set()
        thread.join()


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 2 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"a small disk can only be mounted by root, with the right to do so: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_folder_that_is_missing(spark, tmp_path):
    text = failed(rows(spark), f"sqlite://{tmp_path}/nowhere/q.db?queue=orders")
    assert "its folder is missing; make it, or correct the URL" in text


def test_a_folder_that_cannot_be_written(spark):
    text = failed(rows(spark), "sqlite:///proc/q.db?queue=orders")
    assert "give this user read and write permission on the file" in text
    assert "/proc/q.db" in text


def test_a_corrupt_file_is_left_as_it_was(spark, tmp_path, letters):
    file = tmp_path / "q.db"
    file.write_bytes(b"this is no database " * 1000)
    text = failed(rows(spark), f"sqlite://{file}?queue=orders", deadLetterSink=f"file://{letters}")
    assert "file is not a database" in text
    assert file.read_bytes() == b"this is no database " * 1000
    assert not list(letters.glob("[!.]*"))  # an outage floods no sink


def test_a_file_that_stays_locked_fails_the_job_or_goes_to_the_sink(spark, tmp_path, letters):
    file = tmp_path / "q.db"
    url = f"sqlite://{file}?queue=orders"
    options = {"sqlite.busy_timeout": "0.1"}
    assert deliver(rows(spark, 1), url).delivered == 1
    with locked(file):
        assert "database is locked" in failed(rows(spark), url, **options)
        report = deliver(rows(spark), url, deadLetterSink=f"file://{letters}", **options)
    assert (report.rows, report.delivered, report.dead_lettered) == (20, 0, 20)
    assert (
        spark.read.format("redelivery").options(deadLetterSink=f"file://{letters}", deadLetters=True).load().count()
        == 20
    )
    assert count(file) == 1


def test_a_file_that_is_locked_for_a_while_gets_all_rows(spark, tmp_path):
    file = tmp_path / "q.db"
    url = f"sqlite://{file}?queue=orders"
    assert deliver(rows(spark, 1), url, writeId="one").delivered == 1
    for tried, seconds in enumerate((2, 10, 50), 1):  # on a busy machine a task begins to write only when 2 s are over
        with locked(file, seconds):
            started = time.monotonic()
            report = deliver(rows(spark), url, **{"sqlite.busy_timeout": "0.1", "errors.retry.timeout": "60000"})
            assert time.monotonic() - started > 1
        assert (report.delivered, report.dead_lettered) == (20, 0)
        assert count(file) == 1 + 20 * tried
        if report.retried:
            break
    assert report.retried > 0


def test_a_full_disk_fails_the_job_or_goes_to_a_sink_elsewhere(spark, letters, small_disk):
    url = f"sqlite://{small_disk}/q.db?queue=orders"
    df = rows(spark, 300, "repeat('x', 10000)")
    text = failed(df, url, deadLetterSink="native", **{"errors.tolerance": "all"})
    assert "full" in text
    report = deliver(df, url, deadLetterSink=f"file://{letters}")
    assert report.rows == report.delivered + report.dead_lettered == 300
    assert report.dead_lettered > 0
    assert len([path for path in letters.rglob("*") if path.is_file()]) >= report.dead_lettered


def test_a_mistyped_queue_has_no_letters_to_read_and_a_job_without_failures_has_none(spark, tmp_path):
    url, sink = (f"sqlite://{tmp_path}/{name}.db?queue=orders" for name in ("q", "sink"))
    report = deliver(rows(spark), url, deadLetterSink=sink)
    assert undelivered(spark, report, url=sink).count() == 0
    read = spark.read.format("redelivery").option("deadLetters", "true")
    assert read.option("url", url).load().count() == 0
    with pytest.raises(PySparkException, match=r"no queue 'ordesr' \(did you mean 'orders'\?\)"):
        read.option("url", url.replace("=orders", "=ordesr")).load().count()
    with pytest.raises(PySparkException, match=r"sink\.db': there is no such file"):
        read.option("url", sink).load().count()
