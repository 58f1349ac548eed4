"""Splits that threads read side by side give their results in order, and all threads end."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from itertools import cycle

import pytest

from redelivery.contract.broker import DeadLetters, Letter
from redelivery.contract.letters import LetterBatch, Wanted
from redelivery.contract.message import Message
from redelivery.deadletters.scan import scan
from redelivery.errors import Retriable


class Place(DeadLetters):
    """Ten splits of three batches. A split that is named in `broken` cannot be read to its end."""

    open = 0
    broken: frozenset[str] = frozenset()

    def __init__(self) -> None:
        self.readers: set[int] = set()

    def browse(self) -> Iterator[Letter]:
        raise AssertionError

    def splits(self, wanted: Wanted) -> Sequence[str]:
        return [f"s{at}" for at in range(10)]

    def read(self, split: str, wanted: Wanted) -> Iterator[LetterBatch]:
        for at in range(3):
            if at and split in self.broken:
                raise Retriable(f"{split} cannot be read")
            time.sleep(next(PAUSES))
            yield LetterBatch.of([Letter(position=f"{split}.{at}", message=Message(value=b"v"))])

    def remove(self, positions: Sequence[str]) -> int:
        raise AssertionError

    def purge(self) -> int:
        raise AssertionError

    def close(self) -> None:
        pass


PAUSES = cycle([0.0, 0.004, 0.001, 0.003, 0.0, 0.002, 0.005])
IN_ORDER = [f"s{split}.{at}" for split in range(10) for at in range(3)]


def reading() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "redelivery-letters"]


def positions(batch: LetterBatch) -> str:
    return batch.position.values[0]


@pytest.mark.parametrize("threads", [1, 2, 4, 30])
def test_results_come_in_the_order_of_splits_however_many_read(threads: int) -> None:
    assert list(scan(Place(), Place, Wanted(readers=threads), positions)) == IN_ORDER
    assert not reading()


@pytest.mark.parametrize("threads", [1, 4])
def test_who_stops_looking_leaves_no_thread_behind(threads: int) -> None:
    found = scan(Place(), Place, Wanted(readers=threads), positions)
    assert next(found) == "s0.0"
    found.close()
    assert not reading()


@pytest.mark.parametrize("threads", [1, 4])
def test_an_error_comes_where_its_split_is(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Place, "broken", frozenset({"s4", "s9"}))
    found: list[str] = []
    with pytest.raises(Retriable, match="s4 cannot be read"):
        found.extend(scan(Place(), Place, Wanted(readers=threads), positions))
    found = []
    with pytest.raises(Retriable):
        for each in scan(Place(), Place, Wanted(readers=threads), positions):
            found.append(each)
    assert found == IN_ORDER[:13]
    assert not reading()


def test_a_place_that_cannot_be_opened_again_is_an_error() -> None:
    def look() -> DeadLetters:
        raise Retriable("away")

    with pytest.raises(Retriable, match="away"):
        list(scan(Place(), look, Wanted(readers=2), positions))
    assert not reading()
