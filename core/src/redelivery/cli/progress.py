"""How far a long command is, on stderr: for people at a terminal, and as lines in a log where they are asked for."""

from __future__ import annotations

import argparse
import sys
import time
from types import TracebackType
from typing import Any, Final, Self

from redelivery.base.rendering import harmless
from redelivery.cli.output import overwrite, say

#: A command that takes no longer shows nothing.
_AFTER: Final = 1.0
#: Seconds between two looks at a terminal, and between two lines of a log.
_BETWEEN: Final = 0.2
_LINES: Final = 10.0


def add_progress(parser: argparse.ArgumentParser) -> None:
    """Add `--progress` and `--quiet`."""
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument(
        "--progress", action="store_true", help="show progress even where stderr is not a terminal: a line each 10 s"
    )
    shown.add_argument("--quiet", action="store_true", help="show no progress")


class Progress:
    """Shows how many letters are done, from when a command has taken a second.

    Args:
        arguments: parsed, with those of `add_progress`.
        total: how many exist; None: unknown.
        shares: lines of the command itself go to the same terminal, so that only a log gets lines.
    """

    def __init__(self, arguments: argparse.Namespace, total: int | None = None, *, shares: bool = False) -> None:
        self._total = total
        terminal = sys.stderr is not None and sys.stderr.isatty()
        self._terminal = terminal and not arguments.quiet and not shares
        self._lines = arguments.progress and not terminal
        self._began = time.monotonic()
        self._next = self._began + (_LINES if self._lines else _AFTER)
        self._bar: Any = None
        self._shown = False

    def __call__(self, done: int, note: str = "") -> None:
        """Show that so many letters are done. May be called often.

        Args:
            done: letters.
            note: what else is known, one short line.
        """
        now = time.monotonic()
        if now < self._next:
            return
        if self._lines:
            self._next = now + _LINES
            say(f"redelivery: {self._said(done, note, now)}", error=True)
        elif self._terminal:
            self._next = now + _BETWEEN
            self._show(done, note, now)

    def _said(self, done: int, note: str, now: float) -> str:
        rate = done / max(now - self._began, 0.001)
        known = f"{done:,} of {self._total:,} letters" if self._total else f"{done:,} letters"
        left = f", {_clock((self._total - done) / rate)} left" if self._total and rate and done else ""
        return f"{known}, {rate:,.0f}/s, {_clock(now - self._began)}{left}{', ' if note else ''}{note}"

    def _show(self, done: int, note: str, now: float) -> None:
        if not self._shown:
            self._shown = True
            self._bar = _bar(self._total)
        if self._bar is None:
            overwrite(self._said(done, note, now))
        else:
            said = self._said(done, note, now)
            self._bar.update(self._bar.task_ids[0], completed=done, description=harmless(said))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
        elif self._shown:
            overwrite("")


def _bar(total: int | None) -> Any:
    """Return rich's bar, or its spinner where the total is unknown; None where rich is not installed."""
    try:
        from rich.console import Console  # noqa: PLC0415 - takes long, and most commands are over before
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn  # noqa: PLC0415 - as above
    except ImportError:
        return None
    first = BarColumn(bar_width=24) if total else SpinnerColumn()
    text = TextColumn("{task.description}", markup=False)
    bar = Progress(first, text, console=Console(stderr=True), transient=True, redirect_stdout=False)
    bar.add_task("", total=total)
    bar.start()
    return bar


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
