"""Taking messages from one queue and holding them: what the receiver and the dead letters role share.

A message is taken by `basic.get`, or by a consumer that lives for one call: its prefetch is what was asked for, so
that the broker never gives more. This file must not decide what becomes of a message.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Collection, Iterable
from itertools import count, groupby
from typing import Any, Final, NamedTuple

from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection
from pika.spec import Basic, BasicProperties

from redelivery_rabbitmq.client.publisher import drop

#: Messages that one call takes, at most: what a consumer of a quorum queue may hold, and half of it.
MOST: Final = 1000
#: Seconds to wait for the queue to count again what was given back; a quorum queue took up to 0.03.
_BACK: Final = 1.0
#: Seconds between two looks whether it does.
_LOOK: Final = 0.002


class Delivery(NamedTuple):
    """A message as it came, and what it is settled by."""

    tag: int
    method: Basic.Deliver | Basic.GetOk
    properties: BasicProperties
    body: bytes


class Intake:
    """One channel that takes from one queue. What it holds goes back to the queue when the channel closes.

    Attributes:
        held: what was taken and not settled, by delivery tag, in the order of the queue.
    """

    def __init__(self, connection: BlockingConnection, queue: str) -> None:
        self.held: dict[int, Delivery | None] = {}
        self._connection = connection
        self._queue = queue
        self._channel: BlockingChannel = connection.channel()
        self._prefetch = 0
        self._given_up = False
        self._consumers = count()
        #: The last tags that each consumer gave.
        self._groups: list[int] = []

    @property
    def is_open(self) -> bool:
        """Whether what is held is still ours."""
        return bool(self._channel.is_open and self._connection.is_open) and not self._given_up

    def take(self, most: int, wait: float) -> list[Delivery]:
        """Take up to so many, waiting for the first; what else is there comes with it.

        Where that is left halfway, by whatever exception, all that is held goes back to the queue.
        """
        try:
            return self._take(most, wait)
        except BaseException:
            # The consumer may go on and be given messages that nobody sees: acknowledging several would settle those.
            if self.is_open:
                self._given_up = True
                drop(self._connection)
            raise

    def _take(self, most: int, wait: float) -> list[Delivery]:
        most = min(most, MOST)
        del self._groups[: bisect_left(self._groups, next(iter(self.held), 1 << 64))]
        # A quorum queue takes back what consumers had in the order of their names, where a get's begins with a digit:
        # so one that comes first keeps the order. A mere look needs one: a consumer's first message may be late.
        taken = self._get() if not self.held or wait <= 0 else []
        if len(taken) < most and (taken or wait > 0):
            came = self._consume(most - len(taken), 0.0 if taken else wait)
            self._groups += [each[-1].tag for each in (taken, came) if each]
            taken += came
        elif taken:
            self._groups.append(taken[-1].tag)
        self.held.update((each.tag, each) for each in taken)
        return taken

    def accept(self, tags: Collection[int]) -> None:
        """Settle: the broker forgets these."""
        multiple = 0
        left = set(tags)
        for tag in self.held:  # the oldest ones go by one frame
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
        """Give back, as a delivery that failed: every version counts it."""
        for tag in tags:
            self._channel.basic_reject(tag, requeue=True)
            self._forget([tag])

    def give_back(self, tags: Collection[int]) -> None:
        """Give back, as a delivery that was none: versions that can do not count it."""
        if tags and len(tags) == len(self.held):
            counted = self.depth() + len(tags)
            self.close()  # so a quorum queue gives them first again; what is rejected goes behind all others
            self.held.clear()
            self._channel = self._connection.channel()
            self._await(counted)  # else whoever takes now gets those behind them
            self.close()
            return
        for tag in tags:
            self._channel.basic_nack(tag, requeue=True)
        self._forget(tags)
        if tags:
            self.confirm()

    def give_all_back(self, end: float) -> None:
        """Give back whatever is held, in its order, and wait until the queue counts it again.

        What is still held at `end` (of `time.monotonic()`) is left to the end of the channel.
        """
        held = list(self.held)
        counted = self.depth()
        patient = True
        # A quorum queue puts back in order only what one consumer had: so each one's by itself, one after the other.
        for _, group in groupby(held, lambda tag: bisect_left(self._groups, tag)):
            if time.monotonic() >= end:
                break
            tags = list(group)
            self._channel.basic_nack(tags[-1], multiple=True, requeue=True)
            counted += len(tags)
            patient = patient and self._await(counted)
        self._forget(held)

    def confirm(self) -> None:
        """Return when the broker has read all that was settled before: a channel is served in order."""
        self._channel.flow(active=True)

    def depth(self) -> int:
        """Messages that nobody holds."""
        return int(self._channel.queue_declare(self._queue, passive=True).method.message_count)

    def close(self) -> None:
        """Close the channel."""
        if self.is_open:
            self._channel.close()

    def _await(self, count: int) -> bool:
        """Wait until so many are counted; False: they were not in time, as somebody else may be taking them."""
        end = time.monotonic() + _BACK
        while self.depth() < count:
            if time.monotonic() >= end:
                return False
            self._connection.process_data_events(_LOOK)
        return True

    def _forget(self, tags: Iterable[int]) -> None:
        for tag in tags:
            self.held.pop(tag, None)

    def _get(self) -> list[Delivery]:
        method, properties, body = self._channel.basic_get(self._queue)
        if method is None or properties is None or body is None:
            return []
        return [Delivery(method.delivery_tag, method, properties, body)]

    def _consume(self, most: int, wait: float) -> list[Delivery]:
        arrived: list[Delivery] = []

        def arrive(_: Any, method: Basic.Deliver, properties: BasicProperties, body: bytes) -> None:
            arrived.append(Delivery(method.delivery_tag, method, properties, body))

        if most != self._prefetch:
            self._channel.basic_qos(prefetch_count=most)
            self._prefetch = most
        # Each under a name of its own: what the one before still holds would be counted against its prefetch. The names
        # rise, for the order that is told of in `take`.
        name = f"redelivery-{next(self._consumers):09}"
        self._channel.basic_consume(self._queue, arrive, consumer_tag=name)
        end = time.monotonic() + wait
        while not arrived and (left := end - time.monotonic()) > 0 and self._channel.consumer_tags:
            self._connection.process_data_events(left)
        self._connection.process_data_events(0)
        if len(arrived) < most and self._channel.consumer_tags:
            # What the queue has given and the channel has not passed on when it is told to cancel, a quorum queue takes
            # back, behind all others. So the queue is asked something first: its answer comes behind what it gave.
            self.depth()
            self.confirm()
            # pika's own cancel gives back what arrives meanwhile, and each time counts as a delivery. So the broker is
            # told first, and what it had sent by then is read, before pika is.
            cancel = Basic.Cancel(consumer_tag=name, nowait=True)  # type: ignore[no-untyped-call]
            self._channel._impl._send_method(cancel)  # noqa: SLF001 - see above
            self.confirm()
            self._connection.process_data_events(0)
        if self._channel.consumer_tags:
            self._channel.basic_cancel(name)
        return arrived
