"""Dead letters are a DataFrame: the originals unchanged and why they are there; mended rows can be written again."""

import json
import re
import time
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as f

from redelivery.contract.message import Batch, Message
from redelivery.contract.spec import DeliverySpec, Sink
from redelivery.errors import ConfigurationError
from redelivery.formats import dialects
from redelivery.registry import connect
from redelivery.spark import dead_letters, deliver, events, rows, undelivered


def letters(spark, url, **options):
    return spark.read.format("redelivery").options(url=url, deadLetters=True, **options).load()


@pytest.fixture
def orders(spark):
    return spark.sql("""
        SELECT concat('k', id) AS key, CAST(concat(IF(id % 2 = 0, 'permanent ', 'good '), id) AS binary) AS value,
               array(named_struct('key', 'own', 'value', X'FF')) AS headers, concat('to', id) AS destination,
               concat('id', id) AS id, timestamp_seconds(id) AS timestamp, id AS row
        FROM range(4)""")


def test_letters_hold_the_original_and_why(spark, shelf, orders):
    report = deliver(orders, shelf.url(), deadLetterSink="native")
    found = {row["_error"]["message_id"]: row for row in letters(spark, shelf.url()).collect()}
    assert set(found) == {"id0", "id2"}
    row = found["id2"]
    assert (row["key"], row["value"], row["_error"]["target"]) == (b"k2", b"permanent 2", "to2")
    assert row["destination"] is None, "a header chooses where a row is written"
    own, *bookkeeping = row["headers"]
    assert tuple(own) == ("own", b"\xff")
    assert all(each["key"].startswith("redelivery-") for each in bookkeeping)  # so that attempts add up over lives
    assert row["timestamp"].timestamp() == 2
    assert row["row"] == 2
    assert row["specversion"] is None
    error = row["_error"]
    assert (error["code"], error["message"], error["kind"]) == ("REJECTED", "the shelf refuses this", "permanent")
    assert error["native_code"] == "REFUSED"
    assert (error["broker"], error["destination"], error["message_id"]) == ("shelf", shelf.url(), "id2")
    assert (error["attempts"], error["stage"], error["run"]) == (1, "TASK_PUT", report.run)
    assert error["maybe_delivered"] is False
    assert error["first_failure"] <= error["last_failure"]
    assert row["_position"] in ("0", "1")


def test_letters_of_several_destinations_are_one_dataframe(spark, shelf, orders, tmp_path):
    file = f"sqlite:{tmp_path}/q.db?queue=orders"
    deliver(orders, shelf.url(), deadLetterSink="native")
    plain = orders.where("id = 'id0'").drop("row")
    deliver(plain.selectExpr("value", "id"), f"{file}-dead-letters")
    found = dead_letters(spark, shelf.url(), file, allowTargets="*", **{"sqlite.busy_timeout": 2}).collect()
    assert sorted(row["id"] for row in found) == ["id0~1", "id0~1", "id2~1"]
    assert {row["row"] for row in found} == {0, 2, None}, "a column that only one of them has"
    assert {row["destination"] for row in found} == {"to0", "to2", None}
    with pytest.raises(ConfigurationError, match="give the URL"):
        dead_letters(spark)


def test_looking_twice_sends_nothing(spark, shelf, orders):
    deliver(orders, shelf.url(), deadLetterSink="native")
    before = (len(shelf.messages()), len(shelf.letters()))
    df = letters(spark, shelf.url())
    assert df.count() == df.count() == 2
    assert df.select("_error.code").distinct().collect()[0][0] == "REJECTED"
    assert (len(shelf.messages()), len(shelf.letters())) == before


