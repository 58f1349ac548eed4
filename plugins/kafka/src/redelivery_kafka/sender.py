"""The sender role: rows go into librdkafka's queue, and batches are settled when that queue is empty.

At the first deadline that passes, what is still in the queue is dropped and another producer goes on; likewise where
rows are in order and a broker refused one. Only librdkafka retries, within the deadline.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Producer

from redelivery.contract.broker import Sender, Settled
from redelivery.contract.message import Batch
from redelivery.errors import Ambiguous, BrokerError, NotSent, Permanent, Retriable
from redelivery.kit.errors import Code, quoted
from redelivery.kit.roles import Resource
from redelivery_kafka import codec
from redelivery_kafka.address import Address
from redelivery_kafka.client.in_flight import BatchInFlight, InFlight
from redelivery_kafka.client.known_settings import largest
from redelivery_kafka.client.producer import STEP, ProducerInstance
from redelivery_kafka.codec import Row
from redelivery_kafka.errors import (
    ERRORS,
    ROW_ERRORS,
    UNKNOWN_PARTITION,
    classify,
    has_code,
    topic_changed,
    unknown_target,
)
from redelivery_kafka.options import Settings

#: Seconds before a deadline at which the queue is dropped, so that the reports come in time.
_MARGIN: Final = 0.25
#: Seconds for the reports of what was dropped.
_PURGED: Final = 2.0
#: Codes of a row that was never sent, if it had no partition yet.
_NEVER_SENT: Final = frozenset({"_MSG_TIMED_OUT", "_PURGE_QUEUE"})
#: Codes with which a broker tells an idempotent producer, before its first row, that it may not write.
_MAY_NOT_WRITE: Final = frozenset({"CLUSTER_AUTHORIZATION_FAILED", "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"})


class KafkaSender(Resource, Sender):
    """Sends to the topic of `address`, or to the one that a row names."""

    def __init__(self, address: Address, settings: Settings) -> None:
        super().__init__("kafka", f"{address.topic!r}")
        self._address = address
        self._settings = settings
        self._limit = largest(settings.message_bytes)
        self._one_per_request = settings.values.get("batch.num.messages") == "1"
        self._producer: ProducerInstance | None = None
        self._last_error = ""  # of the producer before
        self._in_flight = InFlight()

    def check(self, *, deadline: float) -> None:
        self.partitions(deadline=deadline)

    def partitions(self, *, deadline: float) -> int:
        """Return how many partitions the topic has. Raises BrokerError."""
        self.check_open("storing in")
        gapless = self._producer is not None and self._producer.gapless
        producer = self._producer_for(deadline, gapless=gapless)
        found = producer.partition_count(self._address.topic, deadline - _MARGIN)
        if not isinstance(found, int):
            raise found
        return found

    def send(self, batch: Batch, *, deadline: float) -> None:
        self.check_open("storing in")
        if batch.ordered and self._producer is not None and self._producer.stopped_at_gap:
            raise self._kept_back()  # `collect` tells first what failed
        # Rows that are sent alone need no gapless producer, and each of them could end it.
        producer = self._producer_for(deadline, gapless=batch.ordered and not batch.isolate)
        own = self._address.topic
        named = () if batch.destination is None else set(batch.destination.values)
        topics = {own if each is None else each for each in named} or {own}
        missing = producer.missing_topics(topics, deadline - _MARGIN)
        failures = codec.faults(batch, self._limit, missing)
        producer.poll(0)
        self._take_reports(producer)
        sent = self._in_flight.add(batch, deadline, failures)
        if batch.isolate:
            self._produce_alone(producer, sent)
        else:
            self._produce_all(producer, sent)
            producer.poll(0)

    def collect(self, wait: float) -> Sequence[Settled]:
        self.check_open("storing in")
        end = time.monotonic() + wait
        producer = self._producer
        if producer is not None and not self._in_flight.batches:
            producer.poll(0)
        while producer is not None and self._in_flight.batches:
            now, deadline = time.monotonic(), self._in_flight.deadline - _MARGIN
            if producer.fatal_error is None and now < deadline and len(producer):
                producer.poll(max(0.0, min(end - now, deadline - now, STEP)))
            if producer.fatal_error is not None or time.monotonic() >= deadline:
                self._give_up(producer)
            elif not len(producer):
                self._settle(producer)
            elif time.monotonic() < end:
                continue
            break
        return self._in_flight.take_settled()

    def _release(self) -> None:
        self._in_flight.batches.clear()
        self._close_producer()

    # --- the producer ---

    def _producer_for(self, deadline: float, *, gapless: bool) -> ProducerInstance:
        """Return a producer that can go on, a gapless one or not. What another one holds is settled before."""
        producer = self._producer
        if producer is not None and (producer.fatal_error is not None or gapless is not producer.gapless):
            if producer.fatal_error is None:
                producer.drain(min(deadline, self._in_flight.deadline) - _MARGIN)
            self._give_up(producer)
        if self._producer is None:
            self._producer = ProducerInstance(
                self._settings, self._address, gapless=gapless, last_error=self._last_error
            )
        return self._producer

    def _close_producer(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.close()
            self._last_error = producer.last_error
            self._in_flight.drop_reports()

    def _kept_back(self) -> NotSent:
        return NotSent(f"kafka: {self.doing('storing in')}: not sent, because an earlier row has failed")

    # --- producing ---

    def _produce_all(self, producer: ProducerInstance, sent: BatchInFlight) -> None:
        batch, produce, topic = sent.batch, producer.client.produce, self._address.topic
        slots = self._in_flight.slots(sent)
        rest: Iterator[Row] = codec.rows(batch, slots, topic)
        if sent.failures or (batch.ordered and self._in_flight.failed_keys):
            self._produce_each(producer, sent, rest)
            return
        keys: Iterable[bytes | None] = repeat(None) if batch.key is None else batch.key.values
        pairs = zip(slots, batch.value.values, keys, strict=False)
        partition, timestamp, headers = -1, 0, None
        try:
            # Two loops that call nothing of ours: nearly all of the time goes here.
            if codec.is_plain(batch):
                rest = ((slot, topic, value, key, -1, 0, None) for slot, value, key in pairs)
                for slot, value, key in pairs:
                    produce(topic, value, key, -1, slot)
            else:
                for slot, topic, value, key, partition, timestamp, headers in rest:
                    produce(topic, value, key, partition, slot, slot, timestamp, headers)
        except ERRORS as error:
            row = (slot, topic, value, key, partition, timestamp, headers)
            if self._on_produce_error(producer, sent, row, error):
                self._produce_each(producer, sent, rest)

    def _produce_each(self, producer: ProducerInstance, sent: BatchInFlight, rest: Iterator[Row]) -> None:
        """Produce row by row, without those that failed and those that a failed row keeps back."""
        for row in self._in_flight.sendable(sent, rest):
            error = _produce(producer.client, row)
            if error is not None and not self._on_produce_error(producer, sent, row, error):
                return

    def _produce_alone(self, producer: ProducerInstance, sent: BatchInFlight) -> None:
        """Produce each row when the one before it is settled, so that a request holds one row."""
        limit = sent.deadline - _MARGIN
        producer.flush(max(0.0, limit - time.monotonic()))
        rows = codec.rows(sent.batch, self._in_flight.slots(sent), self._address.topic)
        for row in self._in_flight.sendable(sent, rows):
            left = limit - time.monotonic()
            if left <= 0 or producer.fatal_error is not None or len(producer):
                text = "not sent by the deadline, because the rows before it took too long"
                error = Retriable(f"kafka: {self.doing('storing in')}: {text}", code=Code.DEADLINE_EXCEEDED)
                self._in_flight.fail_rest(sent, int(row[0]) - sent.first_slot, error)
                return
            self._produce_each(producer, sent, iter([row]))
            producer.flush(left)
            self._take_reports(producer)

    def _on_produce_error(
        self, producer: ProducerInstance, sent: BatchInFlight, row: Row, first_error: Exception
    ) -> bool:
        """The client did not take a row: wait where its queue is full; else the row fails, or all that follow.

        Returns:
            Whether to go on with the next row.
        """
        error: Exception | None = first_error
        if codec.is_letter(row[6]) and has_code(first_error, UNKNOWN_PARTITION):
            row = (*row[:4], -1, *row[5:])
            error = _produce(producer.client, row)
        while isinstance(error, BufferError) and producer.fatal_error is None:
            left = sent.deadline - _MARGIN - time.monotonic()
            if left <= 0:
                break
            producer.poll(min(left, STEP))
            error = _produce(producer.client, row)
        if error is None:
            return True
        index, topic = int(row[0]) - sent.first_slot, row[1]
        found = classify(error, f"storing in {quoted(topic)}", own=topic == self._address.topic)
        target = unknown_target(error)
        if target is not None or isinstance(error, ROW_ERRORS) or isinstance(found, Permanent):
            self._in_flight.fail(sent, index, found, target)
            return True
        if isinstance(found, Ambiguous):  # a producer that has stopped took nothing
            producer.poll(0)  # its callback says why it has stopped
            refused = _refused_to_write(producer)
            if refused is not None:
                found = classify(refused, f"storing in {quoted(topic)}", own=topic == self._address.topic)
            elif producer.stopped_at_gap and sent.batch.ordered:
                found = self._kept_back()
            else:
                found = found.reclassified(Retriable, f"{found}; this row was not handed over")
        self._in_flight.fail_rest(sent, index, found)
        return False

    # --- settling ---

    def _take_reports(self, producer: ProducerInstance) -> None:
        """Attribute each reported failure to its row. Rows that failed for the same reason share one error."""
        known: dict[tuple[object, ...], BrokerError] = {}
        for sent, index, error, has_partition in self._in_flight.take_reports():
            producer.ends_by(error)
            topic = sent.topic(index, self._address.topic)
            reason = (sent.first_slot, topic, error.code(), error.str(), has_partition, producer.fatal_error is None)
            if reason not in known:
                found = self._classify_report(producer, sent.batch, topic, error, has_partition=has_partition)
                found.__cause__ = found.__cause__ or KafkaException(error)
                known[reason] = found
            self._in_flight.fail(sent, index, known[reason], unknown_target(error))

    def _classify_report(
        self, producer: ProducerInstance, batch: Batch, topic: str, error: KafkaError, *, has_partition: bool
    ) -> BrokerError:
        own, doing, name = topic == self._address.topic, f"storing in {quoted(topic)}", error.name()
        if name == "_PURGE_QUEUE" and producer.stopped_at_gap and batch.ordered and not producer.connection_lost:
            return self._kept_back()
        refused = _refused_to_write(producer)
        if name in _NEVER_SENT and refused is not None:
            return classify(refused, doing, own=own)
        found = classify(error, doing, rows=1 if batch.isolate or self._one_per_request else 2, own=own)
        if name in _NEVER_SENT and not has_partition:
            text = f"{found}; it had no partition yet, so it was never sent; {producer.last_error}"
            return Retriable(text.rstrip("; "), code=Code.DEADLINE_EXCEEDED, native_code=name)
        if name == "_PURGE_QUEUE":  # it may have been sent before, and waited in the queue to be sent again
            text = f"kafka: {doing}: not confirmed by the deadline; {producer.last_error}"
            return Ambiguous(text.rstrip("; "), code=Code.DEADLINE_EXCEEDED, native_code=name)
        return found

    def _resolve_unknown_targets(self, producer: ProducerInstance) -> None:
        """Find out why the client did not know a topic or partition: only what a row itself names is its own fault."""
        seen: dict[str, int | BrokerError] = {}
        for sent in self._in_flight.batches:
            for index, error in sent.unknown_targets.items():
                topic = sent.topic(index, self._address.topic)
                if topic not in seen:
                    producer.forget_topic(topic)
                    try:
                        seen[topic] = producer.partition_count(topic, sent.deadline - _MARGIN)
                    except BrokerError as failed:
                        seen[topic] = failed
                partitions, named = seen[topic], codec.named_partition(sent.batch, index)
                if isinstance(partitions, BrokerError):
                    sent.failures[index] = partitions
                elif named is None or 0 <= named < partitions:
                    sent.failures[index] = topic_changed(f"storing in {quoted(topic)}", partitions, error.name())
            sent.unknown_targets.clear()

    def _give_up(self, producer: ProducerInstance) -> None:
        """Settle every batch now: what the queue still holds is dropped, and another producer goes on."""
        if producer.stopped_at_gap:  # other brokers may still answer
            producer.drain(min(time.monotonic() + _PURGED, self._in_flight.deadline - _MARGIN))
        producer.client.purge()
        producer.drain(time.monotonic() + _PURGED)
        self._take_reports(producer)
        if len(producer):
            text = f"kafka: {self.doing('storing in')}: the client does not report whether it was stored"
            for sent in self._in_flight.batches:
                self._in_flight.fail_rest(sent, 0, Ambiguous(text, code=Code.UNCONFIRMED))
        self._settle(producer)
        self._close_producer()

    def _settle(self, producer: ProducerInstance) -> None:
        """Settle every batch: rows without a reported failure are stored."""
        self._take_reports(producer)
        self._resolve_unknown_targets(producer)
        self._in_flight.settle()


def _refused_to_write(producer: ProducerInstance) -> KafkaError | None:
    """Return the error with which a broker told this producer, before its first row, that it may not write."""
    fatal = producer.fatal_error
    return fatal if fatal is not None and fatal.name() in _MAY_NOT_WRITE else None


def _produce(producer: Producer, row: Row) -> Exception | None:
    """Hand one row over; return the error with which the client refuses it."""
    slot, topic, value, key, partition, timestamp, headers = row
    try:
        producer.produce(topic, value, key, partition, slot, slot, timestamp, headers)
    except ERRORS as error:
        return error
    return None
