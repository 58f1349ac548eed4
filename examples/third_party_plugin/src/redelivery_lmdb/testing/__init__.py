"""LMDB for the conformance suite: one folder per test, read with LMDB itself and not with the plugin.

A process may open a file only once, and the plugin has it open, so the harness reads a copy of the file.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import filelock
import lmdb
import msgpack

from redelivery.contract.message import Message
from redelivery_conformance.harness import CannotShow, Foreign, Harness, Outage, Place, Runtime, RuntimeKind

#: Writes a record behind all others of a queue.
WRITE = """
import lmdb, sys
with lmdb.open(sys.argv[1]).begin(write=True) as transaction:
    transaction.put(sys.argv[2].encode() + b"\\0" + b"\\xff" * 12, bytes.fromhex(sys.argv[3]))
"""


class LmdbPlace(Place):
    """One new folder."""

    patience = 3.0  # the outage statement waits twice as long

    def __init__(self, scheme: str, folder: Path) -> None:
        self.folder = folder
        self.scheme = scheme
        self.url = f"{scheme}:{folder}?queue=test"
        self.options = {}

    def stored(self, destination: str | None = None) -> Sequence[Message]:
        prefix = (destination or "test").encode() + b"\0"
        return [
            Message(value=value, key=key, headers=headers, id=id_, timestamp_ms=timestamp_ms)
            for at, data in self.snapshot()
            if at.startswith(prefix)
            for value, key, headers, id_, timestamp_ms, *_ in [msgpack.unpackb(data, use_list=False)]
        ]

    def snapshot(self) -> list[tuple[bytes, bytes]]:
        if not (self.folder / "data.mdb").exists():
            return []
        with tempfile.TemporaryDirectory(dir=self.folder.parent) as copy:
            shutil.copy(self.folder / "data.mdb", copy)
            with lmdb.open(copy, readonly=True, lock=False) as environment, environment.begin() as transaction:
                return list(transaction.cursor())

    def unreachable(self) -> str:
        return f"{self.scheme}:{self.folder}/missing/folder?queue=test"

    @contextmanager
    def outage(self, kind: Outage = "refused") -> Iterator[None]:
        if kind != "refused":
            raise CannotShow(f"an outage, {kind}: a file has no connections")
        self.folder.mkdir(exist_ok=True)
        with filelock.FileLock(self.folder / "writer.lock"):
            yield

    def vanish(self) -> None:
        shutil.rmtree(self.folder)

    def damage(self) -> None:
        self._write("test", b"?")

    def put_foreign(self, *, dead: bool) -> Foreign:
        """Others write such a file only as it is described; so ids and bytes are all that can differ."""
        headers = [["b", b"\xff"], ["a", None], ["a", b""]]
        record = [b"theirs \xff", b"k\xff", headers, "theirs-1", 1_700_000_000_123, 0, 0, None, 0, b"", None]
        self._write("test-dead-letters" if dead else "test", msgpack.packb(record))
        (written,) = self.foreign(dead=dead)
        return written

    def foreign(self, *, dead: bool) -> Sequence[Foreign]:
        return [
            Foreign(
                {name: [value for other, value in each.headers if other == name] for name, _ in each.headers},
                {"id": each.id, "key": each.key, "value": each.value, "timestamp": each.timestamp_ms},
            )
            for each in self.stored("test-dead-letters" if dead else None)
        ]

    def _write(self, queue: str, record: bytes) -> None:
        # Another process: this one may have the file open.
        command = [sys.executable, "-c", WRITE, str(self.folder), queue, record.hex()]
        subprocess.run(command, check=True)  # noqa: S603 - it is our own code

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


class LmdbRuntime(Runtime):
    """A runtime that starts nothing."""

    kind: RuntimeKind = "embedded"
    description = f"LMDB {'.'.join(map(str, lmdb.version()))}, in this process"

    def __init__(self, scheme: str, scratch: Path) -> None:
        self.scheme = scheme
        self.scratch = scratch

    def place(self) -> Place:
        return LmdbPlace(self.scheme, self.scratch / uuid.uuid4().hex)


class LmdbHarness(Harness):
    """The harness that the entry point `lmdb` of the group `redelivery_testing` names."""

    name = "lmdb"

    def starts(self) -> Mapping[RuntimeKind, Callable[[Path], Runtime]]:
        return {"embedded": partial(LmdbRuntime, self.name)}
