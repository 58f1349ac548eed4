"""`redelivery dead-letters park|unpark|note|history URL`: what people have decided about letters and groups.

These commands move no letter. Their notes lie beside the journal, and not at the broker.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from itertools import islice
from typing import TYPE_CHECKING, Final

from redelivery.cli.arguments import add_place, add_who, no_such_letter, opened
from redelivery.cli.output import moment, one_line, room, say, say_json
from redelivery.contract.context import ErrorContext
from redelivery.deadletters.audit import AuditLog, Entry
from redelivery.deadletters.groups import cause, check_fingerprint
from redelivery.deadletters.queue import DeadLetterQueue
from redelivery.deadletters.selection import Selection
from redelivery.deadletters.triage import State, What, key_of
from redelivery.errors import ConfigurationError

if TYPE_CHECKING:
    from argparse import _SubParsersAction

#: Letters among which a group's message is looked for.
_LOOKED_AT: Final = 1000
_DONE: Final = {"park": "parked", "unpark": "unparked", "note": "given a note"}


def add(what: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommands."""
    for name, text, description in (
        (
            "park",
            "leave letters or groups out of redrives",
            "Leave letters, or groups with all that come later, out of redrives until unparked. Nothing is moved.",
        ),
        (
            "unpark",
            "let parked letters or groups be redriven again",
            "Let parked letters or groups be redriven again. Nothing is moved.",
        ),
        ("note", "attach a note to letters or groups", "Attach a note to letters or groups. Nothing is moved."),
    ):
        parser = what.add_parser(name, help=text, description=description)
        parser.set_defaults(run=_change, action=name)
        add_place(parser)
        parser.add_argument("--id", action="append", default=[], metavar="ID", help="this letter; may be repeated")
        parser.add_argument(
            "--group",
            action="append",
            default=[],
            metavar="FINGERPRINT",
            help="all letters of this group, as `stats --by fingerprint` shows it; may be repeated",
        )
        parser.add_argument(
            "--note", default="", required=name == "note", metavar="TEXT", help="a note for other people"
        )
        add_who(parser)
    history = what.add_parser(
        "history",
        help="what is parked, and who did what here",
        description="Show what is parked or noted, and who did what at this place. Nothing is moved.",
    )
    history.set_defaults(run=_history)
    add_place(history)
    history.add_argument("--limit", type=int, default=100, metavar="N", help="lines, at most (default 100)")
    history.add_argument("--json", action="store_true", help="print it as JSON")


def _change(arguments: argparse.Namespace) -> int:
    if bool(arguments.id) == bool(arguments.group):
        raise ConfigurationError(f"{arguments.action}: name letters by --id, or groups by --group")
    for each in arguments.group:
        check_fingerprint(each)
    with opened(arguments) as dlq:
        what: What = "group" if arguments.group else "letter"
        found = _names(dlq, arguments.group) if arguments.group else _letters(arguments, dlq)
        if not found:
            return no_such_letter(arguments.id)
        change = {"park": dlq.triage.park, "unpark": dlq.triage.unpark, "note": dlq.triage.note}[arguments.action]
        count = change(what, found, arguments.note, who=arguments.who, names=list(found.values()))
        AuditLog().record(
            arguments.action,
            dlq.place,
            " ".join(f"group={each}" for each in arguments.group) or f"id: {', '.join(arguments.id)}",
            details={"count": count, "note": arguments.note},
            who=arguments.who,
        )
    kind = what if count == 1 else f"{what}s"
    unchanged = len(found) - count
    say(f"{count:,} {kind} {_DONE[arguments.action]}{f'; {unchanged:,} were so already' if unchanged else ''}.")
    missing = [each for each in arguments.id if each not in found and each not in found.values()]
    return no_such_letter(missing) if missing else 0


def _letters(arguments: argparse.Namespace, dlq: DeadLetterQueue) -> dict[str, str]:
    """Return the keys of the letters that are named, with the names that were used."""
    named = frozenset(arguments.id)
    if arguments.action == "unpark":  # a letter that is gone can be unparked
        known = {each.key: each.name for each in dlq.triage.states("letter") if named & {each.name, each.key}}
        if known:
            return known
    found = {}
    for letter in dlq.select(Selection().of(arguments.id)):
        name = letter.message.id or (letter.context.message_id if letter.context else None)
        found[key_of(letter)] = name if name is not None and name in named else letter.position
    return found


def _names(dlq: DeadLetterQueue, fingerprints: Sequence[str]) -> dict[str, str]:
    """Return what people call groups: the message of a letter, where one of them is among the first letters."""
    names = dict.fromkeys(fingerprints, "")
    for letter in islice(dlq, _LOOKED_AT):
        found = cause(letter.context or ErrorContext())
        if names.get(found.fingerprint) == "":
            names[found.fingerprint] = found.shown().message
    return names


def _history(arguments: argparse.Namespace) -> int:
    if arguments.limit < 1:
        raise ConfigurationError(f"--limit: must be 1 or more, not {arguments.limit}")
    with opened(arguments) as dlq:
        states = dlq.triage.states()[: arguments.limit]
        entries = AuditLog().entries(dlq.place, arguments.limit)
    if arguments.json:
        found = {"states": [asdict(each) for each in states], "log": [asdict(each) for each in entries]}
        say_json(found, indent=2)
        return 0
    for state in states:
        _say(state.at_ms, _state(state))
    if states and entries:
        say()
    for entry in entries:
        _say(entry.at_ms, _entry(entry))
    if not states and not entries:
        say("Nothing is parked or noted here, and nothing was done.")
    return 0


def _say(at_ms: int, text: str) -> None:
    head, width = f"{moment(at_ms)}  ", room(wide=False)
    say(head + one_line(text, width and width - len(head)))


def _state(state: State) -> str:
    how = "parked" if state.parked else "noted"
    name = state.key if state.what == "group" else state.name
    said = state.name if state.what == "group" else ""
    note = f": {state.note}" if state.note else ""
    return f"{state.who}: {state.what} {name} {how}{note}{f' ({said})' if said else ''}"


def _entry(entry: Entry) -> str:
    details = ", ".join(
        f"{name}={value}" for name, value in entry.details.items() if value not in (None, "", {}, [], 0)
    )
    outcome = "" if entry.outcome == "done" else f" {entry.outcome}"
    told = f": {details}" if details else ""
    return f"{entry.who}: {entry.action}{outcome}: {entry.selection}{told}"
