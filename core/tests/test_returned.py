"""Counting what came back costs a bounded part of a redrive's time, and of the place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from redelivery.contract.broker import DeadLetters, Letter, Limits
from redelivery.contract.context import ErrorContext
from redelivery.contract.letters import LetterBatch, Wanted
from redelivery.contract.message import Message
from redelivery.deadletters.returned import Returned
from redelivery.formats import dialects

BEGAN_MS = 1_700_000_000_000


class Hands:
    """A clock that only tests move."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now

    def wall_ms(self) -> int:
        return BEGAN_MS + int(self.now * 1000)

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Place(DeadLetters):
    """Letters with cursors. `cost`: seconds for a look at one."""

    def __init__(self, clock: Hands, cost: float = 0.0) -> None:
        self.letters: list[Letter] = []
        self.looked_at = 0
        self._clock = clock
        self._cost = cost

    def add(self, *hops: int) -> None:
        for each in hops:
            context = ErrorContext(reason="again", attempts_total=1, hops=each)
            message = dialects.attach(Message(value=b"v"), context, dialect="json", limits=Limits(), prefix=None)
            letter = Letter(position=str(len(self.letters)), message=message, dead_lettered_ms=self._clock.wall_ms())
            self.letters.append(letter)

    def _shown(self, letters: Sequence[Letter]) -> Iterator[Letter]:
        for letter in letters:
            self.looked_at += 1
            self._clock.sleep(self._cost)
            yield letter

    def browse(self) -> Iterator[Letter]:
        return self._shown(list(self.letters))

    def splits(self, wanted: Wanted) -> Sequence[str]:
        return ["all"]

    def read(self, split: str, wanted: Wanted) -> Iterator[LetterBatch]:
        found = list(self._shown(self.letters[int(wanted.after or 0) : int(wanted.before or 0)]))
        assert wanted.columns == {"headers"}, "no more is decoded than is looked at"
        if found:
            yield LetterBatch.of(found)

    def cursor(self, *, after: str | None = None, most: int | None = None) -> str:
        return str(len(self.letters))

    def remove(self, positions: Sequence[str]) -> int:
        raise AssertionError

    def purge(self) -> int:
        raise AssertionError

    def close(self) -> None:
        pass


def counting(place: Place, clock: Hands, *, cursors: bool) -> Returned:
    found = Returned(lambda: place, clock, cursors=cursors)
    found.begin()
    return found


def test_with_cursors_only_letters_behind_the_end_are_looked_at_and_each_once() -> None:
    clock = Hands()
    place = Place(clock)
    place.add(*[1] * 500)
    returned = counting(place, clock, cursors=True)
    for at in range(1, 4):
        clock.sleep(2)
        place.add(0, 1)
        assert returned.look() == at
    assert returned.count() == 3
    assert place.looked_at == 6


def test_without_cursors_letters_that_died_before_the_run_do_not_count() -> None:
    clock = Hands()
    place = Place(clock)
    place.add(1, 1)
    clock.sleep(1)
    returned = counting(place, clock, cursors=False)
    place.add(0, 1)
    assert returned.count() == 1


def test_looking_takes_a_tenth_of_the_time_also_at_the_first_look() -> None:
    """Once: 5,000 of 500,000 letters took 441 s, most of it to look for what had come back."""
    clock = Hands()
    place = Place(clock, cost=0.001)
    place.add(*[0] * 100_000)  # a whole look takes 100 s
    returned = counting(place, clock, cursors=False)
    worked = 0.0
    while worked < 200:
        clock.sleep(0.5)
        worked += 0.5
        returned.look()
    assert clock.now - worked <= 0.13 * clock.now
    place.letters = [replace(each, dead_lettered_ms=clock.wall_ms()) for each in place.letters]
    place.add(1)
    assert returned.count() == 1, "the last look is whole"


def test_a_look_that_was_given_up_is_followed_by_a_longer_one_until_one_ends() -> None:
    clock = Hands()
    place = Place(clock, cost=0.01)
    place.add(*[0] * 1_000)  # a whole look takes 10 s
    returned = counting(place, clock, cursors=False)
    place.add(1)
    while not returned.look():
        clock.sleep(0.5)
        assert clock.now < 300
