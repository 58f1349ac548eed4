"""`redelivery plugins --commands`: every command and flag, as the page `docs/cli.md`.

It comes from the parsers themselves, so nothing can be left out. It is the same on each version of Python.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Final

from redelivery.cli import whole_parser

_HEAD: Final = """\
# Command line

Made by `redelivery plugins --commands`; a test compares it with the code.

`URL` is a place at a broker, such as `sqlite:orders.db?queue=orders`, or a name from `redelivery.toml`
([Operating](operating.md)). Quote it: `?` and `&` mean something to a shell. Every command knows `--help`.

| exit status | meaning |
| --- | --- |
| 0 | done |
| 1 | an answer: `drift` found a difference, `watch --once` an active alert, no letter has the `--id`, \
a redrive or forward left letters behind, or you said no |
| 2 | the input or a broker does not let the command do what was asked; one line on stderr says why and what to do |
| 130, 143 | stopped by Ctrl-C or SIGTERM; a redrive settles the letters in flight first, and the \
same command goes on where it ended |
| 141 | the reader of the output (`head`) left before the command was done |
"""


_TABLE: Final = ("| argument | meaning |", "| --- | --- |")


def as_markdown() -> str:
    """Return the page."""
    return "\n".join(_lines()).rstrip()


def _lines() -> Iterator[str]:
    parser = whole_parser()
    yield _HEAD
    yield from ("| command | what it does |", "| --- | --- |")
    pages = list(_commands(parser))
    for each in pages:
        yield f"| [`{each.prog}`](#{each.prog.replace(' ', '-')}) | {_text(each.description)} |"
    group = f"{parser.prog} dead-letters"
    tables = {each.prog: [_row(action) for action in _arguments(each)] for each in pages}
    shared = _in_all([rows for name, rows in tables.items() if name.startswith(f"{group} ")])
    first = next(name for name in tables if name.startswith(f"{group} "))
    for each in pages:
        rows = tables[each.prog]
        if each.prog == first:
            yield from (
                "",
                f"## {group}",
                "",
                "Each of its commands takes these, beside its own.",
                "",
                *_TABLE,
                *shared,
            )
        if each.prog.startswith(f"{group} "):
            rows = [row for row in rows if row not in shared]
        yield from ("", f"## {each.prog}", "", _text(each.description), "", f"    {_usage(each)}")
        if rows:
            yield from ("", *_TABLE, *rows)


def _in_all(tables: list[list[str]]) -> list[str]:
    return [row for row in tables[0] if all(row in rows for rows in tables)]


def _commands(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Return the commands that do something: those without commands of their own, in the order of `--help`."""
    within = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]  # noqa: SLF001 - argparse has no other way
    if not within:
        yield parser
    for action in within:
        for each in action.choices.values():
            yield from _commands(each)


def _arguments(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """Return the arguments, those by position first; without `--help` and what help does not show."""
    shown = [
        action
        for action in parser._actions  # noqa: SLF001 - as above
        if action.help != argparse.SUPPRESS and not isinstance(action, argparse._HelpAction)  # noqa: SLF001 - as above
    ]
    return sorted(shown, key=lambda action: bool(action.option_strings))


def _usage(parser: argparse.ArgumentParser) -> str:
    arguments = _arguments(parser)
    needed = [_name(action) for action in arguments if not action.option_strings]
    needed += [_flag(action) for action in arguments if action.option_strings and action.required]
    rest = ["[options]"] if any(action.option_strings and not action.required for action in arguments) else []
    return " ".join([parser.prog, *needed, *rest])


def _row(action: argparse.Action) -> str:
    shown = _flag(action) if action.option_strings else _name(action)
    return f"| `{shown}` | {_text(action.help)}{_more(action)} |".replace("`|", "` |")


def _flag(action: argparse.Action) -> str:
    takes = "" if action.nargs == 0 else f" {_name(action)}"
    return f"{', '.join(action.option_strings)}{takes}"


def _name(action: argparse.Action) -> str:
    name = str(action.metavar or (action.dest.upper() if action.option_strings else action.dest))
    return {"?": f"[{name}]", "*": f"[{name} ...]", "+": f"{name} ..."}.get(str(action.nargs), name)


def _more(action: argparse.Action) -> str:
    """Return what argparse knows beside the help text."""
    more = []
    if action.choices:
        more.append("one of " + ", ".join(f"`{each}`" for each in action.choices))
    if action.option_strings and action.required:
        more.append("required")
    return f" ({'; '.join(more)})" if more else ""


def _text(text: str | None) -> str:
    return (text or "").replace("%%", "%").replace("|", "\\|").replace("<", "&lt;")
