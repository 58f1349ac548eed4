"""Disk space reserved beside the file, so that a queue on a full disk can still be drained.

SQLite cannot delete without writing: on a full disk a queue could not empty itself.
"""

from __future__ import annotations

import os
from pathlib import Path

_LEAST = 1 << 20


class DiskReserve:
    """A file that is deleted when space is needed. It grows with the size of the queue's file.

    Args:
        path: path of the reserve.
        most: its maximum size in bytes; 0: no reserve.
    """

    def __init__(self, path: Path, most: int) -> None:
        self._path = path
        self._most = most

    def keep(self, stored: int) -> None:
        """Reserve the space that draining `stored` bytes may need, unless it is reserved already.

        Raises:
            OSError: the disk is full, or a link has its name.
        """
        wanted = min(self._most, max(_LEAST, 1 << (stored - 1).bit_length()) if stored else _LEAST)
        if wanted <= size_of(self._path):
            return
        fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            _fill(fd, wanted)
        finally:
            os.close(fd)

    def give_up(self) -> bool:
        """Delete the reserve; return whether it held space."""
        try:
            self._path.unlink()
        except OSError:
            return False
        return True


def size_of(path: Path) -> int:
    """Return the size of a file in bytes; 0 if it does not exist. Raises OSError."""
    try:
        return path.stat().st_size
    except (FileNotFoundError, NotADirectoryError):
        return 0


def _fill(fd: int, size: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(fd, 0, size)
        return
    block = b"\0" * (1 << 20)
    for offset in range(0, size, len(block)):
        os.write(fd, block[: size - offset])
