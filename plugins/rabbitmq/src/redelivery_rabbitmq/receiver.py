"""The receiver role: a lease lasts as long as the channel that delivered the message.

A message that goes elsewhere (a letter, a delayed retry) is published and confirmed first, and acknowledged only then:
between the two it is in both places, never in none.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from copy import copy
from datetime import timedelta
from functools import partial
from typing import Final

from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection
from pika.exceptions import UnroutableError
from pika.spec import BasicProperties

from redelivery.codes import Code
from redelivery.contract.broker import Accept, Limits, Outcome, Received, Receiver, Release, Retry, Terminate
from redelivery.contract.context import ErrorContext
from redelivery.contract.message import Message
from redelivery.errors import BrokerError, Fatal, LeaseLost, Permanent, Retriable, Unsupported
from redelivery.kit.leases import Settlement, lost
from redelivery.kit.letters import attach
from redelivery_rabbitmq.address import Address
from redelivery_rabbitmq.client import broker_headers, pika_private, topology
from redelivery_rabbitmq.client.arguments import KeptDelays
from redelivery_rabbitmq.client.at_least_once import FLAG_IS_OFF, is_at_least_once
from redelivery_rabbitmq.client.connection import QueueRole
from redelivery_rabbitmq.client.consumer import RELEASED_FIRST, Consumer
from redelivery_rabbitmq.client.deliveries import Delivery
from redelivery_rabbitmq.client.frames import fits_frame
from redelivery_rabbitmq.client.parameters import user_of
from redelivery_rabbitmq.client.stream_headers import unkept_error, unkept_header
from redelivery_rabbitmq.codec import EncodedProperties, decode, encode
from redelivery_rabbitmq.options import Settings

log = logging.getLogger("redelivery.rabbitmq")

_PERSISTENT: Final = 2
#: For the context of a letter whose message leaves little room for headers.
_SMALL_CONTEXT: Final = Limits(headers_bytes=1024, repeated_headers=False)
_MILLISECOND: Final = timedelta(milliseconds=1)


class RabbitmqReceiver(QueueRole, Receiver):
    """Leases and settles the messages of one queue. No I/O until a method is called."""

    def __init__(self, address: Address, settings: Settings, lease: timedelta) -> None:  # noqa: ARG002 - see above
        super().__init__(address, settings)
        self._read = f"read permission on {address.queue!r}"
        self._user = user_of(address, settings)
        self._consumer: Consumer | None = None
        self._publish_channel: BlockingChannel | None = None
        self._declared: set[str] = set()
        self._is_at_least_once = False  # as far as known
        self._kept_delays = KeptDelays(address.queue, settings)

    def receive(self, max_messages: int, *, wait: float) -> Sequence[Received]:
        if max_messages < 1:
            return []
        try:
            return self._receive(max_messages, wait)
        except Retriable:
            # The broker closes the channel, or from 4.3 on cancels the consumer, if a message was held for longer than
            # it allows. Its lease is lost; others may be received.
            if self._connection is None or not self._connection.is_open:
                raise
            return self._receive(max_messages, wait)

    def _receive(self, max_messages: int, wait: float) -> list[Received]:
        with self.connected("receiving from", needs=self._read, wait=max(wait, 0.0)) as connection:
            consumer = self._open_consumer(connection)
            return [self._received(consumer, delivery) for delivery in consumer.fetch(max_messages, wait)]

    def settle(self, outcomes: Sequence[tuple[Received, Outcome]]) -> Sequence[LeaseLost | BrokerError | None]:
        if not outcomes:
            return []
        with self.connected("settling messages of", needs=self._read) as connection:
            return self._settle(connection, self._open_consumer(connection), outcomes)

    def extend(self, leases: Sequence[Received], seconds: float) -> Sequence[Received | LeaseLost]:  # noqa: ARG002
        raise Unsupported("rabbitmq: a lease lasts as long as its channel and cannot be prolonged")

    def _open_consumer(self, connection: BlockingConnection) -> Consumer:
        if self._consumer is None or not self._consumer.is_open:
            self._consumer = Consumer(connection, self._address.queue)
        return self._consumer

    def _received(self, consumer: Consumer, delivery: Delivery) -> Received:
        position = f"{consumer.name}/{delivery.tag}"
        if delivery.decoded is None and not delivery.redelivered:
            plain = Message(value=delivery.body, id=delivery.plain_id)
            return Received(message=plain, attempt=1, lease=delivery, position=position)
        properties, added = broker_headers.split(delivery.properties)
        message, fault = decode(properties, delivery.body)
        return Received(
            message=message,
            attempt=added.attempt(redelivered=delivery.redelivered) if delivery.redelivered or added.attempts else 1,
            lease=delivery,
            position=position,
            undecodable=fault,
        )

    def _settle(
        self, connection: BlockingConnection, consumer: Consumer, outcomes: Sequence[tuple[Received, Outcome]]
    ) -> list[LeaseLost | BrokerError | None]:
        is_lost = partial(lost, "rabbitmq", f"queue {self._address.queue!r}")
        if any(isinstance(outcome, Retry) and outcome.delay > timedelta(0) for _, outcome in outcomes):
            self._kept_delays.read(connection, self.broker_version)
        call = Settlement(outcomes, lambda each: consumer.holds(each.lease), is_lost)
        acked: list[int] = []
        rejected: list[int] = []
        released: list[int] = []
        for at, (received, outcome) in call.waiting(Accept, Release, Retry, Terminate):
            delivery: Delivery = received.lease
            if self._is_rejected(delivery, outcome):
                rejected.append(delivery.tag)
            elif isinstance(outcome, Release):
                released.append(delivery.tag)
            elif error := self._copy_error(connection, received, outcome):
                call.answer(at, error)
            else:
                acked.append(delivery.tag)
        consumer.ack(acked)
        consumer.reject(rejected)
        consumer.sync()
        if released and len(released) == len(consumer.unacked) and self.broker_version < RELEASED_FIRST:
            consumer.release_by_closing()
        else:
            consumer.release(released)
        return call.answers

    def _copy_error(self, connection: BlockingConnection, received: Received, outcome: object) -> BrokerError | None:
        """Publish the copy that an outcome needs. Return None, or why the message must not be acknowledged."""
        try:
            if isinstance(outcome, Terminate):
                self._dead_letter(connection, received, outcome)
            elif isinstance(outcome, Retry):
                self._delay(connection, received, outcome.delay)
        except BrokerError as error:
            if not connection.is_open:
                raise
            return error
        return None

    # --- dead-lettering ---

    def _dead_letter(self, connection: BlockingConnection, received: Received, outcome: Terminate) -> None:
        size, limit = len(outcome.letter.value or b""), self._settings.message_bytes
        if size > limit:
            text = f"its value is {size} bytes; the broker takes at most {limit}"
            raise Permanent(f"rabbitmq: this letter cannot be stored: {text}", code=Code.TOO_LARGE)
        if self._settings.dead_letters == "stream":
            published, _ = broker_headers.split(received.lease.properties)
            unkept = unkept_header(published.headers, self.broker_version)
            if unkept is not None:
                raise unkept_error("letter", unkept)
        try:
            self._store(connection, *encode(outcome.letter, self._user))
        except Permanent as refused:
            self._dead_letter_unchanged(connection, received, outcome, refused)

    def _dead_letter_unchanged(
        self, connection: BlockingConnection, received: Received, outcome: Terminate, refused: Permanent
    ) -> None:
        """Dead-letter a message of another client that our codec cannot write: else no consumer would get past it."""
        body, properties = _copied(received, self._user)
        properties.expiration = None
        properties.delivery_mode = _PERSISTENT
        original = properties.headers or {}
        small = _small_context(outcome)
        for context in (_added_headers(received.message, outcome.letter) or small, small, {}):
            properties.headers = {**context, **original} or None
            try:
                self._store(connection, body, properties)
            except Permanent:
                if not context:
                    raise
                continue  # it does not fit
            if not context:
                text = "a letter was stored in %s unchanged, without its reason: %s"
                log.warning(text, self._address.dead_letters.url, refused)
            return

    def _store(self, connection: BlockingConnection, body: bytes, properties: BasicProperties) -> None:
        """Publish to the dead letter queue."""
        queue = self._address.dead_letters.queue
        if not self._publish(connection, queue, body, properties, f"dead-lettering to {queue!r} from"):
            text = f"the dead letter queue {queue!r} does not exist; provision {self._address.url}"
            raise Fatal(f"rabbitmq: {text}", code=Code.NO_SUCH_DESTINATION)

    # --- delayed retries ---

    def _is_rejected(self, delivery: Delivery, outcome: object) -> bool:
        """Return whether a message is only rejected: for a retry at once, or with the delay that the queue has."""
        if not isinstance(outcome, Retry):
            return False
        failures = 1
        if delivery.redelivered:  # a dead-lettered message brings along the count of its former queue
            failures += broker_headers.split(delivery.properties)[1].delivery_count or 0
        return outcome.delay <= timedelta(0) or self._kept_delays.keep(outcome.delay, failures)

    def _delay(self, connection: BlockingConnection, received: Received, delay: timedelta) -> None:
        """Publish the message unchanged to the retry queue of its delay, from which the broker brings it back."""
        delay = min(delay, topology.DELAY_MAX)
        queue = topology.retry_queue(self._address.queue, topology.retry_step(delay))
        what = f"delaying a message in {queue.name!r} for"
        body, properties = _copied(received, self._user)
        properties.headers = {**(properties.headers or {}), broker_headers.ATTEMPTS: received.attempt}
        properties.expiration = str(-(-delay // _MILLISECOND))
        was_declared = queue.name in self._declared
        self._declare(connection, queue, what)
        stored = self._publish(connection, queue.name, body, properties, what)
        if not stored and was_declared:  # it was deleted since
            self._declare(connection, queue, what)
            stored = self._publish(connection, queue.name, body, properties, what)
        if not stored:
            why = "this retry queue does not exist, and this user may not create it"
            text = f"{why}; provision {self._address.url} with retries"
            raise Fatal(f"rabbitmq: {self.doing(what)}: {text}", code=Code.NO_SUCH_DESTINATION)

    def _declare(self, connection: BlockingConnection, queue: topology.Queue, what: str) -> None:
        """Create a retry queue, or check an existing one. A user who may do neither needs an existing one."""
        if queue.name in self._declared:
            return
        self._check_at_least_once(what)
        try:
            with self.connected(what), connection.channel() as channel:
                channel.queue_declare(queue.name, durable=True, arguments=dict(queue.arguments))
        except BrokerError as error:
            if error.code is not Code.NOT_AUTHORIZED:
                raise
        self._declared.add(queue.name)

    def _check_at_least_once(self, what: str) -> None:
        """Raise Fatal if a message could be lost on its way back from a retry queue."""
        if not self._is_at_least_once:
            with self.connected(what):
                missing = f"{self._address.queue}{topology.RETRY_SUFFIX}0s"
                self._is_at_least_once = is_at_least_once(self._address, self._settings, self.broker_version, missing)
            if not self._is_at_least_once:
                raise Fatal(f"rabbitmq: {self.doing(what)}: {FLAG_IS_OFF}", code=Code.UNSUPPORTED)

    def _publish(
        self, connection: BlockingConnection, queue: str, body: bytes, properties: BasicProperties, what: str
    ) -> bool:
        """Publish and wait for the confirm. Return whether the queue exists.

        Raises:
            Permanent: the properties do not fit into one frame.
        """
        limit = pika_private.frame_max(connection)
        with self.connected(what, needs="write permission on 'amq.default'"):
            encoded = b"".join(properties.encode())  # type: ignore[no-untyped-call]
            if not fits_frame(encoded, limit):
                text = f"its headers are {len(encoded)} bytes as AMQP writes them; all must fit one frame of {limit}"
                raise Permanent(f"rabbitmq: {self.doing(what)}: {text}", code=Code.TOO_LARGE)
            channel = self._publish_channel
            if channel is None or not channel.is_open:
                channel = self._publish_channel = connection.channel()
                channel.confirm_delivery()
            try:
                channel.basic_publish("", queue, body, EncodedProperties(encoded), mandatory=True)
            except UnroutableError:
                self._declared.discard(queue)
                return False
        return True


def _copied(received: Received, user: str | None) -> tuple[bytes, BasicProperties]:
    """Return body and properties as they were published, for publishing the message again as this user."""
    delivery: Delivery = received.lease
    properties = copy(broker_headers.split(delivery.properties)[0])
    if properties.user_id != user:
        properties.user_id = None  # the broker closes the channel of another user
    return delivery.body, properties


def _small_context(outcome: Terminate) -> dict[str, str | bytes | None]:
    """Return headers with no more than the reason."""
    context = ErrorContext(reason=outcome.description or outcome.reason, kind="terminated")
    empty = Message(value=None)
    return _added_headers(empty, attach(empty, context, dialect="json", limits=_SMALL_CONTEXT, prefix=None))


def _added_headers(message: Message, letter: Message) -> dict[str, str | bytes | None]:
    """Return the headers that the letter has and the message has not; nothing if the values differ too."""
    if letter.value != message.value:
        return {}
    added = [each for each in letter.headers if each not in message.headers]
    return {name: value.decode() if value and value.isascii() else value for name, value in added}
