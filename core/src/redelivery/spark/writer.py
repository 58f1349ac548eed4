"""The data source `redelivery`, as Spark sees it: `df.write.format("redelivery")`, and `writeStream` alike.

`writer()` and `streamWriter()` report every mistake that a user can make, because Spark shows it well there; the rest
is in `job.py`.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from redelivery.base.urls import redact
from redelivery.errors import ConfigurationError, RedeliveryError
from redelivery.sending.report import DeliveryReport
from redelivery.spark.features import StreamArrowWriter, refuse_limit
from redelivery.spark.job import Job, deliver_partition, finish, local_property, plain, preflight
from redelivery.spark.lineage import SETTINGS
from redelivery.spark.options import read_read_options, read_write_options
from redelivery.spark.redelivered import Redelivered
from redelivery.telemetry.owned import traced

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader

log = logging.getLogger("redelivery.spark")

#: Options of a stream that are Spark's, and that it passes on.
_SPARKS_OWN: Final = {"checkpointlocation", "queryname"}


#: Options of the queries whose places this process has checked: Spark plans all micro-batches of a query in one.
_looked: Final[list[dict[str, str]]] = []
#: Spark commits micro-batches in another process, which makes the writer again; this module exists only there.
_COMMITS: Final = "pyspark.sql.worker.python_streaming_sink_runner"


def _plans_a_query() -> bool:
    return _COMMITS not in sys.modules


class RedeliveryDataSource(DataSource):
    """Writes rows to any destination that a plugin opens, and reads dead letters back."""

    @classmethod
    def name(cls) -> str:
        return "redelivery"

    # Spark shows an error with its way through our code; raised again, it shows one step of it, and the text.

    # The reader is imported where it is used: Spark plans and commits each write in its own short process.

    def schema(self) -> StructType:
        from redelivery.spark import letter_schema  # noqa: PLC0415 - see above

        try:
            settings = read_read_options(self.options)
            refuse_limit(settings.per_trigger)  # a stream's reader shows it among Spark's own errors
            return letter_schema.schema(settings)
        except RedeliveryError as error:
            raise plain(error) from None

    def reader(self, schema: StructType) -> DataSourceReader:
        from redelivery.spark.letters_reader import DeadLetterReader  # noqa: PLC0415 - see above

        try:
            return DeadLetterReader(read_read_options(self.options, stream=False), schema)
        except RedeliveryError as error:
            raise plain(error) from None

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        from redelivery.spark.letters_stream import DeadLetterStreamReader  # noqa: PLC0415 - see above

        try:
            return DeadLetterStreamReader(read_read_options(self.options), schema)
        except RedeliveryError as error:
            raise plain(error) from None

    def writer(self, schema: StructType, overwrite: bool) -> RedeliveryWriter:  # noqa: FBT001 - Spark's signature
        try:
            _refuse_overwrite(overwrite=overwrite)
            job = Job.plan(read_write_options(self.options), schema)
            _log_to_stderr()
            preflight(job)
            return RedeliveryWriter(job)
        except RedeliveryError as error:
            raise plain(error) from None

    # Spark calls this by keyword.
    def streamWriter(self, schema: StructType, overwrite: bool) -> RedeliveryStreamWriter:  # noqa: FBT001, N802
        try:
            if overwrite:
                raise ConfigurationError(
                    'only rows that are new can be sent: use the output mode "append", the default'
                )
            ours = {name: value for name, value in self.options.items() if name.lower() not in _SPARKS_OWN}
            job = Job.plan(read_write_options(ours), schema, stream=True)
            if _plans_a_query() and self.options not in _looked:
                _log_to_stderr()
                preflight(job)
                _looked.append(dict(self.options))
            return RedeliveryStreamWriter(job)
        except RedeliveryError as error:
            raise plain(error) from None


def _refuse_overwrite(*, overwrite: bool) -> None:
    if overwrite:
        raise ConfigurationError(
            'mode "overwrite" would have to delete what others may be reading; messages can only be appended: '
            'say .mode("append")'
        )


@dataclass
class TaskDone(WriterCommitMessage):
    """A task's message to the driver: its account."""

    report: DeliveryReport
    speculation: bool
    started: float
    redelivered: Redelivered
    spark: Mapping[str, str]

    @classmethod
    def of(cls, job: Job, iterator: Iterator[RecordBatch]) -> TaskDone:
        """Deliver a partition."""
        report, redelivered = deliver_partition(job, iterator)
        return cls(
            report,
            speculation=local_property("spark.speculation") == "true",
            started=job.started,
            redelivered=redelivered,
            spark={name: text for name in SETTINGS if (text := local_property(name)) is not None},
        )


