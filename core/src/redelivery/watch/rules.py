"""`Alerts`: which alerts a place has, from what each look found. Pure: the time is part of what was found.

An alert is raised once and resolved once: between the level that raises it and the level that resolves it, nothing
happens. A look that failed says nothing about letters, so it does not change alerts about letters.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import StrEnum
from typing import Any, Final

#: An alert by the oldest letter is resolved below this part of its limit, one by growth at or below this part of its.
_YOUNGER: Final = 0.9
_SLOWER: Final = 0.5
#: So many looks must agree on whether a place can be reached.
CONFIRM: Final = 2
#: A group is new for so many milliseconds, or until none of its letters is left.
NEW_FOR_MS: Final = 3_600_000
#: More groups than these are not alerted one by one: anyone may write letters that all differ.
MOST_NEW: Final = 20
#: Groups that are remembered; then those are forgotten that were not seen for longest.
MOST_KNOWN: Final = 10_000
#: The window of growth is divided into so many parts.
_PARTS: Final = 60
_MOST_SAMPLES: Final = 4 * _PARTS
#: The subject of the alert for groups that are not told apart.
MORE: Final = "more"
#: Characters of foreign text that are remembered of an alert.
_LONGEST_TEXT: Final = 1000


class Rule(StrEnum):
    """Why an alert is raised."""

    OLDEST = "oldest"
    GROWTH = "growth"
    NEW_GROUP = "new-group"
    UNREACHABLE = "unreachable"


@dataclass(frozen=True, slots=True)
class Growth:
    """So many letters within a time.

    Attributes:
        count: letters, at least 1.
        window: longer than 0.
    """

    count: int
    window: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The alerts that are wanted at one place. A place that cannot be looked at always raises one.

    Attributes:
        older_than: the oldest letter is so old; None: no such alert.
        growth: so many letters arrive within a time; None: no such alert.
        new_group: letters arrive of a group that was never seen at this place.
        confirm: so many looks one after the other fail before a place counts as unreachable, and succeed before it
            counts as reachable again.
    """

    older_than: timedelta | None = None
    growth: Growth | None = None
    new_group: bool = False
    confirm: int = CONFIRM


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenGroup:
    """Letters that failed alike.

    Attributes:
        fingerprint: names the group.
        count: its letters that this look found.
        code: why they failed.
        message: the normalised reason; foreign text.
        destination: where they failed; redacted.
    """

    fingerprint: str
    count: int
    code: str = ""
    message: str = ""
    destination: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What one look at a place found.

    Attributes:
        at_ms: when, milliseconds since the epoch.
        failed: why the place could not be looked at; then nothing else is known. None: it was.
        missing: `failed` because the place does not exist.
        count: letters; None: not known.
        parked: of them, those that are parked.
        oldest_ms: when the oldest letter was dead-lettered that is not parked; None: not known, or no letter.
        arrived: how many letters have arrived since `since_ms`, by code.
        since_ms: when the look before this one was; None: nothing is known of arrivals, as at the first look.
        groups: those seen in this look; None: groups were not looked at.
        whole: `groups` has all groups of the place, not only those of letters that arrived.
        others: letters of further groups, which are not told apart.
    """

    at_ms: int
    failed: str | None = None
    missing: bool = False
    count: int | None = None
    parked: int = 0
    oldest_ms: int | None = None
    arrived: Mapping[str, int] = field(default_factory=dict)
    since_ms: int | None = None
    groups: Sequence[SeenGroup] | None = None
    whole: bool = False
    others: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """An alert that is raised or resolved, as people read it.

    Attributes:
        rule: why.
        subject: what of the place: a group's fingerprint; empty: the place itself.
        raised_ms: when it was raised, milliseconds since the epoch.
        text: one sentence, without the name of the place.
        value: what was measured: seconds for `oldest`, letters for `growth` and `new-group`, looks for `unreachable`.
        limit: the level that raised it, in the same unit.
        code: of a group.
    """

    rule: Rule
    subject: str = ""
    raised_ms: int
    text: str
    value: float
    limit: float | None = None
    code: str = ""


@dataclass(frozen=True, slots=True)
class Change:
    """An alert was raised; or resolved, at `resolved_ms`."""

    alert: Alert
    resolved_ms: int | None = None


@dataclass(frozen=True, slots=True)
class _Sample:
    """So many letters arrived between two times."""

    from_ms: int
    to_ms: int
    count: int

    def within(self, since_ms: int) -> float:
        """Return how many arrived at that time or later, if they arrived evenly."""
        if self.from_ms >= since_ms:
            return self.count
        if self.to_ms <= since_ms:
            return 0.0
        return self.count * (self.to_ms - since_ms) / (self.to_ms - self.from_ms)


class Alerts:
    """The alerts of one place. Its memory is bounded, whatever letters say.

    Args:
        rules: what is alerted.
    """

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._active: dict[tuple[Rule, str], Alert] = {}
        self._samples: list[_Sample] = []
        #: When each known group was last seen; None until groups were looked at once: then none of them is new.
        self._known: dict[str, int] | None = None
        #: How many looks in a row have failed, and how many have succeeded.
        self._failed = self._succeeded = 0

    @property
    def active(self) -> Sequence[Alert]:
        """The alerts that are not resolved, in the order in which they were raised."""
        return list(self._active.values())

    def doubts(self, found: Snapshot) -> bool:
        """Whether a look would raise an alert by age: of a letter that may be gone, if not all were looked at."""
        limit = self._rules.older_than
        if limit is None or found.failed is not None or found.whole or found.oldest_ms is None:
            return False
        old = found.at_ms - found.oldest_ms >= limit // timedelta(milliseconds=1)
        return old and (Rule.OLDEST, "") not in self._active

    def judge(self, found: Snapshot) -> list[Change]:
        """Return which alerts a look raises and resolves."""
        changes = [*self._reachable(found)]
        if found.failed is None:
            changes += [*self._oldest(found), *self._grown(found), *self._new_groups(found)]
        return changes

    # --- the rules ---

    def _reachable(self, found: Snapshot) -> Iterator[Change]:
        if found.failed is None:
            self._failed, self._succeeded = 0, self._succeeded + 1
            if self._succeeded >= self._rules.confirm:
                yield from self._resolve(Rule.UNREACHABLE, at_ms=found.at_ms)
            return
        self._failed, self._succeeded = self._failed + 1, 0
        if self._failed >= self._rules.confirm:
            what = "does not exist" if found.missing else "cannot be looked at"
            yield from self._raise(
                Alert(
                    rule=Rule.UNREACHABLE,
                    raised_ms=found.at_ms,
                    text=f"{what}: {found.failed}",
                    value=self._failed,
                    limit=self._rules.confirm,
                )
            )

    def _oldest(self, found: Snapshot) -> Iterator[Change]:
        limit = self._rules.older_than
        if limit is None:
            yield from self._resolve(Rule.OLDEST, at_ms=found.at_ms)
            return
        if found.count is not None and found.count <= found.parked:
            age = 0.0
        elif found.oldest_ms is None:
            return
        else:
            age = max(0, found.at_ms - found.oldest_ms) / 1000
        most = limit.total_seconds()
        if age >= most:
            text = f"the oldest dead letter is {span(age)} old (limit {span(most)})"
            alert = Alert(rule=Rule.OLDEST, raised_ms=found.at_ms, text=text, value=age, limit=most)
            yield from self._raise(alert)
        elif age < most * _YOUNGER:
            yield from self._resolve(Rule.OLDEST, at_ms=found.at_ms)

    def _grown(self, found: Snapshot) -> Iterator[Change]:
        rule = self._rules.growth
        if rule is None:
            self._samples.clear()
            yield from self._resolve(Rule.GROWTH, at_ms=found.at_ms)
            return
        window_ms = rule.window // timedelta(milliseconds=1)
        if found.since_ms is not None:
            self._sample(_Sample(min(found.since_ms, found.at_ms), found.at_ms, sum(found.arrived.values())), window_ms)
        since_ms = found.at_ms - window_ms
        # A sample from the future was taken before the clock was set back.
        kept = [each for each in self._samples if since_ms < each.to_ms and each.from_ms <= found.at_ms]
        self._samples = kept[-_MOST_SAMPLES:]
        arrived = sum(each.within(since_ms) for each in self._samples)
        if arrived >= rule.count:
            seconds = rule.window.total_seconds()
            text = f"{int(arrived):,} dead letters arrived within {span(seconds)} (limit {rule.count:,})"
            alert = Alert(rule=Rule.GROWTH, raised_ms=found.at_ms, text=text, value=int(arrived), limit=rule.count)
            yield from self._raise(alert)
        elif arrived <= rule.count * _SLOWER:
            yield from self._resolve(Rule.GROWTH, at_ms=found.at_ms)

    def _sample(self, sample: _Sample, window_ms: int) -> None:
        last = self._samples[-1] if self._samples else None
        if last is not None and last.to_ms == sample.from_ms and sample.to_ms - last.from_ms <= window_ms // _PARTS:
            self._samples[-1] = _Sample(last.from_ms, sample.to_ms, last.count + sample.count)
        else:
            self._samples.append(sample)

    def _new_groups(self, found: Snapshot) -> Iterator[Change]:
        if found.groups is not None:
            if self._known is None:
                if not found.whole:
                    return
                self._known = {}
                self._learn(found)
            else:
                new = [each for each in found.groups if each.fingerprint not in self._known]
                self._learn(found)
                if self._rules.new_group:
                    yield from self._alert_new(new, found)
        present = {each.fingerprint for each in found.groups or ()}
        for rule, subject in list(self._active):
            if rule is Rule.NEW_GROUP:
                alert = self._active[rule, subject]
                gone = found.whole and not found.others and subject not in present and subject != MORE
                if gone or not self._rules.new_group or not 0 <= found.at_ms - alert.raised_ms < NEW_FOR_MS:
                    yield from self._resolve(rule, subject, at_ms=found.at_ms)

    def _learn(self, found: Snapshot) -> None:
        known = self._known if self._known is not None else {}
        for each in found.groups or ():
            known.pop(each.fingerprint, None)
            known[each.fingerprint] = found.at_ms
        while len(known) > MOST_KNOWN:
            del known[next(iter(known))]

    def _alert_new(self, new: Sequence[SeenGroup], found: Snapshot) -> Iterator[Change]:
        active = sum(rule is Rule.NEW_GROUP and subject != MORE for rule, subject in self._active)
        # Where not all groups are known by name, one that was among the rest before may look new.
        alone = 0 if found.others else max(0, MOST_NEW - active)
        for each in new[:alone]:
            what = f"dead letters of a new group, {each.fingerprint}: {each.count:,}, {each.code or 'UNKNOWN'}"
            text = f"{what}: {each.message[:_LONGEST_TEXT]}" if each.message else what
            yield from self._raise(
                Alert(
                    rule=Rule.NEW_GROUP,
                    subject=each.fingerprint,
                    raised_ms=found.at_ms,
                    text=text,
                    value=each.count,
                    code=each.code,
                )
            )
        rest = new[alone:]
        if rest:
            text = f"dead letters of {len(rest):,} more new groups: {sum(each.count for each in rest):,}"
            value = len(rest)
            yield from self._raise(
                Alert(rule=Rule.NEW_GROUP, subject=MORE, raised_ms=found.at_ms, text=text, value=value)
            )

    def _raise(self, alert: Alert) -> Iterator[Change]:
        key = (alert.rule, alert.subject)
        if key not in self._active:
            self._active[key] = replace(alert, text=alert.text[: 2 * _LONGEST_TEXT])
            yield Change(self._active[key])

    def _resolve(self, rule: Rule, subject: str = "", *, at_ms: int) -> Iterator[Change]:
        alert = self._active.pop((rule, subject), None)
        if alert is not None:
            yield Change(alert, max(at_ms, alert.raised_ms))

    # --- what a restart remembers ---

    def to_dict(self) -> dict[str, Any]:
        """Return what is remembered, for a file of JSON."""
        return {
            "active": [
                {
                    "rule": each.rule.value,
                    "subject": each.subject,
                    "raised_ms": each.raised_ms,
                    "text": each.text,
                    "value": each.value,
                    "limit": each.limit,
                    "code": each.code,
                }
                for each in self._active.values()
            ],
            "arrivals": [[each.from_ms, each.to_ms, each.count] for each in self._samples],
            "known": self._known,
            "failed": self._failed,
            "succeeded": self._succeeded,
        }

    @classmethod
    def from_dict(cls, rules: Rules, said: Mapping[str, Any]) -> Alerts:
        """Return the alerts that `to_dict` returned.

        Raises:
            ValueError: this is something else.
        """
        alerts = cls(rules)
        try:
            for each in said["active"]:
                alert = Alert(
                    rule=Rule(each["rule"]),
                    subject=str(each["subject"]),
                    raised_ms=int(each["raised_ms"]),
                    text=str(each["text"]),
                    value=float(each["value"]),
                    limit=None if each["limit"] is None else float(each["limit"]),
                    code=str(each["code"]),
                )
                alerts._active[alert.rule, alert.subject] = alert
            samples = [_Sample(int(first), int(last), int(count)) for first, last, count in said["arrivals"]]
            alerts._samples = [each for each in samples if each.from_ms <= each.to_ms]
            if said["known"] is not None:
                alerts._known = {str(name): int(seen) for name, seen in said["known"].items()}
            alerts._failed, alerts._succeeded = int(said["failed"]), int(said["succeeded"])
        except (KeyError, TypeError, AttributeError, OverflowError) as error:
            raise ValueError(f"not what was remembered: {error!r}") from error
        return alerts


def span(seconds: float) -> str:
    """Return a duration as people say it: two units at most."""
    whole = round(seconds)
    found = []
    for name, size in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        count, whole = divmod(whole, size)
        if count:
            found.append(f"{count} {name}")
    return " ".join(found[:2]) or "0 s"
