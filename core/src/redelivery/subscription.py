"""The receiving engine: receive, handle, then accept, retry or give up, by one delivery spec.

A message travels: `Receiver.receive` (a lease) -> a worker thread runs the handler -> what it returned or raised is
turned into an outcome by `policy.decide` -> `Receiver.settle`; what is given up goes down the sinks first, and the
lease is ended only when one of them has confirmed it. Leases are kept alive while a handler runs. A lost lease is
never settled.

The broker's roles are used by the thread that calls `run` alone. This file must not know any broker, nor decide what
follows from an error.
"""

from __future__ import annotations

import itertools
import logging
import os
import queue
import random as random_module
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Final, Self, TypeAlias

from redelivery import policy
from redelivery.broker import Accept, Broker, GiveBack, Outcome, Received, Receiver, Retry
from redelivery.clock import Clock, SystemClock
from redelivery.delivery.engine import Engine
from redelivery.delivery.lane import Bounds, Lane
from redelivery.delivery.opening import Borrow, Opening, connected
from redelivery.delivery.record import Origin, Record
from redelivery.delivery.terminating import TerminatingLane
from redelivery.errors import (
    BrokerError,
    ConfigurationError,
    DeliveryFailed,
    LeaseLost,
    Permanent,
    Retriable,
    TerminalNack,
    Terminated,
    Unsupported,
)
from redelivery.message import Message
from redelivery.report import DeliveryReport, SubscriptionReport
from redelivery.settings import redact
from redelivery.spec import FOREVER, NATIVE, DeliverySpec

log = logging.getLogger("redelivery.subscription")

#: Called with each message. Returning accepts it; raising retries it; raising TerminalNack gives it up.
Handler: TypeAlias = Callable[[Message], object]

#: Nothing to do: how long to wait for a message, or for a handler, in seconds.
_IDLE: Final = 0.5
_GLANCE: Final = 0.02
#: Handlers that overran their time and still hold a thread; more stop the subscription.
_MAX_OVERRUN: Final = 10

_running: weakref.WeakValueDictionary[tuple[int, str], Subscription] = weakref.WeakValueDictionary()


@dataclass(slots=True, eq=False)
class _InHand:
    """A message under our lease.

    Attributes:
        received: with the lease as last prolonged.
        began: when its handler began, monotonic seconds; None: it has not.
        decided: what becomes of it is settled or under way; its handler's result no longer matters.
    """

    received: Received
    began: float | None = None
    decided: bool = False


