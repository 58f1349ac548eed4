"""The leases that this process holds.

The file stores leases in wall-clock time, which may jump. This process counts its own leases by the monotonic clock.
"""

from __future__ import annotations

import weakref

from redelivery.kit import leases


class Lease(leases.Lease):
    """A lease as `Received.lease` holds it.

    Args:
        seq: the message's number in its queue.
        token: the value in `lease_<n>`, unique to this delivery.
        expires: end of the lease, in monotonic seconds.
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


#: An entry stays until its lease cannot be settled any more.
_held: weakref.WeakValueDictionary[str, Lease] = weakref.WeakValueDictionary()


def held(token: str, monotonic: float) -> Lease | None:
    """Return the lease that this process still holds under a token, independent of the time in the file."""
    lease = _held.get(token)
    return lease if lease is not None and lease.is_valid(monotonic) else None
