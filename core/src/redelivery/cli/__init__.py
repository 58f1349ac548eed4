"""The command `redelivery`: parses its arguments, runs one subcommand, and turns our errors into one line.

A subcommand is a module here with `add(subparsers)`, which sets `run` to a function of the parsed arguments. This
module must not know what a subcommand does.
"""

from __future__ import annotations

import argparse
import io
import logging
import os
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version

from redelivery.base.secrets import redact, refuse_password
from redelivery.cli import letters, plugins, provision, run
from redelivery.cli.arguments import SHOWN
from redelivery.cli.output import HarmlessFormatter, say
from redelivery.errors import Declined, RedeliveryError

#: Exit status: the input, or a broker, does not let the command do what was requested.
FAILED = 2
#: Exit status: the person who was asked said no.
DECLINED = 1
#: Exit status: the reader of the output left before the command was done; like a program that dies of SIGPIPE.
UNREAD = 141


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Return the exit status: the command's own; 1 (declined) or 2 (failed) with a line on stderr.

    Args:
        arguments: used in place of those of the process.
    """
    parser = argparse.ArgumentParser(
        prog="redelivery", description="Write from PySpark to any message broker, and account for every row."
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {version('redelivery-core')}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    plugins.add(commands)
    run.add(commands)
    provision.add(commands)
    letters.add(commands)
    parsed = parser.parse_args(arguments)
    command: Callable[[argparse.Namespace], int] = parsed.run
    status = UNREAD
    if logging.lastResort is not None:  # which shows warnings where logs are not configured
        logging.lastResort.setFormatter(HarmlessFormatter())
    if isinstance(sys.stdout, io.TextIOWrapper):  # characters that its encoding lacks are escaped
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        _refuse_secrets(parsed)
        status = command(parsed)
        if sys.stdout is not None:  # it may have been closed
            sys.stdout.flush()
    except Declined as error:
        say(f"redelivery: {error}", error=True)
        return DECLINED
    except RedeliveryError as error:
        say(f"redelivery: {' '.join(redact(str(error)).split())}", error=True)
        return FAILED
    except BrokenPipeError:
        _leave_output()
    except OSError as error:
        say(f"redelivery: the output cannot be written: {error.strerror}", error=True)
        _leave_output()
        return FAILED
    return status


def _refuse_secrets(parsed: argparse.Namespace) -> None:
    """Check that no URL on the command line holds a secret. Raises InvalidURL."""
    for name in ("url", "sink", "to"):
        given = getattr(parsed, name, None)
        if isinstance(given, str):
            refuse_password(given, shown=SHOWN)


def _leave_output() -> None:
    """The reader (`| head`) has left, or the disk is full. Python would complain again when it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
