"""The sender role: rows go to librdkafka's queue, and batches are settled when that queue has emptied.

Slots of rows (`flight.py`) are used again when nothing is in flight. At the first deadline that passes, what is still
in the queue is taken back, and another producer goes on; the same where rows are in order and one was refused. This
file must not retry: the client does, within the deadline.
"""

from __future__ import annotations

import os
import time
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Producer

from redelivery.base.urls import quoted
from redelivery.contract.broker import Failure, Sender, Settled
from redelivery.contract.message import Batch
from redelivery.errors import Ambiguous, BrokerError, Fatal, NotSent, Permanent, Retriable
from redelivery_kafka import rows
from redelivery_kafka.address import DEAD_LETTERS, Address, topic_fault
from redelivery_kafka.config import Settings
from redelivery_kafka.errors import ERRORS, GAP, LOST_COUNT, ROW_ERRORS, changed, classify, doubted, refused
from redelivery_kafka.flight import Flight, Report, Row, produce, slot_type

#: What is in the queue this long before a deadline is taken back, so that it is told of in time.
_MARGIN: Final = 0.25
#: For what was taken back to be told of.
_PURGED: Final = 2.0
#: How long one question for a topic waits, so that a refused connection is seen between two.
_ASK: Final = 1.0
#: A topic that was only just made is not known to every broker yet.
_NEW: Final = 1.0
_STEP: Final = 0.1
#: Errors of a row of which is sure, where it had no partition yet, that it never left.
_UNDELIVERED: Final = frozenset({"_MSG_TIMED_OUT", "_PURGE_QUEUE"})
#: An idempotent producer without the right to write is told so before its first row is sent.
_RIGHTS: Final = frozenset({"CLUSTER_AUTHORIZATION_FAILED", "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"})

#: Producers of this process and, in a child, of its parent: one that is freed in a child would wait for ever for
#: threads that only the parent has.
_alive: Final[dict[int, Producer]] = {}


