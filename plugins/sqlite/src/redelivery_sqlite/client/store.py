"""The file: opening, transactions, and the numbers of each queue's tables (`schema.py`)."""

from __future__ import annotations

import errno
import os
import shlex
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn, TypeVar
from urllib.parse import quote

from redelivery.errors import Fatal, Retriable
from redelivery.kit.errors import Code, nearest
from redelivery.kit.files import is_folder, make_private
from redelivery_sqlite.address import Address
from redelivery_sqlite.client.disk_reserve import DiskReserve, size_of
from redelivery_sqlite.client.schema import (
    APPLICATION_ID,
    FILE_SCHEMA,
    SCHEMA_VERSION,
    WITHOUT_IDENTITY,
    queue_schema,
)
from redelivery_sqlite.errors import ERRORS, TABLE, commit_error, denied, reserve_error
from redelivery_sqlite.options import Settings

T = TypeVar("T")

#: Larger pages than SQLite's default of 4096: measured, see the README.
_PAGE_SIZE = 8192
#: Pages in the write-ahead log before a checkpoint moves them into the file: 8 MB.
_CHECKPOINT_PAGES = 1000
_CACHE_KIB = 16_384
#: Maximum number of queues that an error names.
_NAMES = 10


def now_ms() -> int:
    """Return milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


_stores: weakref.WeakSet[Store] = weakref.WeakSet()
_all_stores = threading.Lock()


def _renew_lock() -> None:
    """Replace the lock: another thread may have held it when this process was forked."""
    global _all_stores  # noqa: PLW0603 - one per process
    _all_stores = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)


def _close_inherited() -> None:
    """Close every connection inherited over a fork, before this process opens its own.

    While an inherited one is open, SQLite mistakes the parent's locks for this process's own. The parent then believes
    that it closes the last connection, and deletes the write-ahead log with this process's commits (seen: all lost).
    """
    with _all_stores:
        stores = list(_stores)
    for store in stores:
        if store._pid not in {0, os.getpid()}:  # noqa: SLF001 - same module
            store.close()


class Store:
    """One connection to the file, opened when first used and again after a fork or a failed commit.

    Used by one thread at a time, not always the same.
    """

    def __init__(self, path: Path, settings: Settings) -> None:
        self.path = path
        self.settings = settings
        self._connection: sqlite3.Connection | None = None
        self._ended = False
        self._opened: tuple[int, int] | None = None
        self._pid = 0
        self._numbers: dict[str, int] = {}
        self._timeout = 0.0
        with _all_stores:
            _stores.add(self)
        self._log = path.with_name(f"{path.name}-wal")
        self._reserve = DiskReserve(path.with_name(f"{path.name}-reserve"), settings.reserve)

    @property
    def exists(self) -> bool:
        """Return whether the file exists; an empty file counts as missing.

        Raises:
            Fatal: no permission to read its folder.
        """
        with TABLE.while_doing(f"looking for {str(self.path)!r}"):
            return size_of(self.path) > 0

    def connection(self, wait: float | None = None) -> sqlite3.Connection:
        """Return the open connection. Its statements wait up to `wait` seconds for a lock (None: the option's value).

        Raises:
            BrokerError
        """
        wait = self.settings.busy_timeout if wait is None else max(0.0, min(wait, self.settings.busy_timeout))
        connection = self._connection
        if connection is None or self._pid != os.getpid():
            _close_inherited()
            self._pid = os.getpid()  # set first: another thread must not mistake it for inherited
            connection = self._connection = self._open(wait)
            self._timeout = wait
        if self._ended:  # asked last: another thread may have ended it during the opening
            self.close()
            raise Fatal(f"sqlite: {str(self.path)!r} was closed by another thread; open it again", code=Code.CLOSED)
        if wait != self._timeout:
            with TABLE.while_doing(f"using {str(self.path)!r}"):
                connection.execute(f"PRAGMA busy_timeout = {int(wait * 1000)}")
            self._timeout = wait
        return connection

    def check(self, wait: float) -> None:
        """Check whether the file can be written to or created, without creating it.

        Raises:
            BrokerError
        """
        if self.exists:
            self.connection(wait)
        doing = f"opening {str(self.path)!r}"
        self._refuse_path(doing)
        for path in (self.path, self.path.parent):
            if path.exists() and not os.access(path, os.W_OK):
                raise denied(doing, str(path))

    @contextmanager
    def writing(self, doing: str, wait: float | None = None) -> Iterator[sqlite3.Connection]:
        """Run a transaction that holds the write lock from its start and is rolled back if it fails.

        Raises:
            BrokerError: Ambiguous only if the disk failed during the commit.
        """
        connection = self.connection(wait)
        with TABLE.while_doing(doing):
            connection.execute("BEGIN IMMEDIATE")
        try:
            yield connection
        except BaseException as error:
            self._rollback(connection)
            if isinstance(error, ERRORS):
                raise TABLE.error(error, doing) from error
            raise
        try:
            connection.execute("COMMIT")
        except ERRORS as error:
            undone = _in_transaction(connection)  # if so, nothing was committed for certain
            self._rollback(connection)
            raise (TABLE.error if undone else commit_error)(error, doing) from error
        if self._identity() != self._opened:
            self.close()
            text = "the file was removed or replaced while it was open, with all that it held; find out by whom"
            raise Fatal(f"sqlite: {doing}: {text}", code=Code.CORRUPT)

    def _identity(self) -> tuple[int, int] | None:
        """Return which file is at the path, or None. A file that was removed while open still accepts writes."""
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def draining(self, doing: str, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work` within `writing` and return its result. On a full disk delete the reserve and run it once more.

        Raises:
            BrokerError: as `writing`.
        """
        try:
            with self.writing(doing) as connection:
                return work(connection)
        except Retriable as error:
            if error.code is not Code.FULL or not self.drain(doing):
                raise
        with self.writing(doing) as connection:
            return work(connection)

    def keep_reserve(self, doing: str) -> None:
        """Reserve the space that draining needs, before more is stored.

        Raises:
            BrokerError: the disk is full.
        """
        try:
            if not self.path.parent.is_dir():
                return  # opening the file reports the error
            self._reserve.keep(size_of(self.path) + size_of(self._log))
        except OSError as error:
            raise reserve_error(error, doing) from error

    def drain(self, doing: str) -> bool:
        """On a full disk delete the reserve and empty the write-ahead log; return whether that was done."""
        if not self._reserve.give_up():
            return False
        with TABLE.while_doing(doing):
            self.connection().execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        return True

    def number(self, queue: str, *, create: bool | None = None) -> int | None:
        """Return the number of a queue's tables; None if the queue is missing. Creating it needs `writing`."""
        if queue in self._numbers:
            return self._numbers[queue]
        connection = self.connection()
        row = connection.execute("SELECT number FROM queue WHERE name = ?", (queue,)).fetchone()
        if row is None:
            if not create:
                return None
            cursor = connection.execute("INSERT INTO queue (name, created_ms) VALUES (?, ?)", (queue, now_ms()))
            number = int(cursor.lastrowid or 0)
            for statement in queue_schema(number).values():
                connection.execute(statement)
            return number  # not cached yet: the transaction may still be rolled back
        self._numbers[queue] = int(row[0])
        return self._numbers[queue]

    def existing(self, address: Address, doing: str) -> int | None:
        """Return the number of a queue to read; None if so far only its dead letter queue, or only its source, exists.

        Raises:
            Fatal: the file, or the queue in it, does not exist. A mistyped name must not look like an empty queue.
        """
        if not self.exists:
            raise Fatal(f"sqlite: {doing}: there is no such file; {_advice(address)}", code=Code.NO_SUCH_DESTINATION)
        with TABLE.while_doing(doing):
            number = self.number(address.queue)
            if number is not None or self.number(address.other.queue) is not None:
                return number
            rows = self.connection().execute("SELECT name FROM queue ORDER BY name").fetchall()
        names = [name for (name,) in rows if not address.at(name).is_dead_letters]
        wanted = address.source.queue
        near = nearest(wanted, names)
        hint = f" (did you mean {near!r}?)" if near else ""
        shown = ", ".join(names[:_NAMES]) + (f" and {len(names) - _NAMES} more" if len(names) > _NAMES else "")
        text = f"there is no queue {wanted!r}{hint}; the file has {shown or 'none'}; {_advice(address)}"
        raise Fatal(f"sqlite: {doing}: {text}", code=Code.NO_SUCH_DESTINATION)

    def end(self) -> None:
        """Close the connection and open no other."""
        self._ended = True
        self.close()

    def close(self) -> None:
        """Close the connection; the next use opens another."""
        if self._connection is not None:
            with suppress(*ERRORS):
                self._connection.close()
        self._connection = None

    def _rollback(self, connection: sqlite3.Connection) -> None:
        self._numbers.clear()  # a queue created in the transaction is gone
        if _in_transaction(connection):
            try:
                connection.execute("ROLLBACK")
            except ERRORS:
                self.close()
        else:
            self.close()  # SQLite itself rolled the transaction back: reconnect

    def _open(self, wait: float) -> sqlite3.Connection:
        self._numbers.clear()
        doing = f"opening {str(self.path)!r}"
        self._refuse_path(doing)
        name = f"file:{quote(str(self.path.absolute()))}"
        try:
            make_private(self.path)  # SQLite gives its files beside this one the same mode
        except OSError as error:  # SQLite meets every other error too, and reports it itself
            if error.errno == errno.ELOOP:
                raise TABLE.error(error, doing) from error
        self._opened = self._identity()  # set first: a later replacement of the file is noticed
        with TABLE.while_doing(doing):
            connection = sqlite3.connect(
                name, uri=True, timeout=wait, isolation_level=None, check_same_thread=False, cached_statements=32
            )
        try:
            with TABLE.while_doing(doing):
                self._prepare(connection, doing)
        except BaseException:
            connection.close()
            raise
        return connection

    def _refuse_path(self, doing: str) -> None:
        """Refuse a path that cannot be a file of ours. Raises Fatal."""
        with TABLE.while_doing(doing):
            in_folder, is_one = is_folder(self.path.parent), is_folder(self.path)
        if not in_folder:
            raise Fatal(
                f"sqlite: {doing}: its folder is missing; make it, or correct the URL", code=Code.NO_SUCH_DESTINATION
            )
        if is_one:
            raise Fatal(f"sqlite: {doing}: this is a folder; name a file in it", code=Code.INVALID_DESTINATION)
        if not self.settings.create and not self.exists:
            text = (
                f"sqlite: {doing}: there is no such file, and sqlite.create is false; provision it, or correct the URL"
            )
            raise Fatal(text, code=Code.NO_SUCH_DESTINATION)

    def _prepare(self, connection: sqlite3.Connection, doing: str) -> None:
        def pragma(name: str) -> object:
            return connection.execute(f"PRAGMA {name}").fetchone()[0]

        if pragma("user_version") == 0:
            self._create(connection, doing)
        if pragma("application_id") != APPLICATION_ID:
            _refuse_foreign(doing)
        if pragma("user_version") == WITHOUT_IDENTITY:
            self._add_identities(connection)
        version = pragma("user_version")
        if version != SCHEMA_VERSION:
            text = (
                f"sqlite: {doing}: its schema has version {version}, this redelivery-sqlite knows {SCHEMA_VERSION}; "
                "install the version that wrote it"
            )
            raise Fatal(text, code=Code.UNSUPPORTED)
        if pragma("journal_mode") != "wal":
            pragma("journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        connection.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}")

    @staticmethod
    def _add_identities(connection: sqlite3.Connection) -> None:
        """Migrate a file of the previous version: its messages are still recognised by their ids."""
        with _transaction(connection):
            if connection.execute("PRAGMA user_version").fetchone()[0] == WITHOUT_IDENTITY:  # no other was faster
                for (number,) in connection.execute("SELECT number FROM queue").fetchall():
                    index = f"message_{number}_identity"
                    connection.execute(f"ALTER TABLE message_{number} ADD COLUMN identity TEXT")
                    connection.execute(f"DROP INDEX IF EXISTS message_{number}_id")
                    connection.execute(queue_schema(number)[index])
                connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")

    @staticmethod
    def _create(connection: sqlite3.Connection, doing: str) -> None:
        connection.execute(f"PRAGMA page_size = {_PAGE_SIZE}")
        with _transaction(connection):
            if connection.execute("PRAGMA user_version").fetchone()[0] == 0:  # no other process was faster
                if connection.execute("SELECT 1 FROM sqlite_master").fetchone() is not None:
                    _refuse_foreign(doing)
                connection.execute(FILE_SCHEMA)
                connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Run a transaction that creates or changes the schema. It does not map SQLite's own errors."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _advice(address: Address) -> str:
    return f"correct the URL, or make it: redelivery apply {shlex.quote(address.source.url)}"


def _refuse_foreign(doing: str) -> NoReturn:
    raise Fatal(f"sqlite: {doing}: this is another program's database; name another file", code=Code.CORRUPT)


def _in_transaction(connection: sqlite3.Connection) -> bool:
    """Whether a transaction is open: none is in a connection that another thread has closed."""
    try:
        return connection.in_transaction
    except ERRORS:
        return False
