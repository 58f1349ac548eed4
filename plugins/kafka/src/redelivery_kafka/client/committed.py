"""Asks a group's coordinator for committed offsets, until the coordinator can answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

_PAUSE: Final = 0.1
#: A cluster creates the topic for offsets when its first group asks, and names a coordinator before that one knows of
#: it: seen for a second with the 50 partitions that a broker creates by default. The client returns all of these codes.
_NOT_READY: Final = frozenset(
    {KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.COORDINATOR_LOAD_IN_PROGRESS}
)


def committed_offsets(
    consumer: Consumer, partitions: Sequence[TopicPartition], seconds: float, wait: Callable[[float], object]
) -> list[TopicPartition]:
    """Return offset and metadata that a group has committed; an offset below 0 if it has committed nothing.

    Args:
        consumer: a client in the group; it need not have joined.
        partitions: which; with none, nothing is asked.
        seconds: how long to wait for an answer.
        wait: waits this many seconds.

    Raises:
        KafkaException: of the request or of one of the partitions.
    """
    end = time.monotonic() + seconds
    while partitions:
        try:
            return _ask(consumer, list(partitions), max(_PAUSE, end - time.monotonic()))
        except KafkaException as error:
            if error.args[0].code() not in _NOT_READY or time.monotonic() > end:
                raise
        wait(_PAUSE)
    return []


def _ask(consumer: Consumer, partitions: list[TopicPartition], seconds: float) -> list[TopicPartition]:
    found: list[TopicPartition] = consumer.committed(partitions, timeout=seconds)
    for each in found:
        if each.error is not None:
            raise KafkaException(each.error)
    return found
