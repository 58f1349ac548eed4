"""The errors of LMDB and of the lock before it, sorted into the classes of redelivery: the one place that does it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import filelock
import lmdb

from redelivery.codes import Code
from redelivery.errors import Ambiguous, BrokerError, Fatal, Retriable

#: What each error means: what may be done about it, and why it happened.
RULES: Mapping[tuple[type[BrokerError], Code], tuple[type[Exception], ...]] = {
    # A transaction that does not commit is undone, so nothing happened.
    (Retriable, Code.DEADLINE_EXCEEDED): (filelock.Timeout,),  # another writer is at work
    (Retriable, Code.FULL): (
        lmdb.MapFullError,  # until somebody has received
        lmdb.MemoryError,
        lmdb.ReadersFullError,
        lmdb.TxnFullError,
    ),
    (Retriable, Code.UNAVAILABLE): (lmdb.MapResizedError,),
    # A commit that failed may have reached the disk.
    (Ambiguous, Code.UNCONFIRMED): (lmdb.DiskError,),
    # The file is corrupt, of another format, not ours to write, or used as it must not be.
    (Fatal, Code.NOT_AUTHORIZED): (PermissionError, lmdb.ReadonlyError),
    (Fatal, Code.NO_SUCH_DESTINATION): (FileNotFoundError, NotADirectoryError),
    (Fatal, Code.UNAVAILABLE): (OSError, lmdb.LockError),
    (Fatal, Code.CORRUPT): (
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
    (Fatal, Code.BUG): (
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
_RULE_OF = {error: rule for rule, errors in RULES.items() for error in errors}


@contextmanager
def sorted_errors() -> Iterator[None]:
    """While entered, what the clients raise leaves as a `BrokerError`."""
    try:
        yield
    except (lmdb.Error, OSError) as error:
        kind, code = next(_RULE_OF[base] for base in type(error).__mro__ if base in _RULE_OF)
        name = type(error).__name__
        raise kind(f"{name}: {error}", code=code, native_code=name) from error
