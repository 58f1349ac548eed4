"""The dead letters role: the messages of a queue's dead-letter sub-queue, and of the queue that it is forwarded to.

Browsing peeks, and locks nothing. Removing receives, completes the letters that were named, and abandons the others.
An empty receive does not prove that a queue is empty, as messages may need long to arrive: only a peek proves it.

Splits are ranges of sequence numbers, and a cursor is a number of the queue that letters are written or forwarded to. A
partitioned queue has the partition in the upper 16 bits of its numbers: there they do not rise with time. So it is one
split, and has no cursor.
"""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from azure.servicebus import ServiceBusMessageState, ServiceBusReceivedMessage, ServiceBusReceiver

from redelivery.codes import Code
from redelivery.contract.broker import DeadLetters, Letter
from redelivery.contract.context import ErrorContext
from redelivery.contract.letters import WHOLE, LetterBatch, Wanted, batches
from redelivery.errors import BrokerError, ConfigurationError, Fatal, Retriable, Unsupported
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
#: The first number of a partitioned queue's second partition.
_PARTITION: Final = 1 << 48
#: Numbers of one split, at least, and splits for each reader: letters may have been removed from some of them.
_SPLIT: Final = 1_000
_SPLITS: Final = 2
#: How far the clocks of Service Bus may differ, in milliseconds.
_SKEW: Final = 10_000
#: Seconds that letters may take from the sub-queue to the queue that it is forwarded to, and between two looks.
_FORWARDING: Final = 5.0
_POLL: Final = 0.1
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

    def splits(self, wanted: Wanted) -> Sequence[str]:
        self.check_open("browsing")
        if wanted.after is not None or wanted.before is not None:
            place = self._places[-1]
            after = 0 if wanted.after is None else self._cursor(wanted.after).number
            before = place.last() if wanted.before is None else self._cursor(wanted.before).number
            return place.splits(after + 1, before, wanted)
        if any(place.is_partitioned() for place in self._places):
            return (WHOLE,)
        return [split for place in self._places for split in place.splits(place.first(), place.last(), wanted)]

    def read(self, split: str, wanted: Wanted) -> Iterator[LetterBatch]:
        if split == WHOLE:
            return batches(self.browse())
        path, _, numbers = split.rpartition("/")
        first, _, last = numbers.partition("-")
        place = next((each for each in self._places if each.path == path), None)
        if place is None or not (_is_number(first) and _is_number(last)):
            raise ConfigurationError(f"servicebus: {split!r} is not a split of {self._place}")
        only = None if wanted.positions is None else _numbers(wanted.positions, path)
        return batches(self._between(place, int(first), int(last), only))

    def cursor(self, *, after: str | None = None, most: int | None = None) -> str:
        self.check_open("browsing")
        place = self._places[-1]
        old = Cursor(place.path, 0, 0) if after is None else self._cursor(after)
        if place.is_partitioned():
            why = "its sequence numbers do not rise with time; read its letters as a whole"
            raise Unsupported(f"servicebus: {self._place} is partitioned: {why}")
        self._await_forwarding()
        oldest = place.look(1)
        if after is not None and oldest is not None and _number(oldest) <= old.number:
            came = _came_ms(oldest)
            if came > old.came_ms + _SKEW:
                text = (
                    f"{self._place} has been created again since the cursor was made: number {_number(oldest)} is new"
                )
                raise Fatal(f"servicebus: {text}", code=Code.CONFLICT)
        begin = place.look(old.number + 1)
        if begin is None:
            return str(old)
        last = place.last(_number(begin))
        if most is not None:
            last = min(last, _number(begin) + max(1, most) - 1)
        return str(Cursor(place.path, last, _came_ms(place.look(last) or begin)))

    def remove(self, positions: Sequence[str]) -> int:
        deadline = self._deadline("removing letters of")
        return sum(place.remove(_numbers(positions, place.path), deadline) for place in self._places)

    def purge(self) -> int:
        deadline = self._deadline("purging letters of")
        return sum(place.purge(deadline) for place in self._places)

    def _release(self) -> None:
        for place in self._places:
            place.close()

    def _between(self, place: _Place, first: int, last: int, only: Collection[int] | None) -> Iterator[Letter]:
        for raw in place.between(first, last, only):
            self.check_open("browsing")
            yield _letter(raw, place)

    def _cursor(self, text: str) -> Cursor:
        """Read a cursor. Raises ConfigurationError."""
        path, _, rest = text.rpartition("/")
        number, _, came_ms = rest.partition("@")
        if path != self._places[-1].path or not (_is_number(number) and _is_number(came_ms)):
            raise ConfigurationError(f"servicebus: {text!r} is not a cursor of {self._place}")
        return Cursor(path, int(number), int(came_ms))

    def _await_forwarding(self) -> None:
        """Wait until the sub-queue is empty. Its numbers are not sure to rise, so its letters are not in a stream.

        Raises:
            Retriable: letters remain there.
            Unsupported: nothing is forwarded.
        """
        if len(self._places) == 1:
            return
        sub, queue = self._places
        if not queue.exists():
            text = f"letters stay in {sub.path!r}, whose numbers are not sure to rise: a stream needs them forwarded"
            raise Unsupported(f"servicebus: {self.doing('browsing')}: {text}: provision it, or read them as a whole")
        end = time.monotonic() + _FORWARDING
        while sub.look(1) is not None:
            if time.monotonic() >= end or self.sleep_unless_closed(_POLL):
                text = f"letters in {sub.path!r} are not forwarded to {queue.path!r}; a stream would not see them"
                raise Retriable(f"servicebus: {self.doing('browsing')}: {text}: provision it", code=Code.CONFLICT)

    def _deadline(self, what: str) -> Deadline:
        self.check_open(what)
        return Deadline(self.doing(what), begin=_BEGIN, end=_END, step=self._settings.operation_timeout)


