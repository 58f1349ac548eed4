"""The errors of LMDB and of the lock before it, as redelivery's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import filelock
import lmdb

from redelivery.codes import Code
from redelivery.errors import Ambiguous, BrokerError, Fatal, Retriable

#: By error class, code and advice: the errors of the clients.
RULES: Mapping[tuple[type[BrokerError], Code, str], tuple[type[Exception], ...]] = {
    # A transaction that does not commit is undone, so nothing happened.
    (Retriable, Code.DEADLINE_EXCEEDED, "another process writes; nothing was stored"): (filelock.Timeout,),
    (Retriable, Code.FULL, "nothing was stored; receive messages, or set lmdb.map_size higher"): (
        lmdb.MapFullError,
        lmdb.MemoryError,
        lmdb.ReadersFullError,
        lmdb.TxnFullError,
    ),
    (Retriable, Code.UNAVAILABLE, "another process has resized the file; nothing was stored"): (lmdb.MapResizedError,),
    # A commit that failed may have reached the disk.
    (Ambiguous, Code.UNCONFIRMED, "it may have been stored or not"): (lmdb.DiskError,),
    (Fatal, Code.NOT_AUTHORIZED, "allow this user to read and write the folder"): (
        PermissionError,
        lmdb.ReadonlyError,
    ),
    (Fatal, Code.NO_SUCH_DESTINATION, "make the parent folder, or correct the URL"): (
        FileNotFoundError,
        NotADirectoryError,
    ),
    (Fatal, Code.UNAVAILABLE, "find out what is wrong with the file system"): (OSError, lmdb.LockError),
    (Fatal, Code.CORRUPT, "the file is damaged or of another format; restore it"): (
        lmdb.BadChecksumError,
        lmdb.CorruptedError,
        lmdb.CryptoFailError,
        lmdb.EnvEncryptionError,
        lmdb.IncompatibleError,
        lmdb.InvalidError,
        lmdb.PageNotFoundError,
        lmdb.PanicError,
        lmdb.VersionMismatchError,
    ),
    (Fatal, Code.BUG, "please report this error of the plugin"): (
        lmdb.Error,
        lmdb.BadDbiError,
        lmdb.BadRslotError,
        lmdb.BadTxnError,
        lmdb.BadValsizeError,
        lmdb.CursorFullError,
        lmdb.DbsFullError,
        lmdb.InvalidParameterError,
        lmdb.KeyExistsError,
        lmdb.NotFoundError,
        lmdb.PageFullError,
        lmdb.ProblemError,
        lmdb.TlsFullError,
    ),
}
RULE_OF = {error: rule for rule, errors in RULES.items() for error in errors}


@contextmanager
def while_doing(doing: str, *, safe: bool = False) -> Iterator[None]:
    """While entered, raise the clients' errors as redelivery's. A `safe` call changes nothing that is stored."""
    try:
        yield
    except (lmdb.Error, OSError) as error:
        kind, code, advice = next(RULE_OF[base] for base in type(error).__mro__ if base in RULE_OF)
        if safe and kind is Ambiguous:
            kind, advice = Retriable, "nothing was changed"
        name = type(error).__name__
        text = f"plainlmdb: {doing}: {error} ({name}); {advice}"
        raise kind(text, code=code, native_code=name) from error
