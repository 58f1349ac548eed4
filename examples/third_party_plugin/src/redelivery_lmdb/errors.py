"""The errors of LMDB and of the lock before it, as redelivery's."""

from __future__ import annotations

import filelock
import lmdb

from redelivery.errors import Ambiguous, Fatal, Retriable
from redelivery.kit.errors import BUG, Code, ErrorTable, Rule

#: By rule: the classes of errors that it covers.
RULES: dict[Rule, tuple[type[Exception], ...]] = {
    # A transaction that does not commit is undone, so nothing happened.
    Rule(Retriable, Code.DEADLINE_EXCEEDED, "another process writes; nothing was stored"): (filelock.Timeout,),
    Rule(Retriable, Code.FULL, "nothing was stored; receive messages, or set lmdb.map_size higher"): (
        lmdb.MapFullError,
        lmdb.MemoryError,
        lmdb.ReadersFullError,
        lmdb.TxnFullError,
    ),
    Rule(Retriable, Code.UNAVAILABLE, "another process has resized the file; nothing was stored"): (
        lmdb.MapResizedError,
    ),
    # A commit that failed may have reached the disk.
    Rule(Ambiguous, Code.UNCONFIRMED, "it may have been stored or not"): (lmdb.DiskError,),
    Rule(Fatal, Code.NOT_AUTHORIZED, "allow this user to read and write the folder"): (
        PermissionError,
        lmdb.ReadonlyError,
    ),
    Rule(Fatal, Code.NO_SUCH_DESTINATION, "make the parent folder, or correct the URL"): (
        FileNotFoundError,
        NotADirectoryError,
    ),
    Rule(Fatal, Code.UNAVAILABLE, "find out what is wrong with the file system"): (OSError, lmdb.LockError),
    Rule(Fatal, Code.CORRUPT, "the file is damaged or of another format; restore it"): (
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
    BUG: (
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
TABLE = ErrorTable("lmdb", by_class={error: rule for rule, errors in RULES.items() for error in errors})
