"""`Delivery`: the engine on its own thread, fed by the caller's thread.

The caller's row iterator may block for as long as it likes: the engine goes on with settled batches, due retries and
heartbeats. This module holds all thread handling of the sending path.
"""

from __future__ import annotations

import logging
import random as random_module
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Final, Self

from redelivery import policy
from redelivery.base.clock import SystemClock
from redelivery.contract.broker import Capabilities
from redelivery.contract.message import Batch
from redelivery.contract.spec import DeliverySpec
from redelivery.errors import ContractViolation, DeliveryFailed
from redelivery.formats import identity
from redelivery.policy.decisions import GRACE, OPENING
from redelivery.sending.connector import ConnectionFactory, Connector, Resources, connected
from redelivery.sending.engine import Engine, Flow, Rejected
from redelivery.sending.group import Origin
from redelivery.sending.report import DeliveryReport
from redelivery.sending.send_queue import Bounds, SendQueue

log = logging.getLogger("redelivery.delivery")

#: The engine looks at everything at least this often, in seconds.
_TICK: Final = 0.5
#: While more rows could be sent, the engine waits for settled batches no longer than this, in seconds.
_GLANCE: Final = 0.02


class Delivery:
    """One task's delivery. Use it as a context manager: an exception inside gives up the rows in flight."""

    def __init__(self, engine: Engine, send_queues: list[SendQueue], resources: Resources) -> None:
        self.capabilities: Capabilities = send_queues[0].capabilities
        self._engine = engine
        self._send_queues = send_queues
        self._resources = resources
        self._longest_call = (
            max(OPENING, *(policy.attempt_timeout(send_queue.spec) for send_queue in send_queues)) + 2 * GRACE
        )
        self._started = time.monotonic()
        self._changed = threading.Condition()
        self._inbox: deque[Callable[[], bool]] = deque()
        self._finishing = self._stopping = self._stopped = self._left = False
        self._failure: BaseException | None = None
        self._alive = time.monotonic()
        self._calling = engine.report.primary
        for send_queue in send_queues:
            send_queue.watch(partial(self._beat, send_queue.url))
        self._thread = threading.Thread(target=self._run, name="redelivery-engine", daemon=True)
        self._thread.start()

    @classmethod
    def open(
        cls,
        url: str,
        spec: DeliverySpec,
        *,
        options: Mapping[str, str] | None = None,
        origin: Origin,
        bounds: Bounds | None = None,
        flow: Flow | None = None,
        connection_factory: ConnectionFactory | None = None,
        skipped: Callable[[Sequence[int]], None] = lambda _: None,
    ) -> Self:
        """Connect the destination and its sinks.

        Args:
            url: where rows go.
            spec: how rows are delivered.
            options: the destination's client options, with their plugin's prefix.
            origin: where the rows come from.
            bounds: how much may be held in memory.
            flow: in which order, and how fast.
            connection_factory: opens a connection to a broker; by default `connected`.
            skipped: called, on another thread, with the positions of rows that were given up without a sink.

        Raises:
            ConfigurationError, Unsupported, BrokerError: nothing was sent.
        """
        clock = SystemClock()
        with Resources() as resources:
            connector = Connector(
                url=url,
                spec=spec,
                options=options or {},
                bounds=bounds or Bounds(),
                clock=clock,
                connection_factory=connection_factory or connected,
                resources=resources,
            )
            broker = connector.connect()
            send_queues = [
                connector.destination(broker),
                *(connector.sink(sink, broker) for sink in spec.dead_letter_sink),
            ]
            engine = Engine(send_queues, spec, origin, clock, random_module.random, flow, skipped=skipped)
            return cls(engine, send_queues, resources.pop_all())
        raise AssertionError("unreachable")

    # --- the caller's side ---

    @property
    def so_far(self) -> DeliveryReport:
        """The account so far; after a failure, of the rows that were settled before it."""
        return self._engine.report

    def write(self, batch: Batch) -> None:
        """Hand rows over; wait while the queue is full.

        Raises:
            DeliveryFailed, BrokerError, ContractViolation: the delivery has failed, now or earlier.
        """
        batch = identity.identified(batch) if self.capabilities.deduplicate else batch

        def take() -> bool:
            if not self._engine.can_take(batch):
                return False
            self._engine.take(batch)
            return True

        self._hand_over(take)

    def reject(self, rows: Rejected, *, component: str | None = None) -> None:
        """Hand over rows that cannot become messages; arguments as of `Engine.reject`. Raises as `write`."""

        def take() -> bool:
            if self._engine.crowded:
                return False
            self._engine.reject(rows, component)
            return True

        self._hand_over(take)

    def finish(self) -> DeliveryReport:
        """Wait until every row is accounted for, close, and return the account. Raises as `write`."""
        with self._changed:
            self._finishing = True
            self._changed.notify_all()
            self._wait_for(lambda: self._stopped)
        self.close()
        report = self._engine.report
        if not report.accounted:
            raise DeliveryFailed(f"the account does not add up, so rows may be lost: {report.to_dict()}")
        report.seconds = time.monotonic() - self._started
        return report

    def close(self) -> None:
        """Give up the rows in flight, and release the connections. Closing twice does nothing."""
        self._close(self._failure)

    def _close(self, error: BaseException | None) -> None:
        """Close. The lender of a connection is notified of the error, so that the connection is not used again."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._thread.join(timeout=GRACE)
        with self._changed:
            self._left = not self._stopped
        if self._left:  # the engine's thread closes, when the plugin returns
            log.error("the plugin at %s does not return; its connections are closed when it does", self._calling)
            return
        self._resources.__exit__(type(error) if error else None, error, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close(error or self._failure)

    def _hand_over(self, take: Callable[[], bool]) -> None:
        with self._changed:
            self._wait_for(lambda: not self._inbox)
            self._inbox.append(take)
            self._changed.notify_all()

    def _wait_for(self, condition: Callable[[], bool]) -> None:
        """Wait, with the lock held, until the condition holds; never forever, even on a plugin that hangs."""
        while True:
            if self._failure is not None:
                raise self._failure
            if condition():
                return
            if self._stopping:
                raise DeliveryFailed("the delivery was closed")
            silent = time.monotonic() - self._alive
            if silent > self._longest_call:
                raise ContractViolation(
                    f"the plugin at {self._calling} has not returned from a call for {silent:.0f} s"
                )
            self._changed.wait(_TICK)

    # --- the engine's side ---

    def _run(self) -> None:
        try:
            while self._turn():
                pass
        except BaseException as error:  # noqa: BLE001 - handed to the caller's thread, which raises it
            failure: BaseException | None = error
        else:
            failure = None
        with self._changed:
            self._failure = failure
            self._stopped = True
            self._changed.notify_all()
        if self._left:
            given_up = failure or DeliveryFailed("the delivery was closed")
            self._resources.__exit__(type(given_up), given_up, None)

    def _beat(self, url: str) -> None:
        """Note that the engine is alive: it is about to call the plugin of this destination."""
        self._calling = url
        self._alive = time.monotonic()

    def _turn(self) -> bool:
        """Run one round; return False when all is done."""
        self._beat(self._engine.report.primary)
        taken = False
        with self._changed:
            if self._stopping:
                return False
            take = self._inbox[0] if self._inbox else None
        if take is not None and take():
            taken = True
            with self._changed:
                self._inbox.popleft()
                self._changed.notify_all()
        busy = self._engine.busy
        settled = self._engine.turn(0.0 if taken or not busy else _GLANCE)
        if taken or settled or busy or self._engine.busy:  # settled batches may have made room
            return True
        with self._changed:
            if self._engine.idle and self._finishing and not self._inbox:
                return False
            due = self._engine.next_due
            pause = _TICK if due is None else min(_TICK, due - time.monotonic())
            if pause > 0 and (not self._inbox or take is not None):
                self._changed.wait(pause)
        return True
