"""Every error of the sqlite3 module as one of redelivery's classes: the only file that knows SQLite's codes.

This file must not run a statement nor decide what follows from an error.
"""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from redelivery.errors import Ambiguous, BrokerError, Fatal, Permanent, Retriable

_Rule = tuple[type[BrokerError], str]

_LOCKED = (Retriable, "another process holds the write lock; nothing was stored")
_BROKEN = (Fatal, "this is an error of redelivery-sqlite or of the SQLite library: please report it")
_DENIED = (
    Fatal,
    "give this user read and write permission on the file, on its -wal and -shm files and on their folder",
)
#: What to do about a path that the system refuses; else permissions are missing.
_PATHS = {
    errno.EFBIG: "no file may be so large here: raise the limit (ulimit -f), or remove messages",
    errno.ELOOP: "remove the link, or name the file itself",
    errno.ENAMETOOLONG: "correct the URL",
}

#: By primary result code. A code that is missing here is one that SQLite grew later: a test says so.
BY_CODE: dict[int, _Rule] = {
    sqlite3.SQLITE_BUSY: _LOCKED,
    sqlite3.SQLITE_LOCKED: _LOCKED,
    sqlite3.SQLITE_PROTOCOL: (Retriable, "SQLite lost a race for its locks; nothing was stored"),
    sqlite3.SQLITE_SCHEMA: (Retriable, "another process changed the schema meanwhile; nothing was stored"),
    sqlite3.SQLITE_ABORT: (Retriable, "the transaction was rolled back; nothing was stored"),
    sqlite3.SQLITE_INTERRUPT: (Retriable, "the statement was interrupted and rolled back; nothing was stored"),
    sqlite3.SQLITE_NOMEM: (Retriable, "SQLite ran out of memory and rolled back; nothing was stored"),
    sqlite3.SQLITE_FULL: (
        Retriable,
        "no room left; the transaction was rolled back; make room on the disk, or receive or remove messages",
    ),
    sqlite3.SQLITE_IOERR: (
        Retriable,
        "the disk failed and the transaction was rolled back; look into the system's log",
    ),
    sqlite3.SQLITE_TOOBIG: (Permanent, "larger than SQLite takes (1,000,000,000 bytes a row, unless built otherwise)"),
    sqlite3.SQLITE_CONSTRAINT: (Permanent, "a value is not of the type of its column"),
    sqlite3.SQLITE_MISMATCH: (Permanent, "a value is not of the type of its column"),
    sqlite3.SQLITE_PERM: _DENIED,
    sqlite3.SQLITE_AUTH: _DENIED,
    sqlite3.SQLITE_READONLY: _DENIED,
    sqlite3.SQLITE_CANTOPEN: (
        Fatal,
        "the file or its folder is missing, or may not be opened: check the URL's path and the folder's permissions",
    ),
    sqlite3.SQLITE_NOTADB: (Fatal, "the file is not an SQLite database: check the URL's path"),
    sqlite3.SQLITE_CORRUPT: (
        Fatal,
        "the file is damaged: stop its users, copy it with its -wal file, and save what is left: sqlite3 FILE .recover",
    ),
    sqlite3.SQLITE_NOLFS: (Fatal, "the file system takes no file this large: move the file to another"),
    sqlite3.SQLITE_ERROR: (
        Fatal,
        "the file's tables are not as redelivery-sqlite makes them (its plan shows how), or this is an error of ours",
    ),
    sqlite3.SQLITE_INTERNAL: _BROKEN,
    sqlite3.SQLITE_NOTFOUND: _BROKEN,
    sqlite3.SQLITE_EMPTY: _BROKEN,
    sqlite3.SQLITE_MISUSE: _BROKEN,
    sqlite3.SQLITE_FORMAT: _BROKEN,
    sqlite3.SQLITE_RANGE: _BROKEN,
}

_DAMAGED = BY_CODE[sqlite3.SQLITE_CORRUPT]
#: Extended codes that differ from their primary one.
BY_EXTENDED_CODE: dict[int, _Rule] = {
    sqlite3.SQLITE_IOERR_CORRUPTFS: _DAMAGED,
    sqlite3.SQLITE_READONLY_DBMOVED: (Fatal, "the file was moved or deleted while it was open: start the job again"),
    getattr(sqlite3, "SQLITE_IOERR_DATA", -1): _DAMAGED,
}

