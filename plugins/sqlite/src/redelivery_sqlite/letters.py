"""The dead letters role: browse, remove, purge the messages of one queue.

Every read is short, so that an open iterator never keeps the write-ahead log from being emptied.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from redelivery.broker import DeadLetters, Letter
from redelivery.errors import ConfigurationError, Fatal, Retriable
from redelivery.message import Message
from redelivery_sqlite import headers
from redelivery_sqlite.errors import classified
from redelivery_sqlite.store import Store, now_ms

#: Letters, and at most about so many bytes, that one read takes.
_PAGE = 200
_PAGE_BYTES = 4 << 20
#: Ids forgotten at each removal, at most, once they are older than the window.
_FORGET = 10_000
_COLUMNS = "seq, id, enqueued_ms, timestamp_ms, key, headers, value"


class SqliteDeadLetters(DeadLetters):
    """The messages of the queue `queue`."""

    def __init__(self, store: Store, queue: str) -> None:
        self._store = store
        self._queue = queue

    def browse(self) -> Iterator[Letter]:
        with classified(self._doing("browsing")):
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
        seqs = [(self._seq(position),) for position in positions]
        if not seqs or self._number() is None:
            return 0
        doing = self._doing("removing from")
        try:
            return self._remove(seqs, doing)
        except Retriable as error:
            if error.code != "SQLITE_FULL" or not self._store.drain(doing):
                raise
        return self._remove(seqs, doing)

    def _remove(self, seqs: list[tuple[int]], doing: str) -> int:
        with self._store.writing(doing) as connection:
            number = self._number()
            now = now_ms()
            connection.executemany(
                f"INSERT INTO taken_{number} (id, removed_ms) SELECT id, {now} FROM message_{number} "  # noqa: S608 - numbers
                "WHERE seq = ? AND id IS NOT NULL ON CONFLICT (id) DO UPDATE SET removed_ms = excluded.removed_ms",
                seqs,
            )
            oldest = f"SELECT number FROM taken_{number} ORDER BY number LIMIT {_FORGET}"  # noqa: S608 - numbers
            connection.execute(
                f"DELETE FROM taken_{number} WHERE number IN ({oldest}) AND removed_ms < ?",  # noqa: S608 - numbers
                (now - self._store.settings.window_ms,),
            )
            return connection.executemany(f"DELETE FROM message_{number} WHERE seq = ?", seqs).rowcount  # noqa: S608 - a number

    def purge(self) -> int:
        count = 0
        # In pages, each its own transaction: a purge of millions neither holds up other writers nor needs their room.
        while page := self._positions():
            count += self.remove(page)
        return count

    def close(self) -> None:
        self._store.close()

    def _positions(self) -> list[str]:
        with classified(self._doing("reading")):
            number = self._number()
            if number is None:
                return []
            query = f"SELECT seq FROM message_{number} ORDER BY seq LIMIT 1000"  # noqa: S608 - a number
            return [str(row[0]) for row in self._store.connection().execute(query).fetchall()]

    def _page(self, number: int, after: int, end: int) -> list[Letter]:
        query = f"SELECT {_COLUMNS} FROM message_{number} WHERE seq > ? AND seq <= ? ORDER BY seq LIMIT {_PAGE}"  # noqa: S608 - our own names and numbers
        letters: list[Letter] = []
        size = 0
        with classified(self._doing("browsing")):
            cursor = self._store.connection().execute(query, (after, end))
            try:
                for seq, id_, enqueued, timestamp, key, encoded, value in cursor:
                    message = Message(
                        value=value, key=key, headers=headers.read(encoded), id=id_, timestamp_ms=timestamp
                    )
                    letters.append(Letter(position=str(seq), message=message, dead_lettered_ms=enqueued))
                    size += message.nbytes
                    if size > _PAGE_BYTES:
                        break
            finally:
                cursor.close()
        return letters

    def _number(self) -> int | None:
        if not self._store.exists:
            raise Fatal(
                f"sqlite: reading {str(self._store.path)!r}: there is no such file; correct the URL", code="ENOENT"
            )
        with classified(self._doing("reading")):
            return self._store.number(self._queue)

    def _doing(self, what: str) -> str:
        return f"{what} queue {self._queue!r} of {str(self._store.path)!r}"

    @staticmethod
    def _seq(position: str) -> int:
        if not position.isascii() or not position.isdigit():
            raise ConfigurationError(f"sqlite: not a position of this queue: {position!r}; it is a number")
        return int(position)
