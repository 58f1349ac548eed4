"""Letters are read in splits side by side, with the columns that are asked for, and as a stream."""

import itertools

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import types as t

from redelivery.contract import letters as letters_module
from redelivery.contract.broker import Limits
from redelivery.contract.context import ErrorContext
from redelivery.contract.letters import WHOLE
from redelivery.contract.message import Message
from redelivery.formats import dialects, events
from redelivery.spark import features, letter_schema
from redelivery.spark.letters_reader import LetterScan, LetterSplit
from redelivery.spark.options import ReadSettings


def letter(number, **context):
    message = Message(value=b"%d" % number, id=f"m{number}", headers=(("own", b"x"),))
    return written(message, **{"code": "TOO_LARGE", "reason": f"reason {number}", "run": "r", **context})


def written(message, **context):
    return dialects.attach(message, ErrorContext(**context), dialect="connect", limits=Limits(), prefix="ce_")


def place(spark, shelf, **options):
    return spark.read.format("redelivery").options(url=shelf.url(), deadLetters=True, **options)


def test_splits_show_each_letter_once_and_by_several_tasks(spark, shelf):
    shelf.put(*map(letter, range(50)))
    df = place(spark, shelf, minPartitions=4).load()
    assert df.rdd.getNumPartitions() == 4
    found = df.selectExpr("_position", "value", "_error.message", "spark_partition_id() AS task").collect()
    assert sorted(int(row["_position"]) for row in found) == list(range(50))
    assert all(row["message"] == f"reason {int(row['value'])}" for row in found)
    assert len({row["task"] for row in found}) == 4


def test_a_place_that_cannot_split_is_read_by_one_task(spark, shelf):
    shelf.put(*map(letter, range(5)))
    df = spark.read.format("redelivery").options(url=shelf.url(scheme="tray"), deadLetters=True).load()
    assert df.rdd.getNumPartitions() == 1
    assert df.count() == 5


def test_only_the_named_columns_are_read_and_no_value_for_a_count_by_code(spark, shelf):
    shelf.put(letter(1), letter(2, code="REJECTED"), letter(3))
    by_option = place(spark, shelf, columns="_error.code, _position").load()
    assert by_option.schema.simpleString() == "struct<_error:struct<code:string>,_position:string>"
    assert sorted(row[0][0] for row in by_option.collect()) == ["REJECTED", "TOO_LARGE", "TOO_LARGE"]
    by_schema = place(spark, shelf).schema("_error struct<code: string, run: string>, key binary").load()
    assert {tuple(row["_error"]) for row in by_schema.collect()} == {("TOO_LARGE", "r"), ("REJECTED", "r")}
    for wrong, why in (
        ("_error struct<kode: string>", "unknown part of _error 'kode'; did you mean 'code'"),
        ("valeu binary", "unknown column 'valeu'; did you mean 'value'"),
        ("value string", "the column value of dead letters is binary"),
    ):
        with pytest.raises(PySparkException, match=why):
            place(spark, shelf).schema(wrong).load().count()
    with pytest.raises(PySparkException, match="did you mean 'code'"):
        place(spark, shelf, columns="_error.kode").load()


def test_an_event_that_is_its_value_is_read_from_it_wherever_it_lies(spark, shelf):
    event = events.wrapped(Message(value=b"inside", id="e"))
    mixed = [letter(1), written(event, code="REJECTED", reason="no"), letter(2), written(event, reason="no")]
    shelf.put(*mixed)
    found = place(spark, shelf, columns="_position, id", minPartitions=1).load().collect()
    assert [tuple(row) for row in found] == [("0", "m1~1"), ("1", "e~1"), ("2", "m2~1"), ("3", "e~1")]


def test_a_place_that_shows_its_letters_in_another_order_each_time_shows_all(shelf, monkeypatch):
    """Values may have to be read as well; that must not take a second look, which would begin with other letters."""
    body = b'{"specversion":"1.0","id":"%d","source":"s","type":"t"}'
    typed = (("content-type", b"application/cloudevents+json"),)
    shelf.put(*(written(Message(value=body % number, headers=typed), reason="no") for number in range(30)))
    from redelivery_shelf import TrayDeadLetters  # noqa: PLC0415 - installed by `shelf`

    browse = TrayDeadLetters.browse
    looks = itertools.count()

    def turned(self):
        found = list(browse(self))
        turn = 17 * next(looks)
        return iter(found[turn:] + found[:turn])

    monkeypatch.setattr(TrayDeadLetters, "browse", turned)
    monkeypatch.setattr(letters_module, "BATCH_LETTERS", 10)
    settings = ReadSettings(url=shelf.url(scheme="tray"))
    schema = t.StructType([each for each in letter_schema.schema(settings).fields if each.name in {"id", "_position"}])
    scan = LetterScan.of(settings, schema)
    found = [row for batch in scan.read(LetterSplit(WHOLE, scan.wanted)) for row in batch.to_pylist()]
    assert {row["_position"]: row["id"] for row in found} == {str(number): f"{number}~1" for number in range(30)}
    assert len(found) == 30


