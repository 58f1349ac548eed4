"""Fetch messages from one queue and hold them unacknowledged, for the receiver and the dead letters role.

A message is fetched by `basic.get`, or by a consumer that exists for one call. The consumer's prefetch is the number of
messages asked for, so that the broker never sends more.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator
from itertools import count, groupby
from typing import Any, Final, NamedTuple

from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection
from pika.spec import Basic, BasicProperties

from redelivery_rabbitmq.client.connection import drop
from redelivery_rabbitmq.client.pika_private import send_cancel

#: Messages that one call fetches at most: half of what a consumer of a quorum queue may hold.
_MAX_MESSAGES: Final = 1000
#: Messages in the first page, and bytes that a page has at most if its messages are as large as those before.
_PAGE: Final = 100
_PAGE_BYTES: Final = 16 << 20
#: Seconds to wait until the queue counts requeued messages again; a quorum queue took up to 0.03.
_REQUEUE_TIMEOUT: Final = 1.0
#: Seconds between two counts.
_POLL: Final = 0.002


class Delivery(NamedTuple):
    """A delivered message."""

    tag: int
    method: Basic.Deliver | Basic.GetOk
    properties: BasicProperties
    body: bytes


class Lease(NamedTuple):
    """A message, and the consumer that holds it."""

    consumer: Consumer
    delivery: Delivery


class Consumer:
    """One channel that fetches from one queue. When the channel closes, unacknowledged messages return to the queue.

    Attributes:
        unacked: delivery tags of unsettled messages, in the order of the queue.
    """

    def __init__(self, connection: BlockingConnection, queue: str) -> None:
        self.unacked: dict[int, None] = {}
        self._connection = connection
        self._queue = queue
        self._channel: BlockingChannel = connection.channel()
        self._prefetch = 0
        self._dropped = False
        self._numbers = count()
        #: The last delivery tag of each `basic.get` and each consumer.
        self._last_tags: list[int] = []

    @property
    def is_open(self) -> bool:
        """Whether the unacknowledged messages are still ours."""
        return bool(self._channel.is_open and self._connection.is_open) and not self._dropped

    def holds(self, lease: object) -> bool:
        """Whether the message of a lease is unacknowledged here."""
        return isinstance(lease, Lease) and lease.consumer is self and lease.delivery.tag in self.unacked

    def fetch(self, limit: int, wait: float) -> list[Delivery]:
        """Fetch up to `limit` messages; wait up to `wait` seconds for the first.

        If an exception interrupts it, all unacknowledged messages return to the queue.
        """
        try:
            return self._fetch(limit, wait)
        except BaseException:
            # The consumer may stay and receive messages unseen; acknowledging several would settle those too.
            if self.is_open:
                self._dropped = True
                drop(self._connection)
            raise

    def _fetch(self, limit: int, wait: float) -> list[Delivery]:
        limit = min(limit, _MAX_MESSAGES)
        del self._last_tags[: bisect_left(self._last_tags, next(iter(self.unacked), 1 << 64))]
        # A quorum queue takes back messages in the order of their consumers' names, where the name of a get begins with
        # a digit: a get that comes first keeps the order. Without a wait it is needed: a consumer's first message may
        # come late.
        fetched = self._get() if not self.unacked or wait <= 0 else []
        if len(fetched) < limit and (fetched or wait > 0):
            consumed = self._consume(limit - len(fetched), 0.0 if fetched else wait)
            self._last_tags += [each[-1].tag for each in (fetched, consumed) if each]
            fetched += consumed
        elif fetched:
            self._last_tags.append(fetched[-1].tag)
        self.unacked.update((each.tag, None) for each in fetched)
        return fetched

    def pages(self) -> Iterator[list[Delivery]]:
        """Fetch as many messages as are ready now, page by page.

        Each page takes several round trips, so the next one is larger where messages are small.
        """
        left, size = self.ready(), _PAGE
        while left > 0 and (page := self.fetch(min(size, left), 0.0)):
            left -= len(page)
            average = sum(len(each.body) for each in page) // len(page) + 1
            size = max(1, min(_MAX_MESSAGES, _PAGE_BYTES // average, 2 * size))
            yield page

    def ack(self, tags: Collection[int]) -> None:
        """Acknowledge: the broker deletes these messages."""
        multiple = 0
        left = set(tags)
        for tag in self.unacked:  # one frame acknowledges the oldest ones
            if tag not in left:
                break
            multiple = tag
        if multiple:
            self._channel.basic_ack(multiple, multiple=True)
        for tag in sorted(left):
            if tag > multiple:
                self._channel.basic_ack(tag)
        self._forget(tags)

    def reject(self, tags: Iterable[int]) -> None:
        """Requeue as failed deliveries; every version of the broker counts them."""
        for tag in tags:
            self._channel.basic_reject(tag, requeue=True)
            del self.unacked[tag]

    def release(self, tags: Collection[int]) -> None:
        """Requeue as if not delivered; versions of the broker that can do not count it."""
        if tags and len(tags) == len(self.unacked):
            ready = self.ready() + len(tags)
            self.close()  # then a quorum queue delivers them first; rejected messages go behind all others
            self.unacked.clear()
            self._channel = self._connection.channel()
            self._await_ready(ready)  # else the next consumer gets the messages behind them
            self.close()
            return
        for tag in tags:
            self._channel.basic_nack(tag, requeue=True)
        self._forget(tags)
        if tags:
            self.sync()

    def release_all(self, end: float) -> None:
        """Requeue all unacknowledged messages in their order, and wait until the queue counts them.

        Messages that are left at `end` (of `time.monotonic()`) return when the channel closes.
        """
        tags = list(self.unacked)
        ready = self.ready()
        in_time = True
        # A quorum queue requeues in order only the messages of one consumer: so one consumer after the other.
        for _, group in groupby(tags, lambda tag: bisect_left(self._last_tags, tag)):
            if time.monotonic() >= end:
                break
            of_one = list(group)
            self._channel.basic_nack(of_one[-1], multiple=True, requeue=True)
            ready += len(of_one)
            in_time = in_time and self._await_ready(ready)
        self._forget(tags)

    def sync(self) -> None:
        """Return when the broker has processed all earlier frames: it serves a channel in order."""
        self._channel.flow(active=True)

    def ready(self) -> int:
        """Return the number of ready messages: those that no consumer holds."""
        return int(self._channel.queue_declare(self._queue, passive=True).method.message_count)

    def close(self) -> None:
        """Close the channel."""
        if self.is_open:
            self._channel.close()

    def _await_ready(self, number: int) -> bool:
        """Wait until this many messages are ready. False: not in time; another consumer may be fetching them."""
        end = time.monotonic() + _REQUEUE_TIMEOUT
        while self.ready() < number:
            if time.monotonic() >= end:
                return False
            self._connection.process_data_events(_POLL)
        return True

    def _forget(self, tags: Iterable[int]) -> None:
        for tag in tags:
            self.unacked.pop(tag, None)

    def _get(self) -> list[Delivery]:
        method, properties, body = self._channel.basic_get(self._queue)
        if method is None or properties is None or body is None:
            return []
        return [Delivery(method.delivery_tag, method, properties, body)]

    def _consume(self, limit: int, wait: float) -> list[Delivery]:
        received: list[Delivery] = []

        def receive(_: Any, method: Basic.Deliver, properties: BasicProperties, body: bytes) -> None:
            received.append(Delivery(method.delivery_tag, method, properties, body))

        if limit != self._prefetch:
            self._channel.basic_qos(prefetch_count=limit)
            self._prefetch = limit
        # Each consumer has a new name: unacknowledged messages of a former one would count against its prefetch. The
        # names ascend, for the order described in `_fetch`.
        name = f"redelivery-{next(self._numbers):09}"
        self._channel.basic_consume(self._queue, receive, consumer_tag=name)
        end = time.monotonic() + wait
        while not received and (left := end - time.monotonic()) > 0 and self._channel.consumer_tags:
            self._connection.process_data_events(left)
        self._connection.process_data_events(0)
        if len(received) < limit and self._channel.consumer_tags:
            # A quorum queue puts behind all others the messages that it has sent, and that the broker's channel has not
            # passed on when it is cancelled. So ask the queue something first: its answer comes after the messages.
            self.ready()
            self.sync()
            # Then tell the broker, read what it had sent by then, and tell pika last.
            send_cancel(self._channel, name)
            self.sync()
            self._connection.process_data_events(0)
        if self._channel.consumer_tags:
            self._channel.basic_cancel(name)
        return received
