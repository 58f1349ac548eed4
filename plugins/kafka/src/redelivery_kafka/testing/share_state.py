"""What a share group has settled, read from the topic in which brokers keep it, without the plugin's code.

Seen on Kafka 4.4: a snapshot replaces what is known of a partition, an update adds to it. Offsets below the start are
settled; batches behind it have a state each.
"""

from __future__ import annotations

import base64
import struct
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

TOPIC: Final = "__share_group_state"
_SNAPSHOT, _UPDATE = 0, 1
#: States of a batch that is settled: acknowledged, and archived (rejected, or given too often).
_SETTLED: Final = frozenset({2, 3, 4})
_PATIENCE: Final = 15.0
_END: Final = KafkaError._PARTITION_EOF  # noqa: SLF001 - its public name
_BATCH: Final = struct.Struct(">qqbhx")


@dataclass
class _State:
    """What a group has settled of one partition."""

    start: int = 0
    apart: set[int] = field(default_factory=set)


class ShareStates:
    """Reads the topic from its beginning, and then on from where it was."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = settings
        self._client: Consumer | None = None
        self._states: dict[tuple[str, bytes, int], _State] = {}

    def settled(self, group: str, topic_id: str) -> dict[int, tuple[int, frozenset[int]]]:
        """Return, by partition, below which offset a group has settled all, and what it has settled behind that."""
        self._read()
        wanted = base64.urlsafe_b64decode(topic_id + "==")
        return {
            partition: (state.start, frozenset(state.apart))
            for (name, topic, partition), state in self._states.items()
            if (name, topic) == (group, wanted)
        }

    def close(self) -> None:
        """Close the client."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def _read(self) -> None:
        if self._client is None and not self._connected():
            return
        client: Any = self._client
        left = set(range(len(client.assignment())))
        for each in client.assignment():
            client.seek(TopicPartition(TOPIC, each.partition, self._next.get(each.partition, OFFSET_BEGINNING)))
        deadline = time.monotonic() + _PATIENCE
        while left:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{TOPIC} was not read to its end in time")
            for message in client.consume(10_000, timeout=0.02):
                error = message.error()
                if error is None:
                    self._next[message.partition()] = message.offset() + 1
                    self._apply(message.key(), message.value())
                elif error.code() == _END:
                    left.discard(message.partition())
                else:
                    raise KafkaException(error)

    def _connected(self) -> bool:
        client: Any = Consumer(
            {
                **self._settings,
                "group.id": "never-joined",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": 10,
            }
        )
        found = client.list_topics(TOPIC, timeout=_PATIENCE).topics[TOPIC]
        if found.error is not None:  # no share group has been used yet
            client.close()
            return False
        self._next: dict[int, int] = {}
        client.assign([TopicPartition(TOPIC, each, OFFSET_BEGINNING) for each in found.partitions])
        self._client = client
        return True

    def _apply(self, key: bytes, value: bytes | None) -> None:
        kind, length = struct.unpack_from(">hh", key)
        group, rest = key[4 : 4 + length].decode(), key[4 + length :]
        where = (group, rest[:16], struct.unpack(">i", rest[16:20])[0])
        if value is None:
            if kind == _SNAPSHOT:
                self._states.pop(where, None)
            return
        if kind == _SNAPSHOT:
            _, _, _, _, start, _, _ = struct.unpack_from(">hiiiqqq", value)
            state, at = _State(), struct.calcsize(">hiiiqqq")
        else:
            _, _, _, start = struct.unpack_from(">hiiq", value)
            state, at = self._states.get(where) or _State(), struct.calcsize(">hiiq")
        state.start = max(state.start, start)
        for first, last, how in _batches(value, at):
            offsets = range(first, last + 1)
            if how in _SETTLED:
                state.apart.update(offsets)
            else:
                state.apart.difference_update(offsets)
        state.apart = {each for each in state.apart if each >= state.start}
        self._states[where] = state


def _batches(value: bytes, at: int) -> Iterator[tuple[int, int, int]]:
    """Yield the first and last offset and the state of each batch; `at` is where their number is."""
    count = shift = 0
    while True:
        byte = value[at]
        count |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:  # noqa: PLR2004 - a varint's last byte
            break
    for _ in range(count - 1):
        first, last, how, _ = _BATCH.unpack_from(value, at)
        yield first, last, how
        at += _BATCH.size
