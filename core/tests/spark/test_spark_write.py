"""`df.write.format("redelivery")` and `deliver()`: every row is accounted for, and errors say what to do."""

import json

import pytest
from pyspark.errors import PySparkException

from redelivery.contract.spec import DeliverySpec, Sink
from redelivery.errors import ConfigurationError, ToleranceExceeded, UnknownOption
from redelivery.spark import deliver, events, register

HEADERS = "array<struct<key:string,value:binary>>"


def write(df, url, **options):
    df.write.format("redelivery").options(url=url, **options).mode("append").save()


def message_of(call):
    with pytest.raises(PySparkException) as caught:
        call()
    return str(caught.value)


def values(spark, *texts, partitions=2):
    rows = [(text,) for text in texts]
    return spark.createDataFrame(rows, "value string").coalesce(1).repartition(partitions)


# --- the good path -------------------------------------------------------------------------------------------------


def test_every_column_arrives_and_the_report_tells(spark, shelf, tmp_path):
    df = spark.range(2500, numPartitions=3).selectExpr(
        "concat('k', id) AS key",
        "CAST(concat('v', id) AS binary) AS value",
        f"CAST(array(named_struct('key', 'h', 'value', X'FF')) AS {HEADERS}) AS headers",
        "concat('to', id % 2) AS destination",
        "timestamp_millis(id) AS timestamp",
        "id AS row",
    )
    report_path = tmp_path / "report.json"
    write(df, shelf.url(), reportPath=report_path)
    messages = sorted(shelf.messages(), key=lambda m: m.timestamp_ms)
    assert len(messages) == 2500
    assert len({m.id for m in messages}) == 2500
    for index in (0, 1, 2499):
        message = messages[index]
        assert message.value == b"v%d" % index
        assert message.key == b"k%d" % index
        assert message.headers == (("h", b"\xff"),)
        assert message.destination == f"to{index % 2}"
        assert message.timestamp_ms == index
        assert message.extra["row"] == index
    report = json.loads(report_path.read_text())
    assert (report["rows"], report["delivered"], report["tasks"], report["accounted"]) == (2500, 2500, 3, True)
    assert report["destinations"][shelf.url()]["bytes"] > 2500


def test_deliver_and_the_plain_write_send_the_same(spark, shelf):
    df = spark.range(10).selectExpr("id", "id * 0.5D AS half", "timestamp_seconds(id) AS at", "concat('k', id) AS key")
    write(df, shelf.url("plain"))
    report = deliver(df, shelf.url("delivered"))
    assert (report.rows, report.delivered) == (10, 10)

    def sent(queue):
        return {(m.key, m.id, json.dumps(json.loads(m.value))) for m in shelf.messages(queue)}

    assert sent("plain") == sent("delivered")
    assert (b"k1", "1", '{"id": 1, "half": 0.5, "at": "1970-01-01T00:00:01.000000Z"}') in sent("plain")


def test_a_named_write_gives_the_same_ids_again(spark, shelf):
    df = spark.range(100, numPartitions=2).selectExpr("CAST(id AS string) AS value")
    for queue in ("once", "again"):
        write(df, shelf.url(queue), writeId="nightly-7")
    write(df, shelf.url("unnamed"))
    ids = {queue: {m.id: m.value for m in shelf.messages(queue)} for queue in ("once", "again", "unnamed")}
    assert len(ids["once"]) == 100
    assert ids["once"] == ids["again"]
    assert not ids["once"].keys() & ids["unnamed"].keys()


def test_nothing_is_opened_for_an_empty_dataframe(spark, shelf, tmp_path):
    report_path = tmp_path / "report.json"
    write(spark.range(0).selectExpr("'x' AS value"), shelf.url(), reportPath=report_path, preflight="false")
    report = json.loads(report_path.read_text())
    assert (report["rows"], report["delivered"], report["accounted"]) == (0, 0, True)
    assert report["primary"] == shelf.url()
    assert deliver(spark.range(0).selectExpr("'x' AS value"), shelf.url(), preflight=False).rows == 0
    assert not shelf.opened()


