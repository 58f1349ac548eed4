"""A namespace that a connection string names: its queues and topics through the SDK's clients alone."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusSubQueue
from azure.servicebus.management import ServiceBusAdministrationClient

from redelivery_conformance.harness import CannotShow, Foreign
from redelivery_servicebus.testing import reading
from redelivery_servicebus.testing.reading import RawMessage

_DURATIONS: Final = ("lock_duration", "default_message_time_to_live")
_DEAD: Final = "/$DeadLetterQueue"


class Azure:
    """Queues of a namespace; Manage rights are needed."""

    def __init__(self, connection_string: str, verify: str | None = None) -> None:
        self._connection_string = connection_string
        self._transport: dict[str, Any] = {} if verify is None else {"connection_verify": verify}

    def _admin(self) -> ServiceBusAdministrationClient:
        return ServiceBusAdministrationClient.from_connection_string(self._connection_string, **self._transport)

    def _client(self) -> ServiceBusClient:
        return ServiceBusClient.from_connection_string(self._connection_string)

    def create_queue(self, name: str, **settings: Any) -> None:
        """Create a queue; durations in seconds."""
        with self._admin() as admin:
            admin.create_queue(name, **_timed(settings))

    def alter_queue(self, name: str, **settings: Any) -> None:
        """Change some settings."""
        with self._admin() as admin:
            queue = admin.get_queue(name)
            for each, value in _timed(settings).items():
                setattr(queue, each, value)
            admin.update_queue(queue)

    def delete_queue(self, name: str) -> None:
        """Remove it."""
        with self._admin() as admin:
            admin.delete_queue(name)

    def create_topic(self, name: str) -> None:
        """Create a topic."""
        with self._admin() as admin:
            admin.create_topic(name)

    def create_subscription(self, topic: str, name: str, **settings: Any) -> None:
        """Create a subscription of it, without filters."""
        with self._admin() as admin:
            admin.create_subscription(topic, name, **_timed(settings))

    def delete_topic(self, name: str) -> None:
        """Remove it, with its subscriptions."""
        with self._admin() as admin:
            admin.delete_topic(name)

    def foreign(self, path: str) -> Sequence[Foreign]:
        """Raises CannotShow: the SDK does not tell types."""
        raise CannotShow(f"the types of the properties of {path}: the SDK that reads them drops them")

    def client(self) -> ServiceBusClient:
        """Return a client of the plain SDK."""
        return self._client()

    def raw_messages(self, path: str) -> Sequence[RawMessage]:
        """Return the messages of a queue, by peeking."""
        sub = ServiceBusSubQueue.DEAD_LETTER if path.endswith(_DEAD) else None
        found: list[RawMessage] = []
        with self._client() as client, client.get_queue_receiver(path.removesuffix(_DEAD), sub_queue=sub) as receiver:
            first = 1
            while peeked := receiver.peek_messages(250, sequence_number=first):
                first = (peeked[-1].sequence_number or 0) + 1
                found += [RawMessage(b"".join(each.body), each.message_id, _texts(each)) for each in peeked]
        return found

    def damage(self, name: str) -> None:
        """Put a message there that the plugin cannot decode."""
        with self._client() as client, client.get_queue_sender(name) as sender:
            properties: Any = dict(reading.DAMAGED)
            sender.send_messages(ServiceBusMessage(b"damaged", application_properties=properties))


def _texts(message: Any) -> dict[str, Any]:
    properties = message.application_properties or {}
    return {_text(name): _text(value) for name, value in properties.items()}


def _text(value: Any) -> Any:
    # The SDK gives text back as its bytes.
    return value.decode() if isinstance(value, bytes) else value


def _timed(settings: dict[str, Any]) -> dict[str, Any]:
    return {
        name: timedelta(seconds=value) if name in _DURATIONS and value is not None else value
        for name, value in settings.items()
    }
