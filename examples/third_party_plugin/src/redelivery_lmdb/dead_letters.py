"""The dead letters role."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from redelivery.contract.broker import DeadLetters, Letter
from redelivery_lmdb.client.store import StoreUser, scan

POSITION = re.compile("[0-9a-f]{24}")  # anything else names no letter


class LmdbDeadLetters(StoreUser, DeadLetters):
    """Reads a queue without leases."""

    def browse(self) -> Iterator[Letter]:
        self.check_open("browsing")
        with self._store.read() as transaction:
            for key, record in scan(transaction, self._prefix):
                yield Letter(position=self._position(key), message=record.message(), dead_lettered_ms=record.arrived_ms)

    def remove(self, positions: Sequence[str]) -> int:
        self.check_open("removing from")
        with self._store.write() as transaction:
            keys = [self._prefix + bytes.fromhex(each) for each in positions if POSITION.fullmatch(each)]
            return sum(transaction.delete(key) for key in keys)

    def purge(self) -> int:
        self.check_open("purging")
        with self._store.write() as transaction:
            keys = [key for key, _ in scan(transaction, self._prefix)]
            return sum(transaction.delete(key) for key in keys)
