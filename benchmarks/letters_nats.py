"""Letters and receiving on NATS, against loops by hand over nats-py: `python benchmarks/letters_nats.py`."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from typing import Any, Final

import nats
from letters_queues import Bench, main
from nats.js.api import ConsumerConfig
from ways_nats import server, server_url

from redelivery.contract.spec import DeliverySpec
from redelivery.registry import connect

ROWS: Final = 20_000
_PAGE: Final = 1_000
#: Stored messages that the loop asks for at once.
_AT_ONCE: Final = 256


class NatsBench(Bench):
    """The server that the plugin's harness starts, in its own process."""

    options: Any = {}  # noqa: RUF012 - the base has an attribute

    def queue(self, name: str) -> str:
        with connect(self.url(name), {}) as broker, broker.admin() as admin:
            admin.provision(DeliverySpec())
        return name

    def url(self, queue: str) -> str:
        return server().url(queue)

    def receive(self, queue: str, rows: int) -> int:
        return asyncio.run(_each(queue, rows, None))

    def look(self, queue: str, rows: int) -> int:
        async def work() -> int:
            client, seen = await nats.connect(server_url()), 0
            for first in range(1, rows + 1, _AT_ONCE):
                asked = [
                    client.request(f"$JS.API.STREAM.MSG.GET.{queue}", json.dumps({"seq": at}).encode(), 20)
                    for at in range(first, min(first + _AT_ONCE, rows + 1))
                ]
                for each in await asyncio.gather(*asked):
                    base64.b64decode(json.loads(each.data)["message"]["data"])
                    seen += 1
            await client.close()
            return seen

        return asyncio.run(work())

    def move(self, queue: str, to: str, rows: int) -> int:
        return asyncio.run(_each(queue, rows, to))


async def _each(queue: str, rows: int, to: str | None) -> int:
    client = await nats.connect(server_url())
    jetstream = client.jetstream()
    await jetstream.delete_consumer(queue, "redelivery")  # a work queue has one
    config = ConsumerConfig(max_ack_pending=10 * _PAGE, ack_wait=60)
    receiver = await jetstream.pull_subscribe(queue, "by-hand", stream=queue, config=config)
    seen = 0
    while seen < rows:
        page = await receiver.fetch(min(_PAGE, rows - seen), timeout=5)
        if to is not None:
            sent = [await jetstream.publish_async(to, each.data, wait_stall=20) for each in page]
            for future in sent:
                await future
        await asyncio.gather(*(each.ack_sync(20) for each in page))
        seen += len(page)
    await client.close()
    return seen


if __name__ == "__main__":
    sys.exit(main(NatsBench(), ROWS))
