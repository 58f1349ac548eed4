"""redelivery to NATS JetStream: its work queues, and its advisories as dead letters.

This module has the plugin's capabilities, the broker that makes the roles, and the hook.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from importlib.metadata import version
from typing import Final

from redelivery.contract.broker import Broker, BrokerPlugin, Capabilities, Limits, Support
from redelivery.contract.hooks import hookimpl
from redelivery.kit.clients import find_client
from redelivery_nats.address import API_GROUP, KIND
from redelivery_nats.codec import HEADERS_BYTES, ID_BYTES, KEY_BYTES
from redelivery_nats.options import Settings

CAPABILITIES: Final = Capabilities(
    send=Support.NATIVE,
    receive=Support.NATIVE,
    provision=Support.NATIVE,
    browse=Support.NATIVE,
    remove=Support.NATIVE,
    purge=Support.NATIVE,
    splits=Support.NATIVE,
    cursors=Support.NATIVE,
    dead_letter=Support.EMULATED,  # a second stream
    keys=Support.EMULATED,
    headers=Support.NATIVE,
    ids=Support.NATIVE,
    timestamps=Support.EMULATED,
    null_value=Support.EMULATED,
    destinations=Support.NATIVE,
    deduplicate=Support.NATIVE,
    deduplication_window=timedelta(minutes=2),
    reports_duplicates=True,
    order=Support.EMULATED,
    competing_consumers=Support.NATIVE,
    settle_any_order=Support.NATIVE,
    attempts=Support.NATIVE,
    delay=Support.NATIVE,
    terminate=Support.EMULATED,  # sent to the dead letter stream, confirmed, then acknowledged
    extend=Support.NATIVE,
    leases_as_asked=False,  # the consumer says how long a lease lasts
    ref_kinds=(KIND, f"{KIND}.{API_GROUP}"),
    delivery_limit=Support.LOWER_BOUND,  # a message that was sent to a receiver that was killed counts
    messaging_system="nats",
    limits=Limits(
        message_bytes=1 << 20,
        headers_bytes=HEADERS_BYTES,
        id_bytes=ID_BYTES,
        key_bytes=KEY_BYTES,
        delay_max=timedelta(days=365),
    ),
)


def connect(url: str, options: Mapping[str, str]) -> Broker:
    """Return the broker of a URL with this plugin's options. No I/O; imports the client: to list plugins takes none."""
    from redelivery_nats.broker import connect as opened  # noqa: PLC0415 - the client takes long to import

    return opened(url, options)


@hookimpl
def redelivery_plugin() -> BrokerPlugin:
    """Return the plugin of this distribution."""
    find_client("nats")
    return BrokerPlugin(
        name="nats",
        schemes=("nats",),
        version=version("redelivery-nats"),
        capabilities=CAPABILITIES,
        connect=connect,
        options=Settings.help(),
    )
