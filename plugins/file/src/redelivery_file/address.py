"""The URL of a folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote

from redelivery.errors import InvalidURL
from redelivery.kit.address import local_path, redact, split_url, url_parameters

_EXAMPLE: Final = "it is written 'file:folder' or 'file:///var/lib/letters'"


@dataclass(frozen=True, slots=True)
class Address:
    """One folder of letters.

    Attributes:
        path: path of the folder.
        context: whether letters have the third member, `context`.
        many: whether a file holds many letters, as JSON Lines.
    """

    path: Path
    context: bool = False
    many: bool = False

    @property
    def url(self) -> str:
        """Return the URL of the folder, without parameters."""
        return f"file://{quote(str(self.path.absolute()))}"

    @property
    def place(self) -> str:
        """Return the folder's name for errors."""
        return f"the folder {str(self.path)!r}"

    @classmethod
    def parse(cls, url: str) -> Address:
        """Read a URL.

        Raises:
            InvalidURL: no path, a host, a fragment. UnknownOption: an unknown parameter.
        """
        parts = split_url(url)
        where = f"file: {redact(url)!r}"
        path = local_path(parts, where, _EXAMPLE)
        given = url_parameters(parts.query, ["context", "format"], where)
        context, form = given.get("context", "false"), given.get("format", "letter")
        if context not in {"true", "false"}:
            raise InvalidURL(f"{where}: context is true or false, not {context!r}")
        if form not in {"letter", "jsonl"}:
            raise InvalidURL(f"{where}: format is letter (a file each) or jsonl (many a file), not {form!r}")
        return cls(Path(path), context == "true", form == "jsonl")
