"""`Looker`: looks at one place again and again, and says what it found; letters stay where they are.

Where letters have cursors, a look reads only letters that came since the one before. What that cannot tell, as how old
the oldest letter is now that others were removed, comes from a look at the whole place, now and then. Where looking
takes letters from others, only the broker's own count is asked for, unless the operator allows more.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

from redelivery.base.clock import Clock
from redelivery.base.secrets import redact
from redelivery.codes import Code, code_of
from redelivery.deadletters.queue import DeadLetterQueue, dead_letters
from redelivery.deadletters.selection import Selection
from redelivery.deadletters.summary import Summary, summarise
from redelivery.deadletters.triage import Triage, default_path, exists
from redelivery.errors import BrokerError, ConfigurationError, JournalError, RedeliveryError
from redelivery.watch.rules import SeenGroup, Snapshot

log = logging.getLogger(__name__)

#: Looks at a whole place take at most this part of the time if looks in between read what came since.
_SHARE: Final = 0.02
#: And at most this part in any case.
_MOST: Final = 0.1
#: A look at a whole place comes at least this often, in seconds, unless that is too large a part of the time.
_AT_LEAST: Final = 3600.0
#: Groups that one look tells apart.
GROUPS: Final = 1000


class Stopped(Exception):
    """The watch ends: the look was given up."""


class Summarise(Protocol):
    """The signature of `deadletters.summary.summarise` that is used here."""

    def __call__(
        self,
        dlq: DeadLetterQueue,
        where: Selection | None = None,
        *,
        groups: int,
        stop: Callable[[], bool],
        triage: Triage | None,
        on_progress: Callable[[int], None],
    ) -> Summary:
        """Return what a queue holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """A place that is watched.

    Attributes:
        label: what people and metrics call it.
        url, sink, options, key: as `deadletters.dead_letters` takes them.
        broker: name of the plugin.
        takes: look at letters also where that takes them from others for a time.
    """

    label: str
    url: str
    broker: str
    sink: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    key: str | None = None
    takes: bool = False

    @property
    def identity(self) -> str:
        """What tells it from others on this machine, without secrets."""
        return "\n".join(redact(each) for each in (self.label, self.url, self.sink or ""))

    def open(self) -> DeadLetterQueue:
        """Return its letters. Raises RedeliveryError."""
        return dead_letters(self.url, sink=self.sink, options=self.options, key=self.key)


@dataclass(slots=True, kw_only=True)
class Known:
    """The state of a place, from all looks.

    Attributes:
        count, parked, oldest_ms: as in `Snapshot`.
        by_code: letters by code, as of the last whole look and with those that came since; None: not known.
        groups: letters of the largest groups, by fingerprint, like `by_code`; None: not known.
        others: letters of further groups.
        arrived: how many letters have arrived since the watch began, by code. Where letters have no cursors, by how
            many their number has risen: a lower bound.
        looked_ms: when the last look was, milliseconds since the epoch.
        whole_ms: when the last look at the whole place was.
        took: seconds that the last look took.
        only_counted: letters are not looked at, only counted.
        place: redacted URL of the dead letter queue; None: not known yet.
    """

    count: int | None = None
    parked: int = 0
    oldest_ms: int | None = None
    by_code: Counter[str] | None = None
    groups: Counter[str] | None = None
    others: int = 0
    arrived: Counter[str] = field(default_factory=Counter)
    looked_ms: int | None = None
    whole_ms: int | None = None
    took: float = 0.0
    only_counted: bool = False
    place: str | None = None


