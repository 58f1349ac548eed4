"""Records that a topic really holds, read by a plain consumer: its log without the records settled or removed.

It decodes the groups' metadata by itself: it must not import the plugin, whose mistakes it is to find.
"""

from __future__ import annotations

import base64
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient

from redelivery_kafka.testing.share_state import ShareStates

_T = TypeVar("_T")
#: Codes for a topic or a group that was created a moment ago: the broker answers a later request.
_NOT_YET: Final = (
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
)
#: Suffix of a topic's name: the group whose offsets say which of its letters are removed.
REMOVED: Final = ".redelivery-removed"
_END: Final = KafkaError._PARTITION_EOF  # noqa: SLF001 - its public name
#: Seconds for one answer of a broker, and for reading a whole topic.
PATIENCE: Final = 15.0
#: Seconds after which an unused client is replaced. Brokers close a connection that was idle for ten minutes, and then
#: librdkafka may find no usable broker for longer than `PATIENCE` (its issues 2318 and 2566).
IDLE: Final = 240.0


class Reader:
    """Reads topics from their beginning. It never joins a group or commits."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._client: Consumer | None = None
        self._used = 0.0
        self._shares = ShareStates(settings)

    def left(self, topic: str, group: str, *, share: bool = False) -> Sequence[Any]:
        """Return the records that the group has not settled and that are not removed; none of a missing topic."""
        with self._lock:
            return sorted(self._left(topic, group, share=share), key=lambda each: (each.partition(), each.offset()))

    def committed(self, topic: str, group: str, *, share: bool = False) -> Sequence[object]:
        """Return the offsets of the group, and of the one for removals: (group, partition, offset, metadata)."""
        with self._lock:
            if share:
                return [*self._committed(topic), *sorted(self._settled_in_share(topic, group).items())]
            return self._committed(topic, group)

    def close(self) -> None:
        """Close the client."""
        with self._lock:
            if self._client is not None:
                self._client.close()
                self._client = None
            self._shares.close()

    def _left(self, topic: str, group: str, *, share: bool) -> Iterator[Any]:
        consumer = self._connected()
        places = self._places(topic)
        if not places:
            return
        ends = {
            at.partition: self._answer(partial(consumer.get_watermark_offsets, at, timeout=PATIENCE)) for at in places
        }
        settled = self._settled(topic, group, share=share)
        open_ = {partition for partition, (low, high) in ends.items() if low < high}
        consumer.assign([TopicPartition(topic, partition, ends[partition][0]) for partition in open_])
        deadline = time.monotonic() + PATIENCE
        while open_:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{topic}: the partitions {open_} were not read to their end in time")
            for message in consumer.consume(10_000, timeout=0.02):
                record: Any = message
                partition, offset, error = record.partition(), record.offset(), record.error()
                if error is None:
                    taken = any(offset < below or offset in apart for below, apart in settled.get(partition, ()))
                    if not taken and offset < ends[partition][1]:
                        yield record
                elif error.code() != _END:
                    raise KafkaException(error)
                # A separate event reports the end; records of an aborted transaction are not shown.
                if offset + (error is None) >= ends[partition][1]:
                    open_.discard(partition)
        consumer.unassign()

    def _settled(self, topic: str, group: str, *, share: bool) -> dict[int, list[tuple[int, frozenset[int]]]]:
        """Return what is settled or removed of a topic, by partition."""
        settled: dict[int, list[tuple[int, frozenset[int]]]] = {}
        for _, partition, offset, metadata in self._committed(topic, *([] if share else [group])):
            settled.setdefault(partition, []).append(settled_offsets(offset, metadata))
        for partition, state in self._settled_in_share(topic, group).items() if share else ():
            settled.setdefault(partition, []).append(state)
        return settled

    def _settled_in_share(self, topic: str, group: str) -> dict[int, tuple[int, frozenset[int]]]:
        """Return what a share group has settled of a topic, by partition."""
        admin = AdminClient(dict(self._settings))
        described: Any = admin.describe_topics(TopicCollection([topic]), request_timeout=PATIENCE)[topic]
        try:
            found = described.result()
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise
            return {}
        return self._shares.settled(group, str(found.topic_id))

    def _committed(self, topic: str, *groups: str) -> list[tuple[str, int, int, str | None]]:
        places, found = self._places(topic), []
        for name in (*groups, topic + REMOVED) if places else ():
            # By a consumer that never joins: the admin client ends the process while the group's coordinator loads
            # (librdkafka's issue 5040).
            asking: Any = Consumer({**self._settings, "group.id": name, "enable.auto.commit": False})
            try:
                answer = self._answer(partial(_offsets, asking, places))
            finally:
                asking.close()
            found += [(name, each.partition, each.offset, each.metadata) for each in answer]
        return found

    def _places(self, topic: str) -> list[TopicPartition]:
        consumer = self._connected()
        return [TopicPartition(topic, partition) for partition in self._answer(partial(_partitions, consumer, topic))]

    def _answer(self, ask: Callable[[], _T]) -> _T:
        """Ask until the coordinator or leader has been chosen and is ready."""
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                return ask()
            except KafkaException as error:
                if error.args[0].code() not in _NOT_YET or time.monotonic() > deadline:
                    raise
            self._connected().poll(0.1)  # which waits

    def _connected(self) -> Consumer:
        last, self._used = self._used, time.monotonic()
        if self._client is not None and self._used - last > IDLE:
            self._client.close()
            self._client = None
        if self._client is None:
            own = {
                **self._settings,
                "group.id": "never-joined",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": 10,
            }
            self._client = Consumer(own)
        return self._client


def _offsets(consumer: Any, places: list[TopicPartition]) -> list[Any]:
    found: list[Any] = consumer.committed(places, timeout=PATIENCE)
    for each in found:
        if each.error is not None:
            raise KafkaException(each.error)
    return found


def _partitions(consumer: Any, topic: str) -> list[int]:
    found = consumer.list_topics(topic, timeout=PATIENCE).topics[topic]
    if found.error is None:
        return list(found.partitions)
    if found.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
        return []
    raise KafkaException(found.error)


def settled_offsets(base: int, metadata: str | None) -> tuple[int, frozenset[int]]:
    """All offsets below the first are settled, and those of the second.

    The metadata is `r1:`, or `z1:` if deflated, and a list of runs in base85. A run is a varint, four times its length
    plus its kind: 0 untouched, 1 settled, 2 leased, 3 waiting. Kind 2 is followed by two more varints, kind 3 by three.
    After a blank may follow a day.
    """
    if metadata is None or metadata[:3] not in {"r1:", "z1:"}:
        return max(base, 0), frozenset()
    data = base64.b85decode(metadata[3:].partition(" ")[0])
    numbers = _varints(zlib.decompress(data) if metadata[0] == "z" else data)
    settled: set[int] = set()
    at = base
    for head in numbers:
        length, kind = divmod(head, 4)
        if kind == 1:
            settled.update(range(at, at + length))
        for _ in range({2: 2, 3: 3}.get(kind, 0)):
            next(numbers)
        at += length
    return base, frozenset(settled)


def _varints(data: bytes) -> Iterator[int]:
    number = shift = 0
    for byte in data:
        number += (byte & 127) << shift
        shift = shift + 7 if byte & 128 else 0
        if not shift:
            yield number
            number = 0
