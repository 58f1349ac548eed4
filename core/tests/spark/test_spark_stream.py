"""`writeStream.format("redelivery")` and `foreachBatch`: a micro-batch that comes again comes under the same ids."""

import json
import os
import queue

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as f

from redelivery.spark import DeliveryListener


@pytest.fixture
def lines(spark, tmp_path):
    """A stream of text lines, a file a micro-batch; `add(*lines)` gives it another file."""
    return Lines(spark, tmp_path / "source")


class Lines:
    def __init__(self, spark, folder):
        self._spark = spark
        self._folder = folder
        self._files = 0
        folder.mkdir()

    def add(self, *texts):
        self._files += 1
        path = self._folder / f"{self._files:03}.txt"
        path.write_text("\n".join(texts) + "\n")
        os.utime(path, (self._files, self._files))  # Spark takes the oldest first
        return self

    @property
    def df(self):
        return self._spark.readStream.option("maxFilesPerTrigger", 1).text(str(self._folder))


def run(df, url, checkpoint, **options):
    """Start a stream, have it read all there is, and end it."""
    options = {"url": url, "checkpointLocation": str(checkpoint), **options}
    query = df.writeStream.format("redelivery").options(**options).trigger(availableNow=True).start()
    try:
        query.awaitTermination()
    finally:
        query.stop()
    return query


def replay_last(checkpoint):
    """Have Spark forget that the last micro-batch was committed, as if it had been killed before it could say so."""
    commits = [path for path in (checkpoint / "commits").iterdir() if path.name.isdigit()]
    last = max(commits, key=lambda path: int(path.name))
    last.unlink()
    last.with_name(f".{last.name}.crc").unlink()
    return int(last.name)


def test_each_micro_batch_is_delivered_and_accounted_for(lines, shelf, tmp_path):
    reports = tmp_path / "reports"
    reports.mkdir()
    lines.add("a", "permanent b").add("c", "d", "e")
    query = run(lines.df, shelf.url(), tmp_path / "check", deadLetterSink="native", reportPath=reports)
    assert sorted(m.value for m in shelf.messages()) == [b"a", b"c", b"d", b"e"]
    assert [m.value for m in shelf.letters()] == [b"permanent b"]
    written = {path.name: json.loads(path.read_text()) for path in reports.iterdir()}
    assert set(written) == {f"{query.id}-0.json", f"{query.id}-1.json"}
    for number, (rows, dead) in enumerate([(2, 1), (3, 0)]):
        report = written[f"{query.id}-{number}.json"]
        assert (report["query"], report["batch"], report["run"]) == (query.id, number, f"{query.id}-{number}")
        assert (report["rows"], report["dead_lettered"], report["accounted"]) == (rows, dead, True)


def test_a_listener_shows_each_micro_batch_and_one_that_raises_stops_nothing(spark, lines, shelf, tmp_path):
    reports = tmp_path / "reports"
    reports.mkdir()
    seen = queue.SimpleQueue()

    def broken(report):
        seen.put(report)
        raise ValueError("of the function that shows reports")

    listeners = [DeliveryListener(reports, show=show) for show in (broken, seen.put)]
    for each in listeners:
        spark.streams.addListener(each)
    try:
        lines.add("a", "permanent b").add("c", "d", "e")
        query = run(lines.df, shelf.url(), tmp_path / "check", deadLetterSink="native", reportPath=reports)
        found = [seen.get(timeout=60) for _ in range(4)]
    finally:
        for each in listeners:
            spark.streams.removeListener(each)
    assert query.exception() is None
    assert sorted((each.run, each.rows, each.delivered, each.dead_lettered) for each in found) == [
        (f"{query.id}-0", 2, 1, 1),
        (f"{query.id}-0", 2, 1, 1),
        (f"{query.id}-1", 3, 3, 0),
        (f"{query.id}-1", 3, 3, 0),
    ]


