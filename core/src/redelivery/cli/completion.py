"""`redelivery completion SHELL`: a script with which a shell completes commands, options, files and names of places.

It asks `redelivery places --names` for the names when TAB is pressed, so that they are those of the current folder.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from redelivery.cli import whole_parser
from redelivery.cli.output import say
from redelivery.errors import ConfigurationError

_SHELLS: Final = ("bash", "zsh", "fish", "tcsh")
#: Positional arguments that take the name of a place.
_PLACES: Final = frozenset({"url", "place", "places"})
_NAMES: Final = "redelivery places --names 2>/dev/null"
#: In zsh a function: a command would run once for each argument, when the script is loaded.
_ZSH: Final = f'_redelivery_places() {{\n  compadd "$@" -- ${{(f)"$({_NAMES})"}}\n}}'


def add(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("shell", choices=_SHELLS, metavar="SHELL", help=f"one of {', '.join(_SHELLS)}")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    try:
        import shtab  # noqa: PLC0415 - of the extra `cli`
    except ImportError as error:
        raise ConfigurationError("completion needs shtab: pip install 'redelivery-core[cli]'") from error

    names: dict[str, Any] = shtab.cmd(_NAMES)
    names = {**names, "zsh": "_redelivery_places", "preamble": {**names["preamble"], "zsh": _ZSH}}
    parser = whole_parser()
    for action in _actions(parser):
        if action.type is Path:
            kind = shtab.DIRECTORY if action.metavar == "FOLDER" else shtab.FILE
        elif not action.option_strings and action.dest in _PLACES:
            kind = names
        else:
            continue
        action.complete = kind  # type: ignore[attr-defined]  # where shtab looks for it
    for line in shtab.complete(parser, arguments.shell).splitlines():
        say(line)
    return 0


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yield the arguments of a parser and of its subcommands."""
    for action in parser._actions:  # noqa: SLF001 - argparse has no other way to ask, and shtab uses it too
        yield action
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001 - as above
            for each in action.choices.values():
                yield from _actions(each)
