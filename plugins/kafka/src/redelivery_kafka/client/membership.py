"""Membership of a consumer group: which partitions are owned, and polling all the time, whatever a handler does.

A partition is owned from its assignment until it is revoked. The holder of `lock` can rely on that, except while it
polls. A receiver polls for itself; between its calls a thread does. They take turns by `lock`, as the client's own lock
is not fair: beside a thread that polls without a break, other calls were seen to wait forever. A commit made before a
revocation reaches the coordinator before the request that gives up the partition, over the same connection, so the next
owner reads it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from confluent_kafka import (
    OFFSET_BEGINNING,
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    KafkaError,
    KafkaException,
    TopicPartition,
)

from redelivery.errors import Ambiguous, BrokerError, Fatal, Retriable
from redelivery.kit.errors import Code
from redelivery_kafka.client import instances
from redelivery_kafka.client.committed import committed_offsets
from redelivery_kafka.client.offset_map import MetadataFull, OffsetMap
from redelivery_kafka.client.partition import Fetched, Partition
from redelivery_kafka.codec import message_of
from redelivery_kafka.errors import (
    ALL_BROKERS_DOWN,
    PARTITION_EOF,
    UNKNOWN_PARTITION,
    classify,
    classify_reading,
    is_refused,
    while_reading,
)

log = logging.getLogger("redelivery.kafka")

#: Seconds that one poll takes at most, and between polls of the thread; and records taken by one poll.
_POLL: Final = 0.1
_PAUSE: Final = 0.05
_RECORDS: Final = 500
#: The longest poll where an answer is awaited: a poll serves the answer, and then still waits for a record.
_SHORT_POLL: Final = 0.001
#: How soon brokers on the same machine answer a commit.
_ANSWER: Final = 0.0003
#: Seconds until a broker that does not answer counts as out of reach, and that one request takes in that time.
_CONTACT: Final = 8.0
_REQUEST: Final = 0.5
#: Seconds for which a topic that was just created may be unknown to the broker that is asked.
_PROPAGATION: Final = 2.0
#: Seconds between checks that the topic exists while nothing comes, and after one that missed it.
_TOPIC_CHECK: Final = 5.0
_MISSED_CHECK: Final = 0.5
#: Seconds that joining the group may take in addition to a session: the session of a member that died must end first.
_JOINING: Final = 10.0
#: Seconds for one request to the group's coordinator, and for leaving the group.
_COORDINATOR: Final = 10.0
_CLOSING: Final = 10.0
#: Seconds to wait for a join under way before the group is left.
_LEAVING: Final = 3.0
#: Records fetched and not leased, in all partitions: above it a partition is paused until half of its share is gone.
_BUFFERED: Final = 10_000
_BUFFERED_BYTES: Final = 64 << 20
#: With so many that may be leased at once, others are left in the client's own queue, apart from one for each poll. To
#: pause a partition throws that queue away, and it was seen to take half a second to fill again.
_ENOUGH: Final = 2_000
#: The high watermark of a partition that has no leader.
_UNKNOWN: Final = -1


class Membership:
    """One member of a group.

    Args:
        make: creates the consumer, given its callbacks.
        topic: the topic that it receives from.
        doing: what the receiver does, for errors.
        session: seconds until the group gives up a member that died.

    Attributes:
        lock: to hold while reading, changing or asking for anything here.
        owned: the partitions that are assigned to this member.
        failure: the error that ended the membership.
    """

    def __init__(
        self, make: Callable[[Mapping[str, Any]], Consumer], topic: str, doing: str, *, session: float
    ) -> None:
        self.topic = topic
        self.lock = threading.RLock()
        self.owned: dict[int, Partition] = {}
        self.failure: BrokerError | None = None
        self._doing = doing
        self._session = session
        self._connection_error: KafkaError | None = None
        self._subscribed = self._joined = False
        self._since = time.monotonic()
        self._next_check = self._since + _TOPIC_CHECK
        self._missed_since: float | None = None
        self._stop = threading.Event()
        self._committing: dict[int, tuple[Partition, tuple[str, int]]] = {}
        self._answers: dict[Partition, BrokerError | None] | None = None
        self._consumer = make({"error_cb": self._on_error, "on_commit": self._on_commit})
        self._thread = threading.Thread(target=self._run, name=f"redelivery-kafka-{topic}", daemon=True)

    @property
    def ready(self) -> bool:
        """Whether it has joined, and has caught up with what its partitions held when they were assigned."""
        return self._joined and all(each.caught_up for each in self.owned.values())

    @property
    def patience(self) -> float:
        """Monotonic seconds until which it may still become ready."""
        return self._since + self._session + _JOINING

    def start(self) -> None:
        """Reach the brokers and begin to join. After a BrokerError it can only be closed."""
        began = time.monotonic()
        while True:
            try:
                topic = self._consumer.list_topics(self.topic, timeout=_REQUEST).topics[self.topic]
            except KafkaException as error:
                self._consumer.poll(0)  # serves `_on_error`
                if self.failure is not None:
                    raise self.failure from error
                if self._connection_error is not None or time.monotonic() - began > _CONTACT:
                    raise classify_reading(error, self._doing) from error
                continue
            if topic.error is None:
                break
            if time.monotonic() - began > _PROPAGATION or topic.error.code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise classify(topic.error, self._doing) from KafkaException(topic.error)
            if self._stop.wait(_PAUSE):
                raise Fatal(f"kafka: {self._doing}: this receiver is closed; open another", code=Code.CLOSED)
        self._consumer.subscribe(
            [self.topic], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_revoke
        )
        self._subscribed = True
        self._since = time.monotonic()
        self._thread.start()

    def close(self) -> None:
        """Leave the group, committing nothing. Must not be called in a child of the process that joined."""
        self._stop.set()
        self.owned.clear()
        if self._thread.ident is None:
            self._leave()
        else:
            self._thread.join(_CLOSING)

    # --- requests; the caller holds `lock` ---

    def poll(self, seconds: float) -> None:
        """Take arriving records; wait at most this long for the first one."""
        if self._stop.is_set():
            return
        try:
            first = self._consumer.poll(max(0.0, min(seconds, _POLL if self.ready else _SHORT_POLL)))
            if first is not None:
                self._take([first])  # before anything is revoked
                if not self._has_enough():
                    self._take(self._consumer.consume(_RECORDS, 0))
        except (KafkaException, RuntimeError, BrokerError) as error:
            self._fail(_classified(error, self._doing))

    def commit(self, states: Mapping[Partition, OffsetMap]) -> dict[Partition, BrokerError]:
        """Commit the state of partitions; return the errors of those that failed.

        It polls: records may come and partitions may be revoked while it waits for the answer.
        """
        failed: dict[Partition, BrokerError] = {}
        changed: dict[int, tuple[Partition, tuple[str, int]]] = {}
        for partition, offsets in states.items():
            try:
                state = (offsets.metadata(), offsets.base)
            except MetadataFull as error:
                text = f"too many records are settled out of order to be remembered ({error})"
                failed[partition] = Retriable(
                    f"kafka: {self._doing}: {text}; settle the leased records first", code=Code.FULL
                )
                continue
            if state != partition.committed:
                changed[partition.number] = (partition, state)
        if not changed:
            return failed
        answers = self._commit(changed)
        for partition, state in changed.values():
            answer = answers[partition]
            if answer is None:
                partition.committed = state
            else:
                failed[partition] = answer
                partition.committed = ("", -1)
        return failed

    def _commit(self, changed: dict[int, tuple[Partition, tuple[str, int]]]) -> dict[Partition, BrokerError | None]:
        doing = f"committing offsets of {self._doing}"
        offsets = [TopicPartition(self.topic, at, state[1], state[0]) for at, (_, state) in changed.items()]
        self._committing, self._answers = changed, None
        try:
            self._consumer.commit(offsets=offsets, asynchronous=True)
        except (KafkaException, RuntimeError) as error:
            refused = _classified(error, doing)
            return {partition: refused for partition, _ in changed.values()}
        end = time.monotonic() + _COORDINATOR
        while time.monotonic() < end and not self._answered():
            enough = self._has_enough()  # then a poll ends at once, with one record
            if enough and self._stop.wait(_ANSWER):
                break
            self.poll(0 if enough else _SHORT_POLL)
        answers: dict[Partition, BrokerError | None] | None = self._answers
        self._answers, self._committing = None, {}
        if answers is not None:
            return answers
        unknown = Ambiguous(f"kafka: {doing}: no answer came, so it may be committed or not", code=Code.UNCONFIRMED)
        return {partition: unknown for partition, _ in changed.values()}

    def _has_enough(self) -> bool:
        """Whether enough records may be leased at once, some of each partition that has more."""
        owned = self.owned.values()
        return sum(each.ready for each in owned) >= _ENOUGH and all(each.ready or each.at_end for each in owned)

    def balance(self, partition: Partition) -> None:
        """Pause a partition of which enough is fetched; resume it when half of that is gone."""
        share = max(1, len(self.owned))
        full = max(partition.buffered * share / _BUFFERED, partition.nbytes * share / _BUFFERED_BYTES)
        here = [TopicPartition(self.topic, partition.number)]
        if not partition.paused and full >= 1:
            self._consumer.pause(here)
            partition.paused = True
        elif partition.paused and full < 0.5:  # noqa: PLR2004 - half
            self._consumer.resume(here)
            partition.paused = False

    def check_reach(self) -> None:
        """Raise a BrokerError where all brokers were out of reach, or refused the connection, and still are or do."""
        if self._connection_error is None:
            return
        try:
            self._consumer.list_topics(self.topic, timeout=_REQUEST)
        except KafkaException as error:
            cause = self._connection_error if is_refused(self._connection_error) else error
            raise classify_reading(cause, self._doing) from error
        self._connection_error = None

    def check_topic(self) -> None:
        """End the membership where the topic is gone: an idle consumer reports that minutes later only."""
        now = time.monotonic()
        if now < self._next_check:
            return
        self._next_check = now + _TOPIC_CHECK
        try:
            error = self._consumer.list_topics(self.topic, timeout=_REQUEST).topics[self.topic].error
        except KafkaException:  # `check_reach` raises it
            return
        if error is None or error.code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
            self._missed_since = None
            return
        self._missed_since = self._missed_since or now
        self._next_check = now + _MISSED_CHECK
        if now - self._missed_since > _PROPAGATION:
            self._fail(_classified(KafkaException(error), self._doing))

    # --- the thread, and callbacks ---

    def _run(self) -> None:
        while not self._stop.wait(_PAUSE):
            if self.lock.acquire(blocking=False):
                try:
                    self.poll(0)
                finally:
                    self.lock.release()
        with self.lock:
            self._leave()

    def _take(self, records: list[Any]) -> None:
        now, now_ms = time.monotonic(), time.time_ns() // 1_000_000
        for record in records:
            error = record.error()
            partition = self.owned.get(record.partition()) if record.topic() == self.topic else None
            if error is not None:
                if error.code() != PARTITION_EOF:
                    self._on_error(error)
                elif partition is not None:
                    partition.ended(record.offset())
            elif partition is not None and not partition.fetched(
                record.offset(), _fetched(record), now=now, now_ms=now_ms
            ):
                text = "the topic was created again or has lost records; receiving starts again at its first record"
                raise Retriable(f"kafka: {self._doing}: {text}", code=Code.CONFLICT)
        for partition in self.owned.values():
            self.balance(partition)

    def _on_assign(self, consumer: Consumer, assigned: list[TopicPartition]) -> None:
        # An error that a call of the client raises in a callback comes out of the poll as no exception at all, which
        # nothing can catch, unless Python code has handled it first (confluent-kafka 2.16, Python 3.11).
        with while_reading(self._doing):
            if self._stop.is_set():
                consumer.unassign()  # an assignment that is not answered would keep it from leaving
            else:
                self._begin(consumer, assigned)
            self._joined = True

    def _begin(self, consumer: Consumer, assigned: list[TopicPartition]) -> None:
        """Read what the last owner committed before anything is fetched."""
        found: dict[int, Partition] = {}
        starts = []
        for each in committed_offsets(consumer, assigned, _COORDINATOR, self._stop.wait):
            here = TopicPartition(self.topic, each.partition)
            try:
                _, high = consumer.get_watermark_offsets(here, timeout=_COORDINATOR)
            except KafkaException as error:
                if error.args[0].code() != UNKNOWN_PARTITION:
                    raise
                high = _UNKNOWN  # it has no leader; the others go on, and it is fetched when it has one
            offsets = None if each.offset < 0 else self._read(each)
            if offsets is not None and offsets.base > high != _UNKNOWN:
                log.warning(
                    "kafka: %s: partition %d has lost records; it starts at its first", self._doing, each.partition
                )
                offsets = None
            found[each.partition] = Partition(each.partition, offsets, high)
            start = OFFSET_BEGINNING if offsets is None else offsets.base
            starts.append(TopicPartition(self.topic, each.partition, start))
        consumer.incremental_assign(starts)
        self.owned |= found
        self._since = time.monotonic()

    def _read(self, committed: TopicPartition) -> OffsetMap:
        try:
            return OffsetMap.read(committed.offset, committed.metadata)
        except ValueError as error:
            text = "kafka: %s: partition %d: %s; attempts are counted from 1 again"
            log.warning(text, self._doing, committed.partition, error)
            return OffsetMap(committed.offset)

    def _on_revoke(self, _consumer: Consumer, revoked: list[TopicPartition]) -> None:
        for each in revoked:
            self.owned.pop(each.partition, None)

    def _on_commit(self, error: KafkaError | None, committed: list[TopicPartition]) -> None:
        """Note the answer to a commit; its offsets say to which one."""
        states = {each.partition: (each.metadata or "", each.offset) for each in committed}
        if self._answers is not None or states != {at: state for at, (_, state) in self._committing.items()}:
            return
        self._answers = {}
        for each in committed:
            fault = each.error or error
            doing = f"committing offsets of {self._doing}"
            answer = None if fault is None else _classified(KafkaException(fault), doing)
            self._answers[self._committing[each.partition][0]] = answer

    def _answered(self) -> bool:
        return self._answers is not None or self._stop.is_set()

    def _on_error(self, error: KafkaError) -> None:
        """Note what the client reports between records: it recovers from most of it by itself."""
        # One connection of a member may be refused for a moment.
        if error.code() == ALL_BROKERS_DOWN or (self._joined and is_refused(error)):
            self._connection_error = error
            return
        found = classify(error, self._doing)
        if isinstance(found, Fatal) and error.code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
            self._fail(found)
        else:
            log.debug("%s", found)

    def _fail(self, error: BrokerError) -> None:
        self.failure = self.failure or error
        self.owned.clear()
        self._stop.set()

    def _leave(self) -> None:
        end = time.monotonic() + _LEAVING
        try:
            # A consumer that closes while it joins, or owning nothing, stays a member until its session ends
            # (librdkafka 2.16).
            while self._subscribed and not self._joined and time.monotonic() < end:
                self._consumer.poll(_SHORT_POLL)
            self._consumer.unsubscribe()
            while self._subscribed and self._consumer.memberid() and time.monotonic() < end:
                self._consumer.poll(_SHORT_POLL)
            self._consumer.close()
        except (KafkaException, RuntimeError, BrokerError) as error:
            log.warning("kafka: %s: leaving the group: %s", self._doing, error)
        instances.release(self._consumer)


def _fetched(record: Any) -> Fetched:
    message, fault = message_of(record)
    return Fetched(message, fault, record.timestamp()[0] == TIMESTAMP_LOG_APPEND_TIME, message.nbytes)


def _classified(error: Exception, doing: str) -> BrokerError:
    if isinstance(error, BrokerError):
        return error
    if isinstance(error, KafkaException):
        return classify(error, doing)
    found = Retriable(f"kafka: {doing}: {error}", code=Code.CLOSED)  # a RuntimeError: the consumer was closed
    found.__cause__ = error
    return found
