"""The Service Bus plugin: its capabilities, its broker and its hook."""

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
from redelivery.kit.address import is_local
from redelivery_servicebus.address import SCHEME, Address
from redelivery_servicebus.admin import API_GROUP, KIND, ServicebusAdmin, native_sink
from redelivery_servicebus.codec import HEADER_VALUE_BYTES, HEADERS_BYTES, ID_LENGTH, RESERVE, SCHEDULED
from redelivery_servicebus.dead_letters import ServicebusDeadLetters
from redelivery_servicebus.options import Settings
from redelivery_servicebus.receiver import ServicebusReceiver
from redelivery_servicebus.sender import BATCH, ServicebusSender

_STANDARD: Final = 256 << 10

CAPABILITIES: Final = Capabilities(
    send=Support.NATIVE,
    receive=Support.NATIVE,
    provision=Support.NATIVE,
    browse=Support.NATIVE,
    remove=Support.EMULATED,  # received and completed
    purge=Support.EMULATED,
    dead_letter=Support.NATIVE,
    keys=Support.EMULATED,
    headers=Support.EMULATED,  # text natively; other bytes, and the order, in a property of ours
    ids=Support.NATIVE,
    timestamps=Support.EMULATED,
    null_value=Support.EMULATED,
    destinations=Support.NATIVE,
    deduplicate=Support.NATIVE,  # if the queue has it: see the broker
    deduplication_window=timedelta(minutes=10),
    competing_consumers=Support.NATIVE,
    subscriptions=Support.NATIVE,  # of a topic: each forwards to another queue
    settle_any_order=Support.NATIVE,
    attempts=Support.NATIVE,
    delay=Support.EMULATED,  # a scheduled copy is sent and confirmed, then the message is completed
    terminate=Support.NATIVE,
    reason=Support.NATIVE,
    extend=Support.NATIVE,
    leases_as_asked=False,
    ref_kinds=("Queue", f"{KIND}.{API_GROUP}"),
    expiry=Support.NATIVE,
    delivery_limit=Support.NATIVE,
    context_dialect="json",
    cloudevents_prefix="cloudEvents_",
    columns={SCHEDULED: int},
    routes=frozenset({SCHEDULED}),  # a letter is never scheduled
    destination_column="queue",
    limits=Limits(
        message_bytes=_STANDARD - RESERVE,
        batch_messages=BATCH,
        batch_bytes=_STANDARD,
        headers_bytes=HEADERS_BYTES,
        header_value_bytes=HEADER_VALUE_BYTES,
        id_bytes=ID_LENGTH,
    ),
)


class ServicebusBroker(Broker):
    """One queue, a topic, or a subscription of one."""

    name = "servicebus"

    def __init__(self, address: Address, settings: Settings) -> None:
        self.address = address
        self.settings = settings
        self.canonical_url = address.url
        self.hosts = (address.host,)
        login = settings.login
        if login is not None and login.emulator and not is_local(address.host):
            self.insecure = (f"UseDevelopmentEmulator sends credentials to {address.host} over plain text; drop it",)
        has = settings.duplicate_detection
        self.capabilities = replace(
            CAPABILITIES,
            deduplicate=Support.NATIVE if has else Support.NONE,
            deduplication_window=timedelta(seconds=settings.duplicate_detection_window) if has else None,
            cloudevents_prefix=settings.cloudevents_prefix,
            limits=replace(CAPABILITIES.limits, message_bytes=settings.max_message_bytes - RESERVE),
        )

    def sender(self) -> Sender:
        return ServicebusSender(self.address, self.settings)

    def native_sink(self) -> str:
        return native_sink(self.address, self.settings)

    def sibling(self, name: str) -> str:
        return self.address.sibling(name).url

    def subscription(self, name: str) -> str:
        return self.address.subscription(name).url

    def receiver(self, *, lease: timedelta = timedelta(seconds=30)) -> Receiver:  # noqa: ARG002 - a lock's length is its queue's
        return ServicebusReceiver(self.address, self.settings).open()

    def admin(self) -> Admin:
        return ServicebusAdmin(self.address, self.settings)

    def dead_letters(self, *, direct: bool = False) -> DeadLetters:
        return ServicebusDeadLetters(self.address, self.settings, direct=direct)


def connect(url: str, options: Mapping[str, str]) -> Broker:
    """Return a broker for a URL and this plugin's options, without I/O."""
    address, settings = Address.parse(url), Settings.parse(options)
    settings.check(address)
    return ServicebusBroker(address, settings)


@hookimpl
def redelivery_plugin() -> BrokerPlugin:
    """Return the plugin."""
    return BrokerPlugin(
        name="servicebus",
        schemes=(SCHEME,),
        version=version("redelivery-servicebus"),
        capabilities=CAPABILITIES,
        connect=connect,
        options=Settings.help(),
    )
