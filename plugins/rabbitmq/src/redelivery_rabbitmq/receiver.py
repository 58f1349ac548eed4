"""The receiver role: a lease lasts as long as the channel that a message came by.

What goes elsewhere (a letter, a retry with a delay) is published and confirmed first, and only then is the message
acknowledged: between the two it is in both places, never in none. This file must not retry.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from copy import copy
from datetime import timedelta
from typing import Final, NamedTuple

from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection
from pika.exceptions import ChannelClosedByBroker, NackError, UnroutableError
from pika.spec import BasicProperties

from redelivery.contract.broker import Limits, Outcome, Received, Receiver, Release, Retry, Terminate
from redelivery.contract.context import ErrorContext
from redelivery.contract.message import Message
from redelivery.errors import BrokerError, Fatal, LeaseLost, Permanent, Retriable, Unsupported
from redelivery.formats.dialects import attach
from redelivery_rabbitmq.address import Address, Settings
from redelivery_rabbitmq.client import broker_headers as native
from redelivery_rabbitmq.client import topology
from redelivery_rabbitmq.client.at_least_once import OFF, keeps
from redelivery_rabbitmq.client.blocking import Link
from redelivery_rabbitmq.client.consumer import Delivery, Intake
from redelivery_rabbitmq.client.frames import fits
from redelivery_rabbitmq.codec import Encoded, decode, encode

log = logging.getLogger("redelivery.rabbitmq")

_REFUSED: Final = 403
_PERSISTENT: Final = 2
#: Of a reason that is put into the headers of a message that leaves little room.
_SHORT: Final = Limits(headers_bytes=1024)
_MILLISECOND: Final = timedelta(milliseconds=1)


class Lease(NamedTuple):
    """What a message is settled by: the intake that holds it, and its tag there."""

    intake: Intake
    tag: int


class RabbitmqReceiver(Receiver):
    """Leases and settles the messages of one queue. No I/O until it is asked."""

    def __init__(self, address: Address, settings: Settings, lease: timedelta) -> None:  # noqa: ARG002 - see above
        self._address = address
        self._settings = settings
        self._link = Link(address, settings)
        self._read = f"read permission on {address.queue!r}"
        self._intake: Intake | None = None
        self._outgoing: BlockingChannel | None = None
        self._made: set[str] = set()
        self._keeps = False  # whether that is known to be so

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
            elif isinstance(outcome, Release):
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
                self._bury(connection, received, delivery, outcome)
            elif isinstance(outcome, Retry):
                self._delay(connection, received, delivery, outcome.delay)
        except BrokerError as error:
            if not connection.is_open:
                raise
            return error
        return None

    def _bury(self, connection: BlockingConnection, received: Received, delivery: Delivery, outcome: Terminate) -> None:
        size, most = len(outcome.letter.value or b""), self._settings.message_bytes
        if size > most:
            text = f"its value is {size} bytes; the broker takes {most} at most"
            raise Permanent(f"rabbitmq: this letter cannot be stored: {text}", native_code="TOO_LARGE")
        try:
            self._store(connection, *encode(outcome.letter))
        except Permanent as refused:
            self._store_as_it_came(connection, received, delivery, outcome, refused)

    def _store_as_it_came(
        self,
        connection: BlockingConnection,
        received: Received,
        delivery: Delivery,
        outcome: Terminate,
        refused: Permanent,
    ) -> None:
        """Bury a message of others that AMQP can carry and we do not write: else nobody would ever get past it."""
        properties = _copy(delivery)
        properties.expiration = None
        properties.delivery_mode = _PERSISTENT
        there = properties.headers or {}
        for why in (_added(received.message, outcome.letter) or _shortly(outcome), _shortly(outcome), {}):
            properties.headers = {**why, **there} or None
            try:
                self._store(connection, delivery.body, properties)
            except Permanent:
                if not why:
                    raise
                continue  # it does not fit
            if not why:
                text = "a letter went to %s as it came, without its reason: %s"
                log.warning(text, self._address.dead_letters.url, refused)
            return

    def _store(self, connection: BlockingConnection, body: bytes, properties: BasicProperties) -> None:
        """Put a letter into the dead letter queue."""
        place = self._address.dead_letters.queue
        if not self._published(connection, place, body, properties, f"dead-lettering to {place!r}"):
            text = f"there is no queue {place!r} to dead-letter to; provision {self._address.url}"
            raise Fatal(f"rabbitmq: {text}", native_code="NO_DEAD_LETTER_QUEUE")

    def _delay(self, connection: BlockingConnection, received: Received, delivery: Delivery, delay: timedelta) -> None:
        """Publish the message, as it came, to the retry queue of its delay, from where the broker brings it back."""
        delay = min(delay, topology.DELAY_MAX)
        queue = topology.retry_queue(self._address.queue, topology.step(delay))
        doing = f"keeping a message in the retry queue {queue.name!r}"
        properties = _copy(delivery)
        properties.headers = {**(properties.headers or {}), native.RETRIED: received.attempt}
        properties.expiration = str(-(-delay // _MILLISECOND))
        was_there = queue.name in self._made
        self._make(connection, queue, doing)
        stored = self._published(connection, queue.name, delivery.body, properties, doing)
        if not stored and was_there:  # somebody has deleted it since
            self._make(connection, queue, doing)
            stored = self._published(connection, queue.name, delivery.body, properties, doing)
        if not stored:
            text = f"there is no such queue, and this user may not make it; provision {self._address.url} with retries"
            raise Fatal(f"rabbitmq: {doing}: {text}", native_code="NO_RETRY_QUEUE")

    def _make(self, connection: BlockingConnection, queue: topology.Queue, doing: str) -> None:
        """Make a retry queue, or check the one that is there. Where that is not permitted, it must be there."""
        if queue.name in self._made:
            return
        self._see_that_it_keeps(doing)
        try:
            with self._link.using(doing), connection.channel() as channel:
                channel.queue_declare(queue.name, durable=True, arguments=dict(queue.arguments))
        except BrokerError as error:
            cause = error.__cause__
            if not isinstance(cause, ChannelClosedByBroker) or cause.reply_code != _REFUSED:
                raise
        self._made.add(queue.name)

    def _see_that_it_keeps(self, doing: str) -> None:
        """Raises Fatal: what waits in a retry queue might be lost on its way back."""
        if not self._keeps:
            with self._link.using(doing):
                none = f"{self._address.queue}{topology.RETRY}0s"
                self._keeps = keeps(self._address, self._settings, self._link.version, none)
            if not self._keeps:
                raise Fatal(f"rabbitmq: {doing}: {OFF}", native_code="FEATURE_FLAG")

    def _published(
        self, connection: BlockingConnection, queue: str, body: bytes, properties: BasicProperties, doing: str
    ) -> bool:
        """Publish and return when the broker has confirmed it. False: there is no such queue.

        Raises Permanent: its properties are more than a frame takes.
        """
        most = int(connection._impl.params.frame_max)  # noqa: SLF001 - pika tells it nowhere else
        with self._link.using(doing, needs="write permission on 'amq.default'"):
            encoded = b"".join(properties.encode())  # type: ignore[no-untyped-call]
            if not fits(encoded, most):
                text = f"its headers are {len(encoded)} bytes as AMQP writes them; all must fit one frame of {most}"
                raise Permanent(f"rabbitmq: {doing}: {text}", native_code="HEADERS_TOO_LARGE")
            channel = self._outgoing
            if channel is None or not channel.is_open:
                channel = self._outgoing = connection.channel()
                channel.confirm_delivery()
            try:
                channel.basic_publish("", queue, body, Encoded(encoded), mandatory=True)
            except UnroutableError:
                self._made.discard(queue)
                return False
            except NackError as error:
                text = f"rabbitmq: {doing}: the broker did not take it (the queue is full, or has no quorum)"
                raise Retriable(text, native_code="NACK") from error
        return True

    def _lost(self, received: Received) -> LeaseLost:
        text = "its channel is closed, or it was settled before; nothing was changed"
        return LeaseLost(f"rabbitmq: message {received.position}: {text}")

    def _doing(self, what: str) -> str:
        return f"{what} queue {self._address.queue!r}"


def _copy(delivery: Delivery) -> BasicProperties:
    """A message's properties to publish it again with, as it came."""
    properties = copy(native.split(delivery.properties)[0])
    properties.user_id = None  # the broker closes the channel of another user
    return properties


def _shortly(outcome: Terminate) -> dict[str, str | bytes | None]:
    """Headers that say no more than why."""
    context = ErrorContext(reason=outcome.description or outcome.reason, kind=outcome.reason.lower())
    empty = Message(value=None)
    return _added(empty, attach(empty, context, dialect="json", limits=_SHORT, prefix=None))


def _added(message: Message, letter: Message) -> dict[str, str | bytes | None]:
    """The headers that make a message a letter, where it is nothing else that does; ours are text."""
    if letter.value != message.value:
        return {}
    added = [each for each in letter.headers if each not in message.headers]
    return {name: value.decode() if value and value.isascii() else value for name, value in added}
