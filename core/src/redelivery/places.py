"""`redelivery.toml`: gives names to places, so that `redelivery dead-letters stats orders` works.

    [places.orders]
    url = "<broker>://host/orders"
    sink = "<broker>://host/orders-dead"
    options = { "<broker>.password" = "env:ORDERS_PASSWORD" }
    spec = "orders.yaml"          # relative to this file

The file holds no secret, only references (`env:NAME`, `file:PATH`).
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from redelivery.base.secrets import redact, refuse_literal
from redelivery.base.urls import has_scheme, is_reference, nearest, refuse_password, unknown
from redelivery.errors import ConfigurationError

#: The name of the file that is looked for, and the variable that names another one.
FILE: Final = "redelivery.toml"
VARIABLE: Final = "REDELIVERY_CONFIG"

_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_TEXTS: Final = ("url", "sink", "spec", "key", "subscription")
_TABLES: Final = ("options", "watch")
_READERS: Final = "every reader of this file would see"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A place of dead letters that has a name.

    Attributes:
        name: without a colon, so that no URL is a name.
        url: the destination whose dead letters are meant.
        sink: URL of the sink that its letters went to; None: its native place.
        spec: path of its delivery spec.
        options: client options, with their plugin's prefix; secrets are references.
        key: references of the keys that letters were signed with, separated by commas.
        subscription: of the destination, the subscription of this name.
        watch: the table `[places.NAME.watch]` as written.
    """

    name: str
    url: str
    sink: str | None = None
    spec: Path | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    key: str | None = None
    subscription: str | None = None
    watch: Mapping[str, Any] = field(default_factory=dict)


class Places(Mapping[str, Place]):
    """The places of one file, by name.

    Attributes:
        path: of the file; None where no file was found.
        watch: the table `[watch]` as written: what holds for all places.
    """

    def __init__(
        self, places: Mapping[str, Place], path: Path | None = None, watch: Mapping[str, Any] | None = None
    ) -> None:
        self._places = dict(places)
        self.path = path
        self.watch: Mapping[str, Any] = watch or {}

    def __getitem__(self, name: str) -> Place:
        return self._places[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def named(self, name: str) -> Place:
        """Return the place of a name. Raises ConfigurationError: no such place exists; names those that do."""
        if name in self._places:
            return self._places[name]
        if self.path is None:
            why = f"it is not a URL, and no {FILE} was found in this folder or above it"
            raise ConfigurationError(f"no such place: {name!r}: {why}; write a URL, or name a file with --config")
        near = nearest(name, self._places)
        hint = f"did you mean {near!r}? " if near else ""
        there = ", ".join(sorted(self._places)) or "no place"
        raise ConfigurationError(f"no such place: {name!r}; {hint}{self.path} has {there}")


def is_name(text: str) -> bool:
    """Whether a text can only be the name of a place: a URL has a colon."""
    return ":" not in text


def find(start: Path | None = None) -> Path | None:
    """Return the path of the file that names places; None where none exists.

    It is the one that the variable REDELIVERY_CONFIG names, else the nearest `redelivery.toml` in a folder or above it.

    Args:
        start: the folder; None: the current one.

    Raises:
        ConfigurationError: the file that was found belongs to another user, who would choose where messages go.
    """
    told = os.environ.get(VARIABLE)
    if told:
        return Path(told)
    try:
        folder = (start or Path.cwd()).absolute()
    except FileNotFoundError:  # the current folder is removed
        return None
    path = next((each / FILE for each in (folder, *folder.parents) if _is_there(each / FILE)), None)
    if path is not None and hasattr(os, "geteuid") and path.stat().st_uid not in {0, os.geteuid()}:
        raise ConfigurationError(f"{path} belongs to another user; if it is meant, name it with --config")
    return path


def _is_there(path: Path) -> bool:
    """Whether a file exists. A folder above the current one may not be ours to look into."""
    try:
        return path.is_file()
    except PermissionError:
        return False


def read(path: Path) -> Places:
    """Return the places of a file.

    Raises:
        ConfigurationError: it cannot be read, is not TOML, has an unknown key (the nearest known one is named) or a
            value of the wrong type, or holds a secret. The text shows no secret.
    """
    try:
        written = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigurationError(f"{path}: {reason}") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"{path}: not valid TOML: {redact(str(error))}") from None
    except RecursionError:
        raise ConfigurationError(f"{path}: not valid TOML: nested too deeply") from None
    for name in written:
        if name not in {"places", "watch"}:
            raise _within(path, unknown("key", name, ("places", "watch")))
    tables = _table(path, "places", written.get("places", {}))
    places = {name: _place(path, name, _table(path, f"places.{name}", found)) for name, found in tables.items()}
    return Places(places, path, _table(path, "watch", written.get("watch", {})))


