"""`redelivery dead-letters list|show|stats|export URL`: look at dead letters; these commands move none.

The commands that move them are in `redrive.py`.
"""

from __future__ import annotations

import argparse
import os
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final

from redelivery.base.files import open_private
from redelivery.base.rendering import harmless
from redelivery.cli import redrive
from redelivery.cli.arguments import add_place, add_threads, add_where, no_such_letter, opened, selection_of
from redelivery.cli.output import body, json_line, one_line, padded, room, say, say_json, to_terminal
from redelivery.cli.progress import Progress, add_progress
from redelivery.cli.prompt import confirm
from redelivery.contract.broker import Letter
from redelivery.contract.context import ErrorContext, sound
from redelivery.contract.letters import LetterBatch
from redelivery.deadletters.export import as_json
from redelivery.deadletters.selection import Selection, dead_since_ms, since_ms
from redelivery.deadletters.trust import contexts_of
from redelivery.errors import ConfigurationError, ExportFailed
from redelivery.formats.rows import size_of

_AGES: Final = ((60, "under a minute"), (3600, "under an hour"), (86400, "under a day"), (7 * 86400, "under a week"))
_OLDER: Final = "a week and more"
_UNKNOWN: Final = "unknown"


def add(parser: argparse.ArgumentParser) -> None:
    """Add the subcommand's own subcommands."""
    what = parser.add_subparsers(title="what to do", required=True, metavar="WHAT")
    for name, text, run, add_arguments in (
        ("list", "one line per letter, oldest first", _list, _add_list),
        ("show", "one whole letter: the reason, its headers, its body", _show, _add_show),
        ("stats", "how many, by code, reason, age and source", _stats, _add_stats),
        ("export", "JSON lines, into a file or to stdout", _export, _add_export),
    ):
        each = what.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}. Nothing is moved.")
        each.set_defaults(run=run)
        add_place(each)
        if name != "show":
            add_where(each)
            add_progress(each)
        add_arguments(each)
    redrive.add(what)


def _add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print it as JSON")


def _add_stats(parser: argparse.ArgumentParser) -> None:
    _add_json(parser)
    add_threads(parser)


def _add_list(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--limit", type=int, default=100, help="letters, at most (default 100; 0: all)")
    parser.add_argument("--wide", action="store_true", help="whole ids and reasons, as where the output is no terminal")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="one JSON array")
    form.add_argument("--jsonl", action="store_true", help="JSON, one line per letter, while reading")


