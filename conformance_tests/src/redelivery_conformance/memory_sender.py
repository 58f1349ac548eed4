"""The sender of the broker in memory. This file must not retry, sleep or decide, as no plugin may."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from redelivery.codes import Code
from redelivery.contract.broker import Failure, Sender, Settled
from redelivery.contract.message import Batch, Message
from redelivery.errors import Fatal, NotSent, Retriable
from redelivery_conformance.memory_store import Store

if TYPE_CHECKING:
    from redelivery_conformance.memory import MemoryBroker


class MemorySender(Sender):
    """Stores at once, tells at the next `collect`."""

    def __init__(self, broker: MemoryBroker) -> None:
        self.broker = broker
        self.settled: list[Settled] = []
        self.failed_keys: set[bytes] = set()
        self.closed = False

    def send(self, batch: Batch, *, deadline: float) -> None:
        if self.closed:
            raise Fatal("memory: this sender is closed; ask the broker for a new one", code=Code.CLOSED)
        if time.monotonic() >= deadline:
            raise Retriable(
                "memory: the deadline had passed before it began; nothing was stored", code=Code.DEADLINE_EXCEEDED
            )
        store = self.broker.store()
        with store.lock:
            self.settled.append(self.store_batch(store, batch))

    def collect(self, wait: float) -> Sequence[Settled]:  # noqa: ARG002 - nothing is ever waited for
        settled, self.settled = self.settled, []
        self.failed_keys.clear()  # whoever is told of a failure keeps its key back from now on
        return settled

    def close(self) -> None:
        self.closed = True

    def store_batch(self, store: Store, batch: Batch) -> Settled:
        """Store the rows of a batch that can be."""
        failures: list[Failure] = []
        duplicates = 0
        for index, message in enumerate(batch.rows()):
            why = self.broker.fault(message)
            if batch.ordered and message.key in self.failed_keys:
                failures.append(Failure(index, NotSent("memory: an earlier message of its key failed")))
            elif why is not None:
                if message.key is not None:
                    self.failed_keys.add(message.key)
                failures.append(Failure(index, why))
            elif not self.store_row(store, message):
                duplicates += 1
        return Settled(batch=batch.number, failures=failures, duplicates=duplicates)

    def store_row(self, store: Store, message: Message) -> bool:
        """Store one row; False where it is recognised."""
        has = self.broker.capabilities
        kept = replace(
            message, destination=None, extra={}, timestamp_ms=message.timestamp_ms if has.timestamps else None
        )
        queue = self.broker.queue if message.destination is None else message.destination
        return store.put(queue, kept if has.ids else replace(kept, id=None), ttl=self.broker.ttl)
