"""`SqliteBroker`: one queue of one file, and the roles that it makes. Imported when a URL is opened."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta

from redelivery.contract.broker import (
    Admin,
    Broker,
    DeadLetters,
    Receiver,
    Sender,
)
from redelivery_sqlite import CAPABILITIES, ROW_BYTES
from redelivery_sqlite.address import Address
from redelivery_sqlite.admin import SqliteAdmin
from redelivery_sqlite.client.store import Store
from redelivery_sqlite.dead_letters import SqliteDeadLetters
from redelivery_sqlite.options import Settings
from redelivery_sqlite.receiver import SqliteReceiver
from redelivery_sqlite.sender import SqliteSender


class SqliteBroker(Broker):
    """One queue of one file."""

    name = "sqlite"

    def __init__(self, address: Address, settings: Settings) -> None:
        self.address = address
        self.settings = settings
        self.canonical_url = address.url
        self.destination_name = address.queue
        self.hosts = ()
        self.capabilities = replace(CAPABILITIES, deduplication_window=timedelta(seconds=settings.deduplication_window))

    def sender(self) -> Sender:
        return SqliteSender(self._store(), self.address, message_bytes=ROW_BYTES)

    def native_sink(self) -> str:
        return self.address.dead_letters.url

    def sibling(self, name: str) -> str:
        return self.address.at(name).url

    def receiver(self, *, lease: timedelta = timedelta(seconds=30)) -> Receiver:
        return SqliteReceiver(self._store(), self.address, lease, message_bytes=ROW_BYTES)

    def admin(self) -> Admin:
        return SqliteAdmin(self._store(), self.address)

    def dead_letters(self, *, direct: bool = False) -> DeadLetters:
        address = self.address if direct else self.address.dead_letters
        return SqliteDeadLetters(self._store(), address)

    def close(self) -> None:
        """Do nothing: each role has its own connection."""

    def _store(self) -> Store:
        return Store(self.address.path, self.settings)


def connect(url: str, options: Mapping[str, str]) -> Broker:
    """Return a broker for a URL and this plugin's options, without I/O."""
    return SqliteBroker(Address.parse(url), Settings.parse(options))
