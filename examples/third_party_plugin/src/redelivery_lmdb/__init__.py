"""LMDB as a broker of redelivery: `lmdb:FOLDER?queue=NAME`, several queues in one memory-mapped file of one host."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path
from urllib.parse import parse_qsl, quote, unquote

from redelivery.base.urls import split_url
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
from redelivery.errors import ConfigurationError, InvalidURL, Permanent
from redelivery_lmdb.receiving import LmdbReceiver
from redelivery_lmdb.roles import LmdbDeadLetters, LmdbSender, dead_letters_of
from redelivery_lmdb.store import MESSAGE_BYTES, Store, prefix_of

CAPABILITIES = Capabilities(
    send=Support.NATIVE,
    receive=Support.EMULATED,
    browse=Support.NATIVE,
    remove=Support.NATIVE,
    purge=Support.NATIVE,
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
OPTIONS = {"map_size": "the file's largest size in bytes (1073741824)"}


class LmdbBroker(Broker):
    """One queue of one file."""

    name = "lmdb"
    capabilities = CAPABILITIES

    def __init__(self, folder: str, queue: str, map_size: int) -> None:
        self._folder, self._queue, self._map_size = folder, queue, map_size

    def sender(self) -> Sender:
        return LmdbSender(self._store(), self._queue)

    def receiver(self, *, lease: timedelta = timedelta(seconds=30)) -> Receiver:
        return LmdbReceiver(self._store(), self._queue, lease)

    def dead_letters(self, *, direct: bool = False) -> DeadLetters:
        return LmdbDeadLetters(self._store(), self._queue if direct else dead_letters_of(self._queue))

    def native_sink(self) -> str:
        return self.sibling(dead_letters_of(self._queue))

    def sibling(self, name: str) -> str:
        return f"lmdb:{quote(self._folder)}?queue={quote(name, safe='')}"

    def close(self) -> None:
        """Nothing is held here: each role holds the store."""

    def _store(self) -> Store:
        return Store.acquire(Path(self._folder), self._map_size)


def connect(url: str, options: Mapping[str, str]) -> Broker:
    """Make a broker of `lmdb:FOLDER?queue=NAME`. Raises InvalidURL, ConfigurationError."""
    parts = split_url(url)
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    queue = query.pop("queue", "default")
    if parts.netloc or not parts.path or parts.fragment or query:
        raise InvalidURL("an lmdb URL is lmdb:FOLDER?queue=NAME (lmdb:///FOLDER where it is absolute), no more")
    try:
        for name in (queue, dead_letters_of(queue)):
            prefix_of(name)
    except Permanent as error:
        raise InvalidURL(f"lmdb: {error}") from None
    map_size = options.get("map_size", "1073741824")
    if not map_size.isdecimal():
        raise ConfigurationError("lmdb.map_size must be a number of bytes")
    return LmdbBroker(unquote(parts.path), queue, int(map_size))


@hookimpl
def redelivery_plugin() -> BrokerPlugin:
    """The entry point in the group `redelivery` names this module; core calls this."""
    return BrokerPlugin(
        name="lmdb",
        schemes=("lmdb",),
        version=version("redelivery-lmdb"),
        capabilities=CAPABILITIES,
        connect=connect,
        options=OPTIONS,
    )
