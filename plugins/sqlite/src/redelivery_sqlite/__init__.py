"""redelivery to a durable queue in one SQLite file, the embedded default and the reference broker.

This module is the plugin: its capabilities, and the broker that opens the roles.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from importlib.metadata import version
from typing import Final

from redelivery.contract.broker import (
    Broker,
    BrokerPlugin,
    Capabilities,
    Limits,
    Support,
)
from redelivery.contract.hooks import hookimpl
from redelivery_sqlite.address import KIND
from redelivery_sqlite.options import Settings

#: SQLite's limit for a row (SQLITE_LIMIT_LENGTH), minus the size of the other columns.
ROW_BYTES: Final = 1_000_000_000 - 65_536

CAPABILITIES: Final = Capabilities(
    send=Support.NATIVE,
    receive=Support.NATIVE,
    provision=Support.NATIVE,
    browse=Support.NATIVE,
    remove=Support.NATIVE,
    purge=Support.NATIVE,
    splits=Support.NATIVE,
    cursors=Support.NATIVE,
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
    limits=Limits(message_bytes=ROW_BYTES),
)


def connect(url: str, options: Mapping[str, str]) -> Broker:
    """Return the broker of a URL with this plugin's options. No I/O; imports the client: to list plugins takes none."""
    from redelivery_sqlite.broker import connect as opened  # noqa: PLC0415 - the client takes long to import

    return opened(url, options)


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
