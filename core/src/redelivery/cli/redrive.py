"""`redelivery dead-letters redrive|forward|remove|purge URL`: the commands that take letters out of their queue.

Ctrl-C lets letters in flight be settled; letters that are not yet sent stay.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Final

from redelivery.cli.arguments import add_place, add_where, opened, selection_of, spec_and_client
from redelivery.cli.output import overwrite, say, say_json
from redelivery.cli.prompt import confirm
from redelivery.contract.spec import DeliverySpec
from redelivery.deadletters.journal import default_path
from redelivery.deadletters.operations import HOP_LIMIT
from redelivery.deadletters.redrive import MAX_RETURNS, RedriveReport, RedriveSettings
from redelivery.errors import ConfigurationError

if TYPE_CHECKING:
    from argparse import _SubParsersAction

#: Exit status where not all selected letters could be moved.
INCOMPLETE: Final = 1


def add(what: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommands."""
    redrive = what.add_parser(
        "redrive",
        help="send letters back to work",
        description="Send letters back to where they failed. Each is removed once its destination has confirmed it; "
        "a run that was interrupted or killed goes on where it was when it is started again.",
    )
    forward = what.add_parser(
        "forward",
        help="move what the broker itself dead-lettered to a sink",
        description="Move letters of the broker's own (expired, delivered too often) to a sink, with their reason in "
        "the headers. Each is removed once the sink has confirmed it.",
    )
    redrive.set_defaults(run=_redrive)
    forward.set_defaults(run=_forward)
    redrive.add_argument("--to", metavar="URL", help="another destination than the one where they failed")
    redrive.add_argument(
        "--allow-targets",
        action="append",
        default=[],
        metavar="PATTERN",
        help="follow the target that a letter's headers name, if it is like this (orders-*, or routing_key=a.*); a "
        "letter with another one stays; may be repeated",
    )
    redrive.add_argument("--hop-limit", type=int, default=HOP_LIMIT, help="leave what came back so often (default 5)")
    forward.add_argument("--to", metavar="URL", help="the only sink, in place of those of the delivery spec")
    forward.add_argument(
        "--follow", action="store_true", help="go on with what is dead-lettered later, until Ctrl-C or SIGTERM"
    )
    forward.add_argument(
        "--interval", type=float, default=10.0, metavar="SECONDS", help="between two looks of --follow (default 10)"
    )
    for parser, returns in ((redrive, MAX_RETURNS), (forward, None)):
        add_place(parser, with_spec=True)
        add_where(parser)
        parser.add_argument("--limit", type=int, help="letters, at most")
        parser.add_argument("--rate", type=float, help="letters a second, at most")
        parser.add_argument("--dry-run", action="store_true", help="only say how many would go")
        parser.add_argument(
            "--max-returns",
            type=int,
            default=returns,
            help="stop when more than so many are refused or dead again (default 100)",
        )
        parser.add_argument(
            "--journal", type=Path, metavar="FILE", help="where to note what was sent (default: one a place)"
        )
        parser.add_argument("--json", action="store_true", help="print the account as JSON")
    back = what.add_parser(
        "move-back",
        help="have the broker itself move all letters back, where it can",
        description="Have the broker itself move all letters back to work: fast, and without redrive's account. "
        "Letters keep their error context, and no hop is counted.",
    )
    back.set_defaults(run=_move_back)
    add_place(back)
    back.add_argument("--wait", type=float, default=300.0, help="seconds that it may take (default 300)")
    remove = what.add_parser("remove", help="remove letters", description="Remove the letters that are named.")
    remove.set_defaults(run=_remove)
    add_place(remove)
    add_where(remove)
    purge = what.add_parser("purge", help="remove all letters", description="Remove all letters of a place.")
    purge.set_defaults(run=_purge)
    add_place(purge)
    for parser in (remove, purge):
        parser.add_argument("--yes", action="store_true", help="do not ask")


def _redrive(arguments: argparse.Namespace) -> int:
    where, (spec, client) = selection_of(arguments), _spec(arguments)
    with opened(arguments, client) as dlq, _settings(arguments) as settings:
        journal = arguments.journal or default_path(dlq.place)
        report = dlq.redrive(
            to=arguments.to,
            where=where,
            settings=settings,
            journal=journal,
            spec=spec,
            hop_limit=arguments.hop_limit,
            allow_targets=arguments.allow_targets,
        )
    return _account(arguments, report)


