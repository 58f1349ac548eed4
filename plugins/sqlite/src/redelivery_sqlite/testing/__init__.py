"""The test harness: a file in a scratch folder. It needs the extra `testing`.

It reads the stored messages with sqlite3 alone, without the plugin's code.
"""

from __future__ import annotations

import base64
import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, quote, unquote

from redelivery.contract.message import Message
from redelivery.kit.address import split_url
from redelivery_conformance.harness import CannotShow, Foreign, Harness, Outage, Place, Runtime, RuntimeKind

DEAD_LETTERS: Final = "-dead-letters"


class SqlitePlace(Place):
    """One new queue in a new file."""

    # The reserve would take 16 MiB per test, and the option sets how long to wait for another process's lock.
    options: Mapping[str, str] = {"sqlite.reserve": "0", "sqlite.busy_timeout": "1"}

    def __init__(self, path: Path, queue: str) -> None:
        self.path = path
        self.queue = queue
        self.url = f"sqlite://{quote(str(path))}?queue={quote(queue, safe='')}"

    def stored(self, destination: str | None = None) -> Sequence[Message]:
        columns = "id, timestamp_ms, key, headers, value"
        with self._reading() as connection:
            numbers = _all(connection, "SELECT number FROM queue WHERE name = ?", destination or self.queue)
            return [
                Message(id=id_, timestamp_ms=stamp, key=key, headers=_headers(headers), value=value)
                for (number,) in numbers
                for id_, stamp, key, headers, value in _all(
                    connection,
                    f"SELECT {columns} FROM message_{int(number)} ORDER BY seq",  # noqa: S608 - a number
                )
            ]

    def snapshot(self) -> object:
        if not self.path.exists():
            return None
        with self._reading() as connection:
            return list(connection.iterdump()), _all(connection, "PRAGMA user_version")

    def unreachable(self) -> str:
        return f"sqlite://{quote(str(self.path.parent / 'no-such-folder' / 'q.db'))}?queue={quote(self.queue)}"

    @contextmanager
    def outage(self, kind: Outage = "refused") -> Iterator[None]:
        """Hold the write lock from another connection."""
        if kind != "refused":
            raise CannotShow(f"an outage, {kind}: a file has no connections")
        with closing(sqlite3.connect(self.path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            yield
            other.execute("ROLLBACK")

    def vanish(self) -> None:
        for each in self.path.parent.glob(f"{self.path.name}*"):
            each.unlink()

    def alter(self) -> None:
        with closing(sqlite3.connect(self.path)) as connection:
            ((number,),) = _all(connection, "SELECT number FROM queue WHERE name = ?", self.queue)
            connection.execute(f"DROP INDEX message_{int(number)}_identity")
            connection.commit()

    def expiring(self, seconds: float) -> Mapping[str, str]:
        return {"sqlite.message_ttl": str(seconds)}

    def limiting(self, deliveries: int) -> Mapping[str, str]:
        with closing(sqlite3.connect(self.path)) as connection:  # the limit set by provisioning counts, not the option
            connection.execute("UPDATE queue SET max_deliveries = NULL WHERE name = ?", (self.queue,))
            connection.commit()
        return {"sqlite.max_deliveries": str(deliveries)}

    def damage(self) -> None:
        self._insert(self.queue, value=b"\0", headers="{oops")

    def put_foreign(self, *, dead: bool) -> Foreign:
        """Other programs write such a file only as it is described; so ids and bytes are all that can differ."""
        self._insert(
            self.queue + DEAD_LETTERS if dead else self.queue,
            id="theirs-1",
            timestamp_ms=1_700_000_000_123,
            key=b"k\xff",
            value=b"theirs \xff",
            headers=json.dumps([["b", "text"], ["a", {"base64": "//4="}], ["a", None]]),
        )
        (written,) = self.foreign(dead=dead)
        return written

    def foreign(self, *, dead: bool) -> Sequence[Foreign]:
        return [
            Foreign(
                {name: [value for other, value in each.headers if other == name] for name, _ in each.headers},
                {"id": each.id, "key": each.key, "value": each.value, "timestamp": each.timestamp_ms},
            )
            for each in self.stored(self.queue + DEAD_LETTERS if dead else None)
        ]

    def _insert(self, queue: str, **columns: object) -> None:
        with closing(sqlite3.connect(self.path)) as connection:
            ((number,),) = _all(connection, "SELECT number FROM queue WHERE name = ?", queue)
            connection.execute("UPDATE queue SET next = next + 1 WHERE number = ?", (number,))
            names, marks = ", ".join(columns), ", ".join("?" * len(columns))
            connection.execute(
                f"INSERT INTO message_{int(number)} (seq, enqueued_ms, {names}) "  # noqa: S608 - a number, and our names
                f"SELECT next - 1, 0, {marks} FROM queue WHERE number = ?",
                (*columns.values(), number),
            )
            connection.commit()

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        path = self.path if self.path.exists() else ":memory:"
        with closing(sqlite3.connect(path)) as connection:
            if path == ":memory:":
                connection.execute("CREATE TABLE queue (number, name)")
            yield connection


class SqliteRuntime(Runtime):
    """Files in one folder, or queues beside the queue of a URL."""

    cannot_show = ("power loss: no test cuts it", "several hosts: a file is one host's")

    def __init__(self, kind: RuntimeKind, path: Path, queue: str | None = None) -> None:
        self.kind = kind
        self.description = f"SQLite {sqlite3.sqlite_version}, {'the file' if queue else 'files in'} {path}"
        self._path = path
        self._queue = queue

    def place(self) -> SqlitePlace:
        if self._queue is None:
            return SqlitePlace(self._path / f"{self.fresh_name('q')}.db", "orders")
        return SqlitePlace(self._path, self.fresh_name(f"{self._queue}-conformance"))


class SqliteHarness(Harness):
    """The real embedded broker, not a stand-in."""

    name = "sqlite"

    def starts(self) -> Mapping[RuntimeKind, Callable[[Path], Runtime]]:
        return {"embedded": lambda scratch: SqliteRuntime("embedded", scratch)}

    def at(self, url: str, options: Mapping[str, str], scratch: Path) -> Runtime:  # noqa: ARG002 - a file needs neither
        parts = split_url(url)
        return SqliteRuntime("url", Path(unquote(parts.path)), dict(parse_qsl(parts.query)).get("queue", "default"))


def _all(connection: sqlite3.Connection, statement: str, *values: str) -> list[Any]:
    return connection.execute(statement, values).fetchall()


def _headers(text: str | None) -> tuple[tuple[str, bytes | None], ...]:
    return tuple((name, _bytes(value)) for name, value in json.loads(text or "[]"))


def _bytes(value: Any) -> bytes | None:
    if isinstance(value, dict):
        return base64.b64decode(value["base64"])
    return None if value is None else str(value).encode()
