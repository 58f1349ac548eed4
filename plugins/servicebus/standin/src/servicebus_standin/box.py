"""The messages under one address, with locks, expiry, schedules and delivery counts.

This module is pure: callers pass the time, and nothing here waits.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Literal, Protocol
from uuid import UUID, uuid4

State = Literal["active", "locked", "deferred", "scheduled"]
Status = Literal["Active", "Disabled", "SendDisabled", "ReceiveDisabled"]


class StoreError(Exception):
    """A queue refuses a request.

    Attributes:
        condition: the AMQP error condition.
        status: the corresponding HTTP status, for answers of management.
    """

    def __init__(self, condition: str, status: int, text: str) -> None:
        super().__init__(text)
        self.condition = condition
        self.status = status


def lock_lost() -> StoreError:
    """Return the error for a token without a lock."""
    text = "The lock supplied is invalid. Either the lock expired, or the message has already been removed."
    return StoreError("com.microsoft:message-lock-lost", 410, text)


def session_lost(session: str) -> StoreError:
    """Return the error for a session that is not locked any more."""
    text = f"The session lock has expired on the session '{session}'. Accept a new session."
    return StoreError("com.microsoft:session-lock-lost", 410, text)


def missing(numbers: Sequence[int]) -> StoreError:
    """Return the error for unknown sequence numbers."""
    return StoreError(
        "com.microsoft:message-not-found", 404, f"Failed to lock one or more specified messages: {numbers}"
    )


class Storable(Protocol):
    """The parts of a content that the store reads."""

    @property
    def ttl(self) -> float | None:
        """Return the time to live in seconds, if the sender set it."""

    @property
    def size(self) -> int:
        """Return the bytes that count towards the quota."""

    @property
    def session(self) -> str | None:
        """Return the session id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """A queue's attributes. Durations are in seconds, `None` is unlimited; short ones are allowed for tests."""

    lock_duration: float = 60.0
    max_delivery_count: int = 10
    default_message_time_to_live: float | None = None
    dead_lettering_on_message_expiration: bool = False
    requires_duplicate_detection: bool = False
    duplicate_detection_history_time_window: float = 600.0
    forward_to: str | None = None
    forward_dead_lettered_messages_to: str | None = None
    max_size_in_megabytes: float = 1024
    requires_session: bool = False
    status: Status = "Active"
    user_metadata: str | None = None


@dataclass(slots=True, eq=False)
class Stored:
    """A message in a box; `sequence` is its number there, `origin` its number where it was stored first."""

    sequence: int
    content: Any
    enqueued: float
    message_id: str
    origin: int
    state: State = "active"
    expires: float | None = None
    due: float | None = None
    token: UUID | None = None
    locked_until: float | None = None
    deliveries: int = 0
    was_deferred: bool = False
    properties: dict[str, Any] = field(default_factory=dict)
    source: str | None = None
    hops: int = 0


@dataclass(slots=True, eq=False)
class Session:
    """The lock on all messages of one session id."""

    id: str
    until: float


