"""`WaveRun`: the waves of one redrive, kept in its journal, so that it goes on where it was killed."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Final

from redelivery.base.clock import Clock
from redelivery.deadletters.journal import Journal
from redelivery.deadletters.returned import Returned
from redelivery.errors import JournalError
from redelivery.policy import waves as policy
from redelivery.policy.waves import Step, Wave, Waves

#: Causes that a stop names.
_NAMED: Final = 3


@dataclass(frozen=True, slots=True)
class WaveReport:
    """The account of a wave.

    Attributes:
        number: from 1.
        sent: letters that were sent.
        failed: of those, letters that were refused.
        returned: letters that came back after it had begun.
    """

    number: int
    sent: int
    failed: int
    returned: int


class WaveRun:
    """Where a redrive in waves is.

    Args:
        waves: how it goes.
        returned: counts what comes back.
        journal: keeps it; None: a redrive that was killed begins again.
        clock: the time.

    Attributes:
        wave: the current wave.
        began_ms: when the first wave began: letters that died later are not sent.
        known: letters that came back since, as far as known.
    """

    def __init__(self, waves: Waves, returned: Returned, journal: Journal | None, clock: Clock) -> None:
        self._waves = waves
        self._returned = returned
        self._journal = journal
        self._clock = clock
        self._tally = 0
        self.began_ms = clock.wall_ms()
        self.wave = Wave(began_ms=self.began_ms)
        self.known = 0

    def begin(self) -> None:
        """Begin, or go on where the redrive of this name was. Raises BrokerError, JournalError."""
        kept = None if self._journal is None else self._journal.wave()
        if kept is None:
            self._returned.begin()
            self.began_ms = self._returned.mark[0]
            self._tally = 0 if self._journal is None else self._journal.tally
            self._note(Wave(began_ms=self.began_ms))
            return
        try:
            form = json.loads(kept)
            self.wave, self._tally = Wave(**form["wave"]), form["tally"]
            self.began_ms, after = form["began_ms"], form["after"]
        except (ValueError, TypeError, KeyError) as error:
            raise JournalError(f"the journal holds a wave that cannot be read: {error}; name another file") from error
        self._returned.begin(since=(self.began_ms, after))
        self.known = self._returned.count()
        if self.wave.waits_since_ms is None and self._journal is not None:
            confirmed = self._journal.tally - self._tally  # what was noted before it was killed
            self.wave = policy.sent(self.wave, confirmed - (self.wave.sent - self.wave.failed), 0)

    def step(self, *, more: bool) -> Step:
        """Return what to do next; `more`: whether there may be letters to be sent."""
        return self._waves.step(self.wave, self.known, self._clock.wall_ms(), more=more)

    @property
    def room(self) -> int:
        """How many more letters this wave may send."""
        return self._waves.room(self.wave)

    @property
    def is_harmful(self) -> bool:
        """Whether too many letters of this wave came back, as far as known."""
        return self._waves.is_harmful(self.wave, self.known)

    def look(self) -> int:
        """Return how many letters came back, as far as known; look if it is time to. Raises BrokerError."""
        self.known = self._returned.look()
        return self.known

    def count(self) -> int:
        """Return how many letters came back. Raises BrokerError."""
        self.known = self._returned.count()
        return self.known

    def sent(self, confirmed: int, failed: int) -> None:
        """Count letters that were sent. Raises JournalError."""
        wave = policy.sent(self.wave, confirmed, failed)
        if failed:  # what is confirmed the journal counts itself
            self._note(wave)
        self.wave = wave

    def waiting(self) -> None:
        """Note that no more letters of this wave are sent. Raises JournalError."""
        self._note(policy.waiting(self.wave, self._clock.wall_ms()))

    def following(self) -> None:
        """Begin the next wave. Raises JournalError."""
        self._tally = 0 if self._journal is None else self._journal.tally
        self._note(self._waves.following(self.wave, self.known, self._clock.wall_ms()))

    def _note(self, wave: Wave) -> None:
        if self._journal is not None:
            began_ms, after = self._returned.mark
            form = {"wave": asdict(wave), "tally": self._tally, "began_ms": began_ms, "after": after}
            self._journal.note_wave(json.dumps(form))
        self.wave = wave

    def report(self) -> WaveReport:
        """Return the account of this wave."""
        wave = self.wave
        return WaveReport(wave.number, wave.sent, wave.failed, max(0, self.known - wave.returned_before))

    def why(self) -> tuple[str, dict[str, int]]:
        """Return why it stops, and how many letters came back by code and group. Raises BrokerError."""
        said = self.report()
        causes = self._returned.causes()
        text = f"wave {said.number}: {said.returned} of {said.sent} came back and {said.failed} were refused"
        most = sorted(causes.items(), key=lambda each: -each[1])[:_NAMED]
        named = f"; what came back: {', '.join(f'{count} {name}' for name, count in most)}" if most else ""
        return f"{text} (stop at {self._waves.limit}){named}: mend the cause first", causes
