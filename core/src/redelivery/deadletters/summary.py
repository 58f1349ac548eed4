"""`summarise`: what a dead letter queue holds, in one pass: how many, since when, why, in which groups.

Bounded memory, whatever foreign letters say: groups and names are bounded in number, and the rest is counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import TYPE_CHECKING, Final, Protocol

from redelivery.base.secrets import redact
from redelivery.contract.context import ErrorContext, sound
from redelivery.contract.letters import LetterBatch
from redelivery.deadletters import groups as grouping
from redelivery.deadletters.groups import Cause
from redelivery.deadletters.selection import Selection, since_ms
from redelivery.deadletters.trust import contexts_of
from redelivery.formats.rows import size_of

if TYPE_CHECKING:
    from redelivery.deadletters.queue import DeadLetterQueue
    from redelivery.deadletters.triage import Parked

#: And by this: how long ago they were dead-lettered.
AGE: Final = "age"
UNKNOWN: Final = "unknown"
_AGES: Final = ((60, "under a minute"), (3600, "under an hour"), (86400, "under a day"), (7 * 86400, "under a week"))
_OLDER: Final = "a week and more"
#: Counts the letters of names that are not kept.
OTHERS: Final = "(others)"
#: Names that are kept of each kind, about.
NAMES: Final = 1000
#: The longest name, in characters.
_LONGEST: Final = 500
#: Groups in memory, as a multiple of those that are returned: a large group among many small ones is found, too.
_SLACK: Final = 4
#: The fields of a context that `BY` reads.
_FIELDS: Final = (
    "kind",
    "code",
    "native_code",
    "reason",
    "subscriber",
    "destination",
    "source_topic",
    "maybe_delivered",
)
#: Widths of the bins of a plot, in milliseconds: a minute, up to four weeks.
_MINUTE: Final = 60_000
_WIDTHS: Final = tuple(_MINUTE * n for n in (1, 5, 15, 60, 3 * 60, 6 * 60, 1440, 7 * 1440, 28 * 1440))
#: Bins in memory. Where letters lie in more of them, bins become wider.
_FINE: Final = 4096
#: The part of the letters that a plot shows at least: one letter with an impossible time must not stretch it.
_SHOWN: Final = 0.99


def _reason(context: ErrorContext) -> str:
    return ": ".join(filter(None, (context.kind, context.label))) or context.reason or UNKNOWN


def _source(context: ErrorContext) -> str:
    said = context.subscriber and f"subscription {context.subscriber}"
    return said or context.destination or context.source_topic or UNKNOWN


#: What letters are counted by, besides groups: how a context is named.
BY: Final[dict[str, Callable[[ErrorContext], str]]] = {
    "code": lambda context: context.code or UNKNOWN,
    "native_code": lambda context: context.native_code or UNKNOWN,
    "reason": _reason,
    "source": _source,
}


@dataclass(slots=True, kw_only=True)
class GroupSummary:
    """Letters of one cause.

    Attributes:
        fingerprint: of the group (`groups.fingerprint`); `--where group=FINGERPRINT` selects it.
        code, kind, native_code, exception, destination: what they have in common; "" where unknown. Redacted.
        message: what their messages have in common, with `<*>` for what varies. Redacted.
        example_id, example_position: of one of its letters, the first that was found.
        count: letters.
        oldest_ms, newest_ms: when the first and the last of them were dead-lettered, milliseconds since the epoch; None
            where unknown.
        parked: of its letters, those that are parked; all where the group is.
    """

    fingerprint: str
    code: str = ""
    kind: str = ""
    native_code: str = ""
    exception: str = ""
    destination: str = ""
    message: str = ""
    example_id: str | None = None
    example_position: str = ""
    count: int = 0
    oldest_ms: int | None = None
    newest_ms: int | None = None
    parked: int = 0


@dataclass(slots=True, kw_only=True)
class Summary:
    """The contents of a dead letter queue, counted.

    Attributes:
        count: letters.
        nbytes: of their messages.
        maybe_delivered: letters whose message may have arrived all the same.
        oldest_ms, newest_ms: when the first and the last of them were dead-lettered, milliseconds since the epoch; None
            where no letter says when.
        undated: letters of which nothing says when.
        parked: letters that are parked, by themselves or with their group; 0 where no triage was given.
        by: counts by name, for each name in `BY` and `AGE`; at most about `NAMES` names each, then `OTHERS`.
        groups: the largest groups, largest first.
        others: letters of further groups. Where there are some, counts of the groups above may be too low.
        arrivals: letters by the time at which they were dead-lettered: the beginning of each bin (milliseconds since
            the epoch) and the count in it, oldest first, without gaps.
        bin_ms: the width of a bin.
        earlier, later: dated letters before the first bin, and behind the last one.
    """

    count: int = 0
    nbytes: int = 0
    maybe_delivered: int = 0
    oldest_ms: int | None = None
    newest_ms: int | None = None
    undated: int = 0
    parked: int = 0
    by: dict[str, Counter[str]] = field(default_factory=lambda: {name: Counter() for name in (*BY, AGE)})
    groups: list[GroupSummary] = field(default_factory=list)
    others: int = 0
    arrivals: list[tuple[int, int]] = field(default_factory=list)
    bin_ms: int = _MINUTE
    earlier: int = 0
    later: int = 0

    @property
    def by_code(self) -> Counter[str]:
        """How many letters each code has."""
        return self.by["code"]


class KnowsParked(Protocol):
    """The parked letters of a place: known by its triage, or by the queue itself."""

    def parked(self) -> Parked:
        """Return what is parked now. Raises JournalError."""


def summarise(
    dlq: DeadLetterQueue,
    where: Selection | None = None,
    *,
    threads: int = 1,
    groups: int = NAMES,
    bins: int = 60,
    triage: KnowsParked | None = None,
    stop: Callable[[], bool] = lambda: False,
    on_progress: Callable[[int], None] = lambda _: None,
) -> Summary:
    """Return what a queue holds. Letters stay in place.

    Args:
        dlq: the queue.
        where: only the selected letters.
        threads: how many read side by side, where the broker allows it.
        groups: the most groups that are returned; 0: letters are not grouped, which is faster.
        bins: the most bins of `Summary.arrivals`.
        triage: of the place, or `dlq` itself: parked letters are counted.
        stop: called after each batch; True ends it, and what was counted so far is returned.
        on_progress: called with the number of letters counted so far.

    Raises:
        BrokerError: the place cannot be read.
    """
    found = _Gathered(groups, bins)
    now_ms = dlq.now_ms()
    look = _Look(now_ms, grouped=groups > 0, triage=triage)
    for some in dlq.scan(look, where, threads=threads):
        found.add(some)
        on_progress(found.summary.count)
        if stop():
            break
    return found.finished(now_ms)


@dataclass(slots=True)
class _Some:
    """What one batch holds; made by the thread that has read it."""

    count: int
    nbytes: int
    maybe: int
    by: dict[str, Counter[str]]
    minutes: Counter[int]
    oldest_ms: int | None
    newest_ms: int | None
    undated: int
    parked: int
    groups: dict[str, GroupSummary]


class _Look:
    """Counts a batch."""

    def __init__(self, now_ms: int, *, grouped: bool, triage: KnowsParked | None) -> None:
        self._now_ms = now_ms
        self._fields = tuple(dict.fromkeys((*_FIELDS, *grouping.FIELDS))) if grouped else _FIELDS
        self._grouped = grouped
        self._parked = None if triage is None else triage.parked()

    def __call__(self, batch: LetterBatch) -> _Some:
        columns = contexts_of(batch, (*self._fields, "last_failure_ms"))
        said = list(zip(*(columns[name] for name in self._fields), strict=True))
        by: dict[str, Counter[str]] = {name: Counter() for name in BY}
        maybe = 0
        for each, count in Counter(said).items():
            context = sound(ErrorContext(**dict(zip(self._fields, each, strict=True))))
            maybe += count * context.maybe_delivered
            for name, of in BY.items():
                by[name][of(context)[:_LONGEST]] += count
        times = _times(batch, columns["last_failure_ms"])
        dated = [each for each in times if each is not None]
        by[AGE] = Counter([_age(each, self._now_ms) for each in times])
        parked = () if not self._parked else self._parked.rows(batch)
        return _Some(
            count=len(batch),
            nbytes=size_of(batch.messages),
            maybe=maybe,
            by=by,
            minutes=Counter([each // _MINUTE for each in dated]),
            oldest_ms=min(dated, default=None),
            newest_ms=max(dated, default=None),
            undated=len(times) - len(dated),
            parked=len(parked),
            groups=self._groups(batch, said, times, parked) if self._grouped else {},
        )

    def _groups(
        self,
        batch: LetterBatch,
        said: Sequence[tuple[str | None, ...]],
        times: Sequence[int | None],
        parked: Sequence[int],
    ) -> dict[str, GroupSummary]:
        at = [self._fields.index(name) for name in grouping.FIELDS]
        of: dict[tuple[str | None, ...], GroupSummary] = {}
        found: dict[str, GroupSummary] = {}
        ids = repeat(None) if batch.messages.id is None else batch.messages.id.values
        for each, time, name, position in zip(said, times, ids, batch.position.values):  # noqa: B905 - `repeat` has no end
            group = of.get(each)
            if group is None:
                fingerprint, cause = grouping.known(tuple(each[index] for index in at))
                group = found.get(fingerprint)
                if group is None:
                    group = found[fingerprint] = _group(fingerprint, cause, name, position)
                of[each] = group
            group.count += 1
            if time is not None:
                if group.oldest_ms is None or time < group.oldest_ms:
                    group.oldest_ms = time
                if group.newest_ms is None or time > group.newest_ms:
                    group.newest_ms = time
        for row in parked:
            of[said[row]].parked += 1
        return found


def _group(fingerprint: str, cause: Cause, name: str | None, position: str) -> GroupSummary:
    return GroupSummary(fingerprint=fingerprint, **cause._asdict(), example_id=name, example_position=position)


def _times(batch: LetterBatch, last_failure_ms: Sequence[int | None]) -> list[int | None]:
    """Return when each letter was given up, as far as known."""
    nothing: list[int | None] = [None] * len(batch)
    dead, sent = batch.dead_lettered_ms, batch.messages.timestamp_ms
    known = zip(
        nothing if dead is None else dead.values,
        last_failure_ms,
        nothing if sent is None else sent.values,
        strict=True,
    )
    return [since_ms(*each) for each in known]


class _Gathered:
    """The counts so far."""

    def __init__(self, groups: int, bins: int) -> None:
        self.summary = Summary()
        self._groups: dict[str, GroupSummary] = {}
        self._most = groups
        self._bins = bins
        self._width = 0
        self._fine: Counter[int] = Counter()

    def add(self, some: _Some) -> None:
        """Add what a batch holds."""
        total = self.summary
        total.count += some.count
        total.nbytes += some.nbytes
        total.maybe_delivered += some.maybe
        total.undated += some.undated
        total.parked += some.parked
        total.oldest_ms = min(_known(total.oldest_ms, some.oldest_ms), default=None)
        total.newest_ms = max(_known(total.newest_ms, some.newest_ms), default=None)
        for name, counts in some.by.items():
            _bounded(total.by[name], counts)
        for fingerprint, group in some.groups.items():
            self._add_group(fingerprint, group)
        if len(self._groups) > _SLACK * self._most:
            self._forget(_SLACK * self._most // 2)
        self._add_times(some.minutes)

    def _add_group(self, fingerprint: str, group: GroupSummary) -> None:
        known = self._groups.setdefault(fingerprint, group)
        if known is group:
            return
        known.count += group.count
        known.parked += group.parked
        known.oldest_ms = min(_known(known.oldest_ms, group.oldest_ms), default=None)
        known.newest_ms = max(_known(known.newest_ms, group.newest_ms), default=None)

    def _forget(self, most: int) -> None:
        """Keep the largest groups."""
        largest = sorted(self._groups.values(), key=_by_size)
        self.summary.others += sum(each.count for each in largest[most:])
        self._groups = {each.fingerprint: each for each in largest[:most]}

    def _add_times(self, minutes: Counter[int]) -> None:
        factor = _WIDTHS[self._width] // _MINUTE
        for minute, count in minutes.items():
            self._fine[minute // factor] += count
        while len(self._fine) > _FINE and self._width + 1 < len(_WIDTHS):
            self._widen()

    def _widen(self) -> None:
        """Make bins of the next width."""
        old, new = _WIDTHS[self._width], _WIDTHS[self._width + 1]
        self._width += 1
        fine: Counter[int] = Counter()
        for at, count in self._fine.items():
            fine[at * old // new] += count
        self._fine = fine

    def finished(self, now_ms: int) -> Summary:
        """Return the whole."""
        total = self.summary
        self._forget(self._most)
        for group in self._groups.values():
            for name in ("native_code", "exception", "destination", "message"):
                setattr(group, name, redact(getattr(group, name)))
        total.groups = list(self._groups.values())
        self._plot(now_ms)
        return total

    def _plot(self, now_ms: int) -> None:
        """Make the bins: as narrow as possible, so that they show nearly all letters up to now."""
        total = self.summary
        until_ms = min(now_ms, max(total.newest_ms or 0, 0))
        while True:
            width = _WIDTHS[self._width]
            last = until_ms // width
            total.later = sum(count for at, count in self._fine.items() if at > last)
            before = last - self._bins
            total.earlier = sum(count for at, count in self._fine.items() if at <= before)
            dated = sum(self._fine.values()) - total.later
            if self._width + 1 == len(_WIDTHS) or total.earlier <= (1 - _SHOWN) * dated:
                break
            self._widen()
        first = min((at for at in self._fine if before < at <= last), default=None)
        total.bin_ms = width
        total.arrivals = [] if first is None else [(at * width, self._fine[at]) for at in range(first, last + 1)]


def _known(*moments: int | None) -> Iterator[int]:
    return (each for each in moments if each is not None)


def _by_size(group: GroupSummary) -> tuple[int, str]:
    return -group.count, group.fingerprint


def _bounded(total: Counter[str], more: Counter[str]) -> None:
    """Add counts by name. Where the names are too many, keep the largest: others choose them."""
    total.update(more)
    if len(total) > _SLACK * NAMES:
        others = total.pop(OTHERS, 0)
        kept = total.most_common(NAMES)
        others += sum(total.values()) - sum(count for _, count in kept)
        total.clear()
        total.update(dict(kept))
        total[OTHERS] = others


def _age(since: int | None, now_ms: int) -> str:
    if since is None:
        return UNKNOWN
    return next((name for seconds, name in _AGES if now_ms - since < seconds * 1000), _OLDER)
