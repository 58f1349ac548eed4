"""redelivery's dead letter sink of plain files: one JSON line per letter.

This module is the plugin: its capabilities, and the broker that opens the roles. `from_env` puts the same folder behind
any sender.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from typing import Final

from redelivery.contract.broker import Admin, Broker, BrokerPlugin, Capabilities, DeadLetters, Sender, Support
from redelivery.contract.hooks import hookimpl
from redelivery.kit.address import unknown
from redelivery_file.address import Address
from redelivery_file.admin import FileAdmin
from redelivery_file.client.wrapper import from_env
from redelivery_file.dead_letters import FileDeadLetters
from redelivery_file.sender import FileSender

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


class FileBroker(Broker):
    """One dead letter folder."""

    name = "file"
    capabilities = CAPABILITIES
    hosts = ()

    def __init__(self, address: Address) -> None:
        self.address = address
        self.canonical_url = address.url

    def sender(self) -> Sender:
        return FileSender(self.address)

    def admin(self) -> Admin:
        return FileAdmin(self.address)

    def dead_letters(self, *, direct: bool = False) -> DeadLetters:  # noqa: ARG002 - the folder is the place in both cases
        return FileDeadLetters(self.address)

    def close(self) -> None:
        """Do nothing: each role has its own descriptor."""


def connect(url: str, options: Mapping[str, str]) -> Broker:
    """Return a broker for a URL, without I/O.

    Raises:
        InvalidURL, UnknownOption
    """
    for name in options:
        raise unknown("option", f"file.{name}", [])
    return FileBroker(Address.parse(url))


@hookimpl
def redelivery_plugin() -> BrokerPlugin:
    """Return this distribution's plugin."""
    return BrokerPlugin(
        name="file",
        schemes=("file",),
        version=version("redelivery-file"),
        capabilities=CAPABILITIES,
        connect=connect,
    )
