"""The client options, and the clients that they make. The SDK's own retries are off, so that an attempt is an attempt.

This file must not send or receive a message, nor show a secret.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from azure.core.exceptions import AzureError
from azure.servicebus import ServiceBusClient, TransportType
from azure.servicebus.management import ServiceBusAdministrationClient

from redelivery.base.secrets import guard_loggers, remember
from redelivery.base.urls import unknown
from redelivery.errors import ConfigurationError, Fatal
from redelivery_servicebus.address import Address

OPTIONS: Final[Mapping[str, str]] = {
    "cloudevents_prefix": "prefix of CloudEvents properties: cloudEvents_ (the default) or cloudEvents:",
    "connection_string": "connection string of the namespace, or of the queue, as a reference; the URL's host counts",
    "connection_verify": "file of the certificates to trust; by default certifi's",
    "credential": "default: azure-identity's DefaultAzureCredential (the extra azure)",
    "duplicate_detection": "the queue has duplicate detection: true or false (false); provisioning makes it so",
    "duplicate_detection_window": "seconds for which a provisioned queue remembers ids (600)",
    "lock_duration": "seconds that a provisioned queue locks a message for a receiver (60)",
    "max_message_bytes": "the largest message that the queue takes (262144, that of the Standard tier)",
    "message_ttl": "seconds after which a provisioned queue dead-letters a message (never)",
    "operation_timeout": "seconds for one operation, opening included (10)",
    "sas_key": "key of sas_key_name, as a reference",
    "sas_key_name": "name of a shared access policy",
    "sas_token": "a shared access signature, as a reference",
    "socket_timeout": "seconds that the socket waits (the SDK's own default)",
    "transport_type": "amqp (the default) or websockets, which needs the package websocket-client",
}

#: Packages that log requests, frames and their headers at DEBUG.
_LOGGING: Final = ("azure", "msal", "requests", "urllib3", "websocket")
_TRANSPORTS: Final = {"amqp": TransportType.Amqp, "websockets": TransportType.AmqpOverWebsocket}
_PREFIXES: Final = ("cloudEvents_", "cloudEvents:")
#: Options that are numbers: of which kind, and from where to where.
_NUMBERS: Final[Mapping[str, tuple[type, float, float]]] = {
    "duplicate_detection_window": (int, 20, 604_800),
    "lock_duration": (int, 1, 300),
    "max_message_bytes": (int, 1 << 16, 100 << 20),
    "message_ttl": (int, 1, 1 << 31),
    "operation_timeout": (float, 0.1, 25),
    "socket_timeout": (float, 0.01, 60),
}
_KNOWN_PARTS: Final = frozenset({
    "endpoint", "hostname", "sharedaccesskeyname", "sharedaccesskey", "sharedaccesssignature", "entitypath",
    "usedevelopmentemulator",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Settings:
    """The client options, read. Secrets are left out of its repr."""

    sas_key_name: str | None = None
    sas_key: str | None = field(default=None, repr=False)
    sas_token: str | None = field(default=None, repr=False)
    entity: str | None = None
    emulator: bool = False
    credential: str | None = None
    connection_verify: str | None = None
    transport_type: str = "amqp"
    socket_timeout: float | None = None
    operation_timeout: float = 10.0
    max_message_bytes: int = 262_144
    cloudevents_prefix: str = _PREFIXES[0]
    duplicate_detection: bool = False
    duplicate_detection_window: int = 600
    lock_duration: int | None = None
    message_ttl: int | None = None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> Settings:
        """Read the options.

        Raises:
            UnknownOption, ConfigurationError: names the option and what it takes; never shows a secret.
        """
        for name, value in options.items():
            if name not in OPTIONS:
                raise unknown("option", f"servicebus.{name}", [f"servicebus.{each}" for each in OPTIONS])
            if not value:
                raise ConfigurationError(f"servicebus.{name} is empty; leave it out, or give it a value")
        given: dict[str, Any] = dict(options)
        for name, (kind, least, most) in _NUMBERS.items():
            if name in options:
                given[name] = kind(_number(options, name, least, most))
        _choice(options, "transport_type", _TRANSPORTS)
        _choice(options, "cloudevents_prefix", _PREFIXES)
        _choice(options, "credential", ("default",))
        _choice(options, "duplicate_detection", ("true", "false"))
        if "duplicate_detection" in options:
            given["duplicate_detection"] = options["duplicate_detection"] == "true"
        ways = [name for name in ("connection_string", "sas_key", "sas_token", "credential") if name in options]
        if len(ways) > 1:
            raise ConfigurationError(f"servicebus: give one of {', '.join(ways)}: each says who we are")
        if ("sas_key_name" in options) != ("sas_key" in options):
            raise ConfigurationError("servicebus.sas_key_name and servicebus.sas_key belong together")
        if "connection_string" in given:
            given |= _parts(given.pop("connection_string"))
        return cls(**given)

    def check(self, address: Address) -> None:
        """Whether this address can be reached with these options.

        Raises:
            ConfigurationError: a connection string of another queue, a port where none can be.
        """
        if self.entity is not None and self.entity.lower() != address.queue.lower():
            text = f"the connection string is that of {self.entity!r} alone; give one of the namespace"
            raise ConfigurationError(f"servicebus: {address.queue!r} cannot be reached: {text}")
        if ":" in address.namespace and not self.emulator and (self.sas_key or self.sas_token or self.credential):
            text = "a port is the emulator's, whose connection string says UseDevelopmentEmulator=true"
            raise ConfigurationError(f"servicebus: {address.namespace!r} cannot be reached: {text}")

    def connection_string(self, address: Address) -> str | None:
        """The SDK's own form of who we are; None where an Azure credential says it."""
        if self.sas_key is not None:
            who = f"SharedAccessKeyName={self.sas_key_name};SharedAccessKey={self.sas_key}"
        elif self.sas_token is not None:
            who = f"SharedAccessSignature={self.sas_token}"
        else:
            return None
        return f"Endpoint=sb://{address.namespace}/;{who}" + (";UseDevelopmentEmulator=true" if self.emulator else "")


