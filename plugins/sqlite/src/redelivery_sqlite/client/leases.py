"""Which leases this process holds.

The file counts leases in wall-clock time, which may jump; this process counts its own by the monotonic clock.
"""

from __future__ import annotations

import weakref

from redelivery.kit import leases


class Lease(leases.Lease):
    """A lease as `Received.lease` holds it.

    Args:
        seq: the message's number in its queue.
        token: what `lease_<n>` holds for this delivery and no other.
        expires: monotonic seconds.
    """

    __slots__ = ("seq", "token")

    def __init__(self, seq: int, token: str, expires: float) -> None:
        super().__init__(expires)
        self.expires: float = expires
        self.seq = seq
        self.token = token
        _held[token] = self

    def __repr__(self) -> str:
        return f"Lease({self.seq}, {self.token!r})"


#: A lease lasts here as long as somebody could still settle it.
_held: weakref.WeakValueDictionary[str, Lease] = weakref.WeakValueDictionary()


def held(token: str, monotonic: float) -> Lease | None:
    """Return the lease that this process still holds under a token, whatever the file's time says."""
    lease = _held.get(token)
    return lease if lease is not None and lease.is_valid(monotonic) else None
