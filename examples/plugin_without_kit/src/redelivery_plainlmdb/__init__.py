"""LMDB as a broker of redelivery: `plainlmdb:FOLDER?queue=NAME`, several queues in one memory-mapped file."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from importlib.metadata import version

from redelivery.contract.broker import (
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
from redelivery_plainlmdb.address import Address
from redelivery_plainlmdb.codec import MESSAGE_BYTES
from redelivery_plainlmdb.dead_letters import LmdbDeadLetters
from redelivery_plainlmdb.options import OPTIONS, Settings
from redelivery_plainlmdb.receiver import LmdbReceiver
from redelivery_plainlmdb.sender import LmdbSender

CAPABILITIES = Capabilities(
    send=Support.NATIVE,
    receive=Support.EMULATED,
    browse=Support.NATIVE,
    remove=Support.NATIVE,
    purge=Support.NATIVE,
    splits=Support.NATIVE,
    cursors=Support.NATIVE,
    dead_letter=Support.EMULATED,  # a second queue in the same file
    keys=Support.EMULATED,  # packed with the value, as are all parts of a message
    headers=Support.EMULATED,
    ids=Support.EMULATED,
    timestamps=Support.EMULATED,
    null_value=Support.EMULATED,
    destinations=Support.EMULATED,  # a queue is a prefix of keys
    competing_consumers=Support.NATIVE,
    settle_any_order=Support.EMULATED,
    attempts=Support.EMULATED,
    first_delivery=Support.EMULATED,
    delay=Support.EMULATED,
    terminate=Support.EMULATED,
    ref_kinds=("Queue",),
    extend=Support.EMULATED,
    networked=False,
    limits=Limits(message_bytes=MESSAGE_BYTES),
)


class LmdbBroker(Broker):
    """One queue of one file."""

    name = "plainlmdb"
    capabilities = CAPABILITIES

    def __init__(self, address: Address, settings: Settings) -> None:
        self._address, self._settings = address, settings

    def sender(self) -> Sender:
        return LmdbSender(self._address, self._settings)

    def receiver(self, *, lease: timedelta = timedelta(seconds=30)) -> Receiver:
        return LmdbReceiver(self._address, self._settings, lease)

    def dead_letters(self, *, direct: bool = False) -> DeadLetters:
        return LmdbDeadLetters(self._address if direct else self._address.dead_letters, self._settings)

    def native_sink(self) -> str:
        return self._address.dead_letters.url

    def sibling(self, name: str) -> str:
        return self._address.sibling(name).url


def connect(url: str, options: Mapping[str, str]) -> Broker:
    """Make a broker of `plainlmdb:FOLDER?queue=NAME`. Raises InvalidURL, UnknownOption, ConfigurationError."""
    return LmdbBroker(Address.parse(url), Settings.parse(options))


@hookimpl
def redelivery_plugin() -> BrokerPlugin:
    """Return the plugin: the entry point in the group `redelivery` names this module, and core calls this."""
    return BrokerPlugin(
        name="plainlmdb",
        schemes=("plainlmdb",),
        version=version("redelivery-plainlmdb"),
        capabilities=CAPABILITIES,
        connect=connect,
        options=OPTIONS,
    )
