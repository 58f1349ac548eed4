"""Letters and receiving on RabbitMQ, against loops by hand over pika: `python benchmarks/letters_rabbitmq.py`."""

from __future__ import annotations

import atexit
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import pika
from letters_queues import WORKERS, Bench, main

from redelivery_conformance.harness import start
from redelivery_rabbitmq.testing import RabbitmqHarness, RabbitmqRuntime

ROWS = 20_000
_WINDOW = 1_000
#: Seconds: while it waits, pika's blocking connection does not return for a confirm.
_POLL = 0.002
_PERSISTENT = pika.BasicProperties(delivery_mode=2)  # type: ignore[no-untyped-call]


class RabbitmqBench(Bench):
    """RabbitMQ's quorum queues."""

    def __init__(self, runtime: RabbitmqRuntime) -> None:
        self._runtime = runtime
        self.options = {}
        self._parameters = runtime.cluster.parameters

    def queue(self, name: str) -> str:
        connection = self._connect()
        connection.channel().queue_declare(name, durable=True, arguments={"x-queue-type": "quorum"})
        connection.close()
        return name

    def url(self, queue: str) -> str:
        return self._runtime.at(self._parameters.port, queue)

    def receive(self, queue: str, rows: int) -> int:
        return self._consume(queue, rows)

    def look(self, queue: str, rows: int) -> int:
        """Consume all, and let the connection's end give them back."""
        return self._consume(queue, rows, acknowledges=False)

    def move(self, queue: str, to: str, rows: int) -> int:
        """Publish a window, wait for its confirms, and acknowledge it."""
        connection = self._connect()
        channel = connection.channel()
        beneath = channel._impl  # noqa: SLF001 - pika's blocking calls wait for each confirm; this is what is under them
        confirmed, sent = [0], 0
        ready: list[object] = []
        beneath.confirm_delivery(lambda frame: confirmed.append(frame.method.delivery_tag), ready.append)
        while not ready:
            connection.process_data_events(_POLL)

        def forward(bodies: list[bytes]) -> None:
            nonlocal sent
            for body in bodies:
                beneath.basic_publish("", to, body, _PERSISTENT, mandatory=True)
            sent += len(bodies)
            while max(confirmed) < sent:
                connection.process_data_events(_POLL)
            confirmed[:] = [max(confirmed)]

        try:
            return self._consume(queue, rows, forward=forward)
        finally:
            connection.close()

    def _consume(self, queue: str, rows: int, *, acknowledges: bool = True, forward: Any = None) -> int:
        connection = self._connect()
        channel = connection.channel()
        channel.basic_qos(prefetch_count=_WINDOW if acknowledges else 0)
        seen: list[bytes] = []
        tags = {"last": 0, "acked": 0}

        def settle() -> None:
            if forward is not None:
                forward(seen[tags["acked"] : tags["last"]])
            channel.basic_ack(tags["last"], multiple=True)
            tags["acked"] = tags["last"]

        def receive(method: Any, body: bytes) -> None:
            seen.append(body)
            tags["last"] = method.delivery_tag
            if acknowledges and tags["last"] - tags["acked"] >= _WINDOW // WORKERS:
                settle()

        channel.basic_consume(queue, partial(_received, receive))
        while len(seen) < rows:
            connection.process_data_events(1)
        if acknowledges:
            settle()
        connection.close()
        return len(seen)

    def _connect(self) -> Any:
        return pika.BlockingConnection(self._parameters)


def _received(receive: Any, _channel: Any, method: Any, _properties: Any, body: bytes) -> None:
    receive(method, body)


if __name__ == "__main__":
    found = start(RabbitmqHarness(), None, {}, Path(tempfile.mkdtemp()))
    if not isinstance(found, RabbitmqRuntime):
        raise SystemExit(f"no RabbitMQ: {found}")
    atexit.register(found.close)
    sys.exit(main(RabbitmqBench(found), ROWS))
