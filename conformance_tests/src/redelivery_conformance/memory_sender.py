"""The sender of the broker in memory."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from redelivery.codes import Code
from redelivery.contract.broker import Failure, Sender, Settled
from redelivery.contract.message import Batch, Message
from redelivery.errors import Ambiguous, Fatal, NotSent, Retriable
from redelivery_conformance.memory_store import Store

if TYPE_CHECKING:
    from redelivery_conformance.memory import MemoryBroker

#: Seconds between two looks for an answer.
_LOOK: Final = 0.005


@dataclass(frozen=True, slots=True)
class Unanswered:
    """A batch that a silent store has accepted: its withheld answer, its deadline, and the store's cuts at the time."""

    batch: Batch
    settled: Settled
    deadline: float
    cuts: int


class MemorySender(Sender):
    """Stores at once and reports at the next `collect`."""

    def __init__(self, broker: MemoryBroker) -> None:
        self.broker = broker
        self.settled: list[Settled] = []
        self.unanswered: list[Unanswered] = []
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
            settled = self.store_batch(store, batch)
        if store.silent:
            self.unanswered.append(Unanswered(batch, settled, deadline, store.cuts))
        else:
            self.settled.append(settled)

    def collect(self, wait: float) -> Sequence[Settled]:
        end = min([time.monotonic() + wait, *(each.deadline for each in self.unanswered)])
        while self.unanswered:
            store = Store.by_name[self.broker.host]
            answers = [(each, self.answer(store, each)) for each in self.unanswered]
            self.unanswered = [each for each, answer in answers if answer is None]
            self.settled += [answer for _, answer in answers if answer is not None]
            if self.settled or time.monotonic() >= end:
                break
            time.sleep(_LOOK)
        settled, self.settled = self.settled, []
        self.failed_keys.clear()  # the caller knows of the failure now and holds its key back
        return settled

    def close(self) -> None:
        self.closed = True

    def answer(self, store: Store, sent: Unanswered) -> Settled | None:
        """Settle a batch without an answer; None: not yet."""
        if store.cuts != sent.cuts:
            return Settled(
                batch=sent.batch.number, error=Ambiguous("memory: the connection was lost", code=Code.CONNECTION_LOST)
            )
        if not store.silent:
            return sent.settled
        if time.monotonic() >= sent.deadline:
            return Settled(
                batch=sent.batch.number,
                error=Ambiguous("memory: no answer by the deadline", code=Code.DEADLINE_EXCEEDED),
            )
        return None

    def store_batch(self, store: Store, batch: Batch) -> Settled:
        """Store the valid rows of a batch."""
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
        """Store one row; return False for a duplicate."""
        has = self.broker.capabilities
        kept = replace(
            message, destination=None, extra={}, timestamp_ms=message.timestamp_ms if has.timestamps else None
        )
        queue = self.broker.queue if message.destination is None else message.destination
        return store.put(queue, kept if has.ids else replace(kept, id=None), ttl=self.broker.ttl)
