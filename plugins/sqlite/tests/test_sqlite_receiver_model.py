"""The receiver of `sqlite:` against a model, on an injected clock."""

from __future__ import annotations

import sqlite3
import tempfile
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from unittest import mock

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from redelivery.contract.broker import Accept, Outcome, Received, Release, Retry, Terminate
from redelivery.contract.message import Batch, Message
from redelivery.errors import LeaseLost
from redelivery_sqlite.address import Address
from redelivery_sqlite.admin import SqliteAdmin
from redelivery_sqlite.client.store import Store
from redelivery_sqlite.dead_letters import SqliteDeadLetters
from redelivery_sqlite.options import Settings
from redelivery_sqlite.receiver import SqliteReceiver
from redelivery_sqlite.sender import SqliteSender

LEASE = 10.0
TTL = 25.0
LIMIT = 4
FOREVER = float("inf")


class Clock:
    """Both clocks; wall time may be moved apart."""

    def __init__(self) -> None:
        self.time = 1000.0
        self.wall = 1_700_000_000.0

    def advance(self, seconds: float) -> None:
        self.time += seconds
        self.wall += seconds

    def monotonic(self) -> float:
        return self.time

    def wall_ms(self) -> int:
        return int(self.wall * 1000)


@dataclass
class Work:
    """What the model knows of a message."""

    id: str
    expires: float
    visible: float = 0.0
    attempts: int = 0
    first: float | None = None
    held: Received | None = None


class Place:
    """A file, and roles on it that share one clock."""

    def __init__(self, folder: str, **options: str) -> None:
        self.clock = Clock()
        self.address = Address(Path(folder) / "q.db", "work")
        self.settings = Settings.parse({"reserve": "0", **options})
        self._patches = [
            mock.patch(f"redelivery_sqlite.{module}.now_ms", self.clock.wall_ms)
            for module in ("sender", "dead_letters")
        ]
        for each in self._patches:
            each.start()

    def store(self) -> Store:
        return Store(self.address.path, self.settings)

    def receiver(self) -> SqliteReceiver:
        return SqliteReceiver(
            self.store(), self.address, timedelta(seconds=LEASE), message_bytes=10**6, clock=self.clock
        )

    def send(self, *messages: Message) -> int:
        """Sends; returns how many the queue had already."""
        sender = SqliteSender(self.store(), self.address, message_bytes=10**6)
        with mock.patch("redelivery_sqlite.sender.time.monotonic", return_value=0.0), sender:
            sender.send(Batch.of(messages), deadline=10.0)
            (settled,) = sender.collect(0)
        assert not settled.failures
        return settled.duplicates

    def close(self) -> None:
        for each in self._patches:
            each.stop()


