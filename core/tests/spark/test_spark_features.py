"""What a Spark lacks is replaced, and every guarantee stays: these run on each supported version (`nox -s spark`)."""

from __future__ import annotations

from pathlib import Path

import pyspark
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as f

from redelivery.errors import ConfigurationError, Fatal
from redelivery.spark import features, letters_stream, redriving, writer
from redelivery.spark.api import register
from redelivery.spark.letter_schema import schema
from redelivery.spark.options import read_read_options
from redelivery.spark.writer import RedeliveryDataSource

DOCUMENT = Path(__file__).resolve().parents[3] / "docs/spark_versions.md"
#: The versions whose columns the table has.
VERSIONS = ("4.0", "4.1", "4.2", "4.3")


def test_this_spark_has_what_the_table_says_of_its_version():
    version = pyspark.__version__.rpartition(".")[0]
    assert version in VERSIONS, "a version of which the table says nothing"
    found = {each.name for each in features.FEATURES if each.present}
    assert found == {each.name for each in features.FEATURES if VERSIONS.index(each.since) <= VERSIONS.index(version)}


def test_the_document_shows_the_table():
    text = DOCUMENT.read_text(encoding="utf-8")
    for each in features.FEATURES:
        has = " | ".join("yes" if version >= each.since else "no" for version in VERSIONS)
        assert f"| {each.name} | {has} | {each.instead} |" in text


def test_to_register_ours_replaces_a_foreign_format_of_its_name_or_says_that_it_cannot(spark, monkeypatch):
    class Ours(RedeliveryDataSource):
        @classmethod
        def name(cls):
            return "contested"  # as that of `contested.py`, which Spark finds by itself

    monkeypatch.setattr(writer, "RedeliveryDataSource", Ours)
    if pyspark.__version__.startswith("4.0"):
        with pytest.raises(ConfigurationError, match=r"^format\('contested'\) is another package's here, and Spark 4"):
            register(spark)
        assert spark.read.format("contested").load().columns == ["theirs"]
        return
    register(spark)
    with pytest.raises(PySparkException, match="only dead letters can be read"):
        _ = spark.read.format("contested").load().columns


def test_ours_may_be_registered_again(spark):
    for _ in range(2):
        register(spark)


def test_a_stream_gets_arrow_batches_so_that_a_bad_row_harms_no_neighbour(spark, shelf, tmp_path):
    """Spark would fail the task of a writer that takes rows: Python has no text for such bytes."""
    source = tmp_path / "source"
    spark.sql("SELECT id AS n, CAST(IF(id = 1, X'FF', X'41') AS STRING) AS text FROM range(3)").write.parquet(
        str(source)
    )
    stream = spark.readStream.schema("n long, text string").parquet(str(source))
    writer = stream.writeStream.format("redelivery").options(url=shelf.url(), deadLetterSink="native")
    writer.option("checkpointLocation", str(tmp_path / "check")).trigger(availableNow=True).start().awaitTermination()
    assert sorted(message.value for message in shelf.messages()) == [b'{"n":0,"text":"A"}', b'{"n":2,"text":"A"}']
    (letter,) = spark.read.format("redelivery").options(url=shelf.url(), deadLetters=True).load().collect()
    assert letter["_error"]["native_code"] == "not-utf8"


def test_a_task_takes_the_mended_letters_of_several_splits(spark, place, monkeypatch):
    """As where rows cannot be placed by number: a hash may bring several together."""
    place.bury(300)
    plans = []

    def together(rows, count, number):
        plans.append(count)
        return rows.repartition(1, number)

    monkeypatch.setattr(redriving, "placed", together)
    report = place.redrive(spark, mend=lambda letters: letters.where("id != 'n7~1'"))
    assert plans[0] > 1, "with one split this shows nothing"
    assert (report.redriven, report.removed, report.failed) == (299, 299, 0)
    assert report.left == {"the mend dropped it": 1}
    assert [name for name, _ in place.letters] == ["n7"]
    assert len(set(place.sent)) == len(place.sent) == 299


def test_rows_without_a_place_by_number_stay_together(spark, monkeypatch):
    monkeypatch.delattr(type(spark.range(1)), "repartitionById", raising=False)
    monkeypatch.delattr("pyspark.sql.DataFrame.repartitionById", raising=False)
    rows = features.placed(spark.range(1_000), 4, (f.col("id") % 4).cast("int"))
    places = rows.select((f.col("id") % 4).alias("number"), f.spark_partition_id().alias("partition")).distinct()
    assert rows.rdd.getNumPartitions() == 4
    assert sorted(row["number"] for row in places.collect()) == [0, 1, 2, 3], "one partition for each number"


def test_a_limit_that_this_spark_does_not_ask_for_is_refused_in_one_line(spark, shelf, monkeypatch):
    if features.ADMISSION_CONTROL:
        features.refuse_limit(2)
        monkeypatch.setattr(features, "ADMISSION_CONTROL", False)
        with pytest.raises(ConfigurationError, match=r"^maxLettersPerTrigger needs Spark 4\.2 or later: this is 4\."):
            features.refuse_limit(2)
        features.refuse_limit(None)
        return
    options = {"url": shelf.url(), "deadLetters": True, "maxLettersPerTrigger": 2}
    with pytest.raises(PySparkException, match=r"needs Spark 4\.2 or later: this is 4\."):
        spark.readStream.format("redelivery").options(**options).load()


def test_a_reader_that_is_told_neither_start_nor_limit_reads_each_letter_once(place, shelf, monkeypatch):
    """As Spark before 4.2 calls it."""
    monkeypatch.setattr(letters_stream, "ADMISSION_CONTROL", False)

    def opened(url):
        settings = read_read_options({"url": url, "deadLetters": "true"})
        return letters_stream.DeadLetterStreamReader(settings, schema(settings))

    def read(reader, start, end):
        batches = (batch for split in reader.partitions(start, end) for batch in reader.read(split))
        return [row["id"] for batch in batches for row in batch.to_pylist()]

    place.bury(2)
    first = opened(place.url)
    start, end = first.initialOffset(), first.latestOffset()
    assert read(first, start, end) == ["n0~1", "n1~1"]
    assert first.latestOffset() == end, "nothing new"
    first.stop()
    place.bury(1, first=2)
    again = opened(place.url)  # from its checkpoint
    assert read(again, end, again.latestOffset()) == ["n2~1"]
    again.stop()
    other = opened(shelf.url())
    with pytest.raises(Fatal, match="of another shelf; begin a new query"):
        other.partitions({"cursor": "5"}, other.latestOffset())
    other.stop()
