"""The receiver role: a lease is a lock, of a message or of its session, and lasts as long as the queue's lock duration.

A lock that has run out by this machine's clock is lost, without asking Service Bus.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Self, TypeVar

from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage, ServiceBusReceiver, ServiceBusSender
from azure.servicebus.exceptions import OperationTimeoutError

from redelivery.codes import Code
from redelivery.contract.broker import Accept, Outcome, Received, Receiver, Release, Retry, Terminate
from redelivery.errors import BrokerError, Fatal, LeaseLost, Permanent, Retriable, Unsupported
from redelivery.kit.leases import Lease, Settlement, answer_extend, is_held, lost
from redelivery.kit.roles import Resource
from redelivery_servicebus import codec
from redelivery_servicebus.address import Address
from redelivery_servicebus.client import private
from redelivery_servicebus.client.connection import Namespace
from redelivery_servicebus.client.deadline import Deadline
from redelivery_servicebus.client.links import OPENING, Link, SessionLink
from redelivery_servicebus.client.resend import copy_of
from redelivery_servicebus.errors import is_lost
from redelivery_servicebus.options import Settings

T = TypeVar("T")

#: Messages asked for at once.
_MOST: Final = 1_000
#: The shortest wait that the SDK accepts for a message, in seconds.
_LOOK: Final = 0.02
#: Seconds that a receive may take to open its link, if its wait is shorter: opening takes at least half a second.
_REOPEN: Final = 2.0
#: Seconds after which no further settlement begins, and after which every request ends.
_BEGIN: Final = 8.0
_END: Final = 27.0
#: Sessions of which messages are in hand, at most: each has its own connection.
_SESSIONS: Final = 16
#: Seconds that a session may be silent before it is left, and that Service Bus waits for a free one at a time.
_QUIET: Final = 0.25
_WAIT: Final = 4.0
#: Seconds to wait for a new session's messages, which exist.
_COMING: Final = 1.0
#: Seconds kept free to complete a message whose copy was sent: without them, both would stay.
_COMPLETING: Final = 5.0

log = logging.getLogger("redelivery.servicebus")


class Lock(Lease):
    """The lock on a message, the message as the SDK gave it, and the link that it came by.

    Args:
        raw: the message.
        link: where it came from.
        until: when the lock ends, by Service Bus's clock: its session's end, where it has one.
    """

    __slots__ = ("link", "raw")

    def __init__(self, raw: ServiceBusReceivedMessage, link: Link[ServiceBusReceiver], until: datetime | None) -> None:
        super().__init__(time.monotonic() if until is None else monotonic(until.timestamp()))
        self.raw = raw
        self.link = link


class ServicebusReceiver(Resource, Receiver):
    """Leases and settles the messages of one queue."""

    def __init__(self, address: Address, settings: Settings) -> None:
        super().__init__("servicebus", f"queue {address.queue!r}")
        self._address = address
        self._settings = settings
        self._namespace = Namespace(address, settings)
        self._link = self._namespace.receiver(address.queue, "receiving from")
        self._senders: dict[str, Link[ServiceBusSender]] = {}

    def open(self) -> Self:
        """Open the link, which takes longer than a short wait for messages. Raises BrokerError."""
        try:
            self._link.open(self._settings.operation_timeout)
        except BrokerError:  # the caller has no receiver to close
            self._link.drop()
            raise
        return self

    def receive(self, max_messages: int, *, wait: float) -> Sequence[Received]:
        self.check_open("receiving from")
        if max_messages <= 0:
            return []
        end = time.monotonic() + wait
        with self._link.using(min(max(wait, _REOPEN), self._settings.operation_timeout)) as handler:
            left = max(end - time.monotonic(), _LOOK)
            found = handler.receive_messages(min(max_messages, _MOST), max_wait_time=left)
        return [received_from(self._link, raw, raw.locked_until_utc) for raw in found]

    def settle(self, outcomes: Sequence[tuple[Received, Outcome]]) -> Sequence[LeaseLost | BrokerError | None]:
        self.check_open("settling in")
        deadline = self._deadline("settling in")
        why = self._why_no_delay()
        if why is not None and any(isinstance(each, Retry) and each.delay > timedelta(0) for _, each in outcomes):
            raise Unsupported(f"servicebus: {self._place}: {why}")
        call = Settlement(outcomes, is_held, self._lost)
        accepted = self._accept_together(call, deadline)
        for at, (received, outcome) in call.waiting():
            if deadline.is_late():
                text = f"servicebus: {self.doing('settling in')}: not tried, because the call took too long"
                call.answer_rest(Retriable(text, code=Code.DEADLINE_EXCEEDED))
                break
            try:
                self._settle(received, outcome, deadline)
                call.answer(at, None)
            except LeaseLost as lease_lost:
                is_gone = at in accepted and not self._exists(received, deadline)
                call.answer(at, None if is_gone else lease_lost)
            except BrokerError as error:
                call.answer(at, error)
                if not isinstance(error, Permanent):
                    call.answer_rest(error if isinstance(error, Fatal) else _not_tried(error))
                    break
        return call.answers

    def extend(self, leases: Sequence[Received], seconds: float) -> Sequence[Received | LeaseLost]:  # noqa: ARG002 - a lock's length is its queue's
        self.check_open("prolonging locks in")
        deadline = self._deadline("prolonging locks in")
        ends: dict[int, float | BrokerError | None] = {}
        failed = False
        for at, received in enumerate(leases):
            if not is_held(received):
                continue
            ends[at] = None
            if not failed and not deadline.is_late():
                try:
                    ends[at] = self._renew(received, deadline)
                except LeaseLost:
                    del ends[at]
                except BrokerError as error:
                    ends[at], failed = error, True
        return answer_extend(leases, ends, self._lost)

    def _release(self) -> None:
        """Leave locked messages locked until their locks run out: another thread may still be handling them."""
        self._link.drop(wait=True)
        for link in self._senders.values():
            link.drop()

    def _why_no_delay(self) -> str | None:
        """Return why no copy can be sent for later; None: it can."""
        if not self._address.owner:
            return None
        text = "a copy for later would go to every subscription of its topic; retry at once, or receive from"
        return f"{text} <topic>?subscription=<name>"

    def _accept_together(self, call: Settlement, deadline: Deadline) -> set[int]:
        """Complete messages, a hundred in one request, until one fails.

        Returns:
            The indices of that request: some of them may have been completed, and their locks are lost too.
        """
        by_link: dict[Link[ServiceBusReceiver], list[tuple[int, tuple[Received, Accept]]]] = {}
        for each in call.waiting(Accept):
            by_link.setdefault(each[1][0].lease.link, []).append(each)
        for link, some in ((link, some) for link, all_of in by_link.items() for some in private.groups(all_of)):
            if len(some) == 1 or deadline.is_late():
                continue
            tokens = [received.lease.raw.lock_token for _, (received, _) in some]
            try:
                link.open(deadline.left())
                left = deadline.left()
                with link.using(left, self.doing("settling in")) as handler:
                    private.complete(handler, tokens, left)
            except BrokerError as error:
                if is_lost(error) or isinstance(error, Permanent):
                    return {at for at, _ in some}
                for at, _ in some:
                    call.answer(at, error)
                call.answer_rest(error if isinstance(error, Fatal) else _not_tried(error))
            else:
                for at, _ in some:
                    call.answer(at, None)
        return set()

    def _exists(self, received: Received, deadline: Deadline) -> bool:
        """Return whether a message is still in the queue, or may be."""
        number = received.lease.raw.sequence_number
        link: Link[ServiceBusReceiver] = received.lease.link
        try:
            link.open(deadline.left())
            left = deadline.left()
            with link.using(left, self.doing("looking into"), safe=True) as handler:
                found = handler.peek_messages(1, sequence_number=number, timeout=left)
        except BrokerError:
            return True
        return any(each.sequence_number == number for each in found)

    # --- one message ---

    def _settle(self, received: Received, outcome: Outcome, deadline: Deadline) -> None:
        """Raises LeaseLost, BrokerError."""
        match outcome:
            case Terminate():
                self._terminate(received, outcome, deadline)
            case Retry(delay) if delay > timedelta(0):
                self._retry_later(received, delay, deadline)
            case Retry() | Release():
                self._by_token(private.abandon, received, deadline)
            case Accept():
                self._by_token(_complete, received, deadline)

    def _terminate(self, received: Received, outcome: Terminate, deadline: Deadline) -> None:
        raw = received.lease.raw
        earlier = max(0, received.attempt - (raw.delivery_count or 0) - 1)
        if outcome.letter.value != received.message.value and private.unreadable(raw) is None:
            # A letter with another body has to be sent. If it cannot be sent, it is refused and its message kept.
            letter = codec.encode(outcome.letter, self._settings.max_message_bytes, attempt=earlier)
            self._replace(received, self._address.dead_letters.queue, codec.outgoing(letter), deadline)
            return
        letter = codec.encode(outcome.letter, None, attempt=earlier)
        in_place = codec.letter_in_place(letter, raw, outcome.reason, outcome.description)
        if not in_place[2] and codec.changed_properties(letter, raw):  # if it were refused, it would come again forever
            text = "servicebus: message %s of queue %r is dead-lettered without its context: its properties fill it"
            log.warning(text, received.position, self._address.queue)
        self._by_token(private.dead_letter, received, deadline, *in_place)

    def _retry_later(self, received: Received, delay: timedelta, deadline: Deadline) -> None:
        """Send a scheduled copy, then complete: see docs/decisions/0014."""
        copy = copy_of(received.lease.raw, received.attempt)
        copy.scheduled_enqueue_time_utc = datetime.now(UTC) + delay + timedelta(milliseconds=1)
        self._replace(received, self._address.queue, copy, deadline)

    def _replace(self, received: Received, queue: str, message: ServiceBusMessage, deadline: Deadline) -> None:
        """Send this message, confirm it, and complete the received one. After a crash in between, both exist."""
        received.lease.expires = self._renew(received, deadline)  # it is ours, and stays so until it is completed
        if queue not in self._senders:
            self._senders[queue] = self._namespace.sender(queue)
        link = self._senders[queue]
        link.open(deadline.left(reserve=_COMPLETING))
        left = deadline.left(reserve=_COMPLETING)
        with link.using(left) as handler:
            handler.send_messages(message, timeout=left)
        self._by_token(_complete, received, deadline)

    def _renew(self, received: Received, deadline: Deadline) -> float:
        return monotonic(self._by_token(private.renew, received, deadline))

    def _by_token(self, act: Callable[..., T], received: Received, deadline: Deadline, *given: Any) -> T:
        """Call a function of `private` for a message. Raises LeaseLost, BrokerError."""
        link: Link[ServiceBusReceiver] = received.lease.link
        try:
            link.open(deadline.left())
            left = deadline.left()
            with link.using(left, self.doing("settling in")) as handler:
                return act(handler, received.lease.raw.lock_token, *given, left)
        except BrokerError as error:
            if is_lost(error):
                raise self._lost(received) from error
            raise

    def _deadline(self, doing: str) -> Deadline:
        return Deadline(self.doing(doing), begin=_BEGIN, end=_END, step=self._settings.operation_timeout)

    def _lost(self, received: Received) -> LeaseLost:
        return lost("servicebus", f"queue {self._address.queue!r}", received)


class SessionReceiver(ServicebusReceiver):
    """Leases and settles the messages of a queue that requires sessions.

    It takes the next session that is free, and leaves it when it gives nothing and none of its messages is in hand.
    While messages of some sessions are in hand, it takes others. A session's lock is that of all its messages.
    """

    def __init__(self, address: Address, settings: Settings) -> None:
        super().__init__(address, settings)
        self._sessions: list[SessionLink] = []
        self._next: SessionLink | None = None  # the one that is being opened
        self._closing = threading.Event()

    def open(self) -> Self:
        """Ask for a first session; there need not be one. Raises BrokerError."""
        try:
            self._take_session(self._settings.operation_timeout, first=True)
        except BrokerError:  # the caller has no receiver to close
            self._release()
            raise
        return self

    def receive(self, max_messages: int, *, wait: float) -> Sequence[Received]:
        self.check_open("receiving from")
        end = time.monotonic() + wait
        while max_messages > 0:
            for session in list(self._sessions):
                found = self._receive_from(session, max_messages, min(end - time.monotonic(), _QUIET))
                if found:
                    return found
            left = end - time.monotonic()
            taken = self._take_session(min(left, _QUIET) if self._sessions else left)
            found = [] if taken is None else self._receive_from(taken, max_messages, _COMING)
            if found or time.monotonic() >= end:
                return found
        return []

    def _release(self) -> None:
        """Leave all sessions: the next receiver gets what is in hand."""
        self._closing.set()
        for link in self._sessions:
            link.drop(wait=True)
        self._sessions = []
        if self._next is not None:
            self._next.drop()
        super()._release()

    def _why_no_delay(self) -> str:
        return "a copy for later would be overtaken in its session; retry at once"

    def _take_session(self, within: float, *, first: bool = False) -> SessionLink | None:
        """Return the next session, now among ours; None: there is none yet.

        Args:
            within: seconds to wait for one.
            first: wait for Service Bus's answer, which comes soon.

        Raises:
            BrokerError: none can be had; with `first`, there was no answer.
        """
        if len(self._sessions) >= _SESSIONS:
            if self._closing.wait(max(0.0, within)):
                self.check_open("receiving from")
            return None
        if self._next is None:
            wait = _QUIET if first else min(_WAIT, self._settings.operation_timeout / 2)
            self._next = self._namespace.session(self._address.queue, wait)
        link = self._next
        try:
            link.open(within)
        except BrokerError as error:
            if error.native_code == OPENING and not first:
                return None
            self._next = None
            link.drop()
            if isinstance(error.__cause__, OperationTimeoutError):  # none is free, or none has messages
                return None
            raise
        self._next = None
        self._sessions.append(link)
        return link

    def _receive_from(self, session: SessionLink, most: int, wait: float) -> list[Received]:
        """Return messages of a session. It is left if it is lost, or if it has no more and none is in hand."""
        now = time.monotonic()
        in_hand = session.in_hand()
        if any(not each.is_valid(now) for each in in_hand):  # their successors would pass them
            if not any(each.is_valid(now) for each in in_hand):
                self._leave(session)
            return []
        try:
            with session.using(self._settings.operation_timeout) as handler:
                if not in_hand and now > session.locked + session.length / 3:
                    handler.session.renew_lock(timeout=self._settings.operation_timeout)
                    session.renewed(handler.session.locked_until_utc)
                found = handler.receive_messages(min(most, _MOST), max_wait_time=max(wait, _LOOK))
                until = handler.session.locked_until_utc
        except BrokerError as error:
            self._leave(session)
            if is_lost(error):
                return []
            raise
        now = time.monotonic()
        if found:
            session.found = now
        elif not in_hand and now > session.found + _QUIET:
            self._leave(session)
        received = [received_from(session, raw, until) for raw in found]
        session.leases += [each.lease for each in received]
        return received

    def _leave(self, session: SessionLink) -> None:
        session.drop()
        self._sessions.remove(session)

    def _renew(self, received: Received, deadline: Deadline) -> float:
        """Renew the session's lock, once in a call for all of its messages."""
        link: SessionLink = received.lease.link
        if link.renewal[0] is not deadline:
            link.renewal = (deadline, monotonic(self._by_token(private.renew_session, received, deadline)))
            link.locked = time.monotonic()
        return link.renewal[1]


def received_from(link: Link[ServiceBusReceiver], raw: ServiceBusReceivedMessage, until: datetime | None) -> Received:
    """Return a message as received; arguments as for `Lock`."""
    decoded = codec.decode(raw)
    lock = Lock(raw, link, until)
    return Received(
        message=decoded.message,
        attempt=decoded.attempt + (raw.delivery_count or 0) + 1,
        lease=lock,
        expires=lock.expires,
        position=str(raw.sequence_number),
        lasting=True,
        undecodable=decoded.fault,
    )


def _complete(handler: ServiceBusReceiver, token: Any, timeout: float) -> None:
    private.complete(handler, [token], timeout)


def monotonic(epoch: float) -> float:
    """Return a time of Service Bus's clock by our monotonic one."""
    return time.monotonic() + epoch - time.time()


def _not_tried(error: BrokerError) -> BrokerError:
    text = f"servicebus: not tried, because an earlier request failed: {error}"
    return Retriable(text, code=Code.NOT_SENT)
