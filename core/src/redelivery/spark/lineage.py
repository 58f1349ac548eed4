"""OpenLineage events of a write: its destination and its dead letter places are outputs, with row counts.

Emitted when the write is committed, where `openlineage-python` is installed and configured by its own environment
variables. Never fails the write, and never takes longer than `PATIENCE`.
"""

from __future__ import annotations

import logging
import os
import threading
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from redelivery.base.urls import redact
from redelivery.sending.report import DeliveryReport
from redelivery.spark.observing import opened

log = logging.getLogger("redelivery.spark")

#: How long a commit waits for its events to be taken, in seconds.
PATIENCE: Final = 10.0
#: Variables of the client; without any of them it is not configured.
_VARIABLES: Final = ("OPENLINEAGE_URL", "OPENLINEAGE_CONFIG")
_DYNAMIC: Final = "OPENLINEAGE__"
#: Names the parent run: Airflow's integration sets it.
_PARENT: Final = "OPENLINEAGE_PARENT_ID"
#: Settings of Spark that name the job and its parent, as OpenLineage's own integration for Spark reads them.
SETTINGS: Final = (
    "spark.app.name",
    "spark.openlineage.namespace",
    "spark.openlineage.parentJobNamespace",
    "spark.openlineage.parentJobName",
    "spark.openlineage.parentRunId",
)
_PRODUCER: Final = "https://pypi.org/project/redelivery"


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """The facts about a write that has succeeded.

    Attributes:
        url: the destination.
        report: the account.
        started: when it began, seconds since the epoch.
        stream: it is a micro-batch.
        options: the destination's client options; only its name is asked for.
        settings: those of `SETTINGS` that Spark has.
    """

    url: str
    report: DeliveryReport
    started: float
    stream: bool = False
    options: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)


def emit(write: Write) -> None:
    """Tell OpenLineage of a write. Never raises; a failure is one line of the log."""
    if not _is_configured():
        return
    failed: list[str] = []

    def work() -> None:
        try:
            _emit(write)
        except ImportError:
            failed.append("openlineage-python is not installed: pip install 'redelivery[lineage]'")
        except Exception as error:  # noqa: BLE001 - of a client or its server, which must not fail a write
            failed.append(f"{type(error).__name__}: {redact(' '.join(str(error).split()))[:300]}")

    thread = threading.Thread(target=work, name="redelivery-lineage", daemon=True)
    thread.start()
    thread.join(PATIENCE)
    if thread.is_alive():
        failed.append(f"no answer within {PATIENCE:g} s")
    for why in failed[:1]:
        log.warning("the lineage of run %s was not emitted: %s", write.report.run, why)


def _is_configured() -> bool:
    if os.environ.get("OPENLINEAGE_DISABLED", "").strip().lower() == "true":
        return False
    return any(os.environ.get(name) for name in _VARIABLES) or any(name.startswith(_DYNAMIC) for name in os.environ)


def _emit(write: Write) -> None:
    from openlineage.client import OpenLineageClient  # noqa: PLC0415 - an extra
    from openlineage.client.event_v2 import Job, Run, RunEvent, RunState  # noqa: PLC0415 - an extra
    from openlineage.client.facet_v2 import job_type_job  # noqa: PLC0415 - an extra

    client = OpenLineageClient()
    job = Job(
        namespace=(
            write.settings.get("spark.openlineage.namespace") or os.environ.get("OPENLINEAGE_NAMESPACE") or "default"
        ),
        name=_job_name(write),
        facets={
            "jobType": job_type_job.JobTypeJobFacet(
                processingType="STREAMING" if write.stream else "BATCH", integration="REDELIVERY", jobType="WRITE"
            )
        },
    )
    run = Run(runId=run_id(write.report.run), facets=_run_facets(write.settings))
    began, ended = (datetime.fromtimestamp(at, UTC).isoformat() for at in (write.started, _now()))
    try:
        client.emit(RunEvent(eventType=RunState.START, eventTime=began, run=run, job=job, producer=_PRODUCER))
        client.emit(
            RunEvent(
                eventType=RunState.COMPLETE,
                eventTime=ended,
                run=run,
                job=job,
                producer=_PRODUCER,
                outputs=_outputs(write),
            )
        )
    finally:
        client.close(PATIENCE / 2)


def _now() -> float:
    return datetime.now(UTC).timestamp()


def _job_name(write: Write) -> str:
    name = dataset(write.url, write.options)[1]
    app = write.settings.get("spark.app.name")
    return f"{app}.redelivery.{name}" if app else f"redelivery.{name}"


def run_id(run: str) -> str:
    """Return the UUID of a run: the same for the same run."""
    try:
        return str(uuid.UUID(run))
    except ValueError:
        return str(uuid.uuid5(uuid.NAMESPACE_URL, f"redelivery:{run}"))


def _run_facets(settings: Mapping[str, str]) -> dict[str, Any]:
    """Return the facet that names the parent run: from Spark's settings, else from the environment."""
    from openlineage.client.facet_v2 import parent_run  # noqa: PLC0415 - an extra

    names = ("parentJobNamespace", "parentJobName", "parentRunId")
    space, job, run = (settings.get(f"spark.openlineage.{name}") for name in names)
    if not run:
        space, _, rest = os.environ.get(_PARENT, "").partition("/")
        job, _, run = rest.rpartition("/")
    try:
        parent = str(uuid.UUID(run or ""))
    except ValueError:
        return {}
    if not job:
        return {}
    return {
        "parent": parent_run.ParentRunFacet(
            run=parent_run.Run(runId=parent), job=parent_run.Job(namespace=space or "default", name=job)
        )
    }


def _outputs(write: Write) -> list[Any]:
    from openlineage.client.event_v2 import OutputDataset  # noqa: PLC0415 - an extra
    from openlineage.client.facet_v2 import output_statistics_output_dataset as statistics  # noqa: PLC0415 - an extra

    outputs = []
    for url, account in write.report.destinations.items():
        own = url == write.report.primary
        if not own and not account.delivered:
            continue  # a sink that was not needed
        namespace, name = dataset(write.url if own else url, write.options if own else {})
        facet = statistics.OutputStatisticsOutputDatasetFacet(rowCount=account.delivered, size=account.bytes)
        outputs.append(OutputDataset(namespace=namespace, name=name, outputFacets={"outputStatistics": facet}))
    return outputs


def dataset(url: str, options: Mapping[str, str] | None = None) -> tuple[str, str]:
    """Return the namespace and name of a place, as OpenLineage's naming of data sets has them. They hold no secret.

    The namespace is the scheme with the first host, or `file` for a place of one host. The name is the native one,
    behind what else tells it apart.
    """
    broker = opened(url, options)
    parts = urlsplit(url if broker is None else broker.canonical_url or url)
    host = parts.netloc.rpartition("@")[2].partition(",")[0]
    path = unquote(parts.path)
    native = "" if broker is None else broker.destination_name or ""
    if not native:
        native = "/".join(unquote(each.partition("=")[2]) for each in parts.query.split("&") if each)
    if broker is not None and not broker.capabilities.networked:
        return "file", path if path.rpartition("/")[2] == native or not native else f"{path}/{native}"
    if not host and broker is not None and broker.hosts:
        host = broker.hosts[0]
    before = path.strip("/")
    name = native if before in {"", native} else f"{before}/{native}" if native else before
    return f"{parts.scheme}://{host}", redact(name)
