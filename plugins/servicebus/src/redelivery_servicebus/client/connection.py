"""Clients of the SDK for an address and options, and links over them.

The SDK's own retries are off, so that an attempt is one request.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final, TypeVar

from azure.core.exceptions import AzureError
from azure.core.pipeline.transport import RequestsTransport
from azure.servicebus import (
    NEXT_AVAILABLE_SESSION,
    ServiceBusClient,
    ServiceBusReceiveMode,
    ServiceBusReceiver,
    ServiceBusSender,
    ServiceBusSubQueue,
    TransportType,
)
from azure.servicebus.management import ServiceBusAdministrationClient

from redelivery.codes import Code
from redelivery.errors import Fatal
from redelivery.kit.errors import guard_loggers
from redelivery_servicebus.address import SUB_QUEUE, Address
from redelivery_servicebus.client.links import Link, SessionLink
from redelivery_servicebus.client.private import keeping_payloads
from redelivery_servicebus.errors import LISTEN, SEND
from redelivery_servicebus.options import Settings

_Client = TypeVar("_Client", ServiceBusClient, ServiceBusAdministrationClient)

#: Packages that log requests, frames and their headers at DEBUG.
_LOGGING: Final = ("azure", "msal", "requests", "urllib3", "websocket")
_TRANSPORTS: Final = {"amqp": TransportType.Amqp, "websockets": TransportType.AmqpOverWebsocket}


class Namespace:
    """The client of one role, created when it is first needed, and its links to queues."""

    def __init__(self, address: Address, settings: Settings) -> None:
        self._address = address
        self._settings = settings
        self._created: ServiceBusClient | None = None

    def sender(self, queue: str, *, own_target: bool = True) -> Link[ServiceBusSender]:
        """Return a link that sends to a queue or topic; `own_target` as in `Link`."""
        doing, patience = f"sending to queue {queue!r}", self._settings.operation_timeout
        return Link(lambda: self._client().get_queue_sender(queue), doing, SEND, patience, own_target=own_target)

    def receiver(self, queue: str, doing: str, *, sub: bool = False, delete: bool = False) -> Link[ServiceBusReceiver]:
        """Return a link that receives from a queue.

        Args:
            queue: its name.
            doing: what the link is for: "receiving from".
            sub: receive from its dead-letter sub-queue instead.
            delete: delete messages when they are received, instead of locking them.
        """
        made: dict[str, Any] = {
            "sub_queue": ServiceBusSubQueue.DEAD_LETTER if sub else None,
            "receive_mode": ServiceBusReceiveMode.RECEIVE_AND_DELETE if delete else ServiceBusReceiveMode.PEEK_LOCK,
            "prefetch_count": 0,
        }
        doing = f"{doing} queue {queue + (SUB_QUEUE if sub else '')!r}"
        patience = self._settings.operation_timeout

        def make() -> ServiceBusReceiver:
            return keeping_payloads(self._client().get_queue_receiver(queue, **made))

        return Link(make, doing, LISTEN, patience)

    def session(self, queue: str, wait: float) -> SessionLink:
        """Return a link that receives from the next session of a queue that is free and has messages.

        Args:
            queue: its name.
            wait: seconds that Service Bus waits for one before it says that there is none.
        """

        def make() -> ServiceBusReceiver:
            made = self._client().get_queue_receiver(
                queue, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=wait, prefetch_count=0
            )
            return keeping_payloads(made)

        return SessionLink(
            make, f"receiving from a session of queue {queue!r}", LISTEN, self._settings.operation_timeout
        )

    def _client(self) -> ServiceBusClient:
        if self._created is None:
            timeout = self._settings.operation_timeout
            self._created = _create(
                ServiceBusClient,
                self._address,
                self._settings,
                try_timeout=timeout,
                auth_timeout=timeout,
                timeout=timeout,
                transport_type=_TRANSPORTS[self._settings.transport_type],
                socket_timeout=self._settings.socket_timeout,
            )
        return self._created


def admin_client(address: Address, settings: Settings) -> ServiceBusAdministrationClient:
    """Return a client of the administration endpoint, without I/O.

    Raises:
        BrokerError: no credentials.
    """
    more: dict[str, Any] = dict.fromkeys(("connection_timeout", "read_timeout"), settings.operation_timeout)
    if settings.admin_port is not None:
        address = replace(address, namespace=f"{address.host}:{settings.admin_port}")
        more["transport"] = _WithoutTLS(**more)
    return _create(ServiceBusAdministrationClient, address, settings, **more)


class _WithoutTLS(RequestsTransport):  # type: ignore[misc] # azure-core loads it lazily, so its type is not known
    """Sends requests to the emulator, which has no TLS: the SDK writes https into every URL."""

    def send(self, request: Any, **more: Any) -> Any:
        request.url = request.url.replace("https:", "http:", 1)
        return super().send(request, **more)


def _create(kind: type[_Client], address: Address, settings: Settings, **more: Any) -> _Client:
    guard_loggers(*_LOGGING)
    if settings.connection_verify is not None:
        more["connection_verify"] = settings.connection_verify
    login = settings.login
    if login is not None:
        return kind.from_connection_string(login.connection_string(address.namespace), retry_total=0, **more)
    return kind(address.namespace, _credential(address, settings), retry_total=0, **more)


def _credential(address: Address, settings: Settings) -> Any:
    if settings.credential is None:
        why = "no credentials; set servicebus.connection_string, sas_key and its name, or credential to default"
        raise Fatal(f"servicebus: {address.namespace}: {why}", code=Code.NOT_AUTHENTICATED)
    try:
        from azure.identity import DefaultAzureCredential  # type: ignore[import-untyped,import-not-found,unused-ignore] # noqa: PLC0415 - an extra
    except ImportError as error:
        why = "servicebus.credential=default needs azure-identity: pip install 'redelivery-servicebus[azure]'"
        raise Fatal(f"servicebus: {why}", code=Code.NOT_AUTHENTICATED) from error
    try:
        return DefaultAzureCredential()
    except (AzureError, ValueError) as error:
        why = f"no Azure credential: {type(error).__name__}"
        raise Fatal(f"servicebus: {why}", code=Code.NOT_AUTHENTICATED) from error
