"""Every error of the operating system as one of redelivery's classes: the only file that knows errno.

This file must not touch the folder nor decide what follows from an error.
"""

from __future__ import annotations

import errno

from redelivery.errors import Ambiguous, BrokerError, Fatal, Permanent, Retriable

_Rule = tuple[type[BrokerError], str]

_ROOM = (Retriable, "no room left for it; remove letters, or make room on the disk")
_DENIED = (Fatal, "this user needs write and search permission on the folder")
_MISSING = (Fatal, "the folder is missing: make it, or provision it, or correct the URL")
_AGAIN = (Retriable, "nothing was written; it may be tried again")
_FILES = (Retriable, "too many open files; raise the limit (ulimit -n), or close some")
_NAME = (Fatal, "the folder's path is longer than the file system takes: choose a shorter one")
_LINK = (Fatal, "the file system has no hard links, which put a letter in place at once: choose a folder on another")
_DISK = (Retriable, "the disk failed before the letter was in its place; look into the system's log")
_UNFORESEEN = (Fatal, "this was not foreseen: please report it")

#: By errno. What is missing here counts as fatal.
BY_ERRNO: dict[int, _Rule] = {
    errno.ENOSPC: _ROOM,
    errno.EDQUOT: _ROOM,
    errno.EROFS: (Fatal, "the file system is mounted read-only: choose a folder on another"),
    errno.EACCES: _DENIED,
    errno.EPERM: (
        Fatal,
        "not permitted: this user needs write and search permission on the folder, and its file system hard links",
    ),
    errno.ENOENT: _MISSING,
    errno.ENOTDIR: (Fatal, "its path is not that of a folder: correct the URL"),
    errno.ELOOP: (Fatal, "its path runs in a circle of symbolic links: correct them, or the URL"),
    errno.ENAMETOOLONG: _NAME,
    errno.EFBIG: (Permanent, "larger than a file may be here"),
    errno.EIO: _DISK,
    errno.EMFILE: _FILES,
    errno.ENFILE: _FILES,
    errno.ENOMEM: _AGAIN,
    errno.EAGAIN: _AGAIN,
    errno.EINTR: _AGAIN,
    errno.EBUSY: _AGAIN,
    errno.ETIMEDOUT: _AGAIN,
    errno.ESTALE: (Retriable, "the network file system lost the folder; it may come back"),
    errno.EMLINK: _LINK,
    errno.EXDEV: _LINK,
    errno.ENOSYS: _LINK,
    errno.EOPNOTSUPP: _LINK,
    errno.EINVAL: _UNFORESEEN,
    errno.EBADF: _UNFORESEEN,
    errno.EFAULT: _UNFORESEEN,
    errno.EEXIST: _UNFORESEEN,  # met where a name is taken, and answered there by the next name
    errno.EISDIR: _UNFORESEEN,
    errno.ENXIO: _UNFORESEEN,
    errno.ENODEV: _UNFORESEEN,
}


def classify(error: OSError, doing: str) -> BrokerError:
    """The error as redelivery's, its text saying what was being done and what to do; chain it from the original."""
    kind, advice = BY_ERRNO.get(error.errno or 0, _UNFORESEEN)
    return kind(f"file: {doing}: {error.strerror or error}; {advice}", native_code=_name(error))


def classify_unconfirmed(error: OSError, doing: str) -> Ambiguous:
    """The error of the last step, after a letter was put in its place: it is there, but may not outlive a crash."""
    text = f"file: {doing}: {error.strerror or error}; the letter is in its place, but may not outlive a crash"
    return Ambiguous(text, native_code=_name(error))


def _name(error: OSError) -> str:
    return errno.errorcode.get(error.errno or 0, type(error).__name__)
