"""The sender role: a batch is one transaction, stored whole except for rows that no file could hold.

Storing is done within `send`, so nothing is in flight but what `collect` has yet to tell: a thread of its own would
fight the engine for the interpreter's lock at every row. This file must not retry.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import repeat
from typing import Any

from redelivery.contract.broker import Failure, Sender, Settled
from redelivery.contract.message import Batch
from redelivery.errors import Fatal, NotSent, Permanent, Retriable, Unattributed
from redelivery_sqlite import headers, rows
from redelivery_sqlite.address import Address
from redelivery_sqlite.errors import VALUE_ERRORS, classify
from redelivery_sqlite.schema import KNOWN_BY
from redelivery_sqlite.store import Store, now_ms

#: What one row can cause, and what leaves the transaction open.
_ROW_ERRORS = (*VALUE_ERRORS, sqlite3.DataError, sqlite3.IntegrityError, sqlite3.ProgrammingError, Permanent)


class SqliteSender(Sender):
    """Stores batches in the queue of `address`, or in the one that a row names."""

    def __init__(self, store: Store, address: Address, *, message_bytes: int) -> None:
        self._store = store
        self._address = address
        self._message_bytes = message_bytes
        self._closed = False
        self._headers: list[str | None] | None = None  # of the batch at hand, as they are stored
        self._settled: list[Settled] = []
        self._failed_keys: set[bytes] = set()  # of rows whose failure `collect` has yet to tell

    def check(self, *, deadline: float) -> None:
        self._store.check(max(0.0, deadline - time.monotonic()))
        if not self._store.settings.create and self._store.number(self._address.queue) is None:
            raise self._no_own_queue()

    def send(self, batch: Batch, *, deadline: float) -> None:
        doing = f"storing in {str(self._address.path)!r}"
        if self._closed:
            raise Fatal(f"sqlite: {doing}: this sender is closed; open another", native_code="CLOSED")
        wait = _left(deadline, f"{doing}: the deadline had passed before it began")
        self._load(batch)
        try:
            self._store.keep_reserve(doing)
            with self._store.writing(doing, wait) as connection:
                settled = self._isolated(connection, batch) if batch.isolate else self._whole(connection, batch)
                _left(deadline, f"{doing}: the deadline passed before the commit")
        except Permanent as error:
            raise error.reclassified(Unattributed) from error
        self._settled.append(settled)
        if batch.ordered and batch.key is not None:
            keys = batch.key.values
            self._failed_keys.update(key for each in settled.failures if (key := keys[each.index]) is not None)

    def collect(self, wait: float) -> Sequence[Settled]:  # noqa: ARG002 - nothing is ever waited for
        settled, self._settled = self._settled, []
        self._failed_keys.clear()
        return settled

    def close(self) -> None:
        self._closed = True
        self._store.close()

    def _load(self, batch: Batch) -> None:
        """Do all that can be done before the write lock is held, which only one process has at a time."""
        for column in (batch.value, batch.key, batch.id, batch.identity, batch.destination, batch.timestamp_ms):
            if column is not None:
                _ = column.values
        self._headers = None
        if batch.headers is not None:
            with suppress(*VALUE_ERRORS):  # the row concerned is found when the batch is stored
                self._headers = [headers.write(each) for each in batch.headers.values]

    def _whole(self, connection: sqlite3.Connection, batch: Batch) -> Settled:
        """Store all rows; where that fails, find the rows that no file could hold and store the others."""
        connection.execute("SAVEPOINT batch")
        try:
            if batch.ordered and self._failed_keys:
                raise Permanent("sqlite: some rows must wait behind an earlier one of their key", native_code="ORDER")
            if rows.has_odd_timestamps(batch):
                raise Permanent("sqlite: a timestamp is no integer", native_code="TIMESTAMP")
            return Settled(batch=batch.number, duplicates=self._store_rows(connection, batch, None))
        except _ROW_ERRORS:
            connection.execute("ROLLBACK TO batch")
            failures = self._in_order(batch, self._faults(batch))
            if not failures and not (batch.ordered and self._failed_keys):
                raise
        bad = {failure.index for failure in failures}
        good = [index for index in range(batch.length) if index not in bad]
        duplicates = self._store_rows(connection, batch, good) if good else 0
        return Settled(batch=batch.number, failures=failures, duplicates=duplicates)

    def _isolated(self, connection: sqlite3.Connection, batch: Batch) -> Settled:
        """Store each row within a savepoint of its own, so that an error is its own."""
        failures = self._in_order(batch, self._faults(batch))
        bad = {failure.index for failure in failures}
        duplicates = 0
        for index in range(batch.length):
            if index in bad:
                continue
            connection.execute("SAVEPOINT row")
            try:
                duplicates += self._store_rows(connection, batch, [index])
            except _ROW_ERRORS as error:
                found = error if isinstance(error, Permanent) else classify(error, "storing a row on its own")
                if not isinstance(found, Permanent):
                    raise
                if found is not error:
                    found.__cause__ = error
                connection.execute("ROLLBACK TO row")
                failures.append(Failure(index, found))
            connection.execute("RELEASE row")
        return Settled(batch=batch.number, failures=failures, duplicates=duplicates)

    def _faults(self, batch: Batch) -> list[Failure]:
        found = []
        for index, message in enumerate(batch.rows()):
            error = rows.fault(message, message_bytes=self._message_bytes)
            if error is None and message.destination is not None and self._number(message.destination) is None:
                error = self._no_queue(message.destination)
            if error is not None:
                found.append(Failure(index, error))
        return found

    def _in_order(self, batch: Batch, failures: list[Failure]) -> list[Failure]:
        """These failures, and in an ordered batch the rows that they keep back."""
        if not batch.ordered or batch.key is None:
            return failures
        own = {failure.index: failure for failure in failures}
        failed = set(self._failed_keys)
        found = []
        for index, key in enumerate(batch.key.values):
            if index in own:
                found.append(own[index])
                if isinstance(key, bytes):
                    failed.add(key)
            elif key is not None and key in failed:
                text = "sqlite: this row was not stored, because an earlier one of its key has failed"
                found.append(Failure(index, NotSent(text, native_code="ORDER")))
        return found

    def _store_rows(self, connection: sqlite3.Connection, batch: Batch, indexes: Sequence[int] | None) -> int:
        """Store these rows (None: all), each in its queue; returns how many the file had already."""
        if batch.destination is None:
            return self._insert(connection, None, batch, indexes)
        names = batch.destination.values
        if indexes is None and names.count(names[0]) == len(names):
            return self._insert(connection, names[0], batch, None)
        by_queue: dict[str | None, list[int]] = {}
        for index in range(batch.length) if indexes is None else indexes:
            by_queue.setdefault(names[index], []).append(index)
        return sum(self._insert(connection, queue, batch, rows) for queue, rows in by_queue.items())

    def _insert(
        self, connection: sqlite3.Connection, queue: str | None, batch: Batch, indexes: Sequence[int] | None
    ) -> int:
        number = self._number(queue)
        if number is None:
            raise self._no_queue(queue) if queue is not None else self._no_own_queue()
        count = batch.length if indexes is None else len(indexes)
        (first,) = connection.execute("SELECT next FROM queue WHERE number = ?", (number,)).fetchone()
        now = now_ms()
        columns: dict[str, Iterable[Any]] = {"seq": range(first, first + count), "enqueued_ms": repeat(now)}
        ttl_ms = self._store.settings.ttl_ms
        dead = (self._address if queue is None else self._address.at(queue)).is_dead_letters
        if ttl_ms and not dead:
            columns["expires_ms"] = repeat(now + ttl_ms)

        def pick(values: list[Any]) -> list[Any]:
            return values if indexes is None else [values[index] for index in indexes]

        for name in ("id", "timestamp_ms", "key", "identity"):
            column = getattr(batch, name)
            if column is not None and column.values.count(None) < batch.length:
                columns[name] = pick(column.values)
        if self._headers is not None:
            columns["headers"] = pick(self._headers)
        elif batch.headers is not None:
            columns["headers"] = map(headers.write, pick(batch.headers.values))
        columns["value"] = pick(batch.value.values)
        marks = ", ".join("?" * len(columns))
        into = f"INSERT INTO message_{number} ({', '.join(columns)}) VALUES ({marks})"  # noqa: S608 - our own names
        known = not columns.keys().isdisjoint(("id", "identity"))
        if known:
            into += f" ON CONFLICT ({KNOWN_BY}) WHERE {KNOWN_BY} IS NOT NULL DO NOTHING"
        stored = connection.executemany(into, zip(*columns.values(), strict=False)).rowcount
        connection.execute("UPDATE queue SET next = ? WHERE number = ?", (first + count, number))
        if known and not dead:  # a letter that is gone may come again: rather twice than not at all
            stored -= self._take_back(connection, number, first)
        return count - stored

    def _take_back(self, connection: sqlite3.Connection, number: int, first: int) -> int:
        """Remove what was stored from `first` on and is recognised as removed within the window; returns how many."""
        if connection.execute(f"SELECT 1 FROM taken_{number} LIMIT 1").fetchone() is None:  # noqa: S608 - a number
            return 0
        taken = f"SELECT id FROM taken_{number} WHERE id = known AND removed_ms >= ?"  # noqa: S608 - a number
        found = f"SELECT seq, {KNOWN_BY} AS known FROM message_{number} WHERE seq >= ?"  # noqa: S608 - our own names
        repeated = f"SELECT seq FROM ({found}) WHERE EXISTS ({taken})"  # noqa: S608 - our own names
        statement = f"DELETE FROM message_{number} WHERE seq IN ({repeated})"  # noqa: S608 - our own names
        return connection.execute(statement, (first, now_ms() - self._store.settings.window_ms)).rowcount

    def _number(self, queue: str | None) -> int | None:
        if queue == "":
            raise Permanent(
                "sqlite: this row cannot be stored: its destination is an empty name", native_code="DESTINATION"
            )
        name = self._address.queue if queue is None else queue
        return self._store.number(name, create=self._store.settings.create)

    @staticmethod
    def _no_queue(queue: str) -> Permanent:
        text = f"sqlite: this row cannot be stored: there is no queue {queue!r}, and sqlite.create is false"
        return Permanent(text, native_code="DESTINATION")

    def _no_own_queue(self) -> Fatal:
        text = (
            f"sqlite: there is no queue {self._address.queue!r} in {str(self._address.path)!r}, and sqlite.create is "
            "false; provision it, or correct the URL"
        )
        return Fatal(text, native_code="DESTINATION")


def _left(deadline: float, otherwise: str) -> float:
    """Seconds that are left.

    Raises:
        Retriable: none.
    """
    left = deadline - time.monotonic()
    if left <= 0:
        raise Retriable(f"sqlite: {otherwise}; nothing was stored", native_code="deadline")
    return left
