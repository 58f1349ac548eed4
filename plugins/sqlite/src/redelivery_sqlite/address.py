"""The URL of a queue in a file."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final
from urllib.parse import quote

from redelivery.errors import InvalidURL
from redelivery.kit.address import local_path, redact, split_url, url_parameters
from redelivery.kit.names import DeadLetterNames

#: The kind of a queue in a `ref`.
KIND: Final = "Queue"
_EXAMPLE: Final = "it is written 'sqlite:folder/file.db?queue=orders' or 'sqlite:///folder/file.db?queue=orders'"
_NAMES: Final = DeadLetterNames()


@dataclass(frozen=True, slots=True)
class Address:
    """One queue in one file."""

    path: Path
    queue: str = "default"

    @property
    def url(self) -> str:
        """Return the URL of the queue."""
        slashes = "//" if self.path.is_absolute() else ""
        return f"sqlite:{slashes}{quote(str(self.path))}?queue={quote(self.queue, safe='')}"

    @property
    def is_dead_letters(self) -> bool:
        """Return whether it is a dead letter queue: nothing expires there, and deliveries have no limit."""
        return _NAMES.is_dead_letters(self.queue)

    @property
    def dead_letters(self) -> Address:
        """Return its dead letter queue; a dead letter queue returns itself."""
        return self.at(_NAMES.of(self.queue))

    @property
    def source(self) -> Address:
        """Return the queue whose dead letters this one holds; any other queue returns itself."""
        return self.at(_NAMES.source(self.queue))

    @property
    def other(self) -> Address:
        """Return its dead letter queue; for a dead letter queue, its source."""
        return self.source if self.is_dead_letters else self.dead_letters

    def at(self, queue: str) -> Address:
        """Return another queue of the same file."""
        return replace(self, queue=queue)

    @classmethod
    def parse(cls, url: str) -> Address:
        """Read a URL.

        Raises:
            InvalidURL: no path, a host, a fragment, a repeated parameter. UnknownOption: an unknown parameter.
        """
        parts = split_url(url)
        where = f"sqlite: {redact(url)!r}"
        path = local_path(parts, where, _EXAMPLE)
        if path.endswith("/"):
            raise InvalidURL(f"{where} names a folder, not a file; {_EXAMPLE}")
        if path == ":memory:":
            raise InvalidURL(f"{where}: a queue in memory would not be durable; {_EXAMPLE}")
        queue = url_parameters(parts.query, ["queue"], where).get("queue", "default")
        # Absolute: a relative path names another file in another folder, also for a reader of a stored URL.
        return cls(Path(path).absolute(), queue)
