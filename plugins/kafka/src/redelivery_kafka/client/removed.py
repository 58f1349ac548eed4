"""Remembers which letters of a topic are removed, in the committed offsets of groups without members.

Brokers keep no lock for that. Who adds removals reads what is stored just before it writes, and some time after its
last write looks whether another process has written over it, and adds them again. So removals of several processes are
united. Those of a process that was killed in that time may be shown as letters again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from redelivery.errors import Ambiguous, BrokerError, Fatal, Permanent
from redelivery.kit.errors import Code
from redelivery_kafka.address import Address
from redelivery_kafka.client import instances
from redelivery_kafka.client.committed import committed_offsets
from redelivery_kafka.client.offset_map import MetadataFull, OffsetMap
from redelivery_kafka.client.removal_slots import SLOTS, RemovalSlots, Stored, slots_of
from redelivery_kafka.errors import while_doing, while_reading
from redelivery_kafka.options import Settings

log = logging.getLogger("redelivery.kafka")

#: Suffix that makes of a topic's name that of the group which remembers removed letters. Where one is not enough, more
#: follow it, with a dot and a number.
REMOVED: Final = ".redelivery-removed"
#: Seconds for one request; and for those that closing makes.
_REQUEST: Final = 10.0
_CLOSING: Final = 2.0
#: Seconds after which what was read counts as old, so that it is read again before it is written; and how often.
_STALE: Final = 0.1
_TRIES: Final = 5
#: Seconds after a write until which another process may write over it with what it had read before.
_OVERWRITTEN: Final = 0.25
#: Groups beside the first one whose consumers stay open.
_KEPT: Final = 4

#: By partition; and by partition and slot.
_Slots = Mapping[int, RemovalSlots]
_Found = Mapping[int, Mapping[int, Stored]]


class _Group:
    """The committed offsets of one group."""

    def __init__(self, settings: Settings, address: Address, doing: str) -> None:
        self._topic = address.topic
        self._doing = doing
        self._answers: list[tuple[KafkaError | None, list[TopicPartition]]] = []
        self.consumer = instances.consumer(
            settings, address, on_commit=lambda error, offsets: self._answers.append((error, offsets))
        )

    def read(self, numbers: Iterable[int], seconds: float) -> dict[int, Stored]:
        """Return what is stored for partitions. Raises BrokerError."""
        here = [TopicPartition(self._topic, each) for each in numbers]
        with while_reading(self._doing):
            found = committed_offsets(self.consumer, here, seconds, self.consumer.poll)
        return {each.partition: Stored(max(each.offset, -1), each.metadata or "") for each in found}

    def write(self, found: Mapping[int, Stored]) -> None:
        """Begin to store; `confirm` ends it. Raises BrokerError."""
        offsets = [TopicPartition(self._topic, number, *each) for number, each in found.items()]
        self._answers.clear()
        with while_doing(self._doing):
            self.consumer.commit(offsets=offsets, asynchronous=True)

    def confirm(self, seconds: float) -> None:
        """Wait until it is stored. Raises BrokerError."""
        end = time.monotonic() + seconds
        while not self._answers:  # the client's blocking commit has no time limit
            if time.monotonic() > end:
                text = f"no answer within {seconds:g} s, so they may be removed or not"
                raise Ambiguous(f"kafka: {self._doing}: {text}", code=Code.DEADLINE_EXCEEDED)
            self.consumer.poll(0.01)
        error, committed = self._answers[0]
        with while_doing(self._doing):
            for fault in (error, *(each.error for each in committed)):
                if fault is not None:
                    raise KafkaException(fault)

    def close(self) -> None:
        """Release the consumer."""
        with suppress(KafkaException, RuntimeError):
            self.consumer.close()
        instances.release(self.consumer)


class RemovedLetters:
    """The removed letters of one topic.

    Args:
        settings: the client's settings.
        address: the topic.
        doing: makes the action, for errors, of a word.
    """

    def __init__(self, settings: Settings, address: Address, doing: Callable[[str], str]) -> None:
        self._settings = settings
        self._address = address
        self._doing = doing
        self._groups: dict[int, _Group] = {}
        self._topic_id = ""
        self._slots: dict[int, RemovalSlots] = {}
        self._written: dict[int, set[int]] = {}  # partitions and slots that may be written over
        self._last_write = 0.0
        self._seconds = _REQUEST

    @property
    def consumer(self) -> Consumer:
        """A client that is in no group; it is assigned nothing."""
        return self._group(0).consumer

    def of(self, numbers: Sequence[int], *, renew: bool = False) -> dict[int, OffsetMap]:
        """Return what is removed of each of these partitions.

        Args:
            numbers: the partitions.
            renew: commit once a day again what is stored: a broker forgets offsets after days without a commit, and
                letters come back. Users who may not remove letters may not commit either; they read all the same.

        Raises:
            BrokerError
        """
        slots = {each: RemovalSlots() for each in numbers}
        self._take(slots, self._look(slots, lambda _: range(SLOTS)))
        if renew:
            self._renew(slots)
        return {number: each.removed for number, each in slots.items()}

    def add(self, added: Mapping[int, Sequence[tuple[int, int]]], low: Mapping[int, int], topic_id: str) -> int:
        """Add letters. Return how many of them were not removed before.

        Args:
            added: by partition, offsets as (start, end).
            low: by partition, the first offset of its log.
            topic_id: the id of the topic; "" if it is unknown.

        Raises:
            BrokerError: Permanent, code FULL, before anything is written, where no more can be remembered.
        """
        if not topic_id or topic_id != self._topic_id:  # what is known may be of another topic of this name
            self._forget()
            self._topic_id = topic_id
        slots = {number: self._slots.setdefault(number, RemovalSlots()) for number in added}
        count: int | None = None

        def touched(number: int) -> Iterable[int]:
            return slots[number].slots_for(start for start, _ in added[number])

        def add() -> None:
            nonlocal count
            for number, each in slots.items():
                each.removed.settle(0, low[number])
            new = sum(slots[number].add(*run) for number, runs in added.items() for run in runs)
            count = new if count is None else count

        try:
            self._store(slots, touched, add)
        except BaseException:
            self._slots.clear()  # what was not confirmed may not be there
            raise
        return count or 0

    def close(self) -> None:
        """Release the clients, when no other process can have written over what was added."""
        self._seconds = _CLOSING
        try:
            for _ in range(_TRIES):
                if not self._written:
                    break
                self._group(0).consumer.poll(max(0.0, self._last_write + _OVERWRITTEN - time.monotonic()))
                written, self._written = self._written, {}
                self._store({number: self._slots[number] for number in written}, written.__getitem__)
        except BrokerError as error:
            log.info("%s", error)
        finally:
            self._forget()
            for each in self._groups.values():
                each.close()
            self._groups.clear()

    def _forget(self) -> None:
        self._slots.clear()
        self._written.clear()

    # --- groups ---

    def _group(self, slot: int) -> _Group:
        if slot not in self._groups:
            name = self._address.topic + REMOVED + (f".{slot}" if slot else "")
            address = replace(self._address, named_group=name)
            self._groups[slot] = _Group(self._settings, address, self._doing("removing"))
        self._groups[slot] = self._groups.pop(slot)  # the last one used is the last
        return self._groups[slot]

    def _close_idle_groups(self) -> None:
        for slot in [each for each in self._groups if each][:-_KEPT]:
            self._groups.pop(slot).close()

    def _look(self, slots: _Slots, looked_at: Callable[[int], Iterable[int]]) -> _Found:
        """Return what is stored for partitions now: slot 0, those looked at, and those that were never read."""
        found = {number: {0: stored} for number, stored in self._group(0).read(slots, self._seconds).items()}
        wanted: dict[int, list[int]] = {}
        with self._undamaged():
            for number, each in slots.items():
                some = set(looked_at(number))
                for slot in slots_of(found[number][0].others):
                    if slot in some or slot not in each.stored:
                        wanted.setdefault(slot, []).append(number)
        for slot, numbers in sorted(wanted.items()):
            for number, stored in self._group(slot).read(numbers, self._seconds).items():
                found[number][slot] = stored
            self._close_idle_groups()
        return found

    def _take(self, slots: _Slots, found: _Found) -> None:
        with self._undamaged():
            for number, each in slots.items():
                each.take(found[number])

    # --- writing ---

    def _store(
        self, slots: _Slots, looked_at: Callable[[int], Iterable[int]], add: Callable[[], None] = lambda: None
    ) -> None:
        """Read what is stored, add to it, and write what then is not stored yet."""
        found, at = self._look(slots, looked_at), time.monotonic()
        for left in reversed(range(_TRIES)):
            self._take(slots, found)
            add()
            try:
                steps = {number: each.steps(_today()) for number, each in slots.items()}
            except MetadataFull as error:
                text = f"no more removed letters can be remembered ({error}); remove the oldest ones too, or purge"
                raise Permanent(f"kafka: {self._doing('removing')}: {text}", code=Code.FULL) from error
            if not any(steps.values()):
                return
            if time.monotonic() - at > _STALE and left:
                found, at = self._look(slots, looked_at), time.monotonic()
                if any(slots[number].differs(each) for number, each in found.items()):
                    continue
            if self._write_all(slots, steps):
                return
            found, at = self._look(slots, looked_at), time.monotonic()
        text = "other processes remove letters all the time, so these may be removed or not; try again"
        raise Ambiguous(f"kafka: {self._doing('removing')}: {text}", code=Code.CONFLICT)

    def _write_all(self, slots: _Slots, steps: Mapping[int, Sequence[Mapping[int, Stored]]]) -> bool:
        """Write in steps; return False where another process wrote between them."""
        for at in range(max(map(len, steps.values()))):
            some = {number: each[at] for number, each in steps.items() if at < len(each)}
            if at > 1 and not self._root_holds({number: slots[number] for number in some}):
                return False
            self._write(slots, some)
        return True

    def _root_holds(self, slots: _Slots) -> bool:
        """Return whether no other process has written over slot 0, before a slot loses what a new one holds."""
        self._group(0).consumer.poll(_STALE)
        found = self._group(0).read(slots, self._seconds)
        return all(stored == slots[number].stored[0] for number, stored in found.items())

    def _write(self, slots: _Slots, step: Mapping[int, Mapping[int, Stored]]) -> None:
        by_slot: dict[int, dict[int, Stored]] = {}
        for number, each in step.items():
            self._written.setdefault(number, set()).update(each)
            for slot, stored in each.items():
                by_slot.setdefault(slot, {})[number] = stored
        for slot, found in by_slot.items():
            self._group(slot).write(found)
        for slot in by_slot:
            self._group(slot).confirm(self._seconds)
        self._last_write = time.monotonic()
        for number, each in step.items():
            slots[number].written(each)
        self._close_idle_groups()

    def _renew(self, slots: _Slots) -> None:
        today = _today()
        step: dict[int, dict[int, Stored]] = {}
        for number, each in slots.items():
            for slot, stored in each.stored.items():
                if stored.offset >= 0 and stored.day != today:
                    step.setdefault(number, {})[slot] = stored.on(today)
        if step:
            written, self._written = self._written, {}
            try:
                self._write(slots, step)
            except BrokerError as error:
                log.info("%s", error)
            self._written = written

    @contextmanager
    def _undamaged(self) -> Iterator[None]:
        """Raise Fatal for what cannot be read of the committed offsets."""
        try:
            yield
        except ValueError as error:
            group, doing = self._address.topic + REMOVED, self._doing("reading")
            text = f"the offsets of group {group!r} are damaged ({error}); delete it to show all letters"
            raise Fatal(f"kafka: {doing}: {text}", code=Code.CORRUPT) from error


def _today() -> str:
    """Return the day, which stands behind the metadata: that of the last commit."""
    return str(int(time.time() // 86_400))
