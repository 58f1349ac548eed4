"""`Leases`: the messages under our lease. Settles them, prolongs their leases, releases them.

A lost lease is never settled. `policy.decide` decides when a settlement is tried again, and this module nothing.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from typing import TYPE_CHECKING, Final

from redelivery import policy
from redelivery.base.clock import Clock
from redelivery.base.urls import redact
from redelivery.contract.broker import Accept, Outcome, Received, Receiver, Release, Retry
from redelivery.contract.spec import DeliverySpec
from redelivery.errors import BrokerError, ConfigurationError, Fatal, LeaseLost, NotTerminated, Unsupported
from redelivery.sending.report import SubscriptionReport
from redelivery.telemetry.handling import HandlingObserver, counted

if TYPE_CHECKING:
    from opentelemetry.trace import SpanContext

log = logging.getLogger("redelivery.subscription")

#: Seconds that a delayed message may be late before it counts as taken by another consumer.
LATE: Final = 3.0
#: Why a termination came too late.
SETTLED: Final = "terminate: the message was settled before it could be given up"


@dataclass(slots=True, eq=False)
class LeasedMessage:
    """One message under our lease.

    Attributes:
        received: with the lease as last prolonged.
        began: when its handler began, monotonic seconds; None: it has not.
        ended: its handler has returned.
        overran: its handler took too long, and another thread has replaced its own.
        decided: the decision is made and under way; later results of its handler no longer matter.
        dead: it was given up, and a sink has confirmed it.
        stays: why it is not given up, though its handler asked for that: it is never skipped.
        termination: completed with the termination; None where no termination was requested.
        span: context of the span of its handler; None where nothing records it.
        number: in the order of leasing.
        aside: it waits for the end of an outage, and no handler has it.
        turn: in the order of tries; 0: none has failed in this outage.
        failure: of the last try.
        successor: what stands for it since it was put aside, while its handler still runs.
    """

    received: Received
    number: int = 0
    began: float | None = None
    ended: bool = False
    overran: bool = False
    decided: bool = False
    dead: bool = False
    stays: ConfigurationError | None = None
    termination: Future[None] | None = None
    span: SpanContext | None = None
    aside: bool = False
    turn: int = 0
    failure: BrokerError | None = None
    successor: LeasedMessage | None = None

    def ask(self) -> Future[None]:
        """The future that completes with its termination."""
        if self.termination is None:
            self.termination = Future()
            self.termination.set_running_or_notify_cancel()  # a requested termination cannot be cancelled
        return self.termination

    def end(self, error: BaseException | None = None) -> None:
        """Complete the future of its termination: done, or the error that prevented it."""
        if self.termination is None or self.termination.done():
            return
        if error is None:
            self.termination.set_result(None)
        else:
            self.termination.set_exception(error)

    def is_late(self, now: float, limit: float) -> bool:
        """Whether its handler still runs after so many seconds."""
        if self.began is None or self.ended or self.decided:
            return False
        return now - self.began > limit


@dataclass(slots=True)
class DelayedRetries:
    """The messages that were released to come again after a delay: how many, and when the last of them is due.

    Attributes:
        count: those that have not come again yet; another consumer may have them by now.
        due: monotonic seconds.
        overdue: monotonic seconds after which none of them is waited for.
    """

    count: int = 0
    due: float = float("-inf")
    overdue: float = float("-inf")

    def add(self, now: float, delay: float) -> None:
        """Add one. Behind a longer delay it may come late, by less than its own delay."""
        self.count += 1
        self.due = max(self.due, now + delay)
        self.overdue = max(self.overdue, now + delay + max(LATE, delay))

    def came(self, received: Received) -> None:
        """Count one that has come: it may be one of them."""
        self.count -= received.attempt > 1 and self.count > 0

    def is_over(self, looked: float) -> bool:
        """Whether no message will come any more, given that a look at this time found none."""
        return looked >= (self.overdue if self.count else self.due)


@dataclass(frozen=True, slots=True)
class _Pending:
    """A settlement to be tried again."""

    due: float
    attempts: int
    first: float
    leased: LeasedMessage
    outcome: Outcome


class Leases:
    """The messages that one receiver has leased.

    Args:
        receiver: the broker's.
        spec: the subscription's; settlements are tried again as deliveries to a sink are.
        lease: how long a prolonged lease lasts.
        report: counts what happens to leases.
        observer: records what is received and settled.
    """

    def __init__(
        self,
        receiver: Receiver,
        *,
        spec: DeliverySpec,
        lease: timedelta,
        report: SubscriptionReport,
        clock: Clock,
        random: Callable[[], float],
        observer: HandlingObserver | None = None,
    ) -> None:
        self._observer = observer
        self.receiver = receiver
        self._spec = policy.for_sink(spec)
        self._lease = lease.total_seconds()
        self._report = report
        self._clock = clock
        self._random = random
        self._held: dict[LeasedMessage, None] = {}
        self._can_prolong = True
        self._pending: list[_Pending] = []
        self._lock = threading.Lock()
        self._numbers, self._turns = count(1), count(1)
        self.delayed_retries = DelayedRetries()

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, leased: LeasedMessage) -> bool:
        return leased in self._held

    def __iter__(self) -> Iterator[LeasedMessage]:
        return iter(list(self._held))

    def take(self, most: int, wait: float) -> list[LeasedMessage]:
        """Lease up to `most` messages, waiting up to `wait` seconds for the first. Raises BrokerError."""
        began = self._clock.monotonic()
        received = self.receiver.receive(most, wait=wait)
        taken = [LeasedMessage(each, next(self._numbers)) for each in received]
        if self._observer is not None:
            self._observer.received(len(taken), self._clock.monotonic() - began)
        for leased in taken:
            self.delayed_retries.came(leased.received)
        self._held.update(dict.fromkeys(taken))
        self._report.received += len(taken)
        return taken

    def settle(self, outcomes: Sequence[tuple[LeasedMessage, Outcome]]) -> None:
        """End leases. Those that cannot be ended now are tried again by `tend`. Raises a fatal BrokerError."""
        self._settle(outcomes, {})

    def tend(self) -> None:
        """Try again what is due, and prolong leases that have less than half their time left."""
        now = self._clock.monotonic()
        due = [each for each in self._pending if each.due <= now]
        if due:
            self._pending = [each for each in self._pending if each.due > now]
            self._settle([(each.leased, each.outcome) for each in due], {each.leased: each for each in due})
        self._prolong(now)

    def put_aside(self, leased: LeasedMessage, failure: BrokerError | None = None) -> None:
        """Keep a message under its lease, unhandled. Its handler failed, or, without a failure, has not begun."""
        with self._lock:
            if leased not in self._held:
                return
            if leased.overran:  # its handler still runs, and its result counts no more
                del self._held[leased]
                new = LeasedMessage(leased.received, leased.number, termination=leased.termination, stays=leased.stays)
                leased.successor, leased.termination = new, None
                leased = new
                self._held[leased] = None
            leased.began, leased.ended, leased.decided, leased.aside = None, False, False, True
            if failure is not None:
                leased.turn, leased.failure = next(self._turns), failure

    def aside(self) -> list[LeasedMessage]:
        """Return the messages that wait for the end of an outage: never tried, then not for the longest time."""
        now = self._clock.monotonic()
        waiting = [leased for leased in self if leased.aside and not leased.decided]
        for leased in waiting:
            if leased.received.expires is not None and leased.received.expires <= now:
                self.lose(leased)  # it could not be prolonged: another consumer may have the message now
        return sorted((each for each in waiting if each in self._held), key=lambda each: (each.turn, each.number))

    def lose(self, leased: LeasedMessage) -> None:
        """Note that a lease is gone: another consumer may have the message now."""
        self._report.lost += leased in self._held
        leased.decided = True
        self._part(leased, LeaseLost("the lease is lost: another consumer may have the message now"))

    def forget(self, leased: LeasedMessage) -> None:
        """Note that the broker has ended the lease by itself, when it stored the letter."""
        self._part(leased)

    def _part(self, leased: LeasedMessage, error: BaseException | None = None) -> None:
        """Drop a message that is no longer leased, and complete its termination. Must be called without the lock."""
        with self._lock:
            self._held.pop(leased, None)
        leased.end(error)

    def ask(self, leased: LeasedMessage) -> Future[None] | None:
        """Return a future for the termination of a leased message; None: its lease is over. Safe from any thread."""
        with self._lock:
            return leased.ask() if leased in self._held else None

    def abandon(self, error: BaseException) -> None:
        """Complete all requested terminations with the error that ended the subscription."""
        for leased in self:
            leased.end(error)

    def give_back(self) -> None:
        """Release everything. Never raises: a lease that cannot be ended runs out."""
        with self._lock:
            held = list(self._held)
            self._held.clear()
        leases = [leased.received for leased in held]
        for leased in held:
            leased.end(NotTerminated("the subscription ended before the message was given up; it comes again"))
        if not leases:
            return
        try:
            answers = self.receiver.settle([(received, Release()) for received in leases])
        except BrokerError as error:
            log.warning("%d messages come back when their leases end: %s", len(leases), redact(str(error)))
            return
        self._report.given_back += sum(answer is None for answer in answers)

    def _settle(
        self, outcomes: Sequence[tuple[LeasedMessage, Outcome]], earlier: Mapping[LeasedMessage, _Pending]
    ) -> None:
        """End leases; `earlier` holds those that were tried before."""
        held = [pair for pair in outcomes if pair[0] in self._held]
        if not held:
            return
        began = self._clock.monotonic()
        answers: Sequence[LeaseLost | BrokerError | None]
        try:
            answers = self.receiver.settle([(leased.received, outcome) for leased, outcome in held])
        except BrokerError as error:
            answers = [error] * len(held)
        if self._observer is not None:
            self._observer.settled(
                counted(outcome for _, outcome in held),
                sum(answer is not None for answer in answers),
                seconds=self._clock.monotonic() - began,
                ended_ms=self._clock.wall_ms(),
            )
        settled = [pair for pair, answer in zip(held, answers, strict=True) if answer is None]
        self._part_settled(settled)
        if len(settled) == len(held):
            return
        for (leased, outcome), answer in zip(held, answers, strict=True):
            if isinstance(answer, LeaseLost):
                self.lose(leased)
            elif answer is not None:
                self._try_again(earlier.get(leased) or _Pending(began, 1, began, leased, outcome), answer)

    def _part_settled(self, settled: Sequence[tuple[LeasedMessage, Outcome]]) -> None:
        """Drop messages whose leases we have ended, and complete their terminations."""
        with self._lock:
            for leased, _ in settled:
                self._held.pop(leased, None)
        accepted = 0
        for leased, outcome in settled:
            if leased.termination is not None:
                leased.end(None if leased.dead else NotTerminated(SETTLED))
            if isinstance(outcome, Accept):
                accepted += not leased.dead
            elif isinstance(outcome, Retry):
                self.delayed_retries.add(self._clock.monotonic(), outcome.delay.total_seconds())
        self._report.accepted += accepted

    def _try_again(self, each: _Pending, error: BrokerError) -> None:
        now = self._clock.monotonic()
        decision = policy.decide(
            self._spec,
            error,
            attempts=each.attempts,
            first_attempt=each.first,
            isolated=True,
            now=now,
            random=self._random,
        )
        if isinstance(decision, policy.Abort):
            raise error
        if isinstance(decision, policy.TryAgain):
            self._pending.append(_Pending(decision.at, each.attempts + 1, each.first, each.leased, each.outcome))
            return
        if each.leased.received.expires is None:
            raise error  # such a lease ends with its connection alone, and else the message would never come again
        log.warning("a message could not be settled and will come again: %s", redact(str(error)))
        self.lose(each.leased)

    def _prolong(self, now: float) -> None:
        half = now + self._lease / 2
        short = [
            leased for leased in self._held if leased.received.expires is not None and leased.received.expires < half
        ]
        if not short or not self._can_prolong:
            return
        try:
            answers = self.receiver.extend([leased.received for leased in short], self._lease)
        except Unsupported:
            self._can_prolong = False  # their length cannot be changed
            return
        except Fatal:
            raise
        except BrokerError as error:
            log.warning("leases could not be prolonged: %s", redact(str(error)))
            return
        for leased, answer in zip(short, answers, strict=True):
            if isinstance(answer, LeaseLost):
                self.lose(leased)
            else:
                leased.received = answer
