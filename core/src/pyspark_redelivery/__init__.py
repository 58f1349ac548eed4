"""The face that Spark's discovery looks for: a top-level package `pyspark_*` with a `DefaultSource`."""

from redelivery.spark.writer import RedeliveryDataSource


class DefaultSource(RedeliveryDataSource):
    """The data source `redelivery`, found without registration."""


__all__ = ["DefaultSource"]
