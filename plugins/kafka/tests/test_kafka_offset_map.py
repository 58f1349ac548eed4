"""The state in offset metadata, compared with plain sets and dicts."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from redelivery.contract.message import Message
from redelivery_kafka.client import offset_map
from redelivery_kafka.client.offset_map import METADATA_LENGTH, Attempts, MetadataFull, OffsetMap, lag, stretches
from redelivery_kafka.client.partition import Fetched, Partition

OFFSETS = st.integers(0, 60)
TIMES = st.integers(0, 2**42)
ATTEMPTS = st.builds(
    lambda attempts, first, delay: Attempts(attempts, first, None if delay is None else first + delay),
    st.integers(1, 2**20),
    TIMES,
    st.none() | st.integers(0, 2**40),
)


@settings(deadline=None)  # a busy machine may be slow
@given(
    base=st.integers(0, 2**62),
    settled=st.lists(OFFSETS),
    tries=st.dictionaries(OFFSETS, ATTEMPTS, max_size=20),
)
def test_what_is_written_is_what_is_read(base: int, settled: list[int], tries: dict[int, Attempts]) -> None:
    offsets = OffsetMap(base)
    for offset in settled:
        offsets.settle(base + offset)
    for at, each in tries.items():
        if not offsets.is_settled(base + at):
            offsets.put(base + at, each)
    again = OffsetMap.read(offsets.base, offsets.metadata())
    assert again.base == offsets.base
    for at in range(62):
        if not offsets.is_settled(base + at):
            assert again.attempts(base + at) == offsets.attempts(base + at) == tries.get(at)
    assert [again.is_settled(base + at) for at in range(62)] == [offsets.is_settled(base + at) for at in range(62)]
    assert again.metadata() == offsets.metadata()


@settings(deadline=None)  # a busy machine may be slow
@given(st.lists(st.tuples(OFFSETS, st.integers(1, 8))), st.integers(0, 70))
def test_settling_is_as_with_a_set(runs: list[tuple[int, int]], end: int) -> None:
    offsets, done = OffsetMap(0), set[int]()
    for start, length in runs:
        new = set(range(start, start + length))
        assert offsets.settle(start, start + length) == len(new - done)
        done |= new
        assert offsets.base == min(set(range(100)) - done), (
            "committed past an unsettled record, or not as far as it may"
        )
        assert [at for at in range(100) if offsets.is_settled(at)] == sorted(done)
    assert offsets.missing(end) == len(set(range(end)) - done)
    assert lag(offsets.base, offsets.metadata(), 0, end) == len(set(range(end)) - done)


@settings(deadline=None)  # a busy machine may be slow
@given(st.text(max_size=200))
def test_metadata_of_others_says_nothing_and_damaged_one_is_an_error(text: str) -> None:
    for metadata in (text, "r1:" + text, "z1:" + text):
        try:
            offsets = OffsetMap.read(7, metadata)
        except ValueError:
            assert metadata[:3] in {"r1:", "z1:"}
        else:
            assert offsets.base >= 7


@pytest.mark.parametrize("metadata", ['r1:"', "z1:abcd", "r1:~~", "r1:" + "0" * 5])
def test_damaged_metadata_is_told(metadata: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        OffsetMap.read(0, metadata)


class MapMachine(RuleBasedStateMachine):
    """Records that begin together, are leased again, released, delayed and settled, and what is read back."""

    SOME = st.sets(st.integers(100, 130), max_size=14)

    def __init__(self) -> None:
        super().__init__()
        self.offsets = OffsetMap(100)
        self.known: dict[int, Attempts] = {}
        self.settled: set[int] = set()
        self.now = 1_700_000_000_000

    @rule(some=SOME)
    def begin(self, some: set[int]) -> None:
        self.now += 7
        chosen = sorted(some - self.settled)
        for offset, each in zip(chosen, self.offsets.begin(chosen, self.now), strict=True):
            before = self.known.get(offset, Attempts(0, self.now))
            self.known[offset] = Attempts(before.number + 1, before.first_ms)
            assert each == self.known[offset]

    @rule(some=SOME)
    def settle(self, some: set[int]) -> None:
        for start, end in stretches(sorted(some)):
            self.offsets.settle(start, end)
        self.settled |= some
        self.known = {offset: each for offset, each in self.known.items() if offset not in self.settled}

    @rule(some=SOME)
    def release(self, some: set[int]) -> None:
        for offset in some & self.known.keys():
            tries = self.known.pop(offset)
            if tries.number > 1:
                self.known[offset] = tries._replace(number=tries.number - 1)
            self.offsets.put(offset, self.known.get(offset))

    @rule(some=SOME)
    def delay(self, some: set[int]) -> None:
        for offset in some & self.known.keys():
            self.known[offset] = self.known[offset]._replace(due_ms=self.now + offset)
            self.offsets.put(offset, self.known[offset])

    @rule()
    def copy(self) -> None:
        self.offsets = self.offsets.copy()

    @rule()
    def read(self) -> None:
        self.offsets = OffsetMap.read(self.offsets.base, self.offsets.metadata())

    @invariant()
    def alike(self) -> None:
        for offset in range(100, 132):
            assert self.offsets.is_settled(offset) == (offset in self.settled)
            if offset not in self.settled:
                assert self.offsets.attempts(offset) == self.known.get(offset)
        assert self.offsets.end > max([99, *self.settled, *self.known])


TestMap = MapMachine.TestCase


def test_what_was_committed_before_records_began_together_is_read() -> None:
    """Texts of the first version, which wrote a run for each record: an upgrade while messages are in hand."""
    first = 1_700_000_000_000
    offsets = OffsetMap.read(7, "r1:1_6MetN!_71qK7q4+jDOh@=4o1_8wn")
    assert [offsets.attempts(at) for at in (7, 9, 10, 11, 12)] == [
        Attempts(1, first),
        Attempts(3, first + 1_000),
        Attempts(2, first + 1_000, first + 22_000),
        None,
        Attempts(1, first + 5),
    ]
    assert [at for at in range(7, 13) if offsets.is_settled(at)] == [8]
    assert offsets.begin([7, 11, 12], first + 9) == [Attempts(2, first), Attempts(1, first + 9), Attempts(2, first + 5)]
    deflated = (
        "z1:c-lqEAr6Bu06@_|X?vBPYbTjNB9RjlxFL~9+*(RYB@&6mEFsI7`M4*Z%I?qC_j8k47@I_)awBzSnk1wWrqH=L=98KEhcpw~nNVI~iG(f^s"
        "z_J^p$~*Q5VnahOoYco*ge5|LgNX?NJt~09SP+X7DwnDp>l-P5_(IhEn#~ThLb;JaX*j"
    )
    offsets = OffsetMap.read(0, deflated)
    for at in range(120):
        if at % 2:
            assert offsets.is_settled(at) == (at % 3 != 0)
        else:
            due_ms = first + 60_000 if at % 4 else None
            assert offsets.attempts(at) == Attempts(1 + at % 3, first + at * 10, due_ms)


def test_any_number_of_records_that_begin_together_is_a_few_characters() -> None:
    offsets = OffsetMap(10**9)
    offsets.begin(range(10**9, 10**9 + 100_000), 1_700_000_000_000)
    assert len(offsets.metadata()) < 30
    again = OffsetMap.read(10**9, offsets.metadata())
    assert again.attempts(10**9 + 99_999) == Attempts(1, 1_700_000_000_000)
    assert again.attempts(10**9 + 100_000) is None


#: How records end: each is one of these.
ENDS = st.sampled_from(
    [
        ("settled", "in hand"),
        ("settled", "in hand", "released"),
        ("delayed",),
        ("delayed", "settled"),
        ("delayed", "in hand", "settled", "released"),
    ]
)


@settings(deadline=None, max_examples=60)  # a busy machine may be slow
@given(
    ends=ENDS,
    number=st.sampled_from([1, 3, 90]),
    spread=st.sampled_from([1, 10_000, 600_000]),
    longest=st.sampled_from([1_000, 60_000, 3_600_000, 10**9]),
    gaps=st.sampled_from([[1], [1, 2, 3, 90]]),
    seed=st.integers(0, 99),
)
def test_what_may_be_given_fits_however_it_ends(
    ends: tuple[str, ...], number: int, spread: int, longest: int, gaps: list[int], seed: int
) -> None:
    """As many as there is room for, each with a different end, with other records settled between them."""
    some = random.Random(seed)  # noqa: S311 - the same each time
    offsets = OffsetMap(0)
    leased = _lease_all(offsets, some, number, spread, gaps)
    for each, tries in leased.items():
        how = some.choice(ends)
        if how == "settled":
            offsets.settle(each)
        elif how == "delayed":
            offsets.put(each, tries._replace(due_ms=tries.first_ms + some.randrange(longest)))
        elif how == "released":
            offsets.put(each, tries._replace(number=tries.number - 1) if tries.number > 1 else None)
    text = offsets.metadata()
    assert len(text) <= METADATA_LENGTH
    again = OffsetMap.read(offsets.base, text)
    for each in leased:
        assert again.is_settled(each) == offsets.is_settled(each)
        if not offsets.is_settled(each):
            _about_the_same(again.attempts(each), offsets.attempts(each))


def _lease_all(
    offsets: OffsetMap, some: random.Random, number: int, spread: int, gaps: list[int]
) -> dict[int, Attempts]:
    """Lease as many as there is room for, in several calls; records between them are settled."""
    now, offset = 1_700_000_000_000, 0
    leased: dict[int, Attempts] = {}
    while (room := offsets.room(len(leased))) and len(leased) < 5_000:
        count = min(room, some.choice([1, 40, 500]))
        *taken, offset = accumulate(some.choices(gaps, k=count), initial=offset)
        for start, end in stretches(sorted(set(range(taken[0], offset)) - set(taken))):
            offsets.settle(start, end)
        leased |= zip(taken, offsets.begin(taken, now + some.randrange(spread)), strict=True)
        if number > 1:
            leased |= {each: Attempts(some.randint(1, number), now + some.randrange(spread)) for each in taken}
            for each in taken:
                offsets.put(each, leased[each])
    return leased


def _about_the_same(found: Attempts | None, written: Attempts | None) -> None:
    if written is None or found is None:
        assert found is written
        return
    assert found.number == written.number
    assert 0 <= written.first_ms - found.first_ms < 1 << 17
    assert (found.due_ms is None) == (written.due_ms is None)
    if written.due_ms is not None and found.due_ms is not None:
        assert 0 <= found.due_ms - written.due_ms <= (written.due_ms - found.first_ms) / 4


@settings(deadline=None, max_examples=6)  # a busy machine may be slow
@given(seed=st.integers(0, 99), longest=st.sampled_from([1_000, 600_000, 10**8]), most=st.integers(1, 50))
def test_however_many_are_delayed_what_is_given_can_be_remembered(seed: int, longest: int, most: int) -> None:
    """When no more fits, no more is given until something is due; that can be settled, and then the rest comes."""
    with pytest.MonkeyPatch.context() as small:
        small.setattr(offset_map, "METADATA_LENGTH", 603)
        _delay_all(random.Random(seed), 160, longest, most)  # noqa: S311 - no secret


def _delay_all(some: random.Random, count: int, longest: int, most: int) -> None:
    now_ms = 1_700_000_000_000
    partition = Partition(0, None, count)
    for offset in range(count):
        message = Message(value=b"v", key=some.choice([None, b"a", b"b%d" % offset]))
        assert partition.fetched(offset, Fetched(message), now=0.0, now_ms=now_ms)
    now, left = 0.0, count
    while left:
        chosen = partition.take(most, now)
        if not chosen:
            assert partition.next_due is not None, "nothing is given, and nothing ever will be"
            now = partition.next_due
            continue
        partition.offsets.begin(chosen, now_ms + round(now * 1000))
        partition.offsets.metadata()
        for offset in chosen:
            partition.lease(offset)
        for offset in chosen:
            tries = partition.offsets.attempts(offset)
            assert tries is not None
            if tries.number == 1:
                delay = some.randrange(1, longest)
                partition.offsets.put(offset, tries._replace(due_ms=now_ms + round(now * 1000) + delay))
                partition.delayed(offset, now + delay / 1000)
            else:
                partition.offsets.settle(offset)
                partition.settled(offset)
                left -= 1
        partition.offsets.metadata()
    assert (partition.offsets.base, partition.offsets.metadata()) == (count, "")


def test_what_does_not_fit_is_told() -> None:
    offsets = OffsetMap(0)
    some = random.Random(5)  # noqa: S311 - the same each time
    for at in range(2_000):
        offsets.put(at * 7919, Attempts(some.randrange(1, 2**40), some.randrange(2**40), None))
    with pytest.raises(MetadataFull):
        offsets.metadata()


def test_nothing_committed_is_the_whole_log() -> None:
    assert lag(None, None, 3, 10) == 7
    assert lag(-1001, "", 3, 10) == 7
    assert lag(5, "", 7, 10) == 3, "what has run out of the log does not wait"
    assert lag(10, "", 0, 10) == 0
    offsets = OffsetMap(0)
    offsets.begin(range(3), 1_700_000_000_000)
    assert offsets.settle(2, 2) == 0, "nothing"
    assert lag(0, offsets.metadata(), 0, 5) == lag(0, offsets.metadata(), -1, 5) == 5, "leased is not settled"


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
        self.partition = Partition(0, OffsetMap.read(*self.committed), self.end)
        self.leases: dict[int, object] = {}
        self.fetched = self.partition.offsets.base

    def _commit(self, offsets: OffsetMap) -> None:
        self.committed = (offsets.base, offsets.metadata())
        self.partition.offsets = offsets

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
            assert self.partition.fetched(offset, Fetched(message), now=self.now, now_ms=self.ms)
            self.fetched = offset + 1

    @rule(most=st.integers(1, 4))
    def give(self, most: int) -> None:
        chosen = self.partition.take(most, self.now)
        wanted = self._may_be_given(most)
        assert chosen == wanted, "not what may be given"
        offsets = self.partition.offsets.copy()
        offsets.begin(chosen, self.ms)
        self._commit(offsets)
        for offset in chosen:
            record = self.records[offset]
            self.leases[offset] = self.partition.lease(offset)
            record.state, record.attempts = "hand", record.attempts + 1
            record.first_ms = record.first_ms if record.attempts > 1 else self.ms
            tries = offsets.attempts(offset)
            assert tries is not None
            assert tries[:2] == (record.attempts, record.first_ms)

    @rule(most=st.integers(1, 4))
    def give_but_the_commit_fails(self, most: int) -> None:
        self.partition.release(self.partition.take(most, self.now))

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
        record, offsets = self.records[offset], self.partition.offsets.copy()
        tries = offsets.attempts(offset)
        assert tries is not None
        if how == "accept":
            offsets.settle(offset)
            self._commit(offsets)
            self.partition.settled(offset)
            record.state = "done"
        elif how == "delay":
            offsets.put(offset, tries._replace(due_ms=self.ms + 5_000))
            self._commit(offsets)
            self.partition.delayed(offset, self.now + 5)
            record.state, record.due = "waiting", self.now + 5
        else:
            if how == "back":
                record.attempts -= 1
                offsets.put(offset, tries._replace(number=record.attempts) if record.attempts else None)
            self._commit(offsets)
            self.partition.release([offset])
            record.state = "ready"

    @rule(seconds=st.sampled_from([1, 3, 6]))
    def wait(self, seconds: int) -> None:
        self.now += seconds

    @rule()
    def die(self) -> None:
        """Leased records are given again, to another owner, and the attempt counts."""
        for record in self.records.values():
            record.state = "ready" if record.state == "hand" else record.state
        self._assign()

    @invariant()
    def nothing_unsettled_is_committed_past(self) -> None:
        offsets = OffsetMap.read(*self.committed)
        assert all(
            offsets.is_settled(at) == (each.state == "done") for at, each in self.records.items() if at < self.end
        )


TestPartition = PartitionMachine.TestCase
