"""The receiving engine: receive, handle, then accept, retry or give up, by one delivery spec.

A message travels: `Receiver.receive` (a lease) -> a worker thread runs the handler -> `policy.decide` turns its result
into an outcome -> `Receiver.settle`. A message that is given up goes to the sinks first, and its lease ends only when
one of them has confirmed it. Leases are prolonged while a handler runs. A lost lease is never settled.
"""

from __future__ import annotations

import logging
import os
import random as random_module
import threading
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Final, Self, TypeAlias

from redelivery.base.clock import Clock, SystemClock
from redelivery.base.urls import redact, redact_options
from redelivery.contract.broker import Broker, Receiver
from redelivery.contract.message import Message
from redelivery.contract.spec import NATIVE, DeliverySpec
from redelivery.errors import (
    ConfigurationError,
)
from redelivery.policy.breaker import Breaker
from redelivery.receiving.checks import check_retries, refuse_own_letters
from redelivery.receiving.coroutines import CoroutineWorkers, is_coroutine_function
from redelivery.receiving.leases import Leases
from redelivery.receiving.running import RunningSubscription, Settings, not_leased, without_sink
from redelivery.receiving.terminating import TerminatingQueue
from redelivery.receiving.workers import Workers
from redelivery.sending.connector import ConnectionFactory, Connector, Resources, connected
from redelivery.sending.engine import Engine
from redelivery.sending.group import Origin
from redelivery.sending.report import SubscriptionReport
from redelivery.sending.send_queue import Bounds, SendQueue
from redelivery.telemetry.conventions import SUBSCRIPTION
from redelivery.telemetry.counters import Counters
from redelivery.telemetry.handling import HandlingObserver

log = logging.getLogger("redelivery.subscription")

#: Called with each message. Returning accepts it; raising retries it; raising TerminalNack gives it up. It may be an
#: `async def` function.
Handler: TypeAlias = Callable[[Message], object]

#: The name of a subscription without one.
DEFAULT_NAME: Final = "default"

_DEFAULT_BREAKER: Final = Breaker()

_running: weakref.WeakValueDictionary[tuple[int, str], Subscription] = weakref.WeakValueDictionary()


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """An outage of what handles the messages of a subscription.

    Attributes:
        reason: the code of the failures.
        text: of the last one.
        seconds: how long it has lasted.
    """

    reason: str
    text: str
    seconds: float


