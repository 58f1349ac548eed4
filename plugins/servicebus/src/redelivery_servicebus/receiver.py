"""The receiver role: a lease is a lock, and lasts as long as the queue's lock duration.

A lock that has run out by this machine's clock is lost without asking. This file must not retry, nor decide that a
message is dead.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from azure.servicebus import ServiceBusClient, ServiceBusReceivedMessage, ServiceBusReceiver, ServiceBusSender

from redelivery.contract.broker import Accept, Outcome, Received, Receiver, Release, Retry, Terminate
from redelivery.contract.message import Message
from redelivery.errors import BrokerError, Fatal, LeaseLost, Permanent, Retriable
from redelivery_servicebus import codec
from redelivery_servicebus.address import Address
from redelivery_servicebus.client import private
from redelivery_servicebus.client.connection import client
from redelivery_servicebus.client.deadline import Deadline
from redelivery_servicebus.client.links import Link
from redelivery_servicebus.client.resend import copy_of
from redelivery_servicebus.errors import classified, is_lost
from redelivery_servicebus.options import Settings
from redelivery_servicebus.sender import outgoing

#: Messages asked for at once.
_MOST: Final = 1_000
#: The shortest wait that the SDK takes for one, in seconds.
_LOOK: Final = 0.02
#: Seconds that a receive may take to open its link, where its wait is shorter: it takes half a second at least.
_REOPEN: Final = 2.0
#: Seconds after which nothing further is begun, and after which nothing goes on.
_BEGIN: Final = 8.0
_END: Final = 27.0
#: Seconds kept free to complete a message whose copy was sent: without it, both are there.
_COMPLETING: Final = 5.0

log = logging.getLogger("redelivery.servicebus")


class Lease:
    """What a receiver holds of a message.

    Attributes:
        raw: the message as the SDK gave it.
        expires: when the lock runs out, monotonic seconds.
        ended: whether it was settled.
    """

    __slots__ = ("ended", "expires", "pid", "raw", "token")

    def __init__(self, raw: ServiceBusReceivedMessage, expires: float) -> None:
        self.raw = raw
        self.token: Any = raw.lock_token
        self.expires = expires
        self.ended = False
        self.pid = os.getpid()

    def is_valid(self) -> bool:
        """Whether it is still ours: one that came over a fork is the parent's."""
        return not self.ended and time.monotonic() < self.expires and self.pid == os.getpid()


