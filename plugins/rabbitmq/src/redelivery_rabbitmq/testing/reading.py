"""Read the messages in a queue with pika alone, independently of the plugin's code.

AMQP cannot read without taking. So messages are taken, and returned by closing the channel: that keeps their order, but
counts as a delivery.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import pika
from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection

from redelivery.contract.message import Message
from redelivery_conformance.harness import CannotShow

_KEY: Final = "x-redelivery-key"
_NULL: Final = "x-redelivery-null"
_ORDER: Final = "x-redelivery-order"
_STAMP: Final = "timestamp_in_ms"
_OFFSET: Final = "x-stream-offset"
_DIFFERS: Final = 406
#: Seconds without a message, at the end of a stream.
_QUIET: Final = 0.3
#: Headers that the broker adds.
BROKERS: Final = (_OFFSET, "x-death", "x-first-death-", "x-last-death-", "x-delivery-count", "x-acquired-count")
_NONE: Final = 404
#: Seconds to wait for the broker's first byte.
_GREETING: Final = 5.0


class Cluster:
    """A running broker, seen by an independent client. Each call opens a connection."""

    def __init__(self, parameters: pika.ConnectionParameters) -> None:
        self.parameters = parameters

    def connect(self) -> BlockingConnection:
        """A new connection."""
        return pika.BlockingConnection(self.parameters)

    def greets(self) -> bool:
        """Whether the server speaks AMQP. Asked without pika, which leaks its socket if a starting broker resets it."""
        address = (self.parameters.host, self.parameters.port)
        with socket.create_connection(address, timeout=_GREETING) as there:
            there.sendall(b"AMQP\0\0\x09\x01")
            return bool(there.recv(1))

    def version(self) -> str:
        """Return product and version."""
        with self.connect() as connection:
            told: Any = connection._impl.server_properties  # noqa: SLF001 - pika has no public call
        return f"{told.get('product', 'AMQP')} {told.get('version', '')}"

    def version_number(self) -> tuple[int, ...]:
        """Return the version's first two numbers."""
        return tuple(int(part) for part in self.version().rsplit(" ", 1)[1].split(".")[:2])

    def count(self, queue: str) -> int | None:
        """Return the number of messages that wait in a queue; None if it does not exist."""
        try:
            with self.connect() as connection:
                return int(connection.channel().queue_declare(queue, passive=True).method.message_count)
        except pika.exceptions.ChannelClosedByBroker as error:
            if error.reply_code != _NONE:
                raise
            return None

    def make(self, queue: str, arguments: Mapping[str, Any]) -> None:
        """Create a durable queue, and delete an existing one of this name."""
        with self.connect() as connection, connection.channel() as channel:
            channel.queue_delete(queue)
            channel.queue_declare(queue, durable=True, arguments=dict(arguments))

    def remove(self, *queues: str) -> None:
        """Delete queues."""
        with self.connect() as connection, connection.channel() as channel:
            for queue in queues:
                channel.queue_delete(queue)

    def make_exchange(self, name: str, kind: str) -> None:
        """Create a durable exchange."""
        with self.connect() as connection, connection.channel() as channel:
            channel.exchange_declare(name, kind, durable=True)

    def remove_exchanges(self, *names: str) -> None:
        """Delete exchanges."""
        with self.connect() as connection, connection.channel() as channel:
            for name in names:
                channel.exchange_delete(name)

    def put(self, queue: str, body: bytes, properties: pika.BasicProperties) -> None:
        """Publish a message to a queue."""
        with self.connect() as connection, connection.channel() as channel:
            channel.confirm_delivery()
            channel.basic_publish("", queue, body, properties, mandatory=True)

    def foreign(self, queue: str, put: Mapping[str, Any] | None = None, *, reject: bool = False) -> list[Any]:
        """Write a message with `foreign.py`, or read those of a queue. Raises CannotShow."""
        there = self.parameters
        if there.ssl_options is not None or not isinstance(there.credentials, pika.PlainCredentials):
            raise CannotShow("another application's message: its client logs in by name and password, without TLS")
        login = f"{quote(str(there.credentials.username), safe='')}:{quote(str(there.credentials.password), safe='')}"
        url = f"amqp://{login}@{there.host}:{there.port}/{quote(str(there.virtual_host), safe='')}"
        asked = json.dumps({"url": url, "queue": queue, "put": put, "reject": reject})
        program = [sys.executable, str(Path(__file__).with_name("foreign.py"))]
        done = subprocess.run(program, input=asked, capture_output=True, text=True, timeout=60.0, check=False)  # noqa: S603
        if done.returncode:
            raise RuntimeError(f"the client of another application failed: {done.stderr}")
        found: list[Any] = json.loads(done.stdout)
        return found

    def messages(self, queue: str) -> list[Message]:
        """Return the messages that wait in a queue, in its order, and leave them there."""
        left = self.count(queue)
        found: list[Message] = []
        if left is not None and self._is_stream(queue):
            return self._of_stream(queue)
        if not left:
            return found
        with self.connect() as connection, connection.channel() as channel:
            self._take(channel, queue, left, found)
        self._back(queue, left)
        return found

    def _is_stream(self, queue: str) -> bool:
        """Whether a queue is a stream: declared as one, it is not refused."""
        try:
            with self.connect() as connection:
                connection.channel().queue_declare(queue, durable=True, arguments={"x-queue-type": "stream"})
        except pika.exceptions.ChannelClosedByBroker as error:
            if error.reply_code != _DIFFERS:
                raise
            return False
        return True

    def _of_stream(self, stream: str) -> list[Message]:
        """Return what a stream holds, until nothing comes for a while: its count of messages lags behind."""
        found: list[Message] = []
        with self.connect() as connection, connection.channel() as channel:
            channel.basic_qos(prefetch_count=100)
            for method, properties, body in channel.consume(
                stream, arguments={_OFFSET: "first"}, inactivity_timeout=_QUIET
            ):
                if method is None or properties is None or body is None:
                    break
                found.append(_message(properties, body))
                channel.basic_ack(method.delivery_tag)
        return found

    @staticmethod
    def _take(channel: BlockingChannel, queue: str, left: int, found: list[Message]) -> None:
        # Take only the messages that exist now: one that arrives while this runs is not touched.
        channel.basic_qos(prefetch_count=min(left, 0xFFFF))
        for _, properties, body in channel.consume(queue, inactivity_timeout=5.0):
            if properties is None or body is None:
                break
            found.append(_message(properties, body))
            if len(found) == left:
                break

    def _back(self, queue: str, count: int) -> None:
        """Wait until the queue counts the returned messages again."""
        for _ in range(100):
            if (self.count(queue) or 0) >= count:
                return


def _message(properties: pika.BasicProperties, body: bytes) -> Message:
    headers: dict[Any, Any] = {
        name: value for name, value in (properties.headers or {}).items() if not str(name).startswith(BROKERS)
    }
    key = headers.pop(_KEY, None)
    is_null = headers.pop(_NULL, 0) is None
    stamp = headers.pop(_STAMP) if isinstance(headers.get(_STAMP), int) else None
    order = headers.pop(_ORDER, None)
    if order is not None:
        names = sorted(headers, key=str.encode)
        headers = {names[int(place)]: headers[names[int(place)]] for place in order.split(",")}
    second = properties.timestamp
    return Message(
        value=None if is_null else body,
        key=key.encode() if isinstance(key, str) else key,
        headers=tuple((str(name), _bytes(value)) for name, value in headers.items()),
        id=properties.message_id,
        timestamp_ms=stamp if stamp is not None else None if second is None else 1000 * int(second),
    )


def _bytes(value: Any) -> bytes | None:
    return value if value is None or isinstance(value, bytes) else str(value).encode()
