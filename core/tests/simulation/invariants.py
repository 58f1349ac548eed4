"""The invariants (design.md) as statements about the view of an observer who sees everything.

The simulation makes `Item`s of the books of its broker, and the model of the redrive protocol (`model.py`) makes them
of its states: both check these very functions. An item is one row, message or letter. `always` holds after every step,
`at_the_end` of a run that has come to rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from simulation.scheduler import Violated


@dataclass(slots=True, kw_only=True)
class Item:
    """One row, message or letter.

    Attributes:
        name: for people.
        gone: where it came from has let go of it: the row is accounted for, the message is settled, the letter is
            removed from its place.
        kept: it exists elsewhere: at the destination, at a sink, or in what a handler has done.
        confirmed: the process that let go of it had received the confirmation.
        skipped: it was given up, counted, and is nowhere: only with `allowSkip`.
        copies, excused: how often it was stored at one place; how many of these are explained by attempts without an
            answer, by processes that were killed before they could note it, and by others who did the same.
        ids: under how many ids.
        altered: how a copy differs from the original, in the form that it should have there.
        foreign: it is another application's.
        retries, allowed: how often it was tried again, and how often the policy allows that; None: without a bound.
        early: a try that came before its time.
        harmed: it was given up although it had no fault.
        suppressed: a place took it for another one, and did not store it.
        commanded: what its headers made the library do.
        overtook: which earlier row of its key it did not wait for.
    """

    name: str
    gone: bool = False
    kept: bool = False
    confirmed: bool = False
    skipped: bool = False
    copies: int = 0
    excused: int = 0
    ids: int = 1
    altered: str = ""
    foreign: bool = False
    retries: int = 0
    allowed: int | None = None
    early: str = ""
    harmed: str = ""
    suppressed: bool = False
    commanded: str = ""
    overtook: str = ""


@dataclass(slots=True, kw_only=True)
class End:
    """A run at rest.

    Attributes:
        open: items that are neither where they came from nor anywhere else, or still under way.
        account: what is wrong with the report; an empty text: it adds up.
        unexplained: a failure that hides why it failed.
        late: what took longer than its stated time.
    """

    open: list[str]
    account: str = ""
    unexplained: str = ""
    late: str = ""


def nothing_acknowledged_is_lost(item: Item) -> str:
    return "" if not item.gone or item.kept or item.skipped else f"{item.name} is gone, and nowhere"


def duplicates_are_explained_and_have_one_id(item: Item) -> str:
    if item.copies > 1 + item.excused:
        return f"{item.name} is stored {item.copies} times, and only {item.excused} more are explained"
    return "" if item.ids <= 1 else f"{item.name} is stored under {item.ids} ids"


def the_original_survives(item: Item) -> str:
    return "" if item.foreign or not item.altered else f"{item.name} is altered: {item.altered}"


def nothing_is_let_go_on_hope(item: Item) -> str:
    told = not item.gone or item.confirmed or item.skipped
    return "" if told else f"{item.name} was let go before anything had confirmed it"


def neighbours_are_unharmed(item: Item) -> str:
    return item.harmed and f"{item.name} was given up for no fault of its own: {item.harmed}"


def one_policy_retries(item: Item) -> str:
    if item.allowed is not None and item.retries > item.allowed:
        return f"{item.name} was tried again {item.retries} times; the policy allows {item.allowed}"
    return item.early


def an_item_is_recognised_as_itself(item: Item) -> str:
    return f"{item.name} was taken for another one, and not stored" if item.suppressed else ""


def others_messages_are_unchanged(item: Item) -> str:
    return f"{item.name} of another application is altered: {item.altered}" if item.foreign and item.altered else ""


def what_a_message_says_commands_nobody(item: Item) -> str:
    return item.commanded and f"{item.name} commands: {item.commanded}"


def rows_of_a_key_keep_their_order(item: Item) -> str:
    return item.overtook and f"{item.name} {item.overtook}"


def everything_is_accounted_for(end: End) -> str:
    return f"not accounted for: {', '.join(end.open)}" if end.open else end.account


def a_failure_says_why(end: End) -> str:
    return end.unexplained


def everything_ends(end: End) -> str:
    return end.late


#: What holds after every step, by its number.
ALWAYS: Final[tuple[tuple[int, Callable[[Item], str]], ...]] = (
    (1, nothing_acknowledged_is_lost),
    (3, duplicates_are_explained_and_have_one_id),
    (4, the_original_survives),
    (5, nothing_is_let_go_on_hope),
    (8, neighbours_are_unharmed),
    (10, one_policy_retries),
    (11, an_item_is_recognised_as_itself),
    (12, others_messages_are_unchanged),
    (13, what_a_message_says_commands_nobody),
    (15, rows_of_a_key_keep_their_order),
)
#: What holds at the end.
AT_THE_END: Final[tuple[tuple[int, Callable[[End], str]], ...]] = (
    (2, everything_is_accounted_for),
    (5, a_failure_says_why),
    (7, everything_ends),
)
#: Which worlds check an invariant, by its number; "model" is the model of the redrive protocol. 7 is also checked at
#: each step: a run without progress, or in which every thread waits, violates it. 15 is what `ordering=key` promises.
INVARIANTS: Final[dict[int, tuple[str, ...]]] = {
    1: ("engine", "subscription", "redrive", "two-redrives", "model"),
    2: ("engine", "subscription", "redrive", "two-redrives", "model"),
    3: ("engine", "subscription", "redrive", "two-redrives", "model"),
    4: ("engine", "subscription", "redrive", "two-redrives"),
    5: ("engine", "subscription", "redrive", "two-redrives", "model"),
    7: ("engine", "subscription", "redrive", "two-redrives"),
    8: ("engine", "subscription", "redrive", "two-redrives"),
    10: ("engine", "subscription", "redrive"),
    11: ("engine", "subscription", "redrive", "two-redrives"),
    12: ("subscription", "redrive", "two-redrives"),
    13: ("redrive", "two-redrives"),
    15: ("engine",),
}


def always(items: Iterable[Item]) -> None:
    """Check what holds after every step. Raises Violated."""
    for item in items:
        for number, invariant in ALWAYS:
            if what := invariant(item):
                raise Violated(number, invariant.__name__, what)


def at_the_end(end: End) -> None:
    """Check what holds of a run at rest. Raises Violated."""
    for number, invariant in AT_THE_END:
        if what := invariant(end):
            raise Violated(number, invariant.__name__, what)