class Queue(RuleBasedStateMachine):
    """Each rule takes a few milliseconds, so that no two times are ever equal."""

    @initialize()
    def begin(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.place = Place(self.folder.name, message_ttl=str(int(TTL)), max_deliveries=str(LIMIT))
        self.clock = self.place.clock
        self.receivers = [self.place.receiver(), self.place.receiver()]
        self.letters = SqliteDeadLetters(self.place.store(), self.place.address.dead_letters)
        self.admin = SqliteAdmin(self.place.store(), self.place.address)
        self.queue: list[Work] = []
        self.dead: Counter[tuple[str, str, int]] = Counter()
        self.taken: set[str] = set()
        self.seen: list[Received] = []
        self.place.send(Message(value=b"", id="first"))
        self.queue.append(Work("first", self.clock.time + TTL))
        self.taken.add("first")

    def teardown(self) -> None:
        if hasattr(self, "place"):
            for role in (*self.receivers, self.letters, self.admin):
                role.close()
            self.place.close()
            self.folder.cleanup()

    # --- rules ---

    @rule(seconds=st.sampled_from([0, 1, 5, 11, 30]))
    def time_passes(self, seconds: int) -> None:
        self.clock.advance(seconds)

    @rule(ids=st.lists(st.integers(0, 30).map(str), min_size=1, max_size=6))
    def send(self, ids: list[str]) -> None:
        self._tick()
        repeats = 0
        for each in ids:
            if each in self.taken:
                repeats += 1
            else:
                self.taken.add(each)
                self.queue.append(Work(each, self.clock.time + TTL))
        assert self.place.send(*(Message(value=each.encode(), id=each) for each in ids)) == repeats

    @rule(which=st.integers(0, 1), most=st.integers(1, 5))
    def receive(self, which: int, most: int) -> None:
        self._tick()
        now = self.clock.time
        for work in [work for work in self.queue if work.expires <= now and not self._is_leased(work)]:
            self._dies(work, "expired")
        expected = []
        for work in list(self.queue):
            if len(expected) == most:
                break
            if self._is_leased(work) or work.visible > now:
                continue
            if work.attempts >= LIMIT:
                self._dies(work, "delivery-limit")
                continue
            work.attempts += 1
            work.first = now if work.first is None else work.first
            expected.append(work)
        received = self.receivers[which].receive(most, wait=0)
        assert [(r.message.id, r.attempt) for r in received] == [(work.id, work.attempts) for work in expected]
        for work, each in zip(expected, received, strict=True):
            assert each.expires == now + LEASE
            assert each.first_ms is not None
            assert work.first is not None
            assert abs(each.first_ms - (work.first - 1000.0 + 1_700_000_000.0) * 1000) < 2
            work.held = each
            work.visible = FOREVER
        self.seen += received

    @rule(which=st.integers(0, 1), data=st.data())
    def settle(self, which: int, data: st.DataObject) -> None:
        self._tick()
        if not self.seen:
            return
        chosen = data.draw(st.lists(st.sampled_from(self.seen[-12:]), max_size=6))
        outcomes: list[tuple[Received, Outcome]] = []
        expected: list[bool] = []
        for received in chosen:
            letter = Message(value=b"letter", id=received.message.id)
            outcome = data.draw(
                st.sampled_from([Accept(), Release(), Terminate(letter, "why"), Retry(), Retry(timedelta(seconds=7))])
            )
            outcomes.append((received, outcome))
            work = self._leased_as(received)
            expected.append(work is not None)
            if work is not None:
                self._ends(work, outcome)
        answers = self.receivers[which].settle(outcomes)
        assert [answer is None for answer in answers] == expected
        assert all(answer is None or isinstance(answer, LeaseLost) for answer in answers)

    @rule(which=st.integers(0, 1), seconds=st.sampled_from([3.0, 20.0]), data=st.data())
    def extend(self, which: int, seconds: float, data: st.DataObject) -> None:
        self._tick()
        if not self.seen:
            return
        chosen = data.draw(st.lists(st.sampled_from(self.seen[-12:]), max_size=4, unique_by=id))
        answers = self.receivers[which].extend(chosen, seconds)
        for received, answer in zip(chosen, answers, strict=True):
            work = self._leased_as(received)
            assert isinstance(answer, LeaseLost) == (work is None)
            if work is not None:
                assert isinstance(answer, Received)
                assert answer.expires == self.clock.time + seconds
                work.held = answer

    @rule(which=st.integers(0, 1))
    def restart(self, which: int) -> None:
        self.receivers[which].close()
        self.receivers[which] = self.place.receiver()

    @rule()
    def redrive(self) -> None:
        """A letter goes back to work under a second id, which is another one to the queue."""
        self._tick()
        letter = next(iter(self.letters.browse()), None)
        self._sweep()
        if letter is None:
            return
        assert letter.context is not None
        again = f"{letter.message.id}~1"
        repeated = again in self.taken
        assert self.place.send(Message(value=letter.message.value, id=again)) == repeated
        if not repeated:
            self.taken.add(again)
            self.queue.append(Work(again, self.clock.time + TTL))
        assert self.letters.remove([letter.position]) == 1
        self.dead[letter.message.id or "", letter.context.kind, letter.context.attempts or 0] -= 1

    @invariant()
    def the_file_holds_what_the_model_does(self) -> None:
        if not hasattr(self, "place"):
            return
        with closing(sqlite3.connect(self.place.address.path)) as connection:  # browsing would move what has expired
            row = connection.execute(
                "SELECT number FROM queue WHERE name = ?", (self.place.address.dead_letters.queue,)
            ).fetchone()
            found = row and connection.execute(f"SELECT message_id, kind, attempts FROM reason_{row[0]}")  # noqa: S608 - ours
            assert Counter(found or ()) == +self.dead
        assert self.admin.depth() == len(self.queue)

    # --- the model ---

    def _tick(self) -> None:
        self.clock.advance(0.005)

    def _is_leased(self, work: Work) -> bool:
        if work.held is None or work.held.expires is None:
            return False
        if work.held.expires > self.clock.time:
            return True
        work.held, work.visible = None, 0.0
        return False

    def _leased_as(self, received: Received) -> Work | None:
        return next(
            (w for w in self.queue if self._is_leased(w) and w.held is not None and w.held.lease is received.lease),
            None,
        )

    def _sweep(self) -> None:
        """Browsing moves what has expired."""
        for work in [w for w in self.queue if w.expires <= self.clock.time and not self._is_leased(w)]:
            self._dies(work, "expired")

    def _dies(self, work: Work, kind: str) -> None:
        self.queue.remove(work)
        self.dead[work.id, kind, work.attempts] += 1

    def _ends(self, work: Work, outcome: Outcome) -> None:
        work.held, work.visible = None, 0.0
        if isinstance(outcome, Accept):
            self.queue.remove(work)
        elif isinstance(outcome, Terminate):
            self._dies(work, "terminated")
        elif isinstance(outcome, Release):
            work.attempts -= 1
            work.first = work.first if work.attempts else None
        elif outcome.delay:
            work.visible = self.clock.time + outcome.delay.total_seconds()


Queue.TestCase.settings = settings(
    max_examples=60, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
)
TestQueue = Queue.TestCase


steps = st.lists(
    st.tuples(st.sampled_from(["pass", "jump", "receive"]), st.sampled_from([1, 4, 100, 5000, 10**8]), st.booleans()),
    max_size=25,
)


@settings(max_examples=100, deadline=None)
@given(steps)
def test_sqlite_however_the_clock_jumps_nothing_is_given_twice_in_one_process_nor_kept_away(taken):
    with tempfile.TemporaryDirectory() as folder:
        place = Place(folder)
        receivers = [place.receiver(), place.receiver()]
        place.send(*(Message(value=b"%d" % each) for each in range(4)))
        held: dict[bytes, Received] = {}
        for what, amount, odd in taken:
            if what == "pass":
                place.clock.advance(min(amount, 100))
            elif what == "jump":
                place.clock.wall += -amount if odd else amount
            else:
                for received in receivers[odd].receive(amount % 3 + 1, wait=0):
                    value = received.message.value or b""
                    before = held.get(value)
                    assert before is None or before.expires <= place.clock.time, "given twice"
                    held[value] = received
        # Whatever happened, a lease after a look at most, each message is there again.
        seen = set()
        for _ in range(2):
            place.clock.advance(LEASE + 0.1)
            seen |= {each.message.value for each in receivers[0].receive(10, wait=0)}
        assert len(seen) == 4
        for role in receivers:
            role.close()
        place.close()


@settings(max_examples=25, deadline=None)
@given(st.integers(-(10**6), -1) | st.integers(-12, -1), st.integers(1, 500))
def test_sqlite_a_delay_is_never_early_and_outlives_a_clock_that_goes_back(jump, delay):
    with tempfile.TemporaryDirectory() as folder:
        place = Place(folder)
        place.send(Message(value=b"v"))
        with place.receiver() as receiver:
            (received,) = receiver.receive(1, wait=0)
            place.clock.advance(LEASE - 1)
            assert receiver.settle([(received, Retry(timedelta(seconds=delay)))]) == [None]
        place.clock.wall += jump
        with place.receiver() as receiver:
            assert not receiver.receive(1, wait=0)
            place.clock.advance(delay - 0.01)
            assert not receiver.receive(1, wait=0), "early"
            place.clock.advance(0.02)
            (again,) = receiver.receive(1, wait=0)
            assert again.attempt == 2
        place.close()
