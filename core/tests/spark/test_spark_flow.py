"""Order by key and rate, as options of a write."""

import subprocess
import sys

import pyarrow as pa
import pytest

from redelivery.errors import ConfigurationError
from redelivery.spark import deliver
from redelivery.spark.job import pieces

QUICK = {"retry": 1, "backoffPolicy": "linear", "backoffDelay": "PT0.05S"}


def rows(spark, *pairs):
    return spark.createDataFrame([list(pair) for pair in pairs], "key string, value string").coalesce(1)


def test_rows_of_a_key_arrive_in_their_order(spark, shelf):
    df = rows(spark, ("a", "flaky 1"), ("b", "x1"), ("a", "2"), ("b", "flaky x2"), ("a", "3"), ("b", "x3"))
    report = deliver(df, shelf.url(), ordering="key", **QUICK)
    assert (report.delivered, report.retried) == (6, 2)
    by_key = {}
    for message in shelf.messages():
        by_key.setdefault(message.key, []).append(message.value)
    assert by_key == {b"a": [b"flaky 1", b"2", b"3"], b"b": [b"x1", b"flaky x2", b"x3"]}


def test_what_follows_a_dead_lettered_row_of_its_key_goes_on_or_is_parked(spark, shelf):
    df = rows(spark, ("a", "1"), ("a", "permanent"), ("b", "1"), ("a", "2"), ("a", "3"))
    options = {"ordering": "key", "deadLetterSink": "native"}
    assert deliver(df, shelf.url("goes-on"), **options).reasons == {"REJECTED (REFUSED)": 1}
    report = deliver(df, shelf.url("parked"), parkSuccessors=True, **options)
    assert report.reasons == {"REJECTED (REFUSED)": 1, "PARKED": 2}
    assert [m.value for m in shelf.letters("parked")] == [b"permanent", b"2", b"3"]


def test_what_follows_a_row_that_is_no_message_is_parked_and_what_came_before_is_delivered(spark, shelf):
    bad = "IF(id = 2, array(named_struct('key', concat('a', char(1)), 'value', X'01')), NULL) AS headers"
    df = spark.range(1, 6, numPartitions=1).selectExpr("'k' AS key", "CAST(id AS string) AS value", bad)
    options = {"ordering": "key", "deadLetterSink": "native", "parkSuccessors": True}
    report = deliver(df, shelf.url(), **options)
    assert report.reasons == {"INVALID_MESSAGE (invalid-header)": 1, "PARKED": 3}
    assert [m.value for m in shelf.messages()] == [b"1"]
    assert [m.value for m in shelf.letters()][1:] == [b"3", b"4", b"5"]


def test_a_task_is_never_faster_than_its_rate(spark, shelf):
    df = spark.range(60, numPartitions=1).selectExpr("CAST(id AS string) AS value")
    report = deliver(df, shelf.url(), maxRecordsPerSecond=50)
    assert report.delivered == 60
    assert report.seconds >= 55 / 50  # the last piece is not waited for


def test_under_a_rate_rows_are_handed_over_in_smallpieces():
    batch = pa.record_batch({"value": pa.array(["x"] * 10)})
    sizes = [len(each) for each in pieces([batch], most_bytes=1 << 20, most_rows=4)]
    assert sizes == [4, 4, 2]
    assert [len(each) for each in pieces([batch], most_bytes=1 << 20, most_rows=1000)] == [10]
    assert max(len(each) for each in pieces([batch], most_bytes=20, most_rows=1000)) < 10


#: A column of empty maps of maps as Spark 4.0 writes it: maps in an empty map have no offsets, and `nbytes` reads what
#: lies behind. It may crash, so this runs alone.
EMPTY_MAPS = """
import pyarrow as pa
from redelivery.spark.job import pieces

none, behind = pa.py_buffer(b""), pa.array([2_000_000_000] * 2, pa.int32()).buffers()[1].slice(0, 0)

def maps(count, offsets, values):
    key = pa.Array.from_buffers(pa.string(), 0, [None, behind, none])
    fields = [pa.field("key", key.type, nullable=False), pa.field("value", values.type)]
    entries = pa.StructArray.from_arrays([key, values], fields=fields)
    return pa.Array.from_buffers(pa.map_(key.type, values.type), count, [None, offsets], children=[entries])

inner = maps(0, behind, pa.array([], pa.float64()))
batch = pa.record_batch([maps(3, pa.array([0] * 4, pa.int32()).buffers()[1], inner)], names=["value"])
print([len(each) for each in pieces([batch], most_bytes=1_000, most_rows=2)])
"""


def test_empty_maps_of_maps_are_measured_without_offsets():
    done = subprocess.run([sys.executable, "-c", EMPTY_MAPS], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "[2, 1]\n"), done.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"ordering": "keys"}, "did you mean 'key'"),
        ({"parkSuccessors": "true"}, "needs ordering=key"),
        ({"ordering": "key"}, "needs a column `key`"),
        ({"maxRecordsPerSecond": "0"}, "above 0"),
        ({"maxRecordsPerSecond": "fast"}, "above 0"),
    ],
)
def test_an_impossible_flow_is_refused(spark, shelf, options, said):
    with pytest.raises(ConfigurationError, match=said):
        deliver(spark.sql("SELECT 'x' AS value"), shelf.url(), **options)
    assert not shelf.opened()
