"""redelivery to a durable queue in one SQLite file, the embedded default and the reference broker.

This module is the plugin: its capabilities, and the broker that opens the roles.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from importlib.metadata import version
from typing import Final

from redelivery.contract.broker import (
    Admin,
    Broker,
    BrokerPlugin,
    Capabilities,
    DeadLetters,
    Limits,
    Receiver,
    Sender,
    Support,
)
from redelivery.contract.hooks import hookimpl
from redelivery_sqlite.address import Address
from redelivery_sqlite.admin import KIND, SqliteAdmin
from redelivery_sqlite.client.store import Store
from redelivery_sqlite.dead_letters import SqliteDeadLetters
from redelivery_sqlite.options import Settings
from redelivery_sqlite.receiver import SqliteReceiver
from redelivery_sqlite.sender import SqliteSender

#: SQLite's limit for a row (SQLITE_LIMIT_LENGTH), minus the size of the other columns.
_ROW_BYTES: Final = 1_000_000_000 - 65_536

CAPABILITIES: Final = Capabilities(
    send=Support.NATIVE,
    receive=Support.NATIVE,
    provision=Support.NATIVE,
    browse=Support.NATIVE,
    remove=Support.NATIVE,
    purge=Support.NATIVE,
    dead_letter=Support.NATIVE,
    keys=Support.NATIVE,
    headers=Support.NATIVE,
    ids=Support.NATIVE,
    timestamps=Support.NATIVE,
    null_value=Support.NATIVE,
    destinations=Support.NATIVE,
    deduplicate=Support.NATIVE,
    deduplication_window=timedelta(days=1),
    reports_duplicates=True,
    order=Support.NATIVE,
    competing_consumers=Support.NATIVE,
    settle_any_order=Support.NATIVE,
    attempts=Support.NATIVE,
    first_delivery=Support.NATIVE,
    delay=Support.NATIVE,
    terminate=Support.NATIVE,
    reason=Support.NATIVE,
    extend=Support.NATIVE,
    ref_kinds=(KIND,),
    expiry=Support.NATIVE,
    delivery_limit=Support.NATIVE,
    networked=False,
    context_dialect="json",
    limits=Limits(message_bytes=_ROW_BYTES),
)


class SqliteBroker(Broker):
    """One queue of one file."""

    name = "sqlite"

    def __init__(self, address: Address, settings: Settings) -> None:
        self.address = address
        self.settings = settings
        self.canonical_url = address.url
        self.hosts = ()
        self.capabilities = replace(CAPABILITIES, deduplication_window=timedelta(seconds=settings.deduplication_window))

    def sender(self) -> Sender:
        return SqliteSender(self._store(), self.address, message_bytes=_ROW_BYTES)

    def native_sink(self) -> str:
        return self.address.dead_letters.url

    def sibling(self, name: str) -> str:
        return self.address.at(name).url

    def receiver(self, *, lease: timedelta = timedelta(seconds=30)) -> Receiver:
        return SqliteReceiver(self._store(), self.address, lease, message_bytes=_ROW_BYTES)

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


@hookimpl
def redelivery_plugin() -> BrokerPlugin:
    """Return this distribution's plugin."""
    return BrokerPlugin(
        name="sqlite",
        schemes=("sqlite",),
        version=version("redelivery-sqlite"),
        capabilities=CAPABILITIES,
        connect=connect,
        options=Settings.help(),
    )
