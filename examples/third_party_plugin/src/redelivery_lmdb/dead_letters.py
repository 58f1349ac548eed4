"""The dead letters role."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import lmdb

from redelivery.contract.broker import DeadLetters, Letter, LetterBatch, Wanted
from redelivery.contract.letters import batches
from redelivery.errors import ConfigurationError, Fatal
from redelivery.kit.errors import Code
from redelivery_lmdb.client.store import FIRST, LAST, StoreUser, newest, scan, walk

POSITION = re.compile("[0-9a-f]{24}")  # anything else names no letter
SPLIT = re.compile("([0-9a-f]{24})-([0-9a-f]{24})")


class LmdbDeadLetters(StoreUser, DeadLetters):
    """Reads a queue without leases."""

    def browse(self) -> Iterator[Letter]:
        self.check_open("browsing")
        return self._letters(FIRST, LAST)

    def splits(self, wanted: Wanted) -> Sequence[str]:
        self.check_open("dividing")
        with self._store.read() as transaction:
            places = self._places(transaction, wanted.after, wanted.before)
        size = max(1, -(-len(places) // wanted.readers))
        parts = [places[at : at + size] for at in range(0, len(places), size)]
        return [f"{part[0]}-{part[-1]}" for part in parts]

    def read(self, split: str, wanted: Wanted) -> Iterator[LetterBatch]:  # noqa: ARG002 - core selects from all of it
        self.check_open("reading")
        bounds = SPLIT.fullmatch(split)
        if bounds is None:
            raise ConfigurationError(f"lmdb: {split!r} is not a split of a queue")
        return batches(self._letters(*map(bytes.fromhex, bounds.groups())))

    def cursor(self, *, after: str | None = None, most: int | None = None) -> str:
        self.check_open("looking at")
        with self._store.read() as transaction:
            places = self._places(transaction, after, None)
            return newest(transaction).hex() if most is None or most > len(places) else places[most - 1]

    def remove(self, positions: Sequence[str]) -> int:
        self.check_open("removing from")
        with self._store.write() as transaction:
            keys = [self._prefix + bytes.fromhex(each) for each in positions if POSITION.fullmatch(each)]
            return sum(transaction.delete(key) for key in keys)

    def purge(self) -> int:
        self.check_open("purging")
        with self._store.write() as transaction:
            keys = [key for key, _ in walk(transaction, self._prefix, FIRST, LAST)]
            return sum(transaction.delete(key) for key in keys)

    def _letters(self, first: bytes, last: bytes) -> Iterator[Letter]:
        with self._store.read() as transaction:
            for key, record in scan(transaction, self._prefix, first, last):
                yield Letter(position=self._position(key), message=record.message(), dead_lettered_ms=record.arrived_ms)

    def _places(self, transaction: lmdb.Transaction, after: str | None, before: str | None) -> list[str]:
        """Return the positions of the letters behind one cursor, up to another. Raises Fatal, ConfigurationError."""
        first = FIRST if after is None else self._checked(transaction, after)
        last = LAST if before is None else self._checked(transaction, before)
        places = [self._position(key) for key, _ in walk(transaction, self._prefix, first, last)]
        return places[places[:1] == [after] :]

    @staticmethod
    def _checked(transaction: lmdb.Transaction, cursor: str) -> bytes:
        if POSITION.fullmatch(cursor) is None:
            raise ConfigurationError(f"lmdb: {cursor!r} is not a cursor of a queue")
        if (place := bytes.fromhex(cursor)) > newest(transaction):
            text = "this cursor is of a file that was removed and made again since; begin without it"
            raise Fatal(f"lmdb: {text}", code=Code.CONFLICT)
        return place
