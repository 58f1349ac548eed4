"""The command `redelivery`: parses its arguments, runs one subcommand, and turns our errors into one line.

A subcommand is a function of a module here that adds its arguments to a parser, and sets `run` to a function of the
parsed arguments. Only the module of the subcommand that is called is imported: the others' libraries take long. This
module must not know what a subcommand does.
"""

from __future__ import annotations

import argparse
import ast
import io
import logging
import os
import re
import sys
from collections.abc import Callable, Container, Sequence
from importlib import import_module
from typing import Any, Final, NoReturn

from redelivery.base.secrets import redact, refuse_password
from redelivery.base.urls import unknown
from redelivery.cli.output import SHOWN_TO_ALL, HarmlessFormatter, say
from redelivery.errors import Declined, RedeliveryError
from redelivery.telemetry.current import configure

#: Exit status: the input, or a broker, does not let the command do what was requested.
FAILED = 2
#: Exit status: the person who was asked said no.
DECLINED = 1
#: Exit status: the reader of the output left before the command was done; like a program that dies of SIGPIPE.
UNREAD = 141
#: Exit status: it was interrupted, as by Ctrl-C; like a program that dies of SIGINT.
INTERRUPTED = 130


#: How argparse says that a command does not exist.
_NO_CHOICE: Final = re.compile(
    r"argument (?:COMMAND|WHAT): invalid choice: ('.*'|\".*\") \(choose from (.*)\)", re.DOTALL
)
#: The subcommands: module, the function that adds their arguments, help, description.
_COMMANDS: Final = {
    "plugins": (
        "plugins",
        "add",
        "list the installed plugins",
        "List the installed plugins, what they can do, and those that failed to load, with the cause.",
    ),
    "run": (
        "run",
        "add",
        "handle what arrives at a destination",
        "Call a handler with each message that arrives; print the account at the end as JSON.",
    ),
    "plan": (
        "provision",
        "add_plan",
        "show what a delivery spec needs at a broker",
        "Show the native objects of a delivery spec: missing (+), differing (!), how well, what to see to. Reads only.",
    ),
    "drift": (
        "provision",
        "add_drift",
        "exit with 1 where a broker differs from a delivery spec",
        "Show only what is missing (+) or differs (!); exit with 1 where anything is or does. Reads only.",
    ),
    "apply": (
        "provision",
        "add_apply",
        "make what a delivery spec needs at a broker",
        "Make what is missing, and print the delivery status. What exists is never altered.",
    ),
    "places": (
        "places",
        "add",
        "list the places that redelivery.toml names",
        "List the places that have a name, with their URLs, redacted. Opens none of them.",
    ),
    "dead-letters": (
        "letters",
        "add",
        "look at dead letters, send them back, remove them",
        "Dead letters of one destination: look at them, send them back to work, forward, export, remove.",
    ),
    "ui": (
        "ui",
        "add",
        "show dead letters of all places on a page in the browser",
        "Serve the operator's page on this machine, for one browser: all places, why letters are dead, each letter.",
    ),
    "watch": (
        "watch",
        "add",
        "raise alerts about dead letters: a webhook, metrics",
        "Look at dead letter queues again and again: raise alerts, tell a webhook, serve metrics for Prometheus.",
    ),
    "completion": (
        "completion",
        "add",
        "print a script that completes this command in a shell",
        "Print a script with which a shell completes commands, options, files and names of places in redelivery.toml.",
    ),
}


class _Parser(argparse.ArgumentParser):
    """Names the nearest command in place of all, and shows its help where no command is given at all."""

    def error(self, message: str) -> NoReturn:
        wrong = _NO_CHOICE.fullmatch(message)
        if message.endswith(("required: COMMAND", "required: WHAT")):
            self.print_help(sys.stderr)
            self.exit(FAILED)
        if wrong is not None:
            known = [each.strip("'\" ") for each in wrong[2].split(",")]
            message = str(unknown("command", ast.literal_eval(wrong[1]), known))
        super().error(message)


class _Version(argparse.Action):
    """`--version`: looked up only when it is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from importlib.metadata import version  # noqa: PLC0415 - takes as long as all else

        say(f"{parser.prog} {version('redelivery-core')}")
        parser.exit()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Return the exit status: the command's own; 1 (declined) or 2 (failed) with a line on stderr.

    Args:
        arguments: used in place of those of the process.
    """
    parsed = _parsed(sys.argv[1:] if arguments is None else arguments)
    command: Callable[[argparse.Namespace], int] = parsed.run
    status = UNREAD
    if logging.lastResort is not None:  # which shows warnings where logs are not configured
        logging.lastResort.setFormatter(HarmlessFormatter())
    if isinstance(sys.stdout, io.TextIOWrapper):  # characters that its encoding lacks are escaped
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        _refuse_secrets(parsed)
        if getattr(parsed, "names_place", False):
            import_module(f"{__name__}.arguments").resolve_place(parsed)
        configure()
        status = command(parsed)
        if sys.stdout is not None:  # it may have been closed
            sys.stdout.flush()
    except Declined as error:
        say(f"redelivery: {error}", error=True)
        return DECLINED
    except RedeliveryError as error:
        say(f"redelivery: {' '.join(redact(str(error)).split())}", error=True)
        return FAILED
    except KeyboardInterrupt as error:
        say(f"redelivery: interrupted{'; ' if error.args else ''}{' '.join(map(str, error.args))}", error=True)
        return INTERRUPTED
    except BrokenPipeError:
        _leave_output()
    except OSError as error:
        say(f"redelivery: the output cannot be written: {error.strerror}", error=True)
        _leave_output()
        return FAILED
    return status


def _parsed(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse a command line. Imports the module of its subcommand."""
    called = next((each for each in arguments if not each.startswith("-")), None)
    return _parser({called}).parse_args(arguments)


def whole_parser() -> argparse.ArgumentParser:
    """Return the parser with the arguments of every subcommand. Imports the modules of all."""
    return _parser(_COMMANDS)


def _parser(called: Container[str | None]) -> argparse.ArgumentParser:
    """Return the parser with every subcommand, and the arguments of those that are called."""
    parser = _Parser(
        prog="redelivery", description="Write from PySpark to any message broker, and account for every row."
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for name, (module, add, text, description) in _COMMANDS.items():
        command_parser = commands.add_parser(name, help=text, description=description)
        if name in called:
            getattr(import_module(f"{__name__}.{module}"), add)(command_parser)
    return parser


def _refuse_secrets(parsed: argparse.Namespace) -> None:
    """Check that no URL on the command line holds a secret. Raises InvalidURL."""
    for name in ("url", "sink", "to"):
        given = getattr(parsed, name, None)
        if isinstance(given, str):
            refuse_password(given, shown=SHOWN_TO_ALL)


def _leave_output() -> None:
    """The reader (`| head`) has left, or the disk is full. Python would complain again when it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
