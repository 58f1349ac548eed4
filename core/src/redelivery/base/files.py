"""Files of ours: readable by their owner alone, made exclusively, and never through somebody else's link."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

_OWNER_ONLY = 0o600
_FLAGS = os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)


def make_private(path: Path) -> bool:
    """Make an empty file with mode 0600 where none exists; returns whether it was made.

    Raises:
        OSError: it cannot be made; ELOOP where a link stands in its place that leads nowhere.
    """
    try:
        os.close(os.open(path, os.O_WRONLY | _FLAGS, _OWNER_ONLY))
    except FileExistsError:
        if path.is_symlink() and not path.exists():
            raise OSError(errno.ELOOP, "it is a link that leads nowhere") from None
        return False
    return True


def refuse_link(path: Path) -> None:
    """Raise OSError (ELOOP) where a path is a symbolic link: whoever planted it chose what we would write."""
    if path.is_symlink():
        raise OSError(errno.ELOOP, "it is a symbolic link; name the file itself")


def make_private_folder(path: Path) -> None:
    """Make a folder with mode 0700, its missing parents too; one that exists stays as it is. Raises OSError."""
    for each in [*reversed(path.parents), path]:
        with contextlib.suppress(FileExistsError):
            if not each.exists():
                each.mkdir(mode=0o700)


def open_private(path: Path) -> int:
    """A new file with mode 0600, open for writing, as a descriptor. Raises OSError, FileExistsError among them."""
    return os.open(path, os.O_WRONLY | _FLAGS, _OWNER_ONLY)
