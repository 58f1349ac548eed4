"""`Selection`: which dead letters are selected, by conditions that must all hold.

    kind=permanent   code!=TOO_LARGE   reason~timed?.out   age>PT2H   attempts>=3   header.tenant=acme   id=order-7

Pure: the time is an argument.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final

import re2

from redelivery.base import durations
from redelivery.base.urls import nearest, unknown
from redelivery.codes import Code, code_of
from redelivery.contract.broker import Letter
from redelivery.contract.context import ErrorContext, moment_ms
from redelivery.contract.letters import LetterBatch, Wanted
from redelivery.contract.message import Message
from redelivery.deadletters import groups
from redelivery.deadletters.trust import context_of, contexts_of
from redelivery.errors import ConfigurationError, InvalidSpec
from redelivery.formats import dialects

#: The fields that a condition can compare, besides `header.<name>`: read from a letter with its whole context.
TEXTS: Final[Mapping[str, Callable[[Letter, ErrorContext], str | None]]] = {
    "id": lambda letter, context: letter.message.id or context.message_id,
    "position": lambda letter, _: letter.position,
    "reason": lambda _, context: context.reason,
    "kind": lambda _, context: context.kind,
    "code": lambda _, context: context.code,
    "native_code": lambda _, context: context.native_code,
    "exception": lambda _, context: context.exception,
    "stage": lambda _, context: context.stage,
    "broker": lambda _, context: context.broker,
    "destination": lambda _, context: context.destination,
    "target": lambda letter, context: letter.message.destination or context.target,
    "run": lambda _, context: context.run,
    "query": lambda _, context: context.query,
    "batch": lambda _, context: context.batch,
    "subscriber": lambda _, context: context.subscriber,
}
NUMBERS: Final[Mapping[str, Callable[[Letter, ErrorContext], int | None]]] = {
    "attempts": lambda _, context: context.attempts,
    "attempts_total": lambda _, context: context.attempts_total,
    "hops": lambda _, context: context.hops,
    "size": lambda letter, _: letter.message.size,
}
FLAGS: Final[Mapping[str, Callable[[ErrorContext], bool]]] = {
    "maybe_delivered": lambda context: context.maybe_delivered,
}
AGE: Final = "age"
GROUP: Final = "group"
PARKED: Final = "parked"
CODE: Final = "code"
HEADER: Final = "header."

_COMPARE: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_CONDITION: Final = re.compile(
    r"\s*(?P<name>header\.[^=!<>~]+|[A-Za-z_.-]+)\s*(?P<sign>!=|<=|>=|=|<|>|~)(?P<value>.*)", re.DOTALL
)
_EXAMPLE: Final = "write NAME=VALUE, as in 'kind=permanent', 'reason~timeout' or 'age>PT1H'"


def _unchanged(wanted: Wanted, _now_ms: int) -> Wanted:
    return wanted


def _always(_letter: Letter, _now_ms: int) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition that a letter must meet.

    Attributes:
        text: the condition as written.
        holds: whether a letter with its whole context meets it at a time.
        bare: `holds` needs no more of the context than the broker's own.
        narrow: returns what is wanted of a place under this condition too, at a time.
        columns: returns, of some rows of a batch, those that may meet it, without a look at each letter.
        fields: of the context, all that `holds` needs; empty: it needs more, or nothing.
        parked: True, False: only letters that are parked, or are not: the place's triage knows (`Selection.within`).
        by_column: `columns` alone decides, where letters come as columns.
    """

    text: str
    holds: Callable[[Letter, int], bool]
    bare: bool = False
    narrow: Callable[[Wanted, int], Wanted] = _unchanged
    columns: Callable[[LetterBatch, Sequence[int]], Sequence[int]] = lambda _, rows: rows
    fields: tuple[str, ...] = ()
    parked: bool | None = None
    by_column: bool = False


