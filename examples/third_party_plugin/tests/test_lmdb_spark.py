"""A Spark job that uses this plugin only by its URL; LMDB itself counts the result."""

import lmdb
import pytest
from pyspark.sql import SparkSession

from redelivery.registry import installed
from redelivery.spark.java import local_session

COLUMNS = "key string, value string, destination string"


@pytest.fixture(scope="module")
def spark():
    with local_session("lmdb") as session:
        yield session


def keys(folder):
    """Return the keys in the file: a queue's name, a zero and the message's position."""
    with lmdb.open(str(folder), readonly=True) as environment, environment.begin() as transaction:
        return [key.partition(b"\0")[0].decode() for key in transaction.cursor().iternext(values=False)]


def test_the_plugin_is_found_by_its_entry_point():
    assert installed().by_url("lmdb:anywhere").name == "lmdb"
    assert not installed().failed


def test_a_spark_job_delivers_each_row_or_dead_letters_it(spark: SparkSession, tmp_path):
    url = f"lmdb:{tmp_path}/store?queue=orders"
    rows = [(str(n), f"order {n}", "no\0queue" if n % 10 == 0 else None) for n in range(100)]
    orders = spark.createDataFrame(rows, COLUMNS)

    orders.write.format("redelivery").mode("append").option("url", url).option("deadLetterSink", "native").save()

    found = keys(tmp_path / "store")
    assert found.count("orders") == 90
    assert found.count("orders-dead-letters") == 10

    letters = spark.read.format("redelivery").option("url", url).option("deadLetters", True).load()
    assert {row["code"] for row in letters.select("_error.code").collect()} == {"INVALID_DESTINATION"}
    assert letters.count() == 10
