"""Queues: a box of messages, a dead-letter box, the ids that were seen, and where messages are forwarded to. Topics.

Pure: the clock is given, and nothing here waits. The caller holds the lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, ClassVar, Final

from servicebus_standin.box import Box, Settings, Storable, Stored, StoreError

DEAD: Final = "/$deadletterqueue"
#: Between the names of a topic and of its subscription.
SUBSCRIPTIONS: Final = "/Subscriptions/"
REASON, DESCRIPTION = "DeadLetterReason", "DeadLetterErrorDescription"
#: So often a message is forwarded at most.
MAX_HOPS: Final = 4


def not_found(what: str) -> StoreError:
    """The answer to a name that no queue has."""
    return StoreError("amqp:not-found", 404, f"The messaging entity '{what}' could not be found.")


class Queue:
    """A queue: its box, its dead-letter box, its settings, and the ids it has seen."""

    #: Its name in what the administration endpoint reads and writes.
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
        self.main.forward = lambda message: self._forward(self.main, message, self.settings.forward_to)
        self.dead.forward = lambda message: self._forward(
            self.dead, message, self.settings.forward_dead_lettered_messages_to
        )

    def admit(self, size: int = 0) -> None:
        """Whether messages of so many bytes may come. Raises StoreError."""
        self._exists()
        if self.settings.status in ("Disabled", "SendDisabled"):
            raise self._disabled("Send")
        if self.main.bytes + self.dead.bytes + size > self.settings.max_size_in_megabytes * (1 << 20):
            text = f"The maximum entity size has been reached or exceeded for '{self.name}'."
            raise StoreError("amqp:resource-limit-exceeded", 403, text)

    def admit_receiver(self) -> None:
        """Whether messages may be taken. Raises StoreError."""
        self._exists()
        if self.settings.status in ("Disabled", "ReceiveDisabled"):
            raise self._disabled("Receive")

    def _exists(self) -> None:
        if self._store.queues.get(self.name.lower()) is not self:  # deleted, though a link still holds it
            raise not_found(self.name)

    def _disabled(self, what: str) -> StoreError:
        text = f"Messaging entity '{self.name}' is currently disabled. {what} is not allowed."
        return StoreError("com.microsoft:entity-disabled", 403, text)

    def enqueue(self, content: Storable, message_id: str, due: float | None = None) -> int | None:
        """Take a message; None where its id was seen within the window. Raises StoreError."""
        self.admit(content.size)
        now = self._store.clock()
        if self.seen(message_id, now):
            return None
        return self.main.add(Stored(0, content, now, message_id, 0, due=due))

    def seen(self, message_id: str, now: float) -> bool:
        """Whether this id came within the window; from now on it did."""
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
        """Where a target is set and takes it, a message goes on; else it stays."""
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
    """A topic: what comes is copied to each of its subscriptions at once; what is scheduled, when it is due."""

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
        """A new queue, or topic. Raises StoreError."""
        if name.lower() in self.queues:
            text = f"The messaging entity '{name}' already exists."
            raise StoreError("com.microsoft:entity-already-exists", 409, text)
        queue = self.queues[name.lower()] = kind(name, settings or Settings(), self)
        return queue

    def subscribe(self, topic: str, name: str, settings: Settings) -> Queue:
        """A new subscription. Raises StoreError."""
        found = self.queues.get(topic.lower())
        if not isinstance(found, Topic):
            raise not_found(topic)
        return self.create(f"{found.name}{SUBSCRIPTIONS}{name}", settings, Subscription)

    def subscriptions(self, topic: Queue) -> list[Queue]:
        """All of a topic."""
        prefix = f"{topic.name}{SUBSCRIPTIONS}".lower()
        return [each for path, each in self.queues.items() if path.startswith(prefix)]

    def alter(self, name: str, **settings: Any) -> None:
        """Change some of a queue's settings. Raises StoreError."""
        queue = self.queue(name)
        queue.settings = replace(queue.settings, **settings)
        queue.updated = self.clock()

    def delete(self, name: str) -> None:
        """Forget a queue and all that is in it, a topic with its subscriptions. Raises StoreError."""
        for each in (self.queue(name), *self.subscriptions(self.queue(name))):
            del self.queues[each.name.lower()]

    def queue(self, name: str) -> Queue:
        """A queue by its name. Raises StoreError."""
        queue = self.queues.get(name.lower())
        if queue is None:
            raise not_found(name)
        return queue

    def find(self, path: str) -> tuple[Queue, Box]:
        """What an address names: a queue, or its dead-letter sub-queue. Raises StoreError."""
        if path.lower().endswith(DEAD):
            queue = self.queue(path[: -len(DEAD)])
            return queue, queue.dead
        queue = self.queue(path)
        return queue, queue.main

    def boxes(self) -> Iterator[Box]:
        """Every box."""
        for queue in list(self.queues.values()):
            yield queue.main
            yield queue.dead

    def advance(self) -> float | None:
        """Do what is due everywhere; returns when the next thing may be."""
        return min((when for box in self.boxes() if (when := box.advance()) is not None), default=None)