def test_mended_rows_can_be_written_again(spark, shelf, orders):
    deliver(orders, shelf.url(), deadLetterSink="native")
    mended = (
        letters(spark, shelf.url(), allowTargets="to2")
        .where("_error.code = 'REJECTED' AND _error.native_code = 'REFUSED'")
        .withColumn("value", f.regexp_replace(f.col("value").cast("string"), "permanent", "mended"))
        .drop("_error", "_position")
    )
    assert deliver(mended, shelf.url("again")).delivered == 2
    message = next(m for m in shelf.messages("again") if m.id == "id2~1")
    assert (message.key, message.value, message.destination) == (b"k2", b"mended 2", "to2")
    assert next(m for m in shelf.messages("again") if m.id == "id0~1").destination is None, "to0 was not allowed"
    assert message.headers[0] == ("own", b"\xff")
    assert message.extra["row"] == 2
    assert dialects.history(message) == dialects.DeliveryHistory(attempts_total=1, hops=1), "a redelivery, as it were"


def test_the_target_of_a_signed_letter_is_a_column_and_no_header_of_another_counts(spark, shelf, orders, tmp_path):
    keys = [tmp_path / name for name in ("new", "old")]
    for each in keys:
        each.write_text(f"the key that is {each.name}")
    deliver(orders.where("id = 'id0'"), shelf.url(), deadLetterSink="native", letterKey=f"file:{keys[1]}")
    deliver(orders.where("id = 'id2'"), shelf.url(), deadLetterSink="native")
    found = letters(spark, shelf.url(), letterKey=",".join(f"file:{each}" for each in keys)).collect()
    told = {bytes(row["value"]): (row["destination"], row["_error"]["kind"], row["_error"]["target"]) for row in found}
    assert told == {b"permanent 0": ("to0", "permanent", "to0"), b"permanent 2": (None, "unsigned", None)}


def test_events_that_became_none_can_be_mended(spark, shelf):
    df = spark.sql("SELECT id AS n, IF(id = 1, NULL, concat('s', id)) AS tail FROM range(3)")
    made = events(df, type="flight", source="/nyc", subject="tail")
    options = {"deadLetterSink": "native", "requireAttributes": "subject"}
    report = deliver(made, shelf.url(), **options)
    assert report.dead_lettered == 1
    letter = undelivered(spark, report, DeliverySpec(dead_letter_sink=(Sink(uri="native"),)))
    assert letter.select("type").collect()[0][0] == "redelivery.undeliverable"
    assert letter.select("_error.native_code").collect()[0][0] == "missing-subject"
    rows = letter.select(f.from_json(f.col("value").cast("string"), made.schema).alias("row")).select("row.*")
    assert deliver(rows.withColumn("subject", f.lit("found")), shelf.url(), **options).delivered == 1
    assert sorted(dict(m.headers)["ce-subject"] for m in shelf.messages()) == [b"found", b"s0", b"s2"]
    assert sorted(m.value for m in shelf.messages())[1] == b'{"n":1,"tail":null}'


@pytest.mark.parametrize("mode", ["binary", "structured"])
def test_events_are_unpacked_into_their_columns_and_packed_again(spark, shelf, mode):
    df = spark.sql("""
        SELECT 't' AS type, '/s' AS source, 'x' AS subject, TIMESTAMP'2024-01-31 12:00:00.25' AS time, 'e1' AS id,
               map('traceid', 'abc') AS extensions, 'text/plain' AS datacontenttype,
               CAST('permanent' AS binary) AS value""")
    if mode == "structured":  # the shelf looks at the body's beginning
        return_values = deliver(df, shelf.url("x-dead-letters"), contentMode=mode)
        assert return_values.delivered == 1
        row = letters(spark, shelf.url("x")).collect()[0]
    else:
        deliver(df, shelf.url("x"), contentMode=mode, deadLetterSink="native")
        row = letters(spark, shelf.url("x")).collect()[0]
    assert (row["type"], row["source"], row["subject"], row["id"]) == ("t", "/s", "x", "e1~1")
    assert row["time"].isoformat() == "2024-01-31T12:00:00.250000"
    assert (row["value"], row["datacontenttype"], row["specversion"]) == (b"permanent", "text/plain", "1.0")
    assert row["extensions"] == {"traceid": "abc"}


