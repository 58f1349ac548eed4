"""One LMDB file as queues: what lies under a key, and how it is read and written.

This file must not know what a sender, a lease or a dead letter is: that is the roles' duty.
"""

from __future__ import annotations

import os
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar, NamedTuple

import filelock
import lmdb
import msgpack

from redelivery.base.urls import quoted
from redelivery.codes import Code
from redelivery.contract.message import ROW_OVERHEAD, Headers, Message
from redelivery.errors import Fatal, Permanent
from redelivery_lmdb.errors import sorted_errors

MESSAGE_BYTES = 16 << 20
NAME_BYTES = 400  # of LMDB's 511 for a key
PATIENCE = 5.0  # seconds to wait for the writer's lock, where the contract gives no deadline
POLL = 0.01  # seconds between two looks at what LMDB cannot wait for


class Record(NamedTuple):
    """What lies under a key. Times are milliseconds since the epoch."""

    value: bytes | None
    key: bytes | None
    headers: Headers
    id: str | None
    timestamp_ms: int | None
    arrived_ms: int
    attempts: int = 0
    first_ms: int | None = None
    hidden_until_ms: int = 0
    lease: bytes = b""
    undecodable: str | None = None  # why `value` is the bytes as they were found

    @classmethod
    def of(cls, message: Message) -> Record:
        """A record of a message that arrives now."""
        return cls(message.value, message.key, message.headers, message.id, message.timestamp_ms, now_ms())

    @classmethod
    def unpack(cls, data: bytes) -> Record:
        """What `pack` made; where something else did, `undecodable` says so."""
        try:
            return cls(*msgpack.unpackb(data, use_list=False))
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            return cls(data, None, (), None, None, 0, undecodable=f"not written by redelivery-lmdb: {error}")

    def pack(self) -> bytes:
        """As it lies in the file."""
        packed: bytes = msgpack.packb(tuple(self))
        return packed

    def message(self) -> Message:
        """The message, as it was sent."""
        return Message(value=self.value, key=self.key, headers=self.headers, id=self.id, timestamp_ms=self.timestamp_ms)


class Store:
    """One LMDB environment, counted by its users: the library forbids to open one twice in a process."""

    _open: ClassVar[dict[Path, Store]] = {}
    _guard: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, folder: Path, map_size: int) -> None:
        self.users = 0
        self.folder = folder
        self.environment = lmdb.open(str(folder), map_size=map_size)

    @classmethod
    def acquire(cls, folder: Path, map_size: int) -> Store:
        """The store of a folder, made where it is missing; `release` it once. Raises BrokerError."""
        folder = folder.resolve()
        with cls._guard, sorted_errors():
            store = cls._open.get(folder) or cls._open.setdefault(folder, cls(folder, map_size))
            store.users += 1
            return store

    def release(self) -> None:
        """Close the file, if nobody else in this process uses it."""
        with self._guard:
            self.users -= 1
            if not self.users and self._open.get(self.folder) is self:
                del self._open[self.folder]
                self.environment.close()

    @classmethod
    def forked(cls) -> None:
        """Drop what a child process has inherited: LMDB forbids to use it there. The parent's is not touched."""
        cls._guard = threading.Lock()
        for store in cls._open.values():
            store.environment.close()
        cls._open.clear()

    @contextmanager
    def write(self, patience: float = PATIENCE) -> Iterator[lmdb.Transaction]:
        """A transaction. LMDB would wait for its own lock without a limit, so a file lock stands before it."""
        lock = filelock.FileLock(self.folder / "writer.lock", timeout=max(patience, 0), poll_interval=POLL)
        with sorted_errors(), lock, self.environment.begin(write=True) as transaction:
            if not (self.folder / "data.mdb").exists():  # LMDB would go on writing into a file that nobody can open
                raise Fatal(f"{self.folder} was removed while open; find out by whom", code=Code.NO_SUCH_DESTINATION)
            yield transaction

    @contextmanager
    def read(self) -> Iterator[lmdb.Transaction]:
        """A snapshot: what is written later is not seen."""
        with sorted_errors(), self.environment.begin() as transaction:
            yield transaction


os.register_at_fork(after_in_child=Store.forked)


def prefix_of(queue: str) -> bytes:
    """What all keys of a queue begin with. Raises Permanent where LMDB can have no such key."""
    name = queue.encode(errors="surrogatepass")
    if not 0 < len(name) <= NAME_BYTES or b"\0" in name:
        raise Permanent(
            f"no queue can be called {quoted(queue)}: 1 to {NAME_BYTES} bytes, none of them 0",
            code=Code.INVALID_DESTINATION,
        )
    return name + b"\0"


def scan(transaction: lmdb.Transaction, prefix: bytes) -> Iterator[tuple[bytes, Record]]:
    """The keys and records of a queue, oldest first."""
    with transaction.cursor() as cursor:
        found = cursor.set_range(prefix)
        while found and (key := bytes(cursor.key())).startswith(prefix):
            yield key, Record.unpack(bytes(cursor.value()))
            found = cursor.next()


def put(transaction: lmdb.Transaction, prefix: bytes, index: int, message: Message) -> None:
    """Append a message, the `index`-th of this transaction. Raises Permanent where it cannot lie here."""
    size = message.nbytes - ROW_OVERHEAD
    if size > MESSAGE_BYTES:
        raise Permanent(f"{size} bytes, and a message has {MESSAGE_BYTES} at most", code=Code.TOO_LARGE)
    place = struct.pack(">QI", transaction.id(), index)  # a transaction's number is never given twice
    transaction.put(prefix + place, Record.of(message).pack())


def now_ms() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000
