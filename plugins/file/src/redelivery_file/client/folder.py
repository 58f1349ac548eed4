"""The folder of letters. Each letter is one file, stored completely or not at all, and never outside of the folder.

A letter is written to a hidden file, fsynced and linked to its name without replacing an existing file; then the folder
is fsynced. All calls use the open folder's descriptor and names without a slash.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import heapq
import logging
import os
import re
import secrets
import stat
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from redelivery.contract.context import LAST_MS
from redelivery_file.address import Address
from redelivery_file.errors import TABLE

#: Length of a file name that every common file system allows, in bytes.
_NAME_MAX = 255
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")
_LETTER = re.compile(r"[0-9]{1,20}-[A-Za-z0-9._-]*\.jsonl")
#: Keeps the last cursor.
_CURSOR = ".cursor"
#: Seconds to wait for the folder's lock where no deadline says otherwise, and between two looks whether it is free.
LOCK_SECONDS = 20.0
_POLL, _POLL_MOST = 0.0005, 0.02
#: Files that are written at the same time.
_THREADS = 8
#: Names that one read of the folder keeps.
_PAGE = 100_000

#: Maximum size of a letter in bytes. No known sender writes a longer file.
MOST_BYTES = 1 << 28

logger = logging.getLogger("redelivery.file")
_warned: set[Path] = set()
_last_millis = 0
_lock = threading.Lock()


def now_millis() -> int:
    """Return milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def file_name(millis: int, event_id: str) -> str:
    """Return `<millis>-<event id>.jsonl`. Characters outside [A-Za-z0-9._-] become `_`; a long id is cut and hashed."""
    safe = _UNSAFE.sub("_", event_id)
    room = _NAME_MAX - len(f"{millis}-.jsonl")
    if len(safe) > room:
        digest = hashlib.sha256(event_id.encode("utf-8", "surrogatepass")).hexdigest()[:16]
        safe = f"{safe[: room - len(digest) - 1]}-{digest}"
    return f"{millis}-{safe}.jsonl"


def is_letter(name: str) -> bool:
    """Return whether `file_name` could have made this name."""
    return _LETTER.fullmatch(name) is not None


def millis_of(name: str) -> int:
    """Return the number in the name of a letter."""
    return int(name.partition("-")[0])


