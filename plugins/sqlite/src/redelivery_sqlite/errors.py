"""Map each error of the sqlite3 module, and of the file system, to one of redelivery's."""

from __future__ import annotations

import errno
import sqlite3
from dataclasses import replace
from typing import Any, Final

from redelivery.errors import Ambiguous, BrokerError, Fatal, Permanent, Retriable
from redelivery.kit.errors import ClientError, Code, ErrorTable, Rule

_LOCKED: Final = Rule(Retriable, Code.UNAVAILABLE, "another process holds the write lock; nothing was stored")
_UNDONE: Final = "no room left; the transaction was rolled back; make room on the disk, or receive or remove messages"
_FULL: Final = Rule(Retriable, Code.FULL, _UNDONE)
_BROKEN: Final = Rule(Fatal, Code.BUG, "an error of redelivery-sqlite or of the SQLite library: please report it")
_DENIED: Final = Rule(
    Fatal,
    Code.NOT_AUTHORIZED,
    "give this user read and write permission on the file, on its -wal and -shm files and on their folder",
)
_MISSING: Final = Rule(
    Fatal,
    Code.NO_SUCH_DESTINATION,
    "the file or its folder is missing, or may not be opened: check the URL's path and the folder's permissions",
)
_DAMAGED: Final = Rule(
    Fatal,
    Code.CORRUPT,
    "the file is damaged: stop its users, copy it with its -wal file, and save what is left: sqlite3 FILE .recover",
)
_TOO_LARGE: Final = Rule(
    Permanent, Code.TOO_LARGE, "larger than SQLite takes (1,000,000,000 bytes a row, unless built otherwise)"
)
_TYPE: Final = Rule(Permanent, Code.INVALID_MESSAGE, "a value is not of the type of its column")
_TOO_WIDE: Final = "text with a lone surrogate, a number over 64 bits or a body over 2 GiB cannot be stored"
_UNBINDABLE: Final = Rule(Permanent, Code.INVALID_MESSAGE, _TOO_WIDE)


def _undone(code: Code, what: str) -> Rule:
    return Rule(Retriable, code, f"{what}; nothing was stored")


_NOT_A_DATABASE: Final = Rule(Fatal, Code.CORRUPT, "the file is not an SQLite database: check the URL's path")
_MOVED: Final = Rule(Fatal, Code.CORRUPT, "the file was moved or deleted while it was open: start the job again")
_NO_LARGE_FILES: Final = Rule(Fatal, Code.MISCONFIGURED, "the file system takes no file this large: move the file")
_DISK: Final = _undone(Code.UNAVAILABLE, "the disk failed (look into the system's log) and the transaction was undone")
_TABLES: Final = Rule(
    Fatal,
    Code.CORRUPT,
    "the file's tables are not as redelivery-sqlite makes them (its plan shows how), or this is an error of ours",
)

#: By result code: all primary codes, and the extended ones that differ. A test reports a primary code that a later
#: SQLite adds.
BY_CODE: Final[dict[int, Rule]] = {
    sqlite3.SQLITE_IOERR_CORRUPTFS: _DAMAGED,
    getattr(sqlite3, "SQLITE_IOERR_DATA", -1): _DAMAGED,
    sqlite3.SQLITE_READONLY_DBMOVED: _MOVED,
    **dict.fromkeys((sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED), _LOCKED),
    sqlite3.SQLITE_PROTOCOL: _undone(Code.UNAVAILABLE, "SQLite lost a race for its locks"),
    sqlite3.SQLITE_SCHEMA: _undone(Code.UNAVAILABLE, "another process changed the schema meanwhile"),
    sqlite3.SQLITE_ABORT: _undone(Code.UNAVAILABLE, "the transaction was rolled back"),
    sqlite3.SQLITE_INTERRUPT: _undone(Code.UNAVAILABLE, "the statement was interrupted and rolled back"),
    sqlite3.SQLITE_NOMEM: _undone(Code.UNAVAILABLE, "SQLite ran out of memory and rolled back"),
    sqlite3.SQLITE_FULL: _FULL,
    sqlite3.SQLITE_IOERR: _DISK,
    sqlite3.SQLITE_TOOBIG: _TOO_LARGE,
    **dict.fromkeys((sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_MISMATCH), _TYPE),
    **dict.fromkeys((sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH, sqlite3.SQLITE_READONLY), _DENIED),
    sqlite3.SQLITE_CANTOPEN: _MISSING,
    sqlite3.SQLITE_NOTADB: _NOT_A_DATABASE,
    sqlite3.SQLITE_CORRUPT: _DAMAGED,
    sqlite3.SQLITE_NOLFS: _NO_LARGE_FILES,
    sqlite3.SQLITE_ERROR: _TABLES,
    **dict.fromkeys((sqlite3.SQLITE_INTERNAL, sqlite3.SQLITE_NOTFOUND, sqlite3.SQLITE_EMPTY), _BROKEN),
    **dict.fromkeys((sqlite3.SQLITE_MISUSE, sqlite3.SQLITE_FORMAT, sqlite3.SQLITE_RANGE), _BROKEN),
}

