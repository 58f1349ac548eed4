"""The URL of a folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, quote, unquote

from redelivery.errors import InvalidURL
from redelivery.kit.address import redact, split_url, unknown

_EXAMPLE: Final = "it is written 'file:folder' or 'file:///var/lib/letters'"


@dataclass(frozen=True, slots=True)
class Address:
    """One folder of letters.

    Attributes:
        path: of the folder.
        context: whether letters have the third member, `context`.
    """

    path: Path
    context: bool = False

    @property
    def url(self) -> str:
        """The URL that names the folder, whatever is written into it."""
        return f"file://{quote(str(self.path.absolute()))}"

    @property
    def place(self) -> str:
        """The folder, for errors."""
        return f"the folder {str(self.path)!r}"

    @classmethod
    def parse(cls, url: str) -> Address:
        """Read a URL.

        Raises:
            InvalidURL: no path, a host, a fragment. UnknownOption: an unknown parameter.
        """
        parts = split_url(url)
        shown = redact(url)
        if parts.netloc not in {"", "localhost"}:
            raise InvalidURL(f"file: {shown!r} names the host {parts.hostname!r}, but a folder has none; {_EXAMPLE}")
        if parts.fragment:
            raise InvalidURL(f"file: {shown!r}: write a '#' in a path as %23; {_EXAMPLE}")
        path = unquote(parts.path)
        if not path or "\0" in path:
            raise InvalidURL(f"file: {shown!r} names no folder; {_EXAMPLE}")
        context = "false"
        for name, value in parse_qsl(parts.query, keep_blank_values=True):
            if name != "context":
                raise unknown("URL parameter", name, ["context"])
            if value not in {"true", "false"}:
                raise InvalidURL(f"file: {shown!r}: context is true or false, not {value!r}")
            context = value
        return cls(Path(path), context == "true")
