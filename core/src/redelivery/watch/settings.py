"""The places to watch, and how: from the command line, else from `redelivery.toml`, else by default.

[watch]
interval = "30s"
webhook = "env:WEBHOOK"

[places.orders.watch]
older-than = "1h"
growth = "100/5m"
new-group = true
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, TypeVar

from redelivery.base import durations
from redelivery.base.urls import redact, refuse_password, unknown
from redelivery.errors import ConfigurationError, InvalidSpec, Unsupported
from redelivery.places import Place, Places, is_name
from redelivery.registry import connect, own_options, subscription_url
from redelivery.watch.looking import Watched
from redelivery.watch.rules import CONFIRM, Growth, Rules
from redelivery.watch.webhook import Form

T = TypeVar("T")

#: Keys of `[places.NAME.watch]`, which `[watch]` may also have: then they hold for all places.
PLACE_KEYS: Final = ("older-than", "growth", "new-group", "look")
#: Keys of `[watch]` alone.
WATCH_KEYS: Final = ("interval", "listen", "webhook", "webhook-form")
INTERVAL: Final = timedelta(seconds=30)
LISTEN: Final = ("127.0.0.1", 9464)
#: Turns a rule off, or the endpoint.
OFF: Final = "off"
#: A place is looked at no more often than this.
_SHORTEST: Final = timedelta(milliseconds=100)
_LONGEST: Final = timedelta(days=366)

_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_PART: Final = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)(ms|s|min|m|h|d)")
_DURATION: Final = re.compile(f"(?:{_PART.pattern}){{1,6}}")
_PORT: Final = re.compile(r"[0-9]{1,5}")
_GROWTH: Final = re.compile(r"([0-9]{1,12})/(.+)", re.DOTALL)
_LARGEST_PORT: Final = 65_535


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """The values of the command line; None: not given.

    Attributes:
        names: URLs, and names of places; none: all places of the file.
        values: by the keys of the file.
        options: client options, for all places.
        once: look once.
    """

    names: Sequence[str] = ()
    values: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)
    once: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The places to watch, and how.

    Attributes:
        places: with their rules.
        interval: between the beginnings of two looks at a place.
        listen: host and port of the endpoint; None: no endpoint.
        webhook: reference of its URL; None: no webhook.
        form: of what is posted to the webhook.
    """

    places: Sequence[tuple[Watched, Rules]]
    interval: timedelta = INTERVAL
    listen: tuple[str, int] | None = LISTEN
    webhook: str | None = None
    form: Form = Form.JSON


def settings(given: Given, places: Places, *, shown: str) -> Settings:
    """Return what is watched. No I/O.

    Args:
        given: on the command line.
        places: of the file.
        shown: who would see a secret on the command line, for the error.

    Raises:
        ConfigurationError, Unsupported: in one clear line.
    """
    file = f"{places.path}: " if places.path is not None else ""
    _check_keys(f"{file}[watch]", places.watch, (*WATCH_KEYS, *PLACE_KEYS))
    for place in places.values():
        _check_keys(f"{file}[places.{place.name}.watch]", place.watch, PLACE_KEYS)
    chosen = [_chosen(name, places, shown) for name in given.names] or list(places.values())
    if not chosen:
        raise ConfigurationError("no place to watch: name a URL, or places in redelivery.toml")
    said = _Said(given.values, file, ("watch", places.watch))
    watched = [
        _watched(
            place,
            given,
            _Said(given.values, file, (f"places.{place.name}.watch", place.watch), ("watch", places.watch)),
        )
        for place in chosen
    ]
    labels = [each.label for each, _ in watched]
    twice = next((each for each in labels if labels.count(each) > 1), None)
    if twice is not None:
        raise ConfigurationError(f"the place {twice!r} is named twice; name it once")
    return Settings(
        places=watched,
        interval=said.duration("interval", least=_SHORTEST) or INTERVAL,
        listen=_listen(said.text("listen")),
        webhook=said.text("webhook"),
        form=_form(said.text("webhook-form")),
    )


