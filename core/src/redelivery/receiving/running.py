"""`RunningSubscription`: one run of a subscription, from its first lease to its last.

Everything but `terminate` runs on the thread that called `Subscription.run`: only that thread uses the broker's roles.
`redelivery.policy` decides what follows from an error.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from redelivery import policy
from redelivery.base.clock import Clock
from redelivery.base.urls import redact
from redelivery.codes import Code
from redelivery.contract.broker import Accept, Outcome, Received, Retry
from redelivery.contract.context import qualified
from redelivery.contract.message import Message
from redelivery.contract.spec import DeliverySpec
from redelivery.errors import (
    BrokerError,
    ConfigurationError,
    DeliveryFailed,
    NotTerminated,
    Permanent,
    Retriable,
    TerminalNack,
    Terminated,
)
from redelivery.receiving.leases import SETTLED, LeasedMessage, Leases
from redelivery.receiving.workers import Workers
from redelivery.sending.engine import Engine
from redelivery.sending.group import Group, Owner
from redelivery.sending.report import SubscriptionReport
from redelivery.telemetry import context
from redelivery.telemetry.counters import Counters

log = logging.getLogger("redelivery.subscription")

#: How long to wait for a message while none is leased, and for a handler otherwise, in seconds.
_IDLE: Final = 0.5
_GLANCE: Final = 0.02
_ACCEPT: Final = Accept()
#: Messages are leased ahead in so many parts: a call of the broker for each that is handled would cost more than it.
_PARTS: Final = 4
#: Handlers that overran their time and still hold a thread; more stop the subscription.
_MAX_OVERRUN: Final = 10
#: Messages that are leased in an outage, one a try, even if fewer are leased ahead otherwise: those at hand may all be
#: poison.
_TRIED: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of a run, from its subscription.

    Attributes:
        name, handler, spec, prefetch, rename_type, breaker, clock, random: as `Subscription` has them.
        stop_timeout: in seconds.
        delay_max: the longest delay that the broker can give a retry.
        counters: publish the account; None: nothing records it.
    """

    name: str
    handler: Callable[[Message], object]
    spec: DeliverySpec
    prefetch: int
    rename_type: str | None
    breaker: policy.Breaker | None
    stop_timeout: float
    delay_max: timedelta
    clock: Clock
    random: Callable[[], float]
    counters: Counters | None = None


