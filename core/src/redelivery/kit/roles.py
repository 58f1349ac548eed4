"""The base of roles and of connections that they share: closed once, and by the process that opened it.

::

    class CarrierSender(Resource, Sender):
        def __init__(self, address):
            super().__init__("carrier", f"queue {address.queue!r}")

        def send(self, batch, *, deadline):
            self.check_open("sending to")
            ...

        def _release(self):
            self._connection.close()
"""

from __future__ import annotations

import os
import threading
from typing import Final

from redelivery.codes import Code
from redelivery.contract.broker import Admin, DeadLetters, Receiver, Role, Sender
from redelivery.errors import Fatal

__all__ = ["Resource"]

_NOUNS: Final[dict[type, str]] = {
    Sender: "sender",
    Receiver: "receiver",
    Admin: "admin role",
    DeadLetters: "dead letters role",
}


class Resource(Role):
    """A role or connection that one process opens, uses and closes. Put it before the role among a class's bases.

    A forked child inherits it with connections that belong to the parent. There it cannot be used, and closing it
    leaves them alone.

    Args:
        broker: the plugin's name; errors begin with it.
        place: what it works on, for errors: "queue 'orders'".
    """

    def __init__(self, broker: str, place: str) -> None:
        self._broker = broker
        self._place = place
        self._pid = os.getpid()
        self._closed = threading.Event()

    @property
    def is_closed(self) -> bool:
        """Whether it was closed in this process."""
        return self._closed.is_set()

    @property
    def is_inherited(self) -> bool:
        """Whether another process opened it, of which this one is a fork."""
        return self._pid != os.getpid()

    def close(self) -> None:
        """Close it, once. In a forked child it releases nothing."""
        if self.is_closed:
            return
        if self.is_inherited:
            self._closed = threading.Event()  # another thread of the parent may have held the old one's lock
        self._closed.set()
        if not self.is_inherited:
            self._release()

    def doing(self, what: str) -> str:
        """Return the action and the place: "receiving from queue 'orders'"."""
        return f"{what} {self._place}"

    def check_open(self, what: str) -> None:
        """Refuse an action after closing, or in a forked child.

        Raises:
            Fatal: with the code CLOSED.
        """
        if self.is_inherited:
            self._refuse(what, "was opened by the parent of this process; open one here")
        if self.is_closed:
            self._refuse(what, "is closed; open another")

    def sleep_unless_closed(self, wait: float) -> bool:
        """Wait up to `wait` seconds, and no longer than until it is closed; return whether it was."""
        return self._closed.wait(wait)

    def _release(self) -> None:
        """Release what it holds; called once, and only in the process that opened it."""

    def _refuse(self, what: str, why: str) -> None:
        noun = next((noun for role, noun in _NOUNS.items() if isinstance(self, role)), "connection")
        raise Fatal(f"{self._broker}: {self.doing(what)}: this {noun} {why}", code=Code.CLOSED)
