"""The Kafka plugin: its capabilities, its hook, and the broker that makes the roles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from typing import Final

from redelivery.contract.broker import (
    Broker,
    BrokerPlugin,
    Capabilities,
    Limits,
    Support,
)
from redelivery.contract.hooks import HeaderDialect, hookimpl
from redelivery.kit.clients import find_client
from redelivery_kafka.address import API_GROUP, KIND
from redelivery_kafka.client.foreign_headers import SHARE_GROUPS, SPRING, STREAMS
from redelivery_kafka.client.known_settings import MESSAGE_BYTES, OPTIONS, largest

CAPABILITIES: Final = Capabilities(
    send=Support.NATIVE,
    receive=Support.NATIVE,
    provision=Support.NATIVE,
    browse=Support.NATIVE,
    splits=Support.NATIVE,
    cursors=Support.NATIVE,
    remove=Support.EMULATED,
    purge=Support.EMULATED,
    dead_letter=Support.EMULATED,
    keys=Support.NATIVE,
    headers=Support.NATIVE,
    timestamps=Support.NATIVE,
    null_value=Support.NATIVE,
    destinations=Support.NATIVE,
    order=Support.NATIVE,
    subscriptions=Support.NATIVE,
    settle_any_order=Support.EMULATED,
    attempts=Support.EMULATED,
    first_delivery=Support.EMULATED,
    delay=Support.EMULATED,
    terminate=Support.EMULATED,
    ref_kinds=("Topic", f"{KIND}.{API_GROUP}"),
    sink_partitions=Support.NATIVE,
    sink_replication_factor=Support.NATIVE,
    settles="quiescence",
    context_dialect="connect",
    cloudevents_prefix="ce_",
    columns={"partition": int},
    destination_column="topic",
    limits=Limits(message_bytes=largest(MESSAGE_BYTES)),
)
#: With `?share=`: a receiver is a member of a share group.
SHARE_CAPABILITIES: Final = replace(
    CAPABILITIES,
    competing_consumers=Support.EMULATED,
    subscriptions=Support.NONE,
    settle_any_order=Support.NATIVE,
    attempts=Support.NATIVE,
    first_delivery=Support.NONE,
    delay=Support.NONE,
    delivery_limit=Support.LOWER_BOUND,
    depth=Support.NONE,
    leases_as_asked=False,
)


def connect(url: str, options: Mapping[str, str]) -> Broker:
    """Return the broker of a URL with this plugin's options. No I/O; imports the client: to list plugins takes none."""
    from redelivery_kafka.broker import connect as opened  # noqa: PLC0415 - the client takes long to import

    return opened(url, options)


@hookimpl
def redelivery_plugin() -> BrokerPlugin:
    """Return the plugin."""
    find_client("confluent_kafka")
    return BrokerPlugin(
        name="kafka",
        schemes=("kafka",),
        version=version("redelivery-kafka"),
        capabilities=CAPABILITIES,
        modes={"share group": SHARE_CAPABILITIES},
        connect=connect,
        options=OPTIONS,
        open_options=True,
    )


@hookimpl
def redelivery_dialect() -> Sequence[HeaderDialect]:
    """Return the dialects in which the other writers of dead letter topics say why."""
    return SHARE_GROUPS, SPRING, STREAMS
