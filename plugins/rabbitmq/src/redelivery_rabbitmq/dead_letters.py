"""The dead letters role: browse, remove and purge the messages of one queue.

AMQP cannot read without taking. So a browse holds the letters that it has shown, unacknowledged, until it ends, and
then returns all of them at once: only this keeps their order.
"""

from __future__ import annotations

import logging
import re
import time
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, suppress
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from pika.spec import BasicProperties

from redelivery.contract.broker import DeadLetters, Letter
from redelivery.contract.letters import WHOLE, LetterBatch, Wanted
from redelivery.errors import BrokerError, ConfigurationError
from redelivery.kit.letters import undecodable
from redelivery_rabbitmq.address import Address
from redelivery_rabbitmq.client import broker_headers, renewal
from redelivery_rabbitmq.client.connection import QueueRole
from redelivery_rabbitmq.client.consumer import RELEASED_FIRST, Consumer
from redelivery_rabbitmq.client.deliveries import Delivery
from redelivery_rabbitmq.codec import decode
from redelivery_rabbitmq.options import Settings

log = logging.getLogger("redelivery.rabbitmq")

#: Seconds that returning letters in order may take; then their order is given up.
_RETURN_TIMEOUT: Final = 15.0
#: Properties that a position does not show unchanged. A letter that is renewed may lose its user.
_NOT_SHOWN: Final = frozenset({"headers", "user_id"})
_POSITION: Final = re.compile(r"[0-9a-f]{24}(\.[1-9][0-9]*)?")