class KafkaSender(Sender):
    """Sends to the topic of `address`, or to the one that a row names."""

    def __init__(self, address: Address, settings: Settings) -> None:
        self._address = address
        self._settings = settings
        self._limit = rows.largest(settings.message_bytes)
        self._doing = f"storing in {address.topic!r}"
        self._pid = os.getpid()
        self._closed = False
        self._producer: Producer | None = None
        self._topics: set[str] = set()  # that the producer has seen, and not missed since
        self._said = ""  # what the connection said last
        self._unreached = False  # whether no server could be reached since one was asked for
        self._stop: KafkaError | None = None  # why the producer can go on no more
        self._strict = False  # whether the producer is to stop at the first refusal
        self._shaken = False  # whether it has lost a connection: what it holds may have been sent before
        self._refused: KafkaError | None = None
        self._flights: list[Flight] = []
        self._settled: list[Settled] = []
        self._failed_keys: set[bytes] = set()  # of rows whose failure `collect` has yet to tell
        self._reports: list[Report] = []
        self._slots: list[Any] = []
        self._used = 0
        self._slot = slot_type(self._reports)

    # --- the role ---

    def check(self, *, deadline: float) -> None:
        self._usable()
        seen = self._look(self._open(deadline, strict=self._strict), self._address.topic, deadline)
        if not isinstance(seen, int):
            raise seen

    def send(self, batch: Batch, *, deadline: float) -> None:
        self._usable()
        if batch.ordered and self._gap and self._producer is not None:  # `collect` tells what failed first
            raise self._behind()
        producer = self._open(deadline, strict=batch.ordered and not batch.isolate)
        failures = rows.faults(batch, self._limit, self._nowhere(producer, batch, deadline))
        self._poll(producer, 0)
        self._absorb()
        flight = Flight(batch, self._take_slots(batch.length), deadline, failures)
        self._flights.append(flight)
        if batch.isolate:
            self._hand_over_alone(producer, flight)
        else:
            self._hand_over(producer, flight)
            self._poll(producer, 0)

    def collect(self, wait: float) -> Sequence[Settled]:
        self._usable()
        end = time.monotonic() + wait
        producer = self._producer
        while producer is not None and self._flights:
            now = time.monotonic()
            first = min(flight.deadline for flight in self._flights) - _MARGIN
            if self._stop is None and now < first and len(producer):
                self._poll(producer, max(0.0, min(end - now, first - now, _STEP)))
            if self._stop is not None or time.monotonic() >= first:
                self._take_back(producer)
            elif not len(producer):
                self._settle()
            elif time.monotonic() < end:
                continue
            break
        else:
            if producer is not None:
                self._poll(producer, 0)
        settled, self._settled = self._settled, []
        if not self._flights:
            self._failed_keys.clear()
        return settled

    def close(self) -> None:
        self._closed = True
        if self._pid == os.getpid():
            self._flights.clear()
            self._discard()

    # --- the producer ---

    def _usable(self) -> None:
        if self._closed:
            raise Fatal(f"kafka: {self._doing}: this sender is closed; open another", native_code="CLOSED")
        if self._pid != os.getpid():
            raise Fatal(f"kafka: {self._doing}: this sender is of another process; open another", native_code="FORKED")

    def _open(self, deadline: float, *, strict: bool) -> Producer:
        """The producer: a strict one sends nothing any more once a request was refused, so that nothing overtakes it.

        Rows that are sent alone need none, and would each end it.
        """
        producer = self._producer
        if producer is not None and (self._stop is not None or strict is not self._strict):
            if self._stop is None:
                self._drain(producer, min((deadline, *(each.deadline for each in self._flights))) - _MARGIN)
            self._take_back(producer)
        if self._producer is None:
            self._stop = self._refused = None
            self._strict, self._shaken = strict, False
            self._producer = self._settings.producer(self._address, strict=strict, on_error=self._heard)
            _alive[id(self._producer)] = self._producer
        return self._producer

    def _poll(self, producer: Producer, wait: float, *, until_empty: bool = False) -> None:
        """Have the client tell what there is to be told. What ends a producer it raises."""
        try:
            (producer.flush if until_empty else producer.poll)(wait)
        except KafkaException as error:
            self._heard(error.args[0])

    def _drain(self, producer: Producer, until: float) -> None:
        """Wait for all that is on its way."""
        while len(producer) and (left := until - time.monotonic()) > 0:
            self._poll(producer, min(left, _STEP))

    @property
    def _gap(self) -> bool:
        """Whether the producer has stopped, so that nothing overtakes what was refused."""
        return self._stop is not None and self._stop.name() == GAP

    def _behind(self) -> NotSent:
        return NotSent(f"kafka: {self._doing}: not sent, because an earlier row has failed", native_code="ORDER")

    def _heard(self, error: KafkaError) -> None:
        """An error of the connection, or one after which the producer is of no more use."""
        said = str(error.str())
        if error.name() == "_ALL_BROKERS_DOWN":  # its text counts connections ("0/1"), and not the servers named
            self._unreached = True
        else:
            self._said = said
        # A connection that was never there has carried nothing.
        self._shaken = self._shaken or (error.name() != GAP and "in state CONNECT" not in said)
        if error.fatal() or error.name() in LOST_COUNT:
            self._stop = error
        elif refused(error):
            self._refused = error

    def _nowhere(self, producer: Producer, batch: Batch, deadline: float) -> dict[str, BrokerError]:
        """The topics of a batch that rows cannot go to. Raises BrokerError where it is the URL's own."""
        own = self._address.topic
        names = {own} if batch.destination is None else {own if n is None else n for n in set(batch.destination.values)}
        found: dict[str, BrokerError] = {}
        for name in names - self._topics:
            if name == own + DEAD_LETTERS:
                text = "it is the dead letter topic, where a row would be read as a letter; name another one"
                found[name] = Permanent(f"kafka: storing in {quoted(name)}: {text}", native_code="DEAD_LETTERS")
                continue
            seen = self._look(producer, name, deadline)
            if isinstance(seen, int):
                self._topics.add(name)
            elif name == own:
                raise seen
            else:
                found[name] = seen
        return found

    def _look(self, producer: Producer, topic: str, deadline: float) -> int | BrokerError:
        """How many partitions a topic has; it is asked for since a missing one is told of much later otherwise.

        Returns:
            The number, or why no row can go there.

        Raises:
            BrokerError: nobody answered by the deadline, or the connection is refused.
        """
        doing = f"storing in {quoted(topic)}"
        fault = topic_fault(topic)
        if fault is not None:
            return Permanent(f"kafka: {doing}: {fault}", native_code="TOPIC_EXCEPTION")
        own = topic == self._address.topic
        patience = time.monotonic() + (_NEW if own else 0)
        last: KafkaException | None = None
        self._refused = None  # one that has passed is no more than that
        self._unreached = False
        while (left := deadline - _MARGIN - time.monotonic()) > 0:
            try:
                there = producer.list_topics(topic, timeout=min(_ASK, left)).topics[topic]
            except KafkaException as failed:
                last = failed
                self._poll(producer, 0)
                if self._refused is not None:
                    raise classify(self._refused, doing) from failed
                continue
            error = there.error
            if error is None:
                return len(there.partitions)
            found = classify(error, doing, own=own)
            if time.monotonic() >= patience and not isinstance(found, Retriable):
                return found
            self._said = str(error.str())
            self._poll(producer, _STEP)
        known = filter(None, (self._address.unreached if self._unreached else "", self._said))
        why = ": ".join(known) or "no word of why"
        text = f"kafka: {doing}: no broker answered by the deadline, so nothing was sent; {why}"
        raise Retriable(text, native_code="_TRANSPORT") from last

    def _discard(self) -> None:
        producer, self._producer = self._producer, None
        self._topics.clear()
        if producer is not None:
            producer.purge()
            self._poll(producer, _STEP, until_empty=True)
            self._reports.clear()  # of slots that other rows will have
            _alive.pop(id(producer), None)

    # --- handing over ---

    def _take_slots(self, count: int) -> int:
        base, self._used = self._used, self._used + count
        self._slots.extend(map(self._slot, range(len(self._slots), self._used)))
        return base

    def _hand_over(self, producer: Producer, flight: Flight) -> None:
        batch, produce, topic = flight.batch, producer.produce, self._address.topic
        slots = self._slots[flight.base : flight.base + batch.length]
        rest: Iterator[Row] = rows.calls(batch, slots, topic)
        if flight.failures or (batch.ordered and self._failed_keys):
            self._go_on(producer, flight, rest)
            return
        keys: Iterable[bytes | None] = repeat(None) if batch.key is None else batch.key.values
        pairs = zip(slots, batch.value.values, keys, strict=False)
        partition, timestamp, headers = -1, 0, None
        try:
            # Two loops without a call of ours: here the time goes.
            if rows.plain(batch):
                rest = ((slot, topic, value, key, -1, 0, None) for slot, value, key in pairs)
                for slot, value, key in pairs:
                    produce(topic, value, key, -1, slot)
            else:
                for slot, topic, value, key, partition, timestamp, headers in rest:
                    produce(topic, value, key, partition, slot, slot, timestamp, headers)
        except ERRORS as error:
            if self._refusal(producer, flight, (slot, topic, value, key, partition, timestamp, headers), error):
                self._go_on(producer, flight, rest)

    def _go_on(self, producer: Producer, flight: Flight, rest: Iterator[Row]) -> None:
        """Hand over row by row, past those that failed and those that these keep back."""
        produce = producer.produce
        for row in self._passing(flight, rest):
            slot, topic, value, key, partition, timestamp, headers = row
            try:
                produce(topic, value, key, partition, slot, slot, timestamp, headers)
            except ERRORS as error:
                if not self._refusal(producer, flight, row, error):
                    return

    def _passing(self, flight: Flight, rest: Iterator[Row]) -> Iterator[Row]:
        """Rows that have not failed, and in an ordered batch are not kept back by one that has."""
        failures, base, failed, ordered = flight.failures, flight.base, self._failed_keys, flight.batch.ordered
        for row in rest:
            index, key = int(row[0]) - base, row[3]
            if index in failures:
                if ordered and key is not None:
                    failed.add(key)
            elif ordered and key is not None and key in failed:
                text = f"kafka: {self._doing}: not sent, because an earlier row of its key has failed"
                failures[index] = NotSent(text, native_code="ORDER")
            else:
                yield row

    def _refusal(self, producer: Producer, flight: Flight, row: Row, error: Exception) -> bool:
        """The client itself refused a row. Wait where its queue is full; else it is the row's fault, or all over.

        Returns:
            Whether to go on with the next row.
        """
        again: Exception | None = error
        if rows.is_letter(row[6]) and rows.unknown_partition(error):
            row = (*row[:4], -1, *row[5:])
            again = produce(producer, row)
        while isinstance(again, BufferError) and self._stop is None:
            left = flight.deadline - _MARGIN - time.monotonic()
            if left <= 0:
                break
            self._poll(producer, min(left, _STEP))
            again = produce(producer, row)
        if again is None:
            return True
        topic, index = row[1], int(row[0]) - flight.base
        found = classify(again, f"storing in {quoted(topic)}", own=topic == self._address.topic)
        found.__cause__ = error
        doubt = doubted(error)
        if doubt is not None or isinstance(error, ROW_ERRORS) or isinstance(found, Permanent):
            self._fail(flight, index, found, doubt)
            return True
        if isinstance(found, Ambiguous):  # a producer that stopped took nothing
            self._poll(producer, 0)  # which says why it has
            gap = self._gap and flight.batch.ordered
            found = self._behind() if gap else found.reclassified(Retriable, f"{found}; this row was not handed over")
        self._fail_from(flight, index, found)
        return False

    def _hand_over_alone(self, producer: Producer, flight: Flight) -> None:
        """Each row when the one before it is settled, so that no other is in its request."""
        self._poll(producer, max(0.0, flight.deadline - _MARGIN - time.monotonic()), until_empty=True)
        slots = self._slots[flight.base : flight.base + flight.batch.length]
        for row in self._passing(flight, rows.calls(flight.batch, slots, self._address.topic)):
            left = flight.deadline - _MARGIN - time.monotonic()
            if left <= 0 or self._stop is not None or len(producer):
                text = f"kafka: {self._doing}: not sent by the deadline, because those before it took so long"
                self._fail_from(flight, int(row[0]) - flight.base, Retriable(text, native_code="deadline"))
                return
            self._go_on(producer, flight, iter([row]))
            self._poll(producer, left, until_empty=True)
            self._absorb()

    # --- settling ---

    def _absorb(self) -> None:
        """Give each failure that was told to its batch."""
        if not self._reports:
            return
        bases = [flight.base for flight in self._flights]
        for slot, error, placed in self._reports:
            flight = self._flights[bisect_right(bases, slot) - 1]
            index = slot - flight.base
            name = error.name()
            if error.fatal() or name in LOST_COUNT:
                self._stop = error
            topic = self._topic(flight.batch, index)
            own = topic == self._address.topic
            found = classify(error, f"storing in {quoted(topic)}", alone=flight.batch.isolate, own=own)
            if name == "_PURGE_QUEUE" and self._gap and flight.batch.ordered and not self._shaken:
                found = self._behind()
            elif name in _UNDELIVERED and self._stop is not None and self._stop.name() in _RIGHTS:
                found = classify(self._stop, f"storing in {quoted(topic)}", own=own)
            elif name in _UNDELIVERED and not placed:
                text = f"{found}; it had no partition yet, so it was never sent; {self._said}".rstrip("; ")
                found = Retriable(text, native_code=name)
            elif name == "_PURGE_QUEUE":  # it may have been sent before, and waited there to be sent again
                found = Ambiguous(
                    f"kafka: storing in {quoted(topic)}: not confirmed by the deadline; {self._said}", native_code=name
                )
            found.__cause__ = KafkaException(error)
            self._fail(flight, index, found, doubted(error))
        self._reports.clear()

    def _topic(self, batch: Batch, index: int) -> str:
        """The topic that a row goes to."""
        target = None if batch.destination is None else batch.destination.values[index]
        return target or self._address.topic

    def _look_again(self, producer: Producer) -> None:
        """Say why the client did not know a topic or a partition: only what a row itself names is its own fault."""
        seen: dict[str, int | BrokerError] = {}
        for flight in self._flights:
            for index, doubt in flight.doubts.items():
                topic = self._topic(flight.batch, index)
                if topic not in seen:
                    self._topics.discard(topic)
                    try:
                        seen[topic] = self._look(producer, topic, flight.deadline)
                    except BrokerError as error:
                        seen[topic] = error
                there, named = seen[topic], rows.named_partition(flight.batch, index)
                if isinstance(there, BrokerError):
                    flight.failures[index] = there
                elif named is None or 0 <= named < there:
                    flight.failures[index] = changed(f"storing in {quoted(topic)}", there, doubt.name())
            flight.doubts.clear()

    def _fail(self, flight: Flight, index: int, error: BrokerError, doubt: KafkaError | None = None) -> None:
        flight.failures[index] = error
        if doubt is not None:
            flight.doubts[index] = doubt
        if flight.batch.ordered and flight.batch.key is not None:
            key = flight.batch.key.values[index]
            if key is not None:
                self._failed_keys.add(key)

    def _fail_from(self, flight: Flight, first: int, error: BrokerError) -> None:
        """All rows from this one on fail, but those that have already."""
        for at in range(first, flight.batch.length):
            if at not in flight.failures:
                self._fail(flight, at, error)

    def _take_back(self, producer: Producer) -> None:
        """Settle all now: what the queue still holds is taken out of it, and another producer goes on."""
        if self._gap:  # other brokers may be answering still
            self._drain(
                producer, min((time.monotonic() + _PURGED, *(each.deadline - _MARGIN for each in self._flights)))
            )
        producer.purge()
        self._drain(producer, time.monotonic() + _PURGED)
        unknown = None
        if len(producer):
            text = f"kafka: {self._doing}: the client does not tell what became of it"
            unknown = Ambiguous(text, native_code="_TIMED_OUT")
        self._settle(unknown)
        self._discard()

    def _settle(self, error: BrokerError | None = None) -> None:
        """Every batch is settled: what was not told to have failed is stored, unless there is an error for it."""
        self._absorb()
        if self._producer is not None:
            self._look_again(self._producer)
        for flight in self._flights:
            failures = [Failure(index, each) for index, each in flight.failures.items()]
            self._settled.append(Settled(batch=flight.batch.number, failures=failures, error=error))
        self._flights.clear()
        self._used = 0
