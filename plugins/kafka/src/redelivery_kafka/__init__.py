"""The Kafka plugin: its capabilities, its hook, and the broker that makes the roles."""

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
from redelivery.contract.hooks import HeaderDialect, hookimpl
from redelivery_kafka.address import Address
from redelivery_kafka.admin import API_GROUP, KIND, KafkaAdmin
from redelivery_kafka.client.known_settings import OPTIONS
from redelivery_kafka.client.spring_headers import SPRING
from redelivery_kafka.codec import largest
from redelivery_kafka.dead_letters import KafkaDeadLetters
from redelivery_kafka.options import Settings
from redelivery_kafka.receiver import KafkaReceiver
from redelivery_kafka.sender import KafkaSender

CAPABILITIES: Final = Capabilities(
    send=Support.NATIVE,
    receive=Support.NATIVE,
    provision=Support.NATIVE,
    browse=Support.NATIVE,
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
    limits=Limits(message_bytes=largest(Settings().message_bytes)),
)


class KafkaBroker(Broker):
    """One topic of one cluster."""

    name = "kafka"

    def __init__(self, address: Address, settings: Settings) -> None:
        self.address = address
        self.settings = settings
        self.canonical_url = replace(address, named_group="").url
        self.hosts = (*address.hosts, *settings.hosts)
        self.insecure = settings.insecure(address.hosts)
        limits = replace(CAPABILITIES.limits, message_bytes=largest(settings.message_bytes))
        self.capabilities = replace(CAPABILITIES, limits=limits)

    def sender(self) -> Sender:
        return KafkaSender(self.address, self.settings)

    def native_sink(self) -> str:
        return self.address.dead_letters.url

    def sibling(self, name: str) -> str:
        return self.address.at(name).url

    def subscription(self, name: str) -> str:
        return self.address.subscription(name).url

    def receiver(self, *, lease: timedelta = timedelta(seconds=30)) -> Receiver:
        return KafkaReceiver(self.address, self.settings, lease).open()

    def admin(self) -> Admin:
        return KafkaAdmin(self.address, self.settings)

    def dead_letters(self, *, direct: bool = False) -> DeadLetters:
        return KafkaDeadLetters(self.address if direct else self.address.dead_letters, self.settings)


def connect(url: str, options: Mapping[str, str]) -> Broker:
    """Make a broker for a URL and this plugin's options. No I/O."""
    settings = Settings.parse(options)
    bootstrap = options.get("bootstrap.servers") or options.get("metadata.broker.list")
    return KafkaBroker(Address.parse(url, bootstrap), settings)


@hookimpl
def redelivery_plugin() -> BrokerPlugin:
    """Return the plugin."""
    return BrokerPlugin(
        name="kafka",
        schemes=("kafka",),
        version=version("redelivery-kafka"),
        capabilities=CAPABILITIES,
        connect=connect,
        options=OPTIONS,
        open_options=True,
    )


@hookimpl
def redelivery_dialect() -> HeaderDialect:
    """Return the dialect in which Spring's applications, the other writers of dead letter topics, say why."""
    return SPRING
