"""`Engine`: moves rows through the lanes, one turn at a time, and keeps the account.

Single-threaded and without a clock of its own, so that a test can drive it turn by turn against a model. What follows
from an error is `policy.decide`'s to say; the engine carries it out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from redelivery import policy
from redelivery.clock import Clock
from redelivery.context import Stage
from redelivery.delivery.lane import Landed, Lane
from redelivery.delivery.record import Origin, Record
from redelivery.delivery.tolerance import Tolerance
from redelivery.errors import BrokerError, DeliveryFailed, Permanent, ToleranceExceeded
from redelivery.message import Batch, Message
from redelivery.report import DeliveryReport
from redelivery.settings import redact
from redelivery.spec import DeliverySpec

log = logging.getLogger("redelivery.delivery")

#: Failures that are logged one by one where `errors.log.enable` is not set; the report has them all.
_LOGGED = 5


class Engine:
    """Delivers batches to the first lane; what fails there for good goes down the others, which are its sinks.

    Args:
        lanes: the destination, then the sinks in the order in which they are tried.
        spec: the job's spec.
        origin: where the rows come from.
        clock: the time.
        random: gives a number in [0, 1), for jitter.
    """

    def __init__(
        self, lanes: Sequence[Lane], spec: DeliverySpec, origin: Origin, clock: Clock, random: Callable[[], float]
    ) -> None:
        self.report = DeliveryReport(primary=lanes[0].url, run=origin.run)
        self._lanes = lanes
        self._spec = spec
        self._origin = origin
        self._clock = clock
        self._random = random
        self._tolerance = Tolerance(spec)
        for lane in lanes:
            self.report.at(lane.url)

    @property
    def idle(self) -> bool:
        """Whether every row taken is accounted for."""
        return all(lane.idle for lane in self._lanes)

    @property
    def next_due(self) -> float | None:
        """When the first waiting record is due, monotonic seconds."""
        return min((lane.next_due for lane in self._lanes if lane.next_due is not None), default=None)

    @property
    def busy(self) -> bool:
        """Whether anything is in flight."""
        return any(lane.busy for lane in self._lanes)

    def can_take(self, batch: Batch) -> bool:
        """Whether there is room for a batch: in flight, and among what waits."""
        return not any(lane.crowded for lane in self._lanes) and self._lanes[0].has_room(batch.nbytes)

    def take(self, batch: Batch) -> None:
        """Send a batch of fresh rows."""
        self.report.rows += len(batch)
        self._lanes[0].send(batch)

    def reject(self, message: Message, error: Permanent, stage: Stage) -> None:
        """Account for a row that could not become a message: `message` stands for it on its way to the sinks."""
        now_ms = self._clock.wall_ms()
        record = Record(message=message, outgoing=message, stage=stage, first_failure_ms=now_ms, last_failure_ms=now_ms)
        self.report.rows += 1
        self.report.record_failures += 1
        self.report.last_error_ms = now_ms
        self.give_up(record, error, "it cannot become a message")

    def give_up(self, record: Record, error: BrokerError, why: str) -> None:
        """A record failed for good: tolerate it and hand it to the sinks, or fail the job.

        Raises:
            DeliveryFailed
        """
        record.primary = error
        record.why = why
        self.report.record_errors += 1
        if not self._spec.tolerates:
            raise self._failure(record, "errors.tolerance is 'none'")
        exceeded = self._tolerance.count(self._clock.monotonic())
        if exceeded:
            raise ToleranceExceeded(f"{exceeded}; the last one: {self._story(record)}") from error
        self._descend(record, 1)

    def turn(self, wait: float) -> None:
        """Send what is due, then settle what has been settled, waiting up to `wait` seconds for the first of it.

        Raises:
            DeliveryFailed, BrokerError (a fatal one), ContractViolation: the job must fail.
        """
        for lane in self._lanes:
            lane.resend_due()
        for index, lane in enumerate(self._lanes):
            landed = lane.collect(wait if lane.busy else 0.0)
            for each in landed:
                self._settle(index, lane, each)
            if landed:
                wait = 0.0

    # --- settling ---

    def _settle(self, index: int, lane: Lane, landed: Landed) -> None:
        flight = landed.flight
        good = len(flight.batch) - len(landed.failures)
        account = self.report.at(lane.url)
        account.delivered += good
        account.duplicates += landed.duplicates
        if not landed.failures:
            account.bytes += flight.batch.nbytes
        elif good:
            account.bytes += flight.batch.nbytes * good // len(flight.batch)
        if index:
            self._settle_letters(flight.records or (), landed.failures, lane)
        for row, error in landed.failures.items():
            self._failed(index, lane, self._record(landed, row), error)

    def _record(self, landed: Landed, row: int) -> Record:
        """The record of a failed row, made now if this was its first attempt."""
        flight = landed.flight
        if flight.records is not None:
            return flight.records[row]
        message = flight.batch.row(row)
        now_ms = self._clock.wall_ms()
        return Record(
            message=message, outgoing=message, attempts=1, first_attempt=flight.sent_at, first_failure_ms=now_ms
        )

    def _settle_letters(self, records: Sequence[Record], failures: dict[int, BrokerError], lane: Lane) -> None:
        """Count the letters that a sink has confirmed: only now are their rows handled."""
        self.report.sink_requests += len(records)
        self.report.sink_failures += len(failures)
        for row, record in enumerate(records):
            if row in failures or record.void:
                continue
            self.report.dead_lettered += 1
            self.report.because(record.reason)
            self._log(record, f"dead-lettered to {lane.url}")
            record.handled(record)

    def _failed(self, index: int, lane: Lane, record: Record, error: BrokerError) -> None:
        """One attempt of one record failed: carry out what the policy decides."""
        now = self._clock.monotonic()
        if index == 0:
            self.report.record_failures += 1
            record.last_failure_ms = self.report.last_error_ms = self._clock.wall_ms()
        decision = policy.decide(
            lane.spec,
            error,
            attempts=record.attempts,
            first_attempt=record.first_attempt,
            isolated=record.isolated,
            now=now,
            random=self._random,
        )
        if isinstance(decision, policy.TryAgain):
            if index == 0:
                self.report.retries += 1
                self.report.retried += not record.retried
                record.retried = True
            lane.wait(record, decision.at)
        elif isinstance(decision, policy.Isolate):
            record.isolated = record.isolating = True
            lane.wait(record, now)
        elif index == 0:
            if isinstance(decision, policy.Abort):
                raise error
            record.sent = record.attempts
            self.give_up(record, error, decision.why)
        else:
            if isinstance(decision, policy.Abort):
                lane.broken = error
            record.sink_errors.append(f"{lane.url}: {error}")
            self._descend(record, index + 1)

    # --- giving up ---

    def _descend(self, record: Record, index: int) -> None:
        """Hand the record to the sink at `index`, or the first one behind it that works."""
        for lane in self._lanes[index:]:
            if lane.broken is not None:
                record.sink_errors.append(f"{lane.url}: {lane.broken}")
                continue
            context = record.context(self._origin, broker=self._lanes[0].name, destination=self._lanes[0].url)
            record.enter(record.letter(context, self._spec, lane.capabilities))
            lane.wait(record, self._clock.monotonic())
            return
        if self._spec.dead_letter_sink:
            raise self._failure(record, "no dead letter sink could take it")
        self.report.skipped += 1
        self.report.because(record.reason)
        self._log(record, "skipped (allowSkip)")
        record.handled(record)

    def _failure(self, record: Record, what: str) -> DeliveryFailed:
        """The primary error as a failure of the job, its text telling all; what the sinks said as notes too."""
        failure = DeliveryFailed(f"{self._story(record)}; {what}")
        failure.__cause__ = record.primary
        for said in record.sink_errors:
            failure.add_note(f"dead letter sink {said}")
        return failure

    def _story(self, record: Record) -> str:
        error = record.primary
        sinks = "".join(f"; dead letter sink {said}" for said in record.sink_errors)
        name = f"record {record.message.id!r}" if record.message.id else "a record"
        tried = f" after {record.sent} attempts" if record.sent > 1 else ""
        kind = error.kind if error else ""
        return f"{name} could not be delivered to {self.report.primary}{tried}: {error} ({kind}; {record.why}){sinks}"

    def _log(self, record: Record, fate: str) -> None:
        self.report.errors_logged += 1
        if self._spec.log_enable is False or (self._spec.log_enable is None and self.report.errors_logged > _LOGGED):
            return
        extra = ""
        if self._spec.log_include_messages:
            extra = f"; message: {record.message!r}"
        log.warning("%s", redact(f"{fate}: {self._story(record)}{extra}"))
        if self._spec.log_enable is None and self.report.errors_logged == _LOGGED:
            log.warning("further failures are counted, not logged, unless errors.log.enable is set")
