"""The dead letters role: what lies in a queue's dead-letter sub-queue, and in the queue that it is forwarded to.

Looking is peeking: nothing is locked. Removing receives, completes what was named, and abandons the rest. This file
must not retry.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterator, Sequence
from typing import Final

from azure.servicebus import (
    ServiceBusClient,
    ServiceBusMessageState,
    ServiceBusReceivedMessage,
    ServiceBusReceiveMode,
    ServiceBusReceiver,
    ServiceBusSubQueue,
)

from redelivery.broker import DeadLetters, Letter
from redelivery.context import ErrorContext
from redelivery.errors import BrokerError, Fatal, Retriable
from redelivery_servicebus import encoding, settling
from redelivery_servicebus.address import SUB_QUEUE, Address
from redelivery_servicebus.config import Settings, client
from redelivery_servicebus.errors import classified, is_lost, is_missing
from redelivery_servicebus.links import Link

#: Messages of one look, and the seconds that one which removes waits.
_PAGE: Final = 250
_LOOK: Final = 0.3
#: Bytes of letters that are kept while the end is looked for; what is behind them is looked at twice.
_KEPT: Final = 4 << 20
#: Seconds after which nothing further is begun.
_PATIENCE: Final = 12.0
#: What Service Bus itself says, as error classes.
KINDS: Final = {
    "MaxDeliveryCountExceeded": "delivery-limit",
    "TTLExpiredException": "expired",
    "HeaderSizeExceeded": "too-large",
    "MaxTransferHopCountExceeded": "too-many-hops",
    "Session ID is null": "invalid",
}


class ServicebusDeadLetters(DeadLetters):
    """The letters of a queue.

    Args:
        address: the queue.
        settings: of the client.
        direct: the queue itself holds the letters.
    """

    def __init__(self, address: Address, settings: Settings, direct: bool) -> None:  # noqa: FBT001 - the contract's own word
        own = direct or address.is_dead_letters
        gathered = address if own else address.dead_letters
        subs = [] if direct else [address]
        self._settings = settings
        self._client = client(address, settings)
        self._places = [_Place(self._client, address.queue, settings, sub=True, needed=True) for address in subs] + [
            _Place(self._client, gathered.queue, settings, sub=False, needed=own)
        ]
        self._closed = False

    def browse(self) -> Iterator[Letter]:
        self._check_open()
        # Each from the first to the last of now; within a place in its order, between places by age.
        streams = [place.browse() for place in self._places]
        for raw, place in heapq.merge(*streams, key=_age):
            self._check_open()
            yield _letter(raw, place)

    def remove(self, positions: Sequence[str]) -> int:
        self._check_open()
        return sum(place.remove(_numbers(positions, place.path)) for place in self._places)

    def purge(self) -> int:
        self._check_open()
        return sum(place.purge() for place in self._places)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            for place in self._places:
                place.close()

    def _check_open(self) -> None:
        if self._closed:
            raise Fatal(
                f"servicebus: reading {self._places[-1].path!r}: this role is closed; open another", code="CLOSED"
            )


class _Place:
    """A queue, or its dead-letter sub-queue."""

    def __init__(self, client: ServiceBusClient, queue: str, settings: Settings, *, sub: bool, needed: bool) -> None:
        self.path = queue + (SUB_QUEUE if sub else "")
        self.sub = sub
        self._client = client
        self._queue = queue
        self._needed = needed
        self._timeout = settings.operation_timeout
        self._looking = self._link(ServiceBusReceiveMode.PEEK_LOCK, "browsing")

    def close(self) -> None:
        self._looking.drop(wait=True)

    def browse(self) -> Iterator[tuple[ServiceBusReceivedMessage, _Place]]:
        """What was there when it began, by its numbers: it is looked through to its end before the first is shown."""
        kept: list[ServiceBusReceivedMessage] = []
        size, seen, shown = 0, 0, 0
        while page := self._peek(seen + 1):
            seen = page[-1].sequence_number or 0
            if size < _KEPT:
                kept += page
                shown = seen
                size += sum(map(_size, page))
        for raw in kept:
            yield raw, self
        while shown < seen and (page := self._peek(shown + 1)):
            shown = page[-1].sequence_number or 0
            for raw in page:
                if (raw.sequence_number or 0) <= seen:
                    yield raw, self

    def _peek(self, first: int) -> list[ServiceBusReceivedMessage]:
        handler = self._open()
        if handler is None:
            return []
        try:
            with classified(f"browsing {self.path!r}", claim="Listen", asked=False):
                found: list[ServiceBusReceivedMessage] = handler.peek_messages(
                    _PAGE, sequence_number=first, timeout=self._timeout
                )
        except BrokerError:
            self._looking.drop()
            raise
        return found

    def remove(self, numbers: set[int]) -> int:
        """Receive up to the last of these; complete them, and abandon the others."""
        left, removed, end = set(numbers), 0, time.monotonic() + _PATIENCE
        others: dict[int, object] = {}
        handler = self._open() if left else None
        if handler is None:
            return 0
        try:
            with classified(f"removing from {self.path!r}", claim="Listen"):
                while left and time.monotonic() < end:
                    found = handler.receive_messages(min(len(left) + len(others), _PAGE), max_wait_time=_LOOK)
                    fresh = {raw.sequence_number or 0: raw.lock_token for raw in found}
                    if not fresh.keys() - others.keys():
                        break  # nothing more is to be had: what is left is gone, or in somebody's hand
                    for number, token in fresh.items():
                        if number in left and time.monotonic() < end:
                            removed += _completed(handler, token)
                            left.discard(number)
                        else:
                            others[number] = token
                # Nobody is given what was deferred, unless by its number.
                for each in sorted(left):
                    if time.monotonic() >= end:
                        raise self._late("removing from", removed)
                    removed += self._remove_deferred(handler, each)
        except BrokerError:
            self._looking.drop()
            raise
        finally:
            self._give_back(others, end + _PATIENCE / 2)
        return removed

    def _remove_deferred(self, handler: ServiceBusReceiver, number: int) -> bool:
        found = handler.peek_messages(1, sequence_number=number, timeout=self._timeout)
        if not found or found[0].sequence_number != number or found[0].state is not ServiceBusMessageState.DEFERRED:
            return False
        try:
            (raw,) = handler.receive_deferred_messages([number], timeout=self._timeout)
        except Exception as error:
            if is_lost(error):
                return False
            raise
        return _completed(handler, raw.lock_token)

    def purge(self) -> int:
        """Receive and delete until nothing comes."""
        count, end = 0, time.monotonic() + _PATIENCE
        taking = self._link(ServiceBusReceiveMode.RECEIVE_AND_DELETE, "purging")
        handler = self._open(taking)
        try:
            with classified(f"purging {self.path!r}", claim="Listen"):
                while (
                    handler is not None
                    and time.monotonic() < end
                    and (found := handler.receive_messages(_PAGE, max_wait_time=_LOOK))
                ):
                    count += len(found)
        finally:
            taking.drop()
        if time.monotonic() >= end and handler is not None:
            raise self._late("purging", count)
        return count

    def _late(self, doing: str, count: int) -> Retriable:
        text = f"{count} letters were removed in {_PATIENCE:.0f} s, and others may be left: do it again"
        return Retriable(f"servicebus: {doing} {self.path!r}: {text}", code="LATE")

    def _give_back(self, others: dict[int, object], end: float) -> None:
        """What is not given back in time is there again when its lock runs out."""
        for token in others.values():
            handler = self._open() if time.monotonic() < end else None
            if handler is None:
                return
            try:
                with classified(f"giving back to {self.path!r}", claim="Listen"):
                    settling.abandon(handler, token)
            except BrokerError as error:
                if error.__cause__ is None or not is_lost(error.__cause__):
                    self._looking.drop()
                    return  # its lock runs out by itself

    def _open(self, link: Link[ServiceBusReceiver] | None = None) -> ServiceBusReceiver | None:
        """The link; None where the queue that letters are forwarded to is not there, and need not be."""
        try:
            return (link or self._looking).open(self._timeout)
        except BrokerError as error:
            if is_missing(error) and not self._needed:
                return None
            raise

    def _link(self, mode: ServiceBusReceiveMode, doing: str) -> Link[ServiceBusReceiver]:
        return Link(
            lambda: self._client.get_queue_receiver(
                self._queue,
                sub_queue=ServiceBusSubQueue.DEAD_LETTER if self.sub else None,
                receive_mode=mode,
                prefetch_count=0,
            ),
            f"{doing} {self.path!r}",
            "Listen",
        )


def _completed(handler: ServiceBusReceiver, token: object) -> bool:
    try:
        settling.complete(handler, token)
    except Exception as error:
        if is_lost(error):
            return False
        raise
    return True


def _numbers(positions: Sequence[str], path: str) -> set[int]:
    found = set()
    for position in positions:
        place, _, number = position.rpartition("/")
        if place == path and number.isdecimal():
            found.add(int(number))
    return found


def _size(raw: ServiceBusReceivedMessage) -> int:
    try:
        return sum(len(part) for part in raw.body)
    except TypeError:  # a body of another kind, in memory already
        return 1024


def _age(item: tuple[ServiceBusReceivedMessage, _Place]) -> float:
    came = item[0].enqueued_time_utc
    return 0.0 if came is None else came.timestamp()


def _letter(raw: ServiceBusReceivedMessage, place: _Place) -> Letter:
    decoded = encoding.decode(raw)
    context = None
    reason, description = raw.dead_letter_reason, raw.dead_letter_error_description
    if reason or description:
        context = ErrorContext(
            kind=KINDS.get(reason or "", "terminated"),
            reason=(description or reason or "") if reason in KINDS else (reason or description or ""),
            code=reason if reason in KINDS else None,
            broker="servicebus",
            source_topic=raw.dead_letter_source,
            message_id=decoded.message.id,
        )
    if decoded.fault is not None:
        context = ErrorContext(kind="invalid", reason=decoded.fault, broker="servicebus")
    came = raw.enqueued_time_utc
    return Letter(
        position=f"{place.path}/{raw.sequence_number}",
        message=decoded.message,
        context=context,
        # In the sub-queue a message keeps the time at which it came to its queue.
        dead_lettered_ms=None if came is None or place.sub else int(came.timestamp() * 1000),
    )