def test_nothing_is_opened_for_an_empty_partition(spark, shelf):
    report = deliver(spark.range(1, numPartitions=4).selectExpr("'x' AS value"), shelf.url(), preflight=False)
    assert (report.rows, report.tasks) == (1, 4)
    assert len(shelf.opened()) == 1


def test_connections_are_kept_for_the_next_task_of_a_worker(spark, shelf):
    df = spark.range(40, numPartitions=20).selectExpr("CAST(id AS string) AS value")
    assert deliver(df, shelf.url(), preflight=False).delivered == 40
    opened = shelf.opened()
    assert len(opened) == 20  # a sender each
    workers = {line.split()[0] for line in opened}
    assert len(set(opened)) <= len(workers)  # and one connection a worker


def test_zero_bytes_and_ten_megabytes_and_any_bytes(spark, shelf):
    df = spark.sql(
        "SELECT X'' AS value UNION ALL SELECT CAST(repeat('x', 10485760) AS binary) UNION ALL SELECT X'C328FF00'"
    )
    assert deliver(df, shelf.url()).delivered == 3
    assert sorted(map(len, (m.value for m in shelf.messages()))) == [0, 4, 10485760]
    assert b"\xc3\x28\xff\x00" in {m.value for m in shelf.messages()}


def test_text_that_is_not_utf8_harms_no_neighbour(spark, shelf):
    df = spark.sql("SELECT 'good' AS name UNION ALL SELECT CAST(X'C328' AS string)").coalesce(1)
    write(df, shelf.url(), deadLetterSink="native")
    sent = [json.loads(m.value)["name"] for m in shelf.messages()]
    assert "good" in sent
    assert len(shelf.messages()) + len(shelf.letters()) == 2


def test_text_that_is_not_utf8_is_dead_lettered_by_deliver_as_by_a_plain_write(spark, shelf):
    """A character that stands for none is as good as any, and a nested text as a plain one."""
    good = spark.sql("SELECT '\ufffd' AS a, array('x') AS b")
    assert deliver(good, shelf.url()).delivered == 1
    (message,) = shelf.messages()
    assert json.loads(message.value) == {"a": "\ufffd", "b": ["x"]}
    rows = {
        "plain": "cast(X'61ff62' AS string) AS a",
        "nested": "array(cast(X'ff' AS string), 'x') AS a",
        "map": "map(cast(X'ff' AS string), cast(X'fe' AS string)) AS a",
    }
    for name, bad in rows.items():
        fine = bad.replace("X'ff'", "'\ufffd'").replace("X'61ff62'", "'y'").replace("X'fe'", "'z'")
        others = "1 AS b, 'k' AS key, timestamp_seconds(0) AS c"
        df = spark.sql(f"SELECT {bad}, {others} UNION ALL SELECT {fine}, {others}")
        df = df.coalesce(1)
        write(df, shelf.url(f"{name}-written"), deadLetterSink="native", writeId=name)
        report = deliver(df, shelf.url(f"{name}-delivered"), deadLetterSink="native", writeId=name)
        assert (report.delivered, report.reasons) == (1, {"INVALID_MESSAGE (not-utf8)": 1})
        for place in (shelf.messages, shelf.letters):
            (written,), (delivered,) = place(f"{name}-written"), place(f"{name}-delivered")
            assert (delivered.id, delivered.key) == (written.id, written.key)
            for member in ("data", "a", "b", "c", "code", "source", "type"):
                assert json.loads(delivered.value).get(member) == json.loads(written.value).get(member)
        shown = json.loads(shelf.letters(f"{name}-delivered")[0].value)["data"]
        assert shown["b"] == 1
        assert "\ufffd" not in json.dumps(shown, ensure_ascii=False)
    with pytest.raises(PySparkException, match="is not UTF-8"):
        deliver(spark.sql(f"SELECT {rows['plain']}"), shelf.url())
    assert len(shelf.messages()) == 1


