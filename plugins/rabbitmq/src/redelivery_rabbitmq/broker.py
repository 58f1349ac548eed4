"""`RabbitmqBroker`: one queue or exchange, and the roles that it makes. Imported when a URL is opened."""

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
from redelivery.contract.spec import Ref
from redelivery_rabbitmq import CAPABILITIES, IN_A_STREAM
from redelivery_rabbitmq.address import DEAD_LETTERS, EXCHANGE, Address
from redelivery_rabbitmq.admin import RabbitmqAdmin
from redelivery_rabbitmq.client.parameters import insecure
from redelivery_rabbitmq.client.stream_letters import StreamDeadLetters
from redelivery_rabbitmq.dead_letters import RabbitmqDeadLetters
from redelivery_rabbitmq.options import Settings, settings_of
from redelivery_rabbitmq.receiver import RabbitmqReceiver
from redelivery_rabbitmq.sender import RabbitmqSender


class RabbitmqBroker(Broker):
    """One queue, or one exchange, of one virtual host."""

    name = "rabbitmq"

    def __init__(self, address: Address, settings: Settings) -> None:
        self.address = address
        self.settings = settings
        self.canonical_url = replace(address, username=None, password=None, parameters={}, binding=None).url
        self.destination_name = address.queue or address.exchange or None
        self.hosts = (address.host,)
        self.insecure = insecure(address, settings)
        limits = replace(CAPABILITIES.limits, message_bytes=settings.message_bytes)
        self.capabilities = replace(CAPABILITIES, limits=limits, cloudevents_prefix=settings.cloudevents_prefix)
        if settings.delays == "native":
            self.capabilities = replace(self.capabilities, delay=Support.NATIVE)
        if settings.dead_letters == "stream":
            self.capabilities = replace(self.capabilities, **IN_A_STREAM)
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
        # Looked at directly, any other queue is one, unless its own URL says that it is a stream.
        named = "dead_letters" in self.address.parameters or DEAD_LETTERS.is_dead_letters(self.address.queue)
        if self.settings.dead_letters == "stream" and (named or not direct):
            return StreamDeadLetters(self.address, self.settings, direct=direct)
        return RabbitmqDeadLetters(self.address, self.settings, direct=direct)


def connect(url: str, options: Mapping[str, str]) -> Broker:
    """Return the broker of a URL with this plugin's options. No I/O."""
    address = Address.parse(url)
    return RabbitmqBroker(address, settings_of(options, address.parameters))