def _add_show(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("letter", metavar="ID", help="its message id or position, as `list` shows it")
    parser.add_argument("--all", action="store_true", help="the whole body, however long")
    _add_json(parser)


def _add_export(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--output", type=Path, metavar="FILE", help="instead of stdout; complete, or not there at all")
    parser.add_argument("--yes", action="store_true", help="replace an existing file without asking")


def _list(arguments: argparse.Namespace) -> int:
    if arguments.limit < 0:
        raise ConfigurationError(f"--limit: must be 0 or more, not {arguments.limit}")
    where = selection_of(arguments)
    with opened(arguments) as dlq, Progress(arguments, shares=to_terminal()) as progress:
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
        yield f"{head}  {one_line(said or '-', width and width - len(head) - 2)}".rstrip()
    if not found:
        yield none


def _age(letter: Letter, now: float) -> str:
    since = dead_since_ms(letter)
    if since is None:
        return "-"
    seconds = max(0, int(now - since / 1000))
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def _show(arguments: argparse.Namespace) -> int:
    with opened(arguments) as dlq:
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
    _line(name.removesuffix("_ms"), _moment(value) if name.endswith("_ms") else value)


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


def _moment(millis: int) -> str:
    with suppress(ValueError, OverflowError, OSError):
        return datetime.fromtimestamp(millis / 1000, UTC).isoformat(timespec="milliseconds")
    return str(millis)


def _stats(arguments: argparse.Namespace) -> int:
    where = selection_of(arguments)
    total = _Stats()
    now = time.time()
    with opened(arguments) as dlq, Progress(arguments) as progress:
        for found in dlq.scan(partial(_stats_of, now=now), where, threads=arguments.threads):
            total.add(found)
            progress(total.count)
    if not total.count and arguments.id:
        return no_such_letter(arguments.id)
    _say_stats(arguments, total)
    return 0


@dataclass(slots=True)
class _Stats:
    """What is counted of some letters."""

    count: int = 0
    nbytes: int = 0
    maybe: int = 0
    groups: dict[str, Counter[str]] = field(default_factory=lambda: {name: Counter() for name in _ORDER})

    def add(self, other: _Stats) -> None:
        """Add what was counted of others."""
        self.count += other.count
        self.nbytes += other.nbytes
        self.maybe += other.maybe
        for name, found in other.groups.items():
            self.groups[name].update(found)


def _stats_of(batch: LetterBatch, now: float) -> _Stats:
    found = _Stats(count=len(batch), nbytes=size_of(batch.messages))
    columns = contexts_of(batch, (*_SHOWN, "last_failure_ms"))
    for said, count in Counter(zip(*(columns[name] for name in _SHOWN), strict=True)).items():
        context = sound(ErrorContext(**dict(zip(_SHOWN, said, strict=True))))
        found.maybe += count * context.maybe_delivered
        for name, of in _GROUPS.items():
            found.groups[name][of(context)] += count
    nothing: list[int | None] = [None] * len(batch)
    dead, sent = batch.dead_lettered_ms, batch.messages.timestamp_ms
    times = zip(
        nothing if dead is None else dead.values,
        columns["last_failure_ms"],
        nothing if sent is None else sent.values,
        strict=True,
    )
    found.groups[_AGE].update(_how_old(since_ms(*known), now) for known in times)
    return found


def _say_stats(arguments: argparse.Namespace, stats: _Stats) -> None:
    total, nbytes, maybe, counts = stats.count, stats.nbytes, stats.maybe, stats.groups
    if arguments.json:
        groups = {name.replace(" ", "_"): dict(found.most_common()) for name, found in counts.items()}
        say_json({"count": total, "bytes": nbytes, "maybe_delivered": maybe, **groups}, indent=2)
        return
    say(f"{total:,} dead letters, {nbytes:,} bytes")
    if maybe:
        say(f"{maybe:,} of them may have been delivered all the same: an attempt ended without an answer")
    for name, found in counts.items() if total else ():
        say()
        say(name)
        for group, count in found.most_common():
            width = room(wide=False)
            say(f"  {count:>9,}  {one_line(group, width and width - 14)}")


def _reason(context: ErrorContext) -> str:
    return ": ".join(filter(None, (context.kind, context.label))) or context.reason or _UNKNOWN


def _code(context: ErrorContext) -> str:
    return context.code or _UNKNOWN


def _native_code(context: ErrorContext) -> str:
    return context.native_code or _UNKNOWN


def _how_old(since: int | None, now: float) -> str:
    if since is None:
        return _UNKNOWN
    return next((name for seconds, name in _AGES if now - since / 1000 < seconds), _OLDER)


def _source(context: ErrorContext) -> str:
    said = context.subscriber and f"subscription {context.subscriber}"
    return said or context.destination or context.source_topic or _UNKNOWN


_GROUPS: Final[dict[str, Callable[[ErrorContext], str]]] = {
    "by code": _code,
    "by native code": _native_code,
    "by reason": _reason,
    "by source": _source,
}
_AGE: Final = "by age"
_ORDER: Final[tuple[str, ...]] = ("by code", "by native code", "by reason", _AGE, "by source")
#: The fields of a context that `_GROUPS` read.
_SHOWN: Final[tuple[str, ...]] = (
    "kind",
    "code",
    "native_code",
    "reason",
    "subscriber",
    "destination",
    "source_topic",
    "maybe_delivered",
)


def _export(arguments: argparse.Namespace) -> int:
    where = selection_of(arguments)
    output: Path | None = arguments.output
    shares = output is None and to_terminal()
    with opened(arguments) as dlq, Progress(arguments, shares=shares) as progress:
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
