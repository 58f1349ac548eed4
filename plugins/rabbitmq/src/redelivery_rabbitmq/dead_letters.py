"""The dead letters role: browse, remove, purge the messages of one queue.

AMQP cannot look without taking. So browsing holds what it has shown, unacknowledged, until it ends, and then gives all
of it back at once: only so do the letters keep their order. This file must not decide which letter leaves.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import Any, Final

from redelivery.contract.broker import DeadLetters, Letter
from redelivery.contract.context import ErrorContext
from redelivery.errors import BrokerError, ConfigurationError
from redelivery_rabbitmq.address import Address, Settings
from redelivery_rabbitmq.client import broker_headers as native
from redelivery_rabbitmq.client.blocking import Link
from redelivery_rabbitmq.client.consumer import Delivery, Intake
from redelivery_rabbitmq.codec import decode

#: Letters that are in memory at a time.
_PAGE: Final = 100
#: Seconds that giving back in order may take, before order is given up.
_GIVING_BACK: Final = 15.0
_POSITION: Final = re.compile(r"[0-9a-f]{24}(\.[1-9][0-9]*)?")


class RabbitmqDeadLetters(DeadLetters):
    """The messages of one queue. No I/O until it is asked."""

    def __init__(self, address: Address, settings: Settings, *, direct: bool) -> None:
        self._address = address if direct else address.dead_letters
        self._url = address.url
        self._link = Link(self._address, settings)
        self._read = f"read permission on {self._address.queue!r}"
        #: Letters shown by a browse that has not ended: where they are held.
        self._shown: dict[str, tuple[Intake, int]] = {}
        self._browsing: list[Intake] = []

    def browse(self) -> Iterator[Letter]:
        doing = self._doing("browsing")
        with self._link.using(doing, needs=self._read) as connection:
            intake = Intake(connection, self._address.queue)
            left = intake.depth()
        self._browsing.append(intake)
        seen: Counter[str] = Counter()
        try:
            while left > 0:
                with self._link.using(doing, needs=self._read):
                    page = intake.take(min(_PAGE, left), 0.0)
                if not page:
                    return
                left -= len(page)
                for delivery in page:
                    intake.held[delivery.tag] = None  # its body need not be kept
                letters = [(self._show(intake, delivery, seen), delivery) for delivery in page][::-1]
                page.clear()
                while letters:
                    yield self._letter(*letters.pop())
        finally:
            self._end(intake)

    def remove(self, positions: Sequence[str]) -> int:
        wanted = dict.fromkeys(positions)
        for position in wanted:
            if not _POSITION.fullmatch(position):
                raise ConfigurationError(f"rabbitmq: not a position of a dead letter: {position!r}")
        removed = 0
        for intake in list(self._browsing):
            held = [each for each in wanted if each in self._shown and self._shown[each][0] is intake]
            if held:
                with self._link.using(self._doing("removing from"), needs=self._read):
                    intake.accept([self._shown.pop(each)[1] for each in held])
                    intake.confirm()
            for each in held:
                del wanted[each]
            removed += len(held)
        return removed + (self._search(wanted) if wanted else 0)

    def purge(self) -> int:
        with self._link.using(self._doing("purging"), needs=self._read) as connection, connection.channel() as channel:
            return int(channel.queue_purge(self._address.queue).method.message_count)

    def close(self) -> None:
        for intake in list(self._browsing):
            self._end(intake)
        self._link.close()

    def _show(self, intake: Intake, delivery: Delivery, seen: Counter[str]) -> str:
        position = _position(delivery, seen)
        self._shown[position] = (intake, delivery.tag)
        return position

    def _letter(self, position: str, delivery: Delivery) -> Letter:
        properties, found = native.split(delivery.properties)
        message, fault = decode(properties, delivery.body)
        context, dead_ms = native.context(found, message.id, self._url)
        if context is None and fault is not None:
            context = ErrorContext(kind="invalid", reason=fault, broker="rabbitmq")
        return Letter(position=position, message=message, context=context, dead_lettered_ms=dead_ms)

    def _end(self, intake: Intake) -> None:
        """Give back what a browse holds; what is known of its letters' places ends with it."""
        if intake not in self._browsing:
            return
        self._browsing.remove(intake)
        self._shown = {position: where for position, where in self._shown.items() if where[0] is not intake}
        if intake.is_open:
            # Where that fails, the broker takes all back as the connection ends.
            with suppress(BrokerError), self._link.using(self._doing("giving back what was shown of")):
                self._return(intake)

    def _search(self, wanted: dict[str, None]) -> int:
        """Look for letters from the oldest on, remove them, and give the others back in their order."""
        seen: Counter[str] = Counter()
        found: list[int] = []
        with self._link.using(self._doing("removing from"), needs=self._read) as connection:
            intake = Intake(connection, self._address.queue)
            try:
                left = intake.depth()
                while left > 0 and len(found) < len(wanted) and (page := intake.take(min(_PAGE, left), 0.0)):
                    left -= len(page)
                    for delivery in page:
                        intake.held[delivery.tag] = None
                        if _position(delivery, seen) in wanted:
                            found.append(delivery.tag)
                intake.accept(found)
            finally:
                if intake.is_open:
                    self._return(intake)
        return len(found)

    @staticmethod
    def _return(intake: Intake) -> None:
        """Give back in order. A quorum queue puts what comes back behind all others: so all others go along.

        As many as there are now, within a time: what comes meanwhile would have no end, nor would a million letters.
        What is then still held the queue takes back as the channel closes.
        """
        end = time.monotonic() + _GIVING_BACK
        left = intake.depth() if intake.held else 0
        while left > 0 and time.monotonic() < end and (page := intake.take(min(_PAGE, left), 0.0)):
            left -= len(page)
            intake.held.update((delivery.tag, None) for delivery in page)
            if native.split(page[0].properties)[1].count is None:  # a classic queue puts each back in its place
                break
        intake.give_all_back(end)
        intake.close()

    def _doing(self, what: str) -> str:
        return f"{what} queue {self._address.queue!r}"


def _position(delivery: Delivery, seen: Counter[str]) -> str:
    """A digest of all that a letter is; those that are equal in all are numbered."""
    properties, found = native.split(delivery.properties)
    told = {**vars(properties), "headers": properties.headers or None}
    parts = [repr(_sorted(told)), repr(_sorted(list(found.deaths)))]
    digest = blake2b("\0".join(parts).encode(), digest_size=12)
    digest.update(delivery.body)
    name = digest.hexdigest()
    seen[name] += 1
    return name if seen[name] == 1 else f"{name}.{seen[name]}"


def _sorted(value: Any) -> Any:
    """A value without the order of its tables: a quorum queue sorts them when it delivers again."""
    match value:
        case Mapping():
            return sorted((repr(name), _sorted(each)) for name, each in value.items())
        case list():
            return [_sorted(each) for each in value]
        case _:
            return repr(value)
