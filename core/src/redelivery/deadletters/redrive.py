"""Moves letters out of their queue: back to their destination (redrive), or on to a sink (forward).

A letter is sent, then confirmed by its destination, then noted in the journal, then removed. If the process is killed
between any two steps, the letter is in one of both places, or in both under one id, never in none.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Self

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
#: Looking for letters that came back takes at most this part of the time, and looks are at least so far apart.
_LOOKING: Final = 0.1
_LOOK_AFTER: Final = 1.0
_INTERRUPTED: Final = "it was interrupted"
#: The longest time without a look at `RedriveSettings.stop`, in seconds.
_NAP: Final = 0.2


@dataclass(slots=True, kw_only=True)
class RedriveReport:
    """The account of a redrive. `considered == redriven + failed + sum(left.values())`, except after a dry run.

    Attributes:
        considered: selected letters, as far as the run came.
        selected: of those, letters that were sent, or would have been sent in a dry run.
        redriven: confirmed at their destination.
        removed: of those, removed from the dead letter queue; fewer only where another process was faster.
        failed: refused by the destination; they stay.
        left: letters that were not sent, by reason; they stay. At most `MAX_REASONS` reasons, then `OTHER`.
        targets: of those selected, letters that go to an allowed target, by its name; bounded likewise.
        resumed: letters that had been sent before (by an earlier run, as a rule), and were removed now.
        returned: letters that are dead again since the run began.
        stopped: why it ended before it had considered all letters; None where it considered all.
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
        """Forget the letters that stay: the next look finds them again."""
        self.considered -= self.failed + sum(self.left.values())
        self.selected -= self.failed
        self.failed = 0
        self.left.clear()

    @classmethod
    def total(cls, parts: Iterable[RedriveReport]) -> Self:
        """Return the account of a redrive that several processes have shared."""
        total = cls()
        for part in parts:
            for name in ("considered", "selected", "redriven", "removed", "failed", "resumed", "returned"):
                setattr(total, name, getattr(total, name) + getattr(part, name))
            for counts, more in ((total.left, part.left), (total.targets, part.targets)):
                for name, count in more.items():
                    _count(counts, name, count)
            total.stopped = total.stopped or part.stopped
        return total

    def leave(self, why: str | None) -> bool:
        """Count a letter that is not sent; return False where no reason holds it back."""
        if why is not None:
            _count(self.left, why)
        return why is not None


def _count(counts: dict[str, int], name: str, by: int = 1) -> None:
    """Count one name. The number of names is bounded, because others choose them."""
    name = name if name in counts or len(counts) < MAX_REASONS else OTHER
    counts[name] = counts.get(name, 0) + by


@dataclass(frozen=True, slots=True, kw_only=True)
class RedriveSettings:
    """How far and how fast letters are moved.

    Attributes:
        limit: the most letters that are sent.
        rate: the most letters per second.
        dry_run: send and remove nothing.
        max_returns: stop when more letters than this were refused or came back; None: never stop for that.
        stop: called again and again; True ends the run after the letters in flight are settled.
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
    """One run over the letters of a queue.

    Args:
        letters: the queue.
        look: opens the queue again, to see which letters came back.
        selection: which letters are moved.
        operation: redrive or forward.
        there: the destination's capabilities.
        settings: how far and how fast.
        journal: remembers letters that were sent and not yet removed; None: no journal.
        follow: look again after so many seconds, until stopped; None: look once.
        partial: the queue shows some letters only when earlier ones are gone.
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
        #: Letters that are confirmed at their destination and not known to be removed: digests by position.
        self._pending: dict[str, str] = {}
        #: Of those, the letters that the queue shows again.
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
        """Move the letters that exist now."""
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
            # Letters behind those that are gone are visible now.
            again = self._partial and not self.report.stopped and self.report.removed > removed

    def _look_anew(self, letter_sender: LetterSender | None, rate: RateLimit) -> None:
        """Look again. Letters that stay are counted as the last look finds them; a broker that is away comes back."""
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
        """Wait for the next look; return False where the run is stopped in the meantime."""
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
        except BaseException as error:  # confirmed letters are removed, even if others fail
            try:
                self._account(going, letter_sender.confirmed)
            except RedeliveryError as second:
                error.add_note(f"and then: {second}")
            raise
        self._account(going, letter_sender.confirmed)

    def _account(self, going: Sequence[Letter], confirmed: list[Letter]) -> None:
        """Count sent letters, note the confirmed ones in the journal, and remove them."""
        self.report.redriven += len(confirmed)
        self.report.failed += len(going) - len(confirmed)
        sent = {letter.position: digest(letter) for letter in confirmed}
        confirmed.clear()
        if self._partial:
            self._stay.update(letter.position for letter in going if letter.position not in sent)
        self._pending.update(sent)
        try:
            if self._journal is not None:
                self._journal.sent(sent)
        finally:  # without a note it must be removed all the more
            self.report.removed += self._remove(list(sent))

    def _remove(self, positions: Sequence[str]) -> int:
        """Remove confirmed letters. One that could not be removed, or that a consumer holds, is not sent again."""
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
        if known != digest(letter):  # the queue was created again, and counts again
            self._forget([letter.position])
            return False
        self._again.append(letter.position)
        if len(self._again) >= _CHUNK:
            self._resume()
        return True

    def _resume(self) -> None:
        """Remove letters that were sent before and still exist."""
        some, self._again = self._again, []
        if some:
            self.report.resumed += self._remove(some)

    def _may_send(self, rate: RateLimit, count: int) -> bool:
        """Wait for the rate limit; return False where the run is stopped in the meantime."""
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
                report.stopped = harm(report)
        return report.stopped is not None

    def _count_returned(self) -> None:
        began = self._clock.monotonic()
        with self._look() as place:
            self.report.returned = count_returned(place, self._began_ms)
        now = self._clock.monotonic()
        self._next_look = now + max(_LOOK_AFTER, (now - began) / _LOOKING)


def harm(report: RedriveReport) -> str:
    """Return why a redrive stops that does more harm than good."""
    return f"{report.failed} letters were refused and {report.returned} are dead letters again: mend the cause first"


def count_returned(place: DeadLetters, since_ms: int) -> int:
    """Return how many letters here were sent back at least once, and have died since a time."""
    returned = 0
    for letter in place.browse():
        whole = replace(letter, context=context_of(letter))
        returned += bool(dialects.history(letter.message).hops) and (dead_since_ms(whole) or 0) >= since_ms
    return returned


def _taken(letters: Iterator[Letter], most: int) -> list[Letter]:
    """Return the next letters: at most so many, and no more once they have `_CHUNK_BYTES`."""
    taken: list[Letter] = []
    weight = 0
    for letter in itertools.islice(letters, most):
        taken.append(letter)
        weight += letter.message.nbytes
        if weight >= _CHUNK_BYTES:
            break
    return taken


def digest(letter: Letter) -> str:
    """Return what tells a letter from another one that is stored at its position later."""
    message = letter.message
    # With its headers: the letter of a later failure of the same message has another time in them.
    said = (message.id, message.key, message.timestamp_ms, message.headers)
    found = hashlib.blake2b(repr(said).encode(errors="surrogatepass"), digest_size=12)
    found.update(message.value or b"")
    return found.hexdigest()
