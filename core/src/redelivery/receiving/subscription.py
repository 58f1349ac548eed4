"""The receiving engine: receive, handle, then accept, retry or give up, by one delivery spec.

A message travels: `Receiver.receive` (a lease) -> a worker thread runs the handler -> what it returned or raised is
turned into an outcome by `policy.decide` -> `Receiver.settle`; what is given up goes down the sinks first, and the
lease is ended only when one of them has confirmed it. Leases are kept alive while a handler runs. A lost lease is
never settled.

The broker's roles are used by the thread that calls `run` alone. This file must not know any broker, nor decide what
follows from an error.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import random as random_module
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from datetime import timedelta
from types import TracebackType
from typing import Final, Self, TypeAlias

from redelivery import policy
from redelivery.base.clock import Clock, SystemClock
from redelivery.base.urls import redact, redact_options
from redelivery.codes import Code
from redelivery.contract.broker import Accept, Outcome, Receiver, Retry
from redelivery.contract.context import qualified
from redelivery.contract.message import Message
from redelivery.contract.spec import NATIVE, DeliverySpec
from redelivery.errors import (
    BrokerError,
    ConfigurationError,
    DeliveryFailed,
    Permanent,
    Retriable,
    TerminalNack,
    Terminated,
)
from redelivery.receiving.checks import check_retries, refuse_own_letters
from redelivery.receiving.leases import SETTLED, LeasedMessage, Leases
from redelivery.receiving.workers import Workers
from redelivery.sending.connector import ConnectionFactory, Connector, Resources, connected
from redelivery.sending.engine import Engine
from redelivery.sending.record import Origin, Record
from redelivery.sending.report import SubscriptionReport
from redelivery.sending.send_queue import Bounds, SendQueue
from redelivery.sending.terminating import TerminatingQueue

log = logging.getLogger("redelivery.subscription")

#: Called with each message. Returning accepts it; raising retries it; raising TerminalNack gives it up.
Handler: TypeAlias = Callable[[Message], object]

#: Of a subscription that is given no name.
DEFAULT_NAME: Final = "default"
#: Nothing to do: how long to wait for a message, or for a handler, in seconds.
_IDLE: Final = 0.5
_GLANCE: Final = 0.02
#: Handlers that overran their time and still hold a thread; more stop the subscription.
_MAX_OVERRUN: Final = 10

_running: weakref.WeakValueDictionary[tuple[int, str], Subscription] = weakref.WeakValueDictionary()


class Subscription:
    """Handles what arrives at one destination.

    Args:
        url: where messages come from.
        handler: see `Handler`. Called on worker threads, `workers` of them at a time.
        name: names the subscription in letters and metrics; one of a name may run in a process.
        own_copy: receive a copy of each message under this name, where the destination is for several (an exchange, a
            topic); what that needs is made by `redelivery apply --subscription NAME`. Otherwise messages are shared
            with all who receive there, whatever their names.
        spec: retries, backoff, sinks. `timeout` is how long a handler may take: then the attempt has failed.
        options: client options with their plugin's prefix.
        workers: handlers side by side.
        prefetch: messages leased ahead of the handlers.
        lease: how long a message is ours without being prolonged.
        terminal: the handler gives messages up (`TerminalNack`, `terminate`): without a sink that is refused at once,
            and not only when it does, which ends the subscription and leaves the message unsettled.
        rename_type: the type under which an event is reposted to a sink that has none of its own; None: the spec's
            `dead_letter_type`.
        stop_timeout: how long a stop waits for handlers before their messages are given back.
        connection_factory, clock, random: for tests.

    Raises:
        ConfigurationError
    """

    def __init__(
        self,
        url: str,
        handler: Handler,
        *,
        name: str = DEFAULT_NAME,
        own_copy: bool = False,
        spec: DeliverySpec | None = None,
        options: Mapping[str, str] | None = None,
        workers: int = 1,
        prefetch: int = 100,
        lease: timedelta = timedelta(seconds=30),
        terminal: bool = False,
        rename_type: str | None = None,
        stop_timeout: timedelta = timedelta(seconds=30),
        connection_factory: ConnectionFactory | None = None,
        clock: Clock | None = None,
        random: Callable[[], float] = random_module.random,
    ) -> None:
        if workers < 1 or prefetch < 0 or lease <= timedelta(0):
            raise ConfigurationError("workers must be 1 or more, prefetch 0 or more, and lease more than 0")
        if own_copy and name == DEFAULT_NAME:
            raise ConfigurationError("own_copy: a copy goes by the name of its subscription; give it a name of its own")
        if terminal and not (spec and spec.dead_letter_sink):
            raise ConfigurationError(f"the subscription {name!r} gives messages up, so it needs a deadLetterSink")
        self.name = name
        self.report = SubscriptionReport(name=name)
        self._given = self._url = url
        self._own_copy = own_copy
        self._handler = handler
        self._spec = spec or DeliverySpec()
        self._options = options or {}
        self._workers = workers
        self._prefetch = prefetch
        self._lease = lease
        self._rename_type = rename_type
        self._stop_timeout = stop_timeout.total_seconds()
        self._connection_factory = connection_factory or connected
        self._clock = clock or SystemClock()
        self._random = random
        self._asked: queue.SimpleQueue[tuple[LeasedMessage, str]] = queue.SimpleQueue()
        self._leases: Leases | None = None
        self._delay_max = timedelta.max
        self._stopping = threading.Event()
        self._stop_by = float("inf")

    # --- what anyone may call ---

    def run(self, *, until_empty: bool = False) -> SubscriptionReport:
        """Handle messages until `stop`, or until none is left.

        Args:
            until_empty: end when nothing has arrived for a moment and everything under lease is settled. What this run
                gave back to come again after a delay is waited for, if nobody else takes it; other delayed messages
                are not.

        Raises:
            DeliveryFailed: a message could neither be handled nor dead-lettered; it stays unsettled at the broker.
            ConfigurationError: also where a handler gave a message up and there is no sink; it stays likewise.
            BrokerError, ConfigurationError, Unsupported
        """
        key = (os.getpid(), self.name)
        if _running.setdefault(key, self) is not self:
            raise ConfigurationError(f"a subscription named {self.name!r} is already running here; name this one apart")
        try:
            with Resources() as resources:
                receiver, engine = self._open(resources)
                self._leases = leases = Leases(
                    receiver,
                    spec=self._spec,
                    lease=self._lease,
                    report=self.report,
                    clock=self._clock,
                    random=self._random,
                )
                resources.callback(leases.give_back)
                workers = Workers(self._handler, self._workers, self.name, self._clock)
                resources.callback(workers.dismiss)
                try:
                    self._loop(leases, workers, engine, until_empty=until_empty)
                except BaseException as error:
                    leases.abandon(error)
                    raise
        finally:
            _running.pop(key, None)
        return self.report

    def stop(self) -> None:
        """End `run` gracefully: what is under lease is settled or given back. Safe from any thread or signal handler."""
        self._stopping.set()

    def terminate(self, message: Message | str, reason: str = "") -> Future[None]:
        """Give up one message under lease: it is dead-lettered and settled, whatever its handler still says.

        Args:
            message: the message as the handler got it, or its id, or its position (`Received.position`).
            reason: kept in its context.

        Returns:
            What ends when the letter is confirmed and the lease over, or with what came in its way. A handler may wait
            for it.

        Raises:
            ConfigurationError: the subscription has no dead letter sink, and so the message is not given up, nor
                skipped; or no such message is under lease, or several are.
        """
        leased = self._named(message)
        if not self._spec.dead_letter_sink:
            stays = ConfigurationError(
                f"terminate: the subscription {self.name!r} has no deadLetterSink, so {_label(message)} stays as it is"
            )
            if leased is not None:
                leased.stays = stays
            raise stays
        future = None if leased is None or self._leases is None else self._leases.ask(leased)
        if leased is None or future is None:
            text = "is not under lease (settled already, or never received)"
            raise ConfigurationError(f"terminate: {_label(message)} {text}")
        self._asked.put((leased, reason))
        return future

    def _named(self, message: Message | str) -> LeasedMessage | None:
        """What is under lease under this name. Raises ConfigurationError: several are."""
        there = [leased for leased in self._leases or () if not leased.decided]
        if not isinstance(message, str):
            return next((leased for leased in there if leased.received.message is message), None)
        found = [leased for leased in there if leased.received.message.id == message]
        found = found or [leased for leased in there if leased.received.position == message != ""]
        if len(found) > 1:
            text = f"{len(found)} messages under lease are called {message!r}: name one by its position"
            raise ConfigurationError(f"terminate: {text}")
        return found[0] if found else None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # --- opening ---

    def _open(self, resources: Resources) -> tuple[Receiver, Engine]:
        if self._own_copy:
            with self._connection_factory(self._given, self._options) as several:
                self._url = several.subscription(self.name)
        connector = Connector(
            url=self._url,
            spec=self._spec,
            options=self._options,
            bounds=Bounds(),
            clock=self._clock,
            connection_factory=self._connection_factory,
            resources=resources,
        )
        broker = connector.connect()
        check_retries(broker, self._spec)
        self._delay_max = broker.capabilities.limits.delay_max or timedelta.max
        receiver = broker.receiver(lease=self._lease)
        resources.callback(receiver.close)
        send_queues = [SendQueue(redact(self._url), broker, self._spec, Bounds(), self._clock)]
        for sink in self._spec.dead_letter_sink:
            if sink.uri == NATIVE and broker.capabilities.terminate:
                refuse_own_letters(broker, self._url)
                send_queues.append(TerminatingQueue(broker, receiver, self._spec, self._clock))
                send_queues[-1].rename_type = sink.type
            else:
                send_queues.append(connector.sink(sink, broker))
        origin = Origin(run=self.name, configs=redact_options({"url": self._url, **self._options}))
        engine = Engine(send_queues, self._spec, origin, self._clock, self._random)
        self.report.delivery = engine.report
        return receiver, engine

    # --- the loop ---

    def _loop(self, leases: Leases, workers: Workers, engine: Engine, *, until_empty: bool) -> None:
        empty: float | None = None  # when we last looked, where nothing came then
        while True:
            stopping = self._stopping.is_set()
            if stopping:
                self._stop_by = min(self._stop_by, time.monotonic() + self._stop_timeout)
                workers.drop()
            self._take_results(leases, workers.results(), engine)
            self._enforce_timeout(leases, workers, engine)
            engine.turn(0.0)
            leases.tend()
            if stopping:
                if time.monotonic() > self._stop_by or not any(leased.began or leased.decided for leased in leases):
                    return
            elif until_empty and not leases and empty is not None and leases.delayed_retries.is_over(empty):
                return
            room = 0 if stopping else workers.count + self._prefetch - len(leases)
            if room > 0:
                wait, looked = 0.0 if len(leases) else _IDLE, self._clock.monotonic()
                arrived = leases.take(room, wait)
                empty = looked if not arrived and wait > 0 else None
                for leased in arrived:
                    self._begin(leased, workers, leases, engine)
                if arrived:
                    continue
            if len(leases):
                self._take_results(leases, workers.results(_GLANCE), engine)

    def _begin(self, leased: LeasedMessage, workers: Workers, leases: Leases, engine: Engine) -> None:
        undecodable = leased.received.undecodable
        if undecodable is None:
            workers.submit(leased)
        else:
            self._note(engine)
            self._give_up(leased, Permanent(undecodable, code=Code.UNDECODABLE), "it cannot be decoded", leases, engine)

    def _take_requests(self, leases: Leases, engine: Engine) -> None:
        """Carry out what `terminate` asked for."""
        while not self._asked.empty():
            leased, reason = self._asked.get()
            if leased.decided or leased not in leases:
                leased.end(ConfigurationError(SETTLED))
            else:
                self._note(engine)
                self._terminate(leased, reason, None, leases, engine)

    def _take_results(
        self, leases: Leases, said: list[tuple[LeasedMessage, BaseException | None]], engine: Engine
    ) -> None:
        """Turn what handlers said into outcomes, and settle them together. What `terminate` asked for goes first."""
        self._take_requests(leases, engine)
        outcomes: list[tuple[LeasedMessage, Outcome]] = []
        try:
            for leased, error in said:
                if leased.decided:
                    continue
                leased.decided = True
                outcome = Accept() if error is None else self._after(leased, error, leases, engine)
                if outcome is not None:
                    outcomes.append((leased, outcome))
        except BaseException:  # whatever ends the subscription, what its neighbours said holds
            with contextlib.suppress(BrokerError):
                leases.settle([each for each in outcomes if isinstance(each[1], Accept)])
            raise
        leases.settle(outcomes)

    def _after(self, leased: LeasedMessage, error: BaseException, leases: Leases, engine: Engine) -> Outcome | None:
        """What follows when a handler raised; None where the message goes down the sinks first."""
        if not isinstance(error, Exception):  # SystemExit, KeyboardInterrupt: the program wants to end
            raise error
        self.report.failures += 1
        self._note(engine)
        if leased.stays is not None:
            raise leased.stays from error
        if isinstance(error, TerminalNack):
            if not self._spec.dead_letter_sink:
                text = f"{_label(leased.received.message)} was given up by its handler ({redact(error.reason)})"
                why = "the subscription has no deadLetterSink, so it stays at the broker; name a sink"
                raise ConfigurationError(f"{self.name}: {text}, and {why}") from error
            self._terminate(leased, error.reason, error, leases, engine)
            return None
        failed = error if isinstance(error, BrokerError) else _retriable(error)
        now = self._clock.monotonic()
        first_ms = leased.received.first_ms
        decision = policy.decide(
            self._spec,
            failed,
            attempts=leased.received.attempt,
            first_attempt=now if first_ms is None else now - max(0, self._clock.wall_ms() - first_ms) / 1000,
            isolated=True,
            now=now,
            random=self._random,
        )
        if isinstance(decision, policy.TryAgain):
            self.report.retried += 1
            engine.report.retries += 1
            engine.report.retried += leased.received.attempt == 1
            return Retry(min(timedelta(seconds=max(0.0, decision.at - now)), self._delay_max))
        if isinstance(decision, policy.GiveUp):
            self._give_up(leased, failed, decision.why, leases, engine)
            return None
        raise failed

    def _note(self, engine: Engine) -> None:
        """Count a failure of a message, be it for good or not."""
        engine.report.record_failures += 1
        engine.report.last_error_ms = self._clock.wall_ms()

    def _terminate(
        self, leased: LeasedMessage, reason: str, cause: Exception | None, leases: Leases, engine: Engine
    ) -> None:
        self.report.terms += 1
        error = Terminated(reason or "terminated without a reason")
        error.__cause__ = cause
        self._give_up(leased, error, "its handler gave it up", leases, engine)

    def _give_up(self, leased: LeasedMessage, error: BrokerError, why: str, leases: Leases, engine: Engine) -> None:
        """Send the message down the sinks; its lease is ended only when one has confirmed it."""
        leased.decided = True
        received = leased.received
        now_ms = self._clock.wall_ms()

        def handled(record: Record) -> None:
            if self._spec.dead_letter_sink:
                self.report.dead_lettered += 1
            else:
                self.report.skipped += 1
            leased.dead = True
            if record.received is None:
                leases.forget(leased)
            else:
                leases.settle([(leased, Accept())])

        record = Record(
            message=received.message,
            outgoing=received.message,
            sent=received.attempt,
            seconds=max(0, now_ms - (received.first_ms or now_ms)) / 1000,
            first_failure_ms=received.first_ms or now_ms,
            last_failure_ms=now_ms,
            subscriber=self.name,
            stage="VALUE_CONVERTER" if leased.received.undecodable is not None else "TASK_PUT",
            component=qualified(type(leases.receiver) if leased.received.undecodable is not None else self._handler),
            received=lambda: leased.received,
            rename_type=self._rename_type,
            handled=handled,
            lost=lambda: leases.lose(leased),
        )
        engine.report.rows += 1
        engine.give_up(record, error, why)

    def _enforce_timeout(self, leases: Leases, workers: Workers, engine: Engine) -> None:
        """An attempt that takes longer than the spec's timeout has failed; its thread is replaced."""
        if self._spec.timeout is None:
            return
        limit = self._spec.timeout.total_seconds()
        now = self._clock.monotonic()
        late = [leased for leased in leases if leased.is_late(now, limit)]
        for leased in late:
            workers.replace(leased)
        if workers.overrun > _MAX_OVERRUN:
            raise DeliveryFailed(f"{self.name}: {workers.overrun} handlers have overrun {limit:g} s and still hang")
        overran = TimeoutError(f"the handler took longer than {limit:g} s")
        self._take_results(leases, [(leased, overran) for leased in late], engine)


def _retriable(error: Exception) -> Retriable:
    failed = Retriable(f"{type(error).__name__}: {error}", code=Code.HANDLER_FAILED, native_code=type(error).__name__)
    failed.__cause__ = error
    return failed


def _label(message: Message | str) -> str:
    name = message if isinstance(message, str) else message.id
    return f"message {name!r}"