class RunningSubscription:
    """Receives, has messages handled, and settles them.

    Args:
        settings: the subscription's.
        leases: what is leased.
        workers: run the handler.
        engine: sends letters to the sinks.
        report: the account of the subscription.
        stopping: set when the run is to end.
    """

    def __init__(
        self,
        settings: Settings,
        leases: Leases,
        workers: Workers,
        engine: Engine,
        report: SubscriptionReport,
        stopping: threading.Event,
    ) -> None:
        self._settings = settings
        self._leases = leases
        self._workers = workers
        self._engine = engine
        self._report = report
        self._stopping = stopping
        self._stop_by = float("inf")
        self._one_at_a_time = workers.count == 1 and not settings.prefetch
        self._until_empty = False
        breaker = settings.breaker or policy.Breaker()
        self._patience = breaker.patience.total_seconds()
        self.circuit = None if settings.breaker is None else policy.Circuit(breaker, settings.random)
        self.receive_outage = policy.ReceiveOutage(breaker, settings.random)
        self._requests: queue.SimpleQueue[tuple[LeasedMessage, str]] = queue.SimpleQueue()

    # --- from any thread ---

    def terminate(self, message: Message | str, reason: str) -> Future[None]:
        """Give up one leased message. See `Subscription.terminate`."""
        leased = self._named(message)
        if not self._settings.spec.dead_letter_sink:
            stays = without_sink(self._settings.name, message)
            if leased is not None:
                leased.stays = stays
            raise stays
        future = None if leased is None else self._leases.ask(leased)
        if leased is None or future is None:
            raise not_leased(message)
        self._requests.put((leased, reason))
        return future

    def _named(self, message: Message | str) -> LeasedMessage | None:
        """Return the leased message of this name. Raises ConfigurationError: several have it."""
        there = [leased for leased in self._leases if not leased.decided]
        if not isinstance(message, str):
            return next((leased for leased in there if leased.received.message is message), None)
        found = [leased for leased in there if leased.received.message.id == message]
        found = found or [leased for leased in there if leased.received.position == message != ""]
        if len(found) > 1:
            text = f"{len(found)} leased messages are called {message!r}: name one by its position"
            raise ConfigurationError(f"terminate: {text}")
        return found[0] if found else None

    # --- the loop ---

    def run(self, *, until_empty: bool) -> None:
        """Handle messages until stopped, or until none is left. Raises as `Subscription.run`."""
        self._until_empty = until_empty
        try:
            self._loop(until_empty=until_empty)
        except BaseException as error:
            self._leases.abandon(error)
            raise
        finally:
            self._publish(is_outage=False)

    def _publish(self, *, is_outage: bool) -> None:
        if self._settings.counters is not None:
            self._settings.counters.publish(
                self._engine.report.metrics(),
                terms=self._report.terms,
                outages=self._report.outages,
                is_outage=is_outage,
            )

    def _publish_if_due(self) -> None:
        if self._settings.counters is not None and self._settings.counters.is_due(time.monotonic()):
            is_open = self.circuit is not None and self.circuit.is_open
            self._publish(is_outage=is_open or self.receive_outage.since is not None)

    def _loop(self, *, until_empty: bool) -> None:
        leases, workers, circuit = self._leases, self._workers, self.circuit
        empty: float | None = None  # when the last look began, where it found nothing
        while True:
            stopping = self._stopping.is_set()
            if stopping:
                self._stop_by = min(self._stop_by, time.monotonic() + self._settings.stop_timeout)
                workers.drop()
            self._take_results(workers.results())
            self._enforce_timeout()
            self._engine.turn(0.0)
            leases.tend()
            self._publish_if_due()
            if self._has_stopped() if stopping else until_empty and self._is_empty(empty):
                return
            if circuit is not None and circuit.is_open and not stopping:
                if until_empty:
                    self._end_if_too_long(circuit)
                empty = self._try_one(circuit)
                self._take_results(workers.results(_GLANCE))
                continue
            room = 0 if stopping else workers.count + self._settings.prefetch - len(leases)
            if room > (self._settings.prefetch // _PARTS if workers.have_work else 0):
                wait, looked = 0.0 if len(leases) else _IDLE, self._settings.clock.monotonic()
                arrived = self._receive(room, wait)
                empty = looked if arrived == [] and wait > 0 else None
                for leased in arrived or ():
                    self._begin(leased)
                if arrived:
                    continue
            if len(leases):
                self._take_results(workers.results(_GLANCE))

    def _receive(self, most: int, wait: float) -> list[LeasedMessage] | None:
        """Lease messages; None in an outage of the broker. Raises BrokerError: one that does not pass."""
        outage, clock = self.receive_outage, self._settings.clock
        pause = outage.next - clock.monotonic()
        if pause > 0:
            self._end_if_away_too_long()
            self._stopping.wait(min(pause, wait))
            return None
        try:
            arrived = self._leases.take(most, wait)
        except BrokerError as error:
            self._not_received(error)
            return None
        lasted = outage.succeeded(clock.monotonic())
        if lasted is not None:
            self._report.outage_seconds += lasted
            log.warning("%s: receiving goes on after %.0f s: the broker answers", self._settings.name, lasted)
        return arrived

    def _not_received(self, error: BrokerError) -> None:
        """Note that the broker gave no messages. Raises BrokerError: this does not pass, or lasts too long."""
        outage, now = self.receive_outage, self._settings.clock.monotonic()
        if not outage.passes(error):
            raise error
        if outage.failed(error, now, asked=policy.asked_wait(self._settings.spec, error)):
            self._report.outages += 1
            log.warning("%s: receiving fails and is tried again: %s", self._settings.name, redact(str(error)))
        self._end_if_away_too_long()

    def _end_if_away_too_long(self) -> None:
        """End a run that waits for an empty queue in vain. Raises BrokerError: the broker's last error."""
        outage = self.receive_outage
        if not self._until_empty or outage.since is None or outage.error is None:
            return
        lasted = self._settings.clock.monotonic() - outage.since
        if lasted >= self._patience:
            self._report.outage_seconds += lasted
            raise outage.error

    def _has_stopped(self) -> bool:
        """Whether a run that is to stop may end: nothing is under way, or its time is over."""
        under_way = any(leased.began or leased.decided for leased in self._leases)
        return time.monotonic() > self._stop_by or not under_way

    def _is_empty(self, looked: float | None) -> bool:
        """Whether nothing is leased, and no message is expected after a look at this time that found none."""
        return not self._leases and looked is not None and self._leases.delayed_retries.is_over(looked)

    def _begin(self, leased: LeasedMessage) -> None:
        undecodable = leased.received.undecodable
        if undecodable is None:
            self._workers.submit(leased)
        else:
            self._note()
            self._give_up(leased, Permanent(undecodable, code=Code.UNDECODABLE), "it cannot be decoded")

    def _take_requests(self) -> None:
        """Carry out the requests of `terminate`."""
        while not self._requests.empty():
            leased, reason = self._requests.get()
            leased = leased.successor or leased
            if leased.decided or leased not in self._leases:
                leased.end(NotTerminated(SETTLED))
            else:
                self._note()
                self._terminate(leased, reason, None)

    def _take_results(self, said: Sequence[tuple[LeasedMessage, BaseException | None]]) -> None:
        """Turn the results of handlers into outcomes, and settle them together. Requests to terminate go first."""
        self._take_requests()
        outcomes: list[tuple[LeasedMessage, Outcome]] = []
        try:
            for leased, error in said:
                if leased.decided:
                    continue
                leased.decided = True
                outcome = self._after_success(leased) if error is None else self._after(leased, error)
                if outcome is not None:
                    outcomes.append((leased, outcome))
        except BaseException:  # the results of its neighbours count, even if this one ends the subscription
            with contextlib.suppress(BrokerError):
                self._leases.settle([each for each in outcomes if isinstance(each[1], Accept)])
            raise
        self._leases.settle(outcomes)

    def _enforce_timeout(self) -> None:
        """An attempt that takes longer than the spec's timeout has failed; its thread is replaced."""
        timeout = self._settings.spec.timeout
        if timeout is None:
            return
        limit = timeout.total_seconds()
        now = self._settings.clock.monotonic()
        late = [leased for leased in self._leases if leased.is_late(now, limit) and self._workers.replace(leased)]
        if self._workers.overrun > _MAX_OVERRUN:
            text = f"{self._workers.overrun} handlers have overrun {limit:g} s and still hang"
            raise DeliveryFailed(f"{self._settings.name}: {text}")
        overran = TimeoutError(f"the handler took longer than {limit:g} s")
        self._take_results([(leased, overran) for leased in late])

    # --- an outage of what handles them ---

    def _try_one(self, circuit: policy.Circuit) -> float | None:
        """Have one message tried, if it is time. Return when the look began, where it found the queue empty."""
        leases, workers = self._leases, self._workers
        now = self._settings.clock.monotonic()
        under_way = sum(not (leased.aside or leased.decided) for leased in leases)
        if under_way >= workers.count or not circuit.is_due(now):
            return None
        aside = self._in_order(leases.aside())
        if not aside or aside[0].turn:
            most = max(workers.count + self._settings.prefetch, _TRIED)
            has_sink = bool(self._settings.spec.dead_letter_sink)
            if aside and len(leases) >= most and has_sink and circuit.lets_go(now):
                self._let_go(aside.pop(0))
            if len(leases) < most:
                arrived = self._receive(1, 0.0 if len(leases) else _IDLE)
                for leased in arrived or ():
                    self._begin(leased) if self._in_order([leased]) else leases.put_aside(leased)
                if any(not (leased.decided or leased.aside) for leased in arrived or ()):
                    circuit.tried(now)
                if arrived:
                    return None
        if not aside:
            return None if len(leases) or self.receive_outage.since is not None else now
        circuit.tried(now)
        self._resume(aside[:1])
        return None

    def _in_order(self, leased: list[LeasedMessage]) -> list[LeasedMessage]:
        """Return those of these that may be tried now.

        Where one message at a time is handled and none is leased ahead, a broker may keep the order of each key. There
        no message is tried before an earlier one of its key that is leased.
        """
        if not self._one_at_a_time:
            return leased
        first: dict[bytes | None, int] = {}
        for each in self._leases:
            key = each.received.message.key
            first[key] = min(each.number, first.get(key, each.number))
        return [each for each in leased if (key := each.received.message.key) is None or first[key] == each.number]

    def _resume(self, aside: Sequence[LeasedMessage]) -> None:
        """Have messages handled that were put aside."""
        for leased in aside:
            leased.aside = False
            self._workers.submit(leased)

    def _let_go(self, leased: LeasedMessage) -> None:
        """Settle one message by its policy, so that a fresh one can be tried."""
        failure = leased.failure or Retriable("not handled", code=Code.HANDLER_FAILED)
        leased.aside, leased.decided = False, True
        outcome = self._decided(leased, failure, self._settings.clock.monotonic())
        if outcome is not None:
            self._leases.settle([(leased, outcome)])

    def _end_if_too_long(self, circuit: policy.Circuit) -> None:
        """End a run that waits for an empty queue in vain. Raises DeliveryFailed."""
        now = self._settings.clock.monotonic()
        lasted = now - (now if circuit.since is None else circuit.since)
        if lasted >= self._patience:
            self._report.outage_seconds += lasted
            text = f"what handles its messages is down for {lasted:.0f} s ({redact(str(circuit.error))})"
            raise DeliveryFailed(f"{self._settings.name}: {text}; messages stay at the broker") from circuit.error

    def _is_outage(self, leased: LeasedMessage, failed: BrokerError, now: float) -> bool:
        """Tell the breaker of a failure; return whether the message is put aside in place of a settlement."""
        circuit = self.circuit
        if circuit is None:
            return False
        if not circuit.counts(failed):
            if circuit.is_open:
                circuit.learned_nothing(now)
            return False
        asked = policy.asked_wait(self._settings.spec, failed)
        began = now if leased.began is None else leased.began
        if circuit.failed(failed, _identity(leased.received), began=began, now=now, asked=asked):
            self._report.outages += 1
            for each in self._workers.recall():
                if not each.decided:
                    self._leases.put_aside(each)
            log.warning(
                "%s: receiving pauses: many messages in a row have failed for one reason (%s); one at a time is tried",
                self._settings.name,
                redact(str(failed)),
            )
        if not circuit.is_open:
            return False
        self._leases.put_aside(leased, failed)
        return True

    def _after_success(self, leased: LeasedMessage) -> Outcome:
        """Return the outcome of a message that was handled. It may end an outage."""
        circuit = self.circuit
        if circuit is not None and leased.began is not None:
            since = circuit.since
            if circuit.succeeded(began=leased.began) and since is not None:
                lasted = self._settings.clock.monotonic() - since
                self._report.outage_seconds += lasted
                log.warning("%s: receiving goes on after %.0f s: a message was handled", self._settings.name, lasted)
                self._resume(sorted(self._leases.aside(), key=lambda each: each.number))
        return _ACCEPT

    # --- failures ---

    def _after(self, leased: LeasedMessage, error: BaseException) -> Outcome | None:
        """Return what follows when a handler raised; None where the message goes to the sinks first."""
        if not isinstance(error, Exception):  # SystemExit, KeyboardInterrupt: the program wants to end
            raise error
        self._report.failures += 1
        self._note()
        if leased.stays is not None:
            raise leased.stays from error
        if isinstance(error, TerminalNack):
            if not self._settings.spec.dead_letter_sink:
                text = f"{label(leased.received.message)} was given up by its handler ({redact(error.reason)})"
                why = "the subscription has no deadLetterSink, so it stays at the broker; name a sink"
                raise ConfigurationError(f"{self._settings.name}: {text}, and {why}") from error
            if self.circuit is not None and self.circuit.is_open:
                self.circuit.learned_nothing(self._settings.clock.monotonic())
            self._terminate(leased, error.reason, error)
            return None
        failed = error if isinstance(error, BrokerError) else _retriable(error)
        now = self._settings.clock.monotonic()
        return None if self._is_outage(leased, failed, now) else self._decided(leased, failed, now)

    def _decided(self, leased: LeasedMessage, failed: BrokerError, now: float) -> Outcome | None:
        """Return what the policy decides after a failure; None where the message goes to the sinks first."""
        clock, first_ms = self._settings.clock, leased.received.first_ms
        decision = policy.decide(
            self._settings.spec,
            failed,
            attempts=leased.received.attempt,
            first_attempt=now if first_ms is None else now - max(0, clock.wall_ms() - first_ms) / 1000,
            isolated=True,
            now=now,
            random=self._settings.random,
        )
        if isinstance(decision, policy.TryAgain):
            self._report.retried += 1
            self._engine.report.retries += 1
            self._engine.report.retried += leased.received.attempt == 1
            return Retry(min(timedelta(seconds=max(0.0, decision.at - now)), self._settings.delay_max))
        if isinstance(decision, policy.GiveUp):
            self._give_up(leased, failed, decision.why)
            return None
        raise failed

    def _note(self) -> None:
        """Count a failure of a message, final or not."""
        self._engine.report.record_failures += 1
        self._engine.report.last_error_ms = self._settings.clock.wall_ms()

    def _terminate(self, leased: LeasedMessage, reason: str, cause: Exception | None) -> None:
        self._report.terms += 1
        error = Terminated(reason or "terminated without a reason")
        error.__cause__ = cause
        self._give_up(leased, error, "its handler gave it up")

    def _give_up(self, leased: LeasedMessage, error: BrokerError, why: str) -> None:
        """Send the message to the sinks; its lease ends only when one of them has confirmed it."""
        leased.decided = True
        received = leased.received
        now_ms = self._settings.clock.wall_ms()
        decoded = received.undecodable is None
        group = Group(
            rows=received.message,
            sent=received.attempt,
            seconds=max(0, now_ms - (received.first_ms or now_ms)) / 1000,
            first_failure_ms=received.first_ms or now_ms,
            last_failure_ms=now_ms,
            stage="TASK_PUT" if decoded else "VALUE_CONVERTER",
            component=qualified(self._settings.handler if decoded else type(self._leases.receiver)),
            spans=() if leased.span is None else (context.written(leased.span),),
            owner=_LeaseOwner(self._settings, leased, self._leases, self._report),
        )
        self._engine.report.rows += 1
        self._engine.give_up(group, [error], why)


class _LeaseOwner(Owner):
    """A leased message on its way to a sink: its lease ends only when a sink has confirmed it."""

    def __init__(self, settings: Settings, leased: LeasedMessage, leases: Leases, report: SubscriptionReport) -> None:
        self.subscriber = settings.name
        self.rename_type = settings.rename_type
        self._has_sink = bool(settings.spec.dead_letter_sink)
        self._leased = leased
        self._leases = leases
        self._report = report
        self._moved = False

    @property
    def received(self) -> Received:
        return self._leased.received

    @property
    def comes_again(self) -> bool:
        return self._leased not in self._leases

    def moved(self) -> None:
        self._moved = True

    def handled(self) -> None:
        if self._has_sink:
            self._report.dead_lettered += 1
        else:
            self._report.skipped += 1
        self._leased.dead = True
        if self._moved:
            self._leases.forget(self._leased)
        else:
            self._leases.settle([(self._leased, Accept())])

    def lose(self) -> None:
        self.lost = True
        self._leases.lose(self._leased)


def _identity(received: Received) -> Hashable:
    """What tells a message from others, over its deliveries."""
    message = received.message
    return received.position if received.lasting else (message.id, message.key, hash(message.value))


def _retriable(error: Exception) -> Retriable:
    failed = Retriable(f"{type(error).__name__}: {error}", code=Code.HANDLER_FAILED, native_code=type(error).__name__)
    failed.__cause__ = error
    return failed


def not_leased(message: Message | str) -> NotTerminated:
    """Return the error of `terminate` for a message that is not leased."""
    return NotTerminated(f"terminate: {label(message)} is not leased (settled already, or never received)")


def without_sink(name: str, message: Message | str) -> ConfigurationError:
    """The error of `terminate` for a subscription that has nowhere to send letters."""
    return ConfigurationError(
        f"terminate: the subscription {name!r} has no deadLetterSink, so {label(message)} stays as it is"
    )


def label(message: Message | str) -> str:
    """Return a message's name for errors."""
    name = message if isinstance(message, str) else message.id
    return f"message {name!r}"