class Looker:
    """Looks at one place. Used by one thread at a time.

    Args:
        place: which.
        clock: the time.
        stop: whether the watch ends: a look is given up.
        progress: called as letters are read, with their number.
        opened: opens the place.
        summarised: reads letters.
    """

    def __init__(
        self,
        place: Watched,
        clock: Clock,
        *,
        stop: Callable[[], bool] = lambda: False,
        progress: Callable[[int], None] = lambda _: None,
        opened: Callable[[Watched], DeadLetterQueue] = Watched.open,
        summarised: Summarise = summarise,
    ) -> None:
        self._place = place
        self._clock = clock
        self._stop = stop
        self._progress = progress
        self._opened = opened
        self._summarise = summarised
        #: Where the last look ended; None: not known, or letters have no cursors.
        self._cursor: str | None = None
        self._next_whole = self._earliest_whole = float("-inf")
        #: When the last look that succeeded was; arrivals are counted from then on.
        self._since_ms: int | None = None
        self.known = Known()

    @property
    def affords(self) -> bool:
        """Whether a look at the whole place would take no more than its part of the time."""
        return self._clock.monotonic() >= self._earliest_whole

    def look(self, *, whole: bool = False) -> Snapshot:
        """Look, and return what was found; a place that cannot be looked at is found so, and raises nothing.

        Args:
            whole: look at the whole place, whatever that takes.

        Raises:
            Stopped: the watch ends.
        """
        began = self._clock.monotonic()
        try:
            with self._opened(self._place) as dlq:
                found = self._look(dlq, whole=whole)
        except RedeliveryError as error:
            missing = isinstance(error, ConfigurationError) or (
                isinstance(error, BrokerError) and error.code is Code.NO_SUCH_DESTINATION
            )
            return self._failed(redact(str(error)), missing=missing)
        except Stopped:
            raise
        except Exception as error:
            log.exception("watch: %s: a defect", self._place.label)
            return self._failed(f"a defect: {type(error).__name__}")
        now_ms = self._clock.wall_ms()
        self.known.took = self._clock.monotonic() - began
        self.known.looked_ms = self._since_ms = now_ms
        known = self.known
        return replace(found, at_ms=now_ms, count=known.count, parked=known.parked, oldest_ms=known.oldest_ms)

    def _failed(self, why: str, *, missing: bool = False) -> Snapshot:
        return Snapshot(at_ms=self._clock.wall_ms(), failed=" ".join(why.split()), missing=missing)

    def _look(self, dlq: DeadLetterQueue, *, whole: bool) -> Snapshot:
        """Look at letters, or count them; without the time, the count and the age, which `look` adds."""
        self.known.place = dlq.place
        self.known.only_counted = dlq.looking_takes and not self._place.takes
        if self.known.only_counted:
            return self._count(dlq.depth())
        end = dlq.made()
        due = whole or self._clock.monotonic() >= self._next_whole
        if end is None:
            return self._whole(dlq, None) if due else self._unseen()
        try:
            came = None if self._cursor is None else self._came(dlq, self._cursor, end)
        except (BrokerError, ConfigurationError) as error:
            # Not a cursor of this place: what was remembered is of another one.
            if isinstance(error, BrokerError) and error.code is not Code.CONFLICT:
                raise
            log.warning("watch: %s was made again: it is looked at as a new place", self._place.label)
            came = None
        found = came or Snapshot(at_ms=0)
        if due or came is None:
            seen = self._whole(dlq, end)
            found = replace(seen, arrived=found.arrived, since_ms=found.since_ms, others=max(seen.others, found.others))
        self._cursor = end
        return found

    def _count(self, count: int | None) -> Snapshot:
        """Note the broker's own count."""
        before, self.known.count = self.known.count, count
        rise = None if before is None or count is None else max(0, count - before)
        if rise is None:
            return self._unseen()
        arrived = {Code.UNKNOWN.value: rise} if rise else {}
        self.known.arrived.update(arrived)
        return Snapshot(at_ms=0, arrived=arrived, since_ms=self._since_ms)

    def _unseen(self) -> Snapshot:
        return Snapshot(at_ms=0)

    def _came(self, dlq: DeadLetterQueue, after: str, before: str) -> Snapshot:
        """Look at the letters that came since the last look."""
        if before == after:
            return Snapshot(at_ms=0, since_ms=self._since_ms, groups=())
        found = self._read(dlq, Selection().between(after, before))
        known, codes, seen = self.known, _codes(found), _groups(found)
        known.arrived.update(codes)
        known.count = None if known.count is None else known.count + found.count
        known.by_code = None if known.by_code is None else known.by_code + codes
        if known.groups is not None:
            for each in seen:
                if each.fingerprint in known.groups or len(known.groups) < GROUPS:
                    known.groups[each.fingerprint] += each.count
                else:
                    known.others += each.count
            known.others += found.others
        known.parked += found.parked
        known.oldest_ms = min((each for each in (known.oldest_ms, _oldest_ms(found)) if each is not None), default=None)
        return Snapshot(at_ms=0, arrived=codes, since_ms=self._since_ms, groups=seen, others=found.others)

    def _whole(self, dlq: DeadLetterQueue, end: str | None) -> Snapshot:
        """Look at all letters, up to a cursor."""
        began = self._clock.monotonic()
        found = self._read(dlq, None if end is None else Selection().between(None, end))
        ended = self._clock.monotonic()
        took = ended - began
        share = _MOST if end is None else _SHARE
        self._earliest_whole = ended + took / _MOST
        self._next_whole = max(self._earliest_whole, ended + min(took / share, _AT_LEAST))
        known, codes, seen = self.known, _codes(found), _groups(found)
        arrived: Counter[str] = Counter()
        since_ms = None
        if end is None and known.by_code is not None:
            arrived, since_ms = codes - known.by_code, known.whole_ms
            known.arrived.update(arrived)
        known.count, known.parked, known.oldest_ms = found.count, found.parked, _oldest_ms(found)
        known.by_code = codes
        known.groups, known.others = Counter({each.fingerprint: each.count for each in seen}), found.others
        known.whole_ms = self._clock.wall_ms()
        return Snapshot(at_ms=0, arrived=arrived, since_ms=since_ms, groups=seen, whole=True, others=found.others)

    def _read(self, dlq: DeadLetterQueue, where: Selection | None) -> Summary:
        with ExitStack() as opened:
            triage = self._triage(dlq.place, opened)
            found = self._summarise(
                dlq, where, groups=GROUPS, stop=self._stop, triage=triage, on_progress=self._progress
            )
        if self._stop():
            raise Stopped
        return found

    def _triage(self, place: str, opened: ExitStack) -> Triage | None:
        """Return what is parked at this place; nothing, where that cannot be read."""
        try:
            path = default_path(place)
            return opened.enter_context(Triage(path, place)) if exists(path) else None
        except (JournalError, ConfigurationError) as error:
            log.warning("watch: %s: parked letters count like others: %s", self._place.label, error)
            return None

    # --- what a restart remembers ---

    def to_dict(self) -> dict[str, Any]:
        """Return what is remembered, for a file of JSON."""
        counted = self.known.only_counted
        return {
            "cursor": self._cursor,
            "since_ms": self._since_ms,
            "count": self.known.count if counted else None,
        }

    def remember(self, said: Mapping[str, Any]) -> None:
        """Go on where `to_dict` left off: letters that came since then have arrived.

        Raises:
            ValueError: this is something else.
        """
        cursor, since_ms, count = (said.get(name) for name in ("cursor", "since_ms", "count"))
        if (
            not isinstance(cursor, str | None)
            or not isinstance(since_ms, int | None)
            or not isinstance(count, int | None)
        ):
            raise ValueError("not what was remembered of a place")  # noqa: TRY004 - it is about the file
        self._cursor, self._since_ms, self.known.count = cursor, since_ms, count


def _codes(found: Summary) -> Counter[str]:
    """Return letters by code, each of the closed vocabulary."""
    codes: Counter[str] = Counter()
    for name, count in found.by_code.items():
        codes[(code_of(name) or Code.UNKNOWN).value] += count
    return codes


def _oldest_ms(found: Summary) -> int | None:
    """Return when the oldest letter was dead-lettered; groups that are parked whole do not count."""
    if not found.parked or found.others:
        return found.oldest_ms
    return min(
        (each.oldest_ms for each in found.groups if each.oldest_ms is not None and each.parked < each.count),
        default=None,
    )


def _groups(found: Summary) -> list[SeenGroup]:
    return [
        SeenGroup(
            fingerprint=each.fingerprint,
            count=each.count,
            code=(code_of(each.code) or Code.UNKNOWN).value,
            message=each.message,
            destination=each.destination,
        )
        for each in found.groups
    ]