class Folder:
    """An existing folder, opened. Every method raises OSError.

    Args:
        path: path of the folder.
        clock: milliseconds since the epoch. The time in names never goes back within a process, even if the clock does.
    """

    def __init__(self, path: Path, *, clock: Callable[[], int] = now_millis) -> None:
        self.path = path
        self._clock = clock
        self._closed = threading.Event()
        self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        if os.fstat(self._fd).st_mode & stat.S_IWOTH and path not in _warned:
            _warned.add(path)
            logger.warning("%s: every user of this host may write letters here; take the right away (chmod o-w)", path)

    def close(self) -> None:
        """Close the descriptor."""
        self._closed.set()
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    @property
    def fd(self) -> int:
        """The descriptor of the folder."""
        return self._fd

    def write(self, event_id: str, data: bytes) -> str:
        """Store a letter and return its name. It survives a crash once `sync` has returned."""
        (stored,) = self.store([(event_id, data)])
        if isinstance(stored, OSError):
            raise stored
        return stored

    def store(self, letters: Sequence[tuple[str, bytes]], wait: float = LOCK_SECONDS) -> list[str | OSError]:
        """Store letters, each with its event's id, and return their names, or why one was not stored.

        They survive a crash once `sync` has returned.
        """
        # The disk syncs many files at once in little more time than one (ext4, measured: 8 threads, 4 to 12 times).
        with ThreadPoolExecutor(max(1, min(len(letters), _THREADS))) as pool:
            hidden = list(pool.map(lambda letter: _attempt(self._write_hidden, letter[1]), letters))
        try:
            with self.locked(wait):
                return [
                    each if isinstance(each, OSError) else _attempt(self._link, each, event_id)
                    for each, (event_id, _) in zip(hidden, letters, strict=True)
                ]
        finally:
            for each in hidden:
                if isinstance(each, str):
                    with contextlib.suppress(OSError):
                        os.unlink(each, dir_fd=self._fd)

    @contextlib.contextmanager
    def locked(self, wait: float = LOCK_SECONDS) -> Iterator[None]:
        """Hold the folder's lock: no other process, and no other thread, stores or removes letters meanwhile.

        Raises:
            TimeoutError: another process held it for longer than `wait` seconds.
        """
        fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._fd)
        try:
            self._lock_within(fd, wait)
            yield
        finally:
            os.close(fd)  # which ends the lock

    def next_number(self) -> int:
        """Return the number of what is stored next: its time, and higher than all before it. The folder must be locked.

        Numbers rise within a process, and past each cursor, even if the clock goes back.
        """
        global _last_millis  # noqa: PLW0603 - one clock per process for all folders
        with _lock:
            _last_millis = max(self._clock(), _last_millis + 1, self._cursor() + 1)
            return _last_millis

    def keep_cursor(self, newest: int) -> int:
        """Return a number that all letters stored later exceed: at least `newest`. The folder must be locked.

        Without the right to write it is not kept, so that writers whose clocks are behind may store lower ones.
        """
        kept = self._cursor()
        if newest > kept:
            with contextlib.suppress(OSError):
                flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
                fd = os.open(_CURSOR, flags, 0o600, dir_fd=self._fd)
                try:
                    os.pwrite(fd, b"%020d" % newest, 0)
                finally:
                    os.close(fd)
        return max(newest, kept)

    def _cursor(self) -> int:
        """Return the number that `keep_cursor` kept last; 0 if none, or if it is no date."""
        try:
            fd = os.open(_CURSOR, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=self._fd)
        except OSError:
            return 0
        try:
            text = os.read(fd, 20)
        except OSError:
            return 0
        finally:
            os.close(fd)
        number = int(text) if text.isdigit() else 0
        return number if number <= LAST_MS else 0

    def sync(self) -> None:
        """Make the stored letters survive a crash."""
        os.fsync(self._fd)

    def probe(self) -> None:
        """Write and remove a hidden file, to check that letters can be written."""
        os.unlink(self._write_hidden(b""), dir_fd=self._fd)

    def names(self) -> Iterator[str]:
        """Yield the names that exist at the start and have no leading dot, in order, with bounded memory."""
        last = max(self.listed(), default=None)
        after = ""
        while last is not None:
            page = heapq.nsmallest(_PAGE, (name for name in self.listed() if after < name <= last))
            yield from page
            if len(page) < _PAGE:
                return
            after = page[-1]

    def read(self, name: str) -> bytes:
        """Return the content of a letter.

        Raises:
            ValueError: it is not a regular file, or is too large. A symbolic link is never followed.
        """
        found = os.stat(name, dir_fd=self._fd, follow_symlinks=False)
        if not stat.S_ISREG(found.st_mode):
            raise ValueError("it is not a regular file")
        if found.st_size > MOST_BYTES:
            raise ValueError(f"it has {found.st_size} bytes, and {MOST_BYTES} are the most that are read")
        with os.fdopen(os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._fd), "rb") as file:
            return file.read()

    def remove(self, name: str) -> bool:
        """Remove a letter; return whether it existed."""
        try:
            os.unlink(name, dir_fd=self._fd)
        except FileNotFoundError:
            return False
        return True

    def listed(self) -> Iterator[str]:
        """Yield the names without a leading dot, in any order."""
        # A separate descriptor: scandir changes the position of the one that it gets.
        fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._fd)
        try:
            with os.scandir(fd) as entries:
                yield from (entry.name for entry in entries if not entry.name.startswith("."))
        finally:
            os.close(fd)

    def _write_hidden(self, data: bytes) -> str:
        name = f".{os.getpid()}-{secrets.token_hex(8)}.tmp"
        fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=self._fd)
        try:
            with os.fdopen(fd, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=self._fd)
            raise
        return name

    def _link(self, hidden: str, event_id: str) -> str:
        while True:
            name = file_name(self.next_number(), event_id)
            with contextlib.suppress(FileExistsError):
                os.link(hidden, name, src_dir_fd=self._fd, dst_dir_fd=self._fd, follow_symlinks=False)
                return name

    def _lock_within(self, fd: int, wait: float) -> None:
        until = time.monotonic() + wait
        pause = _POLL
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                left = until - time.monotonic()
                if left <= 0:
                    raise TimeoutError(errno.ETIMEDOUT, "another process holds the folder's lock") from None
                if self._closed.wait(min(pause, left)):
                    raise OSError(errno.EBADF, "the folder was closed meanwhile") from None
                pause = min(2 * pause, _POLL_MOST)
            else:
                return


def _attempt(call: Callable[..., str], *arguments: Any) -> str | OSError:
    try:
        return call(*arguments)
    except OSError as error:
        return error


def open_folder(address: Address) -> Folder:
    """Open the folder.

    Raises:
        BrokerError
    """
    with TABLE.while_doing(f"opening {address.place}"):
        return Folder(address.path)
