"""The redrive protocol as a small model: send, confirm, note, remove; every interleaving, by breadth-first search.

Two redrives share a place of letters. Each step of a redrive is one transition: it looks at a letter, sends it, notes
it in its journal, removes it, and notes that. At any step an answer may be lost and a process may be killed, a bounded
number of times. The place may hide a letter that one redrive has looked at from the other, and the destination may
recognise what it has. Each state is checked by the invariants of the simulation (`invariants.py`), and from each state
all letters can still come back without any further trouble.

`Rules` describe the protocol; its mutants are other rules, which must break an invariant (`MUTANTS`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from simulation.invariants import End, Item, always, at_the_end
from simulation.scheduler import Violated

#: A redrive's knowledge of a letter. `AGAIN`: an earlier life has sent it. `KEPT`: it could not be removed now.
NEW, HELD, CONFIRMED, NOTED, AGAIN, REMOVED, KEPT, DONE = range(8)
#: Redrives in the model.
REDRIVES: Final = 2
#: `Letter.hidden` of a letter that is not hidden.
NOBODY: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The protocol and its surroundings.

    Attributes:
        letters: how many there are.
        one_journal: both redrives have one journal, so that one runs at a time; False: one each.
        hides: a place hides a letter that one redrive has looked at from the other.
        recognises: the destination does not store again what it recognises by its id.
        kills, losses: how many processes are killed and how many answers are lost, at most.
        note_first: mutant: a letter is noted before it is sent.
        note_last: mutant: a letter is noted after its removal was asked for.
        never_noted: mutant.
        remove_first: mutant: a letter is removed before it is sent.
        remove_unconfirmed: mutant: a letter is removed once it was sent, whatever was answered.
        journal_unread: mutant: a redrive does not ask what earlier ones have sent.
        forgets: mutant: a note is dropped though its letter could not be removed.
        new_id: mutant: each process sends under a different id.
    """

    letters: int = 1
    one_journal: bool = False
    hides: bool = False
    recognises: bool = False
    kills: int = 2
    losses: int = 2
    note_first: bool = False
    note_last: bool = False
    never_noted: bool = False
    remove_first: bool = False
    remove_unconfirmed: bool = False
    journal_unread: bool = False
    forgets: bool = False
    new_id: bool = False


class Letter(NamedTuple):
    """A letter, and the knowledge of an observer who sees everything.

    Attributes:
        there: it is in its place.
        hidden: by which redrive.
        ids: the ids of its copies at the destination, one each.
        unanswered: how many of these no redrive got an answer for.
        confirmed: a redrive got the answer that it is stored.
        hoped: it was removed before that.
        licensed: how many processes may have sent it.
        removing: the journals whose redrive has asked to remove it.
    """

    there: bool = True
    hidden: int = NOBODY
    ids: tuple[int, ...] = ()
    unanswered: int = 0
    confirmed: bool = False
    hoped: bool = False
    licensed: int = 0
    removing: frozenset[int] = frozenset()


class Redrive(NamedTuple):
    """A redrive: whether it runs, its life (counted where ids depend on it), what it knows, and what it has sent."""

    runs: bool = False
    life: int = 0
    knows: tuple[int, ...] = ()
    sent: frozenset[int] = frozenset()


class State(NamedTuple):
    """Everything: letters, redrives, the journals' notes, and what may still go wrong."""

    letters: tuple[Letter, ...]
    redrives: tuple[Redrive, ...]
    journals: tuple[frozenset[int], ...]
    kills: int
    losses: int


@dataclass(slots=True)
class Search:
    """The findings of a search.

    Attributes:
        states, steps: how many.
        ends: states in which all letters have come back, and nothing runs.
        violation: the first violated invariant, in the fewest steps; None: all hold.
        path: the steps that lead there.
    """

    states: int = 0
    steps: int = 0
    ends: int = 0
    violation: Violated | None = None
    path: list[str] = field(default_factory=list)


def search(rules: Rules) -> Search:
    """Visit every state that the rules can reach, until one violates an invariant."""
    nothing = (NEW,) * rules.letters
    first = State(
        (Letter(),) * rules.letters,
        (Redrive(knows=nothing),) * REDRIVES,
        (frozenset(),) * REDRIVES,
        rules.kills,
        rules.losses,
    )
    found = Search()
    before: dict[State, tuple[State, str] | None] = {first: None}
    reached_by: dict[State, list[State]] = {}
    level, ends = [first], []
    while level:
        following: list[State] = []
        for state in level:
            found.states += 1
            try:
                always(items(state, rules))
            except Violated as violation:
                found.violation, found.path = violation, _path(before, state)
                return found
            if not any(letter.there for letter in state.letters) and not any(each.runs for each in state.redrives):
                ends.append(state)
                continue
            for label, after in steps(state, rules):
                found.steps += 1
                if after not in before:
                    before[after] = state, label
                    following.append(after)
                if after.kills == state.kills and after.losses == state.losses:
                    reached_by.setdefault(after, []).append(state)
        level = following
    found.ends = len(ends)
    _all_come_back(found, before, reached_by, ends)
    return found


