"""Reads a range of a partition's records as columns of letters, in as large pieces as fit into memory.

The client's calls are made by `map`, without a line of Python for each record: most of the time of a reader goes there.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any, Final

from confluent_kafka import (
    TIMESTAMP_LOG_APPEND_TIME,
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    KafkaException,
    Message,
    TopicPartition,
)

from redelivery.contract.broker import LetterBatch, Wanted
from redelivery.contract.context import ErrorContext
from redelivery.contract.letters import BATCH_BYTES, BATCH_LETTERS
from redelivery.contract.message import ROW_OVERHEAD, Batch, Column, Headers
from redelivery.errors import Fatal, Retriable
from redelivery.kit.errors import Code
from redelivery.kit.letters import undecodable
from redelivery_kafka.client.offset_map import OffsetMap
from redelivery_kafka.client.ranges import Range, worth_reading
from redelivery_kafka.codec import header_fault, position
from redelivery_kafka.errors import PARTITION_EOF, classify, while_reading

#: Seconds for one request, and without any record before a reader gives up.
_REQUEST: Final = 10.0
_SILENCE: Final = 20.0
#: Seconds that one call waits for records; and how many the first call takes, whose size is unknown yet.
_WAIT: Final = 0.1
_FIRST: Final = 200
#: Above every time that brokers keep.
_LATEST_MS: Final = (1 << 63) - 1
_BARE: Final = Wanted(columns=frozenset())
#: Letters of a batch of which one has its headers measured.
_SAMPLE: Final = 16


class LetterReader:
    """Reads one partition of a topic, up to an offset that exists.

    Args:
        consumer: a consumer in no group, with `enable.partition.eof`.
        topic: the topic.
        doing: what it does, for errors.
    """

    def __init__(self, consumer: Consumer, topic: str, doing: str) -> None:
        self._consumer = consumer
        self._topic = topic
        self._doing = doing

    def read(
        self, part: Range, removed: OffsetMap, wanted: Wanted, only: Sequence[int] | None = None
    ) -> Iterator[LetterBatch]:
        """Yield the letters of a range, except removed ones.

        Args:
            part: the range.
            removed: the letters that are removed.
            wanted: what is asked for.
            only: offsets that are wanted, ascending; None: all.

        Raises:
            BrokerError
        """
        wanted_offsets = None if only is None else frozenset(only)
        for stretch in worth_reading(max(part.low, removed.base), part.high, removed.runs(), only):
            for records in self._records(Range(part.number, stretch.low, stretch.high)):
                chosen: Sequence[Any] = records
                if wanted_offsets is not None:
                    chosen = [each for each in chosen if each.offset() in wanted_offsets]
                if chosen and removed.settled_between(chosen[0].offset(), chosen[-1].offset() + 1):
                    chosen = [each for each in chosen if not removed.is_settled(each.offset())]
                if wanted.key is not None:
                    chosen = [each for each in chosen if each.key() == wanted.key]
                if chosen:
                    yield letters(self._topic, part.number, chosen, wanted)

    def is_dated(self, number: int, offset: int) -> bool:
        """Return whether a record exists at this offset, and its time is that of the broker that stored it."""
        found = self.read(Range(number, offset, offset + 1), OffsetMap(0), _BARE)
        return any(batch.dead_lettered_ms is not None for batch in found)

    def first_at(self, part: Range, moment_ms: int) -> int:
        """Return the first offset of a range whose record has this time or a later one; its end if none has."""
        asked = TopicPartition(self._topic, part.number, min(max(0, moment_ms), _LATEST_MS))
        with while_reading(self._doing):
            (found,) = self._consumer.offsets_for_times([asked], timeout=_REQUEST)
            if found.error is not None:
                raise KafkaException(found.error)
        return part.high if found.offset < 0 else min(max(part.low, found.offset), part.high)

    def _records(self, part: Range) -> Iterator[Sequence[Any]]:
        """Yield the records of a range in pieces, without the client's events."""
        with while_reading(self._doing):
            self._consumer.assign([TopicPartition(self._topic, part.number, part.low)])
        last, size, ended = time.monotonic(), _FIRST, False
        while not ended:
            with while_reading(self._doing):
                records: list[Any] = self._consumer.consume(size, _WAIT)
            if any(map(Message.error, records)):
                ended = self._ended([each for each in records if each.error() is not None], part)
                records = [each for each in records if each.error() is None]
            if records:
                last = time.monotonic()
                ended = ended or records[-1].offset() + 1 >= part.high
                if records[0].offset() < part.low or records[-1].offset() >= part.high:
                    records = [each for each in records if part.low <= each.offset() < part.high]
            elif time.monotonic() > last + _SILENCE:
                text = f"nothing came for {_SILENCE:g} s, though not all letters were read"
                raise Retriable(f"kafka: {self._doing}: {text}", code=Code.DEADLINE_EXCEEDED)
            if records:
                mean = 1 + sum(map(len, records)) // len(records)
                size = max(1, min(BATCH_LETTERS, BATCH_BYTES // mean, 4 * size))
                yield records

    def _ended(self, events: Sequence[Any], part: Range) -> bool:
        """Return whether an event says that the log ends before the range does. Raises Fatal."""
        for each in events:
            error = each.error()
            if error.code() != PARTITION_EOF:
                found = classify(error, self._doing)
                if isinstance(found, Fatal):
                    raise found
                continue
            with while_reading(self._doing):  # a replica that is read may be behind its leader
                here = TopicPartition(self._topic, part.number)
                _, high = self._consumer.get_watermark_offsets(here, timeout=_REQUEST)
            if each.offset() >= min(part.high, high):
                return True
        return False


def letters(topic: str, number: int, records: Sequence[Any], wanted: Wanted) -> LetterBatch:
    """Return records of one partition as columns. At least one; what is not wanted is not decoded."""
    count = len(records)
    stamps = list(map(Message.timestamp, records))
    kinds = {kind for kind, _ in stamps}
    contexts: dict[int, ErrorContext] = {}
    headers: Column[Headers] | None = None
    offsets: Iterable[Any] = map(Message.offset, records)
    nbytes = sum(map(len, records)) + count * ROW_OVERHEAD
    if wanted.wants("headers"):
        found, faults = _headers(records)
        contexts = {at: undecodable("kafka", fault) for at, fault in faults.items()}
        headers = Column.of(found)
        nbytes += _SAMPLE * sum(map(_size, found[::_SAMPLE]))
    return LetterBatch(
        messages=Batch(
            number=0,
            length=count,
            nbytes=nbytes,
            value=Column(count, lambda: list(map(Message.value, records))),
            key=Column(count, lambda: list(map(Message.key, records))),
            headers=headers,
            timestamp_ms=Column(
                count, lambda: [None if kind == TIMESTAMP_NOT_AVAILABLE else at for kind, at in stamps]
            ),
        ),
        position=Column(count, lambda: [position(topic, number, each) for each in offsets]),
        # Any other timestamp is that of the message that died, not of its death.
        dead_lettered_ms=Column.of([ms if kind == TIMESTAMP_LOG_APPEND_TIME else None for kind, ms in stamps])
        if TIMESTAMP_LOG_APPEND_TIME in kinds
        else None,
        contexts=contexts,
    )


def _headers(records: Sequence[Any]) -> tuple[list[Headers], dict[int, str]]:
    """Return the headers of records, and by index what of them cannot be decoded.

    `map` notices a record whose decoding has failed; a loop of Python code may not (client.internals).
    """
    found: list[Any] = []
    faults: dict[int, str] = {}
    calls = map(Message.headers, records)
    with _without_collector():
        while True:
            try:
                found.extend(calls)
            except (UnicodeDecodeError, SystemError) as error:
                faults[len(found)] = header_fault(error)
                found.append(None)
            else:
                return [() if each is None else tuple(each) for each in found], faults


@contextmanager
def _without_collector() -> Iterator[None]:
    """Put off garbage collection: it would look a hundred times through what is made here, which has no cycles.

    A record's ten headers cost half of the time again with it (Python 3.11).
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _size(headers: Headers) -> int:
    return sum(map(len, filter(None, chain.from_iterable(headers))))
