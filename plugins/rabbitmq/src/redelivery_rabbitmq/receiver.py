"""The receiver role: a lease lasts as long as the channel that a message came by.

What goes elsewhere (a letter, a retry with a delay) is published and confirmed first, and only then is the message
acknowledged: between the two it is in both places, never in none. This file must not retry.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from datetime import timedelta
from typing import Final, NamedTuple

from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection
from pika.exceptions import ChannelClosedByBroker, NackError, UnroutableError
from pika.spec import BasicProperties

from redelivery.broker import GiveBack, Outcome, Received, Receiver, Retry, Terminate
from redelivery.errors import BrokerError, Fatal, LeaseLost, Permanent, Retriable, Unsupported
from redelivery_rabbitmq import native, topology
from redelivery_rabbitmq.address import Address, Settings
from redelivery_rabbitmq.headers import decode, encode
from redelivery_rabbitmq.intake import Delivery, Intake
from redelivery_rabbitmq.link import Link

_REFUSED: Final = 403
_MILLISECOND: Final = timedelta(milliseconds=1)


class Lease(NamedTuple):
    """What a message is settled by: the intake that holds it, and its tag there."""

    intake: Intake
    tag: int


class RabbitmqReceiver(Receiver):
    """Leases and settles the messages of one queue. No I/O until it is asked."""

    def __init__(self, address: Address, settings: Settings, lease: timedelta) -> None:  # noqa: ARG002 - see above
        self._address = address
        self._message_bytes = settings.message_bytes
        self._link = Link(address, settings)
        self._read = f"read permission on {address.queue!r}"
        self._intake: Intake | None = None
        self._outgoing: BlockingChannel | None = None
        self._made: set[str] = set()

    def receive(self, max_messages: int, *, wait: float) -> Sequence[Received]:
        if max_messages < 1:
            return []
        with self._link.using(self._doing("receiving from"), needs=self._read, wait=max(wait, 0.0)) as connection:
            intake = self._open(connection)
            return [self._received(intake, delivery) for delivery in intake.take(max_messages, wait)]

    def settle(self, outcomes: Sequence[tuple[Received, Outcome]]) -> Sequence[LeaseLost | BrokerError | None]:
        if not outcomes:
            return []
        with self._link.using(self._doing("settling messages of"), needs=self._read) as connection:
            intake = self._open(connection)
            return self._settle(connection, intake, outcomes)

    def extend(self, leases: Sequence[Received], seconds: float) -> Sequence[Received | LeaseLost]:  # noqa: ARG002
        raise Unsupported("rabbitmq: a lease lasts as long as its channel and cannot be prolonged")

    def close(self) -> None:
        self._link.close()

    def _open(self, connection: BlockingConnection) -> Intake:
        if self._intake is None or not self._intake.is_open:
            self._intake = Intake(connection, self._address.queue)
        return self._intake

    def _received(self, intake: Intake, delivery: Delivery) -> Received:
        properties, found = native.split(delivery.properties)
        message, fault = decode(properties, delivery.body)
        return Received(
            message=message,
            attempt=found.attempt(redelivered=bool(delivery.method.redelivered)),
            lease=Lease(intake, delivery.tag),
            position=f"{self._address.queue} {id(intake):x}/{delivery.tag}",
            undecodable=fault,
        )

    def _settle(
        self, connection: BlockingConnection, intake: Intake, outcomes: Sequence[tuple[Received, Outcome]]
    ) -> list[LeaseLost | BrokerError | None]:
        answers: list[LeaseLost | BrokerError | None] = []
        accepted: list[int] = []
        again: list[int] = []
        back: list[int] = []
        seen: set[int] = set()
        for received, outcome in outcomes:
            lease = received.lease
            delivery = intake.held.get(lease.tag) if isinstance(lease, Lease) and lease.intake is intake else None
            if delivery is None or delivery.tag in seen:
                answers.append(self._lost(received))
                continue
            refused: BrokerError | None = None
            if isinstance(outcome, Retry) and outcome.delay <= timedelta(0):
                again.append(delivery.tag)
            elif isinstance(outcome, GiveBack):
                back.append(delivery.tag)
            else:
                refused = self._passed_on(connection, received, delivery, outcome)
                if refused is None:
                    accepted.append(delivery.tag)
            if refused is None:
                seen.add(delivery.tag)
            answers.append(refused)
        intake.accept(accepted)
        intake.reject(again)
        intake.confirm()
        intake.give_back(back)
        return answers

    def _passed_on(
        self, connection: BlockingConnection, received: Received, delivery: Delivery, outcome: Outcome
    ) -> BrokerError | None:
        """See to it that a message may be acknowledged; or say why it may not."""
        try:
            if isinstance(outcome, Terminate):
                self._bury(connection, outcome)
            elif isinstance(outcome, Retry):
                self._delay(connection, received, delivery, outcome.delay)
        except BrokerError as error:
            if not connection.is_open:
                raise
            return error
        return None

    def _bury(self, connection: BlockingConnection, outcome: Terminate) -> None:
        place = self._address.dead_letters.queue
        body, properties = encode(outcome.letter)
        if len(body) > self._message_bytes:
            text = f"its value is {len(body)} bytes; the broker takes {self._message_bytes} at most"
            raise Permanent(f"rabbitmq: this letter cannot be stored: {text}", code="TOO_LARGE")
        if not self._published(connection, place, body, properties, f"dead-lettering to {place!r}"):
            text = f"there is no queue {place!r} to dead-letter to; provision {self._address.url}"
            raise Fatal(f"rabbitmq: {text}", code="NO_DEAD_LETTER_QUEUE")

    def _delay(self, connection: BlockingConnection, received: Received, delivery: Delivery, delay: timedelta) -> None:
        """Publish the message, as it came, to the retry queue of its delay, from where the broker brings it back."""
        delay = min(delay, topology.DELAY_MAX)
        queue = topology.retry_queue(self._address.queue, topology.step(delay))
        doing = f"keeping a message in the retry queue {queue.name!r}"
        properties = copy(native.split(delivery.properties)[0])
        properties.headers = {**(properties.headers or {}), native.RETRIED: received.attempt}
        properties.user_id = None  # the broker closes the channel of another user
        properties.expiration = str(-(-delay // _MILLISECOND))
        self._make(connection, queue, doing)
        if not self._published(connection, queue.name, delivery.body, properties, doing):
            text = f"there is no such queue, and this user may not make it; provision {self._address.url} with retries"
            raise Fatal(f"rabbitmq: {doing}: {text}", code="NO_RETRY_QUEUE")

    def _make(self, connection: BlockingConnection, queue: topology.Queue, doing: str) -> None:
        """Make a retry queue, or check the one that is there. Where that is not permitted, it must be there."""
        if queue.name in self._made:
            return
        try:
            with self._link.using(doing), connection.channel() as channel:
                channel.queue_declare(queue.name, durable=True, arguments=dict(queue.arguments))
        except BrokerError as error:
            cause = error.__cause__
            if not isinstance(cause, ChannelClosedByBroker) or cause.reply_code != _REFUSED:
                raise
        self._made.add(queue.name)

    def _published(
        self, connection: BlockingConnection, queue: str, body: bytes, properties: BasicProperties, doing: str
    ) -> bool:
        """Publish and return when the broker has confirmed it. False: there is no such queue."""
        with self._link.using(doing, needs="write permission on 'amq.default'"):
            channel = self._outgoing
            if channel is None or not channel.is_open:
                channel = self._outgoing = connection.channel()
                channel.confirm_delivery()
            try:
                channel.basic_publish("", queue, body, properties, mandatory=True)
            except UnroutableError:
                self._made.discard(queue)
                return False
            except NackError as error:
                text = f"rabbitmq: {doing}: the broker did not take it (the queue is full, or has no quorum)"
                raise Retriable(text, code="NACK") from error
        return True

    def _lost(self, received: Received) -> LeaseLost:
        text = "its channel is closed, or it was settled before; nothing was changed"
        return LeaseLost(f"rabbitmq: message {received.position}: {text}")

    def _doing(self, what: str) -> str:
        return f"{what} queue {self._address.queue!r}"