def test_a_stream_may_have_a_name(lines, shelf, tmp_path):
    writer = lines.add("a").df.writeStream.format("redelivery").queryName("orders").option("url", shelf.url())
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination(60)
    assert [message.value for message in shelf.messages()] == [b"a"]


def test_a_report_path_that_is_a_file_has_the_last_micro_batch(lines, shelf, tmp_path):
    lines.add("a").add("b", "c")
    run(lines.df, shelf.url(), tmp_path / "check", reportPath=tmp_path / "report.json")
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["batch"], report["rows"]) == (1, 2)


def test_a_replayed_micro_batch_repeats_its_ids_and_no_other_has_them(lines, shelf, tmp_path):
    lines.add("same", "same").add("same", "same")
    query = run(lines.df, shelf.url(), tmp_path / "check")
    first = [m.id for m in shelf.messages()]
    assert len(set(first)) == 4  # equal rows are rows of their own, in one batch and in two
    assert replay_last(tmp_path / "check") == 1
    again = run(lines.df, shelf.url(), tmp_path / "check")
    assert again.id == query.id
    repeated = [m.id for m in shelf.messages()][4:]
    assert sorted(repeated) == sorted(name for name in first if name.startswith(f"{query.id}-1-"))
    assert len(repeated) == 2


def test_a_micro_batch_that_failed_comes_again_under_the_same_ids(lines, shelf, tmp_path):
    lines.add("good", "fatal", "also good")
    with pytest.raises(PySparkException, match="the shelf has fallen down"):
        run(lines.df, shelf.url(), tmp_path / "check")
    before = {m.id for m in shelf.messages()}
    mended = lines.df.withColumn("value", f.regexp_replace("value", "fatal", "mended"))
    run(mended, shelf.url(), tmp_path / "check")
    after = {m.id: m.value for m in shelf.messages()}
    assert sorted(after.values()) == [b"also good", b"good", b"mended"]
    assert before <= set(after)


def test_stopping_in_the_midst_of_a_batch_is_no_error(lines, shelf, tmp_path):
    lines.add(*map(str, range(1000)))
    options = {"url": shelf.url(), "checkpointLocation": str(tmp_path / "check"), "maxRecordsPerSecond": 50}
    query = lines.df.writeStream.format("redelivery").options(**options).start()
    while not shelf.messages():
        assert query.isActive
        query.awaitTermination(1)
    query.stop()
    assert query.exception() is None
    assert len(shelf.messages()) < 1000
    run(lines.df, shelf.url(), tmp_path / "check")
    by_id = {m.id: m.value for m in shelf.messages()}
    assert len(by_id) == len(set(by_id.values())) == 1000


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"writeId": "nightly"}, "writeId names one batch write"),
        ({"retri": "3"}, "did you mean 'retry'"),
        ({"ordering": "key"}, "needs a column `key`"),
    ],
)
def test_a_bad_option_of_a_stream_shows_its_error(lines, shelf, tmp_path, options, said):
    lines.add("a")
    with pytest.raises(PySparkException, match=said):
        run(lines.df, shelf.url(), tmp_path / "check", **options)
    assert not shelf.opened()


def test_for_each_batch_with_a_write_id_repeats_ids_too(lines, shelf, tmp_path):
    lines.add("a", "b").add("c")

    def write(batch, number):
        options = {"url": shelf.url(), "writeId": f"nightly-{number}"}
        batch.write.format("redelivery").options(**options).mode("append").save()

    def run_each():
        options = {"checkpointLocation": str(tmp_path / "check")}
        query = lines.df.writeStream.foreachBatch(write).options(**options).trigger(availableNow=True).start()
        query.awaitTermination()

    run_each()
    first = {m.id: m.value for m in shelf.messages()}
    assert {name.rsplit("-", 3)[0] for name in first} == {"nightly-0", "nightly-1"}
    replay_last(tmp_path / "check")
    run_each()
    assert [m.value for m in shelf.messages()][3:] == [b"c"]
    assert {m.id: m.value for m in shelf.messages()} == first