def test_only_one_run_is_read_where_asked(spark, shelf, orders):
    first = deliver(orders, shelf.url(), deadLetterSink=shelf.url("the-sink"))
    second = deliver(orders.where("id = 'id2'"), shelf.url(), deadLetterSink=shelf.url("the-sink"))
    assert letters(spark, shelf.url(), deadLetterSink=shelf.url("the-sink")).count() == 3
    assert undelivered(spark, second, url=shelf.url("the-sink")).count() == 1
    assert undelivered(spark, first, url=shelf.url("the-sink")).count() == 2


def test_without_a_sink_there_is_nothing_to_look_at(spark, shelf, orders):
    report = deliver(orders.where("id = 'id1'"), shelf.url())
    with pytest.raises(ConfigurationError, match="no deadLetterSink"):
        undelivered(spark, report, DeliverySpec())


def test_an_empty_place_has_the_columns_all_the_same(spark, shelf):
    df = letters(spark, shelf.url())
    assert df.count() == 0
    assert {"id", "key", "value", "headers", "_error", "_position", "row"} <= set(df.columns)


def test_reading_anything_else_says_what_can_be_read(spark, shelf):
    with pytest.raises(PySparkException, match="only dead letters can be read"):
        spark.read.format("redelivery").option("url", shelf.url()).load()


def test_letters_must_lose_their_error_before_they_are_written(spark, shelf, orders):
    deliver(orders, shelf.url(), deadLetterSink="native")
    with pytest.raises(ConfigurationError, match="drop it before writing"):
        deliver(letters(spark, shelf.url()), shelf.url())


def test_a_number_that_no_column_holds_is_null_and_harms_no_neighbour(spark, tmp_path):
    url = f"sqlite:{tmp_path}/q.db?queue=orders"
    forged = [("ce_deadletterretry", b"3000000000"), ("ce_deadlettertime", b"9" * 30)]
    for value, headers in ((b"good", ()), (b"forged", tuple(forged))):
        with connect(f"{url}-dead-letters") as broker, broker.sender() as sender:
            sender.send(Batch.of([Message(value=value, headers=headers)]), deadline=time.monotonic() + 10)
            assert sender.collect(5.0)[0].error is None
    found = {bytes(row["value"]): row["_error"]["attempts"] for row in letters(spark, url).collect()}
    assert found == {b"good": None, b"forged": None}


def test_odd_events_are_read_as_they_are_and_harm_no_neighbour(spark, tmp_path):
    """A time that pandas has not, half a character, which JSON can write, and a number that no float holds."""
    number = "0.12345678901234567890123"
    url = f"sqlite:{tmp_path}/q.db?queue=orders"
    form = {"specversion": "1.0", "type": "t", "source": "/s", "id": "1", "data": {"a": 1}}
    for changes in ({"time": "9999-12-31T23:59:59Z"}, {"id": "2", "subject": "\ud800"}, {"id": "3", "data": number}):
        value = json.dumps(form | changes).replace(f'"{number}"', number).encode()
        message = Message(value=value, headers=(("content-type", b"application/cloudevents+json"),))
        with connect(f"{url}-dead-letters") as broker, broker.sender() as sender:
            sender.send(Batch.of([message]), deadline=time.monotonic() + 10)
            assert sender.collect(5.0)[0].error is None
    found = {row["id"][0]: row for row in letters(spark, url).selectExpr("*", "cast(time AS string) AS text").collect()}
    assert (found["1"]["text"], found["1"]["extensions"]) == ("9999-12-31 23:59:59", None)
    assert found["2"]["subject"] == "?"
    assert found["3"]["value"] == number.encode()


ORDER = "id string, type string, source string, subject string, value binary"