def known(path: Path | None = None, start: Path | None = None) -> Places:
    """Return the places of a file, or of the one that is found (`find`); none where no file exists.

    Raises:
        ConfigurationError: as `read` and `find`.
    """
    found = path or find(start)
    return Places({}) if found is None else read(found)


def _place(path: Path, name: str, found: Mapping[str, Any]) -> Place:
    where = f"places.{name}"
    if _NAME.fullmatch(name) is None:
        raise ConfigurationError(f"{path}: {name!r} is not a name of a place: letters, digits, '.', '_' and '-'")
    for key in found:
        if key not in (*_TEXTS, *_TABLES):
            raise _within(path, unknown(f"key in {where}:", key, (*_TEXTS, *_TABLES)))
    said = {key: _text(path, f"{where}.{key}", found[key]) for key in _TEXTS if key in found}
    if "url" not in said:
        raise ConfigurationError(f"{path}: {where} has no url: say whose dead letters are meant")
    for key in ("url", "sink"):
        if key in said:
            _check_url(path, f"{where}.{key}", said[key])
    for each in said.get("key", "").split(",") if "key" in said else ():
        if not is_reference(each.strip()):
            text = f"{path}: {where}.key: it is a reference, env:NAME or file:PATH (or several, with commas between)"
            raise ConfigurationError(text)
    spec = said.get("spec")
    return Place(
        name=name,
        url=said["url"],
        sink=said.get("sink"),
        spec=None if spec is None else path.absolute().parent / spec,
        options=_options(path, where, _table(path, f"{where}.options", found.get("options", {}))),
        key=said.get("key"),
        subscription=said.get("subscription"),
        watch=_table(path, f"{where}.watch", found.get("watch", {})),
    )


def _check_url(path: Path, where: str, url: str) -> None:
    if not has_scheme(url):
        raise ConfigurationError(f"{path}: {where}: not a URL: {redact(url)!r}; it starts with a scheme")
    try:
        refuse_password(url, shown=_READERS)
    except ConfigurationError as error:
        raise _within(path, error, where) from None


def _options(path: Path, where: str, given: Mapping[str, Any]) -> dict[str, str]:
    options = {}
    for name, value in given.items():
        if isinstance(value, bool):
            options[name] = "true" if value else "false"
        elif isinstance(value, str | int | float):
            options[name] = str(value)
        else:
            hint = "; quote a name that holds dots" if isinstance(value, dict) else ""
            raise ConfigurationError(f"{path}: {where}.options: {name!r} must be text or a number{hint}")
        try:
            refuse_literal(name, options[name], shown=_READERS)
        except ConfigurationError as error:
            raise _within(path, error, where) from None
    return options


def _text(path: Path, where: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ConfigurationError(f"{path}: {where} must be text")
    return value


def _table(path: Path, where: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ConfigurationError(f"{path}: {where} must be a table: [{where}]")
    return value


def _within(path: Path, error: ConfigurationError, where: str = "") -> ConfigurationError:
    """Return an error of the same class that names the file."""
    return type(error)(f"{path}: {where}{': ' if where else ''}{error}")