class Cursor(NamedTuple):
    """The point behind a sequence number of a queue.

    Attributes:
        path: of the queue.
        number: of the last message before it; 0: none.
        came_ms: when that message came to the queue, milliseconds since the epoch; or later.
    """

    path: str
    number: int
    came_ms: int

    def __str__(self) -> str:
        return f"{self.path}/{self.number}@{self.came_ms}"


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

    def exists(self) -> bool:
        """Return whether its queue exists. Raises BrokerError."""
        return self._exists(self._link, self._timeout)

    def look(self, first: int) -> ServiceBusReceivedMessage | None:
        """Return the first message from this number on."""
        return next(iter(self._peek(first, count=1)), None)

    def first(self) -> int:
        """Return the number of the first message; 1 if there is none."""
        found = self.look(1)
        return 1 if found is None else _number(found)

    def last(self, first: int = 1) -> int:
        """Return the number of the last message, knowing that it is not before `first`; 0 if there is none."""
        found = self.look(first)
        last, step = 0, 1
        while found is not None:  # from each message twice as far
            last = _number(found)
            found = self.look(last + step)
            step *= 2
        low, high = last, last + step // 2 - 1  # no message is behind `high`
        while low < high:
            found = self.look((low + high) // 2 + 1)
            if found is None:
                high = (low + high) // 2
            else:
                low = _number(found)
        return low

    def is_partitioned(self) -> bool:
        """Return whether a message is in another than the first partition."""
        return self.look(_PARTITION) is not None

    def splits(self, first: int, last: int, wanted: Wanted) -> list[str]:
        """Return the splits of these numbers. A removal also receives others' letters: then there is one."""
        span = last - first + 1
        if span <= 0:
            return []
        count = 1 if wanted.removing else max(1, min(wanted.readers * _SPLITS, span // _SPLIT, span))
        bounds = [first + span * at // count for at in range(count + 1)]
        return [f"{self.path}/{begin}-{end - 1}" for begin, end in itertools.pairwise(bounds)]

    def between(self, first: int, last: int, only: Collection[int] | None) -> Iterator[ServiceBusReceivedMessage]:
        """Yield the messages with these numbers, in their order; of `only`, if it is given."""
        left = None if only is None else sorted((each for each in only if first <= each <= last), reverse=True)
        while first <= last and (left is None or left):
            if left:
                first = max(first, left[-1])
            page = self._peek(first, count=min(_PAGE, last - first + 1))
            if not page:
                return
            first = _number(page[-1]) + 1
            yield from (raw for raw in page if _number(raw) <= last and (only is None or _number(raw) in only))
            while left and left[-1] < first:
                left.pop()

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

    def _peek(
        self, first: int, deadline: Deadline | None = None, *, count: int = _PAGE
    ) -> list[ServiceBusReceivedMessage]:
        if not self._exists(self._link, self._timeout if deadline is None else deadline.left()):
            return []
        left = self._timeout if deadline is None else deadline.left()
        with self._link.using(left, safe=True) as handler:
            found: list[ServiceBusReceivedMessage] = handler.peek_messages(count, sequence_number=first, timeout=left)
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
            others |= {number: token for number, token in fresh.items() if number not in waiting}
            ours = [(number, token) for number, token in fresh.items() if number in waiting]
            for some in map(dict, private.groups(ours)):
                if deadline.is_late():
                    others |= some
                else:
                    done = self._completed(handler, some, deadline)
                    removed += len(done)
                    waiting -= done
        return removed

    def _completed(self, handler: ServiceBusReceiver, locks: Mapping[int, object], deadline: Deadline) -> set[int]:
        """Complete these messages, in one request if none of their locks is lost; return those that are removed."""
        try:
            private.complete(handler, [*locks.values()], deadline.left())
        except Exception as error:
            if not is_lost(error):
                raise
        else:
            return {*locks}
        # Service Bus may have completed some of them, whose locks are lost too.
        done = {number for number, token in locks.items() if _completed(handler, token, deadline.left())}
        return done | (locks.keys() - self._states({*locks} - done, deadline).keys())

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
        private.complete(handler, [token], timeout)
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


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= _DIGITS


def _numbers(positions: Collection[str], path: str) -> set[int]:
    found = set()
    for position in positions:
        place, _, number = position.rpartition("/")
        if place == path and _is_number(number):
            found.add(int(number))
    return found


def _size(raw: ServiceBusReceivedMessage) -> int:
    try:
        return sum(len(part) for part in raw.body)
    except TypeError:  # a body of another kind, in memory already
        return 1024


def _came_ms(raw: ServiceBusReceivedMessage) -> int:
    came = raw.enqueued_time_utc
    return 0 if came is None else int(came.timestamp() * 1000)


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
    reason, description = codec.property_text(raw, codec.REASON), codec.property_text(raw, codec.DESCRIPTION)
    if not (reason or description):
        return None
    code = REASONS.get(reason)
    told = description or reason  # Service Bus's own reasons are codes
    if code is None:  # an application's: a word or a sentence, and what happened
        told = ": ".join(each for each in (reason, description) if each)
    return given_up(
        "servicebus",
        code or Code.TERMINATED,
        told,
        native_code=reason if code is not None or (reason and description) else None,
        source_topic=raw.dead_letter_source,
        message_id=decoded.message.id,
    )
