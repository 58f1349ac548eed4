"""A row's JSON means the same whether Spark's JVM or Python writes it."""

import json
from decimal import Context, Decimal

import pytest

from redelivery.errors import ConfigurationError
from redelivery.spark import jsonform, rowjson

ROWS = """
SELECT * FROM VALUES
  (1, 'plain', true, 1.5D, CAST(0.1 AS FLOAT), 12345678901234567890.123456789BD, DATE'2024-02-29',
   TIMESTAMP'2024-02-29 23:59:59.123456', TIMESTAMP_NTZ'2024-02-29 23:59:59', X'00FF', array(1, NULL),
   named_struct('a', 1, 'b', named_struct('c', TIMESTAMP'2024-01-01 00:00:00')), map('k', CAST(0.1 AS FLOAT)),
   array(named_struct('x', X'01')), map('k', array(map('l', DATE'2024-01-01'))), NULL),
  (-2147483648, 'quo"te\\\\back\\nline\\u0001ü€😀/', false, DOUBLE('NaN'), CAST('Infinity' AS FLOAT), -0.000000001BD,
   DATE'1969-12-31', TIMESTAMP'1969-12-31 23:59:59.999999', TIMESTAMP_NTZ'1900-01-01 00:00:00.000001', X'', array(),
   named_struct('a', NULL, 'b', NULL), map(), array(), map('m', NULL), NULL),
  (NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
  (0, '', true, DOUBLE('-Infinity'), CAST(1e-10 AS FLOAT), 0BD, DATE'2038-01-19', TIMESTAMP'2262-01-01 00:00:00',
   TIMESTAMP_NTZ'2262-01-01 00:00:00', X'61', array(3), named_struct('a', 3, 'b', named_struct('c', NULL)),
   map('', CAST('NaN' AS FLOAT)), array(NULL), map('k', array()), NULL)
AS t(i, s, b, d, f, `dec`, day, ts, ntz, bin, arr, st, m, structs, nested, nothing)
"""


def encoded_in_python(df):
    """As the workers of a plain write do it."""

    def encode(batches):
        import pyarrow as pa  # noqa: PLC0415

        for batch in batches:
            columns = dict(zip(names, batch.columns, strict=True))
            yield pa.record_batch([rowjson.encode(columns)], names=["json"])

    names = df.columns
    plainly_named = df.toDF(*(f"c{index}" for index in range(len(names))))  # mapInArrow stumbles over odd names
    return [row[0] for row in plainly_named.coalesce(1).mapInArrow(encode, "json string").collect()]


def numbers_exactly(text):
    return json.loads(text, parse_float=lambda digits: Decimal(digits).normalize(Context(prec=60)))


def test_both_ways_mean_the_same(spark):
    df = spark.sql(ROWS).selectExpr(
        "*", 'CAST(i AS BIGINT) * 4294967296 AS `we.ird ``name"`', "1e300D AS big", "4.9E-324D AS small"
    )
    for field in df.schema.fields:
        jsonform.check(field.name, field.dataType)
    by_spark = [row[0] for row in df.select(jsonform.expression(df.columns, df.schema)).collect()]
    by_python = encoded_in_python(df)
    assert len(by_python) == 4
    assert [json.loads(text) for text in by_python] == [json.loads(text) for text in by_spark]
    decimals = [[numbers_exactly(text)["dec"] for text in texts] for texts in (by_python, by_spark)]
    assert decimals[0] == decimals[1]
    whole = [[type(each) for each in json.loads(text).values()] for text in by_python]
    assert whole == [[type(each) for each in json.loads(text).values()] for text in by_spark]


def test_the_form_is_the_documented_one(spark):
    row = spark.sql(ROWS).limit(1)
    form = numbers_exactly(row.select(jsonform.expression(row.columns, row.schema)).collect()[0][0])
    assert form["ts"] == "2024-02-29T23:59:59.123456Z"
    assert form["ntz"] == "2024-02-29T23:59:59.000000"
    assert form["day"] == "2024-02-29"
    assert form["bin"] == "AP8="
    assert form["dec"] == Decimal("12345678901234567890.123456789")
    assert form["nothing"] is None
    assert form["arr"] == [1, None]


def test_times_past_those_that_python_has_mean_the_same_at_any_depth(spark):
    df = spark.sql(
        "SELECT timestamp_seconds(253402300800) AS ts, array(timestamp_seconds(253402300800), NULL) AS many, "
        "named_struct('a', map('k', timestamp_seconds(253402300800)), 'b', 0.5BD) AS st, "
        "CAST(timestamp_seconds(253402300800) AS timestamp_ntz) AS ntz, "
        "date_from_unix_date(2932897) AS day, array(date_from_unix_date(2932897), DATE'2024-02-29') AS days "
        "UNION ALL SELECT timestamp_seconds(0), array(timestamp_seconds(0)), "
        "named_struct('a', map('k', timestamp_seconds(0)), 'b', 1BD), CAST(timestamp_seconds(0) AS timestamp_ntz), "
        "DATE'2024-02-29', array()"
    ).coalesce(1)
    by_spark = [json.loads(row[0]) for row in df.select(jsonform.expression(df.columns, df.schema)).collect()]
    assert [json.loads(text) for text in encoded_in_python(df)] == by_spark
    assert by_spark[0]["many"] == ["+10000-01-01T00:00:00.000000Z", None]


def test_the_sessions_time_zone_does_not_matter(spark):
    before = spark.conf.get("spark.sql.session.timeZone")
    try:
        spark.conf.set("spark.sql.session.timeZone", "America/New_York")
        df = spark.sql("SELECT timestamp_seconds(0) AS ts, array(timestamp_seconds(0)) AS many")
        by_spark = json.loads(df.select(jsonform.expression(df.columns, df.schema)).collect()[0][0])
        by_python = encoded_in_python(df)[0]
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)
    assert by_spark == json.loads(by_python)
    assert by_spark["ts"] == by_spark["many"][0] == "1970-01-01T00:00:00.000000Z"


@pytest.mark.parametrize("sql", ["INTERVAL 1 DAY", "INTERVAL 1 YEAR", "parse_json('1')", "array(INTERVAL 1 DAY)"])
def test_a_type_without_a_json_form_is_refused(spark, sql):
    field = spark.sql(f"SELECT {sql} AS a").schema.fields[0]
    with pytest.raises(ConfigurationError, match="cast it to string"):
        jsonform.check(field.name, field.dataType)


def test_a_row_of_a_thousand_texts_is_encoded_by_spark(spark):
    """A condition per text, each after the other, overflows the stack of Spark's analyzer."""
    wide = spark.sql("SELECT " + ", ".join(f"'x' AS c{number}" for number in range(1000)))
    ((text,),) = wide.select(jsonform.expression(wide.columns, wide.schema)).collect()
    assert json.loads(text) == dict.fromkeys(wide.columns, "x")
