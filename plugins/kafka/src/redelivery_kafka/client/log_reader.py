"""Reads a range of one partition's records, in pieces that fit into memory."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

from confluent_kafka import Consumer, Message, TopicPartition

from redelivery.contract.letters import BATCH_BYTES, BATCH_LETTERS
from redelivery.errors import Fatal, Retriable
from redelivery.kit.errors import Code
from redelivery_kafka.client.ranges import Range
from redelivery_kafka.errors import PARTITION_EOF, classify, while_reading

#: Seconds for one request, and without any record before a reader gives up.
REQUEST: Final = 10.0
_SILENCE: Final = 20.0
#: Seconds that one call waits for records; and how many the first call takes, whose size is unknown yet.
_WAIT: Final = 0.1
_FIRST: Final = 200


class LogReader:
    """Reads one topic.

    Args:
        consumer: a consumer in no group, with `enable.partition.eof`.
        topic: the topic.
        doing: what it does, for errors.
    """

    def __init__(self, consumer: Consumer, topic: str, doing: str) -> None:
        self._consumer = consumer
        self._topic = topic
        self._doing = doing

    def records(self, part: Range) -> Iterator[Sequence[Any]]:
        """Yield the records of a range in pieces, without the client's events. Raises BrokerError."""
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
                _, high = self._consumer.get_watermark_offsets(here, timeout=REQUEST)
            if each.offset() >= min(part.high, high):
                return True
        return False
