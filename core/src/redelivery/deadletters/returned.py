"""Counts the letters that came back: those that a redrive sent, and that are dead again.

Where letters have cursors, only letters behind the end of the place as the redrive found it are looked at, each once.
Elsewhere each look reads the whole place, and so has a budget.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Final

from redelivery.base.clock import Clock
from redelivery.contract.broker import DeadLetters, Letter
from redelivery.contract.letters import LetterBatch, Wanted
from redelivery.deadletters.groups import fingerprint
from redelivery.deadletters.selection import dead_since_ms
from redelivery.deadletters.trust import context_of
from redelivery.errors import Retriable, Unsupported
from redelivery.formats.dialects import again

#: Looks take at most this part of the time, all together. With cursors they are at least so far apart, in seconds; the
#: first one at a whole place comes when so many seconds may be spent on it: a broker that cannot look without taking
#: needs about that long, however few letters there are.
_LOOKING: Final = 0.1
_LOOK_AFTER: Final = 1.0
_WHOLE: Final = 1.0
#: A look that was given up is followed by one that may take so many times as long.
_LONGER: Final = 4
#: The parts of a letter that a look needs: its marker is a header.
_CAUSES: Final = 100
_COLUMNS: Final = frozenset({"headers"})


class Returned:
    """Counts which letters of a place came back since `begin`.

    Args:
        look: opens the place.
        clock: the time.
        cursors: whether letters here have cursors.
    """

    def __init__(self, look: Callable[[], DeadLetters], clock: Clock, *, cursors: bool) -> None:
        self._look = look
        self._clock = clock
        self._cursors = cursors
        #: The end of the place when it began, and as of the last look.
        self._first: str | None = None
        self._after: str | None = None
        self._began_ms = 0
        self._began = self._next = 0.0
        #: Seconds that looks have taken, and that the next one at a whole place needs.
        self._spent, self._needs = 0.0, _WHOLE
        self._known = 0

    def begin(self, since: tuple[int, str | None] | None = None) -> None:
        """Remember what the place holds now: only what comes later can have come back.

        Args:
            since: `mark` of an earlier process, whose count goes on; None: count from now.

        Raises:
            BrokerError
        """
        self._began_ms, self._began = self._clock.wall_ms(), self._clock.monotonic()
        self._next = self._began + _LOOK_AFTER
        if since is not None:
            self._began_ms, self._after = since
        elif self._cursors:
            # The end of this place may have no name, or none now: then it is looked at as a whole.
            with self._look() as place, suppress(Unsupported, Retriable):
                self._after = place.cursor()
        self._first = self._after

    @property
    def mark(self) -> tuple[int, str | None]:
        """When it began, milliseconds since the epoch, and the end of the place then, where that has a name."""
        return self._began_ms, self._first

    def causes(self) -> dict[str, int]:
        """Return how many came back by code and group (`groups.fingerprint`); names are bounded. Raises BrokerError."""
        found: dict[str, int] = {}
        with self._look() as place:
            if self._first is None:
                chosen: Iterator[Letter] = (each for each in place.browse() if self._came_back(each))
            else:
                wanted = Wanted(after=self._first, before=place.cursor())
                batches = (batch for split in place.splits(wanted) for batch in place.read(split, wanted))
                letters = (letter for batch in batches for letter in batch.letters())
                chosen = (each for each in letters if again.hops(each.message.headers))
            for letter in chosen:
                context = context_of(letter)
                code = str(context.code) if context.code is not None else context.kind or "without a code"
                name = f"{code} (group {fingerprint(context)})"
                name = name if name in found or len(found) < _CAUSES else "others"
                found[name] = found.get(name, 0) + 1
        return found

    def _came_back(self, letter: Letter) -> bool:
        if not again.hops(letter.message.headers):
            return False
        return (dead_since_ms(replace(letter, context=context_of(letter))) or 0) >= self._began_ms

    def look(self) -> int:
        """Return how many came back, as of the last look; look again if that takes no more than its part of the time.

        A look at the whole place that takes longer is given up; the next one may take longer.
        """
        began = self._clock.monotonic()
        may_take = _LOOKING * (began - self._began) - self._spent
        if self._after is not None:
            if began >= self._next:
                self._count(None)
                now = self._clock.monotonic()
                self._next = now + max(_LOOK_AFTER, (now - began) / _LOOKING)
        elif may_take >= self._needs:
            ended = self._count(began + may_take)
            # Also what it takes to open and to end a look: there the broker may show the letters again.
            took = self._clock.monotonic() - began
            self._spent += took
            self._needs = max(_WHOLE, took if ended else _LONGER * took)
        return self._known

    def count(self) -> int:
        """Return how many came back. Raises BrokerError."""
        self._count(None)
        return self._known

    def _count(self, until: float | None) -> bool:
        """Look; return whether the look came to its end."""
        with self._look() as place:
            if self._after is not None:
                self._known += self._behind(place, self._after)
                return True
            found, ended = self._whole(place, until)
            self._known = found if ended else max(found, self._known)
            return ended

    def _behind(self, place: DeadLetters, after: str) -> int:
        """Count those behind a cursor, and remember where the place ends now."""
        before = place.cursor()
        wanted = Wanted(columns=_COLUMNS, after=after, before=before)
        found = sum(_redriven(batch) for split in place.splits(wanted) for batch in place.read(split, wanted))
        self._after = before
        return found

    def _whole(self, place: DeadLetters, until: float | None) -> tuple[int, bool]:
        found = 0
        for letter in place.browse():
            found += self._came_back(letter)
            if until is not None and self._clock.monotonic() >= until:
                return found, False
        return found, True


def _redriven(batch: LetterBatch) -> int:
    """Count the letters whose message was sent back at least once."""
    headers = batch.messages.headers
    return 0 if headers is None else sum(again.hops(each) > 0 for each in headers.values)