@dataclass(frozen=True, slots=True)
class Selection:
    """The letters that meet all conditions; without conditions, all letters."""

    conditions: tuple[Condition, ...] = ()

    @classmethod
    def parse(cls, *texts: str) -> Selection:
        """Return the selection with these conditions.

        Raises:
            ConfigurationError: a condition does not parse, or names an unknown field.
        """
        return cls(tuple(_condition(text) for text in texts))

    @classmethod
    def at(cls, position: str) -> Selection:
        """Select only the letter at a position."""

        def holds(letter: Letter, _: int) -> bool:
            return letter.position == position

        return cls((Condition(f"position={position}", holds, bare=True, narrow=_at(position)),))

    def of(self, ids: Collection[str]) -> Selection:
        """Select only these letters, by position or id: their own id, else the id in their context."""
        named = frozenset(ids)

        def holds(letter: Letter, _: int) -> bool:
            return letter.position in named or TEXTS["id"](letter, letter.context or ErrorContext()) in named

        def columns(batch: LetterBatch, rows: Sequence[int]) -> Sequence[int]:
            if batch.messages.id is None:
                return rows
            ids, positions = batch.messages.id.values, batch.position.values
            return [index for index in rows if ids[index] is None or ids[index] in named or positions[index] in named]

        return Selection((*self.conditions, Condition(f"{len(named)} ids", holds, columns=columns)))

    def failed_at(self, destination: str, is_there: Callable[[str], bool]) -> Selection:
        """Select only letters that failed at one destination, and those of which nothing says where.

        Headers that no key has signed say so too: a letter of another destination is not to be taken. A letter of ours
        that had no room to say it is not taken either.

        Args:
            destination: its URL, for people.
            is_there: whether a URL means it.
        """

        def holds(letter: Letter, _: int) -> bool:
            where = (letter.context or ErrorContext()).destination
            return where is None or is_there(where)

        def perhaps_there(letter: Letter) -> bool:
            written = dialects.read(letter.message)
            where = None if written is None else written.destination
            return not dialects.is_cut(letter.message) if where is None else is_there(where)

        def columns(batch: LetterBatch, rows: Sequence[int]) -> Sequence[int]:
            said = contexts_of(batch, ["destination"])["destination"]
            return [row for row in rows if said[row] is not None or perhaps_there(batch.letter(row))]

        own = Condition(f"destination={destination}", holds, columns=columns, fields=("destination",))
        return Selection((*self.conditions, own))

    def between(self, after: str | None, before: str | None) -> Selection:
        """Select only letters behind one cursor and up to another (`DeadLetters.cursor`); None: no bound."""

        def narrow(wanted: Wanted, _now_ms: int) -> Wanted:
            return replace(wanted, after=after, before=before)

        return Selection((*self.conditions, Condition("between two cursors", _always, narrow=narrow, by_column=True)))

    def admits(self, letter: Letter, now_ms: int) -> bool:
        """Return whether this letter is selected.

        Args:
            letter: with its whole context (`deadletters.context_of`).
            now_ms: the time to which its age is computed, milliseconds since the epoch.
        """
        return all(each.holds(letter, now_ms) for each in self.conditions)

    def admitted(self, batch: LetterBatch, rows: Sequence[int], now_ms: int) -> Sequence[int]:
        """Return which of these rows of a batch are selected.

        Args:
            batch: letters as their broker returned them.
            rows: indices.
            now_ms: as in `admits`.
        """
        for each in self.conditions:
            rows = each.columns(batch, rows)
        bare = [each for each in self.conditions if each.bare]
        if bare:
            rows = [row for row in rows if all(each.holds(batch.letter(row), now_ms) for each in bare)]
        of_field = [each for each in self.conditions if each.fields]
        if of_field and rows:
            rows = _meeting(of_field, batch.take(rows) if len(rows) < len(batch) else batch, rows, now_ms)
        rest = [each for each in self.conditions if not each.bare and not each.fields and not each.by_column]
        if not rest:
            return rows
        found = []
        for row in rows:
            letter = batch.letter(row)
            whole = replace(letter, context=context_of(letter))
            if all(each.holds(whole, now_ms) for each in rest):
                found.append(row)
        return found

    def within(self, parked_rows: Callable[[LetterBatch], Collection[int]]) -> Selection:
        """Return the selection for a place.

        Args:
            parked_rows: returns the indices of the parked letters of a batch, as its triage knows them.
        """

        def settled(each: Condition) -> Condition:
            if each.parked is None:
                return each
            wanted = each.parked

            def columns(batch: LetterBatch, rows: Sequence[int]) -> Sequence[int]:
                parked = frozenset(parked_rows(batch))
                return [row for row in rows if (row in parked) == wanted]

            def holds(letter: Letter, _: int) -> bool:
                return bool(parked_rows(LetterBatch.of([letter]))) == wanted

            return replace(each, holds=holds, columns=columns, bare=False, by_column=True)

        return replace(self, conditions=tuple(map(settled, self.conditions))) if self.asks_for_parked else self

    @property
    def asks_for_parked(self) -> bool:
        """Whether the place's triage decides which letters are selected."""
        return any(each.parked is not None for each in self.conditions)

    def wanted(self, now_ms: int) -> Wanted:
        """Return what a plugin need return of a place: never less than what is selected."""
        wanted = Wanted()
        for each in self.conditions:
            wanted = each.narrow(wanted, now_ms)
        return wanted

    def __str__(self) -> str:
        return " and ".join(each.text for each in self.conditions) or "all"