#: Python's own errors for a value that cannot be bound: lone surrogates, integers over 64 bits, 2 GiB and more.
VALUE_ERRORS: Final = (UnicodeEncodeError, OverflowError)
#: All errors that a statement may raise.
ERRORS: Final = (sqlite3.Error, sqlite3.Warning, *VALUE_ERRORS)

#: By exception class, if the error has no code: errors of the Python module, not of the library.
BY_CLASS: Final[dict[type[BaseException], Rule]] = {
    **dict.fromkeys(VALUE_ERRORS, _UNBINDABLE),
    sqlite3.DataError: _TOO_LARGE,
    sqlite3.IntegrityError: _TYPE,
    sqlite3.InterfaceError: Rule(Permanent, Code.INVALID_MESSAGE, "a value is of a type that SQLite cannot store"),
    **dict.fromkeys((sqlite3.ProgrammingError, sqlite3.NotSupportedError, sqlite3.InternalError), _BROKEN),
    **dict.fromkeys((sqlite3.OperationalError, sqlite3.DatabaseError, sqlite3.Error, sqlite3.Warning), _BROKEN),
    OSError: _DENIED,  # for a path
}

#: Advice for a path that the system refuses; otherwise permissions are missing.
_BY_ERRNO: Final[dict[str, Rule]] = {
    "EFBIG": Rule(Fatal, Code.FULL, "no file may be so large here: raise the limit (ulimit -f), or remove messages"),
    "ELOOP": Rule(Fatal, Code.MISCONFIGURED, "remove the link, or name the file itself"),
    "ENAMETOOLONG": Rule(Fatal, Code.INVALID_DESTINATION, "correct the URL"),
}
#: Errors of the reserve that mean a full disk.
_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO})


def _describe(error: Any) -> ClientError:
    if isinstance(error, OSError):
        return ClientError(error.strerror or str(error), codes=(errno.errorcode.get(error.errno or 0),))
    code = getattr(error, "sqlite_errorcode", None)
    codes = () if code is None else (code, code & 0xFF)
    return ClientError(str(error), codes, name=getattr(error, "sqlite_errorname", None) or type(error).__name__)


TABLE: Final = ErrorTable(
    "sqlite", by_class=BY_CLASS, by_code={**BY_CODE, **_BY_ERRNO}, otherwise=_BROKEN, describe=_describe
)


def commit_error(error: Exception, doing: str) -> BrokerError:
    """Return the error of a COMMIT. If the disk failed in the middle of it, the transaction may be stored or not.

    The commit record may be in the write-ahead log although its fsync failed. After a crash it would be found there.
    """
    rule = TABLE.rule(error)
    if rule is _DISK:
        text = "the disk failed during the commit, so it may be stored or not"
        rule = replace(rule, kind=Ambiguous, code=Code.UNCONFIRMED, advice=text)
    return TABLE.error(error, doing, rule=rule)


def reserve_error(error: OSError, doing: str) -> BrokerError:
    """Return the error of creating the reserve: the disk is nearly full, or the folder is not writable."""
    if error.errno not in _NO_ROOM:
        return TABLE.error(error, doing)
    text = "no room left but what draining needs; nothing was stored; make room on the disk, or remove messages"
    return TABLE.error(error, doing, rule=replace(_FULL, advice=text))


def denied(doing: str, path: str) -> Fatal:
    """Return the error of a file or folder without write permission."""
    text = f"sqlite: {doing}: {path} may not be written to; {_DENIED.advice}"
    return Fatal(text, code=_DENIED.code, native_code="EACCES")