class Box:
    """Messages under one address: those of a queue, or of its dead-letter sub-queue.

    Where messages have sessions (`session_of`), they are taken from a session that is locked.
    """

    def __init__(self, path: str, settings: Callable[[], Settings], clock: Callable[[], float]) -> None:
        self.path = path
        self.messages: dict[int, Stored] = {}
        self.bytes = 0
        self._settings = settings
        self._clock = clock
        self._next = 1
        self._ready: dict[str | None, list[int]] = {}  # by session
        self._sessions: dict[str, Session] = {}  # the locked ones
        self._states: dict[str, Any] = {}
        self._locks: dict[UUID, Stored] = {}
        self._timers: list[
            tuple[float, int]
        ] = []  # an entry may be out of date, so its message is checked when it is due
        self.bury: Callable[[Stored, str, str], None] | None = None
        self.forward: Callable[[Stored], bool] = lambda _: False
        self.session_of: Callable[[Stored], str | None] = lambda _: None

    def now(self) -> float:
        """Return the time."""
        return self._clock()

    # --- coming

    def add(self, message: Stored) -> int:
        """Store a message as a new one of this box."""
        self._number(message)
        message.origin = message.origin or message.sequence
        self.bytes += message.content.size
        message.token = message.locked_until = None
        message.was_deferred = False
        if message.due is not None and message.due > self._clock():
            message.state = "scheduled"
            self._watch(message.due, message)
        else:
            self._activate(message)
        return message.sequence

    def _number(self, message: Stored) -> None:
        message.sequence = self._next
        self._next += 1
        self.messages[message.sequence] = message

    def _activate(self, message: Stored) -> None:
        if message.state == "scheduled":  # its number ends with the schedule; now it is a new message
            del self.messages[message.sequence]
            self._number(message)
        message.state = "active"
        if message.due is not None:
            message.enqueued, message.due = max(message.enqueued, message.due), None
        message.expires = None
        ttl = self._lifetime(message)
        if self.bury is not None and ttl is not None:  # messages in a dead-letter sub-queue do not expire
            message.expires = message.enqueued + ttl
            self._watch(message.expires, message)
        if not self.forward(message):
            self._make_ready(message)

    def _make_ready(self, message: Stored) -> None:
        heapq.heappush(self._ready.setdefault(self.session_of(message), []), message.sequence)

    def _lifetime(self, message: Stored) -> float | None:
        limits = [
            each for each in (message.content.ttl, self._settings().default_message_time_to_live) if each is not None
        ]
        return min(limits, default=None)

    def _watch(self, when: float, message: Stored) -> None:
        heapq.heappush(self._timers, (when, message.sequence))

    def remove(self, message: Stored) -> Stored:
        """Remove a message."""
        del self.messages[message.sequence]
        self.bytes -= message.content.size
        if message.token is not None:
            self._locks.pop(message.token, None)
        return message

    # --- time

    def advance(self) -> float | None:
        """Unlock, expire and enqueue messages that are due. Return when the next one may be due."""
        now = self._clock()
        for session in list(self._sessions.values()):
            if session.until <= now:
                self.release(session, failed=True)
        while self._timers and self._timers[0][0] <= now:
            _, sequence = heapq.heappop(self._timers)
            message = self.messages.get(sequence)
            if message is None:
                continue
            if message.state == "locked" and message.locked_until is not None and message.locked_until <= now:
                self._unlock(message, failed=True)
            elif message.state == "scheduled" and message.due is not None and message.due <= now:
                self._activate(message)
            elif message.state == "active":
                self._expire(message)
        ends = [session.until for session in self._sessions.values()]
        return min(ends + [when for when, _ in self._timers[:1]], default=None)

    def _expire(self, message: Stored) -> bool:
        if message.expires is None or message.expires > self._clock() or self.bury is None:
            return False
        if self._settings().dead_lettering_on_message_expiration:
            self.bury(message, "TTLExpiredException", "The message expired and was dead lettered.")
        else:
            self.remove(message)
        return True

    # --- going

    def take(self, count: int, *, delete: bool = False, session: str | None = None) -> list[Stored]:
        """Lock or remove the next active messages, of a session or of none, oldest first, and return them."""
        found: list[Stored] = []
        while len(found) < count and (message := self._next_ready(session)) is not None:
            heapq.heappop(self._ready[session])
            found.append(self._give(message, delete=delete))
        return found

    def _next_ready(self, session: str | None) -> Stored | None:
        """Return the first active message, of a session or of none."""
        ready = self._ready.get(session, [])
        while ready:
            message = self.messages.get(ready[0])
            if message is not None and message.state == "active" and not self._expire(message):
                return message
            heapq.heappop(ready)
        self._ready.pop(session, None)
        return None

    # --- sessions

    def accept(self, wanted: str | None) -> Session | None:
        """Lock a session by its id, or (None) the one with the oldest active message; None: no session has one.

        Raises:
            StoreError: the wanted session is locked.
        """
        if wanted is None:
            free = [each for each in list(self._ready) if each is not None and each not in self._sessions]
            first = [(message.sequence, each) for each in free if (message := self._next_ready(each)) is not None]
            if not first:
                return None
            wanted = min(first)[1]
        elif wanted in self._sessions:
            text = f"The requested session '{wanted}' cannot be accepted. It may be locked by another receiver."
            raise StoreError("com.microsoft:session-cannot-be-locked", 410, text)
        session = self._sessions[wanted] = Session(wanted, self._clock() + self._settings().lock_duration)
        return session

    def holds(self, session: Session) -> bool:
        """Return whether this lock still holds."""
        return self._sessions.get(session.id) is session and session.until > self._clock()

    def renew_session(self, session_id: str) -> float:
        """Lock a session for one lock duration from now; return the end of the lock. Raises StoreError."""
        session = self._sessions.get(session_id)
        if session is None or not self.holds(session):
            raise session_lost(session_id)
        session.until = self._clock() + self._settings().lock_duration
        for message in self._of(session):
            message.locked_until = session.until
        return session.until

    def release(self, session: Session, *, failed: bool = False) -> None:
        """End a session's lock. Its messages return to their places; if `failed`, their delivery counts."""
        if self._sessions.get(session.id) is session:
            del self._sessions[session.id]
            for message in self._of(session):
                self._unlock(message, failed=failed)

    def _of(self, session: Session) -> list[Stored]:
        return [message for message in self._locks.values() if self.session_of(message) == session.id]

    def state(self, session_id: str) -> Any:
        """Return a session's state; None: it has none."""
        return self._states.get(session_id)

    def set_state(self, session_id: str, state: Any) -> None:
        """Set a session's state; None removes it."""
        self._states[session_id] = state
        if state is None:
            del self._states[session_id]

    def take_deferred(self, sequences: Sequence[int], *, delete: bool = False) -> list[Stored]:
        """Return deferred messages by their sequence numbers. Raises StoreError if one is missing."""
        found = [self.messages.get(sequence) for sequence in sequences]
        deferred = [message for message in found if message is not None and message.state == "deferred"]
        if len(deferred) < len(sequences):
            raise missing(sequences)
        return [self._give(message, delete=delete) for message in deferred]

    def _give(self, message: Stored, *, delete: bool) -> Stored:
        if delete:
            return self.remove(message)
        message.was_deferred = message.state == "deferred"
        message.state = "locked"
        message.token = uuid4()
        self._locks[message.token] = message
        self._lease(message)
        return message

    def _lease(self, message: Stored) -> float:
        session = self._sessions.get(self.session_of(message) or "")
        if session is not None:  # the lock is the session's
            message.locked_until = session.until
            return session.until
        message.locked_until = self._clock() + self._settings().lock_duration
        self._watch(message.locked_until, message)
        return message.locked_until

    def _unlock(self, message: Stored, *, failed: bool) -> None:
        if message.token is not None:
            self._locks.pop(message.token, None)
        message.token = message.locked_until = None
        message.deliveries += failed
        limit = self._settings().max_delivery_count
        if message.was_deferred:
            message.state = "deferred"
        else:
            message.state = "active"
            if failed and self.bury is not None and message.deliveries >= limit:
                text = f"Message could not be consumed after {limit} delivery attempts."
                self.bury(message, "MaxDeliveryCountExceeded", text)
            elif not self._expire(message):
                self._make_ready(message)

    # --- settling

    def locked(self, token: UUID) -> Stored:
        """Return the message that this token locks."""
        message = self._locks.get(token)
        if message is None or message.locked_until is None or message.locked_until <= self._clock():
            raise lock_lost()
        return message

    def complete(self, token: UUID) -> None:
        """Remove the message."""
        self.remove(self.locked(token))

    def abandon(self, token: UUID, properties: Mapping[str, Any] | None = None, *, failed: bool = True) -> None:
        """Return the message to its place. If `failed`, the delivery counts."""
        message = self.locked(token)
        message.properties.update(properties or {})
        self._unlock(message, failed=failed)

    def defer(self, token: UUID, properties: Mapping[str, Any] | None = None) -> None:
        """Set the message aside until it is requested by its sequence number."""
        message = self.locked(token)
        message.properties.update(properties or {})
        message.was_deferred = True
        self._unlock(message, failed=True)

    def dead_letter(
        self, token: UUID, reason: str | None, description: str | None, properties: Mapping[str, Any] | None = None
    ) -> None:
        """Move the message to the dead-letter sub-queue."""
        message = self.locked(token)
        if self.bury is None:
            raise StoreError("amqp:not-allowed", 400, "A message of a dead-letter queue cannot be dead-lettered.")
        message.properties.update(properties or {})
        message.deliveries += 1
        self.bury(message, reason or "", description or "")

    def renew(self, token: UUID) -> float:
        """Lock the message for one lock duration from now; return the end of the lock."""
        return self._lease(self.locked(token))

    # --- looking

    def peek(self, first: int, count: int, session: str | None = None) -> list[Stored]:
        """Return messages of any state from this sequence number on, of one session or of all, in order."""
        numbers = sorted(number for number in self.messages if number >= first)
        found = (self.messages[number] for number in numbers)
        return list(islice((each for each in found if session in (None, self.session_of(each))), count))

    def cancel(self, sequences: Sequence[int]) -> None:
        """Remove scheduled messages. Raises StoreError if one is missing."""
        found = [self.messages.get(sequence) for sequence in sequences]
        scheduled = [message for message in found if message is not None and message.state == "scheduled"]
        if len(scheduled) < len(sequences):
            raise missing(sequences)
        for message in scheduled:
            self.remove(message)

    def count(self, state: State) -> int:
        """Return how many messages are in this state."""
        return sum(message.state == state for message in self.messages.values())
