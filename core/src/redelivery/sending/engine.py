"""`Engine`: moves rows through the send queues, one turn at a time, and keeps the account.

Single-threaded and without its own clock, so that a test can drive it turn by turn against a model. `policy.decide`
decides what follows from an error; the engine carries it out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle
from typing import Literal

from redelivery import policy
from redelivery.base.clock import Clock
from redelivery.base.urls import redact
from redelivery.codes import Code
from redelivery.contract.broker import Support
from redelivery.contract.context import Stage
from redelivery.contract.message import Batch, Message
from redelivery.contract.spec import DeliverySpec
from redelivery.errors import Ambiguous, BrokerError, DeliveryFailed, NotSent, Permanent, ToleranceExceeded
from redelivery.formats import dialects
from redelivery.policy.rate import RateLimit
from redelivery.policy.tolerance import Tolerance
from redelivery.sending.errorlog import ErrorLog
from redelivery.sending.group import NOBODY, Group, Origin, alike, distinct, picked
from redelivery.sending.letters import LetterWriter, Reporter
from redelivery.sending.ordering import KeyOrder
from redelivery.sending.report import DeliveryReport
from redelivery.sending.send_queue import BatchResult, SendQueue
from redelivery.telemetry.sends import SendObserver

#: How long `drain` waits at a time, in seconds.
_DRAIN_WAIT = 0.5


@dataclass(frozen=True, slots=True)
class Rejected:
    """Rows that cannot become messages, and failed at the same stage.

    Attributes:
        messages: the messages that stand for them at the sinks.
        errors: why: one for all, or one per row.
        stage: which part of them could not be made: key, value, headers, or (TRANSFORMATION) anything else.
    """

    messages: Batch
    errors: Sequence[Permanent]
    stage: Stage


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
        skipped: called with the positions of rows that were given up without a sink.
        refused: called with those of them that have surely not arrived.
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
        skipped: Callable[[Sequence[int]], None] = lambda _: None,
        refused: Callable[[Sequence[int]], None] = lambda _: None,
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
        self._skipped = skipped
        self._refused = refused
        self._rate = RateLimit(flow.rows_per_second)
        self._writers: dict[SendQueue, LetterWriter] = {}
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
        """When the next timed work is due, monotonic seconds: a group is due, or the rate limit's debt is paid."""
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

    def _fresh(self, batch: Batch, index: int) -> Group:
        """Return the group of a row that was never tried."""
        return Group(rows=batch.row(index), positions=[batch.first + index])

    def _send_soon(self, group: Group) -> None:
        self._send_queues[0].wait(group, self._clock.monotonic())

    def _park(self, group: Group) -> None:
        """Dead-letter a row whose predecessor by key is dead: it goes where that one went."""
        group.sent = group.attempts - group.untried  # some were made, where it was held back only then
        group.last_failure_ms = self._clock.wall_ms()
        group.first_failure_ms = group.first_failure_ms or group.last_failure_ms
        self.give_up(group, [Permanent("an earlier row of its key is dead-lettered", code=Code.PARKED)], "it is parked")

    def reject(self, rows: Rejected, component: str | None = None) -> None:
        """Account for rows that could not become messages, in their order.

        Args:
            rows: the rows.
            component: fully qualified name of the code that failed to convert them.

        Raises:
            DeliveryFailed
        """
        now_ms, count = self._clock.wall_ms(), len(rows.messages)
        first = self.report.rows
        self.report.rows += count
        self.report.record_failures += count
        self.report.last_error_ms = now_ms
        errors: dict[int, BrokerError] = dict(zip(range(count), cycle(rows.errors), strict=False))
        for together, said in alike(errors, list(errors), by_text=False, each=self._order is not None):
            group = Group(
                rows=rows.messages if len(together) == count else picked(rows.messages, together),
                positions=[first + index for index in together],
                stage=rows.stage,
                component=component,
                first_failure_ms=now_ms,
                last_failure_ms=now_ms,
            )
            self.give_up(group, said, "it cannot become a message")

    def give_up(self, group: Group, errors: Sequence[BrokerError], why: str) -> None:
        """Rows failed permanently: tolerate them and hand them to the sinks, or fail the job.

        Rows beyond a limit of tolerated errors are not counted, except for the first of them: it fails the job.

        Args:
            group: the rows.
            errors: their errors: one for all, or one per row.
            why: what ended it.

        Raises:
            DeliveryFailed
        """
        group.errors = distinct(errors)
        group.why = why
        if not self._spec.tolerates:
            self.report.record_errors += 1
            raise self._failure(group, "errors.tolerance is 'none'")
        now = self._clock.monotonic()
        tolerated = self._tolerance.room(now, len(group))
        counted = min(len(group), tolerated + 1)
        self.report.record_errors += counted
        exceeded = self._tolerance.count(now, counted)
        if exceeded:
            self._log_end(group, exceeded, tolerated)
            raise ToleranceExceeded(f"{exceeded}; the last one: {self._story(group, tolerated)}") from group.error(
                tolerated
            )
        successors = self._order.given_up(group) if self._order is not None else []
        observer = self._send_queues[0].observer
        if observer is not None and group.owner is NOBODY:
            self._observe(group, observer)
        self._send_to_sink(group, 1)
        for successor in successors:
            self._park(successor)

    def _observe(self, group: Group, observer: SendObserver) -> None:
        """Record that rows are given up."""
        messages = group.messages
        group.spans = observer.given_up(
            messages,
            group.errors,
            group.spans[0] if group.spans else None,
            attempts=group.sent,
            hops=[each.hops for each in dialects.histories(messages)] if messages.headers is not None else (),
            began_ms=group.first_failure_ms,
            ended_ms=self._clock.wall_ms(),
        )

    def turn(self, wait: float) -> bool:
        """Send what is due, then handle the settled batches, waiting up to `wait` seconds for the first of them.

        Returns:
            Whether any batch was settled, which may have made room for more.

        Raises:
            DeliveryFailed, BrokerError (a fatal one), ContractViolation: the job must fail.
        """
        settled = False
        for send_queue in self._send_queues:
            send_queue.resend_due()
        for index, send_queue in enumerate(self._send_queues):
            result = send_queue.collect(wait if send_queue.busy else 0.0)
            for each in result:
                self._settle(index, send_queue, each)
            if result:
                settled, wait = True, 0.0
        return settled

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
        lost = sum(group.owner.lost for group in sent.groups or ())
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
        if not result.failures:
            return
        groups = self._failed_groups(result, by_text=index > 0)
        result.failures.clear()  # not kept: each may be larger than its row
        for group, errors in groups:
            send_queue.beat()
            if index == 0 and result.span is not None:
                group.spans = (result.span,)
            self._failed(index, send_queue, group, errors, tried=result.tried)

    def _settle_rows(self, result: BatchResult) -> None:
        """Report delivered rows, and release their keys. Only where single rows are asked for."""
        sent = result.sent
        good = [row for row in range(len(sent.batch)) if row not in result.failures]
        if sent.groups is None:
            if self._delivered is not None:
                self._delivered([sent.batch.first + row for row in good])
            if self._order is not None and sent.batch.key is not None:
                self._order.delivered(sent.batch.key.values[row] for row in good)
            return
        if self._delivered is not None:
            positions = [position for group in sent.groups for position in group.positions]
            self._delivered([positions[row] for row in good])
        if self._order is not None:
            for group, _, failed in result.by_group():
                if not failed:
                    self._order.done(group)

    def _failed_groups(self, result: BatchResult, *, by_text: bool) -> list[tuple[Group, Sequence[BrokerError]]]:
        """Return the failed rows in groups, made now if this was their first attempt, with the errors of each."""
        sent, failures, each = result.sent, result.failures, self._order is not None
        if sent.groups is not None:
            return [
                (group.take([row - first for row in rows]), errors)
                for group, first, failed in result.by_group()
                for rows, errors in alike(failures, failed, by_text=by_text, each=each)
            ]
        groups: list[tuple[Group, Sequence[BrokerError]]] = []
        now_ms, first = self._clock.wall_ms(), sent.batch.first
        for rows, errors in alike(failures, sorted(failures), by_text=by_text, each=each):
            whole = len(rows) == len(sent.batch)
            group = Group(
                rows=_rows(sent.batch, rows),
                positions=range(first, first + len(rows)) if whole else [first + row for row in rows],
                attempts=1,
                first_attempt=sent.sent_at,
                first_failure_ms=now_ms,
            )
            groups.append((group, errors))
        return groups

    def _settle_letters(self, result: BatchResult, send_queue: SendQueue) -> None:
        """Count the letters that a sink has confirmed: only now are their rows handled."""
        if result.tried:
            self.report.sink_requests += len(result.sent.batch)
            self.report.sink_failures += len(result.failures)
        for group, first, failed in result.by_group():
            stored = len(group) - len(failed)
            if not stored or group.owner.lost:
                continue
            self.report.dead_lettered += stored
            self.report.because(group.reason, stored)
            if self._errors.is_due:
                rows = [row for row in range(len(group)) if first + row not in result.failures] if failed else None
                self._log(group, range(len(group)) if rows is None else rows, f"dead-lettered to {send_queue.url}")
            self.report.errors_logged += stored  # by the sink
            self._handled(group)

    def _handled(self, group: Group) -> None:
        """Close the account of rows. Only a group of one row has an order or an owner."""
        if self._order is not None:
            self._order.done(group)
        group.owner.handled()

    def _failed(
        self, index: int, send_queue: SendQueue, group: Group, errors: Sequence[BrokerError], *, tried: bool
    ) -> None:
        """Carry out what the policy decides about one failed attempt of a group."""
        error = errors[0]
        if isinstance(error, NotSent):
            self._not_sent(group, send_queue)
            return
        group.untried += group.counted and not tried
        if index == 0:
            self._note(group, error, tried=tried)
        now = self._clock.monotonic()
        decision = policy.decide(
            send_queue.spec,
            error,
            attempts=group.attempts,
            first_attempt=group.first_attempt,
            isolated=group.isolated,
            now=now,
            random=self._random,
            outage=send_queue.outage.over(now),
        )
        match decision:
            case policy.TryAgain(at):
                if index == 0:
                    self.report.retries += len(group)
                    self.report.retried += 0 if group.retried else len(group)
                    group.retried = True
                send_queue.wait(group, at)
            case policy.Isolate():
                for half in group.halves():
                    send_queue.wait(half, now)
            case policy.Abort() if index == 0:
                raise error
            case policy.GiveUp(why) if index == 0:
                group.sent = group.attempts - group.untried
                group.seconds = max(0.0, now - group.first_attempt)
                self.give_up(group, errors, why)
            case policy.GiveUp() if isinstance(error, Permanent) and not (group.wrapped or send_queue.moves):
                said = f"{send_queue.url}: {error} (so it was sent there once more, wrapped as an event)"
                group.sink_errors += (said,)
                self._enter(group, send_queue, wrapped=True)
            case _:
                send_queue.broken = error if isinstance(decision, policy.Abort) else send_queue.broken
                group.sink_errors += (f"{send_queue.url}: {error}",)
                self._send_to_sink(group, index + 1)

    def _note(self, group: Group, error: BrokerError, *, tried: bool) -> None:
        """Count a failed try at the destination."""
        rows = len(group)
        if self._order is not None:
            self._order.failed(group)
        if tried:
            self.report.record_failures += rows
        elif group.attempts > 1:
            self.report.retries -= rows  # they were counted when they were planned
        if isinstance(error, Ambiguous):
            self.report.ambiguous += rows
            group.ambiguous = True
        group.last_failure_ms = self.report.last_error_ms = self._clock.wall_ms()
        group.first_failure_ms = group.first_failure_ms or group.last_failure_ms

    def _not_sent(self, group: Group, send_queue: SendQueue) -> None:
        """Put back rows that were not even tried: an earlier row of their key failed, or time ran out before them."""
        group.attempts -= group.counted
        if not group.attempts:
            group.first_failure_ms = 0
        if self._order is None or not send_queue.ordered:  # letters have no order
            send_queue.wait(group, self._clock.monotonic())
        elif self._order.is_parked(group):
            self._park(group)
        else:
            self._order.wait(group)

    # --- giving up ---

    def _send_to_sink(self, group: Group, index: int) -> None:
        """Hand the group to the sink at `index`, or to the first one behind it that works."""
        for send_queue in self._send_queues[index:]:
            if send_queue.broken is not None:
                group.sink_errors += (f"{send_queue.url}: {send_queue.broken}",)
                continue
            self._enter(group, send_queue)
            return
        if self._spec.dead_letter_sink:
            raise self._failure(group, "no dead letter sink could take it")
        self.report.skipped += len(group)
        self._skipped(group.positions)
        if not group.ambiguous:
            self._refused(group.positions)
        self.report.because(group.reason, len(group))
        self.report.errors_logged += self._log(group, range(len(group)), "skipped (allowSkip)")
        self._handled(group)

    def _enter(self, group: Group, send_queue: SendQueue, *, wrapped: bool = False) -> None:
        """Hand the group to a sink as letters; wrapped where the sink has refused their content."""
        group.enter(self._writer(send_queue).letters, wrapped=wrapped)
        send_queue.wait(group, self._clock.monotonic())

    def _writer(self, send_queue: SendQueue) -> LetterWriter:
        """Return what makes the letters for a sink; one for all groups, because there may be as many as rows."""
        writer = self._writers.get(send_queue)
        if writer is None:
            writer = self._writers[send_queue] = LetterWriter(
                spec=self._spec,
                capabilities=send_queue.capabilities,
                configs=self._origin.configs,
                reporter=lambda: self._reporter,
                moved=send_queue.moves,
                rename_type=send_queue.rename_type,
                beat=send_queue.beat,
            )
        return writer

    def _failure(self, group: Group, what: str) -> DeliveryFailed:
        """Return the primary error as a failure of the job. Its text holds all; the sinks' errors are also notes."""
        self._log_end(group, what, 0)
        failure = DeliveryFailed(f"{self._story(group, 0)}; {what}")
        failure.__cause__ = group.error(0)
        for said in group.sink_errors:
            failure.add_note(redact(f"dead letter sink {said}"))
        return failure

    def _story(self, group: Group, row: int) -> str:
        error, id_ = group.error(row), group.messages.id
        sinks = "".join(f"; dead letter sink {said}" for said in group.sink_errors)
        name = f"record {id_.values[row]!r}" if id_ is not None and id_.values[row] else "a record"
        tried = f" after {group.sent} attempts" if group.sent > 1 else ""
        kind = error.kind if error else ""
        story = f"{name} could not be delivered to {self.report.primary}{tried}: {error} ({kind}; {group.why}){sinks}"
        return redact(story)

    def _log(self, group: Group, rows: Sequence[int], fate: str) -> int:
        """Log rows of a group that are given up; return how many the log has."""
        return self._errors.write(group, rows, self._reporter, fate, partial(self._story, group))

    def _log_end(self, group: Group, why: str, row: int) -> None:
        """Log the failure that fails the job, which nothing else logs; people read it in the job's error."""
        if self._spec.log_enable:
            self.report.errors_logged += self._log(group, [row], f"the job fails: {why}")

    @property
    def _reporter(self) -> Reporter:
        """Says why rows are given up, in the words of letters and the log."""
        first = self._send_queues[0]
        return Reporter(origin=self._origin, broker=first.name, component=first.component, destination=first.url)


def _rows(batch: Batch, rows: Sequence[int]) -> Batch | Message:
    """Return some rows of a batch, without the others."""
    if len(rows) == len(batch):
        return batch
    return batch.row(rows[0]) if len(rows) == 1 else picked(batch, rows)
