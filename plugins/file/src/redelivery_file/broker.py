"""`FileBroker`: one dead letter folder, and the roles that it makes. Imported when a URL is opened."""

from __future__ import annotations

from collections.abc import Mapping

from redelivery.contract.broker import Admin, Broker, DeadLetters, Sender
from redelivery_file import CAPABILITIES
from redelivery_file.address import Address
from redelivery_file.admin import FileAdmin
from redelivery_file.dead_letters import FileDeadLetters
from redelivery_file.options import Settings
from redelivery_file.sender import FileSender


class FileBroker(Broker):
    """One dead letter folder."""

    name = "file"
    capabilities = CAPABILITIES
    hosts = ()

    def __init__(self, address: Address, settings: Settings) -> None:
        self.address = address
        self.settings = settings
        self.canonical_url = address.url
        self.destination_name = address.path.name

    def sender(self) -> Sender:
        return FileSender(self.address, self.settings)

    def admin(self) -> Admin:
        return FileAdmin(self.address)

    def dead_letters(self, *, direct: bool = False) -> DeadLetters:  # noqa: ARG002 - the folder is the place in both cases
        return FileDeadLetters(self.address)

    def close(self) -> None:
        """Do nothing: each role has its own descriptor."""


def connect(url: str, options: Mapping[str, str]) -> Broker:
    """Return a broker for a URL, without I/O.

    Raises:
        InvalidURL, UnknownOption, ConfigurationError
    """
    return FileBroker(Address.parse(url), Settings.parse(options))
