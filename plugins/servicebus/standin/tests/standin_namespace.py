"""A stand-in with a client of the real SDK, for tests."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from azure.servicebus import (
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusReceivedMessage,
    ServiceBusReceiver,
    ServiceBusSender,
    ServiceBusSubQueue,
)
from azure.servicebus.exceptions import (
    ServiceBusError,
)

from servicebus_standin.standin import Seen, StandIn

DEAD = "/$DeadLetterQueue"
WAIT = 10.0

_numbers = itertools.count(1)


class Namespace:
    """A stand-in and one client of it."""

    def __init__(self) -> None:
        self.server = StandIn().start()
        self.client = self.connect()

    def connect(self, connection_string: str | None = None) -> ServiceBusClient:
        return ServiceBusClient.from_connection_string(
            connection_string or self.server.connection_string, retry_total=0
        )

    def queue(self, **settings: Any) -> str:
        name = f"Queue-{next(_numbers)}"
        self.server.create_queue(name, **settings)
        return name

    def sender(self, queue: str) -> ServiceBusSender:
        return self.client.get_queue_sender(queue)

    def receiver(self, queue: str, **options: Any) -> ServiceBusReceiver:
        return self.client.get_queue_receiver(queue, **options)

    def dead(self, queue: str) -> ServiceBusReceiver:
        return self.client.get_queue_receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER)

    def put(self, queue: str, *bodies: bytes, **fields: Any) -> None:
        with self.sender(queue) as sender:
            for body in bodies:
                sender.send_messages(ServiceBusMessage(body, **fields))

    def seen(self, queue: str) -> list[Seen]:
        return self.server.messages(queue)

    def bodies(self, queue: str) -> list[bytes | None]:
        return [each.body for each in self.seen(queue)]


def body(message: ServiceBusReceivedMessage) -> bytes:
    return b"".join(message.body)


def one(receiver: ServiceBusReceiver) -> ServiceBusReceivedMessage:
    (message,) = receiver.receive_messages(1, max_wait_time=WAIT)
    return message


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@contextmanager
def refused(error: type[ServiceBusError], text: str = "") -> Iterator[None]:
    with pytest.raises(error, match=text or None) as raised:
        yield
    assert type(raised.value) is error