class Subscription:
    """Handles what arrives at one destination.

    Args:
        url: where messages come from.
        handler: see `Handler`. Called on worker threads, `workers` of them at a time.
        name: names the subscription in letters and metrics; one of a name may run in a process.
        spec: retries, backoff, sinks. `timeout` is how long a handler may take: then the attempt has failed.
        options: client options with their plugin's prefix.
        workers: handlers side by side.
        prefetch: messages leased ahead of the handlers.
        lease: how long a message is ours without being prolonged.
        rename_type: the type under which an event is reposted to a sink; None: its own.
        stop_timeout: how long a stop waits for handlers before their messages are given back.
        borrow, clock, random: for tests.

    Raises:
        ConfigurationError
    """

    def __init__(
        self,
        url: str,
        handler: Handler,
        *,
        name: str = "default",
        spec: DeliverySpec | None = None,
        options: Mapping[str, str] | None = None,
        workers: int = 1,
        prefetch: int = 100,
        lease: timedelta = timedelta(seconds=30),
        rename_type: str | None = None,
        stop_timeout: timedelta = timedelta(seconds=30),
        borrow: Borrow | None = None,
        clock: Clock | None = None,
        random: Callable[[], float] = random_module.random,
    ) -> None:
        if workers < 1 or prefetch < 0 or lease <= timedelta(0):
            raise ConfigurationError("workers must be 1 or more, prefetch 0 or more, and lease more than 0")
        self.name = name
        self.report = SubscriptionReport(name=name)
        self._url = url
        self._handler = handler
        self._spec = spec or DeliverySpec()
        self._options = options or {}
        self._workers = workers
        self._prefetch = prefetch
        self._lease = lease
        self._rename_type = rename_type
        self._stop_timeout = stop_timeout.total_seconds()
        self._borrow = borrow or connected
        self._clock = clock or SystemClock()
        self._random = random
        self._pid = os.getpid()
        self._hands: dict[int, _InHand] = {}
        self._numbers = itertools.count()
        self._todo: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[tuple[int, BaseException | None]] = queue.SimpleQueue()
        self._asked: queue.SimpleQueue[tuple[int, str]] = queue.SimpleQueue()
        self._unsettled: list[tuple[float, int, int, Outcome]] = []
        self._stopping = threading.Event()
        self._stop_by = float("inf")
        self._overrun = 0

    # --- what anyone may call ---

    def run(self, *, until_empty: bool = False) -> SubscriptionReport:
        """Handle messages until `stop`, or until none is left.

        Args:
            until_empty: end when nothing more arrives and everything in hand is settled.

        Raises:
            DeliveryFailed: a message could neither be handled nor dead-lettered; it stays unsettled at the broker.
            BrokerError, ConfigurationError, Unsupported
        """
        key = (os.getpid(), self.name)
        if _running.setdefault(key, self) is not self:
            raise ConfigurationError(f"a subscription named {self.name!r} is already running here; name this one apart")
        try:
            with ExitStack() as resources:
                receiver, engine = self._open(resources)
                threads = [self._hire() for _ in range(self._workers)]
                try:
                    self._loop(receiver, engine, until_empty=until_empty)
                finally:
                    for _ in range(len(threads) + self._overrun):
                        self._todo.put(None)
                    self._give_back(receiver)
        finally:
            _running.pop(key, None)
        return self.report

    def stop(self) -> None:
        """End `run` gracefully: what is in hand is settled or given back. Safe from any thread or signal handler."""
        self._stopping.set()

    def terminate(self, message: Message | str, reason: str = "") -> None:
        """Give up one message in hand: it is dead-lettered and settled, whatever its handler still says.

        Args:
            message: the message as the handler got it, or its id.
            reason: kept in its context.

        Raises:
            ConfigurationError: the subscription has no dead letter sink, or no such message is in hand.
        """
        if not self._spec.dead_letter_sink:
            raise ConfigurationError(
                f"terminate: the subscription {self.name!r} has no deadLetterSink, so {_label(message)} stays as it is"
            )
        for number, hand in list(self._hands.items()):
            mine = hand.received.message
            if not hand.decided and (mine is message or (isinstance(message, str) and mine.id == message)):
                self._asked.put((number, reason))
                return
        raise ConfigurationError(f"terminate: {_label(message)} is not in hand (settled already, or never received)")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # --- opening ---

    def _open(self, resources: ExitStack) -> tuple[Receiver, Engine]:
        opening = Opening(
            url=self._url,
            spec=self._spec,
            options=self._options,
            bounds=Bounds(),
            clock=self._clock,
            borrow=self._borrow,
            resources=resources,
        )
        broker = opening.connect()
        self._check(broker)
        receiver = broker.receiver(lease=self._lease)
        resources.callback(receiver.close)
        lanes = [Lane(redact(self._url), broker, self._spec, Bounds(), self._clock)]
        for sink in self._spec.dead_letter_sink:
            if sink.uri == NATIVE and broker.capabilities.terminate:
                lanes.append(TerminatingLane(broker, receiver, self._spec, self._clock))
            else:
                lanes.append(opening.sink(sink, broker))
        engine = Engine(lanes, self._spec, Origin(run=self.name), self._clock, self._random)
        self.report.delivery = engine.report
        return receiver, engine

    def _check(self, broker: Broker) -> None:
        can = broker.capabilities
        retries = bool(self._spec.retry or self._spec.retry_timeout)
        if retries and not can.delay:
            raise Unsupported(f"{broker.name}: cannot keep a message away for a delay, so it has no retries")
        timed = self._spec.retry_timeout not in {None, FOREVER, timedelta(0)}
        if timed and not can.first_delivery:
            raise Unsupported(
                f"{broker.name}: does not tell when a message was first delivered, so errors.retry.timeout cannot be "
                "kept here; give a number of retries"
            )

    # --- the loop ---

    def _loop(self, receiver: Receiver, engine: Engine, *, until_empty: bool) -> None:
        empty = False
        while True:
            if self._stopping.is_set():
                self._stop_by = min(self._stop_by, time.monotonic() + self._stop_timeout)
                self._drop_untouched()
            self._take_results(receiver, engine)
            self._enforce_timeout(engine)
            engine.turn(0.0)
            self._settle_again(receiver)
            self._prolong(receiver)
            if self._stopping.is_set():
                if not any(hand.began is not None for hand in self._hands.values()) or time.monotonic() > self._stop_by:
                    return
            elif until_empty and empty and not self._hands:
                return
            room = 0 if self._stopping.is_set() else self._workers + self._prefetch - len(self._hands)
            if room > 0:
                arrived = receiver.receive(room, wait=0.0 if self._hands else _IDLE)
                empty = not arrived
                for received in arrived:
                    self._take(received, engine)
                if arrived:
                    continue
            if self._hands:
                self._pause()

    def _pause(self) -> None:
        """Wait a moment for a handler's result, then leave it for the loop."""
        try:
            result = self._done.get(timeout=_GLANCE)
        except queue.Empty:
            return
        self._done.put(result)

    def _take(self, received: Received, engine: Engine) -> None:
        self.report.received += 1
        number = next(self._numbers)
        self._hands[number] = hand = _InHand(received)
        if received.undecodable is not None:
            self._give_up(number, hand, Permanent(received.undecodable, code="Undecodable"), engine)
        else:
            self._todo.put(number)

    def _take_results(self, receiver: Receiver, engine: Engine) -> None:
        """Turn what handlers said, and what `terminate` asked for, into outcomes; settle them together."""
        outcomes: list[tuple[int, Outcome]] = []
        while not self._asked.empty():
            number, reason = self._asked.get()
            hand = self._hands.get(number)
            if hand is not None and not hand.decided:
                self.report.terms += 1
                self._give_up(number, hand, Terminated(reason or "terminated", code="Terminated"), engine)
        while not self._done.empty():
            number, error = self._done.get()
            hand = self._hands.get(number)
            if hand is None or hand.decided:
                continue
            outcome = self._decide(number, hand, error, engine)
            if outcome is not None:
                hand.decided = True
                outcomes.append((number, outcome))
        self._settle(receiver, outcomes)

    def _decide(self, number: int, hand: _InHand, error: BaseException | None, engine: Engine) -> Outcome | None:
        """The outcome of a handled message; None where it goes down the sinks first."""
        if error is None:
            return Accept()
        if not isinstance(error, Exception):  # SystemExit, KeyboardInterrupt: the program wants to end
            raise error
        self.report.failures += 1
        if isinstance(error, TerminalNack):
            self.report.terms += 1
            self._give_up(number, hand, _chained(Terminated(error.reason, code="Terminated"), error), engine)
            return None
        failed = error if isinstance(error, BrokerError) else _chained(_failed(error), error)
        now = self._clock.monotonic()
        decision = policy.decide(
            self._spec,
            failed,
            attempts=hand.received.attempt,
            first_attempt=self._first_attempt(hand, now),
            isolated=True,
            now=now,
            random=self._random,
        )
        if isinstance(decision, policy.TryAgain):
            self.report.retried += 1
            return Retry(timedelta(seconds=max(0.0, decision.at - now)))
        if isinstance(decision, policy.Abort):
            raise failed
        self._give_up(number, hand, failed, engine, why=getattr(decision, "why", ""))
        return None

    def _first_attempt(self, hand: _InHand, now: float) -> float:
        first_ms = hand.received.first_ms
        return now if first_ms is None else now - max(0, self._clock.wall_ms() - first_ms) / 1000

    def _give_up(self, number: int, hand: _InHand, error: BrokerError, engine: Engine, why: str = "given up") -> None:
        """Send the message down the sinks; its lease is ended when one has confirmed it."""
        hand.decided = True
        received = hand.received
        now_ms = self._clock.wall_ms()

        def handled(record: Record) -> None:
            self.report.dead_lettered += 1
            if record.received is not None:  # the source has not moved it by itself
                self._unsettled.append((self._clock.monotonic(), 1, number, Accept()))
            else:
                self._hands.pop(number, None)

        record = Record(
            message=received.message,
            outgoing=received.message,
            sent=received.attempt,
            first_failure_ms=received.first_ms or now_ms,
            last_failure_ms=now_ms,
            subscriber=self.name,
            received=received,
            rename_type=self._rename_type,
            handled=handled,
            lost=lambda: self._lose(number),
        )
        engine.report.rows += 1
        engine.report.record_failures += 1
        engine.report.last_error_ms = now_ms
        engine.give_up(record, error, why)

    # --- leases ---

    def _settle(self, receiver: Receiver, outcomes: list[tuple[int, Outcome]], attempts: int = 1) -> None:
        """End leases; what cannot be ended now is tried again until its budget is over."""
        known = [(number, outcome) for number, outcome in outcomes if number in self._hands]
        if not known:
            return
        answers: list[LeaseLost | BrokerError | None]
        try:
            answers = list(receiver.settle([(self._hands[number].received, outcome) for number, outcome in known]))
        except BrokerError as error:
            answers = [error] * len(known)
        for (number, outcome), answer in zip(known, answers, strict=True):
            if answer is None:
                self._hands.pop(number)
                self.report.accepted += isinstance(outcome, Accept)
            elif isinstance(answer, LeaseLost):
                self._lose(number)
            else:
                self._settle_later(number, outcome, answer, attempts)

    def _settle_later(self, number: int, outcome: Outcome, error: BrokerError, attempts: int) -> None:
        now = self._clock.monotonic()
        decision = policy.decide(
            policy.for_sink(self._spec),
            error,
            attempts=attempts,
            first_attempt=now,
            isolated=True,
            now=now,
            random=self._random,
        )
        if isinstance(decision, policy.Abort):
            raise error
        if isinstance(decision, policy.TryAgain):
            self._unsettled.append((decision.at, attempts + 1, number, outcome))
            return
        log.warning("%s: a message could not be settled and will come again: %s", self.name, redact(str(error)))
        self._lose(number)

    def _settle_again(self, receiver: Receiver) -> None:
        now = self._clock.monotonic()
        due = [each for each in self._unsettled if each[0] <= now]
        self._unsettled = [each for each in self._unsettled if each[0] > now]
        for attempts, group in itertools.groupby(sorted(due, key=lambda each: each[1]), key=lambda each: each[1]):
            self._settle(receiver, [(number, outcome) for _, _, number, outcome in group], attempts)

    def _prolong(self, receiver: Receiver) -> None:
        """Prolong leases that have less than half their time left."""
        half = self._clock.monotonic() + self._lease.total_seconds() / 2
        short = [
            (number, hand)
            for number, hand in self._hands.items()
            if hand.received.expires is not None and hand.received.expires < half
        ]
        if not short:
            return
        try:
            answers = receiver.extend([hand.received for _, hand in short], self._lease.total_seconds())
        except BrokerError as error:
            log.warning("%s: leases could not be prolonged: %s", self.name, redact(str(error)))
            return
        for (number, hand), answer in zip(short, answers, strict=True):
            if isinstance(answer, LeaseLost):
                self._lose(number)
            else:
                hand.received = answer

    def _lose(self, number: int) -> None:
        """The lease is gone: whoever has the message now answers for it."""
        hand = self._hands.pop(number, None)
        if hand is not None:
            hand.decided = True
            self.report.lost += 1

    def _drop_untouched(self) -> None:
        """Let workers find nothing more to do; what they had not begun is given back at the end."""
        while not self._todo.empty():
            try:
                self._todo.get_nowait()
            except queue.Empty:
                return

    def _give_back(self, receiver: Receiver) -> None:
        hands = [hand.received for hand in self._hands.values()]
        self._hands.clear()
        if not hands:
            return
        try:
            receiver.settle([(received, GiveBack()) for received in hands])
            self.report.given_back += len(hands)
        except (BrokerError, LeaseLost) as error:
            log.warning("%s: %d messages come back when their leases end: %s", self.name, len(hands), error)

    # --- handlers ---

    def _hire(self) -> threading.Thread:
        thread = threading.Thread(target=self._work, name=f"redelivery-{self.name}", daemon=True)
        thread.start()
        return thread

    def _work(self) -> None:
        while (number := self._todo.get()) is not None:
            hand = self._hands.get(number)
            if hand is None or hand.decided:
                continue
            hand.began = self._clock.monotonic()
            error: BaseException | None = None
            try:
                self._handler(hand.received.message)
            except BaseException as raised:  # noqa: BLE001 - turned into an outcome by the loop
                error = raised
            if os.getpid() != self._pid:  # a handler that forked came back twice; only the parent settles
                return
            self._done.put((number, error))

    def _enforce_timeout(self, engine: Engine) -> None:
        """An attempt that takes longer than the spec's timeout has failed; its thread is replaced."""
        if self._spec.timeout is None:
            return
        limit = self._spec.timeout.total_seconds()
        now = self._clock.monotonic()
        for number, hand in list(self._hands.items()):
            if hand.began is None or hand.decided or now - hand.began <= limit:
                continue
            self._overrun += 1
            if self._overrun > _MAX_OVERRUN:
                raise DeliveryFailed(f"{self.name}: {self._overrun} handlers have overrun {limit:g} s and still hang")
            self._hire()
            self._done.put((number, TimeoutError(f"the handler took longer than {limit:g} s")))


def _failed(error: Exception) -> Retriable:
    return Retriable(f"{type(error).__name__}: {error}", code=type(error).__name__)


def _chained(error: BrokerError, cause: BaseException) -> BrokerError:
    error.__cause__ = cause
    return error


def _label(message: Message | str) -> str:
    name = message if isinstance(message, str) else message.id
    return f"message {name!r}"


__all__ = ["DeliveryReport", "Handler", "Subscription"]
