"""One write as plain data (`Job`), and the work of each of its tasks (`deliver_partition`).

The same for `df.write`, `deliver()` and micro-batches. Must not know how Spark calls it, nor import what only tasks
need: Spark plans and commits each write in its own short process.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import re
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark import TaskContext
from pyspark.sql.types import StructType

from redelivery import registry, sending
from redelivery.base.urls import has_scheme, redact
from redelivery.contract.context import qualified
from redelivery.errors import ConfigurationError, RedeliveryError
from redelivery.policy.rate import RateLimit
from redelivery.sending import Delivery, Origin
from redelivery.sending.report import DeliveryReport, settle_job
from redelivery.spark import columns, lineage, observing
from redelivery.spark.connections import task_connections
from redelivery.spark.options import WriteSettings
from redelivery.spark.redelivered import Redelivered, RedeliveredRows, remove
from redelivery.telemetry.owned import traced

if TYPE_CHECKING:
    from redelivery.spark.encoding import RejectedRows

log = logging.getLogger("redelivery.spark")

#: A batch is cut so that about this many are in flight at the bound.
_BATCHES_IN_FLIGHT: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One write, as it travels to its tasks.

    Attributes:
        settings: the options of the write.
        layout: the meaning of the columns.
        run: names the job in letters, reports and ids; survives task retries. A micro-batch's name is known to its
            tasks only (`as_micro_batch`); until then it is empty.
        started: `time.time()` when it began.
        position: where the column is that says which letter a row stands for; None: the rows stand for none.
        rows: where the other columns are that are part of the rows; None: all.
    """

    settings: WriteSettings
    layout: columns.Layout
    run: str
    started: float = field(default_factory=time.time)
    position: int | None = None
    rows: tuple[int, ...] | None = None

    @classmethod
    def plan(cls, settings: WriteSettings, schema: StructType, *, stream: bool = False) -> Job:
        """Check the schema against the settings.

        Args:
            settings: what was asked for.
            schema: of the DataFrame.
            stream: this is a micro-batch of a streaming query.

        Raises:
            ConfigurationError, Unsupported: nothing was sent.
        """
        if stream and settings.write_id is not None:
            raise ConfigurationError(
                "writeId names one batch write; a stream's micro-batches are named by its query and their number, "
                "which repeat by themselves: drop it"
            )
        plugin = settings.plugin
        position, rows = None, None
        if settings.redelivered is not None:
            names = [each.name.lower() for each in schema.fields]
            schema, position = columns.without_letters(schema)
            rows = tuple(at for at, name in enumerate(names) if name not in columns.READ_ONLY)
        layout = columns.resolve(
            schema,
            plugin.capabilities,
            broker=plugin.name,
            content_mode=settings.content_mode,
            require_attributes=settings.require_attributes,
        )
        if settings.flow.ordering == "key" and "key" not in layout.message:
            raise ConfigurationError("ordering=key needs a column `key`, and these rows have none")
        run = "" if stream else settings.write_id or uuid.uuid4().hex
        return cls(settings=settings, layout=layout, run=run, position=position, rows=rows)

    def as_micro_batch(self) -> Job:
        """Return the job of the micro-batch that the running task belongs to; the same when the batch is replayed."""
        query, batch = local_property("sql.streaming.queryId"), local_property("streaming.sql.batchId")
        if query is None or batch is None:
            raise ConfigurationError("Spark does not tell which micro-batch this is; write it by foreachBatch")
        return replace(self, run=f"{query}-{batch}")


def preflight(job: Job) -> None:
    """Open the destination and its sinks before any task, and close them again. Sends nothing.

    A column that may be mistyped is logged. So is a place that is only down now, or for which the driver has no secret:
    the tasks try it by the spec.

    Raises:
        RedeliveryError: a place can never work.
    """
    settings = job.settings
    if misspelt := columns.maybe_misspelt(job.layout):
        log.warning("%s", misspelt)
    if not settings.preflight:
        return
    try:
        doubts = sending.preflight(
            settings.url, settings.spec, options=settings.client, shared_mount=settings.shared_mount
        )
    except RedeliveryError as error:
        raise plain(
            error, "nothing was sent (the driver looked before any task; preflight=false goes without)"
        ) from None
    for doubt in doubts:
        log.warning("preflight: nothing is known of %s; the tasks will try it", doubt)


