"""`Engine`: moves rows through the send queues, one turn at a time, and keeps the account.

Single-threaded and without its own clock, so that a test can drive it turn by turn against a model. `policy.decide`
decides what follows from an error; the engine carries it out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from redelivery import policy
from redelivery.base.clock import Clock
from redelivery.base.urls import redact
from redelivery.codes import Code
from redelivery.contract.broker import Support
from redelivery.contract.context import ErrorContext, Stage
from redelivery.contract.message import Batch, Message
from redelivery.contract.spec import DeliverySpec
from redelivery.errors import Ambiguous, BrokerError, DeliveryFailed, NotSent, Permanent, ToleranceExceeded
from redelivery.policy.rate import RateLimit
from redelivery.policy.tolerance import Tolerance
from redelivery.sending.errorlog import ErrorLog
from redelivery.sending.ordering import KeyOrder
from redelivery.sending.record import Origin, Record
from redelivery.sending.report import DeliveryReport
from redelivery.sending.send_queue import BatchResult, SendQueue

#: How long `drain` waits at a time, in seconds.
_DRAIN_WAIT = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """In which order, and how fast, rows go to their destination.

    Attributes:
        ordering: "key": rows of one key in their order; "none".
        park_successors: with ordering "key", rows behind a dead-lettered one of their key are dead-lettered too.
        rows_per_second: of one task, retries not counted; None: unlimited.
    """

    ordering: Literal["none", "key"] = "none"
    park_successors: bool = False
    rows_per_second: float | None = None


class Engine:
    """Delivers batches to the first send queue. Rows that fail there permanently go to the others, which are its sinks.

    Args:
        send_queues: the destination, then the sinks in the order in which they are tried.
        spec: the job's spec.
        origin: where the rows come from.
        clock: the time.
        random: returns a number in [0, 1), for jitter.
        flow: in which order, and how fast.
        delivered: called with the positions of rows that the destination has confirmed; None: not reported.
    """

    def __init__(
        self,
        send_queues: Sequence[SendQueue],
        spec: DeliverySpec,
        origin: Origin,
        clock: Clock,
        random: Callable[[], float],
        flow: Flow | None = None,
        delivered: Callable[[list[int]], None] | None = None,
    ) -> None:
        flow = flow or Flow()
        self.report = DeliveryReport(primary=send_queues[0].url, run=origin.run)
        self._send_queues = send_queues
        self._spec = spec
        self._origin = origin
        self._clock = clock
        self._random = random
        self._tolerance = Tolerance(spec)
        self._errors = ErrorLog(spec, origin)
        self._delivered = delivered
        self._rate = RateLimit(flow.rows_per_second)
        self._order: KeyOrder | None = None
        if flow.ordering == "key":
            native = send_queues[0].capabilities.order == Support.NATIVE
            self._order = KeyOrder(native=native, park=flow.park_successors, release=self._send_soon)
            send_queues[0].keep_order(self._order)
        for send_queue in send_queues:
            self.report.at(send_queue.url)

    @property
    def idle(self) -> bool:
        """Whether every row taken is accounted for."""
        return all(send_queue.idle for send_queue in self._send_queues) and not (self._order and self._order.waiting)

    @property
    def next_due(self) -> float | None:
        """When the next timed work is due, monotonic seconds: a record is due, or the rate limit's debt is paid."""
        now = self._clock.monotonic()
        paid = self._rate.next(now)
        times = [send_queue.next_due for send_queue in self._send_queues] + [paid if paid > now else None]
        return min((each for each in times if each is not None), default=None)

    @property
    def busy(self) -> bool:
        """Whether anything is in flight."""
        return any(send_queue.busy for send_queue in self._send_queues)

    def can_take(self, batch: Batch) -> bool:
        """Whether another batch may be taken: within the bounds of memory, and under the rate limit."""
        destination, now = self._send_queues[0], self._clock.monotonic()
        if self._order is not None and destination.refused:
            return False
        if self._rate.next(now) > now or self.crowded or not destination.may_begin(now):
            return False
        records, nbytes = self._held_elsewhere()
        bounds = destination.bounds
        records, nbytes = records + len(batch), nbytes + batch.nbytes
        if records > len(batch) and (records > bounds.in_flight_records or nbytes > bounds.in_flight_bytes):
            return False
        return destination.has_room(records, nbytes)

    def _held_elsewhere(self) -> tuple[int, int]:
        """Records and bytes that are held, and not in flight to the destination."""
        held = [self._send_queues[0].waiting, *(send_queue.held for send_queue in self._send_queues[1:])]
        if self._order is not None:
            held.append((self._order.waiting, self._order.waiting_bytes))
        return sum(records for records, _ in held), sum(nbytes for _, nbytes in held)

    @property
    def crowded(self) -> bool:
        """Whether so much waits that no more rows may be taken."""
        waiting = self._order.waiting if self._order is not None else 0
        return waiting >= self._send_queues[0].bounds.waiting_records or any(
            send_queue.crowded for send_queue in self._send_queues
        )

    def take(self, batch: Batch) -> None:
        """Send a batch of fresh rows."""
        batch = replace(batch, first=self.report.rows, ordered=self._send_queues[0].ordered)
        self.report.rows += len(batch)
        self._rate.take(len(batch), self._clock.monotonic())
        if self._order is None:
            self._send_queues[0].send(batch)
        else:
            self._take_in_order(batch, self._order)

    def _take_in_order(self, batch: Batch, order: KeyOrder) -> None:
        admitted = order.admit(batch)
        if len(admitted.now) == len(batch):
            self._send_queues[0].send(batch)
            return
        for index in admitted.now:
            order.begin(self._fresh(batch, index))
        for index in admitted.later:
            order.wait(self._fresh(batch, index))
        for index in admitted.parked:
            self._park(self._fresh(batch, index))

    def _fresh(self, batch: Batch, index: int) -> Record:
        """Return the record of a row that was never tried."""
        message = batch.row(index)
        return Record(message=message, outgoing=message, position=batch.first + index)

    def _send_soon(self, record: Record) -> None:
        self._send_queues[0].wait(record, self._clock.monotonic())

    def _park(self, record: Record) -> None:
        """Dead-letter a row whose predecessor by key is dead: it goes where that one went."""
        record.sent = record.attempts - record.untried  # some were made, where it was held back only then
        record.last_failure_ms = self._clock.wall_ms()
        record.first_failure_ms = record.first_failure_ms or record.last_failure_ms
        self.give_up(record, Permanent("an earlier row of its key is dead-lettered", code=Code.PARKED), "it is parked")

    def reject(self, message: Message, error: Permanent, stage: Stage, component: str | None = None) -> None:
        """Account for a row that could not become a message: `message` stands for it on its way to the sinks.

        Args:
            message: the message that stands for the row.
            error: why.
            stage: where.
            component: fully qualified name of the code that failed to convert it.
        """
        now_ms = self._clock.wall_ms()
        record = Record(
            message=message,
            outgoing=message,
            position=self.report.rows,
            stage=stage,
            component=component,
            first_failure_ms=now_ms,
            last_failure_ms=now_ms,
        )
        self.report.rows += 1
        self.report.record_failures += 1
        self.report.last_error_ms = now_ms
        self.give_up(record, error, "it cannot become a message")

    def give_up(self, record: Record, error: BrokerError, why: str) -> None:
        """A record failed permanently: tolerate it and hand it to the sinks, or fail the job.

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
            self._log_end(record, exceeded)
            raise ToleranceExceeded(f"{exceeded}; the last one: {self._story(record)}") from error
        successors = self._order.given_up(record) if self._order is not None else []
        self._send_to_sink(record, 1)
        for successor in successors:
            self._park(successor)

    def turn(self, wait: float) -> None:
        """Send what is due, then handle the settled batches, waiting up to `wait` seconds for the first of them.

        Raises:
            DeliveryFailed, BrokerError (a fatal one), ContractViolation: the job must fail.
        """
        for send_queue in self._send_queues:
            send_queue.resend_due()
        for index, send_queue in enumerate(self._send_queues):
            result = send_queue.collect(wait if send_queue.busy else 0.0)
            for each in result:
                self._settle(index, send_queue, each)
            if result:
                wait = 0.0

    def drain(self) -> None:
        """Turn until every row is accounted for, for callers that only wait. Raises as `turn`."""
        while not self.idle:
            self.turn(_DRAIN_WAIT)
            due = self.next_due
            if not self.busy and due is not None:
                self._clock.sleep(max(0.0, min(_DRAIN_WAIT, due - self._clock.monotonic())))

    # --- settling ---

    def _settle(self, index: int, send_queue: SendQueue, result: BatchResult) -> None:
        sent = result.sent
        lost = sum(record.owner.lost for record in sent.records or ())
        good = len(sent.batch) - len(result.failures) - lost
        account = self.report.at(send_queue.url)
        account.delivered += good
        account.duplicates += result.duplicates
        if not result.failures:
            account.bytes += sent.batch.nbytes
        elif good:
            account.bytes += sent.batch.nbytes * good // len(sent.batch)
        if index:
            self._settle_letters(result, send_queue)
        elif self._order is not None or self._delivered is not None:
            self._settle_rows(result)
        for row in sorted(result.failures):
            send_queue.beat()  # many letters take long to write, and no plugin is to blame
            error = result.failures.pop(row)  # not kept: each may be larger than its row
            self._failed(index, send_queue, self._record(result, row), error, tried=result.tried)

    def _settle_rows(self, result: BatchResult) -> None:
        """Report delivered rows, and release their keys. Only where single rows are asked for."""
        sent = result.sent
        good = [row for row in range(len(sent.batch)) if row not in result.failures]
        records = sent.records
        if self._delivered is not None:
            first = sent.batch.first
            self._delivered([first + row if records is None else records[row].position for row in good])
        if self._order is None:
            return
        if records is not None:
            for row in good:
                self._order.done(records[row])
        elif sent.batch.key is not None:
            self._order.delivered(sent.batch.key.values[row] for row in good)

    def _record(self, result: BatchResult, row: int) -> Record:
        """Return the record of a failed row, made now if this was its first attempt."""
        sent = result.sent
        if sent.records is not None:
            return sent.records[row]
        record = self._fresh(sent.batch, row)
        record.attempts = 1
        record.first_attempt = sent.sent_at
        record.first_failure_ms = self._clock.wall_ms()
        return record

    def _settle_letters(self, result: BatchResult, send_queue: SendQueue) -> None:
        """Count the letters that a sink has confirmed: only now are their rows handled."""
        records = result.sent.records or ()
        if result.tried:
            self.report.sink_requests += len(records)
            self.report.sink_failures += len(result.failures)
        for row, record in enumerate(records):
            if row in result.failures or record.owner.lost:
                continue
            self.report.dead_lettered += 1
            self.report.because(record.reason)
            self._errors.write(
                record,
                record.letter_context or self._context(record),
                f"dead-lettered to {send_queue.url}",
                self._story(record),
            )
            self.report.errors_logged += 1  # by the sink
            self._handled(record)

    def _handled(self, record: Record) -> None:
        """Close the account of a record."""
        if self._order is not None:
            self._order.done(record)
        record.owner.handled()

    def _failed(self, index: int, send_queue: SendQueue, record: Record, error: BrokerError, *, tried: bool) -> None:
        """Carry out what the policy decides about one failed attempt of one record."""
        if isinstance(error, NotSent) and self._order is not None:
            self._kept_back(record, self._order)
            return
        record.untried += record.counted and not tried
        if index == 0:
            self._note(record, error, tried=tried)
        now = self._clock.monotonic()
        decision = policy.decide(
            send_queue.spec,
            error,
            attempts=record.attempts,
            first_attempt=record.first_attempt,
            isolated=record.isolated,
            now=now,
            random=self._random,
            outage=send_queue.outage.over(now),
        )
        match decision:
            case policy.TryAgain(at):
                if index == 0:
                    self.report.retries += 1
                    self.report.retried += not record.retried
                    record.retried = True
                send_queue.wait(record, at)
            case policy.Isolate():
                record.isolated = record.isolating = True
                send_queue.wait(record, now)
            case policy.Abort() if index == 0:
                raise error
            case policy.GiveUp(why) if index == 0:
                record.sent = record.attempts - record.untried
                record.seconds = max(0.0, now - record.first_attempt)
                self.give_up(record, error, why)
            case policy.GiveUp() if isinstance(error, Permanent) and not (record.wrapped or send_queue.moves):
                record.sink_errors.append(
                    f"{send_queue.url}: {error} (so it was sent there once more, wrapped as an event)"
                )
                self._enter(record, send_queue, wrapped=True)
            case _:
                send_queue.broken = error if isinstance(decision, policy.Abort) else send_queue.broken
                record.sink_errors.append(f"{send_queue.url}: {error}")
                self._send_to_sink(record, index + 1)

    def _note(self, record: Record, error: BrokerError, *, tried: bool) -> None:
        """Count a failed try at the destination."""
        if self._order is not None:
            self._order.failed(record)
        self.report.record_failures += tried
        self.report.retries -= record.attempts > 1 and not tried  # it was counted when it was planned
        if isinstance(error, Ambiguous):
            self.report.ambiguous += 1
            record.ambiguous = True
        record.last_failure_ms = self.report.last_error_ms = self._clock.wall_ms()

    def _kept_back(self, record: Record, order: KeyOrder) -> None:
        """Put back a row that was not even tried, because an earlier row of its key failed: no attempt was made."""
        record.attempts -= record.counted
        if order.is_parked(record):
            self._park(record)
        else:
            order.wait(record)

    # --- giving up ---

    def _send_to_sink(self, record: Record, index: int) -> None:
        """Hand the record to the sink at `index`, or to the first one behind it that works."""
        for send_queue in self._send_queues[index:]:
            if send_queue.broken is not None:
                record.sink_errors.append(f"{send_queue.url}: {send_queue.broken}")
                continue
            self._enter(record, send_queue)
            return
        if self._spec.dead_letter_sink:
            raise self._failure(record, "no dead letter sink could take it")
        self.report.skipped += 1
        self.report.because(record.reason)
        logged = self._errors.write(record, self._context(record), "skipped (allowSkip)", self._story(record))
        self.report.errors_logged += logged
        self._handled(record)

    def _enter(self, record: Record, send_queue: SendQueue, *, wrapped: bool = False) -> None:
        """Hand the record to a sink as a letter; wrapped where the sink has refused its content."""
        record.letter_context = self._context(record)
        letter = record.letter(
            record.letter_context,
            self._spec,
            send_queue.capabilities,
            self._origin.configs,
            moved=send_queue.moves,
            rename_type=send_queue.rename_type,
            wrapped=wrapped,
        )
        record.enter(letter, wrapped=wrapped)
        send_queue.wait(record, self._clock.monotonic())

    def _failure(self, record: Record, what: str) -> DeliveryFailed:
        """Return the primary error as a failure of the job. Its text holds all; the sinks' errors are also notes."""
        self._log_end(record, what)
        failure = DeliveryFailed(f"{self._story(record)}; {what}")
        failure.__cause__ = record.primary
        for said in record.sink_errors:
            failure.add_note(redact(f"dead letter sink {said}"))
        return failure

    def _story(self, record: Record) -> str:
        error = record.primary
        sinks = "".join(f"; dead letter sink {said}" for said in record.sink_errors)
        name = f"record {record.message.id!r}" if record.message.id else "a record"
        tried = f" after {record.sent} attempts" if record.sent > 1 else ""
        kind = error.kind if error else ""
        story = f"{name} could not be delivered to {self.report.primary}{tried}: {error} ({kind}; {record.why}){sinks}"
        return redact(story)

    def _log_end(self, record: Record, why: str) -> None:
        """Log the failure that fails the job, which nothing else logs; people read it in the job's error."""
        if self._spec.log_enable:
            fate = f"the job fails: {why}"
            self.report.errors_logged += self._errors.write(record, self._context(record), fate, self._story(record))

    def _context(self, record: Record) -> ErrorContext:
        """Return why a record is given up, in the words of letters and the log."""
        first = self._send_queues[0]
        return record.context(self._origin, broker=first.name, component=first.component, destination=first.url)
