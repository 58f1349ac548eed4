"""Spark: rows that a job writes through the data source are stored, as the independent reader counts them."""

from __future__ import annotations

import importlib.util
from collections import Counter
from functools import cache
from typing import Any

import pytest

from redelivery.contract.message import Message
from redelivery.errors import ConfigurationError
from redelivery_conformance.harness import CannotShow
from redelivery_conformance.statements import Statements, broker_has
from redelivery_conformance.subject import Subject


@cache
def session() -> Any:
    """Return a local Spark session with two cores, started once. It ends with the process: other tests may share it."""
    if importlib.util.find_spec("pyspark") is None:
        raise CannotShow("Spark: pip install 'redelivery-core[spark]'")
    from redelivery.spark import register  # noqa: PLC0415 - pyspark is an extra
    from redelivery.spark.java import local_session  # noqa: PLC0415 - pyspark is an extra

    try:
        spark = local_session("redelivery-conformance", master="local[2]")
    except ConfigurationError as error:
        raise CannotShow(f"Spark: {error}") from error
    register(spark)
    return spark


class SparkWrites(Statements):
    """`df.write.format("redelivery")` to this broker, an installed plugin that other processes can reach."""

    @broker_has("send")
    @pytest.mark.spark
    @pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
    def test_every_row_that_spark_writes_is_stored_once(self, subject: Subject) -> None:
        subject.other_processes()
        count = min(1_000, subject.place.many)
        rows = session().range(count).selectExpr("cast(concat('row ', id) as binary) as value").repartition(3)
        writer = rows.write.format("redelivery").mode("append").option("url", subject.place.url)
        for name, value in subject.place.options.items():
            writer = writer.option(name, value)
        writer.save()
        assert subject.values() == Counter(b"row %d" % at for at in range(count))

    @broker_has("send", "keys", "headers")
    @pytest.mark.spark
    @pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
    def test_the_columns_that_spark_writes_come_back(self, subject: Subject) -> None:
        subject.other_processes()
        sql = (
            "select cast('k' as binary) as key, unhex('00ff') as value, "
            "array(struct('Name' as key, unhex('fe') as value), struct('b' as key, unhex('') as value)) as headers"
        )
        writer = session().sql(sql).write.format("redelivery").mode("append").option("url", subject.place.url)
        for name, value in subject.place.options.items():
            writer = writer.option(name, value)
        writer.save()
        (found,) = subject.place.stored()
        sent = Message(value=b"\0\xff", key=b"k", headers=(("Name", b"\xfe"), ("b", b"")))
        assert (found.value, found.key) == (sent.value, sent.key)
        assert [each for each in found.headers if each in sent.headers] == list(sent.headers)
