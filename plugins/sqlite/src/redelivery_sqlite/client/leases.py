"""What a receiver holds of a leased message, and which leases are held within this process.

The file counts leases in wall-clock time, which may jump; this process counts its own by the monotonic clock. This
file must not run a statement.
"""

from __future__ import annotations

import os
import weakref


class Lease:
    """A lease as `Received.lease` holds it.

    Args:
        seq: the message's number in its queue.
        token: what `lease_<n>` holds for this delivery and no other.
        expires: monotonic seconds.
    """

    __slots__ = ("__weakref__", "expires", "pid", "seq", "token")

    def __init__(self, seq: int, token: str, expires: float) -> None:
        self.seq = seq
        self.token = token
        self.expires = expires
        self.pid = os.getpid()
        _held[token] = self

    def __repr__(self) -> str:
        return f"Lease({self.seq}, {self.token!r})"

    def is_valid(self, monotonic: float) -> bool:
        """Whether it has not run out and was taken by this process: one that came over a fork is the parent's."""
        return monotonic < self.expires and self.pid == os.getpid()


#: A lease lasts here as long as somebody could still settle it.
_held: weakref.WeakValueDictionary[str, Lease] = weakref.WeakValueDictionary()


def held(token: str, monotonic: float) -> Lease | None:
    """The lease that this process still holds under a token, whatever the file's time says."""
    lease = _held.get(token)
    return lease if lease is not None and lease.is_valid(monotonic) else None
