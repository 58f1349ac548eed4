"""Rows of every type and every name become letters, are read, and are sent again as they were."""

from __future__ import annotations

import json

import pytest
from pyspark.sql import functions as f

from redelivery.spark import deliver, rows
from redelivery.spark.jsonform import quoted

#: By the column's name. As SQL: some have no value in Python.
ODD = {
    "decimal": "CAST('12345678901234567890.123456789012345678' AS DECIMAL(38,18))",
    "decimals": "array(CAST('-0.000000000000000001' AS DECIMAL(38,18)), CAST('0.12345678901234567' AS DECIMAL(38,18)))",
    "whole": "CAST('99999999999999999999999999999999999999' AS DECIMAL(38,0))",
    "first day": "DATE'0001-01-01'",
    "before Gregory": "array(DATE'1582-10-04', DATE'1899-12-31', DATE'9999-12-31')",
    "moments": "array(TIMESTAMP'0001-01-01 00:00:00.000001Z', TIMESTAMP'1890-06-01 00:00:00.5Z', "
    "TIMESTAMP'9999-12-31 23:59:59.999999Z')",
    "moment": "TIMESTAMP'1582-10-10 12:00:00Z'",
    "local": "array(TIMESTAMP_NTZ'0001-01-01 00:00:00.000001', TIMESTAMP_NTZ'9999-12-31 23:59:59.999999')",
    "no numbers": "array(DOUBLE('NaN'), DOUBLE('Infinity'), DOUBLE('-Infinity'))",
    "-0": "DOUBLE('-0.0')",
    # Java 17 writes more digits than are needed, so as text they are not those of Python's float.
    "java's digits": "array(DOUBLE('5.6843418860808015E-14'), DOUBLE('4.9E-324'), DOUBLE('2.2250738585072014E-308'))",
    "double": "DOUBLE('4.9E-324')",
    "floats": "array(FLOAT('-Infinity'), FLOAT('1.4E-45'), CAST(1 / 3D AS FLOAT))",
    "doubles in a struct": "named_struct('a.b', DOUBLE('4.9E-324'), 'c`d', map('e f', array(DOUBLE('NaN'), NULL)))",
    "text": "'😀👩‍👩‍👧 𝄞 \\u0000\\u0001\\u001f\\u007f\\u2028\\ufffd\\ufeff \"quoted\\\\\\\\'",
    "large": "repeat('é', 524288)",
    "bytes": "array(X'00FF80', X'')",
    "limits": "array(9223372036854775807L, -9223372036854775808L)",
    "maps": "map('k.😀', map('', 1), '', map())",
    "lists": "array(array('x', NULL), NULL, array())",
    "structs": "array(named_struct('b', X'FF', 'd', DATE'0001-01-01'))",
    "no maps": "CAST(map() AS map<string, map<string, double>>)",
    "nothing": "NULL",
    "no int": "CAST(NULL AS INT)",
    "nothing in a struct": "named_struct('x', NULL)",
    "collated": "'Straße' COLLATE UTF8_LCASE",
    "char": "CAST('ab' AS CHAR(5))",
    "interval": "CAST(INTERVAL '1 02:03:04.5' DAY TO SECOND AS STRING)",
    "variant": "CAST(parse_json('{\"a\": [1, 2.50]}') AS STRING)",
    "a.b": "1",
    "back`tick": "2",
    "😀": "3",
    'quo"te': "4",
    "new\nline": "5",
    "": "6",
}


@pytest.fixture(scope="module")
def odd(spark):
    return spark.sql("SELECT " + ", ".join(f"{sql} AS {quoted(name)}" for name, sql in ODD.items())).coalesce(1)


def texts(df):
    """Return every value as Spark shows it: Python has no dates after 9999, and no two zeros that differ."""
    return df.select(*(f.col(quoted(name)).cast("string") for name in ODD)).collect()


def letters(spark, url):
    return spark.read.format("redelivery").option("url", url).option("deadLetters", True).load()


def written(df, url, **options):
    df.write.format("redelivery").mode("append").option("url", url).options(**options).save()


@pytest.mark.parametrize("write", [written, deliver])
def test_rows_that_never_became_messages_come_back_as_they_were(spark, shelf, odd, write):
    bad = odd.withColumn("type", f.lit(None).cast("string")).withColumn("source", f.lit("/s"))
    write(bad, shelf.url(), deadLetterSink="native")
    assert shelf.messages() == []
    found = rows(letters(spark, shelf.url()), bad.schema)
    assert [each.name for each in found.schema][: len(bad.columns)] == bad.columns
    assert texts(found) == texts(odd)


def test_a_refused_row_is_read_mended_and_delivered_as_it_was(spark, shelf, odd):
    written(odd, shelf.url("well"))
    (well,) = shelf.messages("well")
    written(odd.withColumn("key", f.lit("permanent")), shelf.url(), deadLetterSink="native")
    body = f.col("value").cast("string")
    mended = letters(spark, shelf.url()).select(f.from_json(body, odd.schema, {"mode": "FAILFAST"}).alias("row"))
    mended = mended.select("row.*")
    assert texts(mended) == texts(odd)
    written(mended, shelf.url("again"))
    (again,) = shelf.messages("again")
    assert json.loads(again.value) == json.loads(well.value)
