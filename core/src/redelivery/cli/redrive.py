"""`redelivery dead-letters redrive|forward|remove|purge URL`: the commands that take letters out of their queue.

Ctrl-C lets letters in flight be settled; letters that are not yet sent stay.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
from collections.abc import Callable, Iterator
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from redelivery.cli.arguments import (
    add_place,
    add_threads,
    add_where,
    add_who,
    conditions_of,
    destination_of,
    no_such_letter,
    opened,
    selection_of,
    spec_and_client,
)
from redelivery.cli.output import say, say_json
from redelivery.cli.progress import Progress, add_progress
from redelivery.cli.prompt import confirm
from redelivery.contract.spec import DeliverySpec
from redelivery.deadletters.audit import AuditLog
from redelivery.deadletters.journal import default_path
from redelivery.deadletters.operations import HOP_LIMIT
from redelivery.deadletters.redrive import MAX_RETURNS, RedriveReport, RedriveSettings
from redelivery.errors import ConfigurationError
from redelivery.policy.waves import Waves, plan_shown

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    from redelivery.contract.broker import Letter
    from redelivery.contract.message import Message
    from redelivery.deadletters.patching import Patch

#: Exit status where not all selected letters could be moved.
INCOMPLETE: Final = 1
#: Exit status of a run that a signal stopped: this and the signal's number, as of a program that dies of it.
_SIGNALLED: Final = 128
#: Letters that are removed in one call.
_TOGETHER: Final = 5_000
#: Ids that the audit log names.
_NAMED: Final = 20


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
    _add_redrive(redrive)
    _add_forward(forward)
    for parser, returns in ((redrive, MAX_RETURNS), (forward, None)):
        _add_run(parser, returns)
    _add_move_back(what)
    _add_removals(what)


def _add_redrive(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--to", metavar="URL", help="send to this destination, not to the one where they failed")
    parser.add_argument(
        "--allow-targets",
        action="append",
        default=[],
        metavar="PATTERN",
        help="follow the target that a letter's headers name, if it matches this (orders-*, or routing_key=a.*); a "
        "letter with another target stays; may be repeated",
    )
    parser.add_argument(
        "--hop-limit", type=int, default=HOP_LIMIT, help="leave letters that came back this many times (default 5)"
    )
    parser.add_argument(
        "--new-ids",
        action="store_true",
        help="give every message the id of its hop (ID~HOP); default: only those that a writer of ours could not send",
    )
    parser.add_argument(
        "--patch",
        type=Path,
        metavar="FILE",
        help="edit each letter as this file says (JSON or YAML: body, headers, key, destination); with --dry-run, show "
        "what would change",
    )
    parser.add_argument(
        "--mask",
        action="append",
        default=[],
        metavar="PATTERN",
        help="with --patch and --dry-run: hide what matches this regular expression; may be repeated",
    )
    parser.add_argument(
        "--waves",
        metavar="SIZES",
        help="send this many letters, wait for what comes back, then more, as in 1,10,100,1000; the last size repeats",
    )
    parser.add_argument(
        "--stop-at",
        metavar="LIMIT",
        help="with --waves: stop when this many letters of a wave (5, or 2%%) are refused or dead again (default 2%%)",
    )
    parser.add_argument(
        "--wave-wait",
        metavar="DURATION",
        help="with --waves: how long to wait for what comes back after each wave (default PT30S)",
    )
    parser.add_argument(
        "--spark",
        metavar="MASTER",
        help="as a Spark job of this master (local[*], spark://HOST:7077): as many at once as it has cores",
    )
    parser.add_argument(
        "--shared-mount",
        action="store_true",
        help="with --spark: --journal, and a destination of one host, lie on a mount that all hosts share",
    )


def _add_forward(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--to", metavar="URL", help="the only sink, in place of those of the delivery spec")
    parser.add_argument(
        "--follow", action="store_true", help="go on with what is dead-lettered later, until Ctrl-C or SIGTERM"
    )
    parser.add_argument(
        "--interval", type=float, default=10.0, metavar="SECONDS", help="between two looks of --follow (default 10)"
    )


def _add_run(parser: argparse.ArgumentParser, max_returns: int | None) -> None:
    """Add which letters are moved, how far and how fast."""
    add_place(parser, with_spec=True)
    add_where(parser)
    parser.add_argument(
        "--limit",
        type=int,
        help="send at most this many letters, with those of a run that was killed or interrupted",
    )
    parser.add_argument("--rate", type=float, help="send at most this many letters per second")
    parser.add_argument("--dry-run", action="store_true", help="only say how many would go")
    parser.add_argument(
        "--max-returns",
        type=int,
        default=max_returns,
        help="stop when more than this many letters are refused or dead again (default 100)",
    )
    parser.add_argument(
        "--journal",
        type=Path,
        metavar="FILE",
        help="the file that notes what was sent (default: one file per place)",
    )
    parser.add_argument("--json", action="store_true", help="print the account as JSON")
    add_who(parser)
    add_progress(parser)


def _add_move_back(what: _SubParsersAction[argparse.ArgumentParser]) -> None:
    back = what.add_parser(
        "move-back",
        help="have the broker itself move all letters back, where it can",
        description="Have the broker itself move all letters back to work: fast, and without redrive's account. "
        "Letters keep their error context, and no hop is counted.",
    )
    back.set_defaults(run=_move_back)
    add_place(back)
    add_who(back)
    back.add_argument("--wait", type=float, default=300.0, help="seconds that it may take (default 300)")


def _add_removals(what: _SubParsersAction[argparse.ArgumentParser]) -> None:
    remove = what.add_parser(
        "remove", help="remove letters", description="Remove the letters that --id, --group or --where select."
    )
    remove.set_defaults(run=_remove)
    add_place(remove)
    add_where(remove)
    purge = what.add_parser("purge", help="remove all letters", description="Remove all letters of a place.")
    purge.set_defaults(run=_purge)
    add_place(purge)
    for parser in (remove, purge):
        add_who(parser)
        parser.add_argument("--yes", action="store_true", help="do not ask")
        add_progress(parser)
    add_threads(purge)


def _redrive(arguments: argparse.Namespace) -> int:
    where, (spec, client) = selection_of(arguments), _spec(arguments)
    patch, waves = None if arguments.patch is None else _patch(arguments), _waves(arguments)
    if arguments.spark is not None:
        if patch is not None:
            raise ConfigurationError("--patch: a Spark job takes no patch: leave out --spark, or mend rows in Python")
        if waves is not None:
            raise ConfigurationError("--waves: a Spark job sends all at once: leave out --spark, or --waves")
        return _redrive_by_spark(arguments, spec, client)
    with opened(arguments, client) as dlq, _Run(arguments) as run:
        settings = run.settings
        journal = arguments.journal or default_path(dlq.place)
        with _audited(arguments, "redrive" if patch is None else "edit", dlq.place) as told:
            report = dlq.redrive(
                to=arguments.to,
                where=where,
                settings=settings,
                journal=journal,
                spec=spec,
                hop_limit=arguments.hop_limit,
                allow_targets=arguments.allow_targets,
                new_ids=arguments.new_ids,
                patch=patch,
                waves=waves,
            )
            told.update(asdict(report))
    return run.status(_account(arguments, report))


def _patch(arguments: argparse.Namespace) -> Patch:
    """Read the patch. Raises ConfigurationError."""
    from redelivery.deadletters.patching import Patch  # noqa: PLC0415 - seldom used

    return Patch.read(arguments.patch)


def _waves(arguments: argparse.Namespace) -> Waves | None:
    """Raises ConfigurationError."""
    if arguments.waves is not None:
        return Waves.parse(arguments.waves, arguments.stop_at, arguments.wave_wait)
    for name, value in (("--stop-at", arguments.stop_at), ("--wave-wait", arguments.wave_wait)):
        if value is not None:
            raise ConfigurationError(f"{name}: it belongs to --waves: name the sizes of the waves, as in 1,10,100")
    return None


def _shown_edits(arguments: argparse.Namespace) -> Callable[[Letter, Message, Message], None]:
    """Return what shows each edit of a dry run: on stderr, where the account is JSON on stdout."""
    from redelivery.deadletters.patching import diff, masking  # noqa: PLC0415 - seldom used

    mask = masking(arguments.mask)

    def show(letter: Letter, before: Message, after: Message) -> None:
        for line in diff(letter.message.id or letter.position, before, after, mask=mask):
            say(line, error=arguments.json)

    return show


def _redrive_by_spark(arguments: argparse.Namespace, spec: DeliverySpec | None, client: dict[str, str]) -> int:
    """Do the same as a Spark job, in its own session."""
    if arguments.id:
        raise ConfigurationError("--id: a Spark job takes conditions: write --where id=...")
    from redelivery.spark import java  # noqa: PLC0415 - Spark is an extra, and takes seconds

    with opened(arguments, client) as dlq:
        place = dlq.place
    quiet = {"spark.ui.showConsoleProgress": "false", "spark.log.level": "ERROR"}
    spark = java.local_session("redelivery dead-letters redrive", master=arguments.spark, config=quiet)
    try:
        from redelivery.spark import redrive  # noqa: PLC0415 - as above

        # The run after Spark, which has its own handler for Ctrl-C.
        with _audited(arguments, "redrive", place) as told, _Run(arguments) as run:
            settings = run.settings
            report = redrive(
                spark,
                destination_of(arguments, client),
                where=conditions_of(arguments),
                to=arguments.to,
                sink=arguments.sink,
                options=client,
                spec=spec,
                limit=settings.limit,
                rate=settings.rate,
                hop_limit=arguments.hop_limit,
                allow_targets=arguments.allow_targets,
                new_ids=arguments.new_ids,
                max_returns=settings.max_returns,
                key=arguments.key,
                journal=arguments.journal,
                shared_mount=arguments.shared_mount,
                triage=arguments.triage,
                dry_run=settings.dry_run,
                stop=settings.stop,
                on_progress=settings.on_progress,
            )
            told.update(asdict(report))
    finally:
        spark.stop()
    return run.status(_account(arguments, report))


def _forward(arguments: argparse.Namespace) -> int:
    where, (spec, client) = selection_of(arguments), _spec(arguments)
    with opened(arguments, client) as dlq, _Run(arguments) as run:
        settings = run.settings
        journal = arguments.journal or default_path(dlq.place)
        with _audited(arguments, "forward", dlq.place) as told:
            report = dlq.forward(
                arguments.to,
                where=where,
                settings=settings,
                journal=journal,
                spec=spec,
                follow=arguments.follow,
                interval=_interval(arguments.interval),
            )
            told.update(asdict(report))
    return run.status(_account(arguments, report))


@contextlib.contextmanager
def _audited(arguments: argparse.Namespace, action: str, place: str) -> Iterator[dict[str, Any]]:
    """Note in the audit log that this begins, and how it ends. A dry run changes nothing, and is not noted."""
    if getattr(arguments, "dry_run", False):
        yield {}
        return
    with AuditLog().operation(action, place, _meant(arguments), who=arguments.who) as told:
        yield told


def _meant(arguments: argparse.Namespace) -> str:
    """Return which letters are meant, and how far, for the audit log."""
    ids = arguments.id[:_NAMED]
    more = f" and {len(arguments.id) - _NAMED} more ids" if arguments.id[_NAMED:] else ""
    said = [*conditions_of(arguments), *(f"id={each}" for each in ids)] or ["all"]
    how = [f"{name} {value}" for name in ("to", "limit", "rate") if (value := getattr(arguments, name, None))]
    return ", ".join([" and ".join(said) + more, *how])


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


class _Run:
    """One run: how far and how fast, what it shows, and how it ends.

    The first Ctrl-C, or SIGTERM, stops it after the letters in flight; the second one at once.

    Attributes:
        settings: how far and how fast.
    """

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._asked: list[int] = []
        self._follows = getattr(arguments, "follow", False)
        self._progress = Progress(arguments, arguments.limit)
        self._previous: dict[int, Any] = {}
        self.settings = RedriveSettings(
            limit=arguments.limit,
            rate=arguments.rate,
            dry_run=arguments.dry_run,
            max_returns=arguments.max_returns,
            stop=lambda: bool(self._asked),
            on_progress=self._show,
            on_edit=_shown_edits(arguments) if arguments.dry_run and getattr(arguments, "patch", None) else None,
        )

    def _stop(self, number: int, _: FrameType | None) -> None:
        if self._asked:
            raise KeyboardInterrupt
        self._asked.append(number)

    def _show(self, report: RedriveReport) -> None:
        left = sum(report.left.values())
        notes = ((report.failed, "refused"), (left, "left"), (report.returned, "dead again"))
        wave = [f"wave {report.wave:,}"] if report.wave else []
        said = ", ".join(wave + [f"{count:,} {what}" for count, what in notes if count])
        self._progress(report.selected if self.settings.dry_run else report.redriven, said)

    def status(self, status: int) -> int:
        """Return the exit status: that of a program that a signal ended, where one has, and more is left to do."""
        if not self._asked or self._follows:
            return status
        say("redelivery: stopped by a signal; the same command goes on where this one has ended", error=True)
        return _SIGNALLED + self._asked[0]

    def __enter__(self) -> Self:
        self._previous = {number: signal.signal(number, self._stop) for number in (signal.SIGINT, signal.SIGTERM)}
        self._progress.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.__exit__(kind, error, trace)
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        if isinstance(error, KeyboardInterrupt):
            error.args = ("what was sent is noted; the same command goes on where this one has ended",)


def _account(arguments: argparse.Namespace, report: RedriveReport) -> int:
    nothing = arguments.id and not report.considered + report.resumed and not report.stopped
    if nothing and not arguments.json:
        return no_such_letter(arguments.id)
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
        for wave in report.waves:
            tail = f"{wave.failed:,} refused, {wave.returned:,} dead again"
            say(f"{wave.sent:>9,}  were sent in wave {wave.number:,}: {tail}")
        if arguments.dry_run and getattr(arguments, "waves", None) is not None:
            say(f"Waves: {plan_shown(Waves.parse(arguments.waves).plan(report.selected)) or 'none'}.")
        if report.stopped:
            say(f"Stopped: {report.stopped}.")
    held = report.redriven - report.removed
    if held and not arguments.json:
        say(f"{held:>9,}  of those were not removed: gone already, or hidden or locked, and removed by the next run")
    if nothing:
        return no_such_letter(arguments.id)
    return INCOMPLETE if report.failed or held or (report.stopped and not report.is_limited) else 0


def _move_back(arguments: argparse.Namespace) -> int:
    with opened(arguments) as dlq, AuditLog().operation("move-back", dlq.place, "all", who=arguments.who) as told:
        moved = told["moved"] = dlq.move_back(wait=arguments.wait)
    say(f"{moved:,} letters moved back by the broker.")
    return 0


def _remove(arguments: argparse.Namespace) -> int:
    if not arguments.id and not arguments.where and arguments.group is None:
        raise ConfigurationError("remove: name letters by --id or --where, or a --group; `purge` removes all")
    where = selection_of(arguments)
    with opened(arguments) as dlq:
        positions: list[str] = []
        with Progress(arguments) as progress:
            for letter in dlq.select(where):
                positions.append(letter.position)
                progress(len(positions), "found")
        if not positions and arguments.id:
            return no_such_letter(arguments.id)
        if positions:
            confirm(f"Remove {len(positions):,} letters of {dlq.place} for good?", yes=arguments.yes)
        removed = 0
        with _audited(arguments, "remove", dlq.place) as told, Progress(arguments, len(positions)) as progress:
            for first in range(0, len(positions), _TOGETHER):
                removed += dlq.remove_at(positions[first : first + _TOGETHER])
                told["removed"] = removed
                progress(removed, "removed")
    say(f"{removed:,} letters removed.")
    return 0


def _purge(arguments: argparse.Namespace) -> int:
    with opened(arguments) as dlq:
        if arguments.yes:
            count = 0 if next(iter(dlq), None) is None else None
        else:
            count = 0
            with Progress(arguments) as progress:
                for some in dlq.scan(len, columns=frozenset(), threads=arguments.threads):
                    count += some
                    progress(count, "found")
        if count:
            confirm(f"Remove all {count:,} letters of {dlq.place} for good?", yes=arguments.yes)
        removed = 0
        if count != 0:
            with AuditLog().operation("purge", dlq.place, "all", who=arguments.who) as told:
                removed = told["removed"] = dlq.purge()
        say(f"{removed:,} letters removed.")
    return 0
