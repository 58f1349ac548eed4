"""A plugin's client options: one declaration each gives its parsing, its help and its error text.

::

    @dataclass(frozen=True, slots=True)
    class Settings(Options, broker="carrier"):
        region: str | None = text("the region")
        connect_timeout: float = seconds(5, "time to wait for a connection", least=0.1, most=60)
        concurrency: int = integer(16, "requests in flight at once", least=1, most=256)
        ssl_ca: str | None = text("file of certificates to trust", name="ssl.ca")
        password: str | None = secret("the password")

    settings = Settings.parse({"region": "north", "connect_timeout": "PT2S"})
    plugin = BrokerPlugin(..., options=Settings.help())

Checks that concern several options belong into `__post_init__`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from typing import Any, ClassVar, Self

from redelivery.base import durations
from redelivery.base.secrets import guard_loggers, refuse_password, remember, renewed, resolve_secret, resolve_secrets
from redelivery.base.urls import quoted, redact, unknown
from redelivery.errors import ConfigurationError

__all__ = [
    "Options",
    "choice",
    "flag",
    "guard_loggers",
    "integer",
    "number",
    "option",
    "refuse_password",
    "remember",
    "renewed",
    "resolve_secret",
    "resolve_secrets",
    "seconds",
    "secret",
    "text",
    "unknown",
]

#: Key of a field's metadata.
_KEY = "redelivery.option"
#: The longest time: about 30 years, in seconds.
_LONGEST = 1e9


@dataclass(frozen=True, slots=True)
class _Option:
    """One declared option.

    Attributes:
        help: what it sets; ends with the default.
        read: turns a text into the value; raises ValueError where it cannot.
        wanted: what the error says that it must be.
        name: as users write it; None: the field's name.
        secret: its value is in no error.
    """

    help: str
    read: Callable[[str], Any]
    wanted: str
    name: str | None = None
    secret: bool = False


class Options:
    """Base of a frozen dataclass whose fields are options. `broker` is the plugin's name: the options' prefix."""

    __slots__ = ()
    broker: ClassVar[str]

    def __init_subclass__(cls, *, broker: str = "", **more: Any) -> None:
        super().__init_subclass__(**more)
        if broker:  # `slots=True` makes the class a second time, without arguments
            cls.broker = broker

    @classmethod
    def help(cls) -> Mapping[str, str]:
        """Each option with its line of help, for `BrokerPlugin.options`."""
        return {name: declared.help for name, (_, declared) in cls._declared().items()}

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Self:
        """Read options, without their prefix and with secrets resolved.

        Raises:
            UnknownOption: names the nearest known one.
            ConfigurationError: names the option and what it must be; a secret's value is not shown.
        """
        declared = cls._declared()
        values = {}
        for name, value in given.items():
            if name not in declared:
                raise unknown("option", f"{cls.broker}.{name}", [f"{cls.broker}.{each}" for each in declared])
            attribute, what = declared[name]
            values[attribute] = cls._read(name, what, value)
        return cls(**values)

    @classmethod
    def _read(cls, name: str, what: _Option, value: str) -> Any:
        try:
            return what.read(value)
        except ConfigurationError:  # its text is complete
            raise
        except ValueError:
            if not value:
                raise ConfigurationError(f"{cls.broker}.{name} is empty; leave it out, or give it a value") from None
            shown = "" if what.secret else f", not {quoted(redact(value))}"
            raise ConfigurationError(f"{cls.broker}.{name} must be {what.wanted}{shown}") from None

    @classmethod
    def _declared(cls) -> dict[str, tuple[str, _Option]]:
        found: list[Field[Any]] = [each for each in fields(cls) if _KEY in each.metadata]  # type: ignore[arg-type]
        return {each.metadata[_KEY].name or each.name: (each.name, each.metadata[_KEY]) for each in found}


def option(
    default: Any,
    help_: str,
    read: Callable[[str], Any],
    wanted: str,
    *,
    shown: str | None = None,
    name: str | None = None,
    secret: bool = False,
) -> Any:
    """Declare an option of any other type.

    Args:
        default: the value where the option is not given.
        help_: what it sets, for people.
        read: turns a text into the value; raises ValueError, or ConfigurationError with its own text.
        wanted: what it must be, for the error's text: "a JSON object".
        shown: the default as the help shows it; None: not shown.
        name: as users write it, where that is not a Python name.
        secret: shown in no error and no repr.
    """
    whole = help_ if shown is None else f"{help_} ({shown})"
    metadata = {_KEY: _Option(whole, read, wanted, name, secret)}
    return field(default=default, repr=not secret, metadata=metadata)


def text(help_: str, default: str | None = None, *, shown: str | None = None, name: str | None = None) -> Any:
    """Declare a text that is not empty: `str | None`."""
    return option(default, help_, _text, "a text", shown=default if shown is None else shown, name=name)


def secret(help_: str, *, name: str | None = None) -> Any:
    """Declare a secret, which users give as a reference: `str | None`. It is shown nowhere."""
    return option(None, f"{help_}, as a reference", _text, "a text", name=name, secret=True)


def flag(help_: str, *, default: bool, name: str | None = None) -> bool:
    """Declare a flag, which is true or false."""
    known = {"true": True, "false": False}

    def read(value: str) -> bool:
        return known[_among(value.lower(), known)]

    shown = str(default).lower()
    made: bool = option(default, f"{help_}: true or false", read, "true or false", shown=shown, name=name)
    return made


def choice(default: Any, help_: str, known: Sequence[str], *, name: str | None = None) -> Any:
    """Declare a choice among texts, read without regard to case: `str`, or None by default."""
    wanted = " or ".join(known)
    by_lower = {each.lower(): each for each in known}

    def read(value: str) -> str:
        return by_lower[_among(value.lower(), by_lower)]

    return option(default, f"{help_}: {wanted}", read, wanted, shown=default, name=name)


def integer(
    default: int | None, help_: str, *, least: float, most: float, shown: str | None = None, name: str | None = None
) -> Any:
    """Declare a whole number from `least` to `most`: `int`, or None by default."""

    def read(value: str) -> int:
        found = _within(value, least, most)
        if found != int(found):
            raise ValueError(value)
        return int(found)

    wanted = f"a whole number from {_plain(least)} to {_plain(most)}"
    return option(default, help_, read, wanted, shown=_plain(default) if shown is None else shown, name=name)


def number(
    default: float | None, help_: str, *, least: float, most: float, shown: str | None = None, name: str | None = None
) -> Any:
    """Declare a number from `least` to `most`: `float`, or None by default."""
    wanted = f"a number from {_plain(least)} to {_plain(most)}"
    shown = _plain(default) if shown is None else shown
    return option(default, help_, lambda value: _within(value, least, most), wanted, shown=shown, name=name)


def seconds(
    default: float | None,
    help_: str,
    *,
    least: float = 0,
    most: float = _LONGEST,
    shown: str | None = None,
    name: str | None = None,
) -> Any:
    """Declare a time from `least` to `most` seconds, written as a number or an ISO-8601 duration: `float`, or None."""

    def read(value: str) -> float:
        if value[:1] in {"P", "p"}:
            try:
                value = str(durations.parse(value.upper()).total_seconds())
            except ConfigurationError as error:  # which says less than this option's own text
                raise ValueError(value) from error
        return _within(value, least, most)

    wanted = f"from {_plain(least)} to {_plain(most)} seconds, as a number or as a duration such as PT5S"
    shown = _plain(default) if shown is None else shown
    return option(default, help_, read, wanted, shown=shown, name=name)


def _text(value: str) -> str:
    if not value:
        raise ValueError(value)
    return value


def _among(value: str, known: Collection[str]) -> str:
    if value not in known:
        raise ValueError(value)
    return value


def _within(value: str, least: float, most: float) -> float:
    found = float(value)
    if not least <= found <= most:  # also refuses nan
        raise ValueError(value)
    return found


def _plain(value: float | None) -> str | None:
    """Return a number as people write it."""
    if value is None:
        return None
    return str(int(value)) if value == int(value) else str(value)
