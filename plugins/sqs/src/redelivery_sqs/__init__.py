"""redelivery to Amazon SQS: its redrive policy and dead letter queue.

This file is the plugin: its capabilities, and the broker that makes the roles.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from importlib.metadata import version
from typing import Final

from redelivery.base.urls import is_local
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
from redelivery_sqs.address import Address, fault
from redelivery_sqs.admin import API_GROUP, KIND, SqsAdmin
from redelivery_sqs.config import OPTIONS, Settings
from redelivery_sqs.encoding import GROUP, binary_limit
from redelivery_sqs.feeds import BATCH
from redelivery_sqs.letters import SqsDeadLetters
from redelivery_sqs.receiver import SqsReceiver
from redelivery_sqs.sender import SqsSender

#: A message can be hidden for 12 hours from its receipt: an hour of them is left for handling it.
_DELAY_MAX: Final = timedelta(hours=11)

CAPABILITIES: Final = Capabilities(
    send=Support.NATIVE,
    receive=Support.NATIVE,
    provision=Support.NATIVE,
    browse=Support.EMULATED,  # receives, and gives back
    remove=Support.EMULATED,
    purge=Support.EMULATED,  # one by one: SQS's own PurgeQueue neither counts nor leaves alone what is in hand
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
    competing=Support.NATIVE,
    settle_any_order=Support.NATIVE,
    attempts=Support.NATIVE,
    first_delivery=Support.NATIVE,
    delay=Support.NATIVE,
    terminate=Support.EMULATED,  # sent to the dead letter queue, confirmed, then deleted
    extend=Support.NATIVE,
    ref_kinds=(KIND, f"{KIND}.{API_GROUP}"),
    backstop=Support.NATIVE,
    context_dialect="json",
    cloudevents_prefix=None,
    destination_column="queue",
    limits=Limits(
        message_bytes=binary_limit(1 << 20),
        batch_messages=BATCH,
        batch_bytes=1 << 20,
        delay_max=_DELAY_MAX,
        delay_resolution=timedelta(milliseconds=100),
    ),
)


class SqsBroker(Broker):
    """One queue."""

    name = "sqs"

    def __init__(self, address: Address, settings: Settings) -> None:
        self.address = address = address.settled(
            region=settings.region,
            endpoint=settings.endpoint_url,
            profile=settings.profile,
            role=settings.role_arn,
        )
        self.settings = settings
        self.canonical_url = address.url
        self.hosts = (address.host, *settings.proxy_hosts)
        if (address.endpoint or "").startswith("http:") and not is_local(address.host):
            self.insecure = (f"requests go to {address.host} over plain text; write https in sqs.endpoint_url",)
        most = settings.max_message_bytes
        limits = replace(CAPABILITIES.limits, message_bytes=binary_limit(most), batch_bytes=most)
        self.capabilities = replace(CAPABILITIES, limits=limits)
        if address.fifo:  # no more of a group is shown than its first ten
            self.capabilities = replace(self.capabilities, browse=Support.LOWER_BOUND, columns={GROUP: str})
        else:
            none = Support.NONE
            self.capabilities = replace(self.capabilities, order=none, deduplicate=none, deduplication_window=None)

    def sender(self) -> Sender:
        return SqsSender(self.address, self.settings)

    def native_sink(self) -> str:
        return self.address.dead_letters.url

    def sibling(self, name: str) -> str:
        wrong = fault(name)
        if wrong is not None:
            raise ConfigurationError(f"sqs: {name!r} is no queue: {wrong}")
        return self.address.at(name).url

    def receiver(self, *, lease: timedelta = timedelta(seconds=30)) -> Receiver:
        return SqsReceiver(self.address, self.settings, lease)

    def admin(self) -> Admin:
        return SqsAdmin(self.address, self.settings)

    def dead_letters(self, *, direct: bool = False) -> DeadLetters:
        return SqsDeadLetters(self.address, self.settings, direct)


def connect(url: str, options: Mapping[str, str]) -> Broker:
    """A broker for a URL and this plugin's options. No I/O."""
    return SqsBroker(Address.parse(url), Settings.parse(options))


@hookimpl
def redelivery_plugin() -> BrokerPlugin:
    """What this distribution brings."""
    return BrokerPlugin(
        name="sqs",
        schemes=("sqs",),
        version=version("redelivery-sqs"),
        capabilities=CAPABILITIES,
        connect=connect,
        options=OPTIONS,
    )
