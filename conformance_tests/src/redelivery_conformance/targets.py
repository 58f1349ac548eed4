"""Choose the brokers under test, start each one, and report on them at the end.

The hooks of pytest are in `plugin.py`.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from redelivery.base.urls import redact, scheme_of
from redelivery_conformance.harness import GROUP, Harness, NotHere, Runtime, RuntimeKind, start


class NoHarness(Exception):
    """The plugin of a named broker has no harness; the text says how to register one."""


@dataclass(frozen=True, slots=True)
class Target:
    """One broker under test: its harness (None: not available), and the URL or kind if one was given."""

    harness: Harness | None
    url: str | None = None
    kind: RuntimeKind | None = None

    @property
    def id(self) -> str:
        """Return the target's name for the id of a test."""
        if self.harness is None:
            return "no-broker"
        kind = "url" if self.url else self.kind
        return f"{self.harness.name}-{kind}" if kind else self.harness.name

    @property
    def plugin(self) -> int | None:
        """Return a value that is equal for two targets of one plugin."""
        if self.harness is None:
            return None
        with suppress(KeyError):
            return id(self.harness.plugin())
        return id(self.harness)


@dataclass(slots=True)
class Account:
    """The brokers under test and their results, for the report."""

    target: Target
    runtime: Runtime | None = None
    why_not: str = ""
    ran: int = 0
    not_applicable: dict[str, list[str]] = field(default_factory=dict)
    not_shown: dict[str, list[str]] = field(default_factory=dict)
    gaps: dict[str, list[str]] = field(default_factory=dict)
    #: Statements of the whole suite that this run leaves out, or has not collected for this target.
    left_out: set[str] = field(default_factory=set)
    native: set[str] = field(default_factory=set)
    shown: set[str] = field(default_factory=set)

    @property
    def unshown(self) -> list[str]:
        """The capabilities that are native and that no statement has shown, of a run of the whole suite."""
        return [] if self.left_out else sorted(self.native - self.shown)

    def lines(self) -> list[str]:
        """Return the account as text."""
        if self.runtime is None:
            return [f"{self.target.id}: none: {self.why_not}"]
        out = [f"{self.target.id}: {self.runtime.kind}: {redact(self.runtime.description)}; {self.ran} statements ran"]
        out += [f"  this runtime cannot show: {each}" for each in self.runtime.cannot_show]
        if self.unshown:
            out.append(f"  said to be native, and shown by no statement: {', '.join(self.unshown)}")
        for reason, names in sorted(self.not_applicable.items()):
            out.append(f"  not applicable: {reason}: {_few(names)}")
        for reason, names in sorted(self.not_shown.items()):
            out.append(f"  not shown: {reason}: {_few(names)}")
        for reason, names in sorted(self.gaps.items()):
            out.append(f"  gap of this stand-in: {reason}: {_few(names)}")
        return out


class Targets:
    """The brokers under test in one session. Each is started once, when the first statement needs it.

    Args:
        urls: explicit URLs; the harness of its scheme gets each.
        names: plugins to test; empty: all.
        options: client options for explicit URLs.
        kinds: kinds of runtime; each that a harness can start is its own target; empty: the first available.
        scratch: creates a folder for a runtime.
    """

    def __init__(
        self,
        urls: Sequence[str],
        names: Sequence[str],
        options: Mapping[str, str],
        kinds: Sequence[RuntimeKind],
        scratch: Callable[[str], Path],
    ) -> None:
        self._urls = urls
        self._names = names
        self._options = options
        self._kinds = kinds
        self._scratch = scratch
        self._by_name: dict[str, Harness] = {}
        self.accounts: dict[tuple[int, str | None, RuntimeKind | None], Account] = {}

    def of(self, broker: str | Harness | None) -> list[Target]:
        """Return the targets of a class of statements, from its `broker`. Raises NoHarness."""
        if broker is None:
            named = [scheme_of(url) for url in self._urls] or self._names or self._installed()
            found = [target for name in dict.fromkeys(named) for target in self.of(name)]
            return found or [Target(None)]
        harness: Harness | None = broker if isinstance(broker, Harness) else None
        if isinstance(broker, str):
            harness = self._harness(broker)
        assert harness is not None
        schemes = {harness.name}
        with suppress(KeyError):
            schemes.update(harness.plugin().schemes)
        urls = [url for url in self._urls if scheme_of(url) in schemes]
        kinds = [kind for kind in self._kinds if kind in harness.starts()] if self._kinds else []
        found = [Target(harness, url) for url in urls] or [Target(harness, kind=kind) for kind in kinds]
        return found or [Target(harness)]

    def wanted(self, target: Target) -> bool:
        """Return whether the command line includes this target."""
        return not self._names or target.harness is None or target.harness.name in self._names

    def runtime(self, target: Target) -> Runtime:
        """Return the running broker of a target. Raises NotHere, with the same text each time."""
        account = self.account(target)
        if account.runtime is None and not account.why_not:
            try:
                account.runtime = self._start(target)
            except NotHere as error:
                account.why_not = redact(str(error))
        if account.runtime is None:
            raise NotHere(account.why_not)
        return account.runtime

    def account(self, target: Target) -> Account:
        """Return the account for the report."""
        return self.accounts.setdefault((id(target.harness), target.url, target.kind), Account(target))

    def close(self) -> None:
        """Stop the started brokers."""
        for account in self.accounts.values():
            if account.runtime is not None:
                account.runtime.close()

    def _start(self, target: Target) -> Runtime:
        if target.harness is None:
            raise NotHere(f"no plugin is installed that brings a harness (an entry point in the group {GROUP!r})")
        options = self._options if target.url else {}
        return start(target.harness, target.url, options, self._scratch(target.id), target.kind)

    @staticmethod
    def _installed() -> list[str]:
        return sorted(point.name for point in importlib.metadata.entry_points(group=GROUP))

    def _harness(self, name: str) -> Harness:
        if name not in self._by_name:
            found = [point for point in importlib.metadata.entry_points(group=GROUP) if point.name == name]
            if not found:
                raise NoHarness(
                    f"no harness for {name!r}; its distribution registers one: "
                    f'[project.entry-points.{GROUP}] {name} = "package.testing:ItsHarness"'
                )
            try:
                self._by_name[name] = found[0].load()()
            except ImportError as error:
                raise NoHarness(
                    f"the harness of {name!r} does not load: {error}; install its extra [testing]"
                ) from error
        return self._by_name[name]


def _few(names: Sequence[str]) -> str:
    """Return the statements' names, each once, or only their number if they would fill the screen."""
    distinct = list(dict.fromkeys(name.partition("[")[0] for name in names))
    most = 3
    return ", ".join(distinct) if len(distinct) <= most else f"{len(distinct)} statements (-rs names them)"