class RedeliveryWriter(DataSourceArrowWriter):
    """One batch write. Pickled once, so its job is the same for all tasks, their retries and the commit."""

    def __init__(self, job: Job) -> None:
        self.job = job

    def write(self, iterator: Iterator[RecordBatch]) -> WriterCommitMessage:  # type: ignore[override]  # pyspark's own
        try:
            return TaskDone.of(self.job, iterator)
        except RedeliveryError as error:
            raise plain(error) from None

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        _log_to_stderr()
        done = _done(messages)
        try:
            with traced("commit", parent=self.job.settings.traceparent, run=self.job.run):
                finish(
                    self.job,
                    (each.report for each in done),
                    redelivered=(each.redelivered for each in done),
                    speculation=any(each.speculation for each in done),
                    spark=_settings(done),
                )
        except RedeliveryError as error:
            raise plain(error) from None

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        _log_abort(messages, self.job, self.job.run)


class RedeliveryStreamWriter(StreamArrowWriter):
    """One micro-batch of a stream.

    Created for each batch, and once more for its commit. So a batch is named by what Spark passes to its tasks, and the
    accounts carry what the commit needs to know of them.
    """

    def __init__(self, job: Job) -> None:
        self.job = job

    def write(self, iterator: Iterator[RecordBatch]) -> WriterCommitMessage:  # type: ignore[override]  # pyspark's own
        try:
            return TaskDone.of(self.job.as_micro_batch(), iterator)
        except RedeliveryError as error:
            raise plain(error) from None

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        _log_to_stderr()
        done = _done(messages)
        run = next((each.report.run for each in done), f"-{batchId}")
        started = min((each.started for each in done), default=self.job.started)
        try:
            with traced("commit", parent=self.job.settings.traceparent, run=run):
                finish(
                    replace(self.job, run=run, started=started),
                    (each.report for each in done),
                    redelivered=(each.redelivered for each in done),
                    speculation=any(each.speculation for each in done),
                    about={"query": run.removesuffix(f"-{batchId}"), "batch": batchId},
                    spark=_settings(done),
                )
        except RedeliveryError as error:
            raise plain(error) from None

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        _log_abort(messages, self.job, f"micro-batch {batchId}")


def _done(messages: list[WriterCommitMessage | None]) -> list[TaskDone]:
    """Return the accounts of the tasks that succeeded."""
    return [each for each in messages if isinstance(each, TaskDone)]


def _settings(done: list[TaskDone]) -> Mapping[str, str]:
    """Return Spark's settings as a task saw them: the process that commits does not see them."""
    return next((each.spark for each in done), {})


def _log_abort(messages: list[WriterCommitMessage | None], job: Job, run: str) -> None:
    with contextlib.suppress(Exception):  # Spark would show this in place of the job's own error
        _log_to_stderr()
        log.warning("%s", _abort_warning(_done(messages), len(messages), job, run))


def _abort_warning(done: list[TaskDone], tasks: int, job: Job, run: str) -> str:
    """Log what is known of a write that failed: a failed task leaves no account but its error."""
    where, failed = redact(job.settings.url), tasks - len(done)
    unknown = f"what {failed} of its {tasks} tasks delivered before they ended is not known here: see their errors"
    if not done:
        return f"the write of run {run} to {where} failed; {unknown}"
    report = DeliveryReport.total([each.report for each in done], run=run)
    report.primary = report.primary or where
    known = f"what its finished tasks delivered stays delivered: {report}"
    return f"the write failed; {known}" + (f"; {unknown}" if failed else "")


def _log_to_stderr() -> None:
    """Write to stderr: the driver-side helper process has no logging, and its stderr is Spark's."""
    if not log.hasHandlers():
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        log.addHandler(handler)
        log.setLevel(logging.INFO)