def test_letters_are_selected_where_they_are_read(spark, shelf):
    shelf.put(letter(1), letter(2, code="REJECTED", run="other"), letter(3, code="REJECTED"))

    def found(**options):
        return {row["id"] for row in place(spark, shelf, columns="id", **options).load().collect()}

    assert found(where="code=REJECTED") == {"m2~1", "m3~1"}
    assert found(where="code=REJECTED\nreason~3$") == {"m3~1"}
    assert found(where="code=REJECTED", run="r") == {"m3~1"}
    assert found(since="1970-01-01T00:00:01Z", until="1970-01-01T00:00:02Z") == {"m1~1", "m2~1", "m3~1"}
    assert found(until="1970-01-01T01:00:01+01:00") == set()
    for wrong, why in (
        ({"where": "run>red"}, "'run>red': a text is compared by"),
        ({"since": "yesterday"}, "since must be ISO 8601 with a time zone"),
        ({"minPartitions": "0"}, "minPartitions must be a whole number above 0"),
        ({"startingLetters": "latest"}, "unknown option 'startingletters'"),
    ):
        with pytest.raises(PySparkException, match=why):
            place(spark, shelf, **wrong).load().count()


def test_two_filters_of_one_dataframe_are_both_right(spark, shelf):
    """Spark would mix them up, if the reader let it push filters down (as of 4.3)."""
    shelf.put(letter(1), letter(2))
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        df = place(spark, shelf, columns="id").load()
        assert df.where("id = 'm1~1'").union(df.where("id = 'm2~1'")).count() == 2
        assert df.count() == 2
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_a_place_that_is_not_reached_is_one_line_before_any_task(spark, shelf):
    with pytest.raises(PySparkException) as caught:
        spark.read.format("redelivery").options(url=shelf.url("asleep"), deadLetters=True).load().count()
    assert "the shelf is asleep" in str(caught.value)
    assert "failed 1 times" not in str(caught.value), "a task tried it"


# --- streams ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def stream(spark, shelf, tmp_path):
    """Runs a query to its end, from its checkpoint; returns the positions of each of its micro-batches."""

    def run(*, url=None, **options):
        batches = []

        def note(df, number):
            rows = [int(row["_position"]) for row in df.collect()]
            batches.append(sorted(rows))

        place = spark.readStream.format("redelivery").options(url=url or shelf.url(), deadLetters=True, **options)
        query = (
            place.load()
            .writeStream.foreachBatch(note)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(120)
        return [each for each in batches if each]

    return run


def test_a_stream_goes_on_where_it_ended(shelf, stream, tmp_path):
    shelf.put(*map(letter, range(5)))
    if features.ADMISSION_CONTROL:
        assert stream(maxLettersPerTrigger=2) == [[0, 1], [2, 3], [4]]
    else:
        assert stream() == [[0, 1, 2, 3, 4]]
    assert stream() == []
    shelf.put(*map(letter, range(5, 9)))
    shelf.remove(2, 6)
    assert stream() == [[5, 7, 8]], "what was removed meanwhile is gone"
    last = max(int(path.name) for path in (tmp_path / "checkpoint/offsets").iterdir() if path.name.isdigit())
    (offset,) = (tmp_path / f"checkpoint/offsets/{last}").read_text().splitlines()[2:]
    assert offset == '{"cursor": "9"}'


def test_a_stream_may_begin_behind_the_letters_that_exist(shelf, stream):
    shelf.put(letter(0))
    assert stream(startingLetters="latest") == []
    shelf.put(letter(1))
    assert stream(startingLetters="latest") == [[1]]


def test_a_killed_first_batch_is_replayed_from_where_it_began(spark, shelf, tmp_path):
    """Spark asks for the first offset again: it must not skip what the first batch was to have."""
    from redelivery.spark.letter_schema import schema  # noqa: PLC0415
    from redelivery.spark.letters_stream import DeadLetterStreamReader  # noqa: PLC0415
    from redelivery.spark.options import read_read_options  # noqa: PLC0415

    settings = read_read_options({"url": shelf.url(), "deadLetters": "true", "startingLetters": "latest"})
    shelf.put(letter(0))
    first = DeadLetterStreamReader(settings, schema(settings))
    start = first.initialOffset()
    assert first.latestOffset(start, features.ReadAllAvailable()) == start
    shelf.put(letter(1), letter(2))
    end = first.latestOffset(start, features.ReadAllAvailable())
    shelf.put(letter(3))
    again = DeadLetterStreamReader(settings, schema(settings))
    later = again.initialOffset()
    for begin in (start, later):
        rows = [row for each in again.partitions(begin, end) for batch in again.read(each) for row in batch.to_pylist()]
        assert [row["_position"] for row in rows] == ["1", "2"]
    assert again.partitions(later, start) == []
    first.stop()
    again.stop()


def test_a_stream_of_another_place_and_of_one_without_positions_is_refused(shelf, stream):
    shelf.put(*map(letter, range(5)))
    assert stream() == [[0, 1, 2, 3, 4]]
    with pytest.raises(StreamingQueryException, match="of another shelf; begin a new query"):
        stream(url=shelf.url("new"))
    with pytest.raises(StreamingQueryException, match="read them as a batch"):
        stream(url=shelf.url(scheme="tray"))
