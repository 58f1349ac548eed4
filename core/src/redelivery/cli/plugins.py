"""`redelivery plugins`: the installed plugins, what each can do, and which failed to load.

Everything shown comes from the plugins' own capabilities.
"""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from datetime import timedelta
from typing import Any, TypeAlias

from redelivery.base import durations
from redelivery.cli.output import say, say_json
from redelivery.contract.broker import CONTRACT_VERSION, FEATURES, BrokerPlugin, Capabilities, Limits, Support
from redelivery.registry import Registry, discover

#: The width of the table in columns of a terminal.
WIDTH = 80

_GAP = "  "

#: A column of the table: its head and what it shows.
_Column: TypeAlias = tuple[str, Capabilities]


def add(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print everything that is known as JSON")
    form.add_argument("--markdown", action="store_true", help="print the table of capabilities in Markdown")
    form.add_argument("--options", action="store_true", help="print every option there is in Markdown")
    form.add_argument("--codes", action="store_true", help="print every error code in Markdown")
    form.add_argument("--commands", action="store_true", help="print every command of this program in Markdown")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    found = discover()
    if arguments.json:
        say_json(as_dict(found), indent=2)
    elif arguments.markdown:
        _say_lines(as_markdown(found))
    elif arguments.options:
        from redelivery.cli import options_page  # noqa: PLC0415 - it needs what all options are read with

        _say_lines(options_page.as_markdown(found))
    elif arguments.codes:
        from redelivery.cli import codes_page  # noqa: PLC0415 - as above

        _say_lines(codes_page.as_markdown())
    elif arguments.commands:
        from redelivery.cli import commands_page  # noqa: PLC0415 - as above

        _say_lines(commands_page.as_markdown())
    else:
        _say_lines(as_table(found))
    return 0


def _say_lines(page: str) -> None:
    for line in page.split("\n"):
        say(line)


def as_dict(found: Registry) -> dict[str, Any]:
    """Return JSON-ready data: `contract`, `plugins`, `failed`. Durations are ISO-8601, sizes bytes; null: unlimited."""
    return {
        "contract": CONTRACT_VERSION,
        "plugins": [
            {
                "name": plugin.name,
                "schemes": list(plugin.schemes),
                "version": plugin.version,
                "contract": plugin.contract,
                "capabilities": _plain(plugin.capabilities),
                "modes": {name: _plain(each) for name, each in plugin.modes.items()},
                "options": dict(plugin.options),
            }
            for plugin in found.plugins.values()
        ],
        "failed": [{"name": each.name, "cause": each.cause} for each in found.failed],
    }


def as_table(found: Registry) -> str:
    """Return plain text, at most WIDTH columns wide unless a single word is longer."""
    plugins = list(found.plugins.values())
    lines = list(_aligned([("PLUGIN", "VERSION", "CONTRACT", "SCHEMES"), *map(_identity, plugins)]))
    if not plugins:
        lines = ["No plugin is installed: pip install redelivery brings the embedded ones."]
    for block in _blocks(_columns(plugins)):
        lines += ["", *_aligned(_matrix(block))]
    if found.failed:
        lines += ["", "FAILED TO LOAD"]
        for each in found.failed:
            lines += textwrap.wrap(f"{each.name}: {each.cause}", WIDTH, subsequent_indent="    ")
    return "\n".join(lines)


def as_markdown(found: Registry) -> str:
    """Return the table of capabilities for docs/brokers.md: one row per capability, one column per plugin and mode."""
    head, *rows = _matrix(_columns(found.plugins.values()))
    ruler = ["---"] * len(head)
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ruler, *rows])


def _identity(plugin: BrokerPlugin) -> tuple[str, ...]:
    return plugin.name, plugin.version, str(plugin.contract), " ".join(f"{scheme}:" for scheme in plugin.schemes)


def _columns(plugins: Iterable[BrokerPlugin]) -> list[_Column]:
    """Return a column for each plugin, followed by those of its modes."""
    return [
        (f"{plugin.name} ({mode})" if mode else plugin.name, capabilities)
        for plugin in plugins
        for mode, capabilities in {"": plugin.capabilities, **plugin.modes}.items()
    ]


def _matrix(columns: Sequence[_Column]) -> list[tuple[str, ...]]:
    """Return what each can do, one row per capability; rows that are empty in every column here are left out."""
    all_of = [capabilities for _, capabilities in columns]
    rows: list[tuple[str, ...]] = [("capability", *(name for name, _ in columns))]
    rows += [(_words(name), *(_support(getattr(each, name)) for each in all_of)) for name in FEATURES]
    rows += [
        ("settles per", *(each.settles for each in all_of)),
        ("several hosts", *("yes" if each.networked else "no" for each in all_of)),
    ]
    for item in fields(Limits):
        values = [_limit(getattr(each.limits, item.name)) for each in all_of]
        if set(values) != {"-"}:
            rows.append((_words(item.name), *values))
    return rows


def _blocks(columns: Sequence[_Column]) -> Iterator[list[_Column]]:
    """Return as many columns side by side as fit into WIDTH."""
    block: list[_Column] = []
    for column in columns:
        if block and max(map(len, _aligned(_matrix([*block, column])))) > WIDTH:
            yield block
            block = []
        block.append(column)
    if block:
        yield block


def _aligned(rows: Iterable[Sequence[str]]) -> Iterator[str]:
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield _GAP.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _words(name: str) -> str:
    return name.replace("_", " ")


def _support(value: Support) -> str:
    return value.value if value else "-"


def _limit(value: float | timedelta | None) -> str:
    if value is None:
        return "-"
    return durations.write(value) if isinstance(value, timedelta) else f"{value:,}"


def _plain(value: Any) -> Any:
    """Return a capability as JSON has it."""
    if isinstance(value, Capabilities | Limits):
        return {item.name: _plain(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, timedelta):
        return durations.write(value)
    if isinstance(value, type):
        return value.__name__
    if isinstance(value, frozenset):
        return sorted(value)
    return {name: _plain(each) for name, each in value.items()} if isinstance(value, dict) else value
