"""Which brokers are under test, how each is had here, and what is said of it at the end.

This file must not know pytest's hooks (`plugin.py`), nor any broker.
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
    """A broker is named whose plugin brings no harness; the text says how one is registered."""


@dataclass(frozen=True, slots=True)
class Target:
    """One broker under test: its harness (None: there is none available), and the URL or kind where one was given."""

    harness: Harness | None
    url: str | None = None
    kind: RuntimeKind | None = None

    @property
    def id(self) -> str:
        """Names it in a test's id."""
        if self.harness is None:
            return "no-broker"
        kind = "url" if self.url else self.kind
        return f"{self.harness.name}-{kind}" if kind else self.harness.name

    @property
    def plugin(self) -> int | None:
        """Says of two targets whether they are of one plugin."""
        if self.harness is None:
            return None
        with suppress(KeyError):
            return id(self.harness.plugin())
        return id(self.harness)


@dataclass(slots=True)
class Account:
    """What was under test, for the report."""

    target: Target
    runtime: Runtime | None = None
    why_not: str = ""
    ran: int = 0
    not_applicable: dict[str, list[str]] = field(default_factory=dict)
    not_shown: dict[str, list[str]] = field(default_factory=dict)
    gaps: dict[str, list[str]] = field(default_factory=dict)

    def lines(self) -> list[str]:
        """The account as text."""
        if self.runtime is None:
            return [f"{self.target.id}: none: {self.why_not}"]
        out = [f"{self.target.id}: {self.runtime.kind}: {redact(self.runtime.description)}; {self.ran} statements ran"]
        out += [f"  this runtime cannot show: {each}" for each in self.runtime.cannot_show]
        for reason, names in sorted(self.not_applicable.items()):
            out.append(f"  not applicable: {reason}: {_few(names)}")
        for reason, names in sorted(self.not_shown.items()):
            out.append(f"  not shown: {reason}: {_few(names)}")
        for reason, names in sorted(self.gaps.items()):
            out.append(f"  gap of this stand-in: {reason}: {_few(names)}")
        return out


class Targets:
    """The brokers under test in one session. Each is started when the first statement asks for it, once.

    Args:
        urls: explicit ones; each is given to the harness of its scheme.
        names: plugins to test; empty: all.
        options: client options for explicit URLs.
        kinds: of runtime, each its own target where a harness starts it; empty: the first available.
        scratch: makes a folder for a runtime.
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
        """The targets of a class of statements, by what its `broker` says. Raises NoHarness."""
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
        """Whether the command line leaves this target in."""
        return not self._names or target.harness is None or target.harness.name in self._names

    def runtime(self, target: Target) -> Runtime:
        """The running broker of a target. Raises NotHere, each time alike."""
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
        """What is kept for the report."""
        return self.accounts.setdefault((id(target.harness), target.url, target.kind), Account(target))

    def close(self) -> None:
        """Stop what was started."""
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
    """The statements' names, each once; only how many where they would fill the screen."""
    distinct = list(dict.fromkeys(name.partition("[")[0] for name in names))
    most = 3
    return ", ".join(distinct) if len(distinct) <= most else f"{len(distinct)} statements (-rs names them)"
