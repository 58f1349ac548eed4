"""The search for the last number of a queue, and what its splits cover."""

import random
from types import SimpleNamespace
from typing import Any

import pytest

from redelivery.contract.letters import Wanted
from redelivery_servicebus.dead_letters import _Place


def place(numbers: set[int]) -> tuple[Any, list[int]]:
    """A queue that has these numbers, and where it has been looked."""
    looks: list[int] = []

    def peek(first: int, *_: object, count: int = 250) -> list[SimpleNamespace]:
        looks.append(first)
        return [SimpleNamespace(sequence_number=each) for each in sorted(numbers) if each >= first][:count]

    made: Any = _Place.__new__(_Place)
    made.path = "queue"
    made._peek = peek
    return made, looks


@pytest.mark.parametrize("seed", range(40))
def test_the_last_number_is_found_with_few_looks(seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311
    numbers = {chance.randint(1, 10 ** chance.randint(1, 9)) for _ in range(chance.randint(1, 200))}
    made, looks = place(numbers)
    assert made.first() == min(numbers)
    assert made.last() == max(numbers)
    assert len(looks) < 100


def test_an_empty_queue_has_no_splits() -> None:
    made, _ = place(set())
    assert made.last() == 0
    assert made.splits(made.first(), made.last(), Wanted(readers=8)) == []


@pytest.mark.parametrize(("readers", "removing", "count"), [(1, False, 2), (8, False, 10), (8, True, 1)])
def test_splits_cover_each_number_once(readers: int, removing: bool, count: int) -> None:
    made, _ = place(set())
    splits = made.splits(5, 10_004, Wanted(readers=readers, removing=removing))
    assert len(splits) == count
    covered = [number for each in splits for number in range(*_range(each))]
    assert covered == list(range(5, 10_005))


def test_of_some_wanted_letters_only_their_surroundings_are_read() -> None:
    made, looks = place(set(range(1, 100_000)))
    found = [each.sequence_number for each in made.between(10, 90_000, {5, 20, 50_000, 99_000})]
    assert found == [20, 50_000]
    assert looks == [20, 50_000]


def _range(split: str) -> tuple[int, int]:
    path, _, numbers = split.rpartition("/")
    first, _, last = numbers.partition("-")
    assert path == "queue"
    return int(first), int(last) + 1
