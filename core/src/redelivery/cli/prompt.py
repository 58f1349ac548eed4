"""Asking before something is gone for good. Without a terminal nothing is asked, and nothing is done."""

from __future__ import annotations

import sys

from redelivery.cli.output import say
from redelivery.errors import ConfigurationError, Declined


def confirm(question: str, *, yes: bool) -> None:
    """Go on only where the answer is yes.

    Raises:
        Declined: the answer is another one.
        ConfigurationError: there is no terminal to ask at.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise ConfigurationError(f"{question} Without a terminal nobody can confirm; add --yes to confirm")
    say(f"{question} [y/N] ", error=True, end="")
    if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
        raise Declined("nothing was done")
