"""An LMDB file as queues: transactions within a bounded time, and one environment per process."""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

import filelock
import lmdb

from redelivery.contract.message import Message
from redelivery.errors import Fatal
from redelivery.kit.errors import Code
from redelivery.kit.roles import Resource
from redelivery_lmdb.address import Address
from redelivery_lmdb.codec import Record
from redelivery_lmdb.errors import TABLE
from redelivery_lmdb.options import Settings

PATIENCE = 5.0  # seconds to wait for the writer's lock, where the contract gives no deadline
FIRST, LAST = bytes(12), b"\xff" * 12  # places in a queue: what follows its prefix in a key
POLL = 0.01  # seconds between two attempts at what LMDB cannot wait for


class Store:
    """One LMDB environment, counted by its users: LMDB forbids opening a file twice in a process."""

    _open: ClassVar[dict[Path, Store]] = {}
    _guard: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, folder: Path, map_size: int) -> None:
        self.users = 0
        self.folder = folder
        self.environment = lmdb.open(str(folder), map_size=map_size)

    @classmethod
    def acquire(cls, folder: Path, map_size: int) -> Store:
        """Open the store of a folder, or share it; makes a missing folder. `release` it once. Raises BrokerError."""
        folder = folder.resolve()
        with cls._guard, TABLE.while_doing(f"opening {folder}", safe=True):
            store = cls._open.get(folder) or cls._open.setdefault(folder, cls(folder, map_size))
            store.users += 1
            return store

    def release(self) -> None:
        """Close the file, if nothing else in this process uses it."""
        with self._guard:
            self.users -= 1
            if not self.users and self._open.get(self.folder) is self:
                del self._open[self.folder]
                self.environment.close()

    @classmethod
    def forked(cls) -> None:
        """Drop the environments that a child process has inherited: LMDB forbids their use there."""
        cls._guard = threading.Lock()
        for store in cls._open.values():
            store.environment.close()
        cls._open.clear()

    @contextmanager
    def write(self, patience: float = PATIENCE) -> Iterator[lmdb.Transaction]:
        """A transaction. LMDB would wait for its own lock without a limit, so a file lock stands before it."""
        lock = filelock.FileLock(self.folder / "writer.lock", timeout=max(patience, 0), poll_interval=POLL)
        doing = f"writing to {self.folder}"
        with TABLE.while_doing(doing), lock, self.environment.begin(write=True) as transaction:
            if not (self.folder / "data.mdb").exists():  # LMDB would go on writing into a file that nothing can open
                text = f"lmdb: {doing}: the file was removed while it was open; find out why"
                raise Fatal(text, code=Code.NO_SUCH_DESTINATION)
            yield transaction

    @contextmanager
    def read(self) -> Iterator[lmdb.Transaction]:
        """A snapshot: later changes are not visible in it."""
        with TABLE.while_doing(f"reading {self.folder}", safe=True), self.environment.begin() as transaction:
            yield transaction


os.register_at_fork(after_in_child=Store.forked)


class StoreUser(Resource):
    """The base of the roles: they hold the store until they are closed."""

    def __init__(self, address: Address, settings: Settings) -> None:
        super().__init__("lmdb", f"queue {address.queue!r}")
        self._address = address
        self._prefix = address.prefix
        self._store = Store.acquire(Path(address.folder), settings.map_size)

    def _position(self, key: bytes) -> str:
        """The place of a message in its queue, as text."""
        return key.removeprefix(self._prefix).hex()

    def _release(self) -> None:
        self._store.release()


def scan(
    transaction: lmdb.Transaction, prefix: bytes, first: bytes = FIRST, last: bytes = LAST
) -> Iterator[tuple[bytes, Record]]:
    """Yield the keys and records of a queue between two places, oldest first."""
    for key, value in walk(transaction, prefix, first, last):
        yield key, Record.unpack(bytes(value()))


def walk(
    transaction: lmdb.Transaction, prefix: bytes, first: bytes, last: bytes
) -> Iterator[tuple[bytes, Callable[[], bytes | memoryview]]]:
    """Yield the keys of a queue between two places, oldest first, each with a function that reads its record."""
    with transaction.cursor() as cursor:
        found = cursor.set_range(prefix + first)
        while found and (key := bytes(cursor.key())).startswith(prefix) and key <= prefix + last:
            yield key, cursor.value
            found = cursor.next()


def newest(transaction: lmdb.Transaction) -> bytes:
    """Return a place behind all that is stored, and before all that will be."""
    return struct.pack(">QI", transaction.id(), 0xFFFFFFFF)


def put(transaction: lmdb.Transaction, prefix: bytes, index: int, message: Message) -> None:
    """Append a message, the `index`-th of this transaction. Raises Permanent."""
    place = struct.pack(">QI", transaction.id(), index)  # LMDB never uses a transaction's number again
    transaction.put(prefix + place, Record.of(message).pack())
