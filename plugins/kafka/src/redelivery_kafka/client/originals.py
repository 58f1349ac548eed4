"""Reads the records that letters point to: by partition, in the order of their offsets, within bounded memory.

A letter's headers can be written by anyone who may write to the dead letter topic, and are read with the rights of
another user. So only topics that this user has named are read: otherwise a letter could have any topic's records sent
to where its writer reads them.
"""

from __future__ import annotations

import fnmatch
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, Consumer, KafkaException, TopicPartition

from redelivery.contract.context import ErrorContext
from redelivery.contract.letters import BATCH_BYTES, BATCH_LETTERS
from redelivery.errors import BrokerError
from redelivery.kit.errors import Code, quoted
from redelivery_kafka.address import topic_fault
from redelivery_kafka.client.log_reader import REQUEST, LogReader
from redelivery_kafka.client.pointers import Death, Missing, Place
from redelivery_kafka.client.ranges import Range, worth_reading
from redelivery_kafka.errors import while_reading

#: Records between two wanted ones are read and thrown away up to so many, and so many bytes: to begin at another place
#: takes about as long (12 ms). And the size of a record while none was read.
_GAP_BYTES: Final = 8 << 20
_GAP: Final = 10_000
_USUAL: Final = 1_000
#: Letters whose records are read together at first.
_FIRST: Final = 500
#: How far in the future a broker lets a record's own time be, by default (`message.timestamp.after.max.ms`).
_AHEAD_MS: Final = 3_600_000
#: Between the clocks of two brokers.
_SKEW_MS: Final = 60_000


@dataclass(slots=True)
class Whole:
    """Records of a dead letter topic, with what they point to.

    Attributes:
        letters: the records, in their order.
        contents: the record that has each one's key, value, headers and time: itself, or the one that it points to.
        bare: indices of those whose headers are not the message's own.
        contexts: what is known of the death, by index.
    """

    letters: Sequence[Any]
    contents: list[Any]
    bare: set[int] = field(default_factory=set)
    contexts: dict[int, ErrorContext] = field(default_factory=dict)


