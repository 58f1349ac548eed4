"""Map each error of the operating system to one of redelivery's."""

from __future__ import annotations

import errno
from dataclasses import replace
from typing import Final

from redelivery.errors import Ambiguous, BrokerError, Fatal, Permanent, Retriable
from redelivery.kit.errors import BUG, ClientError, Code, ErrorTable, Rule

_ROOM: Final = Rule(Retriable, Code.FULL, "no room left for it; remove letters, or make room on the disk")
_DENIED: Final = Rule(Fatal, Code.NOT_AUTHORIZED, "this user needs write and search permission on the folder")
_MISSING: Final = Rule(
    Fatal, Code.NO_SUCH_DESTINATION, "the folder is missing: make it, or provision it, or correct the URL"
)
_AGAIN: Final = Rule(Retriable, Code.UNAVAILABLE, "nothing was written; it may be tried again")
_FILES: Final = Rule(Retriable, Code.UNAVAILABLE, "too many open files; raise the limit (ulimit -n), or close some")
_LINK: Final = Rule(
    Fatal,
    Code.MISCONFIGURED,
    "the file system has no hard links, which put a letter in place at once: choose a folder on another",
)
_DISK: Final = Rule(
    Retriable, Code.UNAVAILABLE, "the disk failed before the letter was in its place; look into the system's log"
)
_UNFORESEEN: Final = replace(BUG, advice="this was not foreseen: please report it")


def _path(advice: str) -> Rule:
    return Rule(Fatal, Code.INVALID_DESTINATION, advice)


#: By errno. Other numbers are fatal.
BY_ERRNO: Final[dict[int, Rule]] = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), _ROOM),
    errno.EROFS: Rule(Fatal, Code.NOT_AUTHORIZED, "the file system is mounted read-only: choose a folder on another"),
    errno.EACCES: _DENIED,
    errno.EPERM: replace(_DENIED, advice=f"not permitted: {_DENIED.advice}, and its file system hard links"),
    errno.ENOENT: _MISSING,
    errno.ENOTDIR: _path("its path is not that of a folder: correct the URL"),
    errno.ELOOP: _path("its path runs in a circle of symbolic links: correct them, or the URL"),
    errno.ENAMETOOLONG: _path("the folder's path is longer than the file system takes: choose a shorter one"),
    errno.EFBIG: Rule(Permanent, Code.TOO_LARGE, "larger than a file may be here"),
    errno.EIO: _DISK,
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), _FILES),
    **dict.fromkeys((errno.ENOMEM, errno.EAGAIN, errno.EINTR, errno.EBUSY, errno.ETIMEDOUT), _AGAIN),
    errno.ESTALE: Rule(Retriable, Code.UNAVAILABLE, "the network file system lost the folder; it may come back"),
    **dict.fromkeys((errno.EMLINK, errno.EXDEV, errno.ENOSYS, errno.EOPNOTSUPP), _LINK),
    # An existing name (EEXIST) is handled where it occurs: the writer tries the next name.
    **dict.fromkeys((errno.EINVAL, errno.EBADF, errno.EFAULT, errno.EEXIST), _UNFORESEEN),
    **dict.fromkeys((errno.EISDIR, errno.ENXIO, errno.ENODEV), _UNFORESEEN),
}


def _describe(error: OSError) -> ClientError:
    name = errno.errorcode.get(error.errno or 0, type(error).__name__)
    return ClientError(error.strerror or str(error), codes=(error.errno,), name=name)


TABLE: Final = ErrorTable(
    "file", by_class={OSError: _UNFORESEEN}, by_code=BY_ERRNO, otherwise=_UNFORESEEN, describe=_describe
)


def unconfirmed(error: OSError, doing: str) -> BrokerError:
    """Return the error of the last step, after a letter was stored: it may not survive a crash."""
    text = "the letter is in its place, but may not outlive a crash"
    return TABLE.error(error, doing, rule=Rule(Ambiguous, Code.UNCONFIRMED, text))
