"""Fetch messages from one queue and hold them unacknowledged, for the receiver and the dead letters role.

A consumer exists for one call, and its prefetch is the number of messages asked for, so that the broker never sends
more. There is no `basic.get`: when a connection ends, a quorum queue takes back what consumers had in the order of
their names, but 4.x puts what was got behind that, and every version sorts ten gets and more wrongly.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator
from itertools import count, groupby, takewhile
from typing import Any, Final

from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection
from pika.exceptions import ConsumerCancelled

from redelivery_rabbitmq.client.connection import drop
from redelivery_rabbitmq.client.deliveries import Delivery, delivered
from redelivery_rabbitmq.client.pika_private import send_cancel

#: From this version on a quorum queue puts released messages before those that were never delivered.
RELEASED_FIRST: Final = (4, 0)
#: From this version on releasing a message does not count as a delivery; the end of its channel always does.
NACK_IS_FREE: Final = (4, 3)

#: Messages that one call fetches at most: half of what a consumer of a quorum queue may hold.
_MAX_MESSAGES: Final = 1000
#: The default priority: a stream refuses this argument. A consumer of a stream would only see messages that come later.
_NO_STREAM: Final = {"x-priority": 0}
#: Messages in the first page, and bytes that a page has at most if its messages are as large as those before.
_PAGE: Final = 100
_PAGE_BYTES: Final = 16 << 20
#: Seconds to wait until the queue counts requeued messages again; a quorum queue took up to 0.03.
_REQUEUE_TIMEOUT: Final = 1.0
#: Seconds to wait for a message that was ready; then another consumer has it.
_COMING: Final = 1.0
#: Seconds to wait for more messages: for each that has come, between two of them at most, and in all.
_PAUSE_EACH: Final = 0.0002
_PAUSE: Final = 0.01
_MOMENT: Final = 0.1
#: Commands that a broker's channel sends to a quorum queue at once. It keeps more of them back, and mixes them up.
_COMMANDS: Final = 32
#: Seconds between two counts.
_POLL: Final = 0.002


class Consumer:
    """One channel that fetches from one queue. When the channel closes, unacknowledged messages return to the queue.

    Attributes:
        name: the queue, and a number that no other consumer of this process has while this one lives.
        unacked: delivery tags of unsettled messages, in the order of the queue.
        reached_new: whether the last message was delivered for the first time.
    """

    def __init__(self, connection: BlockingConnection, queue: str) -> None:
        self.name = f"{queue} {id(self):x}"
        self.unacked: dict[int, None] = {}
        self.reached_new = False
        self._connection = connection
        self._queue = queue
        self._channel: BlockingChannel = connection.channel()
        self._prefetch = 0
        self._dropped = False
        self._numbers = count()
        #: The last delivery tag of each consumer.
        self._last_tags: list[int] = []

    @property
    def is_open(self) -> bool:
        """Whether the unacknowledged messages are still ours."""
        return bool(self._channel.is_open and self._connection.is_open) and not self._dropped

    def holds(self, lease: object) -> bool:
        """Whether the message of a lease is unacknowledged here."""
        return isinstance(lease, Delivery) and lease.holder is self and lease.tag in self.unacked

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
        del self._last_tags[: bisect_left(self._last_tags, next(iter(self.unacked), 1 << 64))]
        limit = min(limit, _MAX_MESSAGES)
        if wait <= 0:  # a consumer costs a quorum queue two writes to its log
            limit, wait = min(limit, self.ready()), _COMING
        fetched = self._consume(limit, wait) if limit else []
        if fetched:
            self._last_tags.append(fetched[-1].tag)
            self.reached_new = not fetched[-1].redelivered
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

    def release(self, tags: Collection[int], end: float = float("inf")) -> None:
        """Requeue as if not delivered, in order, and wait until the queue counts them.

        From 4.0 on a quorum queue puts them before those that were never delivered and behind those that were returned
        earlier, before 4.0 behind all others. 4.3 does not count it as a delivery. Messages that are left at `end` (of
        `time.monotonic()`) return when the channel closes.
        """
        wanted = set(tags) & self.unacked.keys()
        oldest = list(takewhile(wanted.__contains__, self.unacked))
        # A quorum queue requeues in order the messages of one consumer, and a few commands: it must count them before
        # the next.
        groups = [list(group) for _, group in groupby(oldest, lambda tag: bisect_left(self._last_tags, tag))]
        rest = sorted(wanted.difference(oldest))
        ready = self.ready() if wanted else 0
        in_time = True
        for group, is_rest in (
            *((group, False) for group in groups),
            *((rest[at : at + _COMMANDS], True) for at in range(0, len(rest), _COMMANDS)),
        ):
            if time.monotonic() >= end:
                break
            for tag in group if is_rest else group[-1:]:
                self._channel.basic_nack(tag, multiple=not is_rest, requeue=True)
            ready += len(group)
            in_time = in_time and self._await_ready(ready)
        self._forget(wanted)

    def release_by_closing(self) -> None:
        """Requeue all unacknowledged messages in order; before 4.0 only this puts them first."""
        ready = self.ready() + len(self.unacked)
        self.close()
        self.unacked.clear()
        self._channel = self._connection.channel()
        self._await_ready(ready)  # else the next consumer gets the messages behind them
        self.close()

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

    def _await_more(self, received: list[Delivery], limit: int) -> None:
        """Read on while messages come, for a moment: a consumer that has had all of them needs no farewell."""
        end = time.monotonic() + _MOMENT
        before = 0
        while before < len(received) < limit and time.monotonic() < end:
            before = len(received)
            self._connection.process_data_events(min(_PAUSE, before * _PAUSE_EACH))

    def _forget(self, tags: Iterable[int]) -> None:
        for tag in tags:
            self.unacked.pop(tag, None)

    def _consume(self, limit: int, wait: float) -> list[Delivery]:
        with delivered(self._channel, self, limit) as received:
            self._deliver(received, limit, wait)
        return received

    def _deliver(self, received: list[Delivery], limit: int, wait: float) -> None:
        """Let a consumer of this limit exist until the first messages have come, or for so many seconds."""
        if limit != self._prefetch:
            self._channel.basic_qos(prefetch_count=limit)
            self._prefetch = limit
        # Each consumer has a new name: unacknowledged messages of a former one would count against its prefetch. The
        # names ascend, for the order in which the queue takes back what they had.
        name = f"redelivery-{next(self._numbers):09}"
        self._channel.basic_consume(self._queue, _unused, consumer_tag=name, arguments=_NO_STREAM)
        end = time.monotonic() + wait
        while not received and (left := end - time.monotonic()) > 0 and self._channel.consumer_tags:
            self._connection.process_data_events(left)
        self._connection.process_data_events(0)
        if received:
            self._await_more(received, limit)
        if not self._channel.is_open:  # a message was held for longer than the broker allows
            raise ConsumerCancelled("with its channel")
        if len(received) < limit and self._channel.consumer_tags:
            # A quorum queue puts behind all others the messages that it has sent, and that the broker's channel has not
            # passed on when it is cancelled. So ask the queue something first: its answer comes after the messages.
            self.ready()
            self.sync()
            # Then tell the broker, read what it had sent by then, and tell pika last.
            send_cancel(self._channel, name)
            self.sync()
            self._connection.process_data_events(0)
        if not self._channel.consumer_tags:  # the broker cancelled it
            self.ready()  # tells if the queue was deleted
            # Or a message was held for longer than the broker allows: 4.3 takes back what its consumer had, and gives
            # this channel something again for each late acknowledgement.
            self.close()
            raise ConsumerCancelled("by the broker")
        self._channel.basic_cancel(name)


def _unused(*_: Any) -> None:
    """Take a message from pika: none comes, as `delivered` takes them all."""
