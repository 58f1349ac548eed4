"""`KafkaBroker`: one topic of one cluster, and the roles that it makes. Imported when a URL is opened."""

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
)
from redelivery_kafka import CAPABILITIES, SHARE_CAPABILITIES
from redelivery_kafka.address import Address
from redelivery_kafka.admin import KafkaAdmin
from redelivery_kafka.client.known_settings import largest
from redelivery_kafka.dead_letters import KafkaDeadLetters
from redelivery_kafka.options import Settings
from redelivery_kafka.receiver import KafkaReceiver
from redelivery_kafka.sender import KafkaSender


class KafkaBroker(Broker):
    """One topic of one cluster."""

    name = "kafka"

    def __init__(self, address: Address, settings: Settings) -> None:
        self.address = address
        self.settings = settings
        self.canonical_url = replace(address, named_group="").url
        self.destination_name = address.topic
        self.hosts = (*address.hosts, *settings.hosts)
        self.insecure = settings.insecure(address.hosts)
        mode = SHARE_CAPABILITIES if address.is_share else CAPABILITIES
        limits = replace(mode.limits, message_bytes=largest(settings.message_bytes))
        self.capabilities = replace(mode, limits=limits)

    def sender(self) -> Sender:
        return KafkaSender(self.address, self.settings)

    def native_sink(self) -> str:
        return self.address.dead_letters.url

    def sibling(self, name: str) -> str:
        return self.address.at(name).url

    def subscription(self, name: str) -> str:
        return self.address.subscription(name).url

    def receiver(self, *, lease: timedelta = timedelta(seconds=30)) -> Receiver:
        if self.address.is_share:
            from redelivery_kafka.client.share_receiver import (  # noqa: PLC0415 - older versions of the client have none
                KafkaShareReceiver,
            )

            return KafkaShareReceiver(self.address, self.settings).open()
        return KafkaReceiver(self.address, self.settings, lease).open()

    def admin(self) -> Admin:
        return KafkaAdmin(self.address, self.settings)

    def dead_letters(self, *, direct: bool = False) -> DeadLetters:
        place = self.address if direct else self.address.dead_letters
        return KafkaDeadLetters(place, self.settings, place.source if place == self.address else self.address.topic)


def connect(url: str, options: Mapping[str, str]) -> Broker:
    """Make a broker for a URL and this plugin's options. No I/O."""
    settings = Settings.parse(options)
    bootstrap = options.get("bootstrap.servers") or options.get("metadata.broker.list")
    address = Address.parse(url, bootstrap)
    if address.is_share:
        settings.check_share()
    return KafkaBroker(address, settings)