class RabbitmqDeadLetters(QueueRole, DeadLetters):
    """The messages of one queue. No I/O until a method is called."""

    def __init__(self, address: Address, settings: Settings, *, direct: bool) -> None:
        super().__init__(address if direct else address.dead_letters, settings)
        self._url = address.url
        self._read_permission = f"read permission on {self._address.queue!r}"
        #: Open browses, and for the position of each letter that they show: its consumer and delivery tag.
        self._browses: list[Consumer] = []
        self._shown: dict[str, tuple[Consumer, int]] = {}
        #: The most that a letter was looked at, where the broker counts that against the queue's limit.
        self._looks = 0
        self._is_limitless: bool | None = None

    def browse(self) -> Iterator[Letter]:
        with closing(self._pages()) as pages:
            for page in pages:
                page.reverse()
                while page:  # so that a letter that was shown is not kept
                    yield self._letter(page.pop())

    def read(self, split: str, wanted: Wanted) -> Iterator[LetterBatch]:  # noqa: ARG002 - AMQP selects nothing
        if split != WHOLE:
            raise ConfigurationError(f"rabbitmq: {split!r} is not a split of queue {self._address.queue!r}")
        return self._read()

    def _read(self) -> Iterator[LetterBatch]:
        """A page is a batch, so that a reader that removes its letters does so while they are held."""
        with closing(self._pages()) as pages:
            for page in pages:
                yield LetterBatch.of([self._letter(shown) for shown in page])

    def _pages(self) -> Generator[list[_Shown], None, None]:
        """Yield the letters page by page, and hold them until this ends."""
        with self.connected("browsing", needs=self._read_permission) as connection:
            consumer = Consumer(connection, self._address.queue)
            pages = consumer.pages()
            page = next(pages, [])
        self._browses.append(consumer)
        seen: Counter[str] = Counter()
        try:
            while page:
                shown = self._taken(page, seen)
                page.clear()
                self._shown.update((each.position, (consumer, each.tag)) for each in shown)
                yield shown
                with self.connected("browsing", needs=self._read_permission):
                    page = next(pages, [])
        finally:
            self._end(consumer)

    def remove(self, positions: Sequence[str]) -> int:
        wanted = dict.fromkeys(positions)
        for position in wanted:
            if not _POSITION.fullmatch(position):
                raise ConfigurationError(f"rabbitmq: not a position of a dead letter: {position!r}")
        removed = 0
        for consumer in list(self._browses):
            held = [each for each in wanted if each in self._shown and self._shown[each][0] is consumer]
            if held:
                with self.connected("removing from", needs=self._read_permission):
                    consumer.ack([self._shown.pop(each)[1] for each in held])
                    consumer.sync()
            for each in held:
                del wanted[each]
            removed += len(held)
        return removed + (self._search(wanted) if wanted else 0)

    def purge(self) -> int:
        with self.connected("purging", needs=self._read_permission) as connection, connection.channel() as channel:
            return int(channel.queue_purge(self._address.queue).method.message_count)

    def close(self) -> None:
        for consumer in list(self._browses):
            self._end(consumer)
        super().close()

    def _letter(self, shown: _Shown) -> Letter:
        message, fault = decode(shown.properties, shown.body)
        context, dead_ms = broker_headers.death_context(shown.added, message.id, self._url)
        if context is None and fault is not None:
            context = undecodable("rabbitmq", fault)
        return Letter(position=shown.position, message=message, context=context, dead_lettered_ms=dead_ms)

    def _end(self, consumer: Consumer) -> None:
        """Return the letters of a browse, and forget their positions."""
        if consumer not in self._browses:
            return
        self._browses.remove(consumer)
        self._shown = {position: held for position, held in self._shown.items() if held[0] is not consumer}
        if consumer.is_open:
            # If this fails, the broker takes all back when the connection ends.
            with suppress(BrokerError), self.connected("returning letters to"):
                self._return(consumer)

    def _search(self, wanted: dict[str, None]) -> int:
        """Look for letters, oldest first, remove them, and return the others in their order."""
        seen: Counter[str] = Counter()
        found: list[int] = []
        with self.connected("removing from", needs=self._read_permission) as connection:
            consumer = Consumer(connection, self._address.queue)
            try:
                for page in consumer.pages():
                    found += [shown.tag for shown in self._taken(page, seen) if shown.position in wanted]
                    if len(found) == len(wanted):
                        break
                consumer.ack(found)
            finally:
                if consumer.is_open:
                    self._return(consumer)
        return len(found)

    def _return(self, consumer: Consumer) -> None:
        """Return letters in order, with those that a quorum queue would otherwise put before them.

        Before 4.0 these are all others. From 4.0 on they are those that were returned earlier, which come before all
        that no consumer has taken yet.

        Only as many as are ready now, and within a time: more may keep coming, and there may be a million. Letters
        that are left then return when the channel closes.
        """
        end = time.monotonic() + _RETURN_TIMEOUT
        pages = consumer.pages() if consumer.unacked else iter(())
        while time.monotonic() < end:
            if (self.broker_version >= RELEASED_FIRST and consumer.reached_new) or not next(pages, None):
                break
        consumer.release(list(consumer.unacked), end)
        consumer.close()
        if self._looks >= renewal.LOOKS:
            self._renew()

    def _taken(self, page: Sequence[Delivery], seen: Counter[str]) -> list[_Shown]:
        """Give the letters of a page their positions, and count how often they were looked at."""
        shown = [_shown(delivery, seen) for delivery in page]
        if renewal.counts_looks(self.broker_version):
            # Before its first return a letter has the count of the queue in which it died.
            for each, delivery in zip(shown, page, strict=True):
                if delivery.redelivered:
                    self._looks = max(self._looks, each.added.delivery_count or 0)
        return shown

    def _renew(self) -> None:
        """Write all letters again if the broker may drop them after more looks."""
        looks, self._looks = self._looks, 0
        what = "writing letters again to"
        try:
            with self.connected(what, needs=self._read_permission) as connection:
                if self._is_limitless is None:
                    self._is_limitless = renewal.is_limitless(connection, self._address.queue)
                if self._is_limitless:
                    return
                consumer = Consumer(connection, self._address.queue)
                try:
                    renewal.renew(consumer, self._address, self._settings)
                finally:
                    if consumer.is_open:
                        self._return(consumer)
        except BrokerError as error:
            text = "letters of queue %r were looked at %d times, and this broker drops them after more looks than the "
            text += "queue's delivery limit (20 by default); %s. They could not be written again: %s"
            log.warning(text, self._address.queue, looks, renewal.ADVICE, error)


class _Shown(NamedTuple):
    """A letter that is held: its position, its delivery without the headers that the broker added, and those."""

    position: str
    tag: int
    properties: BasicProperties
    added: broker_headers.BrokerHeaders
    body: bytes


def _shown(delivery: Delivery, seen: Counter[str]) -> _Shown:
    """Give a letter its position, a digest of all that stays when it is renewed. Equal letters are numbered."""
    properties, added = broker_headers.split(delivery.properties)
    fields = [each for each in vars(properties).items() if each[1] is not None and each[0] not in _NOT_SHOWN]
    parts = (fields, _sorted(properties.headers or {}), _sorted([*added.x_death]))
    digest = blake2b(repr(parts).encode("utf-8", "surrogatepass"), digest_size=12)
    digest.update(delivery.body)
    name = digest.hexdigest()
    seen[name] += 1
    position = name if seen[name] == 1 else f"{name}.{seen[name]}"
    return _Shown(position, delivery.tag, properties, added, delivery.body)


def _sorted(value: Any) -> Any:
    """Remove the order of tables from a value: a quorum queue sorts them when it delivers again."""
    if isinstance(value, dict):
        return sorted((repr(name), _sorted(each)) for name, each in value.items())
    if isinstance(value, list):
        return [_sorted(each) for each in value]
    return value
