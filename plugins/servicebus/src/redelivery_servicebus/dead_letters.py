"""The dead letters role: the messages of a queue's dead-letter sub-queue, and of the queue that it is forwarded to.

Browsing peeks, and locks nothing. Removing receives, completes the letters that were named, and abandons the others.
An empty receive does not prove that a queue is empty, as messages may need long to arrive: only a peek proves it.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from typing import Any, Final

from azure.servicebus import ServiceBusMessageState, ServiceBusReceivedMessage, ServiceBusReceiver

from redelivery.codes import Code
from redelivery.contract.broker import DeadLetters, Letter
from redelivery.contract.context import ErrorContext
from redelivery.errors import BrokerError, Retriable
from redelivery.kit.letters import given_up, undecodable
from redelivery.kit.plans import none_if_missing
from redelivery.kit.roles import Resource
from redelivery_servicebus import codec
from redelivery_servicebus.address import SUB_QUEUE, Address
from redelivery_servicebus.client import private
from redelivery_servicebus.client.connection import Namespace
from redelivery_servicebus.client.deadline import Deadline
from redelivery_servicebus.client.links import Link
from redelivery_servicebus.errors import is_lost
from redelivery_servicebus.options import Settings

#: Messages of one peek, and of one that only asks whether any is left.
_PAGE: Final = 250
_GLANCE: Final = 10
#: Seconds that a receive waits which takes only messages that have already arrived.
_LOOK: Final = 0.02
#: Bytes of letters that are kept while browsing looks for the end; letters behind them are peeked twice.
_KEPT: Final = 4 << 20
#: Seconds after which no further step begins, and after which every request ends.
_BEGIN: Final = 12.0
_END: Final = 27.0
#: Digits of a sequence number, at most.
_DIGITS: Final = 18
_ACTIVE: Final = ServiceBusMessageState.ACTIVE
_DEFERRED: Final = ServiceBusMessageState.DEFERRED
#: Reasons that Service Bus itself gives.
REASONS: Final = {
    "MaxDeliveryCountExceeded": Code.DELIVERY_LIMIT,
    "TTLExpiredException": Code.EXPIRED,
    "HeaderSizeExceeded": Code.TOO_LARGE,
    "MaxTransferHopCountExceeded": Code.REJECTED,
    "Session ID is null": Code.REJECTED,
}


class ServicebusDeadLetters(Resource, DeadLetters):
    """The letters of a queue.

    Args:
        address: the queue.
        settings: of the client.
        direct: the queue itself holds the letters.
    """

    def __init__(self, address: Address, settings: Settings, *, direct: bool) -> None:
        own = direct or address.is_dead_letters
        forwarded = address if own else address.dead_letters
        super().__init__("servicebus", f"queue {forwarded.queue!r}")
        self._settings = settings
        namespace = Namespace(address, settings)
        subs = [] if direct else [_Place(namespace, address.queue, settings, sub=True, needed=True)]
        self._places = [*subs, _Place(namespace, forwarded.queue, settings, sub=False, needed=own)]

    def browse(self) -> Iterator[Letter]:
        self.check_open("browsing")
        # Each from the first to the last of now; within a place in its order, between places by age.
        streams = [place.browse() for place in self._places]
        for raw, place in heapq.merge(*streams, key=_age):
            self.check_open("browsing")
            yield _letter(raw, place)

    def remove(self, positions: Sequence[str]) -> int:
        deadline = self._deadline("removing letters of")
        return sum(place.remove(_numbers(positions, place.path), deadline) for place in self._places)

    def purge(self) -> int:
        deadline = self._deadline("purging letters of")
        return sum(place.purge(deadline) for place in self._places)

    def _release(self) -> None:
        for place in self._places:
            place.close()

    def _deadline(self, what: str) -> Deadline:
        self.check_open(what)
        return Deadline(self.doing(what), begin=_BEGIN, end=_END, step=self._settings.operation_timeout)


class _Place:
    """A queue, or its dead-letter sub-queue.

    Args:
        namespace: its namespace.
        queue: its name.
        settings: of the client.
        sub: it is the sub-queue.
        needed: it is an error if the queue does not exist.
    """

    def __init__(self, namespace: Namespace, queue: str, settings: Settings, *, sub: bool, needed: bool) -> None:
        self.path = queue + (SUB_QUEUE if sub else "")
        self.sub = sub
        self._namespace = namespace
        self._queue = queue
        self._needed = needed
        self._timeout = settings.operation_timeout
        self._link = namespace.receiver(queue, "browsing", sub=sub)

    def close(self) -> None:
        self._link.drop(wait=True)

    def browse(self) -> Iterator[tuple[ServiceBusReceivedMessage, _Place]]:
        """Yield the messages that exist when it begins, by their numbers: it looks for the last one first."""
        kept: list[ServiceBusReceivedMessage] = []
        size, seen, shown = 0, 0, 0
        while page := self._peek(seen + 1):
            seen = _number(page[-1])
            if size < _KEPT:
                kept += page
                shown = seen
                size += sum(map(_size, page))
        for raw in kept:
            yield raw, self
        while shown < seen and (page := self._peek(shown + 1)):
            shown = _number(page[-1])
            yield from ((raw, self) for raw in page if _number(raw) <= seen)

    def remove(self, numbers: set[int], deadline: Deadline) -> int:
        """Receive up to the last of these; complete them, and abandon the others."""
        states = self._states(numbers, deadline)
        waiting = {number for number, state in states.items() if state is _ACTIVE}
        deferred = [number for number, state in states.items() if state is _DEFERRED]
        others: dict[int, object] = {}
        if not states:
            return 0
        try:
            with self._link.using(deadline.left(), f"removing from {self.path!r}") as handler:
                removed = self._remove_waiting(handler, waiting, others, deadline)
                for number in deferred:  # they are received by their number only
                    if deadline.is_late():
                        raise self._late("removing from", removed)
                    removed += self._remove_deferred(handler, number, deadline)
        finally:
            self._abandon(others, deadline)
        if waiting:  # the link still asks for them, and would take later messages instead
            self._link.drop(wait=True)
        if waiting and _ACTIVE in self._states(waiting, deadline).values():
            raise self._late("removing from", removed)
        return removed

    def purge(self, deadline: Deadline) -> int:
        """Receive and delete until no message is left that can be received."""
        count, number = 0, 1
        link = self._namespace.receiver(self._queue, "purging", sub=self.sub, delete=True)
        if not self._exists(link, deadline.left()):
            return 0
        try:
            with link.using(deadline.left()) as handler:
                while number := _next_active(handler, number, deadline):
                    found = [] if deadline.is_late() else handler.receive_messages(_PAGE, max_wait_time=deadline.left())
                    count += len(found)
                    if not found:
                        raise self._late("purging", count)
                if count:  # messages that were on their way when the last peek was sent have come with its answer
                    count += len(handler.receive_messages(_PAGE, max_wait_time=_LOOK))
        finally:
            link.drop(wait=True)  # an open link would go on deleting new messages
        return count

    def _peek(self, first: int, deadline: Deadline | None = None) -> list[ServiceBusReceivedMessage]:
        if not self._exists(self._link, self._timeout if deadline is None else deadline.left()):
            return []
        left = self._timeout if deadline is None else deadline.left()
        with self._link.using(left, safe=True) as handler:
            found: list[ServiceBusReceivedMessage] = handler.peek_messages(_PAGE, sequence_number=first, timeout=left)
        return found

    def _exists(self, link: Link[ServiceBusReceiver], within: float) -> bool:
        """Open the link; return whether the queue exists, if it may be missing."""
        return (link.open(within) if self._needed else none_if_missing(lambda: link.open(within))) is not None

    def _states(self, numbers: set[int], deadline: Deadline) -> dict[int, object]:
        """Return those of these messages that exist, and their states."""
        found: dict[int, object] = {}
        first, last = min(numbers, default=1), max(numbers, default=0)
        while first <= last and (page := self._peek(first, deadline)):
            found |= {_number(raw): raw.state for raw in page if raw.sequence_number in numbers}
            first = _number(page[-1]) + 1
            if first <= last and deadline.is_late():
                raise self._late("looking through", 0)
        return found

    def _remove_waiting(
        self, handler: ServiceBusReceiver, waiting: set[int], others: dict[int, object], deadline: Deadline
    ) -> int:
        """Remove what arrives of `waiting`, there too. The lock tokens of other messages are put into `others`."""
        removed = 0
        while waiting and not deadline.is_late():
            count = min(len(waiting) + len(others), _PAGE)
            found = handler.receive_messages(count, max_wait_time=deadline.left())
            fresh = {_number(raw): raw.lock_token for raw in found}
            if not fresh.keys() - others.keys():
                break  # another receiver has them, they are gone, or need very long to arrive
            for number, token in fresh.items():
                if number not in waiting or deadline.is_late():
                    others[number] = token
                elif _completed(handler, token, deadline.left()):
                    removed += 1
                    waiting.discard(number)
        return removed

    def _remove_deferred(self, handler: ServiceBusReceiver, number: int, deadline: Deadline) -> bool:
        try:
            (raw,) = handler.receive_deferred_messages([number], timeout=deadline.left())
        except Exception as error:
            if is_lost(error):
                return False
            raise
        return _completed(handler, raw.lock_token, deadline.left())

    def _abandon(self, others: dict[int, object], deadline: Deadline) -> None:
        """Abandon these locks. Those that it does not abandon in time run out by themselves."""
        for token in others.values():
            try:
                self._link.open(deadline.left())
                with self._link.using(deadline.left(), f"abandoning letters of {self.path!r}") as handler:
                    private.abandon(handler, token, deadline.left())
            except BrokerError as error:
                if not is_lost(error):
                    return

    def _late(self, doing: str, count: int) -> Retriable:
        text = f"{count} letters were removed; another receiver has the others, or they did not arrive in time"
        return Retriable(f"servicebus: {doing} {self.path!r}: {text}: do it again", code=Code.DEADLINE_EXCEEDED)


def _completed(handler: ServiceBusReceiver, token: object, timeout: float) -> bool:
    try:
        private.complete(handler, token, timeout)
    except Exception as error:
        if is_lost(error):
            return False
        raise
    return True


def _next_active(handler: ServiceBusReceiver, first: int, deadline: Deadline) -> int:
    """Return the first number from this one on that can be received: neither deferred nor scheduled; 0: none.

    It peeks over the link that receives, so that messages on their way there arrive before the answer.
    """
    while page := handler.peek_messages(_GLANCE, sequence_number=first, timeout=deadline.left()):
        for raw in page:
            if raw.state is _ACTIVE:
                return raw.sequence_number or 1
        first = _number(page[-1]) + 1
    return 0


def _number(raw: ServiceBusReceivedMessage) -> int:
    return raw.sequence_number or 0


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


def _age(item: tuple[ServiceBusReceivedMessage, Any]) -> float:
    came = item[0].enqueued_time_utc
    return 0.0 if came is None else came.timestamp()


def _letter(raw: ServiceBusReceivedMessage, place: _Place) -> Letter:
    decoded = codec.decode(raw)
    came = raw.enqueued_time_utc
    return Letter(
        position=f"{place.path}/{raw.sequence_number}",
        message=decoded.message,
        context=_context(raw, decoded),
        # In the sub-queue a message keeps the time at which it came to its queue.
        dead_lettered_ms=None if came is None or place.sub else int(came.timestamp() * 1000),
    )


def _context(raw: ServiceBusReceivedMessage, decoded: codec.Decoded) -> ErrorContext | None:
    if decoded.fault is not None:
        return undecodable("servicebus", decoded.fault)
    reason, description = raw.dead_letter_reason or "", raw.dead_letter_error_description or ""
    if not (reason or description):
        return None
    code = REASONS.get(reason)
    return given_up(
        "servicebus",
        code or Code.TERMINATED,
        (reason or description) if code is None else (description or reason),
        native_code=None if code is None else reason,
        source_topic=raw.dead_letter_source,
        message_id=decoded.message.id,
    )