@pytest.fixture
def undeliverable(spark, shelf):
    """Two orders without a subject, which they need, lie in the dead letters."""
    orders = spark.sql(
        "SELECT concat('o', id) AS id, 'order' AS type, '/shop' AS source, IF(id < 2, NULL, 'me') AS subject, "
        "CAST(concat('order ', id) AS binary) AS value FROM range(3)"
    )
    report = deliver(orders, shelf.url(), deadLetterSink="native", requireAttributes="subject")
    assert (report.delivered, report.dead_lettered) == (1, 2)
    return letters(spark, shelf.url())


def test_rows_that_could_not_become_events_are_unpacked_mended_and_written(shelf, undeliverable):
    found = rows(undeliverable, ORDER)
    assert found.columns == ["id", "type", "source", "subject", "value", "_error", "_position"]
    assert {row["_error"]["native_code"] for row in found.collect()} == {"missing-subject"}
    mended = found.withColumn("subject", f.lit("you")).drop("_error", "_position")
    assert deliver(mended, shelf.url("again"), requireAttributes="subject").delivered == 2
    sent = {message.id: message for message in shelf.messages("again")}
    assert {name: message.value for name, message in sent.items()} == {"o0": b"order 0", "o1": b"order 1"}
    assert dict(sent["o1"].headers)["ce-type"] == b"order"
    assert dict(sent["o1"].headers)["ce-subject"] == b"you"


def test_a_letter_that_stands_for_a_row_is_not_written_as_it_is(shelf, undeliverable):
    plain = undeliverable.drop("_error", "_position")
    for write in (
        lambda df: deliver(df, shelf.url("again")),
        lambda df: df.write.format("redelivery").options(url=shelf.url("again")).mode("append").save(),
    ):
        with pytest.raises(PySparkException, match=r"get the rows by redelivery\.spark\.rows, mend and write those"):
            write(plain)
    assert not shelf.messages("again")


def test_a_letter_that_stands_for_a_row_harms_no_neighbour_and_does_not_grow(spark, shelf, undeliverable):
    """Anybody upstream may write an event of this type."""
    plain = undeliverable.drop("_error", "_position")
    good = spark.sql("SELECT 'g' AS id, 'order' AS type, '/shop' AS source, CAST('v' AS binary) AS value")
    both = plain.unionByName(good, allowMissingColumns=True)
    report = deliver(both, shelf.url("again"), deadLetterSink="native")
    assert (report.delivered, report.dead_lettered) == (1, 2)
    assert report.reasons == {"INVALID_MESSAGE (stands-for-a-row)": 2}
    found = rows(letters(spark, shelf.url("again")), ORDER).drop("_error", "_position")
    once = rows(undeliverable, ORDER).drop("_error", "_position")
    assert sorted(map(str, found.collect())) == sorted(map(str, once.collect()))


def test_rows_are_taken_from_letters_that_stand_for_rows_only(spark, shelf, undeliverable):
    deliver(spark.sql("SELECT 'permanent' AS value"), shelf.url(), deadLetterSink="native")
    assert letters(spark, shelf.url()).count() == 3
    assert rows(letters(spark, shelf.url()), ORDER).count() == 2
    with pytest.raises(ConfigurationError, match="these are not dead letters as they are read"):
        rows(spark.sql("SELECT 1 AS a"), ORDER)
    for schema in (["id"], "array<string>"):
        with pytest.raises(ConfigurationError, match=r"rows: the schema is .* 'id string, amount int', not"):
            rows(undeliverable, schema)


