"""Reads a range of a partition's records as columns of letters, in as large pieces as fit into memory.

The client's calls are made by `map`, without a line of Python for each record: most of the time of a reader goes there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
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
from redelivery.contract.letters import EVERYTHING
from redelivery.contract.message import ROW_OVERHEAD, Batch, Column, Headers
from redelivery.kit.collector import without_collector
from redelivery.kit.letters import undecodable
from redelivery_kafka.client.log_reader import REQUEST, LogReader
from redelivery_kafka.client.offset_map import OffsetMap
from redelivery_kafka.client.originals import Originals, Whole
from redelivery_kafka.client.pointers import Death, death_in, deaths_in
from redelivery_kafka.client.ranges import Range, worth_reading
from redelivery_kafka.codec import header_fault, position
from redelivery_kafka.errors import while_reading

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
        originals: reads the records that letters point to.
    """

    def __init__(self, consumer: Consumer, topic: str, doing: str, originals: Originals) -> None:
        self._consumer = consumer
        self._topic = topic
        self._doing = doing
        self._log = LogReader(consumer, topic, doing)
        self._originals = originals

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
            for records in self._log.records(Range(part.number, stretch.low, stretch.high)):
                chosen: Sequence[Any] = records
                if wanted_offsets is not None:
                    chosen = [each for each in chosen if each.offset() in wanted_offsets]
                if chosen and removed.any_between(chosen[0].offset(), chosen[-1].offset() + 1):
                    chosen = [each for each in chosen if not removed.is_settled(each.offset())]
                if wanted.key is not None:
                    chosen = [each for each in chosen if each.key() == wanted.key or _is_empty(each)]
                if chosen:
                    yield from self.letters(part.number, chosen, wanted)

    def letters(self, number: int, records: Sequence[Any], wanted: Wanted = EVERYTHING) -> Iterator[LetterBatch]:
        """Yield records of one partition as letters, with what they point to; at least one. Raises BrokerError."""
        headers, faults = _headers(records) if wanted.wants("headers") else (None, {})
        deaths = _deaths(records, headers, wanted)
        if not deaths:
            yield letters(self._topic, number, records, headers, faults)
            return
        for whole in self._originals.resolve(records, deaths):
            yield _resolved(self._topic, number, whole, with_headers=headers is not None)

    def is_dated(self, number: int, offset: int) -> bool:
        """Return whether a record exists at this offset, and its time is that of the broker that stored it."""
        found = self.read(Range(number, offset, offset + 1), OffsetMap(0), _BARE)
        return any(batch.dead_lettered_ms is not None for batch in found)

    def first_at(self, part: Range, moment_ms: int) -> int:
        """Return the first offset of a range whose record has this time or a later one; its end if none has."""
        asked = TopicPartition(self._topic, part.number, min(max(0, moment_ms), _LATEST_MS))
        with while_reading(self._doing):
            (found,) = self._consumer.offsets_for_times([asked], timeout=REQUEST)
            if found.error is not None:
                raise KafkaException(found.error)
        return part.high if found.offset < 0 else min(max(part.low, found.offset), part.high)


def letters(
    topic: str,
    number: int,
    records: Sequence[Any],
    headers: list[Headers] | None,
    faults: Mapping[int, str],
    contents: Sequence[Any] | None = None,
) -> LetterBatch:
    """Return records of one partition as columns. At least one; what is not wanted is not decoded.

    Args:
        topic: the dead letter topic.
        number: of the partition.
        records: the records.
        headers: of the messages, where they are wanted.
        faults: what of the headers cannot be decoded, by index.
        contents: the record that has the message of each; None: itself.
    """
    count = len(records)
    whole = records if contents is None else contents
    stamps = list(map(Message.timestamp, records))
    kinds = {kind for kind, _ in stamps}
    times = stamps if contents is None else list(map(Message.timestamp, contents))
    offsets: Iterable[Any] = map(Message.offset, records)
    nbytes = sum(map(len, whole)) + count * ROW_OVERHEAD
    if headers is not None:
        nbytes += _SAMPLE * sum(map(_size, headers[::_SAMPLE]))
    return LetterBatch(
        messages=Batch(
            number=0,
            length=count,
            nbytes=nbytes,
            value=Column(count, lambda: list(map(Message.value, whole))),
            key=Column(count, lambda: list(map(Message.key, whole))),
            headers=None if headers is None else Column.of(headers),
            timestamp_ms=Column(count, lambda: [None if kind == TIMESTAMP_NOT_AVAILABLE else at for kind, at in times]),
        ),
        position=Column(count, lambda: [position(topic, number, each) for each in offsets]),
        # Any other timestamp is that of the message that died, not of its death.
        dead_lettered_ms=Column.of([ms if kind == TIMESTAMP_LOG_APPEND_TIME else None for kind, ms in stamps])
        if TIMESTAMP_LOG_APPEND_TIME in kinds
        else None,
        contexts={at: undecodable("kafka", fault) for at, fault in faults.items()},
    )


def _resolved(topic: str, number: int, whole: Whole, *, with_headers: bool) -> LetterBatch:
    """Return letters with the messages that they point to."""
    headers: list[Headers] | None = None
    faults: Mapping[int, str] = {}
    if with_headers:
        headers, faults = _headers(whole.contents)
        for at in whole.bare:
            headers[at] = ()
    batch = letters(topic, number, whole.letters, headers, faults, whole.contents)
    both = {at: f"{whole.contexts[at].reason} {faults[at]}" for at in faults.keys() & whole.contexts.keys()}
    told = {at: replace(whole.contexts[at], reason=text) for at, text in both.items()}
    return replace(batch, contexts={**batch.contexts, **whole.contexts, **told})


def _deaths(records: Sequence[Any], headers: Sequence[Headers] | None, wanted: Wanted) -> dict[int, Death]:
    """Return what records say that point to others, by index; where headers are not wanted, of empty records only."""
    if headers is not None:
        return deaths_in(headers)
    if not (wanted.wants("value") or wanted.wants("key") or wanted.wants("timestamp_ms")):
        return {}
    empty = [at for at, size in enumerate(map(len, records)) if not size and _is_empty(records[at])]
    found, _ = _headers([records[at] for at in empty])
    deaths = {at: death_in(each) for at, each in zip(empty, found, strict=True)}
    return {at: death for at, death in deaths.items() if death is not None}


def _is_empty(record: Any) -> bool:
    return record.value() is None and record.key() is None


def _headers(records: Sequence[Any]) -> tuple[list[Headers], dict[int, str]]:
    """Return the headers of records, and by index what of them cannot be decoded.

    `map` notices a record whose decoding has failed; a loop of Python code may not (client.internals).
    """
    found: list[Any] = []
    faults: dict[int, str] = {}
    calls = map(Message.headers, records)
    with without_collector():
        while True:
            try:
                found.extend(calls)
            except (UnicodeDecodeError, SystemError) as error:
                faults[len(found)] = header_fault(error)
                found.append(None)
            else:
                return [() if each is None else tuple(each) for each in found], faults


def _size(headers: Headers) -> int:
    return sum(map(len, filter(None, chain.from_iterable(headers))))
