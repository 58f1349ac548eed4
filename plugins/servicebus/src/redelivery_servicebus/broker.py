"""`ServicebusBroker`: one queue, topic or subscription, and the roles that it makes. Imported when a URL is opened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from redelivery.errors import Unsupported
from redelivery.kit.address import is_local
from redelivery_servicebus import CAPABILITIES, of_sessions, of_subscription
from redelivery_servicebus.address import SUB_QUEUE, Address
from redelivery_servicebus.admin import ServicebusAdmin, native_sink
from redelivery_servicebus.client.limits import RESERVE
from redelivery_servicebus.dead_letters import ServicebusDeadLetters
from redelivery_servicebus.options import Settings
from redelivery_servicebus.receiver import ServicebusReceiver, SessionReceiver
from redelivery_servicebus.sender import ServicebusSender


class ServicebusBroker(Broker):
    """One queue, a topic, or a subscription of one."""

    name = "servicebus"

    def __init__(self, address: Address, settings: Settings) -> None:
        self.address = address
        self.settings = settings
        self.canonical_url = address.url
        self.destination_name = address.queue
        self.hosts = (address.host,)
        login = settings.login
        if login is not None and login.emulator and not is_local(address.host):
            self.insecure = (f"UseDevelopmentEmulator sends credentials to {address.host} over plain text; drop it",)
        has = settings.deduplicates
        self.capabilities = replace(
            CAPABILITIES,
            deduplicate=Support.NATIVE if has else Support.NONE,
            deduplication_window=timedelta(seconds=settings.duplicate_detection_window) if has else None,
            cloudevents_prefix=settings.cloudevents_prefix,
            limits=replace(CAPABILITIES.limits, message_bytes=settings.max_message_bytes - RESERVE),
        )
        if address.sessions:
            self.capabilities = of_sessions(self.capabilities)
        if address.owner:
            self.capabilities = of_subscription(self.capabilities)

    def sender(self) -> Sender:
        owner = self.address.owner
        if owner:
            text = f"servicebus: {self.address.queue!r} cannot be sent to, and its topic would give each of its"
            raise Unsupported(f"{text} subscriptions a copy: say where to, {self.address.at(owner).url} or a queue")
        return ServicebusSender(self.address, self.settings)

    def native_sink(self) -> str:
        return native_sink(self.address, self.settings)

    def dead_letter_places(self) -> Sequence[str]:
        own = self.address
        letters = own.dead_letters.url
        return (letters,) if own.is_dead_letters else (f"{own.at(own.queue).url}{SUB_QUEUE}", letters)

    def sibling(self, name: str) -> str:
        return self.address.sibling(name).url

    def subscription(self, name: str) -> str:
        if self.address.sessions:
            text = f"servicebus: {self.address.queue!r} is a queue with sessions, and only topics have subscriptions"
            raise Unsupported(text)
        return self.address.subscription(name).url

    def receiver(self, *, lease: timedelta = timedelta(seconds=30)) -> Receiver:  # noqa: ARG002 - a lock's length is its queue's
        if self.address.sessions:
            return SessionReceiver(self.address, self.settings).open()
        return ServicebusReceiver(self.address, self.settings).open()

    def admin(self) -> Admin:
        return ServicebusAdmin(self.address, self.settings)

    def dead_letters(self, *, direct: bool = False) -> DeadLetters:
        if direct and self.address.sessions:
            text = f"servicebus: {self.address.queue!r} requires sessions, and letters are read from queues without"
            raise Unsupported(f"{text}: its own dead letters are in {self.address.queue + SUB_QUEUE!r}")
        return ServicebusDeadLetters(self.address, self.settings, direct=direct)


def connect(url: str, options: Mapping[str, str]) -> Broker:
    """Return a broker for a URL and this plugin's options, without I/O."""
    address, settings = Address.parse(url), Settings.parse(options)
    settings.check(address)
    return ServicebusBroker(address, settings)