def _forward(arguments: argparse.Namespace) -> int:
    where, (spec, client) = selection_of(arguments), _spec(arguments)
    with opened(arguments, client) as dlq, _settings(arguments) as settings:
        journal = arguments.journal or default_path(dlq.place)
        report = dlq.forward(
            arguments.to,
            where=where,
            settings=settings,
            journal=journal,
            spec=spec,
            follow=arguments.follow,
            interval=_interval(arguments.interval),
        )
    return _account(arguments, report)


def _interval(seconds: float) -> timedelta:
    """Raises ConfigurationError."""
    try:
        return timedelta(seconds=seconds)
    except (OverflowError, ValueError) as error:
        raise ConfigurationError(f"--interval {seconds}: a number of seconds above 0") from error


def _spec(arguments: argparse.Namespace) -> tuple[DeliverySpec | None, dict[str, str]]:
    """Return the spec, None where no field of it is given, and the client's options. Raises ConfigurationError."""
    spec, client = spec_and_client(arguments)
    return None if spec == DeliverySpec() else spec, client


@contextmanager
def _settings(arguments: argparse.Namespace) -> Iterator[RedriveSettings]:
    """Return how far and how fast. The first Ctrl-C stops gently, the second at once. A terminal shows progress."""
    asked: list[int] = []

    def stop(number: int, _: FrameType | None) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)

    shows = sys.stderr.isatty()
    settings = RedriveSettings(
        limit=arguments.limit,
        rate=arguments.rate,
        dry_run=arguments.dry_run,
        max_returns=arguments.max_returns,
        stop=lambda: bool(asked),
        on_progress=_progress if shows else lambda _: None,
    )
    previous = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield settings
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        if shows:
            overwrite("")


def _progress(report: RedriveReport) -> None:
    overwrite(f"{report.redriven:,} moved, {report.failed:,} refused, {sum(report.left.values()):,} left")


def _account(arguments: argparse.Namespace, report: RedriveReport) -> int:
    if arguments.json:
        say_json(asdict(report), indent=2)
    else:
        verb = "would be sent" if arguments.dry_run else "were meant"
        say(f"{report.selected if arguments.dry_run else report.considered:>9,}  {verb}")
        for count, text in (
            (report.resumed, "had been sent by an earlier run, and are removed now"),
            (report.redriven, "are confirmed at their destination"),
            (report.failed, "were refused there, and stay"),
            *((count, f"go to {target}") for target, count in report.targets.items()),
            *((count, f"stay: {why}") for why, count in report.left.items()),
            (report.returned, "are dead letters again"),
        ):
            if count:
                say(f"{count:>9,}  {text}")
        if report.stopped:
            say(f"Stopped: {report.stopped}.")
    held = report.redriven - report.removed
    if held and not arguments.json:
        say(f"{held:>9,}  of those were not removed: gone already, or hidden or locked, and removed by the next run")
    limited = report.stopped is not None and arguments.limit is not None and report.selected >= arguments.limit
    return INCOMPLETE if report.failed or held or (report.stopped and not limited) else 0


def _move_back(arguments: argparse.Namespace) -> int:
    with opened(arguments) as dlq:
        say(f"{dlq.move_back(wait=arguments.wait):,} letters moved back by the broker.")
    return 0


def _remove(arguments: argparse.Namespace) -> int:
    if not arguments.id and not arguments.where:
        raise ConfigurationError("remove: name letters by --id or --where; `purge` removes all")
    where = selection_of(arguments)
    with opened(arguments) as dlq:
        positions = [letter.position for letter in dlq.select(where)]
        if positions:
            confirm(f"Remove {len(positions):,} letters of {dlq.place} for good?", yes=arguments.yes)
        say(f"{dlq.remove_at(positions):,} letters removed.")
    return 0


def _purge(arguments: argparse.Namespace) -> int:
    with opened(arguments) as dlq:
        count = sum(1 for _ in dlq)
        if count:
            confirm(f"Remove all {count:,} letters of {dlq.place} for good?", yes=arguments.yes)
        say(f"{dlq.purge() if count else 0:,} letters removed.")
    return 0
