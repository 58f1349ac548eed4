"""Moving letters out of their place: back to work (redrive), or on to a sink (forward).

A letter is sent, then confirmed by where it goes, then noted in the journal, then removed: killed between any two of
these it is in one of both places, or in both under one id, never in none.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from redelivery.base.clock import Clock
from redelivery.contract.broker import Capabilities, DeadLetters, Letter
from redelivery.deadletters.journal import Journal
from redelivery.deadletters.letter_senders import LetterSender
from redelivery.deadletters.operations import LetterOperation
from redelivery.deadletters.selection import Selection, dead_since_ms
from redelivery.deadletters.trust import context_of
from redelivery.errors import Ambiguous, ConfigurationError, RedeliveryError, Retriable
from redelivery.formats import dialects
from redelivery.policy.rate import RateLimit
from redelivery.sending.report import MAX_REASONS, OTHER

log = logging.getLogger("redelivery.redriving")

#: A redrive stops when so many of its letters were refused, or are dead letters again.
MAX_RETURNS: Final = 100
#: Letters that are sent and then removed together: so many, or fewer that have so many bytes.
_CHUNK: Final = 500
_CHUNK_BYTES: Final = 16 * 1024 * 1024
#: Looking for letters that came back takes this part of the time at most, and no look comes sooner than that.
_LOOKING: Final = 0.1
_LOOK_AFTER: Final = 1.0
_INTERRUPTED: Final = "it was interrupted"
#: The longest time without a look at `RedriveSettings.stop`, in seconds.
_NAP: Final = 0.2


@dataclass(slots=True, kw_only=True)
class RedriveReport:
    """The account of a redrive. `considered == redriven + failed + sum(left.values())`, but for a dry run.

    Attributes:
        considered: letters that were meant, as far as the run came.
        selected: of those, letters that were sent, or would have been in a dry run.
        redriven: confirmed at their destination.
        removed: of those, removed from the dead letter place; fewer only where somebody else was faster.
        failed: refused by the destination; they stay.
        left: letters that were not sent, by reason; they stay. At most `MAX_REASONS` reasons, then `OTHER`.
        targets: of those selected, letters that go to an allowed target, by its name; bounded likewise.
        resumed: letters that had been sent before (by an earlier run, as a rule), and were removed now.
        returned: letters that are dead again since the run began.
        stopped: why it ended before all were considered; None where it did not.
    """

    considered: int = 0
    selected: int = 0
    redriven: int = 0
    removed: int = 0
    failed: int = 0
    left: dict[str, int] = field(default_factory=dict)
    targets: dict[str, int] = field(default_factory=dict)
    resumed: int = 0
    returned: int = 0
    stopped: str | None = None

    def look_again(self) -> None:
        """Forget what stays: the next look finds it again."""
        self.considered -= self.failed + sum(self.left.values())
        self.selected -= self.failed
        self.failed = 0
        self.left.clear()

    def leave(self, why: str | None) -> bool:
        """Count a letter that is not sent; False where there is no reason for that."""
        if why is not None:
            _count(self.left, why)
        return why is not None


def _count(counts: dict[str, int], name: str) -> None:
    """Count one; names are others' words, so there may be any number of them."""
    name = name if name in counts or len(counts) < MAX_REASONS else OTHER
    counts[name] = counts.get(name, 0) + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RedriveSettings:
    """How far and how fast letters are moved.

    Attributes:
        limit: letters that are sent, at most.
        rate: letters a second, at most.
        dry_run: send and remove nothing.
        max_returns: stop when more than so many were refused or came back; None: go on whatever happens.
        stop: asked again and again; True ends the run, what is in flight settled.
        on_progress: called with the report as it grows.
    """

    limit: int | None = None
    rate: float | None = None
    dry_run: bool = False
    max_returns: int | None = MAX_RETURNS
    stop: Callable[[], bool] = lambda: False
    on_progress: Callable[[RedriveReport], None] = lambda _: None

    def __post_init__(self) -> None:
        for name, value in (("limit", self.limit), ("rate", self.rate)):
            if value is not None and not 0 < value < math.inf:
                raise ConfigurationError(f"{name}: must be more than 0 and finite, not {value}")
        if self.max_returns is not None and self.max_returns < 0:
            raise ConfigurationError(f"max_returns: must be 0 or more, not {self.max_returns}")