class Originals:
    """Reads records at one cluster.

    Args:
        consumer: returns a consumer in no group, with `enable.partition.eof`.
        own: the topic whose dead letters are read; None: not known.
        named: names or patterns of the topics that may be read besides.
        doing: what it does, for errors.
    """

    def __init__(self, consumer: Callable[[], Consumer], own: str | None, named: Sequence[str], doing: str) -> None:
        self._consumer = consumer
        self._own = own
        self._named = named
        self._doing = doing
        self._together = _FIRST
        self._mean = _USUAL

    def resolve(self, records: Sequence[Any], deaths: Mapping[int, Death]) -> Iterator[Whole]:
        """Yield records with what they point to, in their order, in pieces of bounded size.

        Args:
            records: of a dead letter topic.
            deaths: what those say that point to another record, by index.

        Raises:
            BrokerError: a record may exist, and cannot be read now.
        """
        first = 0
        while first < len(records):
            some = range(first, min(first + self._together, len(records)))
            found = self._read({deaths[at].place for at in some if at in deaths})
            if found is None:
                self._together = max(1, len(some) // 2)
                continue
            first = some.stop
            mean = 1 + sum(len(each) for each in found.values() if not isinstance(each, Missing)) // len(some)
            self._together = max(1, min(BATCH_LETTERS, BATCH_BYTES // mean, 2 * self._together))
            here = {at - some.start: deaths[at] for at in some if at in deaths}
            yield self._whole(records[some.start : some.stop], here, found)

    def _whole(self, records: Sequence[Any], deaths: Mapping[int, Death], found: Mapping[Place, Any]) -> Whole:
        whole = Whole(records, list(records))
        for at, death in deaths.items():
            letter, original = records[at], found[death.place]
            died_ms = letter.timestamp()[1]
            context = death.context(died_ms, own=self._own)
            copied = letter.value() is not None or letter.key() is not None
            if not isinstance(original, Missing) and _is_another(original, letter, copied=copied):
                text = f"the record at offset {death.place.offset} of {_shown(death.place)} is another one: "
                original = Missing("original-replaced", text + "the topic was created again")
            if not isinstance(original, Missing):
                whole.contents[at] = original
            else:
                context = original.context(context, copied=copied)
                if copied:
                    whole.bare.add(at)
            whole.contexts[at] = context
        return whole

    def _may_read(self, topic: str) -> bool:
        if topic == self._own or topic in self._named:
            return True
        return not topic.startswith("__") and any(fnmatch.fnmatchcase(topic, each) for each in self._named)

    def _read(self, places: Collection[Place]) -> dict[Place, Any] | None:
        """Return the record at each place, or what says why it is missing; None where they are too large together."""
        wanted: dict[str, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
        for topic, partition, offset in sorted(places):
            wanted[topic][partition].append(offset)
        found: dict[Place, Any] = {}
        room = BATCH_BYTES
        for topic, partitions in wanted.items():
            there = self._partitions(topic)
            for partition, offsets in partitions.items():
                records: Mapping[int, Any] | None = {}
                missing = there if isinstance(there, Missing) else None
                if not isinstance(there, Missing) and partition not in there:
                    missing = Missing("original-deleted", f"the topic {quoted(topic)} has no partition {partition}")
                if missing is None:
                    try:
                        records = self._of_partition(topic, partition, offsets, room if len(places) > 1 else None)
                    except BrokerError as error:
                        missing = _missing(error, topic)
                        if missing is None:
                            raise
                if records is None:
                    return None
                room -= sum(map(len, records.values()))
                for offset in offsets:
                    place = Place(topic, partition, offset)
                    found[place] = records[offset] if offset in records else missing or _deleted(place)
        return found

    def _partitions(self, topic: str) -> Collection[int] | Missing:
        """Return the partitions of a topic, or why no record of it can be read. Raises BrokerError."""
        if not self._may_read(topic):
            text = f"the topic {quoted(topic)} is not named in kafka.originals, and whoever wrote the letter chose it"
            return Missing("original-not-allowed", text, lasting=False)
        if topic_fault(topic) is not None:
            return Missing("original-deleted", f"no topic can be called {quoted(topic)}")
        try:
            with while_reading(self._doing):
                found = self._consumer().list_topics(topic, timeout=REQUEST).topics[topic]
                if found.error is not None:
                    raise KafkaException(found.error)
        except BrokerError as error:
            missing = _missing(error, topic)
            if missing is None:
                raise
            return missing
        return frozenset(found.partitions)

    def _of_partition(
        self, topic: str, partition: int, offsets: Sequence[int], room: int | None
    ) -> dict[int, Any] | None:
        """Return the records that exist at these offsets; None where they have more bytes than there is room.

        Raises:
            BrokerError
        """
        consumer = self._consumer()
        with while_reading(self._doing):
            low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=REQUEST)
        there = [each for each in offsets if low <= each < high]
        wanted, size = frozenset(there), 0
        found: dict[int, Any] = {}
        log = LogReader(consumer, topic, self._doing)
        try:
            for stretch in worth_reading(low, high, (), there, jump=min(_GAP, _GAP_BYTES // self._mean)):
                for records in log.records(Range(partition, stretch.low, stretch.high)):
                    some = {each.offset(): each for each in records if each.offset() in wanted}
                    found.update(some)
                    self._mean = 1 + sum(map(len, records)) // len(records)
                    size += sum(map(len, some.values()))
                    if room is not None and size > room:
                        return None
        finally:
            with while_reading(self._doing):
                consumer.unassign()  # else the client would fetch on
        return found


def _is_another(original: Any, letter: Any, *, copied: bool) -> bool:
    """Return whether the record at the place cannot be the one that died: offsets begin again in a new topic."""
    if copied:
        return bool(original.value() != letter.value() or original.key() != letter.key())
    kind, written_ms = original.timestamp()
    allowed = _SKEW_MS if kind == TIMESTAMP_LOG_APPEND_TIME else _AHEAD_MS
    return bool(written_ms > letter.timestamp()[1] + allowed)


def _missing(error: BrokerError, topic: str) -> Missing | None:
    """Return what an error says of the records of a topic; None where they may be read later."""
    if error.code is Code.NOT_AUTHORIZED:
        return Missing("original-not-authorized", f"this user may not read the topic {quoted(topic)}", lasting=False)
    if error.code is Code.NO_SUCH_DESTINATION:
        return Missing(
            "original-deleted", f"the topic {quoted(topic)}, or this partition of it, does not exist any more"
        )
    return None


def _deleted(place: Place) -> Missing:
    text = f"offset {place.offset} of {_shown(place)} does not exist any more (retention, compaction), or never did"
    return Missing("original-deleted", text)


def _shown(place: Place) -> str:
    return f"{quoted(place.topic)}/{place.partition}"
