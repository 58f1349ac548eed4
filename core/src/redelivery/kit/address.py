"""Helpers to read the URL of a destination."""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from typing import Final
from urllib.parse import SplitResult, parse_qsl, unquote

from redelivery.base.urls import (
    REDACTED,
    has_scheme,
    is_local,
    nearest,
    quoted,
    redact,
    redact_url,
    scheme_of,
    split_url,
    unknown,
)
from redelivery.errors import InvalidURL

#: How paths of Windows begin, also in `file:///C:/folder`.
_DRIVE: Final = re.compile(r"/?([A-Za-z]):[\\/]")

__all__ = [
    "REDACTED",
    "has_scheme",
    "is_local",
    "local_path",
    "nearest",
    "quoted",
    "redact",
    "redact_url",
    "scheme_of",
    "split_url",
    "unknown",
    "url_parameters",
]


def url_parameters(query: str, known: Collection[str], where: str) -> dict[str, str]:
    """Return the parameters of a URL's query.

    Args:
        query: the part behind the question mark.
        known: the names that a parameter may have.
        where: the plugin's name and the redacted URL, with which errors begin: "carrier: 'carrier:orders?x=1'".

    Raises:
        UnknownOption: a parameter has another name.
        InvalidURL: a parameter is given twice, or is empty.
    """
    found: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in known:
            raise unknown("URL parameter", name, known)
        if name in found or not value:
            raise InvalidURL(f"{where}: {name!r} is {'given twice' if name in found else 'empty'}")
        found[name] = value
    return found


def local_path(parts: SplitResult, where: str, example: str) -> str:
    """Return the path of a URL that names a file or folder of this host.

    Args:
        parts: the URL.
        where: as in `url_parameters`.
        example: ends each error: "it is written 'carrier:folder'".

    Raises:
        InvalidURL: the URL has no path, has a host or a fragment, or the path is one of Windows, elsewhere.
    """
    if parts.netloc not in {"", "localhost"}:
        raise InvalidURL(f"{where} names the host {parts.hostname!r}, but a path has none; {example}")
    if parts.fragment:
        raise InvalidURL(f"{where}: write a '#' in a path as %23; {example}")
    path = unquote(parts.path)
    if os.name != "nt" and path.startswith("//"):  # as SQLAlchemy writes an absolute path: sqlite:////folder/file
        path = "/" + path.lstrip("/")
    if not path or "\0" in path:
        raise InvalidURL(f"{where} has no path; {example}")
    if os.name != "nt" and (drive := _DRIVE.match(path)):
        there = f"in WSL, drive {drive[1]}: is /mnt/{drive[1].lower()}"
        raise InvalidURL(f"{where} is a path of Windows, here only the odd name of a new file; {there}; {example}")
    return path
