"""What the brokers broken on purpose are made of.

Each is the whole broker in memory with one fault, and names the statement that is meant to catch it. They are in
the files `broken_*.py`, which must not hold tests.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from redelivery.contract.message import Message
from redelivery_conformance.memory import (
    MemoryBroker,
    MemorySender,
    Store,
)


class Broken(MemoryBroker):
    """Base of them all. `caught_by`: the statement without `test_`, with its parameters where it has any."""

    caught_by: ClassVar[str]
    all: ClassVar[list[type[Broken]]] = []

    def __init_subclass__(cls) -> None:
        if hasattr(cls, "caught_by"):
            cls.all.append(cls)


class Rewriting(MemorySender):
    """Stores something else than it was given."""

    def rewrite(self, message: Message) -> Message:
        raise NotImplementedError

    def store_row(self, store: Store, message: Message) -> bool:
        return super().store_row(store, self.rewrite(message))


def rewriting(**changes):
    """A sender that stores each message with fields computed from it."""

    class Sending(Rewriting):
        def rewrite(self, message: Message) -> Message:
            return replace(message, **{name: change(message) for name, change in changes.items()})

    return Sending
