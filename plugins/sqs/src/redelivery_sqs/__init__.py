"""redelivery to Amazon SQS: its redrive policy and dead letter queue.

This module has the plugin's capabilities, the broker that makes the roles, and the hook.
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
from redelivery.kit.clients import find_client
from redelivery_sqs.address import API_GROUP, KIND
from redelivery_sqs.client.limits import GROUP, MAX_ENTRIES, binary_limit
from redelivery_sqs.options import Settings

#: SQS hides a message for 12 hours after its receipt at most; an hour of them remains for handling it.
_DELAY_MAX: Final = timedelta(hours=11)

CAPABILITIES: Final = Capabilities(
    send=Support.NATIVE,
    receive=Support.NATIVE,
    provision=Support.NATIVE,
    browse=Support.EMULATED,  # received, and made visible again
    remove=Support.EMULATED,
    purge=Support.EMULATED,  # one by one: PurgeQueue does not count, and also takes messages that others hold
    redrive=Support.NATIVE,
    dead_letter=Support.NATIVE,
    keys=Support.EMULATED,
    headers=Support.EMULATED,
    ids=Support.EMULATED,
    timestamps=Support.EMULATED,
    null_value=Support.EMULATED,
    destinations=Support.NATIVE,
    deduplicate=Support.NATIVE,  # this and the next: FIFO queues only
    deduplication_window=timedelta(minutes=5),
    order=Support.NATIVE,
    competing_consumers=Support.NATIVE,
    settle_any_order=Support.NATIVE,
    attempts=Support.NATIVE,
    first_delivery=Support.NATIVE,
    delay=Support.NATIVE,
    terminate=Support.EMULATED,  # sent to the dead letter queue, confirmed, then deleted
    extend=Support.NATIVE,
    ref_kinds=(KIND, f"{KIND}.{API_GROUP}"),
    delivery_limit=Support.NATIVE,
    context_dialect="json",
    cloudevents_prefix=None,
    messaging_system="aws_sqs",
    columns={GROUP: str},
    destination_column="queue",
    limits=Limits(
        message_bytes=binary_limit(1 << 20),
        batch_messages=MAX_ENTRIES,
        batch_bytes=1 << 20,
        delay_max=_DELAY_MAX,
        delay_resolution=timedelta(milliseconds=100),
    ),
)


def connect(url: str, options: Mapping[str, str]) -> Broker:
    """Return the broker of a URL with this plugin's options. No I/O; imports the client: to list plugins takes none."""
    from redelivery_sqs.broker import connect as opened  # noqa: PLC0415 - the client takes long to import

    return opened(url, options)


@hookimpl
def redelivery_plugin() -> BrokerPlugin:
    """Return the plugin of this distribution."""
    find_client("boto3")
    return BrokerPlugin(
        name="sqs",
        schemes=("sqs",),
        version=version("redelivery-sqs"),
        capabilities=CAPABILITIES,
        connect=connect,
        options=Settings.help(),
    )
