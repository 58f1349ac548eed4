"""The dead letters role: browse, remove, purge the messages of one queue.

Every read is short, so that an open iterator never prevents a checkpoint of the write-ahead log.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from redelivery.codes import Code
from redelivery.contract.broker import DeadLetters, Letter
from redelivery.contract.context import ErrorContext
from redelivery.errors import BrokerError, ConfigurationError
from redelivery.kit.letters import KINDS, given_up, undecodable
from redelivery.kit.roles import Resource
from redelivery_sqlite import codec
from redelivery_sqlite.address import Address
from redelivery_sqlite.client import removal
from redelivery_sqlite.client.store import Store, now_ms
from redelivery_sqlite.errors import TABLE

#: Maximum number of letters, and approximate maximum of bytes, of one read.
_PAGE = 200
_PAGE_BYTES = 4 << 20
_WHY = "r.kind, r.reason, r.description, r.queue, r.message_id, r.attempts, r.first_ms"
_CODES = {kind: code for code, kind in KINDS.items()}


class SqliteDeadLetters(Resource, DeadLetters):
    """The messages of the queue at `address`."""

    def __init__(self, store: Store, address: Address) -> None:
        super().__init__("sqlite", f"queue {address.queue!r} of {str(store.path)!r}")
        self._store = store
        self._address = address
        self._queue = address.queue

    def browse(self) -> Iterator[Letter]:
        self.check_open("browsing")
        self._sweep()
        with TABLE.while_doing(self.doing("browsing")):
            number = self._number()
            if number is None:
                return
            end = self._store.connection().execute(f"SELECT max(seq) FROM message_{number}").fetchone()[0]  # noqa: S608 - a number
        after = 0
        while end is not None and after < end:
            page = self._page(number, after, end)
            if not page:
                return
            yield from page
            after = int(page[-1].position)

    def remove(self, positions: Sequence[str]) -> int:
        self.check_open("removing from")
        seqs = [self._seq(position) for position in positions]
        if not seqs or self._number() is None:
            return 0

        def work(connection: sqlite3.Connection) -> int:
            number = self._number()
            return 0 if number is None else removal.remove(connection, number, seqs, now_ms(), self._store.settings)

        return self._store.draining(self.doing("removing from"), work)

    def purge(self) -> int:
        count = 0
        # One transaction per page: a purge of millions neither blocks other writers nor needs disk space for all.
        while page := self._positions():
            count += self.remove(page)
        return count

    def _release(self) -> None:
        self._store.close()

    def _positions(self) -> list[str]:
        with TABLE.while_doing(self.doing("reading")):
            number = self._number()
            if number is None:
                return []
            query = f"SELECT seq FROM message_{number} ORDER BY seq LIMIT 1000"  # noqa: S608 - a number
            return [str(row[0]) for row in self._store.connection().execute(query).fetchall()]

    def _page(self, number: int, after: int, end: int) -> list[Letter]:
        query = (
            f"SELECT m.enqueued_ms, {_WHY}, {codec.COLUMNS} FROM message_{number} m "  # noqa: S608 - our own names and numbers
            f"LEFT JOIN reason_{number} r ON r.seq = m.seq "
            f"WHERE m.seq > ? AND m.seq <= ? ORDER BY m.seq LIMIT {_PAGE}"
        )
        letters: list[Letter] = []
        size = 0
        with TABLE.while_doing(self.doing("browsing")):
            cursor = self._store.connection().execute(query, (after, end))
            try:
                for enqueued, *why, seq, id_, timestamp, key, encoded, value in cursor:
                    message, fault = codec.decode(id_, timestamp, key, encoded, value)
                    context = self._context(enqueued, why) if why[0] is not None else None
                    if context is None and fault is not None:
                        context = undecodable("sqlite", fault)
                    found = Letter(position=str(seq), message=message, context=context, dead_lettered_ms=enqueued)
                    letters.append(found)
                    size += message.nbytes
                    if size > _PAGE_BYTES:
                        break
            finally:
                cursor.close()
        return letters

    def _context(self, dead_ms: int, why: Sequence[Any]) -> ErrorContext:
        """Return the context that `removal` wrote for a letter, from the columns of `_WHY`."""
        kind, reason, description, queue, message_id, attempts, first_ms = why
        context = given_up(
            "sqlite",
            _CODES.get(kind, Code.UNKNOWN),
            reason,
            destination=Address(self._store.path, queue).url,
            message_id=message_id,
            attempts=attempts,
            first_failure_ms=first_ms,
            last_failure_ms=dead_ms,
            extra={"description": description} if description else {},
        )
        return replace(context, kind=kind)  # a later version may have others

    def _sweep(self) -> None:
        """Move expired messages of the source queue here: it may have no receiver to do it."""
        source = self._address.source.queue
        with suppress(BrokerError):  # without write permission a reader still sees the other letters
            number = self._store.number(source) if source != self._queue and self._store.exists else None
            if number is None or not removal.has_expired(self._store.connection(), number, now_ms()):
                return

            def work(connection: sqlite3.Connection) -> int:
                return removal.dead_letter_expired(connection, self._store, source, self._queue, now_ms())

            while self._store.draining(self.doing("moving expired messages to"), work):
                pass

    def _number(self) -> int | None:
        return self._store.existing(self._address, self.doing("reading"))

    def _doing(self, what: str) -> str:
        return f"{what} queue {self._queue!r} of {str(self._store.path)!r}"

    @staticmethod
    def _seq(position: str) -> int:
        if not position.isascii() or not position.isdigit():
            raise ConfigurationError(f"sqlite: not a position of this queue: {position!r}; it is a number")
        return int(position)