def plain(error: RedeliveryError, more: str = "") -> RedeliveryError:
    """Return an error without traceback and chain: Spark shows those in full, and chained or noted errors twice."""
    return type(error)(f"{error}; {more}" if more else str(error))


def deliver_partition(job: Job, batches: Iterable[Any]) -> tuple[DeliveryReport, Redelivered]:
    """Deliver one partition, on the worker that has it. Opens nothing for a partition without rows.

    Args:
        job: the write.
        batches: Arrow record batches, as Spark gives them.

    Returns:
        The account of this task, and the letters that its rows redeliver.

    Raises:
        RedeliveryError: the task must fail; the text holds everything, including this task's own account.
    """
    opened: list[Delivery] = []
    redelivered = RedeliveredRows()
    try:
        with traced(f"deliver {job.settings.plugin.name}", parent=job.settings.traceparent, run=job.run):
            return _deliver(job, batches, opened, redelivered), redelivered.result()
    except RedeliveryError as error:
        raise plain(error, _account_of(opened)) from None


def _deliver(job: Job, batches: Iterable[Any], opened: list[Delivery], redelivered: RedeliveredRows) -> DeliveryReport:
    """Deliver as `deliver_partition` does; call `opened` with the delivery, once it exists."""
    settings = job.settings
    rows = pieces(
        batches,
        most_bytes=settings.bounds.in_flight_bytes // _BATCHES_IN_FLIGHT,
        most_rows=min(
            RateLimit(settings.flow.rows_per_second).piece or settings.bounds.in_flight_records,
            max(1, settings.bounds.in_flight_records // _BATCHES_IN_FLIGHT),
        ),
    )
    first = next(rows, None)
    if first is None:
        return DeliveryReport(primary=redact(settings.url), run=job.run)
    from redelivery.spark.encoding import Encoder  # noqa: PLC0415 - only where there are rows: it is slow to import

    origin = _origin(job)
    refuse_one_host(settings.url, local_property("spark.master"), shared_mount=settings.shared_mount)
    for sink in settings.spec.dead_letter_sink:
        if has_scheme(sink.uri):
            refuse_one_host(sink.uri, local_property("spark.master"), shared_mount=settings.shared_mount)
    with (
        task_connections() as connection_factory,
        Delivery.open(
            settings.url,
            settings.spec,
            options=settings.client,
            origin=origin,
            bounds=settings.bounds,
            flow=settings.flow,
            connection_factory=connection_factory,
            skipped=redelivered.skip,
        ) as delivery,
    ):
        opened.append(delivery)
        encoder = Encoder(
            job.layout,
            delivery.capabilities,
            prefix=f"{job.run}-{origin.partition}",
            source=f"redelivery:{job.run}",
            require_attributes=settings.require_attributes,
        )
        for piece in itertools.chain([first], rows):
            body = piece if job.rows is None else piece.select(list(job.rows))
            letters = None if job.position is None else iter(piece.column(job.position).to_pylist())
            # A bad row's successors follow it, and its predecessors do not.
            parts = encoder.in_order(body) if settings.flow.park_successors else [encoder.encode(body)]
            for batch, rejected in parts:
                if letters is not None:
                    redelivered.add(
                        _handed_over(letters, encoder.position, 0 if batch is None else len(batch), rejected)
                    )
                if batch is not None:
                    delivery.write(batch)
                for each in rejected:
                    delivery.reject(each, component=qualified(Encoder))
        return delivery.finish()


def _handed_over(
    letters: Iterator[str | None], end: int, good: int, rejected: Sequence[RejectedRows]
) -> list[str | None]:
    """Return the letters of the next rows in the order in which they are handed over: the good ones, then the others.

    Args:
        letters: of the rows as they lie, from here on.
        end: the position behind these rows.
        good: how many rows are good.
        rejected: the others.
    """
    positions = [each for rows in rejected for each in rows.positions]
    first = end - good - len(positions)
    found = list(itertools.islice(letters, good + len(positions)))
    bad = [each - first for each in positions]
    at_fault = set(bad)
    return [*(each for index, each in enumerate(found) if index not in at_fault), *(found[index] for index in bad)]


def _account_of(opened: Iterable[Delivery]) -> str:
    """Return what a failed task has delivered, for the one line that its user reads."""
    for delivery in opened:
        report = delivery.so_far
        return (
            f"of this task's rows {report.delivered} were delivered and {report.dead_lettered} dead-lettered, "
            "and stay so"
        )
    return "this task sent nothing"


def finish(
    job: Job,
    reports: Iterable[DeliveryReport],
    *,
    redelivered: Iterable[Redelivered] = (),
    speculation: bool,
    about: Mapping[str, Any] | None = None,
    spark: Mapping[str, str] | None = None,
) -> DeliveryReport:
    """End a job whose tasks have all succeeded: add up, log, write the report, publish it, apply the job's limits.

    Args:
        job: the write.
        reports: of its tasks.
        redelivered: the letters that their rows redeliver: they are removed.
        speculation: whether Spark may have run a task twice.
        about: further members of the written report.
        spark: those of Spark's settings that name the job in lineage.

    Raises:
        ToleranceExceeded: too many records of the job failed. Rows already delivered stay delivered.
        RedeliveryError: letters could not be removed.
    """
    parts = list(reports)
    if job.settings.redelivered is not None:
        remove(job.settings.redelivered, redelivered)
    seconds = time.time() - job.started
    report = DeliveryReport.total(parts, run=job.run, seconds=seconds)
    report.primary = report.primary or redact(job.settings.url)
    if speculation:
        log.warning(
            "spark.speculation is on: a task that runs twice sends its rows twice (under the same ids); "
            "switch it off for jobs that write messages"
        )
    log.info("%s", report)
    if job.settings.report_path:
        _write({**(about or {}), **report.to_dict()}, report_file(Path(job.settings.report_path), report.run))
    observing.count(report, job.settings.url, job.settings.client)
    settle_job(job.settings.spec, parts, run=job.run, seconds=seconds)
    lineage.emit(
        lineage.Write(
            url=job.settings.url,
            report=report,
            started=job.started,
            stream=about is not None,
            options=job.settings.client,
            settings=spark or {},
        )
    )
    return report


def refuse_one_host(url: str, master: str | None, *, shared_mount: bool) -> None:
    """Refuse a destination of one host on a cluster of several.

    Raises:
        ConfigurationError: each worker would write its own file.
    """
    plugin = registry.installed().by_url(url)
    if plugin.capabilities.networked or shared_mount or master is None or master.startswith("local"):
        return
    raise ConfigurationError(
        f"{redact(url)} is a file of one host, and this Spark runs on several ({master}): each worker would write its "
        "own; use a broker, or set sharedMount=true where the path is one mount on all hosts"
    )


def local_property(name: str) -> str | None:
    """Return a setting of the running job, as Spark passes it to its tasks; None outside a task."""
    context = TaskContext.get()
    value: str | None = None if context is None else context.getLocalProperty(name)
    return value


def _origin(job: Job) -> Origin:
    context = TaskContext.get()
    return Origin(
        run=job.run,
        query=local_property("sql.streaming.queryId"),
        batch=local_property("streaming.sql.batchId"),
        partition=0 if context is None else context.partitionId(),
        configs=job.settings.configs,
    )


def pieces(batches: Iterable[Any], *, most_bytes: int, most_rows: int) -> Iterator[Any]:
    """Return batches that have rows, cut to about `most_bytes`, and to `most_rows`.

    Args:
        batches: as Spark gives them: a slice would count as much as what it is cut from.
        most_bytes: of a piece.
        most_rows: of a piece.
    """
    for batch in batches:
        # Not `nbytes`: it reads the offsets of empty lists and maps, which Spark 4.0 leaves out, and so may crash.
        rows, held = batch.num_rows, batch.get_total_buffer_size()
        size = max(1, min(rows // max(1, -(-held // max(1, most_bytes))), most_rows))
        for start in range(0, rows, size):
            yield batch.slice(start, size)


def report_file(path: Path, run: str) -> Path:
    """Return where a report goes: into a folder under its run's name, else to the given file."""
    return path / f"{re.sub('[^A-Za-z0-9._-]', '_', run)}.json" if path.is_dir() else path


def _write(report: Mapping[str, Any], path: Path) -> None:
    """Write the report as JSON, whole or not at all. The rows are delivered by now, so this never fails the job."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        partial.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        log.error("the report could not be written to %s: %s; it is: %s", path, error, report)  # noqa: TRY400
