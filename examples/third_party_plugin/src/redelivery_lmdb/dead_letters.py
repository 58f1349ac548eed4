"""The sender and the dead letters."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence

from redelivery.codes import Code
from redelivery.contract.broker import DeadLetters, Failure, Letter, Sender, Settled
from redelivery.contract.message import Batch
from redelivery.errors import Fatal, Permanent
from redelivery_lmdb.store import Store, prefix_of, put, scan

DEAD = "-dead-letters"  # what the name of a queue's dead letter place ends with
POSITION = re.compile("[0-9a-f]{24}")  # anything else names no letter


def dead_letters_of(queue: str) -> str:
    """Return the name of a queue's dead letter place. A dead letter place is its own: it has no dead letters."""
    return queue if queue.endswith(DEAD) else queue + DEAD


class LmdbRole:
    """What all roles share: the store, until they are closed."""

    def __init__(self, store: Store, queue: str) -> None:
        self.queue = queue
        self.prefix = prefix_of(queue)
        self._store: Store | None = store

    @property
    def store(self) -> Store:
        """The store. Raises Fatal after `close`."""
        if self._store is None:
            raise Fatal("this role is closed", code=Code.CLOSED)
        return self._store

    def position(self, key: bytes) -> str:
        """The place of a message in its queue, as text."""
        return key.removeprefix(self.prefix).hex()

    def close(self) -> None:
        """Give the store back; the second time does nothing."""
        if self._store is not None:
            self._store.release()
            self._store = None


class LmdbSender(LmdbRole, Sender):
    """A batch is one transaction, which is on the disk when `send` returns."""

    def __init__(self, store: Store, queue: str) -> None:
        super().__init__(store, queue)
        self._settled: list[Settled] = []

    def send(self, batch: Batch, *, deadline: float) -> None:
        failures = []
        with self.store.write(deadline - time.monotonic()) as transaction:
            for index, message in enumerate(batch.rows()):
                try:
                    prefix = self.prefix if message.destination is None else prefix_of(message.destination)
                    put(transaction, prefix, index, message)
                except Permanent as error:
                    failures.append(Failure(index, error))
        self._settled.append(Settled(batch=batch.number, failures=failures))

    def collect(self, wait: float) -> Sequence[Settled]:  # noqa: ARG002 - nothing is ever in flight
        settled, self._settled = self._settled, []
        return settled


class LmdbDeadLetters(LmdbRole, DeadLetters):
    """A queue like any other, read without leases."""

    def browse(self) -> Iterator[Letter]:
        with self.store.read() as transaction:
            for key, record in scan(transaction, self.prefix):
                yield Letter(position=self.position(key), message=record.message(), dead_lettered_ms=record.arrived_ms)

    def remove(self, positions: Sequence[str]) -> int:
        with self.store.write() as transaction:
            keys = [self.prefix + bytes.fromhex(each) for each in positions if POSITION.fullmatch(each)]
            return sum(transaction.delete(key) for key in keys)

    def purge(self) -> int:
        with self.store.write() as transaction:
            keys = [key for key, _ in scan(transaction, self.prefix)]
            return sum(transaction.delete(key) for key in keys)
