"""The stand-in's queues against a model, on an injected clock: every message is in exactly one state."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from servicebus_standin.box import Settings, Stored, StoreError
from servicebus_standin.store import DESCRIPTION, REASON, Store

LOCK, LIMIT, WINDOW = 10.0, 3, 40.0
TTL, BYTES = "TTLExpiredException", 10


@dataclass(frozen=True)
class Content:
    """A content, as far as the store reads it."""

    name: int
    ttl: float | None
    size: int = BYTES


@dataclass
class Expected:
    """Where the model has a message."""

    state: str
    enqueued: float
    ttl: float | None
    message_id: str
    due: float | None = None
    until: float = 0.0
    deliveries: int = 0
    deferred: bool = False
    reason: str | None = None
    died: float = 0.0
    token: UUID | None = None


class Machine(RuleBasedStateMachine):
    """A queue with a limit of deliveries, duplicate detection and dead-lettering on expiration, by chance."""

    now: float = 1000.0

    @initialize(keeps=st.booleans(), forwards=st.booleans())
    def begin(self, *, keeps: bool, forwards: bool) -> None:
        self.keeps, self.forwards = keeps, forwards
        self.store = Store(lambda: self.now)
        self.store.create("letters")
        self.queue = self.store.create(
            "q",
            Settings(
                lock_duration=LOCK,
                max_delivery_count=LIMIT,
                dead_lettering_on_message_expiration=keeps,
                requires_duplicate_detection=True,
                duplicate_detection_history_time_window=WINDOW,
                forward_dead_lettered_messages_to="letters" if forwards else None,
            ),
        )
        self.dead = self.store.queue("letters").main if forwards else self.queue.dead
        self.expected: dict[int, Expected] = {}
        self.seen: dict[str, float] = {}
        self.lost: list[UUID] = []

    # --- what is done to it

    @rule(
        id_=st.sampled_from("abcdefghijklmnop"),
        ttl=st.one_of(st.none(), st.sampled_from([5.0, 15.0, 60.0])),
        delay=st.one_of(st.none(), st.sampled_from([0.0, 8.0, 30.0])),
    )
    def send(self, id_: str, ttl: float | None, delay: float | None) -> None:
        name = len(self.expected) + 1
        due = None if delay is None else self.now + delay
        number = self.queue.enqueue(Content(name, ttl), id_, due)
        known = self.now - self.seen.get(id_, float("-inf")) < WINDOW
        assert (number is None) == known
        if known:
            self.expected[name] = Expected("gone", self.now, ttl, id_)
        else:
            self.seen[id_] = self.now
            waits = due is not None and due > self.now
            self.expected[name] = Expected("scheduled" if waits else "active", self.now, ttl, id_, due=due)

    @rule(count=st.integers(1, 4), delete=st.booleans())
    def take(self, count: int, *, delete: bool) -> None:
        taken = self.queue.main.take(count, delete=delete)
        assert [message.content.name for message in taken] == self.names("active")[:count]
        for message in taken:
            self.given(message, delete=delete)

    def given(self, message: Stored, *, delete: bool) -> None:
        expected = self.expected[message.content.name]
        assert message.deliveries == expected.deliveries
        expected.deferred = expected.state == "deferred"
        expected.state = "gone" if delete else "locked"
        expected.until, expected.token = self.now + LOCK, message.token

    @precondition(lambda self: self.names("deferred"))
    @rule(data=st.data(), delete=st.booleans())
    def take_deferred(self, data: st.DataObject, *, delete: bool) -> None:
        name = data.draw(st.sampled_from(self.names("deferred")))
        (message,) = self.queue.main.take_deferred([self.number(name)], delete=delete)
        assert message.content.name == name
        self.given(message, delete=delete)

    @precondition(lambda self: self.names("locked"))
    @rule(data=st.data(), how=st.sampled_from(["complete", "abandon", "release", "defer", "dead_letter", "renew"]))
    def settle(self, data: st.DataObject, how: str) -> None:
        expected = self.expected[data.draw(st.sampled_from(self.names("locked")))]
        token = expected.token
        assert token is not None
        if how == "renew":
            expected.until = self.now + LOCK
            assert self.queue.main.renew(token) == expected.until
            return
        self.lost.append(token)
        if how == "complete":
            self.queue.main.complete(token)
            expected.state = "gone"
        elif how == "dead_letter":
            self.queue.main.dead_letter(token, "why", "because", {"more": 1})
            self.bury(expected, "why")
            expected.deliveries += 1
        elif how == "defer":
            self.queue.main.defer(token)
            expected.state, expected.deferred = "deferred", True
            expected.deliveries += 1
        else:
            self.queue.main.abandon(token, failed=how == "abandon")
            self.unlocked(expected, failed=how == "abandon")

    @precondition(lambda self: self.lost)
    @rule(data=st.data(), how=st.sampled_from(["complete", "abandon", "defer", "dead_letter", "renew"]))
    def settle_what_is_lost(self, data: st.DataObject, how: str) -> None:
        token = data.draw(st.sampled_from(self.lost))
        arguments: Collection[Any] = ("r", "d") if how == "dead_letter" else ()
        with pytest.raises(StoreError) as raised:
            getattr(self.queue.main, how)(token, *arguments)
        assert raised.value.condition == "com.microsoft:message-lock-lost"

    @precondition(lambda self: self.names("scheduled"))
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self.names("scheduled")))
        self.queue.main.cancel([self.number(name)])
        self.expected[name].state = "gone"

    @rule(seconds=st.sampled_from([0.5, 3.0, 9.0, 12.0, 50.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        due = self.store.advance()
        assert due is None or due > self.now
        for expected in self.expected.values():
            if expected.state == "locked" and expected.until <= self.now:
                assert expected.token is not None
                self.lost.append(expected.token)
                self.unlocked(expected, failed=True)
        scheduled = [(self.expected[name].due or 0.0, at, name) for at, name in enumerate(self.names("scheduled"))]
        for due_at, _, name in sorted(scheduled):
            if due_at <= self.now:  # it comes now, behind later messages
                expected = self.expected[name] = self.expected.pop(name)
                expected.state, expected.enqueued = "active", due_at
        for expected in self.expected.values():
            self.expire(expected)

    # --- what the model makes of it

    def unlocked(self, expected: Expected, *, failed: bool) -> None:
        expected.token = None
        expected.deliveries += failed
        expected.state = "deferred" if expected.deferred else "active"
        if failed and expected.state == "active" and expected.deliveries >= LIMIT:
            self.bury(expected, "MaxDeliveryCountExceeded")
        self.expire(expected)

    def bury(self, expected: Expected, reason: str) -> None:
        expected.state, expected.reason, expected.died = "dead", reason, self.now

    def expire(self, expected: Expected) -> None:
        ttl = float("inf") if expected.ttl is None else expected.ttl
        if expected.state == "active" and expected.enqueued + ttl <= self.now:
            if self.keeps:
                self.bury(expected, TTL)
            else:
                expected.state = "gone"
        # In a dead-letter sub-queue nothing expires; where it is forwarded to, its time to live starts again.
        if expected.state == "dead" and self.forwards and expected.died + ttl <= self.now:
            expected.state = "gone"

    def names(self, state: str) -> list[int]:
        return [name for name, expected in self.expected.items() if expected.state == state]

    def number(self, name: int) -> int:
        return next(number for number, each in self.queue.main.messages.items() if each.content.name == name)

    # --- what must hold

    @invariant()
    def each_message_is_where_the_model_has_it(self) -> None:
        if not hasattr(self, "store"):
            return
        found = {each.content.name: each for each in self.queue.main.messages.values()}
        assert {name: each.state for name, each in found.items()} == {
            name: each.state for name, each in self.expected.items() if each.state not in ("dead", "gone")
        }
        assert {name: each.deliveries for name, each in found.items()} == {
            name: self.expected[name].deliveries for name in found
        }
        letters = [each for box in self.boxes() for each in box.messages.values()]
        assert {each.content.name: each.properties[REASON] for each in letters} == {
            name: each.reason for name, each in self.expected.items() if each.state == "dead"
        }
        assert len(letters) == len(self.names("dead"))
        assert all(DESCRIPTION in each.properties and each.state == "active" for each in letters)
        assert self.queue.main.bytes == BYTES * len(found)

    def boxes(self) -> list[Any]:
        return [self.queue.dead] if self.dead is self.queue.dead else [self.queue.dead, self.dead]

    @invariant()
    def numbers_grow_and_keep_the_order_of_coming(self) -> None:
        if hasattr(self, "store"):
            names = [each.content.name for each in self.queue.main.peek(0, 1000)]
            assert names == [name for name in self.expected if name in names]
            assert all(number == each.sequence for number, each in self.queue.main.messages.items())


TestStore = Machine.TestCase
TestStore.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)


def test_a_chain_of_forwarding_ends() -> None:
    store = Store(lambda: 0.0)
    store.create("a", Settings(forward_to="b"))
    store.create("b", Settings(forward_to="a"))
    store.queue("a").enqueue(Content(1, None), "x")
    assert sum(len(box.messages) for box in store.boxes()) == 1


@pytest.mark.parametrize(
    "act",
    [
        lambda store: store.queue("nowhere"),
        lambda store: store.find("nowhere/$DeadLetterQueue"),
        lambda store: store.create("Q"),
        lambda store: store.queue("q").main.complete(uuid4()),
        lambda store: store.queue("q").main.take_deferred([1]),
    ],
)
def test_what_is_not_there_is_an_error(act: Callable[[Store], object]) -> None:
    store = Store(lambda: 0.0)
    store.create("q")
    with pytest.raises(StoreError):
        act(store)


def test_a_letter_is_not_dead_lettered_again() -> None:
    store = Store(lambda: 0.0)
    queue = store.create("q")
    queue.enqueue(Content(1, None), "x")
    (message,) = queue.main.take(1)
    assert message.token is not None
    queue.main.dead_letter(message.token, "why", None)
    (letter,) = queue.dead.take(1)
    assert letter.token is not None
    with pytest.raises(StoreError, match="dead-letter"):
        queue.dead.dead_letter(letter.token, "again", None)
    queue.dead.complete(letter.token)
    assert queue.dead.messages == {}
