"""What lies in memory: stores of queues, and the state of each message. This file must not know any role."""

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
    """What a message is recognised by; None: by nothing."""
    return message.id if message.identity is None else message.identity


@dataclass(slots=True)
class State:
    """What a queue knows of a message besides the message. Times are monotonic seconds, but for `first_ms`.

    Attributes:
        visible: not given before.
        lease: of the delivery that holds it, valid until `visible`; 0: none.
        attempts: deliveries that count.
        first_ms: of the first of them, milliseconds since the epoch.
        expires: when it goes to the dead letters, unless it is leased.
        damage: what of it cannot be decoded.
    """

    visible: float = 0.0
    lease: int = 0
    attempts: int = 0
    first_ms: int | None = None
    expires: float = float("inf")
    damage: str | None = None


@dataclass(slots=True)
class Queue:
    """What lies in one queue.

    `altered` is for tests of drift; `why` is the queue's own word on its dead letters; `shape` are the partitions and
    replicas that it was made with, which a queue in memory only remembers.
    """

    messages: dict[int, Message] = field(default_factory=dict)
    states: dict[int, State] = field(default_factory=dict)
    why: dict[int, ErrorContext] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)
    altered: bool = False
    shape: tuple[int | None, int | None] = (None, None)

    def state(self, position: int) -> State:
        """The state of a message, made when first asked for."""
        return self.states.setdefault(position, State())

    def due(self, now: float) -> Iterator[tuple[int, State]]:
        """What may be given now, oldest first."""
        for position in list(self.messages):
            state = self.state(position)
            if state.visible <= now:
                yield position, state

    def drop(self, position: int) -> Message:
        """Take a message out; what it was recognised by stays remembered."""
        self.states.pop(position, None)
        return self.messages.pop(position)


class Store:
    """Queues by name, and the queues that get copies of what is sent to one.

    Attributes:
        down: it refuses everything.
        silent: it does what it is asked to, and answers nobody.
        cuts: how often all connections were cut, if there were any.
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
        """A queue, made when first named."""
        return self.queues.setdefault(name, Queue())

    def put(self, name: str, message: Message, *, ttl: float = 0.0) -> bool:
        """Store a message, for `ttl` seconds where that is not 0; False where it is recognised."""
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
        """Store a message, whatever is there; its position."""
        queue = self.queue(name)
        known_by = recognised(message)
        if known_by is not None:
            queue.taken.add(known_by)
        position = next(self.positions)
        queue.messages[position] = replace(message, identity=None)
        return position

    def bury(self, source: str, position: int, place: str, letter: Message, why: ErrorContext) -> None:
        """Put a letter into a dead letter place and take its message out of its queue."""
        self.queue(source).drop(position)
        self.queue(place).why[self.add(place, letter)] = why