def _all_come_back(
    found: Search,
    before: dict[State, tuple[State, str] | None],
    reached_by: dict[State, list[State]],
    ends: list[State],
) -> None:
    """Check that from each state, without any further trouble, all letters can come back."""
    good, level = set(ends), ends
    while level:
        level = [each for state in level for each in reached_by.pop(state, ()) if each not in good]
        level = list(dict.fromkeys(level))
        good.update(level)
    stuck = next((state for state in before if state not in good), None)
    if stuck is not None:
        try:
            at_the_end(End(open=[f"letter {at}" for at, each in enumerate(stuck.letters) if each.there]))
        except Violated as violation:
            found.violation, found.path = violation, _path(before, stuck)


def _path(before: dict[State, tuple[State, str] | None], state: State) -> list[str]:
    labels = []
    while (last := before[state]) is not None:
        state, label = last
        labels.append(label)
    return labels[::-1]


def items(state: State, rules: Rules) -> Iterator[Item]:
    """Return the letters of a state as the invariants speak of them."""
    for at, letter in enumerate(state.letters):
        yield Item(
            name=f"letter {at}",
            gone=not letter.there,
            kept=bool(letter.ids),
            confirmed=not letter.hoped,
            copies=len(letter.ids),
            excused=0 if rules.recognises else letter.unanswered + max(0, letter.licensed - 1),
            ids=len(set(letter.ids)),
        )


# --- the transitions ---


def steps(state: State, rules: Rules) -> Iterator[tuple[str, State]]:
    """Return every step that may follow, and where it leads."""
    for who, redrive in enumerate(state.redrives):
        if not redrive.runs:
            yield from _start(state, rules, who)
            continue
        for at in range(rules.letters):
            for label, after in _of_letter(state, rules, who, at):
                yield f"{who}: {label} {at}", after
        if _is_over(state, rules, who):
            yield f"{who}: end", _ended(state, who)
        if state.kills:
            yield f"kill {who}", _dead(state, who)._replace(kills=state.kills - 1)
    for at, letter in enumerate(state.letters):
        if letter.hidden != NOBODY:
            yield f"letter {at} is shown again", _with(state, at, letter._replace(hidden=NOBODY))


def _start(state: State, rules: Rules, who: int) -> Iterator[tuple[str, State]]:
    if rules.one_journal and any(each.runs for each in state.redrives):
        return  # refused: the journal is in use
    life = min(2, state.redrives[who].life + rules.new_id)
    yield f"{who}: start", _as(state, who, Redrive(True, life, (NEW,) * rules.letters))


def _of_letter(  # noqa: C901, PLR0912 - a table of what follows what reads best whole
    state: State, rules: Rules, who: int, at: int
) -> Iterator[tuple[str, State]]:
    redrive, letter = state.redrives[who], state.letters[at]
    noted = at in state.journals[_journal(rules, who)] and not rules.journal_unread
    match redrive.knows[at]:
        case 0 if letter.there and not (rules.hides and letter.hidden not in {NOBODY, who}):
            hidden = _with(state, at, letter._replace(hidden=who)) if rules.hides else state
            if rules.note_first and not noted:
                hidden = _note(hidden, rules, who, at)
            yield "look at", _knows(hidden, who, at, AGAIN if noted else HELD)
        case 1:
            if rules.remove_first:
                yield from _remove(state, rules, who, at, HELD)
            else:
                yield from _send(state, rules, who, at)
        case 2:
            if rules.never_noted or rules.note_last or rules.note_first:
                yield from _remove(state, rules, who, at, REMOVED)
            else:
                yield "note", _knows(_note(state, rules, who, at), who, at, NOTED)
        case 3 | 4:
            yield from _remove(state, rules, who, at, REMOVED)
        case 5:
            if rules.note_last and not noted and letter.there:
                yield "note", _knows(_note(state, rules, who, at), who, at, KEPT)
            elif not letter.there or rules.forgets:
                yield "note the removal of", _knows(_unnote(state, rules, who, at), who, at, DONE)
            else:
                yield "keep", _knows(state, who, at, KEPT)