class _Said:
    """The values of keys: those of the command line, else of the first table that has one."""

    def __init__(self, given: Mapping[str, Any], file: str, *tables: tuple[str, Mapping[str, Any]]) -> None:
        self._given = given
        self._file = file
        self._tables = tables

    def text(self, key: str) -> str | None:
        return self._value(key, str, "text")

    def flag(self, key: str) -> bool:
        return self._value(key, bool, "true or false") or False

    def duration(self, key: str, *, least: timedelta = timedelta(milliseconds=1)) -> timedelta | None:
        said = self.text(key)
        return None if said is None or said == OFF else duration(said, self._where(key), least=least)

    def growth(self, key: str) -> Growth | None:
        said = self.text(key)
        return None if said is None or said == OFF else growth(said, self._where(key))

    def _value(self, key: str, kind: type[T], what: str) -> T | None:
        found = self._given.get(key)
        for _, table in self._tables:
            found = table.get(key) if found is None else found
        if found is not None and not isinstance(found, kind):
            raise ConfigurationError(f"{self._where(key)} must be {what}")
        return found

    def _where(self, key: str) -> str:
        if self._given.get(key) is not None:
            return f"--{key}"
        return next((f"{self._file}{name}.{key}" for name, table in self._tables if key in table), key)


def _check_keys(where: str, table: Mapping[str, Any], known: Sequence[str]) -> None:
    for key in table:
        if key not in known:
            raise ConfigurationError(f"{where}: {unknown('key', key, known)}")


def _chosen(name: str, places: Places, shown: str) -> Place:
    """Return the place that a URL or a name means; the place of a URL has no name."""
    if is_name(name):
        return places.named(name)
    refuse_password(name, shown=shown)
    return Place(name="", url=name)


def _watched(place: Place, given: Given, said: _Said) -> tuple[Watched, Rules]:
    options = {**place.options, **given.options}
    url = place.url
    if place.subscription is not None:
        url = subscription_url(url, place.subscription, own_options(url, options))
    there = place.sink or url
    with connect(there, own_options(there, options)) as broker:
        name, browses = broker.name, broker.capabilities.browse
    if not browses:
        raise Unsupported(f"{redact(there)}: dead letters of {name!r} cannot be looked at (capability `browse`)")
    watched = Watched(
        label=place.name or redact(url),
        url=url,
        broker=name,
        sink=place.sink,
        options=options,
        key=place.key,
        takes=said.flag("look"),
    )
    rules = Rules(
        older_than=said.duration("older-than"),
        growth=said.growth("growth"),
        new_group=said.flag("new-group"),
        confirm=1 if given.once else CONFIRM,
    )
    return watched, rules


def duration(text: str, where: str, *, least: timedelta = timedelta(milliseconds=1)) -> timedelta:
    """Return the duration that a text names: `30s`, `5m`, `1h30m`, `2d`, or as ISO-8601 has it.

    Raises:
        ConfigurationError: it names none, or one out of bounds. The sentence begins with `where`.
    """
    if _DURATION.fullmatch(text):
        found = timedelta(seconds=sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text)))
    else:
        try:
            found = durations.parse(text)
        except InvalidSpec:
            text = f"{durations.shown(text)} is not a duration; write it as in '30s', '5m', '1h30m' or '2d'"
            raise ConfigurationError(f"{where}: {text}") from None
    if not least <= found <= _LONGEST:
        raise ConfigurationError(f"{where}: {text!r} is too {'short' if found < least else 'long'}")
    return found


def growth(text: str, where: str) -> Growth:
    """Return the growth that a text names: `100/5m` is 100 letters within 5 minutes. Raises ConfigurationError."""
    found = _GROWTH.fullmatch(text)
    if found is None or not int(found[1]):
        raise ConfigurationError(f"{where}: {redact(text)!r} is not a growth; write COUNT/TIME, as in '100/5m'")
    return Growth(int(found[1]), duration(found[2], where))


def _listen(text: str | None) -> tuple[str, int] | None:
    if text is None or text == OFF:
        return LISTEN if text is None else None
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") or LISTEN[0]
    if not _PORT.fullmatch(port) or int(port) > _LARGEST_PORT:
        raise ConfigurationError(f"--listen {text!r}: write HOST:PORT, as in '127.0.0.1:9464'")
    return host, int(port)


def _form(text: str | None) -> Form:
    if text is None:
        return Form.JSON
    try:
        return Form(text)
    except ValueError:
        raise unknown("webhook-form", text, [each.value for each in Form]) from None
