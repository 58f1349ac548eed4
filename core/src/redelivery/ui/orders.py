"""`Order`: what an operator wants done to which letters, as it is counted, confirmed, kept in a file and resumed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

from redelivery.base import verbatim
from redelivery.contract.broker import Letter, LetterBatch, Wanted
from redelivery.contract.message import Message
from redelivery.deadletters.patching import Patch, diff
from redelivery.deadletters.queue import DeadLetterQueue
from redelivery.deadletters.redrive import INTERRUPTED, RedriveReport, RedriveSettings, digest, digests_of
from redelivery.deadletters.selection import Condition, Selection
from redelivery.errors import ConfigurationError
from redelivery.policy.waves import Waves

#: What an order can be, and what of `--allow` it needs.
ACTIONS: Final[Mapping[str, str]] = {"redrive": "redrive", "edit": "edit", "remove": "purge", "purge": "purge"}
#: Edits that are shown before they are confirmed.
_EDITS: Final = 10
#: Letters that are told apart one by one between a dry run and its operation; of more, their number is compared.
TOLD_APART: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """An operation on letters of one place. Plain data.

    Attributes:
        action: of `ACTIONS`.
        where: conditions of the selection; with `letters` they are not looked at.
        letters: chosen letters: digests by position; empty: those that `where` selects.
        to: name in the page's URLs of the place whose destination the letters go to; None: where they failed.
        limit: letters, at most.
        rate: letters a second, at most; None: as fast as it goes.
        waves: sizes of waves, as `--waves`; empty: all in one go.
        stop_at, wave_wait: as `--stop-at` and `--wave-wait`; empty: their defaults.
        patch: the edit as JSON, as in a file of `--patch`; empty: none.
    """

    action: str
    where: Sequence[str] = ()
    letters: Mapping[str, str] = field(default_factory=dict)
    to: str | None = None
    limit: int | None = None
    rate: float | None = None
    waves: str = ""
    stop_at: str = ""
    wave_wait: str = ""
    patch: str = ""

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> Self:
        """Return the order that a file holds. Raises TypeError, KeyError: it is not one."""
        order = cls(**said)
        if order.action not in ACTIONS:
            raise KeyError(order.action)
        return order

    @property
    def permission(self) -> str:
        """What of `--allow` it needs."""
        return ACTIONS[self.action]

    @property
    def sends(self) -> bool:
        """Whether letters are sent; else they are removed."""
        return self.action in {"redrive", "edit"}

    @property
    def shown(self) -> str:
        """Which letters are meant, for people."""
        if self.letters:
            return "1 chosen letter" if len(self.letters) == 1 else f"{len(self.letters):,} chosen letters"
        return " and ".join(self.where) or "all letters"

    def check(self) -> None:
        """Raises ConfigurationError: something in it is wrong, whatever letters there are."""
        self.selection()
        self.edit()
        self.in_waves()
        RedriveSettings(limit=self.limit, rate=self.rate)

    def selection(self) -> Selection:
        """Return which letters are meant. Raises ConfigurationError."""
        return chosen(self.letters) if self.letters else Selection.parse(*self.where)

    def edit(self) -> Patch | None:
        """Return the edit. Raises ConfigurationError."""
        if not self.patch:
            return None
        try:
            form = verbatim.loads(self.patch)
        except (ValueError, RecursionError) as error:
            raise ConfigurationError(f"the patch is not JSON: {error}") from None
        if not isinstance(form, Mapping):
            raise ConfigurationError("the patch is an object of JSON with body, headers or key")
        if "destination" in form:
            raise ConfigurationError("the page sends to its own places alone: leave destination out, and choose one")
        return Patch.read(form)

    def in_waves(self) -> Waves | None:
        """Return its waves. Raises ConfigurationError."""
        if self.waves:
            return Waves.parse(self.waves, self.stop_at or None, self.wave_wait or None)
        if self.stop_at or self.wave_wait:
            raise ConfigurationError("stop at, wait: they belong to waves: name the sizes of the waves, as in 1,10,100")
        return None


def chosen(letters: Mapping[str, str]) -> Selection:
    """Return the selection of these very letters: another one at the position of one of them is not selected.

    Args:
        letters: digests by position.
    """

    def holds(letter: Letter, _: int) -> bool:
        return letters.get(letter.position) == digest(letter)

    def columns(batch: LetterBatch, rows: Sequence[int]) -> Sequence[int]:
        positions = batch.position.values
        return [row for row in rows if positions[row] in letters]

    def narrow(wanted: Wanted, _now_ms: int) -> Wanted:
        named = frozenset(letters)
        return replace(wanted, positions=named if wanted.positions is None else named & wanted.positions)

    name = hashlib.sha256(json.dumps(sorted(letters.items())).encode()).hexdigest()[:16]
    return Selection((Condition(f"{len(letters)} letters {name}", holds, narrow=narrow, columns=columns),))


class Marks:
    """What tells letters from any other: their digests, as long as they are at most `TOLD_APART`.

    Args:
        most: only the first so many letters count; None: all.
    """

    def __init__(self, most: int | None = None) -> None:
        self._most = most
        self._found: list[str] | None = []

    def add(self, letters: LetterBatch) -> int:
        """Note letters; return how many they are."""
        if self._found is not None:
            self._found = [*self._found, *digests_of(letters)][: self._most]
            if len(self._found) > TOLD_APART:
                self._found = None
        return len(letters)

    def __str__(self) -> str:
        return " ".join(self._found or ())


def only(where: Selection, marks: str) -> Selection:
    """Return what is selected of the letters with these marks; without marks, all of it."""
    if not marks:
        return where
    named = frozenset(marks.split())

    def holds(letter: Letter, _: int) -> bool:
        return digest(letter) in named

    def columns(batch: LetterBatch, rows: Sequence[int]) -> Sequence[int]:
        found = digests_of(batch.take(rows)) if rows else ()
        return [row for row, each in zip(rows, found, strict=True) if each in named]

    name = hashlib.sha256(marks.encode()).hexdigest()[:16]
    return Selection((*where.conditions, Condition(f"confirmed {name}", holds, columns=columns, by_column=True)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """What an order would do, as a dry run found it.

    Attributes:
        count: letters that would go.
        left: letters that would stay, by reason.
        targets: of those that go, letters that go to an allowed target, by its name.
        edits: what the edit changes, lines of a diff for each of the first letters.
        partial: the broker shows some letters only when others are gone, or counts roughly.
        marks: of the letters that would go (`Marks`); empty: they are too many, or all are removed.
    """

    count: int
    left: Mapping[str, int] = field(default_factory=dict)
    targets: Mapping[str, int] = field(default_factory=dict)
    edits: Sequence[Sequence[str]] = ()
    partial: bool = False
    marks: str = ""


class TooLong(ConfigurationError):
    """The letters could not be counted in time."""


def count(
    order: Order,
    dlq: DeadLetterQueue,
    to: str | None,
    *,
    stop: Callable[[], bool] = lambda: False,
    on_progress: Callable[[int], None] = lambda _: None,
    mask: Callable[[str], str] = lambda text: text,
) -> Count:
    """Return what an order would do now. Nothing is sent or removed.

    Args:
        order: what is wanted.
        dlq: its place.
        to: URL that letters go to; None: where they failed.
        stop: asked again and again; True ends it.
        on_progress: called with the number of letters so far.
        mask: hides parts of the edits that are shown.

    Raises:
        ConfigurationError: the order is wrong, or it was stopped before all letters were counted.
        BrokerError
    """
    partial = dlq.looking_takes
    if not order.sends:
        marks = Marks(order.limit)
        return Count(count=_removable(order, dlq, stop, on_progress, marks), partial=partial, marks=str(marks))
    edits: list[list[str]] = []

    def edited(letter: Letter, before: Message, after: Message) -> None:
        edits.append(list(diff(mask(letter.message.id or letter.position), before, after, mask=mask)))

    marks = Marks()
    settings = RedriveSettings(
        limit=order.limit,
        dry_run=True,
        stop=stop,
        on_progress=lambda report: on_progress(report.considered),
        on_edit=edited,
        edits=_EDITS,
        on_going=marks.add,
    )
    report = dlq.redrive(to=to, where=order.selection(), settings=settings, patch=order.edit())
    if report.stopped == INTERRUPTED:
        raise TooLong(_TOO_LONG)
    return Count(
        count=report.selected,
        left=dict(report.left),
        targets=dict(report.targets),
        edits=edits,
        partial=partial,
        marks=str(marks),
    )


def _removable(
    order: Order, dlq: DeadLetterQueue, stop: Callable[[], bool], on_progress: Callable[[int], None], marks: Marks
) -> int:
    if order.action == "purge" and (depth := dlq.depth()) is not None:
        return depth
    found = 0
    if order.action == "purge":
        counted = dlq.scan(len, columns=frozenset({"position"}))
    else:
        counted = dlq.scan(marks.add, order.selection())
    for some in counted:
        found += some
        on_progress(found)
        if order.limit is not None and found >= order.limit:
            return order.limit
        if stop():
            raise TooLong(_TOO_LONG)
    return found


def outcome(report: RedriveReport) -> dict[str, Any]:
    """Return the account of a redrive as plain data."""
    return {
        "considered": report.considered,
        "redriven": report.redriven,
        "removed": report.removed,
        "failed": report.failed,
        "left": dict(report.left),
        "targets": dict(report.targets),
        "resumed": report.resumed,
        "returned": report.returned,
        "stopped": None if report.is_limited else report.stopped,  # its limit is what was confirmed
        "wave": report.wave,
    }


_TOO_LONG: Final = "counting the letters took too long: narrow the selection, or use `redelivery dead-letters`"
