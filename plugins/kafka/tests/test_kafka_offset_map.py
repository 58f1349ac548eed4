"""What is remembered in offset metadata, against plain sets and dicts."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from redelivery.contract.message import Message
from redelivery_kafka import offsets
from redelivery_kafka.offsets import COST, ROOM, Ledger, TooMuch, Tries, waiting
from redelivery_kafka.partition import Partition

OFFSETS = st.integers(0, 60)
TIMES = st.integers(0, 2**42)
TRIES = st.builds(
    lambda attempts, first, delay: Tries(attempts, first, None if delay is None else first + delay),
    st.integers(1, 2**20),
    TIMES,
    st.none() | st.integers(0, 2**40),
)


@settings(deadline=None)  # a busy machine is no fault
@given(
    base=st.integers(0, 2**62),
    settled=st.lists(OFFSETS),
    tries=st.dictionaries(OFFSETS, TRIES, max_size=20),
)
def test_what_is_written_is_what_is_read(base: int, settled: list[int], tries: dict[int, Tries]) -> None:
    ledger = Ledger(base)
    for offset in settled:
        ledger.settle(base + offset)
    ledger.tries = {base + at: each for at, each in tries.items() if not ledger.is_done(base + at)}
    again = Ledger.read(ledger.base, ledger.metadata())
    assert again.base == ledger.base
    assert again.tries == ledger.tries
    assert [again.is_done(base + at) for at in range(62)] == [ledger.is_done(base + at) for at in range(62)]
    assert again.metadata() == ledger.metadata()


@settings(deadline=None)  # a busy machine is no fault
@given(st.lists(st.tuples(OFFSETS, st.integers(1, 8))), st.integers(0, 70))
def test_settling_is_as_with_a_set(runs: list[tuple[int, int]], end: int) -> None:
    ledger, done = Ledger(0), set[int]()
    for start, length in runs:
        new = set(range(start, start + length))
        assert ledger.settle(start, start + length) == len(new - done)
        done |= new
        assert ledger.base == min(set(range(100)) - done), "committed past an unsettled record, or not as far as it may"
        assert [at for at in range(100) if ledger.is_done(at)] == sorted(done)
    assert ledger.unsettled(end) == len(set(range(end)) - done)
    assert waiting(ledger.base, ledger.metadata(), 0, end) == len(set(range(end)) - done)


@settings(deadline=None)  # a busy machine is no fault
@given(st.text(max_size=200))
def test_metadata_of_others_says_nothing_and_damaged_one_is_an_error(text: str) -> None:
    for metadata in (text, "r1:" + text, "z1:" + text):
        try:
            ledger = Ledger.read(7, metadata)
        except ValueError:
            assert metadata[:3] in {"r1:", "z1:"}
        else:
            assert ledger.base >= 7


@pytest.mark.parametrize("metadata", ['r1:"', "z1:abcd", "r1:~~", "r1:" + "0" * 5])
def test_damaged_metadata_is_told(metadata: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        Ledger.read(0, metadata)


@settings(deadline=None)  # a busy machine is no fault
@given(st.data())
def test_what_may_be_given_fits_however_it_ends(data: st.DataObject) -> None:
    """As many as there is room for, each with an end of its own, with other records settled between them."""
    ledger, now, offset = Ledger(0), 1_700_000_000_000, 0
    count = ledger.room
    assert count * COST < ROOM
    seeds = data.draw(st.randoms(use_true_random=False))
    for _ in range(count):
        offset += seeds.choice([1, 2, 3, 90])
        first = now + seeds.randrange(60_000)
        ledger.tries[offset] = Tries(seeds.randrange(1, 100), first, first + seeds.randrange(10**9))
    for start in range(0, offset, 2):
        if start not in ledger.tries:
            ledger.settle(start)
    assert len(ledger.metadata()) <= ROOM


@settings(deadline=None, max_examples=6)  # a busy machine is no fault
@given(seed=st.integers(0, 99), longest=st.sampled_from([1_000, 600_000, 10**8]), most=st.integers(1, 50))
def test_however_many_are_delayed_what_is_given_can_be_remembered(seed: int, longest: int, most: int) -> None:
    """When no more fits, no more is given until something is due; that can be settled, and then the rest comes."""
    with pytest.MonkeyPatch.context() as small:
        small.setattr(offsets, "ROOM", 603)
        small.setattr(offsets, "_BYTES", 480)
        _delay_all(random.Random(seed), 160, longest, most)  # noqa: S311 - no secret


def _delay_all(some: random.Random, count: int, longest: int, most: int) -> None:
    now_ms = 1_700_000_000_000
    partition = Partition(0, None, count)
    for offset in range(count):
        message = Message(value=b"v", key=some.choice([None, b"a", b"b%d" % offset]))
        assert partition.fetched(offset, message, now=0.0, now_ms=now_ms)
    now, left = 0.0, count
    while left:
        chosen = partition.choose(most, now)
        if not chosen:
            assert partition.next_due is not None, "nothing is given, and nothing ever will be"
            now = partition.next_due
            continue
        partition.count(partition.ledger, chosen, now_ms + round(now * 1000))
        partition.ledger.metadata()
        for offset in chosen:
            partition.give(offset)
        for offset in chosen:
            tries = partition.ledger.tries[offset]
            if tries.attempts == 1:
                delay = some.randrange(1, longest)
                partition.ledger.tries[offset] = tries._replace(due_ms=now_ms + round(now * 1000) + delay)
                partition.delayed(offset, now + delay / 1000)
            else:
                partition.ledger.settle(offset)
                partition.settled(offset)
                left -= 1
        partition.ledger.metadata()
    assert (partition.ledger.base, partition.ledger.metadata()) == (count, "")


def test_what_does_not_fit_is_told() -> None:
    ledger = Ledger(0)
    some = random.Random(5)  # noqa: S311 - the same each time
    ledger.tries = {at * 7919: Tries(some.randrange(1, 100), some.randrange(2**40), None) for at in range(1_000)}
    with pytest.raises(TooMuch):
        ledger.metadata()


def test_nothing_committed_is_the_whole_log() -> None:
    assert waiting(None, None, 3, 10) == 7
    assert waiting(-1001, "", 3, 10) == 7
    assert waiting(5, "", 7, 10) == 3, "what has run out of the log does not wait"
    assert waiting(10, "", 0, 10) == 0


@dataclass
class Model:
    """A record as a reader of the contract would keep it."""

    key: bytes | None
    state: str = "ready"  # ready, hand, waiting, done
    attempts: int = 0
    first_ms: int | None = None
    due: float = 0.0
    given: list[float] = field(default_factory=list)


class PartitionMachine(RuleBasedStateMachine):
    """Records of one partition: fetched, given, settled in any order; and its owner dies at any time."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.records: dict[int, Model] = {}
        self.end = 0
        self.committed = (0, "")
        self.keys: dict[int, bytes | None] = {}

    @initialize()
    def begin(self) -> None:
        self._assign()

    def _assign(self) -> None:
        self.partition = Partition(0, Ledger.read(*self.committed), self.end)
        self.leases: dict[int, object] = {}
        self.fetched = self.partition.ledger.base

    def _commit(self, ledger: Ledger) -> None:
        self.committed = (ledger.base, ledger.metadata())
        self.partition.ledger = ledger

    @property
    def ms(self) -> int:
        return 1_700_000_000_000 + round(self.now * 1000)

    @rule(keys=st.lists(st.sampled_from([None, b"a", b"b"]), min_size=1, max_size=4), gap=st.integers(0, 2))
    def produce(self, keys: list[bytes | None], gap: int) -> None:
        """With a gap before them: a mark of a transaction, or what was compacted away."""
        self.end += gap
        for key in keys:
            self.records[self.end] = Model(key)
            self.end += 1

    @rule(most=st.integers(1, 5))
    def fetch(self, most: int) -> None:
        for offset in [at for at in sorted(self.records) if at >= self.fetched][:most]:
            message = Message(value=b"%d" % offset, key=self.records[offset].key)
            assert self.partition.fetched(offset, message, now=self.now, now_ms=self.ms)
            self.fetched = offset + 1

    @rule(most=st.integers(1, 4))
    def give(self, most: int) -> None:
        chosen = self.partition.choose(most, self.now)
        wanted = self._may_be_given(most)
        assert chosen == wanted, "not what may be given"
        ledger = self.partition.ledger.copy()
        self.partition.count(ledger, chosen, self.ms)
        self._commit(ledger)
        for offset in chosen:
            record = self.records[offset]
            self.leases[offset] = self.partition.give(offset)
            record.state, record.attempts = "hand", record.attempts + 1
            record.first_ms = record.first_ms if record.attempts > 1 else self.ms
            assert ledger.tries[offset][:2] == (record.attempts, record.first_ms)

    @rule(most=st.integers(1, 4))
    def give_but_the_commit_fails(self, most: int) -> None:
        self.partition.back(self.partition.choose(most, self.now))

    def _may_be_given(self, most: int) -> list[int]:
        chosen: list[int] = []
        for offset in sorted(self.records):
            record = self.records[offset]
            if offset >= self.fetched or len(chosen) == most:
                break
            if record.state == "waiting" and record.due <= self.now:
                record.state = "ready"
            held = record.key is not None and any(
                each.key == record.key and each.state == "waiting" and each.due > self.now
                for at, each in self.records.items()
                if at < offset
            )
            if record.state == "ready" and not held:
                chosen.append(offset)
        return chosen

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), how=st.sampled_from(["accept", "retry", "delay", "back"]))
    def settle(self, data: st.DataObject, how: str) -> None:
        offset = data.draw(st.sampled_from(sorted(self.leases)))
        del self.leases[offset]
        record, ledger = self.records[offset], self.partition.ledger.copy()
        tries = ledger.tries[offset]
        if how == "accept":
            ledger.settle(offset)
            self._commit(ledger)
            self.partition.settled(offset)
            record.state = "done"
        elif how == "delay":
            ledger.tries[offset] = tries._replace(due_ms=self.ms + 5_000)
            self._commit(ledger)
            self.partition.delayed(offset, self.now + 5)
            record.state, record.due = "waiting", self.now + 5
        else:
            if how == "back":
                record.attempts -= 1
                if record.attempts:
                    ledger.tries[offset] = tries._replace(attempts=record.attempts)
                else:
                    del ledger.tries[offset]
            self._commit(ledger)
            self.partition.back([offset])
            record.state = "ready"

    @rule(seconds=st.sampled_from([1, 3, 6]))
    def wait(self, seconds: int) -> None:
        self.now += seconds

    @rule()
    def die(self) -> None:
        """What was under lease is given again, to another owner, and counts."""
        for record in self.records.values():
            record.state = "ready" if record.state == "hand" else record.state
        self._assign()

    @invariant()
    def nothing_unsettled_is_committed_past(self) -> None:
        ledger = Ledger.read(*self.committed)
        assert all(ledger.is_done(at) == (each.state == "done") for at, each in self.records.items() if at < self.end)


TestPartition = PartitionMachine.TestCase
