"""The receiver of the broker in memory. A lease is a number in the message's state."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from redelivery.codes import Code
from redelivery.contract.broker import Accept, Outcome, Received, Receiver, Release, Retry, Terminate
from redelivery.contract.context import ErrorContext
from redelivery.errors import Ambiguous, BrokerError, Fatal, LeaseLost, Permanent, Unsupported
from redelivery_conformance.memory_store import Queue, State, Store

if TYPE_CHECKING:
    from redelivery_conformance.memory import MemoryBroker

#: Seconds between two looks for a first message.
_LOOK: Final = 0.005


class MemoryReceiver(Receiver):
    """Leases and settles the messages of one queue. A variant overrides one step."""

    def __init__(self, broker: MemoryBroker, lease: float) -> None:
        self.broker = broker
        self.lease = lease
        self.closed = False

    # --- receiving ---

    def receive(self, max_messages: int, *, wait: float) -> Sequence[Received]:
        end = time.monotonic() + wait
        while True:
            store = self.open_store()
            with store.lock:
                self.move(store)
                taken = [] if store.silent else self.take(store, max_messages)
            if taken or time.monotonic() >= end:
                return taken
            time.sleep(min(_LOOK, max(0.0, end - time.monotonic())))

    def move(self, store: Store) -> None:
        """Dead-letter the messages that have expired or were delivered too often."""
        has, name, place = self.broker.capabilities, self.broker.queue, self.broker.dead_letter_queue
        queue = store.queue(name)
        if name == place:
            return
        for position, state in list(queue.due(time.monotonic())):
            kind = None
            if has.expiry and state.expires <= time.monotonic():
                kind = "expired"
            elif has.delivery_limit and self.broker.deliveries and state.attempts >= self.broker.deliveries:
                kind = "delivery-limit"
            if kind is not None:
                why = ErrorContext(reason=kind, kind=kind, broker="memory", attempts=state.attempts)
                store.bury(name, position, place, queue.messages[position], why)

    def take(self, store: Store, most: int) -> list[Received]:
        """Lease the messages that are visible now, oldest first."""
        queue, now = store.queue(self.broker.queue), time.monotonic()
        taken: list[Received] = []
        for position, state in queue.due(now):
            if len(taken) == most:
                break
            taken.append(self.give(store, queue, position, state))
        return taken

    def give(self, store: Store, queue: Queue, position: int, state: State) -> Received:
        """Lease one message."""
        has = self.broker.capabilities
        state.lease = next(store.leases)
        state.visible = time.monotonic() + self.lease
        state.attempts += 1
        state.first_ms = state.first_ms or time.time_ns() // 1_000_000
        return Received(
            message=queue.messages[position],
            attempt=state.attempts if has.attempts else 1,
            lease=(position, state.lease),
            expires=state.visible,
            position=str(position),
            first_ms=state.first_ms if has.first_delivery else None,
            undecodable=state.damage,
            lasting=True,
        )

    # --- settling ---

    def settle(self, outcomes: Sequence[tuple[Received, Outcome]]) -> Sequence[LeaseLost | BrokerError | None]:
        store, has = self.open_store(), self.broker.capabilities
        for _, outcome in outcomes:
            if isinstance(outcome, Terminate) and not has.terminate:
                raise Unsupported("memory: cannot move a message to the dead letters (its capabilities say so)")
            if isinstance(outcome, Retry) and outcome.delay and not has.delay:
                raise Unsupported("memory: cannot keep a message away (its capabilities say so)")
        with store.lock:
            answers = [self.settle_one(store, received, outcome) for received, outcome in outcomes]
        if store.silent:
            raise Ambiguous("memory: no answer to what was settled", code=Code.UNCONFIRMED)
        return answers

    def settle_one(self, store: Store, received: Received, outcome: Outcome) -> LeaseLost | BrokerError | None:
        """End one lease."""
        state = self.held(store, received)
        if state is None:
            return LeaseLost(f"memory: the lease of message {received.position} is lost; nothing was changed")
        refused = self.refused(outcome)
        if refused is not None:
            return refused
        queue, position = store.queue(self.broker.queue), received.lease[0]
        if isinstance(outcome, Accept):
            queue.drop(position)
        elif isinstance(outcome, Terminate):
            self.terminate(store, position, state, outcome)
        else:
            self.again(state, outcome)
        return None

    def terminate(self, store: Store, position: int, state: State, outcome: Terminate) -> None:
        """Store the letter in the dead letter queue and remove the message."""
        why = ErrorContext(
            reason=outcome.reason if self.broker.capabilities.reason else "",
            kind="terminated",
            broker="memory",
            attempts=state.attempts,
        )
        letter = replace(outcome.letter, destination=None, extra={})
        store.bury(self.broker.queue, position, self.broker.dead_letter_queue, letter, why)

    def again(self, state: State, outcome: Retry | Release) -> None:
        """Make a message visible again, now or later."""
        state.lease, state.visible = 0, 0.0
        if isinstance(outcome, Retry):
            state.visible = time.monotonic() + outcome.delay.total_seconds()
        else:
            state.attempts -= 1

    def refused(self, outcome: Outcome) -> BrokerError | None:
        """Return why an outcome is not supported; None if it is."""
        longest = self.broker.capabilities.limits.delay_max
        if isinstance(outcome, Retry) and longest is not None and outcome.delay > longest:
            return Permanent(
                f"memory: a delay of {outcome.delay} is over {longest}; the lease is kept", code=Code.INVALID_MESSAGE
            )
        if isinstance(outcome, Terminate):
            return self.broker.fault(replace(outcome.letter, destination=None))
        return None

    def held(self, store: Store, received: Received) -> State | None:
        """Return the state of a message if this lease still holds it, else None."""
        position, lease = received.lease
        queue = store.queue(self.broker.queue)
        state = queue.states.get(position)
        if position not in queue.messages or state is None or state.lease != lease:
            return None
        return state if state.visible > time.monotonic() else None

    # --- prolonging ---

    def extend(self, leases: Sequence[Received], seconds: float) -> Sequence[Received | LeaseLost]:
        if not self.broker.capabilities.extend:
            raise Unsupported("memory: leases cannot be prolonged (its capabilities say so)")
        store = self.open_store()
        with store.lock:
            return [self.extend_one(store, received, seconds) for received in leases]

    def extend_one(self, store: Store, received: Received, seconds: float) -> Received | LeaseLost:
        """Extend one lease."""
        state = self.held(store, received)
        if state is None:
            return LeaseLost(f"memory: the lease of message {received.position} is lost; nothing was changed")
        state.visible = time.monotonic() + seconds
        return replace(received, expires=state.visible)

    # --- the rest ---

    def close(self) -> None:
        self.closed = True

    def open_store(self) -> Store:
        """Wait for the configured latency and return the store. Raises Fatal, Retriable."""
        if self.closed:
            raise Fatal("memory: this receiver is closed; ask the broker for a new one", code=Code.CLOSED)
        if self.broker.latency:
            time.sleep(self.broker.latency)
        return self.broker.store()
