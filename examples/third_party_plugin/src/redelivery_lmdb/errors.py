"""The errors of LMDB and of the lock before it, sorted into the classes of redelivery: the one place that does it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import filelock
import lmdb

from redelivery.errors import Ambiguous, BrokerError, Fatal, Retriable

#: What each error means.
CLASSES: Mapping[type[BrokerError], tuple[type[Exception], ...]] = {
    # A transaction that does not commit is undone, so nothing happened.
    Retriable: (
        filelock.Timeout,  # another writer is at work
        lmdb.MapFullError,  # until somebody has received
        lmdb.MapResizedError,
        lmdb.MemoryError,
        lmdb.ReadersFullError,
        lmdb.TxnFullError,
    ),
    # A commit that failed may have reached the disk.
    Ambiguous: (lmdb.DiskError,),
    # The file is corrupt, of another format, not ours to write, or used as it must not be.
    Fatal: (
        OSError,
        lmdb.Error,
        lmdb.BadChecksumError,
        lmdb.BadDbiError,
        lmdb.BadRslotError,
        lmdb.BadTxnError,
        lmdb.BadValsizeError,
        lmdb.CorruptedError,
        lmdb.CryptoFailError,
        lmdb.CursorFullError,
        lmdb.DbsFullError,
        lmdb.EnvEncryptionError,
        lmdb.IncompatibleError,
        lmdb.InvalidError,
        lmdb.InvalidParameterError,
        lmdb.KeyExistsError,
        lmdb.LockError,
        lmdb.NotFoundError,
        lmdb.PageFullError,
        lmdb.PageNotFoundError,
        lmdb.PanicError,
        lmdb.ProblemError,
        lmdb.ReadonlyError,
        lmdb.TlsFullError,
        lmdb.VersionMismatchError,
    ),
}
_CLASS_OF = {error: found for found, errors in CLASSES.items() for error in errors}


@contextmanager
def sorted_errors() -> Iterator[None]:
    """While entered, what the clients raise leaves as a `BrokerError`."""
    try:
        yield
    except (lmdb.Error, OSError) as error:
        found = next(_CLASS_OF[base] for base in type(error).__mro__ if base in _CLASS_OF)
        raise found(f"{type(error).__name__}: {error}", native_code=type(error).__name__) from error
