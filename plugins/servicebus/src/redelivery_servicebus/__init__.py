"""The Service Bus plugin: its capabilities, its broker and its hook."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
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
from redelivery_servicebus.address import API_GROUP, KIND, SCHEME
from redelivery_servicebus.client.limits import BATCH, HEADER_VALUE_BYTES, HEADERS_BYTES, ID_LENGTH, RESERVE, SCHEDULED
from redelivery_servicebus.options import Settings

_STANDARD: Final = 256 << 10

CAPABILITIES: Final = Capabilities(
    send=Support.NATIVE,
    receive=Support.NATIVE,
    provision=Support.NATIVE,
    browse=Support.NATIVE,
    remove=Support.EMULATED,  # received and completed
    purge=Support.EMULATED,
    splits=Support.NATIVE,  # ranges of sequence numbers; a partitioned queue is one
    cursors=Support.NATIVE,  # sequence numbers; none of a partitioned queue
    dead_letter=Support.NATIVE,
    keys=Support.EMULATED,
    headers=Support.EMULATED,  # text natively; other bytes, and the order, in a property of ours
    ids=Support.NATIVE,
    timestamps=Support.EMULATED,
    null_value=Support.EMULATED,
    destinations=Support.NATIVE,
    deduplicate=Support.NATIVE,  # if the queue has it: see the broker
    deduplication_window=timedelta(minutes=10),
    competing_consumers=Support.NATIVE,
    subscriptions=Support.NATIVE,  # of a topic: each forwards to another queue
    settle_any_order=Support.NATIVE,
    attempts=Support.NATIVE,
    delay=Support.EMULATED,  # a scheduled copy is sent and confirmed, then the message is completed
    terminate=Support.NATIVE,
    reason=Support.NATIVE,
    extend=Support.NATIVE,
    leases_as_asked=False,
    ref_kinds=("Queue", f"{KIND}.{API_GROUP}"),
    expiry=Support.NATIVE,
    delivery_limit=Support.NATIVE,
    context_dialect="json",
    cloudevents_prefix="cloudEvents_",
    columns={SCHEDULED: int},
    routes=frozenset({SCHEDULED}),  # a letter is never scheduled
    destination_column="queue",
    limits=Limits(
        message_bytes=_STANDARD - RESERVE,
        batch_messages=BATCH,
        batch_bytes=_STANDARD,
        headers_bytes=HEADERS_BYTES,
        header_value_bytes=HEADER_VALUE_BYTES,
        id_bytes=ID_LENGTH,
    ),
)


def of_subscription(capabilities: Capabilities) -> Capabilities:
    """Return what a subscription can do: nothing can be sent to it alone, neither a letter nor a copy for later."""
    return replace(
        capabilities,
        send=Support.NONE,
        destinations=Support.NONE,
        deduplicate=Support.NONE,
        deduplication_window=None,
        delay=Support.NONE,
        subscriptions=Support.NONE,
    )


def of_sessions(capabilities: Capabilities) -> Capabilities:
    """Return what a queue that requires sessions can do: it keeps the order of each session."""
    return replace(
        capabilities,
        order=Support.NATIVE,
        subscriptions=Support.NONE,
        competing_consumers=Support.NONE,  # a receiver has whole sessions
        attempts=Support.LOWER_BOUND,  # a session that is closed counts none
        delay=Support.NONE,  # a copy for later would be overtaken
    )


def connect(url: str, options: Mapping[str, str]) -> Broker:
    """Return the broker of a URL with this plugin's options. No I/O; imports the client: to list plugins takes none."""
    from redelivery_servicebus.broker import connect as opened  # noqa: PLC0415 - the client takes long to import

    return opened(url, options)


@hookimpl
def redelivery_plugin() -> BrokerPlugin:
    """Return the plugin."""
    find_client("azure.servicebus")
    return BrokerPlugin(
        name="servicebus",
        schemes=(SCHEME,),
        version=version("redelivery-servicebus"),
        capabilities=CAPABILITIES,
        modes={"subscription": of_subscription(CAPABILITIES), "sessions": of_sessions(CAPABILITIES)},
        connect=connect,
        options=Settings.help(),
    )
