"""Our files: readable by their owner alone, created exclusively, and never through another user's link."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
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


def status(path: Path) -> os.stat_result | None:
    """Return the status of a file, or of what a link leads to; None where nothing exists.

    From Python 3.14 on `Path.exists` and its like return False for a path that cannot be looked into.

    Raises:
        OSError: the path cannot be looked into, as without permission for its folder.
    """
    try:
        return path.stat()
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: no file can have this name
        return None
    except OSError as error:
        if error.errno == errno.ELOOP:
            return None
        raise


def is_folder(path: Path) -> bool:
    """Whether a folder exists. Raises OSError as `status`."""
    found = status(path)
    return found is not None and stat.S_ISDIR(found.st_mode)


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
