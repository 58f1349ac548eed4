"""The RabbitMQ plugin: its capabilities, its broker and its hook."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import version
from typing import Any, Final

from redelivery.contract.broker import (
    Broker,
    BrokerPlugin,
    Capabilities,
    Limits,
    Support,
)
from redelivery.contract.hooks import hookimpl
from redelivery.kit.clients import find_client
from redelivery_rabbitmq.address import API_GROUP, EXCHANGE, QUEUE, SCHEMES
from redelivery_rabbitmq.client.frames import HEADERS_BYTES, SHORT_STRING
from redelivery_rabbitmq.client.topology import DELAY_MAX
from redelivery_rabbitmq.options import MESSAGE_BYTES, Settings

CAPABILITIES: Final = Capabilities(
    send=Support.NATIVE,
    receive=Support.NATIVE,
    provision=Support.NATIVE,
    browse=Support.EMULATED,  # fetched and returned
    remove=Support.EMULATED,
    purge=Support.NATIVE,
    dead_letter=Support.NATIVE,
    keys=Support.EMULATED,  # a header
    headers=Support.NATIVE,
    ids=Support.NATIVE,
    timestamps=Support.EMULATED,  # to the second natively, the milliseconds in a header
    null_value=Support.EMULATED,  # a header
    destinations=Support.NATIVE,
    order=Support.EMULATED,  # one unsettled row per key: a row may be refused after later ones were sent
    competing_consumers=Support.NATIVE,
    subscriptions=Support.NATIVE,  # to an exchange: one queue each
    settle_any_order=Support.NATIVE,
    attempts=Support.NATIVE,
    delay=Support.EMULATED,  # copied to a retry queue and confirmed, then acknowledged
    terminate=Support.EMULATED,  # published and confirmed, then acknowledged
    ref_kinds=(QUEUE, EXCHANGE, f"{QUEUE}.{API_GROUP}", f"{EXCHANGE}.{API_GROUP}"),
    expiry=Support.NATIVE,
    delivery_limit=Support.NATIVE,
    depth_counts_leased=False,
    context_dialect="json",
    cloudevents_prefix="ce-",
    columns={"exchange": str, "routing_key": str},
    routes=frozenset({"exchange", "routing_key"}),
    destination_column="queue",
    limits=Limits(
        message_bytes=MESSAGE_BYTES,
        headers_bytes=HEADERS_BYTES,
        repeated_headers=False,
        id_bytes=SHORT_STRING,
        delay_max=DELAY_MAX,
    ),
)

#: What differs where letters are in a stream.
IN_A_STREAM: Final[Mapping[str, Any]] = {
    "browse": Support.NATIVE,
    "splits": Support.NATIVE,
    "cursors": Support.NATIVE,
    "purge": Support.EMULATED,  # remembered, as a removal is
}


def connect(url: str, options: Mapping[str, str]) -> Broker:
    """Return the broker of a URL with this plugin's options. No I/O; imports the client: to list plugins takes none."""
    from redelivery_rabbitmq.broker import connect as opened  # noqa: PLC0415 - the client takes long to import

    return opened(url, options)


@hookimpl
def redelivery_plugin() -> BrokerPlugin:
    """Return the plugin of this distribution."""
    find_client("pika")
    return BrokerPlugin(
        name="rabbitmq",
        schemes=SCHEMES,
        version=version("redelivery-rabbitmq"),
        capabilities=CAPABILITIES,
        connect=connect,
        modes={
            "4.3, linear backoff": replace(CAPABILITIES, delay=Support.NATIVE),
            "letters in a stream": replace(CAPABILITIES, **IN_A_STREAM),
        },
        options=Settings.help(),
    )
