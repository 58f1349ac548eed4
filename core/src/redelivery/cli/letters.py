"""`redelivery dead-letters list|show|stats|export URL`: look at dead letters; these commands move none.

The commands that move them are in `redrive.py`.
"""

from __future__ import annotations

import argparse
import os
import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final

from redelivery.base.files import open_private
from redelivery.base.rendering import harmless
from redelivery.cli import redrive, triage
from redelivery.cli.arguments import add_place, add_threads, add_where, looking, no_such_letter, selection_of
from redelivery.cli.output import body, json_line, moment, one_line, padded, room, say, say_json, to_terminal
from redelivery.cli.progress import Progress, add_progress
from redelivery.cli.prompt import confirm
from redelivery.contract.broker import Letter
from redelivery.contract.context import ErrorContext
from redelivery.deadletters.export import as_json
from redelivery.deadletters.selection import Selection, dead_since_ms
from redelivery.deadletters.summary import AGE, NAMES, UNKNOWN, Summary, summarise
from redelivery.errors import ConfigurationError, ExportFailed

#: What `stats --by` takes, and what it shows without it.
FINGERPRINT: Final = "fingerprint"
_BY: Final = ("code", "native_code", "reason", AGE, "source")

_STATUS: Final = (
    "Exit status: 0, also where the queue exists and is empty; 1 if no letter has the given id; 2 if it failed, also "
    "where there is no such queue."
)


def add(parser: argparse.ArgumentParser) -> None:
    """Add the subcommand's own subcommands."""
    what = parser.add_subparsers(title="what to do", required=True, metavar="WHAT")
    for name, text, run, add_arguments in (
        ("list", "one line per letter, oldest first", _list, _add_list),
        ("show", "one whole letter: the reason, its headers, its body", _show, _add_show),
        ("stats", "how many, by code, reason, age and source, or in groups", _stats, _add_stats),
        ("export", "JSON lines, into a file or to stdout", _export, _add_export),
    ):
        description = f"{text[0].upper()}{text[1:]}. Nothing is moved."
        each = what.add_parser(name, help=text, description=description, epilog=_STATUS)
        each.set_defaults(run=run)
        add_place(each)
        if name != "show":
            add_where(each)
            add_progress(each)
        add_arguments(each)
    redrive.add(what)
    triage.add(what)


def _add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print it as JSON")


def _add_stats(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--by",
        action="append",
        choices=(FINGERPRINT, *_BY),
        help="count by this only; fingerprint: in groups, one per cause; may be repeated",
    )
    _add_json(parser)
    add_threads(parser)