def test_a_row_with_a_time_past_those_that_python_has_is_delivered_or_dead_lettered(spark, shelf):
    late = "timestamp_seconds(253402300800)"
    df = spark.sql(f"SELECT array({late}) AS many, {late} AS one, date_from_unix_date(2932897) AS day")
    write(df, shelf.url())
    deliver(df, shelf.url())
    assert {m.value for m in shelf.messages()} == {shelf.messages()[0].value}
    bad = df.selectExpr("*", "cast(X'ff' AS string) AS name")
    write(bad, shelf.url("bad"), deadLetterSink="native")
    data = json.loads(shelf.letters("bad")[0].value)["data"]
    assert data["many"] == ["+10000-01-01T00:00:00.000000Z"]
    assert data["day"] == "+10000-01-01"


def test_an_option_that_is_none_is_not_set(spark, shelf):
    df = spark.sql("SELECT 'v' AS value")
    for _ in range(2):
        report = deliver(df, shelf.url(), writeId=None, reportPath=None)
        assert (report.delivered, report.duplicates) == (1, 0)
    assert len({message.id for message in shelf.messages()}) == 2


def test_odd_ids_arrive_as_they_are(spark, shelf):
    ids = ["../../etc/passwd", "i" * 300, "snow☃", " "]
    df = spark.createDataFrame([(name, "x") for name in ids], "id string, value string")
    write(df, shelf.url())
    assert sorted(m.id for m in shelf.messages()) == sorted(ids)


def test_the_data_source_is_found_without_registration_and_with_it(spark, shelf):
    register(spark)
    write(values(spark, "x"), shelf.url())
    assert len(shelf.messages()) == 1


# --- what goes wrong at the broker ---------------------------------------------------------------------------------


def test_a_row_that_is_refused_is_dead_lettered_and_its_neighbours_are_not(spark, shelf):
    report = deliver(values(spark, "a", "permanent 1", "b", "permanent 2"), shelf.url(), deadLetterSink="native")
    assert (report.rows, report.delivered, report.dead_lettered) == (4, 2, 2)
    assert report.reasons == {"REJECTED (REFUSED)": 2}
    assert sorted(m.value for m in shelf.messages()) == [b"a", b"b"]
    assert sorted(m.value for m in shelf.letters()) == [b"permanent 1", b"permanent 2"]


def test_a_retriable_failure_is_tried_again(spark, shelf):
    report = deliver(values(spark, "a", "flaky"), shelf.url(), retry=1, backoffDelay="PT0.01S", backoffPolicy="linear")
    assert (report.delivered, report.retried) == (2, 1)


def test_without_a_sink_the_job_fails_and_says_why(spark, shelf):
    text = message_of(lambda: write(values(spark, "a", "permanent"), shelf.url()))
    assert "the shelf refuses this" in text
    assert "errors.tolerance is 'none'" in text
    text = message_of(lambda: deliver(values(spark, "a", "fatal"), shelf.url(), deadLetterSink="native"))
    assert "the shelf has fallen down" in text
    assert not shelf.letters()


def test_the_limit_holds_for_the_job_as_a_whole(spark, shelf, tmp_path):
    df = values(spark, *(f"permanent {i}" for i in range(8)), partitions=4)
    options = {"deadLetterSink": "native", "errors.tolerance.limit": 4}
    with pytest.raises(ToleranceExceeded, match=r"more than the errors\.tolerance\.limit of 4"):
        deliver(df, shelf.url(), **options)
    report_path = tmp_path / "report.json"
    text = message_of(lambda: write(df, shelf.url(), reportPath=report_path, **options))
    assert "more than the errors.tolerance.limit of 4" in text
    assert json.loads(report_path.read_text())["dead_lettered"] == 8


def test_a_spec_object_says_the_same_as_options(spark, shelf):
    spec = DeliverySpec(dead_letter_sink=(Sink(uri=shelf.url("other-sink")),))
    report = deliver(values(spark, "permanent", "b"), shelf.url(), spec)
    assert report.dead_lettered == 1
    assert len(shelf.messages("other-sink")) == 1


# --- events --------------------------------------------------------------------------------------------------------


