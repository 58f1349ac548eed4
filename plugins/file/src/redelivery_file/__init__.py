"""redelivery's dead letter sink of plain files: one JSON line a letter.

This file is the plugin: its capabilities, its URL, and the broker that makes the roles. `from_env` puts the same
folder behind any sender.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, quote, unquote

from redelivery.base.urls import redact, split_url, unknown
from redelivery.contract.broker import Admin, Broker, BrokerPlugin, Capabilities, DeadLetters, Sender, Support
from redelivery.contract.hooks import hookimpl
from redelivery.errors import InvalidURL
from redelivery_file.roles import FileAdmin, FileDeadLetters, FileSender
from redelivery_file.wrapper import from_env

__all__ = ["CAPABILITIES", "FileBroker", "from_env", "redelivery_plugin"]

CAPABILITIES: Final = Capabilities(
    send=Support.NATIVE,
    provision=Support.NATIVE,
    browse=Support.NATIVE,
    remove=Support.NATIVE,
    purge=Support.NATIVE,
    keys=Support.EMULATED,
    headers=Support.EMULATED,
    ids=Support.EMULATED,
    timestamps=Support.EMULATED,
    null_value=Support.EMULATED,
    networked=False,
    context_dialect="json",
)
_EXAMPLE = "it is written 'file:folder' or 'file:///var/lib/letters'"


class FileBroker(Broker):
    """One dead letter folder."""

    name = "file"
    capabilities = CAPABILITIES
    hosts = ()

    def __init__(self, path: Path, url: str, *, context: bool) -> None:
        self.path = path
        self._url = url
        self._context = context
        self.canonical_url = f"file://{quote(str(path.absolute()))}"

    def sender(self) -> Sender:
        return FileSender(self.path, context=self._context)

    def admin(self) -> Admin:
        return FileAdmin(self.path)

    def dead_letters(self, *, direct: bool = False) -> DeadLetters:  # noqa: ARG002 - the folder is the place, either way
        return FileDeadLetters(self.path)

    def close(self) -> None:
        """Nothing to give back: each role has a descriptor of its own."""


def connect(url: str, options: Mapping[str, str]) -> Broker:
    """A broker for a URL. No I/O.

    Raises:
        InvalidURL, UnknownOption
    """
    for name in options:
        raise unknown("option", f"file.{name}", [])
    parts = split_url(url)
    safe = redact(url)
    if parts.netloc not in {"", "localhost"}:
        raise InvalidURL(f"file: {safe!r} names the host {parts.hostname!r}, but a folder has none; {_EXAMPLE}")
    if parts.fragment:
        raise InvalidURL(f"file: {safe!r}: write a '#' in a path as %23; {_EXAMPLE}")
    path = unquote(parts.path)
    if not path or "\0" in path:
        raise InvalidURL(f"file: {safe!r} names no folder; {_EXAMPLE}")
    context = "false"
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name != "context":
            raise unknown("URL parameter", name, ["context"])
        if value not in {"true", "false"}:
            raise InvalidURL(f"file: {safe!r}: context is true or false, not {value!r}")
        context = value
    return FileBroker(Path(path), url, context=context == "true")


@hookimpl
def redelivery_plugin() -> BrokerPlugin:
    """What this distribution brings."""
    return BrokerPlugin(
        name="file",
        schemes=("file",),
        version=version("redelivery-file"),
        capabilities=CAPABILITIES,
        connect=connect,
    )