#: Selects no letter.
NOTHING: Final = Selection((Condition("none", lambda _letter, _now: False, columns=lambda _letters, _rows: ()),))


def _meeting(conditions: Sequence[Condition], letters: LetterBatch, rows: Sequence[int], now_ms: int) -> list[int]:
    """Return those of the rows that meet conditions on fields of their contexts: equal values are compared once.

    Args:
        conditions: each with `fields`.
        letters: those of the rows.
        rows: their indices.
        now_ms: as in `Selection.admits`.
    """
    names = sorted({name for each in conditions for name in each.fields} | {"code", "kind"})  # for `sound`
    columns = contexts_of(letters, names)
    said = list(zip(*(columns[name] for name in names), strict=True))
    nothing = Message(value=None)
    wholes = {
        each: Letter(position="", message=nothing, context=ErrorContext(**dict(zip(names, each, strict=True))))
        for each in set(said)
    }
    met = {each: all(one.holds(whole, now_ms) for one in conditions) for each, whole in wholes.items()}
    return [row for row, each in zip(rows, said, strict=True) if met[each]]


def dead_since_ms(letter: Letter) -> int | None:
    """Return when a letter was given up, as far as known."""
    context = letter.context or ErrorContext()
    return since_ms(letter.dead_lettered_ms, context.last_failure_ms, letter.message.timestamp_ms)


def since_ms(*known: int | None) -> int | None:
    """Return the first of these times that a clock can show."""
    return next((each for each in known if moment_ms(each) is not None), None)


def _condition(text: str) -> Condition:
    found = _CONDITION.fullmatch(text)
    if found is None:
        raise ConfigurationError(f"{text!r} is not a condition; {_EXAMPLE}")
    name, sign, value = found["name"].strip(), found["sign"], found["value"].strip()
    if name in _MADE:
        return _MADE[name](text, sign, value)
    if name in NUMBERS:
        holds = _of_number(text, NUMBERS[name], sign, value)
        return Condition(text, holds, bare=name == "size", fields=() if name == "size" else (name,))
    if name in FLAGS:
        return Condition(text, _of_flag(text, FLAGS[name], sign, value), fields=(name,))
    if name.startswith(HEADER):
        return Condition(text, _of_text(text, _headers(name.removeprefix(HEADER)), sign, value), bare=True)
    if name == CODE and sign in {"=", "!="} and value:
        _check_code(text, value)
    if name in TEXTS:
        read = TEXTS[name]
        holds = _of_text(text, lambda letter: (read(letter, letter.context or ErrorContext()),), sign, value)
        if name == "position":
            return Condition(text, holds, bare=True, narrow=_at(value) if sign == "=" else _unchanged)
        return Condition(text, holds, fields=() if name in {"id", "target"} else (name,))
    raise unknown("condition", name, (*TEXTS, *NUMBERS, *FLAGS, *_MADE, f"{HEADER}NAME"))


def _at(position: str) -> Callable[[Wanted, int], Wanted]:
    return lambda wanted, _: replace(wanted, positions=frozenset({position}) & (wanted.positions or {position}))


def _check_code(text: str, value: str) -> None:
    """Refuse an unknown code: codes are a closed vocabulary, so it is a mistake. Raises ConfigurationError."""
    if code_of(value) is None:
        near = nearest(value, Code.__members__)
        hint = f"did you mean {near!r}? " if near else ""
        why = f"no code is called {value!r}; {hint}docs/codes.md lists the codes"
        raise ConfigurationError(f"{text!r}: {why}; the client's own word is native_code")


def _headers(name: str) -> Callable[[Letter], Iterable[str | None]]:
    def read(letter: Letter) -> Iterable[str | None]:
        values = [value for key, value in letter.message.headers if key == name]
        return [(value or b"").decode("utf-8", "replace") for value in values] or (None,)

    return read