def test_events_made_by_spark_are_events_and_bad_rows_are_dead_lettered(spark, shelf):
    df = spark.sql(
        "SELECT id, IF(id % 3 = 0, NULL, concat('s', id)) AS tail, timestamp_seconds(id) AS at FROM range(9)"
    )
    made = events(df, type="flight", source="/nyc", subject="tail", time="at", key="tail", data=["id", "at"])
    for queue, mode in (("b", "binary"), ("s", "structured")):
        report = deliver(made, shelf.url(queue), deadLetterSink="native", contentMode=mode, requireAttributes="subject")
        assert (report.delivered, report.reasons) == (6, {"INVALID_MESSAGE (missing-subject)": 3})
    message = next(m for m in shelf.messages("b") if m.key == b"s1")
    assert dict(message.headers)["ce-time"] == b"1970-01-01T00:00:01.000000Z"
    assert json.loads(message.value) == {"id": 1, "at": "1970-01-01T00:00:01.000000Z"}
    message = next(m for m in shelf.messages("s") if m.key == b"s1")
    assert json.loads(message.value)["data"] == {"id": 1, "at": "1970-01-01T00:00:01.000000Z"}
    with pytest.raises(ConfigurationError, match="did you mean 'tail'"):
        events(df, type="flight", source="/nyc", subject="tale")
    with pytest.raises(ConfigurationError, match=r"'source' must be a URI reference.*'New York'"):
        events(df, type="flight", source="New York")


# --- what is refused before anything is sent -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"retri": "3"}, "unknown option 'retri'; did you mean 'retry'?"),
        ({"url": "shelf://me:hunter2@host/x"}, "holds a password"),
        ({"backoffDelay": "5s"}, "ISO-8601"),
    ],
)
def test_a_bad_option_shows_its_error_in_a_few_lines(spark, shelf, options, said):
    df = values(spark, "x")
    text = message_of(lambda: write(df, **{"url": shelf.url(), **options}))
    assert said in text
    assert "hunter2" not in text
    assert len(text.splitlines()) < 8
    assert not shelf.opened()
    assert not shelf.messages()


def test_deliver_raises_our_own_errors(spark, shelf):
    with pytest.raises(UnknownOption, match="did you mean 'retry'"):
        deliver(values(spark, "x"), shelf.url(), retri=3)
    with pytest.raises(ConfigurationError, match="must be binary or string"):
        deliver(spark.range(1).selectExpr("id AS value"), shelf.url())


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("1 AS value", "'value' must be binary or string, not int"),
        ("'a' AS value, 'b' AS Value", "duplicate column"),
        ("'a' AS value, 1 AS amount", "unknown column 'amount'"),
    ],
)
def test_bad_columns_show_their_error(spark, shelf, sql, said):
    text = message_of(lambda: write(spark.sql(f"SELECT {sql}"), shelf.url()))
    assert said in text
    assert not shelf.opened()


def test_a_null_that_the_broker_cannot_carry_fails_or_is_dead_lettered(spark, shelf):
    df = spark.sql("SELECT CAST(NULL AS string) AS value")
    text = message_of(lambda: write(df, shelf.url(scheme="crate")))
    assert "the value is null, which this destination cannot carry" in text
    report = deliver(df, shelf.url(scheme="crate"), deadLetterSink=shelf.url("nulls"))
    assert report.reasons == {"INVALID_MESSAGE (null-value)": 1}
    assert len(shelf.messages("nulls")) == 1


def test_bad_save_modes_are_explained(spark, shelf):
    df = values(spark, "x")
    overwrite = df.write.format("redelivery").option("url", shelf.url()).mode("overwrite")
    assert '.mode("append")' in message_of(overwrite.save)
    default = df.write.format("redelivery").option("url", shelf.url())
    assert "UNSUPPORTED_DATA_SOURCE_SAVE_MODE" in message_of(default.save)  # Spark's own
    assert not shelf.opened()


def test_a_control_character_in_a_header_name_is_dead_lettered(spark, shelf):
    df = spark.sql(
        f"SELECT 'x' AS value, CAST(array(named_struct('key', 'a\\nb', 'value', X'00')) AS {HEADERS}) AS headers"
    )
    text = message_of(lambda: write(df, shelf.url()))
    assert "holds a control character" in text
    assert deliver(df, shelf.url(), deadLetterSink="native").reasons == {"INVALID_MESSAGE (invalid-header)": 1}
