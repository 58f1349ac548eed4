"""Rows that letters became get back what no column holds, in few looks, or are not sent."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
from test_deadletters import letter

from redelivery.contract.broker import Letter
from redelivery.contract.letters import LetterBatch
from redelivery.contract.message import Batch, Message
from redelivery.deadletters.mended import Originals, marks_of

PAGE = 10


def with_native(count: int) -> list[Letter]:
    plain = (letter(f"n{at}") for at in range(count))
    return [replace(each, message=replace(each.message, native={"at": at})) for at, each in enumerate(plain)]


class Shown:
    """Letters as a broker shows them, by the page; counts what was read."""

    def __init__(self, letters: Sequence[Letter], *, shuffled: bool = False) -> None:
        self.letters = list(letters)
        self.shuffled = shuffled
        self.read = 0
        self.marks = marks_of(LetterBatch.of(self.letters), 0, 0)
        self.originals = Originals(self.look)

    def look(self) -> Iterator[LetterBatch]:
        shown = self.letters.copy()
        if self.shuffled:
            random.Random(self.read).shuffle(shown)  # noqa: S311 - any order will do
        for at in range(0, len(shown), PAGE):
            self.read += len(shown[at : at + PAGE])
            yield LetterBatch.of(shown[at : at + PAGE])

    def natives(self, *pieces: Sequence[str]) -> list[object]:
        """What rows with these marks get; "lost" where they are not sent."""
        given: list[object] = []
        for marks in pieces:
            found = self.originals.found(marks)
            going = [each for each, good in zip(marks, found, strict=True) if good]
            rows = Batch.of([Message(value=b"v", id=each) for each in going]) if going else None
            sent = iter(() if rows is None else self.originals.restored(rows, going, deduplicates=False).rows())
            given += [next(sent).native if good else "lost" for good in found]
        return given


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("piece", [1, 7, 200])
def test_all_expected_letters_are_found_in_one_look_in_whatever_order_they_are_shown(
    shuffled: bool, piece: int
) -> None:
    here = Shown(with_native(200), shuffled=shuffled)
    here.originals.expect(here.marks)
    pieces = [here.marks[at : at + piece] for at in range(0, 200, piece)]
    assert here.natives(*pieces) == [{"at": at} for at in range(200)]
    assert here.read == 200


def test_a_part_that_keeps_its_order_is_read_once_however_many_rows_are_expected_at_a_time() -> None:
    here = Shown(with_native(200))
    given: list[object] = []
    for at in range(0, 200, 15):
        here.originals.expect(here.marks[at : at + 15])
        given += here.natives(here.marks[at : at + 15])
    assert given == [{"at": at} for at in range(200)]
    assert here.read == 200


@pytest.mark.parametrize("shuffled", [False, True])
def test_letters_that_are_gone_cost_one_look_and_their_rows_are_not_sent(shuffled: bool) -> None:
    here = Shown(with_native(200), shuffled=shuffled)
    del here.letters[:50]
    here.originals.expect(here.marks)
    pieces = [here.marks[at : at + 10] for at in range(0, 200, 10)]
    assert here.natives(*pieces) == ["lost"] * 50 + [{"at": at} for at in range(50, 200)]
    assert here.read == 150


def test_rows_of_one_letter_fare_alike_though_they_are_not_expected_together() -> None:
    here = Shown(with_native(3))
    gone = here.letters.pop(0)
    one, two, three = here.marks
    here.originals.expect([one, two])
    assert here.natives([one, two]) == ["lost", {"at": 1}]
    here.letters[:] = [gone, here.letters[-1]]
    here.originals.expect([one, two, three])
    assert here.natives([one, two, three]) == ["lost", {"at": 1}, {"at": 2}]


@pytest.mark.parametrize("changed", ["value", "native"])
def test_another_letter_at_its_position_is_not_its_letter(changed: str) -> None:
    here = Shown(with_native(2))
    other = {"value": b"other"} if changed == "value" else {"native": None}
    here.letters[0] = replace(here.letters[0], message=replace(here.letters[0].message, **other))
    here.originals.expect(here.marks)
    assert here.natives(here.marks) == ["lost", {"at": 1}]


def test_letters_without_a_native_part_are_not_looked_for() -> None:
    here = Shown([letter("a"), letter("b")])
    here.originals.expect(here.marks)
    assert here.natives(here.marks) == [None, None]
    assert here.read == 0
