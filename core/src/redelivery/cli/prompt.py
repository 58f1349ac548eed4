"""Confirmation before something is lost permanently. Without a terminal, no question is asked, and nothing is done."""

from __future__ import annotations

import sys

from redelivery.cli.output import say
from redelivery.errors import ConfigurationError, Declined


def confirm(question: str, *, yes: bool) -> None:
    """Return only if the answer is yes.

    Raises:
        Declined: the answer is another one.
        ConfigurationError: no terminal exists to ask at.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise ConfigurationError(f"{question} Without a terminal nobody can confirm; add --yes to confirm")
    say(f"{question} [y/N] ", error=True, end="")
    if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
        raise Declined("nothing was done")
