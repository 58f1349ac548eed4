"""The data source `redelivery`, as Spark sees it: `df.write.format("redelivery")`.

Everything that can be wrong with what a user wrote is said by `writer()`, where Spark shows it well; the rest is in
`job.py`. This file must not hold what cannot be pickled.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from redelivery.errors import ConfigurationError, RedeliveryError
from redelivery.report import DeliveryReport
from redelivery.spark import reader
from redelivery.spark.job import Job, deliver_partition, finish, local_property, summary
from redelivery.spark.options import read_read_options, read_write_options

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.sql.datasource import DataSourceReader

log = logging.getLogger("redelivery.spark")


class RedeliveryDataSource(DataSource):
    """Writes rows to any destination that a plugin opens, and reads dead letters back."""

    @classmethod
    def name(cls) -> str:
        return "redelivery"

    # Spark shows an error with its way through our code; raised anew, it shows its text and one line.

    def schema(self) -> StructType:
        try:
            return reader.schema(read_read_options(self.options))
        except RedeliveryError as error:
            plain = type(error)(str(error))
        raise plain

    def reader(self, schema: StructType) -> DataSourceReader:
        try:
            return reader.DeadLetterReader(read_read_options(self.options), schema)
        except RedeliveryError as error:
            plain = type(error)(str(error))
        raise plain

    def writer(self, schema: StructType, overwrite: bool) -> RedeliveryWriter:  # noqa: FBT001 - Spark's signature
        try:
            _refuse_overwrite(overwrite=overwrite)
            return RedeliveryWriter(Job.plan(read_write_options(self.options), schema))
        except RedeliveryError as error:
            plain = type(error)(str(error))
        raise plain


def _refuse_overwrite(*, overwrite: bool) -> None:
    if overwrite:
        raise ConfigurationError(
            'mode "overwrite" would have to delete what others may be reading; messages can only be appended: '
            'say .mode("append")'
        )


@dataclass
class TaskDone(WriterCommitMessage):
    """What a task tells the driver: its account."""

    report: DeliveryReport
    speculation: bool


class RedeliveryWriter(DataSourceArrowWriter):
    """One batch write. Pickled once, so its job is the same for all tasks, their retries and the commit."""

    def __init__(self, job: Job) -> None:
        self.job = job

    def write(self, iterator: Iterator[RecordBatch]) -> WriterCommitMessage:  # type: ignore[override]  # pyspark's own
        report = deliver_partition(self.job, iterator)
        return TaskDone(report, speculation=local_property("spark.speculation") == "true")

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        _log_to_stderr()
        done = [each for each in messages if isinstance(each, TaskDone)]
        finish(self.job, (each.report for each in done), speculation=any(each.speculation for each in done))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        with contextlib.suppress(Exception):  # Spark would show this in place of the job's own error
            _log_to_stderr()
            parts = [each.report for each in messages if isinstance(each, TaskDone)]
            account = summary(DeliveryReport.total(parts, run=self.job.run))
            log.warning("the write failed; what its finished tasks delivered stays delivered: %s", account)


def _log_to_stderr() -> None:
    """The driver-side helper process has no logging of its own; its stderr is Spark's."""
    if not log.hasHandlers():
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        log.addHandler(handler)
        log.setLevel(logging.INFO)
