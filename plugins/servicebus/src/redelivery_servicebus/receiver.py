"""The receiver role: a lease is a lock, and lasts as long as the queue's lock duration.

A lock that has run out by this machine's clock is lost without asking. This file must not retry, nor decide that a
message is dead.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from azure.servicebus import ServiceBusClient, ServiceBusReceivedMessage, ServiceBusReceiver, ServiceBusSender

from redelivery.broker import Accept, GiveBack, Outcome, Received, Receiver, Retry, Terminate
from redelivery.errors import BrokerError, Fatal, LeaseLost, Permanent, Retriable
from redelivery.message import Message
from redelivery_servicebus import encoding, settling
from redelivery_servicebus.address import Address
from redelivery_servicebus.config import Settings, client
from redelivery_servicebus.copies import copy_of
from redelivery_servicebus.errors import classified, is_lost
from redelivery_servicebus.links import Link
from redelivery_servicebus.sender import outgoing

#: Messages asked for at once.
_MOST: Final = 1_000
#: The shortest wait that the SDK takes for one, in seconds.
_LOOK: Final = 0.02
#: Seconds after which nothing further is begun: a call ends within the contract's bound.
_PATIENCE: Final = 8.0


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
        )
        self._senders: dict[str, Link[ServiceBusSender]] = {}
        self._closed = False

    def open(self) -> None:
        """Open the link, which takes longer than a short wait for messages. Raises BrokerError."""
        self._open()

    def receive(self, max_messages: int, *, wait: float) -> Sequence[Received]:
        self._check_open()
        if max_messages <= 0:
            return []
        handler = self._open()
        try:
            with classified(self._doing("receiving from"), claim="Listen"):
                found = handler.receive_messages(min(max_messages, _MOST), max_wait_time=max(wait, _LOOK))
        except BrokerError:
            self._link.drop()
            raise
        return [self._received(raw) for raw in found]

    def settle(self, outcomes: Sequence[tuple[Received, Outcome]]) -> Sequence[LeaseLost | BrokerError | None]:
        self._check_open()
        end = time.monotonic() + _PATIENCE
        answers: list[LeaseLost | BrokerError | None] = []
        stop: BrokerError | None = None
        for received, outcome in outcomes:
            lease = received.lease
            if not isinstance(lease, Lease) or not lease.is_valid():
                answers.append(self._lost(received))
                continue
            if stop is None and time.monotonic() > end:
                stop = Retriable(
                    f"servicebus: {self._doing('settling in')}: not tried, as it took too long", code="LATE"
                )
            if stop is not None:
                answers.append(stop)
                continue
            try:
                self._end(received, lease, outcome)
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
        end = time.monotonic() + _PATIENCE
        answers: list[Received | LeaseLost] = []
        errors: list[BrokerError] = []
        prolonged = 0
        for received in leases:
            lease = received.lease
            if not isinstance(lease, Lease) or not lease.is_valid():
                answers.append(self._lost(received))
                continue
            answers.append(received)  # as long as it was, where it cannot be prolonged: whoever asked sees that
            if errors or time.monotonic() > end:
                continue
            try:
                lease.expires = self._renew(received, lease)
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

    def _end(self, received: Received, lease: Lease, outcome: Outcome) -> None:
        """Raises LeaseLost, BrokerError."""
        match outcome:
            case Accept():
                self._by_token(received, lambda handler: settling.complete(handler, lease.token))
            case Terminate():
                self._terminate(received, lease, outcome)
            case Retry(delay) if delay > timedelta(0):
                self._later(received, lease, delay)
            case Retry() | GiveBack():
                self._by_token(received, lambda handler: settling.abandon(handler, lease.token))

    def _terminate(self, received: Received, lease: Lease, outcome: Terminate) -> None:
        base = received.attempt - (lease.raw.delivery_count or 0) - 1
        letter = encoding.encode(outcome.letter, self._settings.max_message_bytes, attempt=max(0, base))
        if not _same_body(outcome.letter, received.message):
            # A letter with another body has to be sent; a letter that cannot be is refused, and its message kept.
            self._instead(received, lease, self._address.dead_letters.queue, outgoing(letter))
            return
        properties = encoding.changed(letter, lease.raw)
        texts = (outcome.reason, outcome.description, properties)
        self._by_token(received, lambda handler: settling.dead_letter(handler, lease.token, *texts))

    def _later(self, received: Received, lease: Lease, delay: timedelta) -> None:
        """A scheduled copy, then complete: see docs/decisions/0014."""
        copy = copy_of(lease.raw, received.attempt)
        copy.scheduled_enqueue_time_utc = datetime.now(UTC) + delay + timedelta(milliseconds=1)
        self._instead(received, lease, self._address.queue, copy)

    def _instead(self, received: Received, lease: Lease, queue: str, message: Any) -> None:
        """Send this, confirm, and complete. Killed in between, both are there; never none."""
        lease.expires = self._renew(received, lease)  # it is ours, and stays so until it is completed
        doing = f"sending to queue {queue!r}"
        link = self._senders.get(queue)
        if link is None:
            link = self._senders[queue] = Link(lambda: self._client.get_queue_sender(queue), doing, "Send")
        sender = link.open(self._settings.operation_timeout)
        try:
            with classified(doing, claim="Send"):
                sender.send_messages(message, timeout=self._settings.operation_timeout)
        except BrokerError:
            link.drop()
            raise
        self._by_token(received, lambda handler: settling.complete(handler, lease.token))

    def _renew(self, received: Received, lease: Lease) -> float:
        timeout = self._settings.operation_timeout
        until: list[float] = []
        self._by_token(received, lambda handler: until.append(settling.renew(handler, lease.token, timeout)))
        return _monotonic(until[0])

    def _by_token(self, received: Received, act: Callable[[ServiceBusReceiver], None]) -> None:
        """Raises LeaseLost, BrokerError."""
        handler = self._open()
        try:
            with classified(self._doing("settling in"), claim="Listen"):
                act(handler)
        except BrokerError as error:
            if error.__cause__ is not None and is_lost(error.__cause__):
                raise self._lost(received) from error
            self._link.drop()
            raise

    # --- words ---

    def _open(self) -> ServiceBusReceiver:
        return self._link.open(self._settings.operation_timeout)

    def _received(self, raw: ServiceBusReceivedMessage) -> Received:
        decoded = encoding.decode(raw)
        until = raw.locked_until_utc
        lease = Lease(raw, time.monotonic() if until is None else _monotonic(until.timestamp()))
        return Received(
            message=decoded.message,
            attempt=decoded.attempt + (raw.delivery_count or 0) + 1,
            lease=lease,
            expires=lease.expires,
            position=str(raw.sequence_number),
            undecodable=decoded.fault,
        )

    def _check_open(self) -> None:
        if self._closed:
            text = "this receiver is closed; open another (what it leased comes back when the leases end)"
            raise Fatal(f"servicebus: {self._doing('receiving from')}: {text}", code="CLOSED")

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
    return Retriable(f"servicebus: not tried, as what went before has failed: {error}", code="NOT_TRIED")
