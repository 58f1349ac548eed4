"""`NatsBroker`: one stream, and the roles that it makes. Imported when a URL is opened."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta

from redelivery.contract.broker import Admin, Broker, DeadLetters, Receiver, Sender
from redelivery.errors import ConfigurationError, InvalidURL
from redelivery.kit.address import is_local
from redelivery_nats import CAPABILITIES
from redelivery_nats.address import Address
from redelivery_nats.admin import NatsAdmin
from redelivery_nats.dead_letters import NatsDeadLetters
from redelivery_nats.options import Settings
from redelivery_nats.receiver import NatsReceiver
from redelivery_nats.sender import NatsSender


class NatsBroker(Broker):
    """One stream."""

    name = "nats"

    def __init__(self, address: Address, settings: Settings) -> None:
        self._address, self._settings = address, settings
        self.canonical_url = address.url
        self.destination_name = address.subject
        self.hosts = tuple(host for host, _ in address.hosts)
        limits = replace(CAPABILITIES.limits, message_bytes=settings.max_payload)
        window = timedelta(seconds=settings.duplicate_window)
        self.capabilities = replace(CAPABILITIES, limits=limits, deduplication_window=window)
        logs_in = any((settings.user, settings.token, settings.nkey_secret, settings.credentials_secret))
        far = [host for host in self.hosts if not is_local(host)]
        if logs_in and far and not settings.is_tls:
            self.insecure = (f"the login and all messages may go to {far[0]} in plain text; set nats.tls",)

    def sender(self) -> Sender:
        return NatsSender(self._address, self._settings)

    def receiver(self, *, lease: timedelta = timedelta(seconds=30)) -> Receiver:  # noqa: ARG002 - see `leases_as_asked`
        return NatsReceiver(self._address, self._settings)

    def admin(self) -> Admin:
        return NatsAdmin(self._address, self._settings)

    def dead_letters(self, *, direct: bool = False) -> DeadLetters:
        return NatsDeadLetters(self._address if direct else self._address.dead_letters, self._settings)

    def native_sink(self) -> str:
        return self._address.dead_letters.url

    def sibling(self, name: str) -> str:
        try:
            return self._address.sibling(name).checked().url
        except InvalidURL as error:
            raise ConfigurationError(str(error)) from None


def connect(url: str, options: Mapping[str, str]) -> Broker:
    """Make a broker for a URL and this plugin's options, without I/O."""
    return NatsBroker(Address.parse(url), Settings.parse(options))
