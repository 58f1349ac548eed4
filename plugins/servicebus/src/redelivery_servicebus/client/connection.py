"""Clients of the SDK for an address and options. The SDK's own retries are off, so that an attempt is one request."""

from __future__ import annotations

from typing import Any, Final

from azure.core.exceptions import AzureError
from azure.servicebus import ServiceBusClient, TransportType
from azure.servicebus.management import ServiceBusAdministrationClient

from redelivery.base.secrets import guard_loggers
from redelivery.errors import Fatal
from redelivery_servicebus.address import Address
from redelivery_servicebus.options import Settings

#: Packages that log requests, frames and their headers at DEBUG.
_LOGGING: Final = ("azure", "msal", "requests", "urllib3", "websocket")
_TRANSPORTS: Final = {"amqp": TransportType.Amqp, "websockets": TransportType.AmqpOverWebsocket}


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
    login = settings.login
    if login is not None:
        return ServiceBusClient.from_connection_string(login.connection_string(address.namespace), **more)
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
    login = settings.login
    if login is not None:
        return ServiceBusAdministrationClient.from_connection_string(login.connection_string(address.namespace), **more)
    return ServiceBusAdministrationClient(address.namespace, _credential(address, settings), **more)


def _credential(address: Address, settings: Settings) -> Any:
    if settings.credential is None:
        text = (
            "there are no credentials; set servicebus.connection_string, sas_key and its name, or credential to default"
        )
        raise Fatal(f"servicebus: {address.namespace}: {text}", native_code="NO_CREDENTIALS")
    try:
        from azure.identity import DefaultAzureCredential  # type: ignore[import-untyped,import-not-found,unused-ignore] # noqa: PLC0415 - an extra
    except ImportError as error:
        text = "servicebus.credential=default needs azure-identity: pip install 'redelivery-servicebus[azure]'"
        raise Fatal(f"servicebus: {text}", native_code="NO_IDENTITY") from error
    try:
        return DefaultAzureCredential()
    except (AzureError, ValueError) as error:
        raise Fatal(f"servicebus: no Azure credential: {type(error).__name__}", native_code="NO_CREDENTIALS") from error
