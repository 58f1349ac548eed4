"""`SendQueue`: one destination with its batches in flight and its rows that wait to be sent again.

Checks that the plugin keeps its contract. Decides nothing, and never waits by itself.
"""

from __future__ import annotations

import heapq
import itertools
from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from redelivery import policy
from redelivery.base.clock import Clock
from redelivery.base.urls import redact
from redelivery.contract.broker import Broker, Capabilities, Sender, Settled
from redelivery.contract.context import qualified
from redelivery.contract.message import Batch
from redelivery.contract.spec import DeliverySpec
from redelivery.errors import BrokerError, ContractViolation, NotSent, RedeliveryError, Retriable
from redelivery.policy.outage import Outage
from redelivery.sending.group import Group, outgoing, together
from redelivery.sending.ordering import KeyOrder
from redelivery.telemetry.sends import SendObserver

#: Rows that are sent again in one batch, or letters that are sent in one, at most.
RESEND: Final = 10_000
#: If handing over a batch takes more than this part of an attempt's time, the plugin most likely waited in vain.
_LONG: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The bounds of a task's memory: rows that it has taken and that are not accounted for yet.

    They are in flight to the destination, wait for their next attempt or behind their key, or are letters on their way
    to a sink. All count together, so an outage does not increase their number. The bound on their number also limits
    what a failed row costs besides its bytes: about 0.4 KiB where many rows fail alike, up to 1.5 KiB where each has
    its own error code (measured). Letters are made in pieces when they are sent, and count as in flight to the sink.

    Attributes:
        in_flight_records, in_flight_bytes: of all together. One batch is always let through.
        waiting_records: rows that have failed, in each send queue, or that wait behind their key; beyond it no new rows
            are taken. The failed rows of a batch are counted when it is settled, so they may exceed it once.
    """

    in_flight_records: int = 200_000
    in_flight_bytes: int = 64 * 1024 * 1024
    waiting_records: int = 10_000


@dataclass(frozen=True, slots=True)
class SentBatch:
    """A batch in flight.

    Attributes:
        batch: what was sent.
        groups: the groups of its rows, in the batch's order; None for a batch of fresh rows.
        sent_at, deadline: monotonic seconds.
        tried_rows: rows that the send queue had tried when the batch was handed over.
        blocked: it could not be handed over, or the hand-over took most of its time.
    """

    batch: Batch
    groups: Sequence[Group] | None
    sent_at: float
    deadline: float
    tried_rows: int = 0
    blocked: bool = False


@dataclass(frozen=True, slots=True)
class BatchResult:
    """A batch that is settled: the result of each row.

    Attributes:
        sent: the batch as it was sent.
        failures: the error of each row that failed, by its index.
        duplicates: rows that the broker recognised.
        tried: False where nothing was sent, because the destination accepts nothing.
        span: `traceparent` of the span of its sending; None where nothing records it.
    """

    sent: SentBatch
    failures: dict[int, BrokerError]
    duplicates: int = 0
    tried: bool = True
    span: str | None = None

    def by_group(self) -> Iterator[tuple[Group, int, list[int]]]:
        """Return each group that was sent with the index of its first row, and its failed rows, by index, ascending."""
        failed, first, done = sorted(self.failures), 0, 0
        for group in self.sent.groups or ():
            end = first + len(group)
            until = bisect_left(failed, end, done)
            yield group, first, failed[done:until]
            first, done = end, until


class SendQueue:
    """One destination: the job's own, or a sink.

    Args:
        url: redacted, as reports and letters show it.
        broker: opened destination; `open` makes its sender.
        spec: the spec that applies to attempts here.
        bounds: how much may be held.
        clock: the time.
        rename_type: the type that events get here; None: as the spec says.
    """

    #: The broker moves messages here by itself; nothing is sent.
    moves = False

    def __init__(
        self,
        url: str,
        broker: Broker,
        spec: DeliverySpec,
        bounds: Bounds,
        clock: Clock,
        *,
        rename_type: str | None = None,
    ) -> None:
        self.url = url
        self.name = broker.name
        self.capabilities: Capabilities = broker.capabilities
        self.spec = spec
        self.broken: RedeliveryError | None = None
        self.outage = Outage(policy.budget_seconds(spec))
        self.rename_type = rename_type
        self.observer = SendObserver.of(broker)
        self._order: KeyOrder | None = None
        self._watch: Callable[[], None] = lambda: None
        self._broker = broker
        self._routes = sorted(broker.capabilities.routes)
        self._sender: Sender | None = None
        self.bounds = bounds
        self._clock = clock
        self._in_flight: dict[int, SentBatch] = {}
        self._refused: list[BatchResult] = []
        self._in_flight_records = self._in_flight_bytes = 0
        self._tried_rows = 0
        self._draining = False
        self._slow = False
        self._waiting: list[tuple[float, int, Group]] = []
        self._waiting_rows = self._waiting_bytes = 0
        self._sequence = itertools.count()
        self._numbers = itertools.count(1)

    # --- what there is ---

    @property
    def ordered(self) -> bool:
        """Whether rows of one key keep their order."""
        return self._order is not None

    def keep_order(self, order: KeyOrder) -> None:
        """Send rows in the order of their keys, which `order` tracks."""
        self._order = order

    def watch(self, called: Callable[[], None]) -> None:
        """Have `called` called before each call to the plugin, and by `beat`."""
        self._watch = called

    def beat(self) -> None:
        """Tell the watcher that the engine works, and that no call hangs."""
        self._watch()

    @property
    def component(self) -> str:
        """Fully qualified name of the class that sends here."""
        return qualified(type(self._sender or self._broker))

    @property
    def hosts(self) -> Sequence[str]:
        """The hosts of the connection; empty if the plugin does not name them."""
        return self._broker.hosts or ()

    @property
    def busy(self) -> bool:
        """Whether anything is in flight."""
        return bool(self._in_flight or self._refused)

    @property
    def refused(self) -> bool:
        """Whether the broker refused a batch that `collect` has not reported yet."""
        return bool(self._refused)

    @property
    def idle(self) -> bool:
        """Whether nothing is in flight and nothing waits."""
        return not self.busy and not self._waiting

    @property
    def crowded(self) -> bool:
        """Whether so much waits that no new rows may be taken."""
        return self._waiting_rows >= self.bounds.waiting_records

    @property
    def waiting(self) -> tuple[int, int]:
        """Rows that wait, and their bytes."""
        return self._waiting_rows, self._waiting_bytes

    @property
    def held(self) -> tuple[int, int]:
        """Rows that are in flight or wait, and their bytes."""
        return self._in_flight_records + self._waiting_rows, self._in_flight_bytes + self._waiting_bytes

    @property
    def next_due(self) -> float | None:
        """When the first waiting rows are due."""
        return self._waiting[0][0] if self._waiting else None

    def may_begin(self, now: float) -> bool:
        """Whether fresh rows may come. In an outage only while this queue is idle, or if they will be refused."""
        return not self.outage.on or self.idle or self.outage.over(now) is not None

    def has_room(self, records: int, nbytes: int) -> bool:
        """Whether so much more may be in flight. A broker that settles at quiescence is drained at the bound.

        After a call that blocked, its result is awaited first. A destination that accepts nothing gets one batch at a
        time.
        """
        if self._slow or (self.outage.on and self.busy):
            return False
        if not self._in_flight:
            self._draining = False
            return True
        if self._draining:
            return False
        if self._fits(records, nbytes):
            return True
        self._draining = self.capabilities.settles == "quiescence"
        return False

    def _fits(self, records: int, nbytes: int) -> bool:
        bounds = self.bounds
        within = self._in_flight_records + records <= bounds.in_flight_records
        return within and self._in_flight_bytes + nbytes <= bounds.in_flight_bytes

    # --- sending ---

    def open(self) -> None:
        """Make the sender. Raises BrokerError, Unsupported, ContractViolation."""
        if self._sender is not None:
            return
        try:
            self._sender = self._broker.sender()
        except RedeliveryError:
            raise
        except Exception as error:
            raise self._violation(f"sender() raised {type(error).__name__}, not a BrokerError: {error}") from error

    def check(self, deadline: float) -> None:
        """Open, and find out whether rows could be sent. Raises as `open`."""
        self.open()
        try:
            if self._sender is not None:
                self._sender.check(deadline=deadline)
        except RedeliveryError:
            raise
        except Exception as error:
            raise self._violation(f"check() raised {type(error).__name__}, not a BrokerError: {error}") from error

    def send(self, batch: Batch, groups: Sequence[Group] | None = None) -> None:
        """Hand a batch to the broker; `collect` reports a refusal, like every failure."""
        now = self._clock.monotonic()
        batch = replace(batch, number=next(self._numbers))
        sent = SentBatch(batch, groups, now, now + policy.attempt_timeout(self.spec), self._tried_rows)
        if self.outage.refuses(now) and self.outage.speaks_for(self._targets(batch)):
            self._refuse(sent)
            return
        try:
            self.beat()
            self.open()
            if self._sender is not None:
                self._sender.send(batch, deadline=sent.deadline)
        except BrokerError as error:
            sent = replace(sent, blocked=True)
            self._refused.append(self._over(BatchResult(sent, dict.fromkeys(range(len(batch)), error))))
            return
        except RedeliveryError:
            raise
        except Exception as error:
            raise self._violation(f"send() raised {type(error).__name__}, not a BrokerError: {error}") from error
        self._slow = self._clock.monotonic() - now > _LONG * (sent.deadline - now)
        self._in_flight[batch.number] = replace(sent, blocked=True) if self._slow else sent
        self._in_flight_records += len(batch)
        self._in_flight_bytes += batch.nbytes

    def _refuse(self, sent: SentBatch) -> None:
        """Fail a batch without trying."""
        error = self.outage.error()
        self._refused.append(BatchResult(sent, dict.fromkeys(range(len(sent.batch)), error), tried=False))

    def _over(self, result: BatchResult) -> BatchResult:
        """Learn from a settled batch."""
        sent, failures = result.sent, result.failures
        first = sent.groups is None or any(group.attempts <= 1 for group in sent.groups)
        self.outage.heard(
            failures.values(),
            len(sent.batch),
            targets=self._targets(sent.batch) if len(failures) == len(sent.batch) else frozenset(),
            sent_at=sent.sent_at,
            now=self._clock.monotonic(),
            first=first,
            blocked=sent.blocked,
        )
        return result if self.observer is None else self._observed(result, self.observer)

    def _observed(self, result: BatchResult, observer: SendObserver) -> BatchResult:
        sent, groups = result.sent, result.sent.groups
        letters = [group for group in groups or () if group.render is not None]
        span = observer.settled(
            sent.batch,
            result.failures,
            seconds=self._clock.monotonic() - sent.sent_at,
            ended_ms=self._clock.wall_ms(),
            attempt=max((group.attempts for group in groups), default=1) if groups else 1,
            failed_in=(each for group in letters for each in group.spans if each) if letters else None,
        )
        return replace(result, span=span)

    def _targets(self, batch: Batch) -> frozenset[Hashable]:
        """Return the targets of a batch's rows: the destination itself, or the targets that rows name."""
        columns = [batch.destination, *(batch.extra.get(name) for name in self._routes)]
        values = [itertools.repeat(None) if column is None else column.values for column in columns]
        return frozenset(itertools.islice(zip(*values, strict=False), len(batch)))

    def wait(self, group: Group, until: float) -> None:
        """Keep a group until it is due."""
        self._push(until, next(self._sequence), group)
        if self._order is not None:
            self._order.waits(group)

    def _push(self, until: float, sequence: int, group: Group) -> None:
        heapq.heappush(self._waiting, (until, sequence, group))
        self._waiting_rows += len(group)
        self._waiting_bytes += group.nbytes

    def resend_due(self) -> None:
        """Send what is due, as far as there is room. In an outage the last try may count for it at once."""
        now = self._clock.monotonic()
        while self._waiting and self._waiting[0][0] <= now:
            answered = self._is_answered(now)
            first = self._waiting[0][2]
            if not answered and not self.has_room(1, first.row_bytes):
                return
            if not answered and self.ordered and self._refused:
                return  # later rows must not overtake refused ones
            groups = [
                each
                for each in self._take_due(now, answered=answered)
                if (self._order is None or self._order.may_go(each)) and not self._comes_again(each, now)
            ]
            if not groups:
                continue
            for group in groups:
                group.begin_attempt(now)
            if answered:
                self._refuse(SentBatch(together(groups), groups, now, now))
                continue
            self.send(replace(outgoing(groups), isolate=groups[0].isolated, ordered=self.ordered), groups)

    def _comes_again(self, group: Group, now: float) -> bool:
        """Whether a group's lease is over: its broker delivers it again, and what that comes to counts.

        That a lease ran out counts from the second attempt on. Otherwise no letter would ever be stored where handlers
        take longer than leases last.
        """
        owner = group.owner
        received = owner.received if group.attempts or group.sink_errors else None
        if received is not None and received.expires is not None and received.expires <= now:
            owner.lose()
        return owner.comes_again

    def _is_answered(self, now: float) -> bool:
        """Whether the last try counts for the first waiting group."""
        due, _, group = self._waiting[0]
        if not self.outage.on or not self.outage.speaks_for(self._targets(group.messages)):
            return False
        last = policy.is_last(self.spec, attempts=group.attempts, first_attempt=group.first_attempt, now=now)
        return self.outage.answers(due, last=last)

    def _take_due(self, now: float, *, answered: bool) -> Iterator[Group]:
        """Return due groups of one kind (alone, apart or not; last try counts or not), as many as fit one batch.

        A group that does not fit is split: its other rows wait on.
        """
        taken = nbytes = 0
        kind = self._waiting[0][2].isolated
        while self._waiting and taken < RESEND:
            due, sequence, group = self._waiting[0]
            if due > now or group.isolated is not kind or (taken and group.apart):
                return
            if taken and self._is_answered(now) is not answered:
                return
            size = group.row_bytes
            room = min(
                RESEND - taken,
                self.bounds.in_flight_records - self._in_flight_records - taken,
                (self.bounds.in_flight_bytes - self._in_flight_bytes - nbytes) // size,
            )
            if taken and room < 1:
                return
            heapq.heappop(self._waiting)
            self._waiting_rows -= len(group)
            self._waiting_bytes -= group.nbytes
            if len(group) > max(1, room):
                group, rest = group.split(max(1, room))
                self._push(due, sequence, rest)
            taken += len(group)
            nbytes += size * len(group)
            yield group
            if group.apart:
                return

    # --- settling ---

    def collect(self, wait: float) -> list[BatchResult]:
        """Return the settled batches, waiting up to `wait` seconds for the first of them."""
        result, self._refused = self._refused, []
        self._slow = False
        if self._sender is None:
            return result
        try:
            self.beat()
            told = self._sender.collect(0.0 if result else wait)
        except BrokerError as error:
            return result + self._abandon(error)
        except Exception as error:
            raise self._violation(f"collect() raised {type(error).__name__}, not a BrokerError: {error}") from error
        result += [self._settle(settled) for settled in told]
        now = self._clock.monotonic()
        late = [number for number, sent in self._in_flight.items() if now > sent.deadline + policy.GRACE]
        if late:
            raise self._violation(f"batches {late} were not settled by their deadline")
        return result

    def _settle(self, settled: Settled) -> BatchResult:
        sent = self._in_flight.pop(settled.batch, None)
        if sent is None:
            raise self._violation(f"settled batch {settled.batch}, which is not in flight (settled twice?)")
        self._in_flight_records -= len(sent.batch)
        self._in_flight_bytes -= sent.batch.nbytes
        length = len(sent.batch)
        named = {failure.index: failure.error for failure in settled.failures}
        if len(named) < len(settled.failures) or (named and not (min(named) >= 0 and max(named) < length)):
            wrong = _wrong([failure.index for failure in settled.failures], length)
            raise self._violation(f"blamed row {wrong} of {length} rows (not there, or twice)")
        failures = named if settled.error is None else dict.fromkeys(range(length), settled.error) | named
        for kind in set(map(type, failures.values())):
            if not issubclass(kind, BrokerError):
                raise self._violation(f"failed a row with {kind.__name__}, which is not a BrokerError")
        failures = self._counted(sent, failures)
        return self._over(BatchResult(sent, failures, settled.duplicates))

    def _counted(self, sent: SentBatch, failures: dict[int, BrokerError]) -> dict[int, BrokerError]:
        """Return the failures of a batch. Rows that were not sent fail as retriable if no row was tried since.

        Otherwise a plugin that takes an outage for a lack of time would be asked forever.
        """
        unsent = [error for error in failures.values() if isinstance(error, NotSent)]
        self._tried_rows += len(sent.batch) - len(unsent)
        if unsent and not self.ordered and self._tried_rows == sent.tried_rows:
            return dict.fromkeys(failures, unsent[0].reclassified(Retriable))
        return failures

    def _abandon(self, error: BrokerError) -> list[BatchResult]:
        """The sender itself failed: its error decides the fate of everything in flight."""
        sent_batches, self._in_flight = list(self._in_flight.values()), {}
        self._in_flight_records = self._in_flight_bytes = 0
        return [self._over(BatchResult(sent, dict.fromkeys(range(len(sent.batch)), error))) for sent in sent_batches]

    def close(self) -> None:
        """Close the sender; later results are of no use."""
        if self._sender is not None:
            sender, self._sender = self._sender, None
            sender.close()

    def _violation(self, what: str) -> ContractViolation:
        return ContractViolation(redact(f"the plugin {self.name!r} broke the contract at {self.url}: {what}"))


def _wrong(rows: Sequence[int], length: int) -> int:
    """Return the first row that a batch of this length does not have, or that is named twice."""
    return next(row for at, row in enumerate(rows) if not 0 <= row < length or row in rows[:at])
