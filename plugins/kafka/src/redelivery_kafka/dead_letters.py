"""The dead letters role: reads a topic without joining a group, and remembers which of its letters are removed.

A record cannot be deleted from a log. Removed or redriven letters are remembered in the committed offsets of separate
groups, `<topic>.redelivery-removed` (`client.removed`), as a receiver remembers settled records, and are not shown
again. The topic itself is never changed.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final

from confluent_kafka import Consumer, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient

from redelivery.contract.broker import DeadLetters, Letter, LetterBatch, Wanted
from redelivery.errors import ConfigurationError, Fatal, Retriable
from redelivery.kit.errors import Code, quoted
from redelivery.kit.roles import Resource
from redelivery_kafka.address import Address
from redelivery_kafka.client import instances
from redelivery_kafka.client.letter_reader import LetterReader
from redelivery_kafka.client.offset_map import OffsetMap
from redelivery_kafka.client.originals import Originals
from redelivery_kafka.client.ranges import Cursor, Range, advance, cut, parse_split, split_text
from redelivery_kafka.client.removed import REMOVED, RemovedLetters
from redelivery_kafka.codec import parse_position, position
from redelivery_kafka.errors import PARTITION_EOF, classify, while_reading
from redelivery_kafka.options import Settings

log = logging.getLogger("redelivery.kafka")

#: Seconds for one request, and without any letter before a browse gives up.
_REQUEST: Final = 10.0
_DESCRIBE: Final = 2.0
_SILENCE: Final = 20.0
#: Letters of one partition to read ahead while another has none yet; and records taken by one poll.
_AHEAD: Final = 500
_RECORDS: Final = 100
#: What the client fetches ahead: kilobytes in all, and bytes of a partition by one request.
_AHEAD_KB: Final = 32_768
_REQUEST_BYTES: Final = 4 << 20
#: Of what letters point to, less is fetched in vain when the next one is elsewhere.
_BESIDE_BYTES: Final = 1 << 19


@dataclass(slots=True)
class _PartitionState:
    """Watermarks of a partition, and the offsets of its removed letters."""

    low: int
    high: int
    removed: OffsetMap


@dataclass(slots=True)
class _Reading:
    """A browse of one partition, up to where the log ended when it began. `ahead` holds timestamps and letters."""

    number: int
    state: _PartitionState
    ahead: deque[tuple[int, Letter]] = field(default_factory=deque)
    ended: bool = False
    paused: bool = False


class KafkaDeadLetters(Resource, DeadLetters):
    """The records of one topic that are not removed, each with the message that it points to.

    Args:
        address: the dead letter topic.
        settings: the client options.
        own: the topic whose letters these are; None: not known.
    """

    def __init__(self, address: Address, settings: Settings, own: str | None) -> None:
        super().__init__("kafka", f"the dead letters in topic {address.topic!r}")
        self._address = replace(address, named_group=address.topic + REMOVED)
        self._settings = settings
        self._removed = RemovedLetters(settings, self._address, self.doing)
        self._open: set[Consumer] = set()
        self._admin: AdminClient | None = None
        #: The id of the topic whose letters were read last; "": not known.
        self._read_id = ""
        self._beside: Consumer | None = None
        self._originals = Originals(self._second, own, settings.originals, self.doing("reading the originals of"))

    def browse(self) -> Iterator[Letter]:
        self._remember_topic()
        reading = {
            partition: _Reading(partition, state)
            for partition, state in self._states(renew=True).items()
            if state.removed.missing(state.high)
        }
        with self._consumer("browsing") as consumer:
            consumer.assign([TopicPartition(self._address.topic, p, r.state.removed.base) for p, r in reading.items()])
            while reading:
                self._read_ahead(consumer, reading)
                reading = {partition: each for partition, each in reading.items() if each.ahead}
                if reading:
                    oldest = min(reading.values(), key=lambda each: each.ahead[0][0])
                    yield oldest.ahead.popleft()[1]
                    if oldest.paused and not oldest.ahead:
                        oldest.paused = False
                        consumer.resume([TopicPartition(self._address.topic, oldest.number)])

    def splits(self, wanted: Wanted) -> Sequence[str]:
        after, before = (None if text is None else self._parse_cursor(text) for text in (wanted.after, wanted.before))
        only = None if wanted.positions is None else self._offsets(wanted.positions)
        ranges = []
        for part in self._ranges("splitting", after, before):
            low, high = part.low, part.high
            if only is not None:
                offsets = only.get(part.number, {high})
                low, high = max(low, min(offsets)), min(high, max(offsets) + 1)
            if low < high:
                ranges.append(Range(part.number, low, high))
        if wanted.since_ms is not None or wanted.until_ms is not None:
            ranges = self._within(ranges, wanted)
        if not wanted.removing:  # what is removed of a partition is one state, which two readers would write over
            ranges = cut(ranges, wanted.readers)
        return [split_text(self._address.topic, each) for each in ranges]

    def read(self, split: str, wanted: Wanted) -> Iterator[LetterBatch]:
        part = parse_split(split, self._address.topic)
        if part is None:
            raise ConfigurationError(f"kafka: {quoted(split)} is not a split of topic {self._address.topic!r}")
        return self._read(part, wanted)

    def _read(self, part: Range, wanted: Wanted) -> Iterator[LetterBatch]:
        only = None
        if wanted.positions is not None:
            only = sorted(self._offsets(wanted.positions).get(part.number, ()))
        self._remember_topic()
        state = self._states([part.number]).get(part.number)
        if state is None:
            text = f"it has no partition {part.number} any more: it was created again since the split was made"
            raise Fatal(f"kafka: {self.doing('reading')}: {text}; start again", code=Code.CONFLICT)
        part = part._replace(high=min(part.high, state.high))
        with self._consumer("reading") as consumer:
            yield from self._reader(consumer, "reading").read(part, state.removed, wanted, only)

    def cursor(self, *, after: str | None = None, most: int | None = None) -> str:
        topic_id = self._topic_id(controller=self._partitions()[1])
        last = None if after is None else self._parse_cursor(after)
        offsets = advance(self._ranges("reading", last, None, topic_id=topic_id), most)
        return str(Cursor(topic_id, offsets))

    def remove(self, positions: Sequence[str]) -> int:
        wanted = self._offsets(positions)
        return self._mark_removed("removing", wanted) if wanted else 0

    def purge(self) -> int:
        return self._mark_removed("purging", None)

    def _release(self) -> None:
        for each in list(self._open):
            self._close_consumer(each)
        self._beside = None
        self._removed.close()
        if self._admin is not None:
            instances.release(self._admin)
            self._admin = None

    # --- splits and cursors ---

    def _offsets(self, positions: Iterable[str]) -> dict[int, set[int]]:
        """Return the offsets that positions name, by partition. Raises ConfigurationError."""
        found: dict[int, set[int]] = {}
        for each in positions:
            place = parse_position(each, self._address.topic)
            if place is None:
                example = position(self._address.topic, 0, 42)
                text = f"{quoted(each)} is not a position of this topic; write it as {example!r}"
                raise ConfigurationError(f"kafka: {text}")
            found.setdefault(place[0], set()).add(place[1])
        return found

    def _ranges(
        self, what: str, after: Cursor | None, before: Cursor | None, *, topic_id: str | None = None
    ) -> list[Range]:
        """Return where letters are in each partition, between two cursors; a partition may be empty."""
        states = self._states(renew=True)
        cursors = [each for each in (after, before) if each is not None]
        if cursors and topic_id is None:
            topic_id = self._topic_id(controller=self._partitions()[1])
        for cursor in cursors:
            self._check_cursor(cursor, topic_id or "", states, what)
        ranges = []
        for number, state in sorted(states.items()):
            low = max(state.removed.base, 0 if after is None else after.offsets.get(number, 0))
            high = state.high if before is None else min(state.high, before.offsets.get(number, 0))
            ranges.append(Range(number, min(low, max(high, 0)), max(high, 0)))
        return ranges

    def _within(self, ranges: Sequence[Range], wanted: Wanted) -> list[Range]:
        """Return what of ranges may be of the time that is wanted: all of it, unless brokers dated the letters."""
        found: list[Range] = []
        with self._consumer("reading") as consumer:
            reader = self._reader(consumer, "reading")
            for at, each in enumerate(ranges):
                if not (reader.is_dated(each.number, each.low) and reader.is_dated(each.number, each.high - 1)):
                    return [*found, *ranges[at:]]  # a topic's setting: the others are as this one
                low = each.low if wanted.since_ms is None else reader.first_at(each, wanted.since_ms)
                high = each.high if wanted.until_ms is None else reader.first_at(each, wanted.until_ms)
                if low < high:
                    found.append(Range(each.number, low, high))
        return found

    def _parse_cursor(self, text: str) -> Cursor:
        try:
            return Cursor.parse(text)
        except ValueError as error:
            shown = quoted(text)
            raise ConfigurationError(f"kafka: {shown} is not a cursor of a topic's letters ({error})") from error

    def _check_cursor(self, cursor: Cursor, topic_id: str, states: Mapping[int, _PartitionState], what: str) -> None:
        """Raise Fatal where the topic is not the one that the cursor was made of."""
        other = cursor.topic_id and topic_id and cursor.topic_id != topic_id
        beyond = any(number not in states or offset > states[number].high for number, offset in cursor.offsets.items())
        if other or beyond:
            text = "the topic was created again, or has lost records, since the cursor was made; begin a new stream"
            raise Fatal(f"kafka: {self.doing(what)}: {text} (for Spark: a new checkpoint)", code=Code.CONFLICT)

    def _partitions(self) -> tuple[list[int], bool]:
        """Return the topic's partitions, and whether a broker is the cluster's controller. Raises BrokerError."""
        self.check_open("reading")
        with while_reading(self.doing("reading")):
            cluster = self._removed.consumer.list_topics(self._address.topic, timeout=_REQUEST)
            found = cluster.topics[self._address.topic]
            if found.error is not None:
                raise KafkaException(found.error)
        return list(found.partitions), cluster.controller_id in cluster.brokers

    def _topic_id(self, *, controller: bool) -> str:
        """Return the id that the brokers gave the topic; "" where none is known: old ones have none.

        Only a controller tells it, and the client waits for one.
        """
        if not controller:
            return ""
        topic = self._address.topic
        if self._admin is None:
            self._admin = instances.admin(self._settings, self._address)
        try:
            asked = self._admin.describe_topics(TopicCollection([topic]), request_timeout=_DESCRIBE)
            found = str(asked[topic].result().topic_id)
        except KafkaException as error:
            log.info("kafka: %s: the topic's id is not known: %s", self.doing("reading"), error)
            return ""
        return found if found.strip("A") else ""

    def _remember_topic(self) -> None:
        """Remember which topic it is whose positions a reader gets from now on. Raises BrokerError."""
        self._read_id = self._topic_id(controller=self._partitions()[1]) or self._read_id

    # --- browsing ---

    def _read_ahead(self, consumer: Consumer, reading: dict[int, _Reading]) -> None:
        """Read until each partition has a letter, or is read to its end: only then is the oldest letter known."""
        last = time.monotonic()
        while any(not each.ahead and not each.ended for each in reading.values()):
            with while_reading(self.doing("browsing")):
                records = consumer.consume(_RECORDS, 0.05)
            if records:
                last = time.monotonic()
            elif time.monotonic() > last + _SILENCE:
                text = f"nothing came for {_SILENCE:g} s, though not all letters were read"
                raise Retriable(f"kafka: {self.doing('browsing')}: {text}", code=Code.DEADLINE_EXCEEDED)
            self._take(consumer, records, reading)
            for each in reading.values():
                if len(each.ahead) > _AHEAD and not each.paused and not each.ended:
                    each.paused = True
                    consumer.pause([TopicPartition(self._address.topic, each.number)])

    def _take(self, consumer: Consumer, records: Sequence[Any], reading: Mapping[int, _Reading]) -> None:
        taken: dict[int, list[Any]] = {}
        for record in records:
            error = record.error()
            if error is not None and error.code() != PARTITION_EOF:
                found = classify(error, self.doing("browsing"))
                if isinstance(found, Fatal):
                    raise found
                continue
            each = reading.get(record.partition())
            if each is None:
                continue
            offset, state = record.offset(), each.state
            if error is None and offset < state.high and not state.removed.is_settled(offset):
                taken.setdefault(each.number, []).append(record)
            each.ended = each.ended or error is not None or offset + 1 >= state.high
        reader = self._reader(consumer, "browsing")
        for number, some in taken.items():
            letters = (letter for batch in reader.letters(number, some) for letter in batch.letters())
            stamps = [record.timestamp()[1] for record in some]
            reading[number].ahead.extend(zip(stamps, letters, strict=True))

    # --- removing ---

    def _mark_removed(self, what: str, wanted: Mapping[int, Iterable[int]] | None) -> int:
        """Mark letters as removed, by partition, or all of them; return how many were not marked before."""
        self.check_open(what)
        there, controller = self._partitions()
        topic_id = self._topic_id(controller=controller)
        if wanted is not None and self._read_id and topic_id and topic_id != self._read_id:
            text = "it was created again since its letters were read, and their positions name others now; read again"
            raise Fatal(f"kafka: {self.doing(what)}: {text}", code=Code.CONFLICT)
        added: dict[int, list[tuple[int, int]]] = {}
        lows: dict[int, int] = {}
        for number in there if wanted is None else sorted(wanted.keys() & set(there)):
            low, high = self._marks(number)
            offsets = None if wanted is None else sorted(wanted[number])
            runs = [(low, high)] if offsets is None else [(each, each + 1) for each in offsets if low <= each < high]
            if runs and low < high:
                added[number], lows[number] = runs, low
        return self._removed.add(added, lows, topic_id) if added else 0

    def _states(self, numbers: Sequence[int] | None = None, *, renew: bool = False) -> dict[int, _PartitionState]:
        there = [each for each in self._partitions()[0] if numbers is None or each in numbers]
        removed = self._removed.of(there, renew=renew)
        found = {}
        for number in there:
            low, high = self._marks(number)
            removed[number].settle(0, low)
            found[number] = _PartitionState(low, high, removed[number])
        return found

    def _marks(self, number: int) -> tuple[int, int]:
        with while_reading(self.doing("reading")):
            here = TopicPartition(self._address.topic, number)
            marks: tuple[int, int] = self._removed.consumer.get_watermark_offsets(here, timeout=_REQUEST)
        return marks

    # --- the client ---

    def _reader(self, consumer: Consumer, what: str) -> LetterReader:
        return LetterReader(consumer, self._address.topic, self.doing(what), self._originals)

    @contextmanager
    def _consumer(self, what: str) -> Iterator[Consumer]:
        consumer = self._opened(what)
        try:
            yield consumer
        finally:
            if not self.is_inherited:
                self._close_consumer(consumer)

    def _second(self) -> Consumer:
        """Return the consumer of what letters point to; one, for all reads.

        What a share group was given may be of a transaction that was aborted, or is not over yet.
        """
        if self._beside is None:
            own = {"isolation.level": "read_uncommitted", "fetch.message.max.bytes": _BESIDE_BYTES}
            self._beside = self._opened("reading", **own)
        return self._beside

    def _opened(self, what: str, **settings: Any) -> Consumer:
        self.check_open(what)
        own = {
            "enable.partition.eof": True,
            "queued.max.messages.kbytes": _AHEAD_KB,
            "fetch.message.max.bytes": _REQUEST_BYTES,
            **settings,
        }
        consumer = instances.consumer(self._settings, self._address, **own)
        self._open.add(consumer)
        return consumer

    def _close_consumer(self, consumer: Consumer) -> None:
        if consumer in self._open:
            self._open.discard(consumer)
            with suppress(KafkaException, RuntimeError):
                consumer.close()
            instances.release(consumer)
