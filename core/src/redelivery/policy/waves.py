"""`Waves`: a redrive that sends a few letters, waits for what comes back, and sends more only where little does.

Pure: what was sent, what came back and the time are arguments. A `Wave` is plain data, so that a redrive that was
killed goes on in the wave where it was.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from fractions import Fraction
from typing import Final, Self

from redelivery.base import durations
from redelivery.errors import ConfigurationError, InvalidSpec

#: The wait after a wave, where none is given.
WAIT: Final = timedelta(seconds=30)
#: The part of a wave that may not come back, where none is given.
STOP_AT: Final = Fraction(2, 100)
_PER_CENT: Final = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,6})?) ?%")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wave:
    """Where a redrive in waves is.

    Attributes:
        number: of the wave, from 1.
        began_ms: when it began, milliseconds since the epoch.
        sent: letters of this wave that were sent: confirmed, or refused.
        failed: of those, letters that were refused.
        returned_before: letters that had come back when it began.
        waits_since_ms: when the last letter of the wave had been sent; None: not all are sent.
    """

    number: int = 1
    began_ms: int
    sent: int = 0
    failed: int = 0
    returned_before: int = 0
    waits_since_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Send:
    """Send so many letters, at most."""

    most: int


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait for what comes back: so many seconds are left."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Begin:
    """Begin the next wave."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Too many letters came back, or were refused."""


@dataclass(frozen=True, slots=True)
class Done:
    """All letters were sent, and what came back was waited for."""


Step = Send | Wait | Begin | Stop | Done


@dataclass(frozen=True, slots=True, kw_only=True)
class Waves:
    """How a redrive goes in waves.

    Attributes:
        sizes: letters of each wave; the last size is repeated.
        stop_at: stop where so many letters of a wave came back or were refused: a number, or a part of the wave.
        wait: for what comes back, after the last letter of a wave.
    """

    sizes: tuple[int, ...] = (1, 10, 100, 1000)
    stop_at: int | Fraction = STOP_AT
    wait: timedelta = WAIT

    def __post_init__(self) -> None:
        if not self.sizes or min(self.sizes) < 1:
            raise ConfigurationError("waves: each wave has at least 1 letter")
        part = isinstance(self.stop_at, Fraction)
        if self.stop_at <= 0 or (part and self.stop_at > 1):
            raise ConfigurationError("stop_at: a number of letters above 0, or a part of a wave above 0, up to 1")
        if self.wait < timedelta(0):
            raise ConfigurationError("wave_wait: must not be negative")

    @classmethod
    def parse(cls, sizes: str, stop_at: str | None = None, wait: str | None = None) -> Self:
        """Return the waves of texts: `1,10,100`, `2%` or `5`, `PT30S`. Raises ConfigurationError."""
        parts = [each.strip() for each in sizes.split(",")]
        if not all(each.isascii() and each.isdigit() and len(each) <= 12 and int(each) for each in parts):  # noqa: PLR2004 - a billion
            raise ConfigurationError(f"waves {sizes!r}: numbers of letters with commas between, as in 1,10,100,1000")
        try:
            lasts = WAIT if wait is None else durations.parse(wait)
        except InvalidSpec as error:
            raise ConfigurationError(f"wave-wait: {error}") from None
        return cls(sizes=tuple(map(int, parts)), stop_at=STOP_AT if stop_at is None else _limit(stop_at), wait=lasts)

    def size(self, number: int) -> int:
        """Return how many letters a wave has."""
        return self.sizes[min(number, len(self.sizes)) - 1]

    def room(self, wave: Wave) -> int:
        """Return how many more letters a wave may send."""
        return 0 if wave.waits_since_ms is not None else max(0, self.size(wave.number) - wave.sent)

    def harm(self, wave: Wave, returned: int) -> int:
        """Return how many letters of a wave came back or were refused; `returned`: of all waves."""
        return wave.failed + max(0, returned - wave.returned_before)

    def is_harmful(self, wave: Wave, returned: int) -> bool:
        """Whether too many of a wave came back or were refused. Of a wave that is not all sent, its size counts."""
        harm = self.harm(wave, returned)
        whole = self.size(wave.number) if wave.waits_since_ms is None else max(1, wave.sent)
        return harm > 0 and harm >= (self.stop_at * whole if isinstance(self.stop_at, Fraction) else self.stop_at)

    def step(self, wave: Wave, returned: int, now_ms: int, *, more: bool) -> Step:
        """Return what to do next.

        Args:
            wave: where the redrive is.
            returned: letters that came back since the first wave began.
            now_ms: the time.
            more: whether there may be letters to be sent.
        """
        if self.is_harmful(wave, returned):
            return Stop()
        if wave.waits_since_ms is None:
            if more and self.room(wave):
                return Send(self.room(wave))
            return Wait(self.wait.total_seconds()) if wave.sent else Done()
        wait_ms = self.wait // timedelta(milliseconds=1)
        # A clock that was set back must not make the wait longer.
        left_ms = min(wait_ms, wave.waits_since_ms + wait_ms - now_ms)
        if left_ms > 0:
            return Wait(left_ms / 1000)
        return Begin() if more else Done()

    def following(self, wave: Wave, returned: int, now_ms: int) -> Wave:
        """Return the next wave."""
        return Wave(number=wave.number + 1, began_ms=now_ms, returned_before=returned)

    def plan(self, letters: int) -> list[tuple[int, int]]:
        """Return the waves of so many letters: how many waves, and how many letters each has."""
        found: list[tuple[int, int]] = []
        for size in self.sizes[:-1]:
            if letters > 0:
                found.append((1, min(size, letters)))
                letters -= size
        if letters > 0:
            times, rest = divmod(letters, self.sizes[-1])
            found += [(times, self.sizes[-1])] * bool(times) + [(1, rest)] * bool(rest)
        return found

    @property
    def limit(self) -> str:
        """`stop_at`, for people."""
        return f"{float(self.stop_at * 100):g} %" if isinstance(self.stop_at, Fraction) else f"{self.stop_at}"


def sent(wave: Wave, confirmed: int, failed: int) -> Wave:
    """Return a wave after more of its letters were sent."""
    return replace(wave, sent=wave.sent + confirmed + failed, failed=wave.failed + failed)


def waiting(wave: Wave, now_ms: int) -> Wave:
    """Return a wave of which no more letters are sent."""
    return wave if wave.waits_since_ms is not None else replace(wave, waits_since_ms=now_ms)


def plan_shown(plan: Sequence[tuple[int, int]]) -> str:
    """Return a plan of waves for people."""
    return ", ".join(f"{times:,} x {size:,}" if times > 1 else f"{size:,}" for times, size in plan)


def _limit(text: str) -> int | Fraction:
    """Raises ConfigurationError."""
    found = _PER_CENT.fullmatch(text.strip())
    if found is not None and 0 < Fraction(found[1]) <= 100:  # noqa: PLR2004 - per cent
        return Fraction(found[1]) / 100
    if text.strip().isascii() and text.strip().isdigit() and 0 < int(text) < 10**12:
        return int(text)
    raise ConfigurationError(f"stop-at {text!r}: a number of letters above 0, or per cent of a wave, as in 2%")
