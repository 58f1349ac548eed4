"""The features of the installed Spark and their substitutes: the only module where Spark 4.0 to 4.3 differ.

It looks for each feature and never compares version numbers, because vendors backport features.
`docs/spark_versions.md` lists them.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from inspect import signature
from typing import TYPE_CHECKING, Final

import pyspark
from pyspark.sql import DataFrame, datasource

from redelivery.errors import ConfigurationError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column
    from pyspark.sql.datasource import DataSourceStreamArrowWriter as StreamArrowWriter
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
    from pyspark.sql.types import StructType
elif hasattr(datasource, "DataSourceStreamArrowWriter"):
    StreamArrowWriter = datasource.DataSourceStreamArrowWriter
else:

    class StreamArrowWriter(datasource.DataSourceStreamWriter, datasource.DataSourceArrowWriter):
        """Gets Arrow batches: a task of Spark 4.0 asks for the batch writer's class, for micro-batches too."""


#: Spark tells a stream's reader where the next micro-batch begins, and a limit.
ADMISSION_CONTROL: Final = hasattr(datasource.DataSourceStreamReader, "getDefaultReadLimit")

if not TYPE_CHECKING:
    if ADMISSION_CONTROL:
        from pyspark.sql.streaming.datasource import (
            ReadAllAvailable,
            ReadLimit,
            ReadMaxRows,
            SupportsTriggerAvailableNow,
        )
    else:
        ReadLimit, ReadAllAvailable, ReadMaxRows = (type(name, (), {}) for name in ("Limit", "All", "Most"))
        SupportsTriggerAvailableNow = type("SupportsTriggerAvailableNow", (), {})


@dataclass(frozen=True, slots=True)
class Feature:
    """One thing that not every supported Spark has.

    Attributes:
        name: what it is, for people.
        since: the first version that has it.
        present: whether the Spark at hand has it.
        instead: what happens without it.
    """

    name: str
    since: str
    present: bool
    instead: str


FEATURES: Final = (
    Feature(
        "Arrow batches for a micro-batch (`DataSourceStreamArrowWriter`)",
        "4.1",
        hasattr(datasource, "DataSourceStreamArrowWriter"),
        "the writer is also of the class for batch writes, which a task of 4.0 asks for: it gets the same batches",
    ),
    Feature(
        "rows placed by the number of a partition (`repartitionById`)",
        "4.1",
        hasattr(DataFrame, "repartitionById"),
        "`redrive(mend=...)` places them by a hash: all letters of a split stay together, but a task may get several "
        "splits one after the other, and another none",
    ),
    Feature(
        "Spark Declarative Pipelines (`create_sink`)",
        "4.1",
        find_spec("pyspark.pipelines") is not None,
        "a stream of one's own: `writeStream`",
    ),
    Feature(
        "bounded micro-batches of a reader (`ReadLimit`)",
        "4.2",
        ADMISSION_CONTROL,
        "each micro-batch of dead letters has all that exist; `maxLettersPerTrigger` is refused; a run with "
        "`availableNow` is one micro-batch: after a kill it repeats that one, and the next run reads newer letters",
    ),
)


def arrow_schema(columns: StructType) -> pa.Schema:
    """Return the Arrow schema of columns, with times in UTC. Spark before 4.2 always uses UTC."""
    from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415 - only tasks need Arrow

    if "timezone" in signature(to_arrow_schema).parameters:
        return to_arrow_schema(columns, timezone="UTC")
    return to_arrow_schema(columns)


def placed(rows: DataFrame, count: int, number: Column) -> DataFrame:
    """Return rows in `count` partitions, those of one number together.

    Args:
        rows: any rows.
        count: how many partitions.
        number: a whole number below `count` for each row. Without `repartitionById` several may share a partition.
    """
    if hasattr(type(rows), "repartitionById"):
        return rows.repartitionById(count, number)
    return rows.repartition(count, number)


def refuse_limit(limit: int | None) -> None:
    """Refuse to bound micro-batches of a reader. Raises ConfigurationError: this Spark has no such bounds."""
    if limit is not None and not ADMISSION_CONTROL:
        raise ConfigurationError(
            f"maxLettersPerTrigger needs Spark 4.2 or later: this is {pyspark.__version__}, which does not tell a "
            "reader where a micro-batch begins; drop it, and each micro-batch has all letters that exist"
        )


__all__ = [
    "ADMISSION_CONTROL",
    "FEATURES",
    "Feature",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxRows",
    "StreamArrowWriter",
    "SupportsTriggerAvailableNow",
    "arrow_schema",
    "placed",
    "refuse_limit",
]
