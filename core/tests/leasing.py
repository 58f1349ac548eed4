"""A queue in memory whose receiver keeps the contract, notes every settlement, and fails where the test says so."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta

from redelivery.contract.broker import (
    Accept,
    Broker,
    Capabilities,
    Outcome,
    Received,
    Receiver,
    Release,
    Retry,
    Source,
    Support,
    Terminate,
)
from redelivery.contract.message import Message
from redelivery.errors import BrokerError, LeaseLost, Unsupported

NATIVE = Support.NATIVE


@dataclass
class Item:
    message: Message
    attempts: int = 0
    visible: float = 0.0
    lease: int = 0
    first_ms: int | None = None


@dataclass
class LeasingBroker(Broker):
    """One queue. `settled` is what happened to it, in order: (id, outcome)."""

    items: list[Item] = field(default_factory=list)
    terminates: bool = False
    name: str = "leasing"

    def __post_init__(self) -> None:
        self.settled: list[tuple[str, Outcome]] = []
        self.letters: list[Message] = []
        self.extended = 0
        self.settle_errors: list[BrokerError] = []
        self.receive_errors: list[BrokerError] = []
        #: Leases last as long as the connection.
        self.endless = False
        self.revoked: set[str] = set()
        #: Leases cannot be prolonged.
        self.fixed = False
        self.undecodable: dict[str, str] = {}
        #: Messages say where they lie: `place/<number of the lease>`.
        self.positions = False
        #: Seconds that what was put off comes later than was asked for.
        self.late = 0.0
        self.source: Source | None = None
        self.leases = 0
        self.lock = threading.Lock()
        self.capabilities = Capabilities(
            receive=NATIVE,
            delay=NATIVE,
            attempts=NATIVE,
            first_delivery=NATIVE,
            extend=NATIVE,
            terminate=NATIVE if self.terminates else Support.NONE,
            dead_letter=NATIVE,
        )

    def put(self, *messages: Message) -> None:
        with self.lock:
            self.items += [Item(message) for message in messages]

    def native_sink(self) -> str:
        return "leasing:native"

    def receiver(self, *, lease: timedelta = timedelta(seconds=30)) -> Receiver:
        return LeasingReceiver(self, lease.total_seconds())

    def close(self) -> None:
        pass


class LeasingReceiver(Receiver):
    def __init__(self, broker: LeasingBroker, lease: float) -> None:
        self._broker = broker
        self._lease = lease

    def receive(self, max_messages: int, *, wait: float) -> Sequence[Received]:
        end = time.monotonic() + wait
        while True:
            if self._broker.receive_errors:
                raise self._broker.receive_errors.pop(0)
            taken = self._take(max_messages)
            if taken or time.monotonic() >= end:
                return taken
            time.sleep(0.005)

    def _take(self, most: int) -> list[Received]:
        broker, now = self._broker, time.monotonic()
        taken = []
        with broker.lock:
            for item in broker.items:
                if item.visible <= now and len(taken) < most:
                    broker.leases += 1
                    item.lease = broker.leases
                    item.attempts += 1
                    item.visible = now + self._lease
                    item.first_ms = item.first_ms or time.time_ns() // 1_000_000
                    taken.append(
                        Received(
                            message=item.message,
                            attempt=item.attempts,
                            lease=item.lease,
                            expires=None if broker.endless else item.visible,
                            position=f"place/{broker.leases}" if broker.positions else "",
                            first_ms=item.first_ms,
                            undecodable=broker.undecodable.get(item.message.id or ""),
                            source=broker.source,
                        )
                    )
        return taken

    def settle(self, outcomes: Sequence[tuple[Received, Outcome]]) -> Sequence[LeaseLost | BrokerError | None]:
        broker = self._broker
        if broker.settle_errors:
            raise broker.settle_errors.pop(0)
        return [self._settle(received, outcome) for received, outcome in outcomes]

    def _settle(self, received: Received, outcome: Outcome) -> LeaseLost | None:
        broker = self._broker
        with broker.lock:
            item = self._held(received)
            if item is None:
                return LeaseLost("no longer ours")
            broker.settled.append((received.message.id or "", outcome))
            item.lease = 0
            if isinstance(outcome, Accept):
                broker.items.remove(item)
            elif isinstance(outcome, Terminate):
                broker.items.remove(item)
                broker.letters.append(outcome.letter)
            elif isinstance(outcome, Retry):
                item.visible = time.monotonic() + outcome.delay.total_seconds() + broker.late
            elif isinstance(outcome, Release):
                item.visible = 0.0
                item.attempts -= 1
        return None

    def extend(self, leases: Sequence[Received], seconds: float) -> Sequence[Received | LeaseLost]:
        if self._broker.fixed:
            raise Unsupported("leases cannot be prolonged")
        return [self._extend(received, seconds) for received in leases]

    def _extend(self, received: Received, seconds: float) -> Received | LeaseLost:
        broker = self._broker
        with broker.lock:
            item = self._held(received)
            if item is None:
                return LeaseLost("no longer ours")
            broker.extended += 1
            item.visible = time.monotonic() + seconds
            return replace(received, expires=item.visible)

    def _held(self, received: Received) -> Item | None:
        if received.message.id in self._broker.revoked:
            return None
        now = time.monotonic()
        return next((i for i in self._broker.items if i.lease == received.lease and i.visible > now), None)

    def close(self) -> None:
        pass
