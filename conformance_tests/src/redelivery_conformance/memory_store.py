"""Stores of queues in memory, and the state of each message."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from threading import Lock
from typing import ClassVar

from redelivery.contract.context import ErrorContext
from redelivery.contract.message import Message


def recognised(message: Message) -> str | None:
    """Return the id by which duplicates of a message are recognised; None: duplicates are not recognised."""
    return message.id if message.identity is None else message.identity


@dataclass(slots=True)
class State:
    """A queue's state of one message. Times are monotonic seconds, except `first_ms`.

    Attributes:
        visible: time before which it is not delivered.
        lease: number of the delivery that holds it, valid until `visible`; 0: not leased.
        attempts: number of deliveries that count.
        first_ms: time of the first delivery, in milliseconds since the epoch.
        expires: time at which it is dead-lettered, unless it is leased.
        damage: the part that cannot be decoded.
    """

    visible: float = 0.0
    lease: int = 0
    attempts: int = 0
    first_ms: int | None = None
    expires: float = float("inf")
    damage: str | None = None


@dataclass(slots=True)
class Queue:
    """The messages of one queue.

    `altered` is for tests of drift. `last` is the position of the newest message that
    was ever here. `why` is the reason that the queue gives its dead letters. `shape` holds the
    partitions and replicas that it was created with; they have no effect in memory.
    """

    messages: dict[int, Message] = field(default_factory=dict)
    states: dict[int, State] = field(default_factory=dict)
    why: dict[int, ErrorContext] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)
    altered: bool = False
    last: int = 0
    shape: tuple[int | None, int | None] = (None, None)

    def state(self, position: int) -> State:
        """Return the state of a message; create it on the first call."""
        return self.states.setdefault(position, State())

    def due(self, now: float) -> Iterator[tuple[int, State]]:
        """Return the messages that may be delivered now, oldest first."""
        for position in list(self.messages):
            state = self.state(position)
            if state.visible <= now:
                yield position, state

    def drop(self, position: int) -> Message:
        """Remove a message. Its id is still remembered."""
        self.states.pop(position, None)
        return self.messages.pop(position)


class Store:
    """Queues by name, and the queues that get copies of another queue's messages.

    Attributes:
        down: refuses every request.
        silent: carries requests out and does not answer.
        cuts: how often all connections were cut.
    """

    by_name: ClassVar[dict[str, Store]] = {}

    def __init__(self) -> None:
        self.queues: dict[str, Queue] = {}
        self.copies: dict[str, dict[str, None]] = {}
        self.down = False
        self.silent = False
        self.cuts = 0
        self.lock = Lock()
        self.positions = count(1)
        self.leases = count(1)

    def queue(self, name: str) -> Queue:
        """Return a queue; create it on the first call."""
        return self.queues.setdefault(name, Queue())

    def put(self, name: str, message: Message, *, ttl: float = 0.0) -> bool:
        """Store a message for `ttl` seconds (0: forever); return False for a duplicate."""
        queue = self.queue(name)
        known_by = recognised(message)
        if known_by is not None and known_by in queue.taken:
            return False
        for copy in self.copies.get(name, ()):
            self.put(copy, message, ttl=ttl)
        position = self.add(name, message)
        if ttl:
            queue.state(position).expires = time.monotonic() + ttl
        return True

    def add(self, name: str, message: Message) -> int:
        """Store a message, even a duplicate; return its position."""
        queue = self.queue(name)
        known_by = recognised(message)
        if known_by is not None:
            queue.taken.add(known_by)
        position = next(self.positions)
        queue.messages[position] = replace(message, identity=None)
        queue.last = position
        return position

    def bury(self, source: str, position: int, place: str, letter: Message, why: ErrorContext) -> None:
        """Store a letter in a dead letter queue and remove its message from its queue."""
        self.queue(source).drop(position)
        self.queue(place).why[self.add(place, letter)] = why