#: By exception class, where the error carries no code: the module's own, not the library's. First match counts.
BY_CLASS: tuple[tuple[type[Exception], _Rule], ...] = (
    (sqlite3.DataError, BY_CODE[sqlite3.SQLITE_TOOBIG]),
    (sqlite3.IntegrityError, BY_CODE[sqlite3.SQLITE_CONSTRAINT]),
    (sqlite3.InterfaceError, (Permanent, "a value is of a type that SQLite cannot store")),
    (sqlite3.ProgrammingError, _BROKEN),
    (sqlite3.NotSupportedError, _BROKEN),
    (sqlite3.InternalError, _BROKEN),
    (sqlite3.OperationalError, _BROKEN),
    (sqlite3.DatabaseError, _BROKEN),
    (sqlite3.Error, _BROKEN),
    (sqlite3.Warning, _BROKEN),
)

#: What Python itself raises for a value that cannot be bound: lone surrogates, integers over 64 bits, 2 GiB and more.
VALUE_ERRORS = (UnicodeEncodeError, OverflowError)
_UNBINDABLE = (Permanent, "text with a lone surrogate, a number over 64 bits or a body over 2 GiB cannot be stored")

#: Whatever a statement may raise.
ERRORS = (sqlite3.Error, sqlite3.Warning, *VALUE_ERRORS)


def classify(error: Exception, doing: str) -> BrokerError:
    """The error as redelivery's, its text saying what was being done and what to do; chain it from the original."""
    code = getattr(error, "sqlite_errorcode", None)
    rule = _rule(error, code)
    name = getattr(error, "sqlite_errorname", None) or type(error).__name__
    kind, advice = rule
    return kind(f"sqlite: {doing}: {error} ({name}); {advice}", native_code=name)


def classify_commit(error: Exception, doing: str) -> BrokerError:
    """The error of a COMMIT: where the disk failed in the middle of it, nobody knows whether it is stored.

    The commit record may be in the write-ahead log, though its fsync failed: after a crash it would be found there.
    """
    found = classify(error, doing)
    code = getattr(error, "sqlite_errorcode", None)
    if code is not None and code & 0xFF == sqlite3.SQLITE_IOERR and not isinstance(found, Fatal):
        why = "the disk failed during the commit, so it may be stored or not"
        text = f"sqlite: {doing}: {error} ({found.native_code}); {why}"
        return found.reclassified(Ambiguous, text)
    return found


def classify_reserve(error: OSError, doing: str) -> BrokerError:
    """The error of taking the reserve: the disk is as good as full, or the folder cannot be written to."""
    if error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EIO}:
        text = "no room left but what draining needs; nothing was stored; make room on the disk, or remove messages"
        return Retriable(f"sqlite: {doing}: {error.strerror}; {text}", native_code="SQLITE_FULL")
    return classify_path(error, doing)


def classify_path(error: OSError, doing: str) -> Fatal:
    """The error of a path that the system refuses."""
    advice = _PATHS.get(error.errno or 0, _DENIED[1])
    return Fatal(f"sqlite: {doing}: {error.strerror}; {advice}", native_code=errno.errorcode.get(error.errno or 0))


def denied(doing: str, path: str) -> Fatal:
    """The error where a file or folder may not be written to."""
    return Fatal(f"sqlite: {doing}: {path} may not be written to; {_DENIED[1]}", native_code="EACCES")


@contextmanager
def classified(doing: str) -> Iterator[None]:
    """Turn whatever sqlite3 raises inside into redelivery's error, chained, and what looking at a path raises."""
    try:
        yield
    except ERRORS as error:
        raise classify(error, doing) from error
    except OSError as error:
        raise classify_path(error, doing) from error


def _rule(error: Exception, code: int | None) -> _Rule:
    if isinstance(error, VALUE_ERRORS):
        return _UNBINDABLE
    if code is not None:
        return BY_EXTENDED_CODE.get(code) or BY_CODE.get(code & 0xFF, _BROKEN)
    return next((rule for kind, rule in BY_CLASS if isinstance(error, kind)), _BROKEN)