class Subscription:
    """Handles the messages of one destination.

    Args:
        url: where messages come from.
        handler: see `Handler`. Called on worker threads, `workers` of them at a time. A coroutine function runs on one
            event loop in one thread, `workers` times at once; it must not block, and is cancelled when it overruns its
            time or the stop's.
        name: names the subscription in letters and metrics; a process may run one subscription of a name.
        own_copy: receive a copy of each message under this name, where the destination has several readers (an
            exchange, a topic); `redelivery apply --subscription NAME` creates the necessary objects. Otherwise messages
            are shared with all who receive there, whatever their names.
        spec: retries, backoff, sinks. `timeout` is how long a handler may take: then the attempt has failed.
        options: client options with their plugin's prefix.
        workers: handlers side by side.
        prefetch: messages leased ahead of the handlers.
        lease: how long a message is ours without being prolonged.
        terminal: the handler gives messages up (`TerminalNack`, `terminate`): a spec without a sink is then refused at
            once. Otherwise the first such message ends the subscription and stays unsettled.
        rename_type: the type under which an event is reposted to a sink that has no type; None: the spec's
            `dead_letter_type`.
        stop_timeout: how long a stop waits for handlers before it releases their messages.
        breaker: what counts as an outage of what handles messages: nearly all of them fail for one retriable reason.
            Then they stay in the queue, and one at a time is tried until one is handled. None: each failure counts as
            the message's own.
        connection_factory: for tests.
        clock: for tests.
        random: for tests.

    Raises:
        ConfigurationError: an argument does not fit the others, or a field of the spec does not fit a handler.
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
        breaker: Breaker | None = _DEFAULT_BREAKER,
        connection_factory: ConnectionFactory | None = None,
        clock: Clock | None = None,
        random: Callable[[], float] = random_module.random,
    ) -> None:
        if workers < 1 or prefetch < 0 or lease <= timedelta(0):
            raise ConfigurationError("workers must be 1 or more, prefetch 0 or more, and lease more than 0")
        if own_copy and name == DEFAULT_NAME:
            raise ConfigurationError("own_copy: a copy goes by the name of its subscription; give it its own name")
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
        self._breaker = breaker
        self._stop_timeout = stop_timeout.total_seconds()
        self._connection_factory = connection_factory or connected
        self._clock = clock or SystemClock()
        self._random = random
        self._running: RunningSubscription | None = None
        self._stopping = threading.Event()

    # --- public ---

    def run(self, *, until_empty: bool = False) -> SubscriptionReport:
        """Handle messages until `stop`, or until none is left.

        Args:
            until_empty: end when nothing has arrived for a moment and everything under lease is settled. The run waits
                for the messages that it released to come again after a delay, unless another consumer takes them; it
                does not wait for other delayed messages.

        Raises:
            DeliveryFailed: a message could neither be handled nor dead-lettered, or, with `until_empty`, an outage
                lasted longer than the breaker's patience. Unsettled messages stay at the broker.
            ConfigurationError: also where a handler gave a message up and no sink exists; the message stays, too.
            BrokerError: the broker refused it, or, with `until_empty`, did not answer for longer than the breaker's
                patience. Otherwise an outage of the broker ends no run: receiving is tried again until it is over.
            Unsupported: the destination cannot be received from.
        """
        key = (os.getpid(), self.name)
        if _running.setdefault(key, self) is not self:
            raise ConfigurationError(f"a subscription named {self.name!r} is already running here; name this one apart")
        try:
            with Resources() as resources:
                self._running = running = self._open(resources)
                running.run(until_empty=until_empty)
        finally:
            _running.pop(key, None)
        return self.report

    def stop(self) -> None:
        """End `run` gracefully: settle or release what is leased. Safe from any thread or signal handler."""
        self._stopping.set()

    def terminate(self, message: Message | str, reason: str = "") -> Future[None]:
        """Give up one message under lease: it is dead-lettered and settled, whatever its handler returns later.

        Args:
            message: the message as the handler got it, or its id, or its position (`Received.position`).
            reason: kept in its context.

        Returns:
            A future that completes when the letter is confirmed and the lease over, or with the error that prevented
            it. A handler may wait for it.

        Raises:
            ConfigurationError: the subscription has no dead letter sink, so the message is neither given up nor
                skipped; or several leased messages have this name.
            NotTerminated: no such message is under lease.
        """
        if self._running is not None:
            return self._running.terminate(message, reason)
        raise not_leased(message) if self._spec.dead_letter_sink else without_sink(self.name, message)

    @property
    def outage(self) -> Outage | None:
        """The outage that has paused receiving, for metrics and health checks; None: no outage now."""
        running = self._running
        for each in () if running is None else (running.receive_outage, running.circuit):
            since, error = (None, None) if each is None else (each.since, each.error)
            if since is not None and error is not None:
                return Outage(reason=error.label, text=redact(str(error)), seconds=self._clock.monotonic() - since)
        return None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # --- opening ---

    def _open(self, resources: Resources) -> RunningSubscription:
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
        receiver = broker.receiver(lease=self._lease)
        resources.callback(receiver.close)
        engine = self._engine(connector, broker, receiver)
        self.report.delivery = engine.report
        observer = HandlingObserver.of(broker, self.name)
        leases = Leases(
            receiver,
            spec=self._spec,
            lease=self._lease,
            report=self.report,
            clock=self._clock,
            random=self._random,
            observer=observer,
        )
        resources.callback(leases.give_back)
        kind = CoroutineWorkers if is_coroutine_function(self._handler) else Workers
        workers = kind(self._handler, self._workers, self.name, self._clock, observer)
        resources.callback(workers.dismiss)
        settings = Settings(
            name=self.name,
            handler=self._handler,
            spec=self._spec,
            prefetch=self._prefetch,
            rename_type=self._rename_type,
            breaker=self._breaker,
            stop_timeout=self._stop_timeout,
            delay_max=broker.capabilities.limits.delay_max or timedelta.max,
            clock=self._clock,
            random=self._random,
            counters=Counters.of(broker, {SUBSCRIPTION: self.name}),
        )
        return RunningSubscription(settings, leases, workers, engine, self.report, self._stopping)

    def _engine(self, connector: Connector, broker: Broker, receiver: Receiver) -> Engine:
        """Return the engine that sends letters to the sinks. It sends nothing to the destination itself."""
        send_queues = [SendQueue(redact(self._url), broker, self._spec, Bounds(), self._clock)]
        for sink in self._spec.dead_letter_sink:
            if sink.uri == NATIVE and broker.capabilities.terminate:
                refuse_own_letters(broker, self._url)
                terminating = TerminatingQueue(broker, receiver, self._spec, self._clock, rename_type=sink.type)
                send_queues.append(terminating)
            else:
                send_queues.append(connector.sink(sink, broker))
        origin = Origin(run=self.name, configs=redact_options({"url": self._url, **self._options}))
        return Engine(send_queues, self._spec, origin, self._clock, self._random)
