"""`SqsBroker`: one queue, and the roles that it makes. Imported when a URL is opened."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta

from redelivery.contract.broker import (
    Admin,
    Broker,
    DeadLetters,
    Receiver,
    Sender,
    Support,
)
from redelivery.errors import ConfigurationError
from redelivery.kit.address import is_local
from redelivery_sqs import CAPABILITIES
from redelivery_sqs.address import Address, invalid_name
from redelivery_sqs.admin import SqsAdmin
from redelivery_sqs.client.limits import binary_limit
from redelivery_sqs.dead_letters import SqsDeadLetters
from redelivery_sqs.options import Settings
from redelivery_sqs.receiver import SqsReceiver
from redelivery_sqs.sender import SqsSender


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
        self.destination_name = address.queue
        self.hosts = (address.host, *settings.proxy_hosts)
        if (address.endpoint or "").startswith("http:") and not is_local(address.host):
            self.insecure = (f"requests go to {address.host} in plain text; use https in sqs.endpoint_url",)
        max_bytes = settings.max_message_bytes
        limits = replace(CAPABILITIES.limits, message_bytes=binary_limit(max_bytes), batch_bytes=max_bytes)
        self.capabilities = replace(CAPABILITIES, limits=limits)
        if address.fifo:  # SQS shows only the first ten messages of a group
            self.capabilities = replace(self.capabilities, browse=Support.LOWER_BOUND)
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
