"""Room kept on the disk beside the file, so that a queue on a full disk can still be drained.

SQLite cannot delete without writing: on a full disk a queue could not empty itself.
"""

from __future__ import annotations

import os
from pathlib import Path

_LEAST = 1 << 20


class DiskReserve:
    """A file that is given up when room is needed. It grows with what may have to be drained.

    Args:
        path: where it is.
        most: bytes that it takes at most; 0: none.
    """

    def __init__(self, path: Path, most: int) -> None:
        self._path = path
        self._most = most

    def keep(self, stored: int) -> None:
        """Take the room that draining `stored` bytes may need, unless it is taken already.

        Raises:
            OSError: there is no room for it, or a link is in its place.
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
        """Give the room back to the disk; return whether it had some."""
        try:
            self._path.unlink()
        except OSError:
            return False
        return True


def size_of(path: Path) -> int:
    """Return the bytes of a file; 0 where it does not exist. Raises OSError."""
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