def client(address: Address, settings: Settings) -> ServiceBusClient:
    """A client of the namespace. No I/O.

    Raises:
        BrokerError: no credentials.
    """
    guard_loggers(*_LOGGING)
    more: dict[str, Any] = {
        "retry_total": 0,
        "try_timeout": settings.operation_timeout,
        "auth_timeout": settings.operation_timeout,
        "timeout": settings.operation_timeout,
        "transport_type": _TRANSPORTS[settings.transport_type],
        "socket_timeout": settings.socket_timeout,
        "connection_verify": settings.connection_verify,
    }
    text = settings.connection_string(address)
    if text is not None:
        return ServiceBusClient.from_connection_string(text, **more)
    return ServiceBusClient(address.namespace, _credential(address, settings), **more)


def admin_client(address: Address, settings: Settings) -> ServiceBusAdministrationClient:
    """A client of the administration endpoint. No I/O.

    Raises:
        BrokerError: no credentials.
    """
    guard_loggers(*_LOGGING)
    more: dict[str, Any] = {
        "retry_total": 0,
        "connection_timeout": settings.operation_timeout,
        "read_timeout": settings.operation_timeout,
    }
    if settings.connection_verify is not None:
        more["connection_verify"] = settings.connection_verify
    text = settings.connection_string(address)
    if text is not None:
        return ServiceBusAdministrationClient.from_connection_string(text, **more)
    return ServiceBusAdministrationClient(address.namespace, _credential(address, settings), **more)


def _credential(address: Address, settings: Settings) -> Any:
    if settings.credential is None:
        text = (
            "there are no credentials; set servicebus.connection_string, sas_key and its name, or credential to default"
        )
        raise Fatal(f"servicebus: {address.namespace}: {text}", code="NO_CREDENTIALS")
    try:
        from azure.identity import DefaultAzureCredential  # type: ignore[import-untyped,import-not-found,unused-ignore] # noqa: PLC0415 - an extra
    except ImportError as error:
        text = "servicebus.credential=default needs azure-identity: pip install 'redelivery-servicebus[azure]'"
        raise Fatal(f"servicebus: {text}", code="NO_IDENTITY") from error
    try:
        return DefaultAzureCredential()
    except (AzureError, ValueError) as error:
        raise Fatal(f"servicebus: no Azure credential: {type(error).__name__}", code="NO_CREDENTIALS") from error


def _parts(text: str) -> dict[str, Any]:
    """What a connection string says. Its text, or any part of it, is in no error."""
    pairs = [each.partition("=") for each in text.strip().strip(";").split(";")]
    found = {name.strip().lower(): value.strip() for name, sign, value in pairs if sign}
    if len(found) < len(pairs) or not found.keys() <= _KNOWN_PARTS:
        raise _malformed("it is made of 'Name=value' parts with ';' between them, each of a known name, once")
    if not (found.get("endpoint") or found.get("hostname")):
        raise _malformed("it has no Endpoint")
    key, name, token = (found.get(each) for each in ("sharedaccesskey", "sharedaccesskeyname", "sharedaccesssignature"))
    if token and not (key or name):
        who: dict[str, Any] = {"sas_token": remember(token)}
    elif key and name and not token:
        who = {"sas_key": remember(key), "sas_key_name": name}
    else:
        raise _malformed("it needs SharedAccessKeyName and SharedAccessKey, or SharedAccessSignature alone")
    emulator = found.get("usedevelopmentemulator", "false").lower() == "true"
    return {**who, "entity": found.get("entitypath") or None, "emulator": emulator}


def _malformed(why: str) -> ConfigurationError:
    return ConfigurationError(f"servicebus.connection_string is malformed (it is not shown): {why}")


def _choice(options: Mapping[str, str], name: str, known: Any) -> None:
    if name in options and options[name] not in known:
        raise ConfigurationError(f"servicebus.{name}: {' or '.join(known)}, not {options[name]!r}")


def _number(options: Mapping[str, str], name: str, least: float, most: float) -> float:
    try:
        value = float(options[name])
    except ValueError:
        value = least - 1
    if not least <= value <= most:
        raise ConfigurationError(f"servicebus.{name}: a number from {least:g} to {most:g}, not {options[name]!r}")
    return value
