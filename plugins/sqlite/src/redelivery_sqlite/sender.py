"""The sender role: a batch is one transaction. It is stored completely, except for rows that no file can store.

`send` stores the batch itself, and `collect` only reports the result. A separate thread would compete with the engine
for the interpreter lock at every row.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import repeat
from typing import Any

from redelivery.contract.broker import Sender, Settled
from redelivery.contract.message import Batch, Message
from redelivery.errors import BrokerError, Fatal, Permanent, Unattributed
from redelivery.kit.errors import Code
from redelivery.kit.in_flight import FailedKeys, SettledBatches, time_left
from redelivery.kit.roles import Resource
from redelivery_sqlite import codec
from redelivery_sqlite.address import Address
from redelivery_sqlite.client.schema import KNOWN_BY
from redelivery_sqlite.client.store import Store, now_ms
from redelivery_sqlite.errors import TABLE, VALUE_ERRORS

#: Errors that one row can cause and that leave the transaction open.
_ROW_ERRORS = (*VALUE_ERRORS, sqlite3.DataError, sqlite3.IntegrityError, sqlite3.ProgrammingError, Permanent)


class SqliteSender(Resource, Sender):
    """Stores batches in the queue of `address`, or in the one that a row names."""

    def __init__(self, store: Store, address: Address, *, message_bytes: int) -> None:
        super().__init__("sqlite", repr(str(address.path)))
        self._store = store
        self._address = address
        self._message_bytes = message_bytes
        self._headers: list[str | None] | None = None  # of the current batch, encoded
        self._settled = SettledBatches()
        self._failed_keys = FailedKeys("sqlite")

    def check(self, *, deadline: float) -> None:
        self.check_open("storing in")
        self._store.check(max(0.0, deadline - time.monotonic()))
        if not self._store.settings.create and self._store.number(self._address.queue) is None:
            raise self._no_own_queue()

    def send(self, batch: Batch, *, deadline: float) -> None:
        self.check_open("storing in")
        doing = self.doing("storing in")
        wait = time_left(deadline, f"sqlite: {doing}")
        self._load(batch)
        try:
            self._store.keep_reserve(doing)
            with self._store.writing(doing, wait) as connection:
                store = self._isolated if batch.isolate else self._whole
                failures, duplicates = store(connection, batch)
                time_left(deadline, f"sqlite: {doing}")
        except Permanent as error:
            raise error.reclassified(Unattributed) from error
        self._settled.add(batch, failures, duplicates=duplicates)
        self._failed_keys.remember(batch, failures)

    def collect(self, wait: float) -> Sequence[Settled]:  # noqa: ARG002 - it never waits
        self._failed_keys.clear()
        return self._settled.take()

    def _release(self) -> None:
        self._store.end()

    def _load(self, batch: Batch) -> None:
        """Do all work that is possible before the write lock, which only one process can hold."""
        for column in (batch.value, batch.key, batch.id, batch.identity, batch.destination, batch.timestamp_ms):
            if column is not None:
                _ = column.values
        self._headers = None
        if batch.headers is not None:
            with suppress(*VALUE_ERRORS):  # storing the batch finds the row
                self._headers = codec.encode_headers_of(batch.headers.values)

    def _whole(self, connection: sqlite3.Connection, batch: Batch) -> tuple[dict[int, BrokerError], int]:
        """Store all rows. If that fails, find the rows that no file can store, and store the others.

        Returns:
            The failures, and the number of duplicates.
        """
        connection.execute("SAVEPOINT batch")
        is_plain = not (batch.ordered and self._failed_keys) and not codec.has_odd_timestamps(batch)
        if is_plain:
            try:
                return {}, self._store_rows(connection, batch, None)
            except _ROW_ERRORS:
                connection.execute("ROLLBACK TO batch")
                failures = self._faults(batch)
                if not failures:
                    raise
        else:
            failures = self._faults(batch)
        good = [index for index in range(batch.length) if index not in failures]
        return failures, self._store_rows(connection, batch, good) if good else 0

    def _isolated(self, connection: sqlite3.Connection, batch: Batch) -> tuple[dict[int, BrokerError], int]:
        """Store each row in its own savepoint, so that an error concerns one row; return the same as `_whole`."""
        failures = self._faults(batch)
        duplicates = 0
        for index in [each for each in range(batch.length) if each not in failures]:
            connection.execute("SAVEPOINT row")
            try:
                duplicates += self._store_rows(connection, batch, [index])
            except _ROW_ERRORS as error:
                found = error if isinstance(error, Permanent) else TABLE.error(error, "storing a row on its own")
                if not isinstance(found, Permanent):
                    raise
                connection.execute("ROLLBACK TO row")
                failures[index] = found
            connection.execute("RELEASE row")
        return failures, duplicates

    def _faults(self, batch: Batch) -> dict[int, BrokerError]:
        """Return the rows that no file can store, and those that must wait behind an earlier row of their key."""
        if codec.is_surely_storable(batch, message_bytes=self._message_bytes):
            found = self._wrong_destinations(batch)
        else:
            rows = enumerate(batch.rows())
            found = {index: error for index, message in rows if (error := self._fault(message)) is not None}
        return self._failed_keys.keep_back(batch, found)

    def _wrong_destinations(self, batch: Batch) -> dict[int, BrokerError]:
        """Return the rows whose destination takes none. Rows of one destination share their error."""
        if batch.destination is None:
            return {}
        names = batch.destination.values
        errors = {name: self._fault(Message(value=None, destination=name)) for name in set(names)}
        return {index: error for index, name in enumerate(names) if (error := errors[name]) is not None}

    def _fault(self, message: Message) -> BrokerError | None:
        error = codec.unstorable(message, message_bytes=self._message_bytes)
        if error is None and message.destination is not None and self._number(message.destination) is None:
            error = self._no_queue(message.destination)
        return error

    def _store_rows(self, connection: sqlite3.Connection, batch: Batch, indexes: Sequence[int] | None) -> int:
        """Store these rows (None: all), each in its queue; return the number of duplicates."""
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
            columns["headers"] = map(codec.encode_headers, pick(batch.headers.values))
        columns["value"] = pick(batch.value.values)
        marks = ", ".join("?" * len(columns))
        into = f"INSERT INTO message_{number} ({', '.join(columns)}) VALUES ({marks})"  # noqa: S608 - our own names
        known = not columns.keys().isdisjoint(("id", "identity"))
        if known:
            into += f" ON CONFLICT ({KNOWN_BY}) WHERE {KNOWN_BY} IS NOT NULL DO NOTHING"
        stored = connection.executemany(into, zip(*columns.values(), strict=False)).rowcount
        connection.execute("UPDATE queue SET next = ? WHERE number = ?", (first + count, number))
        if known and not dead:  # a removed letter may be sent again: a duplicate is better than a loss
            stored -= self._take_back(connection, number, first)
        return count - stored

    def _take_back(self, connection: sqlite3.Connection, number: int, first: int) -> int:
        """Remove rows stored from `first` on that repeat a message removed within the window; return how many."""
        if connection.execute(f"SELECT 1 FROM taken_{number} LIMIT 1").fetchone() is None:  # noqa: S608 - a number
            return 0
        taken = f"SELECT id FROM taken_{number} WHERE id = known AND removed_ms >= ?"  # noqa: S608 - a number
        found = f"SELECT seq, {KNOWN_BY} AS known FROM message_{number} WHERE seq >= ?"  # noqa: S608 - our own names
        repeated = f"SELECT seq FROM ({found}) WHERE EXISTS ({taken})"  # noqa: S608 - our own names
        statement = f"DELETE FROM message_{number} WHERE seq IN ({repeated})"  # noqa: S608 - our own names
        return connection.execute(statement, (first, now_ms() - self._store.settings.window_ms)).rowcount

    def _number(self, queue: str | None) -> int | None:
        if queue == "":
            text = "sqlite: this row cannot be stored: its destination is an empty name"
            raise Permanent(text, code=Code.INVALID_DESTINATION)
        name = self._address.queue if queue is None else queue
        return self._store.number(name, create=self._store.settings.create)

    @staticmethod
    def _no_queue(queue: str) -> Permanent:
        text = f"sqlite: this row cannot be stored: there is no queue {queue!r}, and sqlite.create is false"
        return Permanent(text, code=Code.NO_SUCH_DESTINATION)

    def _no_own_queue(self) -> Fatal:
        text = (
            f"sqlite: there is no queue {self._address.queue!r} in {str(self._address.path)!r}, and sqlite.create is "
            "false; provision it, or correct the URL"
        )
        return Fatal(text, code=Code.NO_SUCH_DESTINATION)