def _add_list(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--limit", type=int, default=100, help="letters, at most (default 100; 0: all)")
    parser.add_argument(
        "--wide", action="store_true", help="whole ids and reasons, as where the output is not a terminal"
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="one JSON array")
    form.add_argument("--jsonl", action="store_true", help="JSON, one line per letter, while reading")


def _add_show(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("letter", metavar="ID", help="its message id or position, as `list` shows it")
    parser.add_argument("--all", action="store_true", help="the whole body, however long")
    _add_json(parser)


def _add_export(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="write to this file, not to stdout; an export that fails writes none",
    )
    parser.add_argument("--yes", action="store_true", help="replace an existing file without asking")


def _list(arguments: argparse.Namespace) -> int:
    if arguments.limit < 0:
        raise ConfigurationError(f"--limit: must be 0 or more, not {arguments.limit}")
    where = selection_of(arguments)
    with looking(arguments) as dlq, Progress(arguments, shares=to_terminal()) as progress:
        letters = _counted(islice(dlq.select(where), arguments.limit or None), progress)
        first = next(letters, None)
        if first is None and arguments.id:
            return no_such_letter(arguments.id)
        found = letters if first is None else chain([first], letters)
        if arguments.jsonl:
            for letter in found:
                say_json(as_json(letter))
        elif arguments.json:
            say_json([as_json(letter) for letter in found], indent=2)
        else:
            none = "No letters match." if where.conditions else "No dead letters."
            for line in _table(found, room(wide=arguments.wide), none):
                say(line)
    return 0


def _counted(letters: Iterator[Letter], progress: Progress) -> Iterator[Letter]:
    for done, letter in enumerate(letters, 1):
        yield letter
        progress(done)


def _table(letters: Iterable[Letter], width: int | None, none: str) -> Iterator[str]:
    now = time.time()
    found = False
    for letter in letters:
        if not found:
            yield f"{'AGE':>6}  {'KIND':<12}  {'TRIES':>5}  {'ID':<24}  REASON"
        found = True
        context = letter.context or ErrorContext()
        name = letter.message.id or context.message_id or letter.position
        tries = "" if context.attempts_total is None else str(context.attempts_total)
        head = f"{_age(letter, now):>6}  {padded(one_line(context.kind or '-', width and 12), 12)}  {tries:>5}  "
        head += padded(one_line(name, width and 24), 24)
        said = f"{context.label}: {context.reason}" if context.label else context.reason
        if context.maybe_delivered:
            said = f"maybe delivered; {said}"
        yield f"{head}  {one_line(said or '-', width and max(20, width - len(head) - 2))}".rstrip()
    if not found:
        yield none


def _age(letter: Letter, now: float) -> str:
    since = dead_since_ms(letter)
    if since is None:
        return "-"
    return _ago(now - since / 1000)


def _ago(age: float) -> str:
    seconds = max(0, int(age))
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def _show(arguments: argparse.Namespace) -> int:
    with looking(arguments) as dlq:
        letter = next(dlq.select(Selection().of([arguments.letter])), None)
        if letter is None:
            named = (each for each in dlq if (each.context or ErrorContext()).message_id == arguments.letter)
            letter = next(named, None)
    if letter is None:
        raise ConfigurationError(f"no such letter: {arguments.letter!r}; `redelivery dead-letters list` shows them")
    if arguments.json:
        say_json(as_json(letter), indent=2)
        return 0
    _head(as_json(letter))
    _part("key", letter.message.key, arguments)
    if letter.message.headers:
        say()
        say("headers")
    for name, value in letter.message.headers:
        lines = list(body(value, most=None if arguments.all else 200))
        _line(harmless(name), lines[0] if len(lines) == 1 else "")
        for line in lines if len(lines) > 1 else ():
            say(f"    {line}")
    _part("body", letter.message.value, arguments, always=True)
    return 0


def _head(found: dict[str, Any]) -> None:
    """Return where the letter is stored, and why it was dead-lettered."""
    for name in ("position", "id", "destination", "timestamp_ms", "dead_lettered_ms"):
        if name in found:
            _field(name, found[name])
    say()
    say("error")
    for name, value in found["error"].items():
        if name != "extra":
            _field(name, value)


def _field(name: str, value: Any) -> None:
    _line(name.removesuffix("_ms"), moment(value) if name.endswith("_ms") else value)


def _part(title: str, value: bytes | None, arguments: argparse.Namespace, *, always: bool = False) -> None:
    if value is None and not always:
        return
    say()
    say(title + ("" if value is None else f" ({len(value):,} bytes)"))
    for line in body(value, **({"most": None} if arguments.all else {})):
        say(f"  {line}")


def _line(name: str, value: Any) -> None:
    first, *rest = harmless(str(value), keep="\n").split("\n")
    say(f"  {name:<18} {first}")
    for line in rest:
        say(f"  {'':<18} {line}")


def _stats(arguments: argparse.Namespace) -> int:
    where = selection_of(arguments)
    by = arguments.by or _BY
    with looking(arguments) as dlq, Progress(arguments) as progress:
        found = summarise(
            dlq,
            where,
            threads=arguments.threads,
            groups=NAMES if FINGERPRINT in by else 0,
            triage=dlq,
            on_progress=progress,
        )
    if not found.count and arguments.id:
        return no_such_letter(arguments.id)
    if arguments.json:
        say_json(_stats_as_json(found, by), indent=2)
    else:
        _say_stats(found, by)
    return 0


def _stats_as_json(found: Summary, by: Sequence[str]) -> dict[str, Any]:
    told: dict[str, Any] = {"count": found.count, "bytes": found.nbytes, "maybe_delivered": found.maybe_delivered}
    told |= {name: getattr(found, name) for name in ("oldest_ms", "newest_ms", "undated", "parked")}
    told |= {f"by_{name}": dict(found.by[name].most_common()) for name in by if name != FINGERPRINT}
    if FINGERPRINT in by:
        told |= {"groups": [asdict(each) for each in found.groups], "others": found.others}
    told["arrivals"] = {"bin_ms": found.bin_ms, "bins": found.arrivals, "earlier": found.earlier, "later": found.later}
    return told


def _say_stats(found: Summary, by: Sequence[str]) -> None:
    say(f"{found.count:,} dead letters, {found.nbytes:,} bytes")
    if found.maybe_delivered:
        maybe = "may have been delivered all the same: an attempt ended without an answer"
        say(f"{found.maybe_delivered:,} of them {maybe}")
    if found.parked:
        say(f"{found.parked:,} of them are parked: no redrive takes them")
    width = room(wide=False)
    for name in by if found.count else ():
        say()
        say(f"by {name.replace('_', ' ')}")
        if name == FINGERPRINT:
            _say_groups(found, width)
            continue
        for each, count in found.by[name].most_common():
            say(f"  {count:>9,}  {one_line(each, width and width - 14)}")


def _say_groups(found: Summary, width: int | None) -> None:
    now = time.time()
    for group in found.groups:
        since = "-" if group.oldest_ms is None else _ago(now - group.oldest_ms / 1000)
        label = ": ".join(filter(None, (group.kind, group.code or group.native_code or group.exception)))
        state = " parked" if group.parked else ""
        line = f"{label}: {group.message}" if label and group.message else label or group.message or UNKNOWN
        head = f"  {group.count:>9,}  {group.fingerprint}{state}  {since:>4}"
        say(f"{head}  {one_line(line, width and max(20, width - len(head) - 2))}")
    if found.others:
        say(f"  {found.others:>9,}  in further groups")


def _export(arguments: argparse.Namespace) -> int:
    where = selection_of(arguments)
    output: Path | None = None if arguments.output == Path("-") else arguments.output
    shares = output is None and to_terminal()
    with looking(arguments) as dlq, Progress(arguments, shares=shares) as progress:
        letters = _counted(dlq.select(where), progress)
        first = next(letters, None)
        if first is None and arguments.id:
            return no_such_letter(arguments.id)
        forms = map(as_json, letters if first is None else chain([first], letters))
        if output is None:
            for form in forms:
                say_json(form)
            return 0
        if output.is_dir():
            raise ConfigurationError(f"--output {str(output)!r} is a folder; name a file in it")
        if output.exists():
            confirm(f"Replace {str(output)!r}?", yes=arguments.yes)
        count = _write(output, (json_line(form) + "\n" for form in forms))
    say(f"{count:,} letters in {output}. They are still in their place.")
    return 0


def _write(output: Path, lines: Iterator[str]) -> int:
    """Write into a temporary file beside it, for its owner alone; it gets the name only when it is complete."""
    beside = output.with_name(f".{output.name}.{secrets.token_hex(8)}.part")
    try:
        with os.fdopen(open_private(beside), "w", encoding="utf-8") as file:
            count = sum(1 for line in lines if file.write(line))
            file.flush()
            os.fsync(file.fileno())
        beside.replace(output)
    except OSError as error:
        raise ExportFailed(
            f"--output {str(output)!r} cannot be written: {error.strerror}; the letters are still in their place"
        ) from error
    finally:
        beside.unlink(missing_ok=True)
    return count
