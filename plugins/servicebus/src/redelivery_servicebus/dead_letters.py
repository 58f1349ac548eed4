"""The dead letters role: what lies in a queue's dead-letter sub-queue, and in the queue that it is forwarded to.

Looking is peeking: nothing is locked. Removing receives, completes what was named, and abandons the rest. That nothing
comes does not say that nothing is there, as the way may be long: what is there is peeked. This file must not retry.
"""

from __future__ import annotations

import heapq
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

from redelivery.contract.broker import DeadLetters, Letter
from redelivery.contract.context import ErrorContext
from redelivery.errors import BrokerError, Fatal, Retriable
from redelivery_servicebus import codec
from redelivery_servicebus.address import SUB_QUEUE, Address
from redelivery_servicebus.client import private
from redelivery_servicebus.client.connection import client
from redelivery_servicebus.client.deadline import Deadline
from redelivery_servicebus.client.links import Link
from redelivery_servicebus.errors import classified, is_lost, is_missing
from redelivery_servicebus.options import Settings

#: Messages of one look, and of one that only asks whether any is left.
_PAGE: Final = 250
_GLANCE: Final = 10
#: Seconds that a receive waits which takes only what has come already.
_LOOK: Final = 0.02
#: Bytes of letters that are kept while the end is looked for; what is behind them is looked at twice.
_KEPT: Final = 4 << 20
#: Seconds after which nothing further is begun, and after which nothing goes on.
_BEGIN: Final = 12.0
_END: Final = 27.0
#: Digits of a sequence number, at most.
_DIGITS: Final = 18
_ACTIVE: Final = ServiceBusMessageState.ACTIVE
_DEFERRED: Final = ServiceBusMessageState.DEFERRED
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
        deadline = self._deadline("removing letters")
        return sum(place.remove(_numbers(positions, place.path), deadline) for place in self._places)

    def purge(self) -> int:
        self._check_open()
        deadline = self._deadline("purging letters")
        return sum(place.purge(deadline) for place in self._places)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            for place in self._places:
                place.close()

    def _deadline(self, doing: str) -> Deadline:
        return Deadline(doing, begin=_BEGIN, end=_END, step=self._settings.operation_timeout)

    def _check_open(self) -> None:
        if self._closed:
            raise Fatal(
                f"servicebus: reading {self._places[-1].path!r}: this role is closed; open another",
                native_code="CLOSED",
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

    def _peek(self, first: int, deadline: Deadline | None = None) -> list[ServiceBusReceivedMessage]:
        handler = self._open(deadline=deadline)
        if handler is None:
            return []
        left = self._timeout if deadline is None else deadline.left()
        try:
            with classified(f"browsing {self.path!r}", claim="Listen", asked=False):
                found: list[ServiceBusReceivedMessage] = handler.peek_messages(
                    _PAGE, sequence_number=first, timeout=left
                )
        except BrokerError:
            self._looking.drop()
            raise
        return found

    def remove(self, numbers: set[int], deadline: Deadline) -> int:
        """Receive up to the last of these; complete them, and abandon the others."""
        there = self._states(numbers, deadline)
        waiting = {number for number, state in there.items() if state is _ACTIVE}
        deferred = [number for number, state in there.items() if state is _DEFERRED]
        others: dict[int, object] = {}
        handler = self._open(deadline=deadline) if there else None
        if handler is None:
            return 0
        try:
            with classified(f"removing from {self.path!r}", claim="Listen"):
                removed = self._remove_waiting(handler, waiting, others, deadline)
                for number in deferred:  # which nobody is given, unless by its number
                    if deadline.is_late():
                        raise self._late("removing from", removed)
                    removed += self._remove_deferred(handler, number, deadline)
        except BrokerError:
            self._looking.drop()
            raise
        finally:
            self._give_back(others, deadline)
        if waiting:  # the link still asks for them, and would take what comes next instead
            self._looking.drop(wait=True)
        if waiting and _ACTIVE in self._states(waiting, deadline).values():
            raise self._late("removing from", removed)
        return removed

    def _remove_waiting(
        self, handler: ServiceBusReceiver, waiting: set[int], others: dict[int, object], deadline: Deadline
    ) -> int:
        """What is left in `waiting` did not come; what came besides is in `others`."""
        removed = 0
        while waiting and not deadline.is_late():
            count = min(len(waiting) + len(others), _PAGE)
            found = handler.receive_messages(count, max_wait_time=deadline.left())
            fresh = {raw.sequence_number or 0: raw.lock_token for raw in found}
            if not fresh.keys() - others.keys():
                break  # they are in somebody's hand, gone since, or on a very long way
            for number, token in fresh.items():
                if number not in waiting or deadline.is_late():
                    others[number] = token
                elif _completed(handler, token, deadline.left()):
                    removed += 1
                    waiting.discard(number)
        return removed

    def _states(self, numbers: set[int], deadline: Deadline) -> dict[int, object]:
        """Those that are there, and how."""
        found: dict[int, object] = {}
        first, last = min(numbers, default=1), max(numbers, default=0)
        while first <= last and (page := self._peek(first, deadline)):
            found |= {raw.sequence_number or 0: raw.state for raw in page if raw.sequence_number in numbers}
            first = (page[-1].sequence_number or 0) + 1
            if first <= last and deadline.is_late():
                raise self._late("looking through", 0)
        return found

    def _remove_deferred(self, handler: ServiceBusReceiver, number: int, deadline: Deadline) -> bool:
        try:
            (raw,) = handler.receive_deferred_messages([number], timeout=deadline.left())
        except Exception as error:
            if is_lost(error):
                return False
            raise
        return _completed(handler, raw.lock_token, deadline.left())

    def purge(self, deadline: Deadline) -> int:
        """Receive and delete until nothing is left that can be received."""
        count, number = 0, 1
        taking = self._link(ServiceBusReceiveMode.RECEIVE_AND_DELETE, "purging")
        handler = self._open(taking, deadline=deadline)
        if handler is None:
            return 0
        try:
            with classified(f"purging {self.path!r}", claim="Listen"):
                while number := self._next(handler, number, deadline):
                    found = [] if deadline.is_late() else handler.receive_messages(_PAGE, max_wait_time=deadline.left())
                    count += len(found)
                    if not found:
                        raise self._late("purging", count)
                if count:  # what was on its way when the last look was taken has come with that look's answer
                    count += len(handler.receive_messages(_PAGE, max_wait_time=_LOOK))
        finally:
            taking.drop(wait=True)  # a link that is still open would go on deleting what comes
        return count

    def _next(self, handler: ServiceBusReceiver, first: int, deadline: Deadline) -> int:
        """The first from this number on that can be received: neither deferred nor scheduled; 0: none.

        Asked over the link that receives, so that what was on its way there comes before the answer.
        """
        while page := handler.peek_messages(_GLANCE, sequence_number=first, timeout=deadline.left()):
            for raw in page:
                if raw.state is _ACTIVE:
                    return raw.sequence_number or 1
            first = (page[-1].sequence_number or 0) + 1
        return 0

    def _late(self, doing: str, count: int) -> Retriable:
        text = f"{count} letters were removed, and others are left, in another's hand or not come in time: do it again"
        return Retriable(f"servicebus: {doing} {self.path!r}: {text}", native_code="LATE")

    def _give_back(self, others: dict[int, object], deadline: Deadline) -> None:
        """What is not given back in time is there again when its lock runs out."""
        for token in others.values():
            try:
                handler = self._looking.open(deadline.left())
                with classified(f"giving back to {self.path!r}", claim="Listen"):
                    private.abandon(handler, token, deadline.left())
            except BrokerError as error:
                if error.__cause__ is None or not is_lost(error.__cause__):
                    self._looking.drop()
                    return  # its lock runs out by itself

    def _open(
        self, link: Link[ServiceBusReceiver] | None = None, *, deadline: Deadline | None = None
    ) -> ServiceBusReceiver | None:
        """The link; None where the queue that letters are forwarded to is not there, and need not be."""
        try:
            return (link or self._looking).open(self._timeout if deadline is None else deadline.left())
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
            self._timeout,
        )


def _completed(handler: ServiceBusReceiver, token: object, timeout: float) -> bool:
    try:
        private.complete(handler, token, timeout)
    except Exception as error:
        if is_lost(error):
            return False
        raise
    return True


def _numbers(positions: Sequence[str], path: str) -> set[int]:
    found = set()
    for position in positions:
        place, _, number = position.rpartition("/")
        if place == path and number.isdecimal() and len(number) <= _DIGITS:
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
    decoded = codec.decode(raw)
    context = None
    reason, description = raw.dead_letter_reason, raw.dead_letter_error_description
    if reason or description:
        context = ErrorContext(
            kind=KINDS.get(reason or "", "terminated"),
            reason=(description or reason or "") if reason in KINDS else (reason or description or ""),
            native_code=reason if reason in KINDS else None,
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
