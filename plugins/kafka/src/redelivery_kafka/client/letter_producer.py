"""Stores the letters of terminated records in the dead letter topic, and tells which of them are there.

Each letter is a batch of its own, so that one which the broker refuses takes no other with it. A letter goes to the
partition that its record came from, where the topic has it. This file must not commit anything, nor try again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Producer

from redelivery.contract.message import Message
from redelivery.errors import Ambiguous, BrokerError, Fatal, Permanent, Retriable
from redelivery_kafka.address import Address
from redelivery_kafka.config import Settings
from redelivery_kafka.errors import classify, doubted
from redelivery_kafka.partition import Lease
from redelivery_kafka.rows import carried, carried_time, largest

#: Seconds in which all letters of a call must be stored.
_STORED: Final = 15.0
_TOPIC: Final = 5.0
#: With these the client refuses to be idempotent, or acts otherwise than is set here: other names of the same.
_NOT_HERE: Final = frozenset(
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
#: Producers of this process and, in a child, its parent's: see `membership`.
_alive: dict[int, Producer] = {}


class Burial:
    """The way into one dead letter topic. Its producer is made when the first letter comes."""

    def __init__(self, address: Address, settings: Settings) -> None:
        self._address = address
        self._settings = settings
        self._producer: Producer | None = None
        self._pid = os.getpid()
        self._partitions = 0

    def bury(self, letters: Mapping[int, tuple[Lease, Message]]) -> dict[int, BrokerError]:
        """Store letters; those that are not, or may not be, each with its error."""
        if not letters:
            return {}
        failed: dict[int, BrokerError] = {}
        try:
            producer = self._open()
        except KafkaException as error:
            self._part()
            return {at: self._told(error) for at in letters}

        def reported(at: int, error: KafkaError | None) -> None:
            if error is not None:
                failed[at] = self._told(KafkaException(error))

        end = time.monotonic() + _STORED
        most = largest(self._settings.message_bytes)
        for at, (lease, letter) in letters.items():
            if letter.size > most:
                text = f"the letter has {letter.size} bytes, and at most {most} are sent; raise kafka.message.max.bytes"
                failed[at] = Permanent(f"kafka: {self._doing}: {text}", native_code="MSG_SIZE_TOO_LARGE")
                continue
            try:
                self._produce(producer, lease, letter, end, lambda error, _, at=at: reported(at, error))
            except (KafkaException, BufferError, TypeError, ValueError) as error:
                failed[at] = self._told(error)
        # Only failures are reported: what is out of the queue without one is stored.
        unknown = self._flush(producer, end)
        if unknown is not None:
            failed |= dict.fromkeys(letters.keys() - failed.keys(), unknown)
        if failed:
            self._part()  # whatever is wrong with it, the next letters have a producer of their own
        return failed

    def close(self) -> None:
        """Give the producer back."""
        self._part()

    def _open(self) -> Producer:
        if self._producer is None:
            given = {name: value for name, value in self._settings.values.items() if name not in _NOT_HERE}
            self._partitions = 0
            own = {"acks": "all", "enable.idempotence": "true", "batch.num.messages": "1", "linger.ms": "0"}
            settings = Settings({**given, **own})
            producer = settings.producer(self._address, timeout=_STORED - 1)
            _alive[id(producer)] = self._producer = producer
            topic = producer.list_topics(self._address.topic, timeout=_TOPIC).topics[self._address.topic]
            if topic.error is not None:
                raise KafkaException(topic.error)
            self._partitions = len(topic.partitions)
        return self._producer

    def _produce(self, producer: Producer, lease: Lease, letter: Message, end: float, on_delivery: Any) -> None:
        place: dict[str, Any] = (
            {"partition": lease.partition.number} if lease.partition.number < self._partitions else {}
        )
        while True:
            try:
                producer.produce(
                    self._address.topic,
                    letter.value,
                    letter.key,
                    headers=carried(letter.headers) or None,
                    timestamp=carried_time(letter.timestamp_ms),
                    on_delivery=on_delivery,
                    **place,
                )
            except BufferError:  # back pressure
                if time.monotonic() > end:
                    raise
                producer.poll(0.05)
            else:
                return

    def _flush(self, producer: Producer, end: float) -> BrokerError | None:
        """Wait until all are stored or reported; what is to be said of those that are neither."""
        try:
            left = producer.flush(max(0.0, end - time.monotonic()))
        except KafkaException as error:
            found = self._told(error)
            return found if isinstance(found, Ambiguous | Fatal) else found.reclassified(Ambiguous)
        text = f"kafka: {self._doing}: not confirmed within {_STORED:g} s, so it may be stored or not"
        return Ambiguous(text, native_code="_TIMED_OUT") if left else None

    def _part(self) -> None:
        producer, self._producer = self._producer, None
        if producer is None or os.getpid() != self._pid:
            return
        producer.purge()
        with suppress(KafkaException):  # it is of no more use
            producer.flush(1.0)
        _alive.pop(id(producer), None)

    @property
    def _doing(self) -> str:
        return f"storing a letter in topic {self._address.topic!r}"

    def _told(self, error: Exception) -> BrokerError:
        if doubted(error) and self._partitions:
            # It was there when this producer was made; the next one looks again.
            found: BrokerError = Retriable(f"kafka: {self._doing}: the topic was changed while it was written to")
        else:
            found = classify(error, self._doing)
        found.__cause__ = error
        return found
