"""The folder of letters. Each letter is one file, stored completely or not at all, and never outside of the folder.

A letter is written to a hidden file, fsynced and linked to its name without replacing an existing file; then the folder
is fsynced. All calls use the open folder's descriptor and names without a slash.
"""

from __future__ import annotations

import contextlib
import hashlib
import heapq
import logging
import os
import re
import secrets
import stat
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from redelivery_file.address import Address
from redelivery_file.errors import TABLE

#: Length of a file name that every common file system allows, in bytes.
_NAME_MAX = 255
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")
_LETTER = re.compile(r"[0-9]{1,20}-[A-Za-z0-9._-]*\.jsonl")
#: Names that one read of the folder keeps.
_PAGE = 10_000

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


class Folder:
    """An existing folder, opened. Every method raises OSError.

    Args:
        path: path of the folder.
        clock: milliseconds since the epoch. The time in names never goes back within a process, even if the clock does.
    """

    def __init__(self, path: Path, *, clock: Callable[[], int] = now_millis) -> None:
        self.path = path
        self._clock = clock
        self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        if os.fstat(self._fd).st_mode & stat.S_IWOTH and path not in _warned:
            _warned.add(path)
            logger.warning("%s: every user of this host may write letters here; take the right away (chmod o-w)", path)

    def close(self) -> None:
        """Close the descriptor."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def write(self, event_id: str, data: bytes) -> str:
        """Store a letter and return its name. It survives a crash once `sync` has returned."""
        hidden = self._write_hidden(data)
        try:
            return self._link(hidden, event_id)
        finally:
            with contextlib.suppress(OSError):
                os.unlink(hidden, dir_fd=self._fd)

    def sync(self) -> None:
        """Make the stored letters survive a crash."""
        os.fsync(self._fd)

    def probe(self) -> None:
        """Write and remove a hidden file, to check that letters can be written."""
        os.unlink(self._write_hidden(b""), dir_fd=self._fd)

    def names(self) -> Iterator[str]:
        """Yield the names that exist at the start and have no leading dot, in order, with bounded memory."""
        last = max(self._listed(), default=None)
        after = ""
        while last is not None:
            page = heapq.nsmallest(_PAGE, (name for name in self._listed() if after < name <= last))
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

    def _listed(self) -> Iterator[str]:
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
        global _last_millis  # noqa: PLW0603 - one clock per process for all folders
        with _lock:
            millis = max(self._clock(), _last_millis + 1)  # so that names sort in order of arrival
            while True:
                name = file_name(millis, event_id)
                try:
                    os.link(hidden, name, src_dir_fd=self._fd, dst_dir_fd=self._fd, follow_symlinks=False)
                except FileExistsError:
                    millis += 1
                    continue
                _last_millis = millis
                return name


def open_folder(address: Address) -> Folder:
    """Open the folder.

    Raises:
        BrokerError
    """
    with TABLE.while_doing(f"opening {address.place}"):
        return Folder(address.path)
