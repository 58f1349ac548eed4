"""The dead letters role: browse, remove, purge the messages of one queue.

Every read is short, so that an open iterator never prevents a checkpoint of the write-ahead log.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from redelivery.codes import Code
from redelivery.contract.broker import DeadLetters, Letter, LetterBatch, Wanted
from redelivery.contract.context import ErrorContext, moment_ms
from redelivery.contract.letters import EVERYTHING
from redelivery.contract.message import ROW_OVERHEAD, Batch, Column
from redelivery.errors import BrokerError, ConfigurationError, Fatal
from redelivery.kit.letters import KINDS, given_up, undecodable
from redelivery.kit.roles import Resource
from redelivery_sqlite import codec
from redelivery_sqlite.address import Address
from redelivery_sqlite.client import removal
from redelivery_sqlite.client.pages import POSITION, Generation, Page, Pages, Point, Range, sought, split, spread
from redelivery_sqlite.client.store import Store, now_ms
from redelivery_sqlite.errors import TABLE

#: Letters that one transaction removes: other writers wait for it.
_REMOVED = 5_000
_WHY = "r.seq, r.kind, r.reason, r.description, r.queue, r.message_id, r.attempts, r.first_ms"
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
        queue = self._now()
        for batch in self._read(queue, 0, queue.end, EVERYTHING):
            yield from batch.letters()

    def splits(self, wanted: Wanted) -> Sequence[str]:
        self.check_open("dividing")
        queue = self._now()
        first, last = 1, queue.end
        if wanted.after is not None:
            first = self._point(wanted.after, queue).seq + 1
        if wanted.before is not None:
            last = min(last, self._point(wanted.before, queue).seq)
        if queue.number == 0:
            return []
        with TABLE.while_doing(self.doing("dividing")):
            if (seqs := sought(wanted)) is not None:
                ranges = list(spread([seq for seq in seqs if first <= seq <= last], wanted.readers))
            else:
                ranges = list(split(self._store.connection(), queue.number, first, last, wanted.readers))
        return [str(Range(queue.number, queue.created_ms, *each)) for each in ranges]

    def read(self, split: str, wanted: Wanted) -> Iterator[LetterBatch]:
        self.check_open("reading")
        found = Range.parse(split)
        queue = self._generation()
        self._check(found, queue, "split")
        return self._read(queue, found.first - 1, found.last, wanted)

    def cursor(self, *, after: str | None = None, most: int | None = None) -> str:
        self.check_open("looking at")
        queue = self._now()
        begin = 0 if after is None else self._point(after, queue).seq
        end = max(begin, queue.end)
        if most is not None and queue.number:
            behind = f"SELECT seq FROM message_{queue.number} WHERE seq > ? AND seq <= ? ORDER BY seq LIMIT 1 OFFSET ?"  # noqa: S608 - a number
            with TABLE.while_doing(self.doing("looking at")):
                row = self._store.connection().execute(behind, (begin, end, max(0, most - 1))).fetchone()
            end = row[0] if row else end
        return str(Point(queue.number, queue.created_ms, end))

    def remove(self, positions: Sequence[str]) -> int:
        self.check_open("removing from")
        seqs = self._seqs_at(positions)
        if not seqs or self._number() is None:
            return 0
        return sum(self._remove(seqs[first : first + _REMOVED]) for first in range(0, len(seqs), _REMOVED))

    def purge(self) -> int:
        self.check_open("removing from")
        queue = self._generation()
        count, after = 0, 0
        # One transaction per page: a purge of millions neither blocks other writers nor needs disk space for all.
        while seqs := self._seqs(queue, after):
            count += self._remove(seqs)
            after = seqs[-1]
        return count

    def _release(self) -> None:
        self._store.end()

    def _remove(self, seqs: Sequence[int]) -> int:
        def work(connection: sqlite3.Connection) -> int:
            number = self._number()
            if number is None:
                return 0
            dead = self._address.is_dead_letters
            return removal.remove(connection, number, seqs, now_ms(), self._store.settings, dead=dead)

        return self._store.draining(self.doing("removing from"), work)

    def _seqs(self, queue: Generation, after: int) -> list[int]:
        if queue.number == 0:
            return []
        query = f"SELECT seq FROM message_{queue.number} WHERE seq > ? AND seq <= ? ORDER BY seq LIMIT {_REMOVED}"  # noqa: S608 - numbers
        with TABLE.while_doing(self.doing("reading")):
            return [seq for (seq,) in self._store.connection().execute(query, (after, queue.end))]

    def _now(self) -> Generation:
        """Return the queue as it is now, expired messages of its source included."""
        self._sweep()
        return self._generation()

    def _generation(self) -> Generation:
        doing = self.doing("reading")
        if self._store.existing(self._address, doing) is None:
            return Generation(0, 0, 0)
        with TABLE.while_doing(doing):
            return Generation.of(self._store.connection(), self._queue)

    def _point(self, cursor: str, queue: Generation) -> Point:
        point = Point.parse(cursor)
        self._check(point, queue, "cursor")
        return point

    def _check(self, found: Point | Range, queue: Generation, what: str) -> None:
        if not queue.is_of(found.number, found.created_ms):
            text = f"this {what} is of another queue, or of one that was created again since: begin again without it"
            raise Fatal(f"sqlite: {self.doing('reading')}: {text}", code=Code.CONFLICT)

    def _read(self, queue: Generation, after: int, last: int, wanted: Wanted) -> Iterator[LetterBatch]:
        if queue.number == 0:
            return
        pages = Pages(queue.number, wanted)
        doing = self.doing("reading")
        while after < last:
            self.check_open("reading")
            with TABLE.while_doing(doing):
                connection = self._store.connection()
                page, after = pages.read(connection, after, last)
                reasons = [] if page is None else self._reasons(connection, queue.number, page)
            if page is not None:
                yield self._batch(page, reasons)

    @staticmethod
    def _reasons(connection: sqlite3.Connection, number: int, page: Page) -> list[Any]:
        query = f"SELECT {_WHY} FROM reason_{number} r WHERE r.seq"  # noqa: S608 - our own names
        first, last = page.seq[0], page.seq[-1]
        if last - first < 2 * len(page.seq):
            return connection.execute(f"{query} BETWEEN ? AND ?", (first, last)).fetchall()
        query += " IN (SELECT value FROM json_each(?))"
        return connection.execute(query, (json.dumps(page.seq),)).fetchall()

    def _batch(self, page: Page, reasons: Sequence[Any]) -> LetterBatch:
        count, seqs, enqueued = len(page.seq), page.seq, page.enqueued_ms
        faults: dict[int, str] = {}

        def column(name: str, decode: Callable[[Sequence[Any], dict[int, str]], list[Any]] | None = None) -> Any:
            values = page.columns.get(name)
            if values is None:
                return None
            return Column.of(list(values) if decode is None else decode(values, faults))

        messages = Batch(
            number=0,
            length=count,
            nbytes=page.nbytes + ROW_OVERHEAD * count,
            value=column("value") or Column(count, lambda: [None] * count),
            key=column("key"),
            headers=column("headers", codec.decode_headers),
            id=column("id", codec.decode_ids),
            timestamp_ms=column("timestamp_ms"),
        )
        contexts = {index: undecodable("sqlite", fault) for index, fault in faults.items()}
        if reasons:
            at = {seq: index for index, seq in enumerate(seqs)}
            for seq, *why in reasons:
                if seq in at:
                    contexts[at[seq]] = self._context(enqueued[at[seq]], why)
        return LetterBatch(
            messages=messages,
            position=Column(count, lambda: list(map(str, seqs))),
            dead_lettered_ms=Column(count, lambda: list(map(moment_ms, enqueued))),
            contexts=contexts,
        )

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
    def _seqs_at(positions: Sequence[str]) -> list[int]:
        if not all(map(POSITION.fullmatch, positions)):
            wrong = next(each for each in positions if POSITION.fullmatch(each) is None)
            raise ConfigurationError(f"sqlite: not a position of this queue: {wrong!r}; it is a number")
        return list(map(int, positions))
