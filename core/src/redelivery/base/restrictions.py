"""`Restrictions`: what a deployment allows every job to do, whatever its options say.

A file of the machine, `/etc/redelivery/restrictions.toml`, that jobs cannot choose::

    variables = ["ORDERS_*"]          # what env: references may name
    folders   = ["/run/secrets"]      # where file: references may read
    hosts     = ["*.example.com"]     # where plugins may connect to
    plugins   = ["carrier", "sqlite"] # which plugins may open a URL
    strict    = true                  # refuse insecure connections

A key that is left out restricts nothing. The variable REDELIVERY_RESTRICTIONS names a second file. Both apply, so the
second can only restrict further.
"""

from __future__ import annotations

import fnmatch
import os
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from redelivery.errors import ConfigurationError

SYSTEM_FILE: Final = Path("/etc/redelivery/restrictions.toml")
VARIABLE: Final = "REDELIVERY_RESTRICTIONS"
_KEYS: Final = ("variables", "folders", "hosts", "plugins")


@dataclass(frozen=True, slots=True)
class _Rules:
    """One file's rules; None restricts nothing."""

    path: str
    variables: tuple[str, ...] | None = None
    folders: tuple[str, ...] | None = None
    hosts: tuple[str, ...] | None = None
    plugins: tuple[str, ...] | None = None
    strict: bool = False


@dataclass(frozen=True, slots=True)
class Restrictions:
    """The rules of all files that apply; each check raises ConfigurationError for what one of them forbids."""

    rules: Sequence[_Rules] = ()

    @property
    def strict(self) -> bool:
        """Whether insecure connections are refused."""
        return any(rules.strict for rules in self.rules)

    def check_variable(self, name: str) -> None:
        """Check the variable of an `env:` reference."""
        for rules in self.rules:
            if rules.variables is not None and not _matches(name, rules.variables):
                raise _refused(f"the secret reference {f'env:{name}'!r}", rules)

    def check_file(self, path: Path) -> None:
        """Check the file of a `file:` reference, links followed."""
        for rules in self.rules:
            allowed = rules.folders
            if allowed is not None and not any(path.resolve().is_relative_to(Path(each).resolve()) for each in allowed):
                raise _refused(f"the secret reference {f'file:{path}'!r}", rules)

    def check_plugin(self, name: str) -> None:
        """Check the plugin that opens a URL."""
        for rules in self.rules:
            if rules.plugins is not None and name not in rules.plugins:
                raise _refused(f"the plugin {name!r}", rules)

    def check_hosts(self, hosts: Iterable[str] | None, plugin: str) -> None:
        """Check the hosts that a broker connects to; None: its plugin does not report them."""
        for rules in self.rules:
            if rules.hosts is None:
                continue
            if hosts is None:
                raise _refused(f"a destination of {plugin!r}, which does not tell its hosts,", rules)
            for host in hosts:
                if not _matches(host.lower(), [each.lower() for each in rules.hosts]):
                    raise _refused(f"the host {host!r}", rules)


def restrictions() -> Restrictions:
    """Return the restrictions of this machine, read again when a file changes.

    Raises:
        ConfigurationError: a file cannot be read or parsed; then nothing is allowed.
    """
    named = os.environ.get(VARIABLE)
    return Restrictions([_read(path, _stamp(path)) for path in [*_system(), *([Path(named)] if named else [])]])


def _system() -> list[Path]:
    """Return the machine's own file, if it exists: a dangling link, or a file without permission to look, counts."""
    try:
        SYSTEM_FILE.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError:
        pass  # reading it gives the reason
    return [SYSTEM_FILE]


def _stamp(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError as error:
        raise ConfigurationError(f"the restrictions {str(path)!r} cannot be read: {error.strerror}") from error
    return found.st_mtime_ns, found.st_size


@lru_cache(maxsize=8)
def _read(path: Path, _stamp: tuple[int, int]) -> _Rules:
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"the restrictions {str(path)!r} cannot be read: {error}") from error
    strict = found.pop("strict", False)
    if not isinstance(strict, bool):
        raise ConfigurationError(f"the restrictions {str(path)!r}: 'strict' is true or false")
    return _Rules(str(path), strict=strict, **{name: _texts(path, name, value) for name, value in found.items()})


def _texts(path: Path, name: str, value: Any) -> tuple[str, ...]:
    if name not in _KEYS or not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise ConfigurationError(
            f"the restrictions {str(path)!r}: {name!r} is not one of the lists of texts {', '.join(_KEYS)}"
        )
    return tuple(value)


def _matches(text: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(text, each) for each in patterns)


def _refused(what: str, rules: _Rules) -> ConfigurationError:
    return ConfigurationError(f"{what} is not allowed on this machine ({rules.path}); ask its operator")