class ServicebusReceiver(Receiver):
    """Leases and settles the messages of one queue."""

    def __init__(self, address: Address, settings: Settings) -> None:
        self._address = address
        self._settings = settings
        self._client: ServiceBusClient = client(address, settings)
        self._link: Link[ServiceBusReceiver] = Link(
            lambda: self._client.get_queue_receiver(address.queue, prefetch_count=0),
            self._doing("receiving from"),
            "Listen",
            settings.operation_timeout,
        )
        self._senders: dict[str, Link[ServiceBusSender]] = {}
        self._closed = False

    def open(self) -> None:
        """Open the link, which takes longer than a short wait for messages. Raises BrokerError."""
        try:
            self._link.open(self._settings.operation_timeout)
        except BrokerError:  # nobody has this receiver yet, to close it
            self._link.drop()
            raise

    def receive(self, max_messages: int, *, wait: float) -> Sequence[Received]:
        self._check_open()
        if max_messages <= 0:
            return []
        end = time.monotonic() + wait
        handler = self._link.open(min(max(wait, _REOPEN), self._settings.operation_timeout))
        try:
            with classified(self._doing("receiving from"), claim="Listen"):
                left = max(end - time.monotonic(), _LOOK)
                found = handler.receive_messages(min(max_messages, _MOST), max_wait_time=left)
        except BrokerError:
            self._link.drop()
            raise
        return [self._received(raw) for raw in found]

    def settle(self, outcomes: Sequence[tuple[Received, Outcome]]) -> Sequence[LeaseLost | BrokerError | None]:
        self._check_open()
        deadline = self._deadline("settling in")
        answers: list[LeaseLost | BrokerError | None] = []
        stop: BrokerError | None = None
        for received, outcome in outcomes:
            lease = received.lease
            if not isinstance(lease, Lease) or not lease.is_valid():
                answers.append(self._lost(received))
                continue
            if stop is None and deadline.is_late():
                stop = Retriable(
                    f"servicebus: {self._doing('settling in')}: not tried, as it took too long", native_code="LATE"
                )
            if stop is not None:
                answers.append(stop)
                continue
            try:
                self._end(received, lease, outcome, deadline)
                lease.ended = True
                answers.append(None)
            except LeaseLost as lost:
                lease.ended = True
                answers.append(lost)
            except BrokerError as error:
                answers.append(error)
                if not isinstance(error, Permanent):
                    stop = error if isinstance(error, Fatal) else _not_tried(error)
        return answers

    def extend(self, leases: Sequence[Received], seconds: float) -> Sequence[Received | LeaseLost]:  # noqa: ARG002 - a lock's length is its queue's
        self._check_open()
        deadline = self._deadline("prolonging locks in")
        answers: list[Received | LeaseLost] = []
        errors: list[BrokerError] = []
        prolonged = 0
        for received in leases:
            lease = received.lease
            if not isinstance(lease, Lease) or not lease.is_valid():
                answers.append(self._lost(received))
                continue
            answers.append(received)  # as long as it was, where it cannot be prolonged: whoever asked sees that
            if errors or deadline.is_late():
                continue
            try:
                lease.expires = self._renew(received, lease, deadline)
                answers[-1] = replace(received, expires=lease.expires)
                prolonged += 1
            except LeaseLost as lost:
                answers[-1] = lost
            except BrokerError as error:
                errors.append(error)
        if errors and not prolonged:
            raise errors[0]
        return answers

    def close(self) -> None:
        """What is locked stays so until its lock runs out: somebody may still be handling it."""
        if not self._closed:
            self._closed = True
            self._link.drop(wait=True)
            for link in self._senders.values():
                link.drop()

    # --- ending leases ---

    def _end(self, received: Received, lease: Lease, outcome: Outcome, deadline: Deadline) -> None:
        """Raises LeaseLost, BrokerError."""
        match outcome:
            case Accept():
                self._complete(received, lease, deadline)
            case Terminate():
                self._terminate(received, lease, outcome, deadline)
            case Retry(delay) if delay > timedelta(0):
                self._later(received, lease, delay, deadline)
            case Retry() | Release():
                self._by_token(received, deadline, lambda handler, left: private.abandon(handler, lease.token, left))

    def _terminate(self, received: Received, lease: Lease, outcome: Terminate, deadline: Deadline) -> None:
        base = received.attempt - (lease.raw.delivery_count or 0) - 1
        stays = _same_body(outcome.letter, received.message)
        most = None if stays else self._settings.max_message_bytes
        letter = codec.encode(outcome.letter, most, attempt=max(0, base))
        if not stays:
            # A letter with another body has to be sent; a letter that cannot be is refused, and its message kept.
            self._instead(received, lease, self._address.dead_letters.queue, outgoing(letter), deadline)
            return
        marks = codec.marks(letter, lease.raw, outcome.reason, outcome.description)
        if not marks[2] and codec.changed(letter, lease.raw):  # refused, it would come again for ever
            text = "servicebus: message %s of queue %r is dead-lettered without its context: its properties fill it"
            log.warning(text, received.position, self._address.queue)
        self._by_token(
            received, deadline, lambda handler, left: private.dead_letter(handler, lease.token, *marks, left)
        )

    def _later(self, received: Received, lease: Lease, delay: timedelta, deadline: Deadline) -> None:
        """A scheduled copy, then complete: see docs/decisions/0014."""
        copy = copy_of(lease.raw, received.attempt)
        copy.scheduled_enqueue_time_utc = datetime.now(UTC) + delay + timedelta(milliseconds=1)
        self._instead(received, lease, self._address.queue, copy, deadline)

    def _instead(self, received: Received, lease: Lease, queue: str, message: Any, deadline: Deadline) -> None:
        """Send this, confirm, and complete. Killed in between, both are there; never none."""
        lease.expires = self._renew(received, lease, deadline)  # it is ours, and stays so until it is completed
        doing = f"sending to queue {queue!r}"
        link = self._senders.get(queue)
        if link is None:
            patience = self._settings.operation_timeout
            link = Link(lambda: self._client.get_queue_sender(queue), doing, "Send", patience)
            self._senders[queue] = link
        sender = link.open(deadline.left(reserve=_COMPLETING))
        left = deadline.left(reserve=_COMPLETING)
        try:
            with classified(doing, claim="Send"):
                sender.send_messages(message, timeout=left)
        except BrokerError:
            link.drop()
            raise
        self._complete(received, lease, deadline)

    def _complete(self, received: Received, lease: Lease, deadline: Deadline) -> None:
        self._by_token(received, deadline, lambda handler, left: private.complete(handler, lease.token, left))

    def _renew(self, received: Received, lease: Lease, deadline: Deadline) -> float:
        until: list[float] = []
        self._by_token(
            received, deadline, lambda handler, left: until.append(private.renew(handler, lease.token, left))
        )
        return _monotonic(until[0])

    def _by_token(
        self, received: Received, deadline: Deadline, act: Callable[[ServiceBusReceiver, float], None]
    ) -> None:
        """Raises LeaseLost, BrokerError."""
        handler = self._link.open(deadline.left())
        left = deadline.left()
        try:
            with classified(self._doing("settling in"), claim="Listen"):
                act(handler, left)
        except BrokerError as error:
            if error.__cause__ is not None and is_lost(error.__cause__):
                raise self._lost(received) from error
            self._link.drop()
            raise

    def _deadline(self, doing: str) -> Deadline:
        return Deadline(self._doing(doing), begin=_BEGIN, end=_END, step=self._settings.operation_timeout)

    # --- words ---

    def _received(self, raw: ServiceBusReceivedMessage) -> Received:
        decoded = codec.decode(raw)
        until = raw.locked_until_utc
        lease = Lease(raw, time.monotonic() if until is None else _monotonic(until.timestamp()))
        return Received(
            message=decoded.message,
            attempt=decoded.attempt + (raw.delivery_count or 0) + 1,
            lease=lease,
            expires=lease.expires,
            position=str(raw.sequence_number),
            lasting=True,
            undecodable=decoded.fault,
        )

    def _check_open(self) -> None:
        if self._closed:
            text = "this receiver is closed; open another (what it leased comes back when the leases end)"
            raise Fatal(f"servicebus: {self._doing('receiving from')}: {text}", native_code="CLOSED")

    def _lost(self, received: Received) -> LeaseLost:
        text = "its lock has run out, is another process's, or was settled before; nothing was changed"
        return LeaseLost(f"servicebus: message {received.position} of queue {self._address.queue!r}: {text}")

    def _doing(self, what: str) -> str:
        return f"{what} queue {self._address.queue!r}"


def _monotonic(epoch: float) -> float:
    """A time of Service Bus's clock by our monotonic one."""
    return time.monotonic() + epoch - time.time()


def _same_body(letter: Message, message: Message) -> bool:
    return letter.value == message.value


def _not_tried(error: BrokerError) -> BrokerError:
    return Retriable(f"servicebus: not tried, as what went before has failed: {error}", native_code="NOT_TRIED")