def _of_text(
    text: str, read: Callable[[Letter], Iterable[str | None]], sign: str, value: str
) -> Callable[[Letter, int], bool]:
    if sign == "~":
        search = _search(text, value)
        return lambda letter, _: any(search(each or "") for each in read(letter))
    if sign == "=":
        return lambda letter, _: any((each or "") == value for each in read(letter))
    if sign == "!=":
        return lambda letter, _: all((each or "") != value for each in read(letter))
    raise ConfigurationError(f"{text!r}: a text is compared by =, != or ~ (a regular expression), not by {sign}")


def _search(text: str, value: str) -> Callable[[str], bool]:
    """Return whether a text matches a regular expression: in time linear in the text, as both may be hostile."""
    options = re2.Options()
    options.log_errors = False
    try:
        pattern = re2.compile(value, options)
    except re2.error as error:
        why = error.args[0].decode("utf-8", "replace") if isinstance(error.args[0], bytes) else error
        raise ConfigurationError(
            f"{text!r}: {value!r} is not a regular expression of RE2 (which has no look-ahead and no back-reference): "
            f"{why}"
        ) from error
    return lambda found: pattern.search(found.encode("utf-8", "replace").decode("utf-8")) is not None


def _of_number(
    text: str, read: Callable[[Letter, ErrorContext], int | None], sign: str, value: str
) -> Callable[[Letter, int], bool]:
    if sign not in _COMPARE:
        raise ConfigurationError(f"{text!r}: a number is compared by {' '.join(_COMPARE)}, not by {sign}")
    try:
        wanted = int(value)
    except ValueError:
        raise ConfigurationError(f"{text!r}: {value!r} is not a whole number") from None
    compare = _COMPARE[sign]

    def holds(letter: Letter, _: int) -> bool:
        number = read(letter, letter.context or ErrorContext())
        return number is not None and compare(number, wanted)

    return holds


def _of_flag(text: str, read: Callable[[ErrorContext], bool], sign: str, value: str) -> Callable[[Letter, int], bool]:
    if sign not in {"=", "!="} or value not in {"true", "false"}:
        raise ConfigurationError(f"{text!r}: it is true or false; write it as in 'maybe_delivered=true'")
    wanted = (value == "true") == (sign == "=")
    return lambda letter, _: read(letter.context or ErrorContext()) == wanted


def _of_group(text: str, sign: str, value: str) -> Condition:
    if sign not in {"=", "!="}:
        raise ConfigurationError(f"{text!r}: a group is compared by = or !=, not by {sign}")
    try:
        groups.check_fingerprint(value)
    except ConfigurationError as error:
        raise ConfigurationError(f"{text!r}: {error}") from None

    def holds(letter: Letter, _: int) -> bool:
        return (groups.fingerprint(letter.context or ErrorContext()) == value) == (sign == "=")

    return Condition(text, holds, fields=groups.FIELDS)


def _of_parked(text: str, sign: str, value: str) -> Condition:
    def unknown_place(_: Any, __: Any) -> bool:
        raise ConfigurationError(f"{text!r}: nothing says here what is parked: the triage of no place is known")

    if sign not in {"=", "!="} or value not in {"true", "false"}:
        raise ConfigurationError(f"{text!r}: it is true or false; write it as in 'parked=true'")
    return Condition(text, unknown_place, bare=True, parked=(value == "true") == (sign == "="))


def _of_age(text: str, sign: str, value: str) -> Condition:
    if sign not in {"<", "<=", ">", ">="}:
        raise ConfigurationError(f"{text!r}: an age is compared by < or >, as in 'age>PT1H'")
    try:
        age = durations.parse(value)
    except InvalidSpec as error:
        raise ConfigurationError(f"{text!r}: {error}") from error
    millis, compare = age // timedelta(milliseconds=1), _COMPARE[sign]

    def holds(letter: Letter, now_ms: int) -> bool:
        since = dead_since_ms(letter)
        return since is not None and compare(now_ms - since, millis)

    def narrow(wanted: Wanted, now_ms: int) -> Wanted:
        since, until = wanted.since_ms, wanted.until_ms
        if sign.startswith(">"):
            end = now_ms - millis + (sign == ">=")
            return replace(wanted, until_ms=end if until is None else min(end, until))
        start = now_ms - millis + (sign == "<")
        return replace(wanted, since_ms=start if since is None else max(start, since))

    return Condition(text, holds, narrow=narrow)


#: Conditions on more than one field: how each is made of its text, sign and value.
_MADE: Final[Mapping[str, Callable[[str, str, str], Condition]]] = {
    AGE: _of_age,
    GROUP: _of_group,
    PARKED: _of_parked,
}
