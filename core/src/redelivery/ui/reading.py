"""Reads a page of letters, or one letter, within a time; and keeps those that a look has taken, where looking takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, Protocol, TypeVar, cast

from redelivery.contract.broker import Letter, LetterBatch
from redelivery.deadletters.queue import DeadLetterQueue
from redelivery.deadletters.redrive import digest
from redelivery.deadletters.selection import Selection
from redelivery.deadletters.triage import Parked, Triage
from redelivery.deadletters.trust import context_of
from redelivery.errors import ConfigurationError

T = TypeVar("T")

#: Letters and bytes that are kept of a place where looking takes.
HELD_LETTERS: Final = 5_000
HELD_BYTES: Final = 48 * 1024 * 1024


class Letters(Protocol):
    """Letters that can be read: a queue, or what was kept of one."""

    def scan(
        self,
        each: Callable[[LetterBatch], T],
        where: Selection | None = None,
        *,
        columns: frozenset[str] | None = None,
        threads: int = 1,
    ) -> Iterator[T]:
        """As `DeadLetterQueue.scan`."""

    def parked(self) -> Parked:
        """As `DeadLetterQueue.parked`."""


@dataclass(frozen=True, slots=True)
class Held:
    """Letters that one look has kept in memory, in their order.

    Attributes:
        batches: the letters.
        complete: whether these were all.
        triage: opens the place's triage; None: this user has none.
    """

    batches: Sequence[LetterBatch]
    complete: bool
    triage: Callable[[], Triage] | None = None

    def __len__(self) -> int:
        return sum(map(len, self.batches))

    def scan(
        self,
        each: Callable[[LetterBatch], T],
        where: Selection | None = None,
        *,
        columns: frozenset[str] | None = None,  # noqa: ARG002 - all are here
        threads: int = 1,  # noqa: ARG002
    ) -> Iterator[T]:
        """As `DeadLetterQueue.scan`."""
        now_ms = self.now_ms()
        selection = (where or Selection()).within(lambda batch: self.parked().rows(batch))
        for batch in self.batches:
            rows = selection.admitted(batch, range(len(batch)), now_ms)
            if rows:
                yield each(batch if len(rows) == len(batch) else batch.take(rows))

    def now_ms(self) -> int:
        """As `DeadLetterQueue.now_ms`."""
        return time.time_ns() // 1_000_000

    def parked(self) -> Parked:
        """As `DeadLetterQueue.parked`."""
        if self.triage is None:
            return Parked()
        with self.triage() as triage:
            return triage.parked()

    def as_queue(self) -> DeadLetterQueue:
        """Return it for functions that only scan."""
        return cast("DeadLetterQueue", self)


def hold(dlq: DeadLetterQueue, stop: Callable[[], bool], on_progress: Callable[[int], None]) -> Held:
    """Take the oldest letters of a place once, and keep them.

    Args:
        dlq: where looking takes.
        stop: asked between letters; True ends the look.
        on_progress: called with the number of letters so far.

    Raises:
        BrokerError
    """
    kept: list[Letter] = []
    weight = 0
    complete = True
    for letter in dlq.select():
        if len(kept) >= HELD_LETTERS or weight + letter.message.nbytes > HELD_BYTES or stop():
            complete = False
            break
        # `select` has put the whole context in: as stored, its headers say it again.
        kept.append(letter)
        weight += letter.message.nbytes
        on_progress(len(kept))
    triage = triage_of(dlq)
    again = None if triage is None else partial(Triage, triage.path, dlq.place)
    return Held([LetterBatch.of(kept)] if kept else [], complete, again)


def triage_of(dlq: DeadLetterQueue) -> Triage | None:
    """Return the triage of a place; None where this user has no folder for one."""
    with suppress(ConfigurationError):
        return dlq.triage
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Some letters of a selection, in their order.

    Attributes:
        rows: what was made of each.
        first: how many of the selection are before them.
        more: whether others follow.
        late: whether the time was over before all were read: letters may follow that were not looked at.
    """

    rows: Sequence[object] = field(default_factory=list)
    first: int = 0
    more: bool = False
    late: bool = False


def window(
    letters: Letters, make: Callable[[Letter, bool], object], where: Selection, *, first: int, most: int, seconds: float
) -> Window:
    """Read some letters of a selection.

    Args:
        letters: where they are.
        make: makes of a letter with its whole context, and of whether it is parked, what is kept of it.
        where: the selection.
        first: letters of it to pass over.
        most: letters to keep.
        seconds: how long reading may take.

    Raises:
        BrokerError, ConfigurationError
    """
    ends = time.monotonic() + seconds
    rows: list[object] = []
    passed = 0
    parked = letters.parked()

    def some(batch: LetterBatch) -> bool:
        """Keep what is wanted of a batch; return whether more exist than wanted."""
        nonlocal passed
        start = min(len(batch), max(0, first - passed))
        for index in range(start, len(batch)):
            if len(rows) >= most:
                return True
            letter = batch.letter(index)
            is_parked = bool(parked) and bool(parked.rows(LetterBatch.of([letter])))
            rows.append(make(replace(letter, context=context_of(letter)), is_parked))
        passed += len(batch)
        return False

    with closing(_generator(letters.scan(some, where))) as found:
        for full in found:
            if full:
                return Window(rows=rows, first=first, more=True)
            if time.monotonic() > ends:
                return Window(rows=rows, first=first, late=True)
    return Window(rows=rows, first=first)


def _generator(found: Iterator[T]) -> Generator[T, None, None]:
    """Return what `scan` returned as what it is, so that it can be closed."""
    return cast("Generator[T, None, None]", found)


def one(letters: Letters, position: str, expected: str) -> tuple[Letter | None, bool]:
    """Return the letter at a position, with its whole context, and whether it is the one with this digest.

    Raises:
        BrokerError, ConfigurationError
    """
    with closing(_generator(letters.scan(lambda batch: batch.letter(0), Selection.at(position)))) as found:
        for letter in found:
            return replace(letter, context=context_of(letter)), digest(letter) == expected
    return None, False