class Transfer:
    """One run over the letters of a place.

    Args:
        letters: the place.
        look: opens the place again, to see what came back.
        selection: which letters are meant.
        operation: what is done with them.
        there: what the destination can do.
        settings: how far and how fast.
        journal: remembers what was sent and not yet removed; None: nothing does.
        follow: look again after so many seconds, until it is stopped; None: one look is all.
        partial: the place shows some letters only when those before them are gone.
    """

    def __init__(
        self,
        letters: DeadLetters,
        *,
        look: Callable[[], DeadLetters],
        selection: Selection,
        operation: LetterOperation,
        there: Capabilities,
        settings: RedriveSettings,
        journal: Journal | None,
        clock: Clock,
        follow: float | None = None,
        partial: bool = False,
    ) -> None:
        self.report = RedriveReport()
        self._letters = letters
        self._look = look
        self._selection = selection
        self._operation = operation
        self._there = there
        self._settings = settings
        self._journal = journal
        self._clock = clock
        self._follow = follow
        self._partial = partial
        self._stay: set[str] = set()
        #: Letters that are confirmed where they went and not known to be removed: digests by position.
        self._pending: dict[str, str] = {}
        #: Of those, what is shown again.
        self._again: list[str] = []
        self._began_ms = self._looked_ms = clock.wall_ms()
        self._next_look = clock.monotonic() + _LOOK_AFTER

    def run(self, letter_sender: LetterSender | None) -> RedriveReport:
        """Move the letters by this sender; without one, which is a dry run, only count them."""
        if letter_sender is not None:
            self._pending = {} if self._journal is None else self._journal.pending()
        rate = RateLimit(self._settings.rate)
        self._pass(letter_sender, rate)
        while self._follow is not None and not self.report.stopped and self._waited(self._follow, letter_sender):
            self._look_anew(letter_sender, rate)
        if self._follow is not None and self.report.stopped == _INTERRUPTED:
            self.report.stopped = None  # that is how following ends
        if letter_sender is not None and self.report.redriven:
            self._count_returned()
            self._settings.on_progress(self.report)
        return self.report

    def _pass(self, letter_sender: LetterSender | None, rate: RateLimit) -> None:
        """Move what lies there now."""
        again = True
        while again:
            removed = self.report.removed
            meant = self._meant()
            while not self.report.stopped and (chunk := _taken(meant, self._size(rate))):
                going = self._going(chunk)
                if letter_sender is not None and going and self._may_send(rate, len(going)):
                    self._send(letter_sender, going)
                self._settings.on_progress(self.report)
                self._must_stop()
            self._resume()
            # What was behind those that are gone is shown now.
            again = self._partial and not self.report.stopped and self.report.removed > removed

    def _look_anew(self, letter_sender: LetterSender | None, rate: RateLimit) -> None:
        """One more look. What stays is counted as the last look finds it; a broker that is away comes back."""
        self.report.look_again()
        self._stay.clear()
        self._again.clear()
        self._looked_ms = self._clock.wall_ms()
        try:
            with self._look() as self._letters:
                self._pass(letter_sender, rate)
        except (Retriable, Ambiguous) as error:
            log.warning("%s: the letters cannot be looked at now, and later again: %s", self._operation.name, error)

    def _waited(self, seconds: float, letter_sender: LetterSender | None) -> bool:
        """Wait for the next look; False where the run is stopped meanwhile."""
        end = self._clock.monotonic() + seconds
        while (left := end - self._clock.monotonic()) > 0 and not self._settings.stop():
            if letter_sender is not None:
                letter_sender.beat()
            self._clock.sleep(min(left, _NAP))
        return not self._settings.stop()

    def _meant(self) -> Iterator[Letter]:
        for letter in self._letters.browse():
            if self._was_sent(letter):
                continue
            whole = replace(letter, context=context_of(letter))
            if letter.position not in self._stay and self._selection.admits(whole, self._looked_ms):
                yield letter

    def _size(self, rate: RateLimit) -> int:
        size = min(_CHUNK, rate.piece or _CHUNK)
        return size if self._settings.limit is None else min(size, self._settings.limit - self.report.selected)

    def _going(self, chunk: Sequence[Letter]) -> list[Letter]:
        self.report.considered += len(chunk)
        going = [letter for letter in chunk if not self.report.leave(self._operation.why_left(letter, self._there))]
        if self._partial:  # those that stay are shown again
            self._stay.update({letter.position for letter in chunk} - {letter.position for letter in going})
        self.report.selected += len(going)
        for target in filter(None, (self._operation.target(letter, self._there) for letter in going)):
            _count(self.report.targets, target)
        return going

    def _send(self, letter_sender: LetterSender, going: Sequence[Letter]) -> None:
        try:
            letter_sender.carry([(letter, self._operation.prepare(letter, self._there)) for letter in going])
        except BaseException as error:  # what is confirmed is removed, whatever becomes of its neighbours
            try:
                self._account(going, letter_sender.confirmed)
            except RedeliveryError as second:
                error.add_note(f"and then: {second}")
            raise
        self._account(going, letter_sender.confirmed)

    def _account(self, going: Sequence[Letter], confirmed: list[Letter]) -> None:
        """Count what was sent, note what is confirmed, and remove that."""
        self.report.redriven += len(confirmed)
        self.report.failed += len(going) - len(confirmed)
        sent = {letter.position: _digest(letter) for letter in confirmed}
        confirmed.clear()
        if self._partial:
            self._stay.update(letter.position for letter in going if letter.position not in sent)
        self._pending.update(sent)
        try:
            if self._journal is not None:
                self._journal.sent(sent)
        finally:  # without a note it has all the more to be removed
            self.report.removed += self._remove(list(sent))

    def _remove(self, positions: Sequence[str]) -> int:
        """Remove what is confirmed; what was not there to be removed, or in somebody's hand, is not sent again."""
        removed = self._letters.remove(positions)
        if removed == len(positions):
            self._forget(positions)
        return removed

    def _forget(self, positions: Sequence[str]) -> None:
        for each in positions:
            self._pending.pop(each, None)
        if self._journal is not None:
            self._journal.removed(positions)

    def _was_sent(self, letter: Letter) -> bool:
        """Whether this letter only has to be removed, as this run or an earlier one has sent it."""
        known = self._pending.get(letter.position)
        if known is None:
            return False
        if known != _digest(letter):  # the place was made again, and counts again
            self._forget([letter.position])
            return False
        self._again.append(letter.position)
        if len(self._again) >= _CHUNK:
            self._resume()
        return True

    def _resume(self) -> None:
        """Remove what was sent before and is still there."""
        some, self._again = self._again, []
        if some:
            self.report.resumed += self._remove(some)

    def _may_send(self, rate: RateLimit, count: int) -> bool:
        """Wait for the rate's turn; False where the run is stopped meanwhile."""
        while (left := rate.next(self._clock.monotonic()) - self._clock.monotonic()) > 0:
            if self._settings.stop():
                self.report.selected -= count
                self.report.considered -= count
                return False
            self._clock.sleep(min(left, _NAP))
        rate.take(count, self._clock.monotonic())
        return True

    def _must_stop(self) -> bool:
        report, settings = self.report, self._settings
        if settings.stop():
            report.stopped = _INTERRUPTED
        elif settings.limit is not None and report.selected >= settings.limit:
            report.stopped = f"the limit of {settings.limit} letters is reached"
        elif settings.max_returns is not None and not settings.dry_run:
            if self._clock.monotonic() >= self._next_look and report.redriven:
                self._count_returned()
            if report.failed + report.returned > settings.max_returns:
                report.stopped = (
                    f"{report.failed} letters were refused and {report.returned} are dead letters again: "
                    "mend the cause first"
                )
        return report.stopped is not None

    def _count_returned(self) -> None:
        began = self._clock.monotonic()
        returned = 0
        with self._look() as place:
            for letter in place.browse():
                whole = replace(letter, context=context_of(letter))
                if dialects.history(letter.message).hops and (dead_since_ms(whole) or 0) >= self._began_ms:
                    returned += 1
        self.report.returned = returned
        now = self._clock.monotonic()
        self._next_look = now + max(_LOOK_AFTER, (now - began) / _LOOKING)


def _taken(letters: Iterator[Letter], most: int) -> list[Letter]:
    """The next letters: at most so many, and no more once they have `_CHUNK_BYTES`."""
    taken: list[Letter] = []
    weight = 0
    for letter in itertools.islice(letters, most):
        taken.append(letter)
        weight += letter.message.nbytes
        if weight >= _CHUNK_BYTES:
            break
    return taken


def _digest(letter: Letter) -> str:
    message = letter.message
    # With its headers: the letter of a later failure of the same message tells another time.
    said = (message.id, message.key, message.timestamp_ms, message.headers)
    found = hashlib.blake2b(repr(said).encode(errors="surrogatepass"), digest_size=12)
    found.update(message.value or b"")
    return found.hexdigest()
