"""`DeliveryReport`: the account of a task or a job. Counts only; it grows with reasons, never with rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from html import escape
from typing import Any

from redelivery.contract.spec import DeliverySpec
from redelivery.errors import ToleranceExceeded
from redelivery.policy.tolerance import limit_of

#: Distinct reasons that a report keeps; the rest are counted under OTHER.
MAX_REASONS = 100
OTHER = "(other reasons)"


@dataclass(slots=True, kw_only=True)
class DestinationReport:
    """The account of one destination: the job's own, or a sink.

    Attributes:
        delivered: rows that the broker has confirmed.
        duplicates: of those, rows that the broker recognised by id and did not store again, if it reports them.
        bytes: of what was confirmed.
    """

    delivered: int = 0
    duplicates: int = 0
    bytes: int = 0


@dataclass(slots=True, kw_only=True)
class DeliveryReport:
    """The account. `rows == delivered + dead_lettered + skipped` holds at the end of every job that did not fail.

    Attributes:
        rows: rows taken in.
        retried: rows that needed more than one attempt.
        ambiguous: attempts at the destination for which it is unknown whether the row was stored. A reader finds at
            most so many duplicates there, task retries apart.
        dead_lettered: rows that a sink has confirmed.
        skipped: rows given up without a sink (only with allowSkip).
        reasons: dead-lettered and skipped rows by reason; at most MAX_REASONS, then OTHER.
        destinations: by redacted URL.
        run: names the job; letters carry it.
        seconds: wall time of the job, or of the task.
        tasks: how many tasks it adds up.
    The eight metrics of KIP-298 are `metrics()`:
        record_failures: every failed try; record_errors: final ones; retries; errors_logged;
        sink_requests, sink_failures; last_error_ms.
    """

    rows: int = 0
    retried: int = 0
    ambiguous: int = 0
    dead_lettered: int = 0
    skipped: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    destinations: dict[str, DestinationReport] = field(default_factory=dict)
    primary: str = ""
    run: str = ""
    seconds: float = 0.0
    tasks: int = 1
    record_failures: int = 0
    record_errors: int = 0
    retries: int = 0
    errors_logged: int = 0
    sink_requests: int = 0
    sink_failures: int = 0
    last_error_ms: int | None = None

    def __str__(self) -> str:
        """Return one line, as a log has it."""
        ambiguous = f"{self.ambiguous} attempts ambiguous, " if self.ambiguous else ""
        reasons = "".join(f"; {count} for {reason}" for reason, count in self.reasons.most_common(5))
        return (
            f"run {self.run}: {self.rows} rows: {self.delivered} delivered to {self.primary}, "
            f"{self.dead_lettered} dead-lettered, {self.skipped} skipped, {self.retried} retried, "
            f"{ambiguous}in {self.seconds:.1f} s{reasons}"
        )

    def _repr_html_(self) -> str:
        """Return a table, as a notebook shows it."""
        lines = [("rows", self.rows), (f"delivered to {self.primary}", self.delivered)]
        lines += [("dead-lettered", self.dead_lettered), ("skipped", self.skipped), ("retried", self.retried)]
        lines += [
            ("attempts ambiguous", self.ambiguous),
            *((f"for {name}", n) for name, n in self.reasons.most_common()),
        ]
        cells = "".join(f"<tr><th>{escape(name)}</th><td>{count:,}</td></tr>" for name, count in lines)
        return f"<table><caption>run {escape(self.run)}, {self.seconds:.1f} s</caption>{cells}</table>"

    @property
    def delivered(self) -> int:
        """Rows that the job's own destination has confirmed."""
        return self.at(self.primary).delivered

    @property
    def duplicates(self) -> int:
        """Of the delivered rows, those that the broker already had under the same id."""
        return self.at(self.primary).duplicates

    @property
    def accounted(self) -> bool:
        """Whether every row taken in was delivered, dead-lettered, or skipped and counted."""
        return self.rows == self.delivered + self.dead_lettered + self.skipped

    def at(self, destination: str) -> DestinationReport:
        """Return the account of one destination; create it if it does not exist."""
        return self.destinations.setdefault(destination, DestinationReport())

    def because(self, reason: str, count: int = 1) -> None:
        """Count `count` rows given up for a reason."""
        known = reason in self.reasons or len(self.reasons) < MAX_REASONS
        self.reasons[reason if known else OTHER] += count

    def metrics(self) -> dict[str, int]:
        """Return the eight metrics of KIP-298 under their own names; the timestamp is 0 where nothing failed."""
        return {
            "total-record-failures": self.record_failures,
            "total-record-errors": self.record_errors,
            "total-records-skipped": self.dead_lettered + self.skipped,
            "total-retries": self.retries,
            "total-errors-logged": self.errors_logged,
            "deadletterqueue-produce-requests": self.sink_requests,
            "deadletterqueue-produce-failures": self.sink_failures,
            "last-error-timestamp": self.last_error_ms or 0,
        }

    @classmethod
    def total(cls, parts: Iterable[DeliveryReport], *, run: str = "", seconds: float = 0.0) -> DeliveryReport:
        """Add up the reports of a job's tasks; `seconds` is the job's own wall time."""
        out = cls(run=run, seconds=seconds, tasks=0)
        for part in parts:
            out.primary = out.primary or part.primary
            out.tasks += part.tasks
            for name in _SUMMED:
                setattr(out, name, getattr(out, name) + getattr(part, name))
            for reason, count in part.reasons.items():
                out.because(reason, count)
            for url, account in part.destinations.items():
                mine = out.at(url)
                mine.delivered += account.delivered
                mine.duplicates += account.duplicates
                mine.bytes += account.bytes
            if part.last_error_ms is not None:
                out.last_error_ms = max(out.last_error_ms or 0, part.last_error_ms)
        return out

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready form; `from_dict` reads it back."""
        return {
            "run": self.run,
            "primary": self.primary,
            "rows": self.rows,
            "delivered": self.delivered,
            "retried": self.retried,
            "ambiguous": self.ambiguous,
            "dead_lettered": self.dead_lettered,
            "skipped": self.skipped,
            "accounted": self.accounted,
            "reasons": dict(self.reasons.most_common()),
            "destinations": {
                url: {"delivered": a.delivered, "duplicates": a.duplicates, "bytes": a.bytes}
                for url, a in self.destinations.items()
            },
            "seconds": round(self.seconds, 3),
            "tasks": self.tasks,
            "metrics": self.metrics(),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> DeliveryReport:
        """Return the report that `to_dict` wrote."""
        metrics = data["metrics"]
        return cls(
            rows=data["rows"],
            retried=data["retried"],
            ambiguous=data.get("ambiguous", 0),  # reports of 0.1 have none
            dead_lettered=data["dead_lettered"],
            skipped=data["skipped"],
            reasons=Counter(data["reasons"]),
            destinations={url: DestinationReport(**a) for url, a in data["destinations"].items()},
            primary=data["primary"],
            run=data["run"],
            seconds=data["seconds"],
            tasks=data["tasks"],
            record_failures=metrics["total-record-failures"],
            record_errors=metrics["total-record-errors"],
            retries=metrics["total-retries"],
            errors_logged=metrics["total-errors-logged"],
            sink_requests=metrics["deadletterqueue-produce-requests"],
            sink_failures=metrics["deadletterqueue-produce-failures"],
            last_error_ms=metrics["last-error-timestamp"] or None,
        )


@dataclass(slots=True, kw_only=True)
class SubscriptionReport:
    """The account of a subscription so far.

    Attributes:
        name: the subscription.
        received: messages leased, each delivery counted.
        accepted: handled. Messages that are given up count in `dead_lettered` or `skipped`.
        failures: handler runs that raised.
        retried: given back to come again after a delay.
        dead_lettered: a sink has confirmed them; includes those that a handler terminated.
        skipped: given up and removed, as the spec has no sink and allows that.
        terms: terminal nacks; messages that ran out of retries are not counted.
        lost: leases that ran out or were revoked; another consumer is responsible for the message now.
        given_back: not handled when the subscription stopped.
        outages: how often receiving paused: nearly everything failed for one reason, or the broker did not answer.
        outage_seconds: how long these lasted, added up; without one that goes on.
        delivery: the account of the sinks: the eight metrics of KIP-298 are its `metrics()`.
    """

    name: str = ""
    received: int = 0
    accepted: int = 0
    failures: int = 0
    retried: int = 0
    dead_lettered: int = 0
    skipped: int = 0
    terms: int = 0
    lost: int = 0
    given_back: int = 0
    outages: int = 0
    outage_seconds: float = 0.0
    delivery: DeliveryReport = field(default_factory=DeliveryReport)


_SUMMED = (
    "rows",
    "retried",
    "ambiguous",
    "dead_lettered",
    "skipped",
    "record_failures",
    "record_errors",
    "retries",
    "errors_logged",
    "sink_requests",
    "sink_failures",
)


def settle_job(spec: DeliverySpec, tasks: Iterable[DeliveryReport], *, run: str, seconds: float) -> DeliveryReport:
    """Add up the tasks of a job, and hold the job to the limit that applied to each of its tasks.

    Raises:
        ToleranceExceeded: the job as a whole failed more records than the spec tolerates. Rows already delivered stay
            delivered.
    """
    report = DeliveryReport.total(tasks, run=run, seconds=seconds)
    limit = limit_of(spec.tolerance_limit)
    if limit is not None and report.record_errors > limit:
        raise ToleranceExceeded(
            f"{report.record_errors} records of the job failed for good, "
            f"more than the errors.tolerance.limit of {limit}; "
            f"{report.delivered} of {report.rows} rows were delivered, {report.dead_lettered} dead-lettered"
        )
    return report
