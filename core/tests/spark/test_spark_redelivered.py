"""A write of mended letters removes the letters, each once its rows are confirmed somewhere, and no other."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as f

from redelivery.errors import ConfigurationError
from redelivery.spark import deliver
from redelivery.spark.redelivered import Redelivered, RedeliveredRows

pytest.importorskip("redelivery_sqlite")


def letters(spark, place, **options):
    return spark.read.format("redelivery").options(url=place.url, deadLetters=True, **options).load()


def write(df, url, **options):
    df.write.format("redelivery").options(url=url, removeRedelivered=True, **options).mode("append").save()


@pytest.mark.parametrize("how", ["write", "deliver"])
def test_redelivered_letters_are_removed_and_no_other(spark, place, how):
    place.bury(40)
    mended = letters(spark, place).where("cast(string(value) AS int) % 4 != 0").repartition(3)
    if how == "write":
        write(mended, place.url)
    else:
        assert deliver(mended, place.url, removeRedelivered=True).delivered == 30
    assert sorted(name for name, _ in place.sent) == sorted(f"n{at}~1" for at in range(40) if at % 4)
    assert sorted(name for name, _ in place.letters) == sorted(f"n{at}" for at in range(0, 40, 4))


def test_rows_that_stand_for_no_letter_are_written_too(spark, place):
    place.bury(2)
    new = spark.sql("SELECT CAST('new' AS binary) AS value, 'new' AS id, CAST(NULL AS string) AS _position")
    rows = letters(spark, place).select("value", "id", "_position").unionByName(new)
    write(rows, place.url)
    assert sorted(name for name, _ in place.sent) == ["n0~1", "n1~1", "new"]
    assert place.letters == []


def test_a_letter_whose_row_is_dead_again_is_the_new_letter_alone(spark, place):
    place.bury(4)
    bad = f.array(f.struct(f.lit(None).cast("string").alias("key"), f.lit(None).cast("binary").alias("value")))
    rows = letters(spark, place).withColumn("headers", f.when(f.col("id") == "n1~1", bad).otherwise(f.col("headers")))
    write(rows, place.url, deadLetterSink="native")
    assert (len(place.sent), len(place.letters)) == (3, 1)
    assert [name for name, _ in place.letters] != ["n1"], "the old letter is gone, and the new one is there"


def test_a_letter_of_which_a_row_was_skipped_stays(spark, place):
    place.bury(4)
    twice = letters(spark, place).withColumn("copy", f.explode(f.array(f.lit("a"), f.lit("b"))))
    bad = f.array(f.struct(f.lit(None).cast("string").alias("key"), f.lit(None).cast("binary").alias("value")))
    is_bad = (f.col("id") == "n1~1") & (f.col("copy") == "b")
    rows = (
        twice.withColumn("headers", f.when(is_bad, bad).otherwise(f.col("headers")))
        .withColumn("id", f.concat("id", "copy"))
        .drop("copy")
        .repartition(4)
    )
    write(rows, place.url, **{"errors.tolerance": "all", "allowSkip": True})
    assert len(place.sent) == 7
    assert [name for name, _ in place.letters] == ["n1"]


def test_a_write_that_fails_removes_nothing(spark, place):
    place.bury(20)
    rows = letters(spark, place)
    broken = f.when(f.col("id") == "n7~1", f.raise_error(f.lit("broken"))).otherwise(f.col("value"))
    with pytest.raises(PySparkException):
        write(rows.withColumn("value", broken), place.url)
    assert len(place.letters) == 20


def test_letters_of_a_sink_are_removed_there(spark, place, tmp_path):
    place.bury(3)
    other = f"sqlite://{tmp_path / 'other.db'}?queue=q"
    sink = f"{place.url}-dead-letters"
    rows = letters(spark, place, deadLetterSink=sink)
    write(rows, other, redeliveredFrom=sink, **{"sink.sqlite.busy_timeout": 7})
    assert place.letters == []


def test_a_stream_removes_letters_with_each_micro_batch(spark, place, tmp_path):
    place.bury(10)
    folder = str(tmp_path / "rows")
    letters(spark, place).drop("_error").write.parquet(folder)
    rows = spark.readStream.schema(spark.read.parquet(folder).schema).parquet(folder)
    options = {"url": place.url, "removeRedelivered": True, "checkpointLocation": str(tmp_path / "checkpoint")}
    query = rows.writeStream.format("redelivery").options(**options).trigger(availableNow=True).start()
    query.awaitTermination()
    assert (len(place.sent), place.letters) == (10, [])


def test_mistakes_are_told_before_anything_is_sent(spark, place, shelf):
    place.bury(1)
    rows = letters(spark, place)
    with pytest.raises(ConfigurationError, match="have no text column '_position'"):
        deliver(rows.drop("_position"), place.url, removeRedelivered=True)
    with pytest.raises(ConfigurationError, match="it needs removeRedelivered"):
        deliver(rows, place.url, redeliveredFrom=place.url)
    with pytest.raises(ConfigurationError, match="or set removeRedelivered"):
        deliver(rows, place.url)
    with pytest.raises(ConfigurationError, match="no dead letters here"):
        deliver(rows, shelf.url(scheme="crate"), removeRedelivered=True)
    with pytest.raises(ConfigurationError, match="is for a sink that deadLetterSink does not name"):
        deliver(rows, place.url, removeRedelivered=True, **{"sink.sqlite.busy_timeout": 7})
    assert (len(place.sent), len(place.letters)) == (0, 1)


def test_positions_of_many_rows_take_little_memory_and_skipped_ones_are_found():
    rows = RedeliveredRows()
    for first in range(0, 100_000, 1000):
        rows.add(f"topic/3/{at}" for at in range(first, first + 1000))
    rows.skip([5, 99_999])
    rows.skip([10_000])
    found = rows.result()
    assert sorted(found.kept) == ["topic/3/10000", "topic/3/5", "topic/3/99999"]
    assert sum(map(len, found.chunks)) < 5 * 100_000
    assert RedeliveredRows().result() == Redelivered(chunks=[], kept=[])
