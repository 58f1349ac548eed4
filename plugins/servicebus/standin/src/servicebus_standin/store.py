"""Queues and topics. A queue has a box of messages, a dead-letter box, the ids it has seen, and a forwarding target.

This module is pure: callers pass the time, and nothing here waits. The caller holds the lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, ClassVar, Final

from servicebus_standin.box import Box, Settings, Storable, Stored, StoreError

DEAD: Final = "/$deadletterqueue"
#: Joins the names of a topic and its subscription.
SUBSCRIPTIONS: Final = "/Subscriptions/"
REASON, DESCRIPTION = "DeadLetterReason", "DeadLetterErrorDescription"
#: Maximum number of times that a message is forwarded.
MAX_HOPS: Final = 4


def not_found(what: str) -> StoreError:
    """Return the error for an unknown queue."""
    return StoreError("amqp:not-found", 404, f"The messaging entity '{what}' could not be found.")


class Queue:
    """A queue: its box, its dead-letter box, its settings, and the ids it has seen."""

    #: Its name at the administration endpoint.
    kind: ClassVar = "Queue"

    def __init__(self, name: str, settings: Settings, store: Store) -> None:
        self.name = name
        self.settings = settings
        self.created = self.updated = store.clock()
        self._store = store
        self._seen: dict[str, float] = {}
        self.main = Box(name, lambda: self.settings, store.clock)
        self.dead = Box(f"{name}/$DeadLetterQueue", lambda: self.settings, store.clock)
        self.main.bury = self._bury
        self.main.session_of = lambda message: message.content.session if self.settings.requires_session else None
        self.main.forward = lambda message: self._forward(self.main, message, self.settings.forward_to)
        self.dead.forward = lambda message: self._forward(
            self.dead, message, self.settings.forward_dead_lettered_messages_to
        )

    def admit(self, size: int = 0) -> None:
        """Check that messages of this many bytes are accepted. Raises StoreError."""
        self._exists()
        if self.settings.status in ("Disabled", "SendDisabled"):
            raise self._disabled("Send")
        if self.main.bytes + self.dead.bytes + size > self.settings.max_size_in_megabytes * (1 << 20):
            text = f"The maximum entity size has been reached or exceeded for '{self.name}'."
            raise StoreError("amqp:resource-limit-exceeded", 403, text)

    def admit_receiver(self) -> None:
        """Check that messages may be received. Raises StoreError."""
        self._exists()
        if self.settings.status in ("Disabled", "ReceiveDisabled"):
            raise self._disabled("Receive")

    def _exists(self) -> None:
        if self._store.queues.get(self.name.lower()) is not self:  # deleted while a link still refers to it
            raise not_found(self.name)

    def _disabled(self, what: str) -> StoreError:
        text = f"Messaging entity '{self.name}' is currently disabled. {what} is not allowed."
        return StoreError("com.microsoft:entity-disabled", 403, text)

    def enqueue(self, content: Storable, message_id: str, due: float | None = None) -> int | None:
        """Store a message; None if its id was seen within the window. Raises StoreError."""
        self.admit(content.size)
        now = self._store.clock()
        if self.seen(message_id, now):
            return None
        return self.main.add(Stored(0, content, now, message_id, 0, due=due))

    def seen(self, message_id: str, now: float) -> bool:
        """Return whether this id was seen within the window, and record it."""
        if not self.settings.requires_duplicate_detection:
            return False
        forgotten = now - self.settings.duplicate_detection_history_time_window
        while self._seen and next(iter(self._seen.values())) <= forgotten:
            del self._seen[next(iter(self._seen))]
        if message_id in self._seen:
            return True
        self._seen[message_id] = now
        return False

    def _bury(self, message: Stored, reason: str, description: str) -> None:
        self.main.remove(message)
        message.properties |= {REASON: reason, DESCRIPTION: description}
        message.due = None
        self.dead.add(message)

    def _forward(self, box: Box, message: Stored, target: str | None) -> bool:
        """Forward a message if a target is set and accepts it; else keep it."""
        queue = None if target is None else self._store.queues.get(target.lower())
        if queue is None or message.hops >= MAX_HOPS:
            return False
        try:
            queue.admit(message.content.size)
        except StoreError:
            return False
        box.remove(message)
        if box is self.dead:
            message.source = self.name
        if not queue.seen(message.message_id, self._store.clock()):
            message.hops += 1
            message.enqueued, message.deliveries = self._store.clock(), 0
            queue.main.add(message)
        return True


class Subscription(Queue):
    """A subscription of a topic: a queue that only its topic sends to."""

    kind: ClassVar = "Subscription"


class Topic(Queue):
    """A topic. It copies a message to each subscription at once, and a scheduled message when it is due."""

    kind: ClassVar = "Topic"

    def __init__(self, name: str, settings: Settings, store: Store) -> None:
        super().__init__(name, settings, store)
        self.main.forward = self._copy

    def _copy(self, message: Stored) -> bool:
        self.main.remove(message)
        for subscription in self._store.subscriptions(self):
            subscription.main.add(replace(message, origin=0, properties=dict(message.properties)))
        return True


class Store:
    """All queues, topics and subscriptions, by path. Names are matched without case."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.queues: dict[str, Queue] = {}

    def create(self, name: str, settings: Settings | None = None, kind: type[Queue] = Queue) -> Queue:
        """Create a queue or a topic. Raises StoreError."""
        if name.lower() in self.queues:
            text = f"The messaging entity '{name}' already exists."
            raise StoreError("com.microsoft:entity-already-exists", 409, text)
        queue = self.queues[name.lower()] = kind(name, settings or Settings(), self)
        return queue

    def subscribe(self, topic: str, name: str, settings: Settings) -> Queue:
        """Create a subscription. Raises StoreError."""
        found = self.queues.get(topic.lower())
        if not isinstance(found, Topic):
            raise not_found(topic)
        return self.create(f"{found.name}{SUBSCRIPTIONS}{name}", settings, Subscription)

    def subscriptions(self, topic: Queue) -> list[Queue]:
        """Return all subscriptions of a topic."""
        prefix = f"{topic.name}{SUBSCRIPTIONS}".lower()
        return [each for path, each in self.queues.items() if path.startswith(prefix)]

    def alter(self, name: str, **settings: Any) -> None:
        """Change some of a queue's settings. Raises StoreError."""
        queue = self.queue(name)
        queue.settings = replace(queue.settings, **settings)
        queue.updated = self.clock()

    def delete(self, name: str) -> None:
        """Delete a queue with its messages, or a topic with its subscriptions. Raises StoreError."""
        for each in (self.queue(name), *self.subscriptions(self.queue(name))):
            del self.queues[each.name.lower()]

    def queue(self, name: str) -> Queue:
        """Return a queue by its name. Raises StoreError."""
        queue = self.queues.get(name.lower())
        if queue is None:
            raise not_found(name)
        return queue

    def find(self, path: str) -> tuple[Queue, Box]:
        """Return the queue of an address and its box, or its dead-letter sub-queue's. Raises StoreError."""
        if path.lower().endswith(DEAD):
            queue = self.queue(path[: -len(DEAD)])
            return queue, queue.dead
        queue = self.queue(path)
        return queue, queue.main

    def boxes(self) -> Iterator[Box]:
        """Return every box."""
        for queue in list(self.queues.values()):
            yield queue.main
            yield queue.dead

    def advance(self) -> float | None:
        """Advance every box; return when the next message may be due."""
        return min((when for box in self.boxes() if (when := box.advance()) is not None), default=None)
