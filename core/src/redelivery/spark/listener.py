"""`DeliveryListener`: shows the account of each micro-batch in the process that runs the query."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql.streaming.listener import StreamingQueryListener

from redelivery.sending.report import DeliveryReport
from redelivery.spark.job import report_file
from redelivery.spark.observing import count

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import QueryProgressEvent, QueryStartedEvent, QueryTerminatedEvent

log = logging.getLogger("redelivery.spark")


class DeliveryListener(StreamingQueryListener):
    """Shows what became of the rows of each micro-batch: `spark.streams.addListener(DeliveryListener(folder))`.

    Spark commits a micro-batch in a separate process, which writes the report; this reads it.

    Args:
        reports: the folder that the query's option `reportPath` names, on this machine.
        show: called with each report; None: it is logged as one line.
        publish: add the metrics up in this process's OpenTelemetry SDK. The committing processes publish them, too, if
            they have an SDK: each begins at 0.
    """

    def __init__(
        self, reports: str | Path, *, show: Callable[[DeliveryReport], object] | None = None, publish: bool = False
    ) -> None:
        super().__init__()
        self._folder = Path(reports)
        self._show = show or (lambda report: log.info("%s", report))
        self._publish = publish

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        """Do nothing."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        """Show the report of the micro-batch, if the query writes one here."""
        path = report_file(self._folder, f"{event.progress.id}-{event.progress.batchId}")
        try:
            report = DeliveryReport.from_dict(json.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return  # another query's, or a trigger without rows
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.warning("the report %s cannot be read: %s", path, error)
            return
        if self._publish:
            count(report, report.primary)
        self._show(report)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's name
        """Do nothing."""
