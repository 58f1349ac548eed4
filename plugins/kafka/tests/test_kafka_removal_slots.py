"""What is removed of a partition, kept in several slots, compared with a plain set."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redelivery_kafka.client import offset_map, removal_slots
from redelivery_kafka.client.offset_map import METADATA_LENGTH, MetadataFull
from redelivery_kafka.client.removal_slots import EMPTY, SLOTS, RemovalSlots, Stored, slots_of

#: By default a broker keeps so many characters beside an offset.
BROKER_LENGTH = 4_096


class Groups:
    """What the groups hold, as a broker keeps it."""

    def __init__(self) -> None:
        self.held: dict[int, Stored] = {}

    def read(self, slots: RemovalSlots | None = None) -> RemovalSlots:
        slots = RemovalSlots() if slots is None else slots
        root = self.held.get(0, EMPTY)
        slots.take({0: root, **{slot: self.held.get(slot, EMPTY) for slot in slots_of(root.others)}})
        return slots

    def write(self, slots: RemovalSlots, *, steps: int = 99, day: str = "20000") -> None:
        for step in slots.steps(day)[:steps]:
            assert all(len(each.metadata) <= BROKER_LENGTH for each in step.values())
            self.held |= step
            slots.written(step)


def settled(slots: RemovalSlots, end: int) -> set[int]:
    return {at for at in range(end) if slots.removed.is_settled(at)}


@settings(deadline=None, max_examples=60)
@given(
    rounds=st.lists(
        st.tuples(st.integers(0, 5_000), st.integers(1, 900), st.integers(1, 4), st.integers(0, 3)), max_size=12
    ),
    seed=st.randoms(use_true_random=False),
)
def test_removals_are_as_in_a_set_wherever_a_writer_was_killed(
    rounds: list[tuple[int, int, int, int]], seed: random.Random
) -> None:
    """Whatever was confirmed stays, and nothing that nobody removed is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(offset_map, "METADATA_LENGTH", 60)
        groups, sure, asked = Groups(), set[int](), set[int]()
        writer = RemovalSlots()
        for low, width, every, steps in rounds:
            writer = groups.read(writer if seed.random() < 0.5 else None)
            chosen = {at for at in range(low, low + width) if at % every == 0 or seed.random() < 0.1}
            before = settled(writer, 6_000)
            try:
                assert sum(writer.add(at, at + 1) for at in chosen) == len(chosen - before)
                asked |= chosen
                groups.write(writer, steps=99 if steps else seed.randrange(3))
            except MetadataFull:
                writer = RemovalSlots()
            else:
                sure |= chosen if steps else set()
            found = settled(groups.read(), 6_000)
            assert sure <= found <= asked


@pytest.mark.parametrize(("total", "gone"), [(100_000, 30_000), (1_000_000, 5_000)])
def test_many_scattered_letters_of_a_partition_are_remembered(total: int, gone: int) -> None:
    chosen = sorted(random.Random(5).sample(range(total), gone))  # noqa: S311 - the same each time
    groups, writer = Groups(), RemovalSlots()
    for at in range(0, gone, 500):
        writer = groups.read(writer)
        assert sum(writer.add(each, each + 1) for each in chosen[at : at + 500]) == 500
        groups.write(writer)
    again = groups.read().removed
    assert again.missing(total) == total - gone
    assert all(map(again.is_settled, chosen))
    assert len(groups.held) < SLOTS / 4
    for at in set(range(total)) - set(chosen):
        writer.add(at, at + 1)
    groups.write(writer)
    assert groups.read().others == [], "slots of removed regions are still named"
    assert groups.read().removed.base == total


def test_only_the_slot_of_a_removal_is_written_again() -> None:
    groups, writer = Groups(), RemovalSlots()
    for at in random.Random(3).sample(range(1, 1_000_000), 30_000):  # noqa: S311 - the same each time
        writer.add(at, at + 1)
    groups.write(writer)
    assert len(groups.held) > 5
    writer = groups.read()
    assert writer.steps("1") == []
    free = next(at for at in range(900_000, 10**6) if not writer.removed.is_settled(at))
    writer.add(free, free + 1)
    (step,) = writer.steps("1")
    assert step.keys() == writer.slots_for([free])


def test_a_writer_that_was_overwritten_writes_its_removals_again() -> None:
    """Two read the same, and the later commit wins: the first one notices when it reads again."""
    groups = Groups()
    first, second = groups.read(), groups.read()
    first.add(5, 6)
    second.add(9, 10)
    groups.write(first)
    groups.write(second)
    assert settled(groups.read(), 20) == {9}
    groups.write(groups.read(first))
    assert settled(groups.read(), 20) == {5, 9}
    assert groups.read(second).steps("1") == groups.read(first).steps("1") == []


def test_a_partition_that_is_full_says_so_before_anything_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offset_map, "METADATA_LENGTH", 20)
    monkeypatch.setattr(removal_slots, "SLOTS", 4)
    writer = RemovalSlots()
    for at in range(1, 1_000, 3):
        writer.add(at, at + 1)
    with pytest.raises(MetadataFull):
        writer.steps("1")


def test_what_is_stored_fits_into_what_a_broker_keeps() -> None:
    """The longest text, the day, and the bits of all slots or the start of a region."""
    assert METADATA_LENGTH + len(" 20000 ") + SLOTS // 4 <= BROKER_LENGTH


@pytest.mark.parametrize("metadata", ["", "hello", "hello there you", "hello 1 zz"])
def test_metadata_of_another_application_is_ignored(metadata: str) -> None:
    slots = RemovalSlots()
    slots.take({0: Stored(7, metadata)})
    assert (slots.removed.base, slots.others) == (7, [])


def test_a_day_is_renewed_and_nothing_else() -> None:
    for stored in (Stored(3, "r1:abc 1"), Stored(3, "r1:abc 1 ff"), Stored(3, " 1"), Stored(3, "")):
        renewed = stored.on("22")
        assert (renewed.day, renewed.others, renewed.offset) == ("22", stored.others, 3)
        assert renewed.metadata.split(" ")[0] == stored.metadata.split(" ")[0]
