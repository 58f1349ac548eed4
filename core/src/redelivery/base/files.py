"""Our files: readable by their owner alone, created exclusively, and never through another user's link."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

_OWNER_ONLY = 0o600
_FLAGS = os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)


def make_private(path: Path) -> bool:
    """Create an empty file with mode 0600 where none exists; return whether it was created.

    Raises:
        OSError: it cannot be created; ELOOP where a dangling link stands in its place.
    """
    try:
        os.close(os.open(path, os.O_WRONLY | _FLAGS, _OWNER_ONLY))
    except FileExistsError:
        if path.is_symlink() and not path.exists():
            raise OSError(errno.ELOOP, "it is a link that leads nowhere") from None
        return False
    return True


def refuse_link(path: Path) -> None:
    """Raise OSError (ELOOP) where a path is a symbolic link: its creator would choose what we overwrite."""
    if path.is_symlink():
        raise OSError(errno.ELOOP, "it is a symbolic link; name the file itself")


def make_private_folder(path: Path) -> None:
    """Create a folder with mode 0700, its missing parents too; an existing one is not changed. Raises OSError."""
    for each in [*reversed(path.parents), path]:
        with contextlib.suppress(FileExistsError):
            if not each.exists():
                each.mkdir(mode=0o700)


def open_private(path: Path) -> int:
    """Create a file with mode 0600 and return its descriptor, open for writing. Raises OSError (FileExistsError)."""
    return os.open(path, os.O_WRONLY | _FLAGS, _OWNER_ONLY)