def _send(state: State, rules: Rules, who: int, at: int) -> Iterator[tuple[str, State]]:
    """Send a letter: it is stored and confirmed, or no answer comes, and it is stored or not."""
    redrive, letter = state.redrives[who], state.letters[at]
    id_ = 10 * who + redrive.life if rules.new_id else 0
    if at not in redrive.sent:
        if _journal(rules, who) not in letter.removing:
            letter = letter._replace(licensed=letter.licensed + 1)
        state = _as(state, who, redrive._replace(sent=redrive.sent | {at}))
    stored = letter if rules.recognises and id_ in letter.ids else letter._replace(ids=(*letter.ids, id_))
    lost = stored._replace(unanswered=letter.unanswered + len(stored.ids) - len(letter.ids))
    after = NOTED if rules.note_first else CONFIRMED
    yield "send", _knows(_with(state, at, stored._replace(confirmed=True)), who, at, after)
    if state.losses:
        after = CONFIRMED if rules.remove_unconfirmed else HELD
        for label, each in (("send, stored without an answer,", lost), ("send, not stored,", letter)):
            yield label, _knows(_with(state, at, each), who, at, after)._replace(losses=state.losses - 1)


def _remove(state: State, rules: Rules, who: int, at: int, after: int) -> Iterator[tuple[str, State]]:
    """Remove a letter: it is gone, or the other redrive hides it, or no answer comes, which ends the redrive."""
    letter = state.letters[at]
    asked = letter._replace(removing=letter.removing | {_journal(rules, who)})
    if rules.hides and letter.there and letter.hidden not in {NOBODY, who}:
        yield "cannot remove", _knows(_with(state, at, asked), who, at, REMOVED)
        return
    gone = asked._replace(there=False, hoped=letter.hoped or (letter.there and not letter.confirmed))
    yield "remove", _knows(_with(state, at, gone), who, at, after)
    if state.losses:
        for label, each in (("remove, without an answer,", gone), ("do not remove", asked)):
            yield label, _dead(_with(state, at, each), who)._replace(losses=state.losses - 1)


def _is_over(state: State, rules: Rules, who: int) -> bool:
    """Whether a redrive has nothing to do now: others may hide the letters that remain."""
    knows = state.redrives[who].knows
    return all(
        each in {DONE, KEPT}
        or (each == NEW and (not letter.there or (rules.hides and letter.hidden not in {NOBODY, who})))
        for each, letter in zip(knows, state.letters, strict=True)
    )


def _ended(state: State, who: int) -> State:
    """A redrive ends: it shows what it has looked at, and forgets the notes of what is gone."""
    letters = tuple(each._replace(hidden=NOBODY) if each.hidden == who else each for each in state.letters)
    return _dead(state, who)._replace(letters=letters)


def _dead(state: State, who: int) -> State:
    redrive = state.redrives[who]
    return _as(state, who, Redrive(False, redrive.life, (NEW,) * len(redrive.knows)))


def _journal(rules: Rules, who: int) -> int:
    return 0 if rules.one_journal else who


def _note(state: State, rules: Rules, who: int, at: int) -> State:
    journal = _journal(rules, who)
    return _written(state, journal, state.journals[journal] | {at})


def _unnote(state: State, rules: Rules, who: int, at: int) -> State:
    journal = _journal(rules, who)
    return _written(state, journal, state.journals[journal] - {at})


def _written(state: State, journal: int, notes: frozenset[int]) -> State:
    journals = state.journals
    return state._replace(journals=(*journals[:journal], notes, *journals[journal + 1 :]))


def _knows(state: State, who: int, at: int, what: int) -> State:
    redrive = state.redrives[who]
    return _as(state, who, redrive._replace(knows=(*redrive.knows[:at], what, *redrive.knows[at + 1 :])))


def _as(state: State, who: int, redrive: Redrive) -> State:
    return state._replace(redrives=(*state.redrives[:who], redrive, *state.redrives[who + 1 :]))


def _with(state: State, at: int, letter: Letter) -> State:
    return state._replace(letters=(*state.letters[:at], letter, *state.letters[at + 1 :]))


#: The searches: one letter under much trouble, and two letters under less.
SURROUNDINGS: Final = tuple(
    Rules(letters=letters, one_journal=one, hides=hides, recognises=recognises, kills=kills, losses=losses)
    for letters, one, hides, kills, losses in (
        (1, False, False, 2, 2),
        (1, False, True, 2, 2),
        (1, True, False, 3, 3),
        (1, True, True, 3, 3),
        (2, False, False, 1, 0),
        (2, True, False, 1, 1),
    )
    for recognises in (False, True)
)
#: Mutants of the protocol by the name of their rule, and the number of the invariant that each breaks.
MUTANTS: Final = {
    "note_first": 1,
    "note_last": 3,
    "never_noted": 3,
    "remove_first": 1,
    "remove_unconfirmed": 5,
    "journal_unread": 3,
    "forgets": 3,
    "new_id": 3,
}
