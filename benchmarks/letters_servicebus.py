"""Letters and receiving on Service Bus's stand-in, against loops by hand: `python benchmarks/letters_servicebus.py`.

The stand-in is not Azure, and has no network latency: only ratios matter.
"""

from __future__ import annotations

import sys
from typing import Any

from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.management import ServiceBusAdministrationClient
from letters_queues import Bench, main
from ways_servicebus import _options, _server, _url

ROWS = 2_000
_WINDOW = 1_000
_PAGE = 250
#: Bytes of a batch: the SDK counts a few less than it sends, so its own limit is too much.
_BYTES = 262_000


class ServicebusBench(Bench):
    """The stand-in, in its own process."""

    def __init__(self) -> None:
        self.options = _options()
        text, certificate = _server()
        self._made: dict[str, Any] = {"conn_str": text, "connection_verify": certificate}

    def queue(self, name: str) -> str:
        with ServiceBusAdministrationClient.from_connection_string(**self._made) as admin:
            admin.create_queue(name, lock_duration="PT5M")
        return name

    def url(self, queue: str) -> str:
        return _url(queue)

    def receive(self, queue: str, rows: int) -> int:
        return self._each(queue, rows, lambda _: None)

    def look(self, queue: str, rows: int) -> int:
        with self._client() as client, client.get_queue_receiver(queue) as receiver:
            seen = 0
            first = 1
            while seen < rows and (page := receiver.peek_messages(_PAGE, sequence_number=first)):
                seen += len([b"".join(each.body) for each in page])
                first = (page[-1].sequence_number or 0) + 1
            return seen

    def move(self, queue: str, to: str, rows: int) -> int:
        with self._client() as client, client.get_queue_sender(to) as sender:

            def forward(page: list[Any]) -> None:
                batch = sender.create_message_batch(_BYTES)
                for each in page:
                    message = ServiceBusMessage(b"".join(each.body), message_id=each.message_id)
                    try:
                        batch.add_message(message)
                    except ValueError:  # it is full
                        sender.send_messages(batch)
                        batch = sender.create_message_batch(_BYTES)
                        batch.add_message(message)
                sender.send_messages(batch)

            return self._each(queue, rows, forward)

    def _each(self, queue: str, rows: int, work: Any) -> int:
        with self._client() as client, client.get_queue_receiver(queue) as receiver:
            seen = 0
            while seen < rows:
                page = receiver.receive_messages(_WINDOW, max_wait_time=5)
                work(page)
                for each in page:
                    receiver.complete_message(each)
                seen += len(page)
            return seen

    def _client(self) -> Any:
        return ServiceBusClient.from_connection_string(**self._made, retry_total=0)


if __name__ == "__main__":
    sys.exit(main(ServicebusBench(), ROWS))
