"""The URL of a queue in a file, and the client options. This file must not do I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from urllib.parse import parse_qsl, quote, unquote

from redelivery.base.urls import redact, split_url, unknown
from redelivery.errors import ConfigurationError, InvalidURL

#: What is put behind a queue's name to name its dead letter place.
DEAD_LETTERS = "-dead-letters"

OPTIONS: Mapping[str, str] = {
    "busy_timeout": "seconds to wait for another process's write lock before the batch counts as failed (5)",
    "create": "make the file and its queues where they are missing: true or false (true)",
    "max_deliveries": "deliveries after which the broker moves a message to the dead letters where provisioning set no "
    "limit; 0: none (0)",
    "message_ttl": "seconds after which a sent message that nobody has handled goes to the dead letters; 0: never (0)",
    "deduplication_window": "seconds for which the id of a removed message stays remembered (86400)",
    "reserve": "bytes kept, at most, beside the file, so that a queue on a full disk can still be drained (16777216)",
}

_EXAMPLE = "it is written 'sqlite:folder/file.db?queue=orders' or 'sqlite:///folder/file.db?queue=orders'"


@dataclass(frozen=True, slots=True)
class Address:
    """One queue in one file."""

    path: Path
    queue: str = "default"

    @property
    def url(self) -> str:
        """The URL that names it."""
        slashes = "//" if self.path.is_absolute() else ""
        return f"sqlite:{slashes}{quote(str(self.path))}?queue={quote(self.queue, safe='')}"

    @property
    def is_dead_letters(self) -> bool:
        """Whether it is a dead letter place: nothing expires there, and no number of deliveries is too many."""
        return self.queue.endswith(DEAD_LETTERS)

    @property
    def dead_letters(self) -> Address:
        """Where its dead letters lie: its own place, if it is one already."""
        return self if self.is_dead_letters else Address(self.path, self.queue + DEAD_LETTERS)

    @property
    def source(self) -> Address:
        """The queue whose dead letters lie here: itself, if it is no dead letter place."""
        return Address(self.path, self.queue.removesuffix(DEAD_LETTERS) or self.queue)

    def at(self, queue: str) -> Address:
        """Another queue of the same file."""
        return Address(self.path, queue)

    @classmethod
    def parse(cls, url: str) -> Address:
        """Read a URL.

        Raises:
            InvalidURL: no path, a host, a fragment, a parameter given twice. UnknownOption: an unknown parameter.
        """
        parts = split_url(url)
        shown = redact(url)
        if parts.netloc:
            raise InvalidURL(f"sqlite: {shown!r} names the host {parts.hostname!r}, but a file has none; {_EXAMPLE}")
        if parts.fragment:
            raise InvalidURL(f"sqlite: {shown!r}: write a '#' in a path as %23; {_EXAMPLE}")
        path = unquote(parts.path)
        if not path or path.endswith("/") or "\0" in path:
            raise InvalidURL(f"sqlite: {shown!r} names no file; {_EXAMPLE}")
        if path == ":memory:":
            raise InvalidURL(f"sqlite: {shown!r}: a queue in memory would not be durable; {_EXAMPLE}")
        given: dict[str, str] = {}
        for name, value in parse_qsl(parts.query, keep_blank_values=True):
            if name != "queue":
                raise unknown("URL parameter", name, ["queue"])
            if name in given:
                raise InvalidURL(f"sqlite: {shown!r}: 'queue' is given twice")
            given[name] = value
        queue = given.get("queue", "default")
        if not queue:
            raise InvalidURL(f"sqlite: {shown!r}: the queue has an empty name; {_EXAMPLE}")
        # Absolute: a relative path names another file in another folder, also to whoever keeps the URL.
        return cls(Path(path).absolute(), queue)


@dataclass(frozen=True, slots=True)
class Settings:
    """The client options, read."""

    busy_timeout: float = 5.0
    create: bool = True
    deduplication_window: timedelta = timedelta(days=1)
    max_deliveries: int = 0
    message_ttl: timedelta = timedelta(0)
    reserve: int = 16 << 20

    @property
    def window_ms(self) -> int:
        """The de-duplication window in milliseconds."""
        return self.deduplication_window // timedelta(milliseconds=1)

    @property
    def ttl_ms(self) -> int:
        """How long a message lives, in milliseconds; 0: for ever."""
        return -(-self.message_ttl // timedelta(milliseconds=1))

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> Settings:
        """Read the options.

        Raises:
            UnknownOption, ConfigurationError: names the option and what it takes.
        """
        for name in options:
            if name not in OPTIONS:
                raise unknown("option", f"sqlite.{name}", [f"sqlite.{each}" for each in OPTIONS])
        window = _number(options, "deduplication_window", 86_400)
        create = options.get("create", "true").lower()
        if create not in {"true", "false"}:
            raise ConfigurationError(f"sqlite.create: true or false, not {create!r}")
        return cls(
            busy_timeout=_number(options, "busy_timeout", 5),
            create=create == "true",
            deduplication_window=timedelta(seconds=window),
            max_deliveries=int(_number(options, "max_deliveries", 0)),
            message_ttl=timedelta(seconds=_number(options, "message_ttl", 0)),
            reserve=int(_number(options, "reserve", 16 << 20)),
        )


def _number(options: Mapping[str, str], name: str, default: float) -> float:
    text = options.get(name, str(default))
    try:
        value = float(text)
    except ValueError:
        value = -1
    most = 1e9  # of seconds: about 30 years; also refuses nan and inf
    if not 0 <= value <= most:
        raise ConfigurationError(f"sqlite.{name}: a number from 0 to 1e9, not {text!r}")
    return value
