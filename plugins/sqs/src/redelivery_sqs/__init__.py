"""redelivery to Amazon SQS: its redrive policy and dead letter queue.

This module has the plugin's capabilities, the broker that makes the roles, and the hook.
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
from redelivery.errors import ConfigurationError
from redelivery.kit.address import is_local
from redelivery_sqs.address import Address, invalid_name
from redelivery_sqs.admin import API_GROUP, KIND, SqsAdmin
from redelivery_sqs.client.batch_requests import MAX_ENTRIES
from redelivery_sqs.codec import GROUP, binary_limit
from redelivery_sqs.dead_letters import SqsDeadLetters
from redelivery_sqs.options import Settings
from redelivery_sqs.receiver import SqsReceiver
from redelivery_sqs.sender import SqsSender

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
    destination_column="queue",
    limits=Limits(
        message_bytes=binary_limit(1 << 20),
        batch_messages=MAX_ENTRIES,
        batch_bytes=1 << 20,
        delay_max=_DELAY_MAX,
        delay_resolution=timedelta(milliseconds=100),
    ),
)


class SqsBroker(Broker):
    """One queue."""

    name = "sqs"

    def __init__(self, address: Address, settings: Settings) -> None:
        self.address = address = address.completed(
            region=settings.region,
            endpoint=settings.endpoint_url,
            profile=settings.profile,
            role=settings.role_arn,
        )
        self.settings = settings
        self.canonical_url = address.url
        self.hosts = (address.host, *settings.proxy_hosts)
        if (address.endpoint or "").startswith("http:") and not is_local(address.host):
            self.insecure = (f"requests go to {address.host} in plain text; use https in sqs.endpoint_url",)
        max_bytes = settings.max_message_bytes
        limits = replace(CAPABILITIES.limits, message_bytes=binary_limit(max_bytes), batch_bytes=max_bytes)
        self.capabilities = replace(CAPABILITIES, limits=limits)
        if address.fifo:  # SQS shows only the first ten messages of a group
            self.capabilities = replace(self.capabilities, browse=Support.LOWER_BOUND, columns={GROUP: str})
        else:
            none = Support.NONE
            self.capabilities = replace(self.capabilities, order=none, deduplicate=none, deduplication_window=None)

    def sender(self) -> Sender:
        return SqsSender(self.address, self.settings)

    def native_sink(self) -> str:
        return self.address.dead_letters.url

    def sibling(self, name: str) -> str:
        wrong = invalid_name(name)
        if wrong is not None:
            raise ConfigurationError(f"sqs: {name!r} is not a queue: {wrong}")
        return self.address.sibling(name).url

    def receiver(self, *, lease: timedelta = timedelta(seconds=30)) -> Receiver:
        return SqsReceiver(self.address, self.settings, lease)

    def admin(self) -> Admin:
        return SqsAdmin(self.address, self.settings)

    def dead_letters(self, *, direct: bool = False) -> DeadLetters:
        return SqsDeadLetters(self.address, self.settings, direct)


def connect(url: str, options: Mapping[str, str]) -> Broker:
    """Make a broker for a URL and this plugin's options, without I/O."""
    return SqsBroker(Address.parse(url), Settings.parse(options))


@hookimpl
def redelivery_plugin() -> BrokerPlugin:
    """Return the plugin of this distribution."""
    return BrokerPlugin(
        name="sqs",
        schemes=("sqs",),
        version=version("redelivery-sqs"),
        capabilities=CAPABILITIES,
        connect=connect,
        options=Settings.help(),
    )
