"""Moves letters out of their queue: back to their destination (redrive), or on to a sink (forward).

A letter is sent, then confirmed by its destination, then noted in the journal, then removed. If the process is killed
between any two steps, the letter is in one of both places, or in both under one id, never in none.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import logging
import marshal
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Self

from redelivery.base.clock import Clock
from redelivery.contract.broker import Capabilities, DeadLetters, Letter
from redelivery.contract.letters import LetterBatch
from redelivery.contract.message import Batch, Headers, Message
from redelivery.deadletters.journal import Journal
from redelivery.deadletters.letter_senders import LetterSender
from redelivery.deadletters.operations import LetterOperation, Sendable, sendable
from redelivery.deadletters.returned import Returned
from redelivery.deadletters.selection import NOTHING, Selection, dead_since_ms
from redelivery.deadletters.trust import context_of
from redelivery.deadletters.wave_run import WaveReport, WaveRun
from redelivery.errors import Ambiguous, ConfigurationError, RedeliveryError, Retriable
from redelivery.policy.rate import RateLimit
from redelivery.policy.waves import Begin, Send, Stop, Wait, Waves
from redelivery.sending.report import MAX_REASONS, OTHER
from redelivery.telemetry.redrives import Failure, RedriveObserver

log = logging.getLogger("redelivery.redriving")

#: A redrive stops when so many of its letters were refused, or are dead letters again.
MAX_RETURNS: Final = 100
#: Waves that a report keeps.
MAX_WAVES: Final = 100
#: Letters that are sent and then removed together: so many at first, and after a refusal; twice as many after each
#: chunk without one, up to the most; and fewer that have so many bytes.
_CHUNK: Final = 500
_MOST: Final = 5_000
_CHUNK_BYTES: Final = 16 * 1024 * 1024
#: Why a redrive ends that was asked to stop: the same one goes on later with what is left of its limit.
INTERRUPTED: Final = "it was interrupted"
_LIMITED: Final = "the limit of"
#: Why a letter stays that people have parked, by itself or with its group (`triage.Triage`).
PARKED: Final = "parked"
#: Why a letter stays that may have been sent in another form than this run would send it in.
EDITED: Final = "it may have been sent already, edited: send it with the same patch"
#: Why a letter stays that a redrive in waves did not find when it began: it may be one that came back.
_LATER: Final = "it died after this redrive in waves had begun"
_OTHERWISE: Final = "it may have been sent already, with another patch or none: send it as it was sent then"
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
        returned: letters that are dead again since the run began; in waves, since the first wave began.
        wave: in waves, the number of the current one.
        waves: in waves, the account of each that this process has seen; the last `MAX_WAVES`.
        causes: in waves that stopped because of what came back: how many of it, by code and group.
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
    wave: int = 0
    waves: list[WaveReport] = field(default_factory=list)
    causes: dict[str, int] = field(default_factory=dict)
    stopped: str | None = None

    @property
    def is_limited(self) -> bool:
        """Whether it ended because it had sent as many letters as it may."""
        return self.stopped is not None and self.stopped.startswith(_LIMITED)

    def look_again(self, *, failed: bool = True) -> None:
        """Forget the letters that stay: the next look finds them again. `failed`: also those that were refused."""
        self.considered -= sum(self.left.values())
        self.left.clear()
        if failed:
            self.considered -= self.failed
            self.selected -= self.failed
            self.failed = 0

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
        limit: the most letters that are sent: with a journal, by a run that was killed or interrupted and the next one
            together.
        rate: the most letters per second.
        dry_run: send and remove nothing.
        max_returns: stop when more letters than this were refused or came back; None: never stop for that. In waves,
            `Waves.stop_at` counts in place of it.
        stop: called again and again; True ends the run after the letters in flight are settled.
        on_progress: called with the report as it grows.
        on_edit: in a dry run with a patch, called with each of the first letters, its message as it would be sent
            unedited, and as it would be sent edited.
        edits: how many letters `on_edit` gets at most.
        on_going: in a dry run, called with the letters that would be sent.
    """

    limit: int | None = None
    rate: float | None = None
    dry_run: bool = False
    max_returns: int | None = MAX_RETURNS
    stop: Callable[[], bool] = lambda: False
    on_progress: Callable[[RedriveReport], None] = lambda _: None
    on_edit: Callable[[Letter, Message, Message], None] | None = None
    edits: int = 20
    on_going: Callable[[LetterBatch], object] | None = None

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
        look: opens the queue again, for `follow`.
        returned: counts the letters that came back; None: another process does.
        selection: which letters are moved.
        operation: redrive or forward.
        there: the destination's capabilities.
        settings: how far and how fast.
        journal: remembers letters that were sent and not yet removed; None: no journal.
        name: of this redrive in the journal (`name_of`), under which a run that was killed or interrupted goes on with
            what is left of its limit; None: another process sees to that.
        now_ms: the time to which ages are computed; None: the time of each look.
        earlier: for a dry run: letters that were sent before, digests by position.
        follow: look again after so many seconds, until stopped; None: look once.
        partial: the queue shows some letters only when earlier ones are gone.
        batches: letters are read in batches; False: one by one, as others may take those of a batch that waits.
        waves: send some, wait for what comes back, and send more only where little does; None: all at once.
        parked: returns the indices of the parked letters of a batch, as the place's triage knows them now. They stay.
    """

    def __init__(
        self,
        letters: DeadLetters,
        *,
        look: Callable[[], DeadLetters],
        returned: Returned | None,
        selection: Selection,
        operation: LetterOperation,
        there: Capabilities,
        settings: RedriveSettings,
        journal: Journal | None,
        clock: Clock,
        name: str | None = None,
        now_ms: int | None = None,
        earlier: Mapping[str, str] | None = None,
        follow: float | None = None,
        partial: bool = False,
        batches: bool = True,
        waves: Waves | None = None,
        parked: Callable[[LetterBatch], Sequence[int]] = lambda _: (),
    ) -> None:
        self.report = RedriveReport()
        self._letters = letters
        self._look = look
        self._returned = returned
        self._selection = selection
        self._operation = operation
        self._there = there
        self._settings = settings
        self._journal = journal
        self._clock = clock
        self._follow = follow
        self._partial = partial
        self._batches = batches
        self._parked = parked
        self._stay: set[str] = set()
        #: Letters that are confirmed at their destination and not known to be removed: digests by position.
        self._pending: dict[str, str] = dict(earlier or {})
        #: Letters that may have been sent: their digest and their form, by position.
        self._unsure: dict[str, tuple[str, str]] = {}
        #: Of the pending ones, the letters that the queue shows again.
        self._again: list[str] = []
        self._looked_ms = clock.wall_ms() if now_ms is None else now_ms
        self._name = name
        #: How many letters the run that this one continues has sent, and how many may be sent.
        self._before = 0
        self._limit = settings.limit
        self._usual = _CHUNK
        self._shown = 0
        self._removed: list[str] = []
        #: Digests of letters that were refused: a later wave does not send them again.
        self._refused: set[str] = set()
        self._waves = None
        if waves is not None and returned is not None and not settings.dry_run:
            self._waves = WaveRun(waves, returned, journal, clock)
        self._observer = RedriveObserver.of(operation.name, clock.wall_ms)

    def run(self, letter_sender: LetterSender | None) -> RedriveReport:
        """Move the letters by this sender; without one, which is a dry run, only count them."""
        if letter_sender is not None:
            self._begin()
            if self._waves is not None:
                self._waves.begin()
            elif self._returned is not None:
                self._returned.begin()
        rate = RateLimit(self._settings.rate)
        try:
            if self._waves is None or letter_sender is None:
                self._run(letter_sender, rate)
            else:
                self._run_waves(self._waves, letter_sender, rate)
        finally:
            self._note_removed()
        if letter_sender is not None and self.report.redriven and self._returned is not None and self._waves is None:
            self.report.returned = self._returned.count()
            self._settings.on_progress(self.report)
        if self._journal is not None and self._name is not None and self.report.stopped != INTERRUPTED:
            self._journal.finished()
        return self.report

    def _begin(self) -> None:
        """Find out what earlier runs have sent."""
        if self._journal is None:
            return
        self._pending = self._journal.pending()
        self._unsure = self._journal.unsure()
        if self._name is not None:
            self._before = self._journal.began(self._name)
            if self._limit is not None:
                self._limit = max(0, self._limit - self._before)
                if not self._limit:
                    self._selection = NOTHING  # what was sent is to be removed

    def _run(self, letter_sender: LetterSender | None, rate: RateLimit) -> None:
        self._pass(letter_sender, rate)
        while self._follow is not None and not self.report.stopped and self._waited(self._follow, letter_sender):
            self._look_anew(letter_sender, rate)
        if self._follow is not None and self.report.stopped == INTERRUPTED:
            self.report.stopped = None  # that is how following ends

    def _run_waves(self, waves: WaveRun, letter_sender: LetterSender, rate: RateLimit) -> None:
        """Send wave after wave. Each has its own look: a broker that cannot look without taking hides nothing."""
        report, more, limited = self.report, True, None
        while report.stopped is None:
            report.wave, report.returned = waves.wave.number, waves.known
            step = waves.step(more=more)
            if isinstance(step, Send):
                report.look_again(failed=False)
                self._stay.clear()
                self._again.clear()
                with self._look() as self._letters:
                    self._pass(letter_sender, rate)
                more = not waves.room
                if report.is_limited:
                    limited, report.stopped, more = report.stopped, None, False
            elif isinstance(step, Wait):
                waves.waiting()
                self._wait_for_returns(waves, step.seconds, letter_sender)
            elif isinstance(step, Begin):
                self._account_of(waves)
                waves.following()
            else:
                self._account_of(waves)
                report.stopped = limited
                if isinstance(step, Stop):
                    report.stopped, report.causes = waves.why()
                break
        self._settings.on_progress(report)

    def _account_of(self, waves: WaveRun) -> None:
        self.report.returned = waves.known
        if waves.wave.sent:
            self.report.waves = [*self.report.waves, waves.report()][-MAX_WAVES:]

    def _wait_for_returns(self, waves: WaveRun, seconds: float, letter_sender: LetterSender) -> None:
        """Wait until so many seconds are over, too many letters are known to be back, or the run is stopped."""
        self._note_removed()
        end = self._clock.monotonic() + seconds
        while (left := end - self._clock.monotonic()) > 0:
            if self._settings.stop():
                self.report.stopped = INTERRUPTED
                return
            letter_sender.beat()
            self._clock.sleep(min(left, _NAP))
            self.report.returned = waves.look()
            if waves.is_harmful:
                return
            self._settings.on_progress(self.report)
        self.report.returned = waves.count()

    def _pass(self, letter_sender: LetterSender | None, rate: RateLimit) -> None:
        """Move the letters that exist now."""
        again = True
        while again:
            gone = self.report.removed + self.report.resumed
            for chunk in self._chunks(rate):
                sure = self._sure(chunk)
                found = Sendable([], None) if sure is None else self._sendable(sure)
                if letter_sender is not None and sure is not None and found.messages is not None:
                    going = sure if len(found.going) == len(sure) else sure.take(found.going)
                    if self._may_send(rate, len(going)):
                        self._send(letter_sender, going, found.messages)
                self._settings.on_progress(self.report)
                if self._must_stop() or (self._waves is not None and (not self._waves.room or self._waves.is_harmful)):
                    break
            self._resume()
            if self._limit == 0 and self._settings.limit is not None:
                self.report.stopped = limit_reached(self._settings.limit, self._before)
            # Letters behind those that are gone are visible now.
            if self._waves is not None and (not self._waves.room or self._waves.is_harmful):
                break
            again = self._partial and not self.report.stopped and self.report.removed + self.report.resumed > gone

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

    def _chunks(self, rate: RateLimit) -> Iterator[LetterBatch]:
        """Return the letters that are meant, as many at a time as are sent together."""
        if not self._batches:
            single = self._single()
            while taken := _taken(single, self._size(rate)):
                yield LetterBatch.of(taken)
            return
        wanted = self._selection.wanted(self._looked_ms)
        for split in self._letters.splits(wanted):
            for batch in self._letters.read(split, wanted):
                meant = self._meant(batch)
                self._resume()  # while a broker that cannot look without taking still holds this batch
                first = 0
                while first < len(meant) and not self.report.stopped:
                    some = self._fitting(batch, meant[first : first + self._size(rate)])
                    first += len(some)
                    yield batch if len(some) == len(batch) else batch.take(some)

    def _single(self) -> Iterator[Letter]:
        """Return the letters that are meant, one by one."""
        for letter in self._letters.browse():
            if self._meant(LetterBatch.of([letter])):
                yield letter

    def _meant(self, batch: LetterBatch) -> Sequence[int]:
        """Return the indices of the letters that are selected, and neither stay nor were sent before."""
        rows: Sequence[int] = range(len(batch))
        positions = batch.position.values
        if self._pending:
            rows = [
                index for index in rows if positions[index] not in self._pending or not self._was_sent(batch, index)
            ]
        if self._stay:
            rows = [index for index in rows if positions[index] not in self._stay]
        return self._selection.admitted(batch, rows, self._looked_ms)

    def _fitting(self, batch: LetterBatch, rows: Sequence[int]) -> Sequence[int]:
        """Return the first of these rows that have no more than `_CHUNK_BYTES` together; at least one."""
        if batch.messages.nbytes <= _CHUNK_BYTES:
            return rows
        weight = 0
        for count, index in enumerate(rows, 1):
            weight += batch.messages.row(index).nbytes
            if weight >= _CHUNK_BYTES:
                return rows[:count]
        return rows

    def _size(self, rate: RateLimit) -> int:
        size = min(self._usual, rate.piece or self._usual)
        if self._waves is not None:
            size = max(1, min(size, self._waves.room))
        return size if self._limit is None else max(1, min(size, self._limit - self.report.selected))

    def _sure(self, chunk: LetterBatch) -> LetterBatch | None:
        """Return the letters that were surely not sent in another form; count the others, which stay.

        Nobody can tell whether those have arrived: sent in this form too, they might arrive in both.
        """
        if not self._unsure and self._waves is None:
            return chunk
        kept = []
        for index, position in enumerate(chunk.position.values):
            letter = chunk.letter(index)
            if self._refused and digest(letter) in self._refused:
                continue  # it is counted
            why = self._why_held(letter)
            if why is None:
                kept.append(index)
                continue
            self.report.considered += 1
            self.report.leave(why)
            if self._partial:
                self._stay.add(position)
        return chunk if len(kept) == len(chunk) else chunk.take(kept) if kept else None

    def _why_held(self, letter: Letter) -> str | None:
        said, form = self._unsure.get(letter.position, ("", self._operation.form))
        if form != self._operation.form and said == digest(letter):
            return _OTHERWISE if self._operation.form else EDITED
        if self._waves is not None:
            died = dead_since_ms(replace(letter, context=context_of(letter)))
            if died is not None and died > self._waves.began_ms:
                return _LATER
        return None

    def _sendable(self, chunk: LetterBatch) -> Sendable:
        report = self.report
        found = self._sendable_of(chunk)
        report.considered += len(chunk)
        report.selected += len(found.going)
        for why in found.left:
            report.leave(why)
        for target in found.targets:
            _count(report.targets, target)
        self._show_edits(chunk, found)
        if self._settings.on_going is not None and self._settings.dry_run and found.going:
            self._settings.on_going(chunk.take(found.going))
        if self._partial:  # those that stay are shown again
            positions = chunk.position.values
            self._stay.update(set(positions) - {positions[index] for index in found.going})
        return found

    def _sendable_of(self, chunk: LetterBatch) -> Sendable:
        """Return which of these letters are sent, and as what; parked letters stay."""
        parked = self._parked(chunk)
        if not parked:
            return sendable(self._operation, chunk, self._there)
        rest = sorted(set(range(len(chunk))).difference(parked))
        found = sendable(self._operation, chunk.take(rest), self._there) if rest else Sendable([], None)
        found.going = [rest[index] for index in found.going]
        found.left += [PARKED] * len(parked)
        return found

    def _show_edits(self, chunk: LetterBatch, found: Sendable) -> None:
        """Show what the first letters of a dry run would become."""
        show, unedited = self._settings.on_edit, self._operation.unedited
        if not self._settings.dry_run or show is None or unedited is None or found.messages is None:
            return
        for row, index in enumerate(found.going):
            if self._shown >= self._settings.edits:
                return
            self._shown += 1
            letter = chunk.letter(index)
            show(letter, unedited(letter, self._there, context_of(letter)), found.messages.row(row))

    def _send(self, letter_sender: LetterSender, going: LetterBatch, messages: Batch) -> None:
        letter_sender.refused.clear()
        if self._journal is not None and self._operation.noted:
            noted = dict(zip(going.position.values, digests_of(going), strict=True))
            self._journal.sending(noted, self._operation.form)
        try:
            with self._observed(going, messages, letter_sender):
                letter_sender.carry(going, messages)
        except BaseException as error:  # confirmed letters are removed, even if others fail
            try:
                self._account(going, letter_sender.confirmed, letter_sender.refused)
            except RedeliveryError as second:
                error.add_note(f"and then: {second}")
            raise
        confirmed = set(letter_sender.confirmed)
        self._account(going, letter_sender.confirmed, letter_sender.refused)
        if self._waves is not None:
            failed = [index for index in range(len(going)) if index not in confirmed]
            self._refused.update(digests_of(going.take(failed)) if failed else ())
            self._waves.sent(len(confirmed), len(failed))

    def _observed(
        self, going: LetterBatch, messages: Batch, letter_sender: LetterSender
    ) -> contextlib.AbstractContextManager[None]:
        if self._observer is None:
            return contextlib.nullcontext()

        def failure(index: int) -> Failure:
            said = context_of(going.letter(index))
            return Failure(said.traceparent, said.hops, None if said.code is None else str(said.code))

        return self._observer.sending(messages, failure, lambda: frozenset(letter_sender.confirmed))

    def _account(self, going: LetterBatch, confirmed: list[int], refused: Sequence[int]) -> None:
        """Count sent letters, note the confirmed ones in the journal, and remove them."""
        failed = len(going) - len(confirmed)
        self.report.redriven += len(confirmed)
        self.report.failed += failed
        self._usual = _CHUNK if failed else min(2 * self._usual, _MOST)
        sent = going if not failed else going.take(list(confirmed))
        confirmed.clear()
        positions = sent.position.values
        if self._partial:
            self._stay.update(set(going.position.values).difference(positions))
        if self._journal is not None and refused:
            unsent = [going.position.values[index] for index in refused]
            if not positions:
                self._journal.sent({}, (), unsent)
        else:
            unsent = []
        if not positions:
            return
        if self._journal is None:
            removed = 0
            try:
                removed = self._letters.remove(positions)
            finally:  # also where that raises: a later look only removes them
                if removed < len(positions):
                    self._pending.update(zip(positions, digests_of(sent), strict=True))
            self.report.removed += removed
            return
        noted = dict(zip(positions, digests_of(sent), strict=True))
        self._pending.update(noted)
        try:
            gone, self._removed = self._removed, []
            self._journal.sent(noted, gone, unsent)
        finally:  # without a note it must be removed all the more
            self.report.removed += self._remove(positions)

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
            self._removed += positions  # noted with what is sent next, or at the end

    def _note_removed(self) -> None:
        removed, self._removed = self._removed, []
        if self._journal is not None and removed:
            self._journal.removed(removed)

    def _was_sent(self, batch: LetterBatch, index: int) -> bool:
        """Whether this letter only has to be removed, as this run or an earlier one has sent it."""
        position = batch.position.values[index]
        if self._pending[position] != digest(batch.letter(index)):  # the queue was created again, and counts again
            self._forget([position])
            return False
        self._again.append(position)
        if len(self._again) >= _CHUNK:
            self._resume()
        return True

    def _resume(self) -> None:
        """Remove letters that were sent before and still exist."""
        some, self._again = self._again, []
        if some and not self._settings.dry_run:
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
            report.stopped = INTERRUPTED
        elif settings.limit is not None and self._limit is not None and report.selected >= self._limit:
            report.stopped = limit_reached(settings.limit, self._before)
        elif self._waves is not None:
            report.returned = self._waves.look() if report.redriven else self._waves.known
        elif settings.max_returns is not None and not settings.dry_run:
            if self._returned is not None and report.redriven:
                report.returned = self._returned.look()
            if report.failed + report.returned > settings.max_returns:
                report.stopped = harm(report)
        return report.stopped is not None


def limit_reached(limit: int, before: int) -> str:
    """Return why a redrive stops that has sent as many letters as it may; `before`: so many of them before a kill."""
    by_whom = f", {before} of them by the run that this one continued" if before else ""
    return f"{_LIMITED} {limit} letters is reached{by_whom}"


def name_of(*arguments: object) -> str:
    """Return the name of the redrive with these arguments: one that was killed goes on when it is called again."""
    return hashlib.sha256(repr(arguments).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def harm(report: RedriveReport) -> str:
    """Return why a redrive stops that does more harm than good."""
    return f"{report.failed} letters were refused and {report.returned} are dead letters again: mend the cause first"


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
    return _digest(message.id, message.key, message.timestamp_ms, message.headers, message.value)


def digests_of(letters: LetterBatch) -> list[str]:
    """Return the digest of each letter."""
    messages = letters.messages
    columns = (messages.id, messages.key, messages.timestamp_ms)
    values = [itertools.repeat(None) if column is None else column.values for column in columns]
    headers: Iterable[Headers] = itertools.repeat(()) if messages.headers is None else messages.headers.values
    return list(map(_digest, *values, headers, messages.value.values))


def _digest(name: str | None, key: bytes | None, time_ms: int | None, headers: Headers, value: bytes | None) -> str:
    # With its headers: the letter of a later failure of the same message has another time in them. In version 2 of the
    # format equal values are equal bytes, and it takes a fifth of the time of `repr`.
    try:
        written = marshal.dumps((name, key, time_ms, headers, value), 2)
    except ValueError:  # a client's own kind of text, bytes or number
        written = marshal.dumps(
            (
                name if name is None else str.__str__(name),
                key if key is None else bytes(key),
                time_ms if time_ms is None else int(time_ms),
                tuple((str.__str__(each), data if data is None else bytes(data)) for each, data in headers),
                value if value is None else bytes(value),
            ),
            2,
        )
    return hashlib.blake2b(written, digest_size=12).hexdigest()
