"""Stores the letters of terminated records in the dead letter topic, and returns the errors of those not stored.

Each letter is a batch by itself, so that one which the broker refuses takes no other with it. A letter goes to the
partition that its record came from, where the topic has that partition.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Producer

from redelivery.contract.message import Message
from redelivery.errors import Ambiguous, BrokerError, Fatal, Permanent, Retriable
from redelivery.kit.errors import Code
from redelivery_kafka.address import Address
from redelivery_kafka.client import instances
from redelivery_kafka.client.partition import Lease
from redelivery_kafka.codec import largest, letter_headers, record_timestamp
from redelivery_kafka.errors import ERRORS, classify, unknown_target
from redelivery_kafka.options import Settings

#: Seconds in which all letters of a call must be stored.
_STORED: Final = 15.0
_TOPIC: Final = 5.0
#: Settings with which the client refuses to be idempotent, or other names of those that are set here.
_DROPPED: Final = frozenset(
    [
        "max.in.flight",
        "max.in.flight.requests.per.connection",
        "message.send.max.retries",
        "queue.buffering.max.ms",
        "queuing.strategy",
        "request.required.acks",
        "retries",
    ]
)
#: A batch per letter, confirmed by all replicas.
_OWN: Final = {"acks": "all", "enable.idempotence": "true", "batch.num.messages": "1", "linger.ms": "0"}


class LetterProducer:
    """Stores letters in one dead letter topic. Its producer is created when the first letter comes."""

    def __init__(self, address: Address, settings: Settings) -> None:
        self._address = address
        self._settings = settings
        self._producer: Producer | None = None
        self._partitions = 0

    def store(self, letters: Mapping[int, tuple[Lease, Message]]) -> dict[int, BrokerError]:
        """Store letters; return the errors of those that are not, or may not be, stored."""
        if not letters:
            return {}
        failed: dict[int, BrokerError] = {}
        try:
            producer = self._open()
        except KafkaException as error:
            self.close()
            return {at: self._classify(error) for at in letters}

        def report(at: int, error: KafkaError | None, _: Any) -> None:
            if error is not None:
                failed[at] = self._classify(KafkaException(error))

        end = time.monotonic() + _STORED
        most = largest(self._settings.message_bytes)
        for at, (lease, letter) in letters.items():
            if letter.size > most:
                text = f"the letter has {letter.size} bytes, the limit is {most}; raise kafka.message.max.bytes"
                failed[at] = Permanent(f"kafka: {self._doing}: {text}", code=Code.TOO_LARGE)
                continue
            try:
                self._produce(producer, lease, letter, end, partial(report, at))
            except ERRORS as error:
                failed[at] = self._classify(error)
        # Only failures are reported: a letter that has left the queue without one is stored.
        unknown = self._flush(producer, end)
        if unknown is not None:
            failed |= dict.fromkeys(letters.keys() - failed.keys(), unknown)
        if failed:
            self.close()  # whatever is wrong with this producer, the next letters get another
        return failed

    def close(self) -> None:
        """Release the producer. Must not be called in a child of the process that created it."""
        producer, self._producer = self._producer, None
        if producer is None:
            return
        producer.purge()
        with suppress(KafkaException):  # it is of no more use
            producer.flush(1.0)
        instances.release(producer)

    def _open(self) -> Producer:
        if self._producer is None:
            self._partitions = 0
            settings = Settings({**self._settings.without(_DROPPED), **_OWN})
            self._producer = producer = instances.producer(settings, self._address, timeout=_STORED - 1)
            topic = producer.list_topics(self._address.topic, timeout=_TOPIC).topics[self._address.topic]
            if topic.error is not None:
                raise KafkaException(topic.error)
            self._partitions = len(topic.partitions)
        return self._producer

    def _produce(self, producer: Producer, lease: Lease, letter: Message, end: float, on_delivery: Any) -> None:
        number = lease.partition.number
        while True:
            try:
                producer.produce(
                    self._address.topic,
                    letter.value,
                    letter.key,
                    partition=number if number < self._partitions else -1,
                    headers=letter_headers(letter.headers) or None,
                    timestamp=record_timestamp(letter.timestamp_ms),
                    on_delivery=on_delivery,
                )
            except BufferError:  # back pressure
                if time.monotonic() > end:
                    raise
                producer.poll(0.05)
            else:
                return

    def _flush(self, producer: Producer, end: float) -> BrokerError | None:
        """Wait until all are stored or reported; return the error of those that are neither."""
        try:
            left = producer.flush(max(0.0, end - time.monotonic()))
        except KafkaException as error:
            found = self._classify(error)
            return found if isinstance(found, Ambiguous | Fatal) else found.reclassified(Ambiguous)
        text = f"kafka: {self._doing}: not confirmed within {_STORED:g} s, so it may be stored or not"
        return Ambiguous(text, code=Code.DEADLINE_EXCEEDED) if left else None

    @property
    def _doing(self) -> str:
        return f"storing a letter in topic {self._address.topic!r}"

    def _classify(self, error: Exception) -> BrokerError:
        if unknown_target(error) is None or not self._partitions:
            return classify(error, self._doing)
        # The topic existed when this producer was created; the next one looks again.
        text = f"kafka: {self._doing}: the topic was changed while it was written to"
        found = Retriable(text, code=Code.CONFLICT)
        found.__cause__ = error
        return found