def test_a_row_of_every_type_comes_back_as_it_was(spark, shelf):
    sent = spark.sql("""
        SELECT 1 AS i, true AS b, DOUBLE('NaN') AS d, CAST(0.1 AS FLOAT) AS f, 12345678901234567890.123456789BD AS n,
               DATE'2024-02-29' AS day, TIMESTAMP'2024-02-29 23:59:59.123456' AS ts, X'00FF' AS bin,
               TIMESTAMP_NTZ'1900-01-01 00:00:00.000001' AS ntz, array(1, NULL) AS arr, cast(NULL AS int) AS none,
               named_struct('a', 1, 'b', named_struct('c', TIMESTAMP'2024-01-01 00:00:00')) AS st,
               map('k', CAST(0.1 AS FLOAT)) AS m, cast(X'ff' AS string) AS bad""")
    assert deliver(sent, shelf.url(), deadLetterSink="native").dead_lettered == 1
    found = rows(letters(spark, shelf.url()), sent.schema).drop("bad", "m", "_error", "_position").collect()
    assert list(map(str, found)) == list(map(str, sent.drop("bad", "m").collect()))


@pytest.fixture(params=["true", "false"], ids=["ansi", "no-ansi"])
def ansi(spark, request):
    spark.conf.set("spark.sql.ansi.enabled", request.param)
    yield
    spark.conf.unset("spark.sql.ansi.enabled")


@pytest.mark.parametrize(
    ("schema", "value", "told"),
    [
        ("a double", '{"a": "12 EUR"}', "the column 'a' is of type double, which this is not: 12 EUR"),
        ("a float", '{"a": ""}', "the column 'a' is of type float"),
        ("a array<float>", '{"a": [1.5, "x"]}', r"the column 'a\[\]' is of type float, which this is not: x"),
        ("a map<string,double>", '{"a": {"b": "x"}}', r"the column 'a\{\}' is of type double"),
        ("a struct<b: array<double>>", '{"a": {"b": ["x"]}}', r"the column 'a\.b\[\]' is of type double"),
        ("a int, `b.c` date", '{"a": "1", "b.c": "soon", "d": 1}', r"not a row of this schema; look at: a, b\.c"),
        ("a array<int>", '{"a": [1, "x"]}', "not a row of this schema"),
        ("a int", "[1]", "not a row of this schema"),
        ("a int", "no JSON", "not a row of this schema"),
        ("a int", "", "not a row of this schema"),
        ("a int", None, "not a row of this schema"),
    ],
)
@pytest.mark.usefixtures("ansi")
def test_a_value_that_is_not_a_row_of_the_schema_is_an_error_that_names_letter_and_column(spark, schema, value, told):
    about = "'redelivery.undeliverable' AS type, named_struct('message_id', 'o7') AS _error, '4' AS _position"
    found = spark.sql(f"SELECT CAST(:value AS string) AS value, {about}", args={"value": value})
    with pytest.raises(PySparkException, match=f"redelivery: rows: the letter o7: .*{told}"):
        rows(found, schema).collect()


@pytest.mark.usefixtures("ansi")
def test_numbers_that_are_written_as_text_are_rows(spark):
    value = '{"a": "0.1000000000000000055", "b": [null, "NaN", 1], "c": {"k": "-Infinity"}, "d": null}'
    about = "'redelivery.undeliverable' AS type, named_struct('message_id', 'o7') AS _error, '4' AS _position"
    schema = "a double, b array<float>, c map<string,double>, d struct<e: double>, f double"
    (row,) = rows(spark.sql(f"SELECT :value AS value, {about}", args={"value": value}), schema).collect()
    assert str(row[:5]) == "(0.1, [None, nan, 1.0], {'k': -inf}, None, None)"


def test_the_condition_in_the_documents_finds_what_was_too_large(spark, shelf, undeliverable):
    page = (Path(__file__).parents[3] / "docs/dead_letters.md").read_text(encoding="utf-8")
    (condition,) = re.findall(r'letters\.where\("(_error\.code .*?)"\)', page)
    assert undeliverable.where(condition).count() == 0
    deliver(spark.sql("SELECT 'large' AS value"), shelf.url(), deadLetterSink="native")
    now = letters(spark, shelf.url())  # a DataFrame keeps the letters of its first action
    assert [row["value"] for row in now.where(condition).collect()] == [b"large"]
