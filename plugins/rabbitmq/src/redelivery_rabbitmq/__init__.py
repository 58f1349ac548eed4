"""The RabbitMQ plugin: its capabilities, its broker and its hook."""

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
from redelivery.contract.spec import Ref
from redelivery_rabbitmq.address import SCHEMES, Address
from redelivery_rabbitmq.admin import API_GROUP, EXCHANGE, QUEUE, RabbitmqAdmin
from redelivery_rabbitmq.client.frames import SHORT_STRING
from redelivery_rabbitmq.client.parameters import insecure
from redelivery_rabbitmq.client.topology import DELAY_MAX
from redelivery_rabbitmq.codec import HEADERS_BYTES
from redelivery_rabbitmq.dead_letters import RabbitmqDeadLetters
from redelivery_rabbitmq.options import Settings, settings_of
from redelivery_rabbitmq.receiver import RabbitmqReceiver
from redelivery_rabbitmq.sender import RabbitmqSender

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
    delay=Support.NATIVE,
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
    limits=Limits(message_bytes=128 << 20, headers_bytes=HEADERS_BYTES, id_bytes=SHORT_STRING, delay_max=DELAY_MAX),
)


class RabbitmqBroker(Broker):
    """One queue, or one exchange, of one virtual host."""

    name = "rabbitmq"

    def __init__(self, address: Address, settings: Settings) -> None:
        self.address = address
        self.settings = settings
        self.canonical_url = replace(address, username=None, password=None, parameters={}, binding=None).url
        self.hosts = (address.host,)
        self.insecure = insecure(address, settings)
        limits = replace(CAPABILITIES.limits, message_bytes=settings.message_bytes)
        self.capabilities = replace(CAPABILITIES, limits=limits)
        if settings.queue_type == "classic":  # it only tells that a message was delivered before
            self.capabilities = replace(self.capabilities, attempts=Support.LOWER_BOUND, delivery_limit=Support.NONE)

    def sender(self) -> Sender:
        return RabbitmqSender(self.address, self.settings).open()

    def native_sink(self) -> str:
        return self.address.dead_letters.full_url

    def sibling(self, name: str) -> str:
        return self.address.at(name).full_url

    def subscription(self, name: str) -> str:
        return self.address.subscription(name).full_url

    def resolve(self, ref: Ref) -> str:
        url = super().resolve(ref)
        return self.address.through(ref.name).full_url if ref.kind == EXCHANGE else url

    def receiver(self, *, lease: timedelta = timedelta(seconds=30)) -> Receiver:
        self.address.needs_queue("receiving")
        return RabbitmqReceiver(self.address, self.settings, lease)

    def admin(self) -> Admin:
        self.address.needs_queue("provisioning")
        return RabbitmqAdmin(self.address, self.settings)

    def dead_letters(self, *, direct: bool = False) -> DeadLetters:
        self.address.needs_queue("a dead letter queue")
        return RabbitmqDeadLetters(self.address, self.settings, direct=direct)


def connect(url: str, options: Mapping[str, str]) -> Broker:
    """Return the broker of a URL with this plugin's options. No I/O."""
    address = Address.parse(url)
    return RabbitmqBroker(address, settings_of(options, address.parameters))


@hookimpl
def redelivery_plugin() -> BrokerPlugin:
    """Return the plugin of this distribution."""
    return BrokerPlugin(
        name="rabbitmq",
        schemes=SCHEMES,
        version=version("redelivery-rabbitmq"),
        capabilities=CAPABILITIES,
        connect=connect,
        options=Settings.help(),
    )
