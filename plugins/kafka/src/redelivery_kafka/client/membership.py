"""Membership of a consumer group: what is owned, and polling all the time, whatever a handler does.

A partition is ours from its assignment until it is revoked; whoever holds `lock` can rely on that, but while it polls.
A caller polls for itself; while none does, a thread looks after the group. They take turns by `lock`, for the client
locks itself without fairness: beside a thread that polls without a break, other calls were seen to wait for ever.
What is committed before a revocation reaches the coordinator before the request by which the partition is given up,
over the same connection, so the next owner reads it. This file must not count, order or settle records.
"""

from __future__ import annotations

import logging
import os
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
from redelivery_kafka.errors import classified, classify, classify_reading, refused
from redelivery_kafka.group import committed_by_group
from redelivery_kafka.offsets import Ledger, TooMuch
from redelivery_kafka.partition import Partition
from redelivery_kafka.record import message_of

log = logging.getLogger("redelivery.kafka")

#: Seconds that one look takes, and between looks of the thread; and records taken in one go.
_LOOK: Final = 0.1
#: The same where an answer is awaited: a poll serves it, and then goes on waiting for a record.
_GLANCE: Final = 0.005
_PAUSE: Final = 0.05
_TAKEN: Final = 500
#: Seconds until a broker that does not answer counts as out of reach, and that one question takes meanwhile.
_CONTACT: Final = 8.0
_QUESTION: Final = 0.5
#: Seconds for which a topic just made may still be unknown to the broker that is asked.
_NEWS: Final = 2.0
#: Seconds between looks for the topic while nothing comes, and where it was missed.
_STILL_THERE: Final = 5.0
_MISSED: Final = 0.5
#: Seconds that joining the group may take, besides a session: a member that died is waited for until its own ends.
_JOINING: Final = 10.0
#: Seconds for one question to the group's coordinator, and for leaving the group.
_COORDINATOR: Final = 10.0
_CLOSING: Final = 10.0
#: Seconds that a join under way is waited for before the group is left.
_PARTING: Final = 3.0
#: Fetched and not under lease, of all partitions: past it a partition is paused until half of it is gone.
_BUFFERED: Final = 10_000
_BUFFERED_BYTES: Final = 64 << 20
#: The end of a partition that has no leader.
_UNKNOWN: Final = -1

#: Consumers of this process and, in a child, its parent's: destroyed there, they would wait for threads that are not.
_alive: dict[int, Consumer] = {}


class Membership:
    """One member of a group.

    Args:
        make: makes the client, given its callbacks.
        topic: what it receives.
        doing: what it does, for errors.
        session: seconds after which a member that died is one no more.

    Attributes:
        lock: held by whoever asks for, looks at or alters anything here.
        owned: the partitions that are ours.
        failure: why it ended.
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
        self._down: KafkaError | None = None
        self._subscribed = self._joined = False
        self._since = time.monotonic()
        self._next_look = self._since + _STILL_THERE
        self._missed: float | None = None  # since when the topic is not there
        self._stop = threading.Event()
        self._pid = os.getpid()
        self._wanted: dict[int, tuple[Partition, tuple[str, int]]] = {}
        self._answers: dict[Partition, BrokerError | None] | None = None
        self._consumer = make({"error_cb": self._on_error, "on_commit": self._on_commit})
        _alive[id(self._consumer)] = self._consumer
        self._thread = threading.Thread(target=self._run, name=f"redelivery-kafka-{topic}", daemon=True)

    @property
    def ready(self) -> bool:
        """Whether it has joined, and all that lay in its partitions when they were assigned has been seen."""
        return self._joined and all(each.looked for each in self.owned.values())

    @property
    def patience(self) -> float:
        """Monotonic seconds until which it is worth waiting to be ready."""
        return self._since + self._session + _JOINING

    def start(self) -> None:
        """Reach the broker and begin to join. Raises BrokerError; it is then of no use but to be closed."""
        began = time.monotonic()
        while True:
            try:
                topic = self._consumer.list_topics(self.topic, timeout=_QUESTION).topics[self.topic]
            except KafkaException as error:
                self._consumer.poll(0)  # serves `_on_error`
                if self.failure is not None:
                    raise self.failure from error
                if self._down is not None or time.monotonic() - began > _CONTACT:
                    raise classify_reading(error, self._doing) from error
                continue
            if topic.error is None:
                break
            if time.monotonic() - began > _NEWS or topic.error.code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise classify(topic.error, self._doing) from KafkaException(topic.error)
            if self._stop.wait(_PAUSE):  # else a topic made just now
                raise Fatal(f"kafka: {self._doing}: this receiver is closed; open another", native_code="CLOSED")
        self._consumer.subscribe(
            [self.topic], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_revoke
        )
        self._subscribed = True
        self._since = time.monotonic()
        self._thread.start()

    def close(self) -> None:
        """Leave the group, committing nothing. In a child of the process that made it: nothing."""
        if os.getpid() != self._pid:
            return
        self._stop.set()
        self.owned.clear()
        if self._thread.ident is None:
            self._leave()
        else:
            self._thread.join(_CLOSING)

    # --- what is asked of the broker; `lock` is held ---

    def poll(self, seconds: float) -> None:
        """Take what comes, waiting so long at most for the first of it."""
        if self._stop.is_set():
            return
        try:
            first = self._consumer.poll(max(0.0, min(seconds, _LOOK if self.ready else _GLANCE)))
            if first is not None:
                self._take([first])  # before anything is revoked
                self._take(self._consumer.consume(_TAKEN, 0))
        except (KafkaException, RuntimeError, BrokerError) as error:
            self._fail(_classified(error, self._doing))

    def commit(self, ledgers: Mapping[Partition, Ledger]) -> dict[Partition, BrokerError]:
        """Commit what is remembered of partitions; those that failed, each with its error.

        It polls: records may come meanwhile, and partitions go.
        """
        failed: dict[Partition, BrokerError] = {}
        wanted: dict[int, tuple[Partition, tuple[str, int]]] = {}
        for partition, ledger in ledgers.items():
            try:
                state = (ledger.metadata(), ledger.base)
            except TooMuch as error:
                text = "too much of it is settled out of order to be remembered; settle what is under lease first"
                failed[partition] = Retriable(f"kafka: {self._doing}: {text} ({error})", native_code="REMEMBERED")
                continue
            if state != partition.committed:
                wanted[partition.number] = (partition, state)
        if not wanted:
            return failed
        offsets = [TopicPartition(self.topic, at, state[1], state[0]) for at, (_, state) in wanted.items()]
        self._wanted, self._answers = wanted, None
        try:
            self._consumer.commit(offsets=offsets, asynchronous=True)
        except (KafkaException, RuntimeError) as error:
            told = _classified(error, self._committing)
            return failed | {partition: told for partition, _ in wanted.values()}
        end = time.monotonic() + _COORDINATOR
        while time.monotonic() < end:
            self.poll(_GLANCE)
            if self._answered():
                break
        answers: Mapping[Partition, BrokerError | None] | None = self._answers
        self._answers, self._wanted = None, {}
        for partition, state in wanted.values():
            text = "no answer came, so it may be committed or not"
            unknown = Ambiguous(f"kafka: {self._committing}: {text}", native_code="_TIMED_OUT")
            answer = unknown if answers is None else answers[partition]
            if answer is None:
                partition.committed = state
            else:
                failed[partition] = answer
                partition.committed = ("", -1)
        return failed

    def balance(self, partition: Partition) -> None:
        """Pause a partition of which enough is fetched; let it go on when half of that is gone."""
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
        """Raises BrokerError where all brokers were out of reach, or refused us, and still do."""
        if self._down is None:
            return
        try:
            self._consumer.list_topics(self.topic, timeout=_QUESTION)
        except KafkaException as error:
            told = self._down if refused(self._down) else error
            raise classify_reading(told, self._doing) from error
        self._down = None

    def check_topic(self) -> None:
        """End where the topic is gone: the client of a member to which nothing comes tells of it after minutes."""
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + _STILL_THERE
        try:
            error = self._consumer.list_topics(self.topic, timeout=_QUESTION).topics[self.topic].error
        except KafkaException:  # `check_reach` tells of that
            return
        if error is None or error.code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
            self._missed = None
            return
        self._missed = self._missed or now
        self._next_look = now + _MISSED
        if now - self._missed > _NEWS:
            self._fail(_caused(KafkaException(error), self._doing))

    # --- the thread ---

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
            if error is not None and error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001 - its public name
                self._on_error(error)
            elif partition is None:
                continue
            elif error is not None:
                partition.ended(record.offset())
            elif not partition.fetched(
                record.offset(),
                *message_of(record),
                now=now,
                now_ms=now_ms,
                stamped_by_broker=record.timestamp()[0] == TIMESTAMP_LOG_APPEND_TIME,
            ):
                text = "the topic was made anew or has lost records; receiving starts again at what it has"
                raise Retriable(f"kafka: {self._doing}: {text}", native_code="OFFSET_OUT_OF_RANGE")
        for partition in self.owned.values():
            self.balance(partition)

    def _on_assign(self, consumer: Consumer, assigned: list[TopicPartition]) -> None:
        # What a call of the client raises in a callback comes out of the poll as no exception at all, which nothing
        # can catch, unless Python's code has had it in its hands (confluent-kafka 2.16, Python 3.11).
        with classified(self._doing, reading=True):
            if self._stop.is_set():
                consumer.unassign()  # an assignment that is not answered would keep it from leaving
            else:
                self._begin(consumer, assigned)
            self._joined = True

    def _begin(self, consumer: Consumer, assigned: list[TopicPartition]) -> None:
        """Read what the last owner committed before anything is fetched."""
        found: dict[int, Partition] = {}
        starts = []
        for each in committed_by_group(consumer, assigned, _COORDINATOR, self._stop.wait):
            here = TopicPartition(self.topic, each.partition)
            try:
                _, high = consumer.get_watermark_offsets(here, timeout=_COORDINATOR)
            except KafkaException as error:
                if error.args[0].code() != KafkaError._UNKNOWN_PARTITION:  # noqa: SLF001 - its public name
                    raise
                high = _UNKNOWN  # it has no leader; the others go on, and it is fetched when it has one
            ledger = None if each.offset < 0 else self._read(each)
            if ledger is not None and ledger.base > high != _UNKNOWN:
                log.warning("kafka: %s: partition %d has lost records; it starts anew", self._doing, each.partition)
                ledger = None
            found[each.partition] = Partition(each.partition, ledger, high)
            start = OFFSET_BEGINNING if ledger is None else ledger.base
            starts.append(TopicPartition(self.topic, each.partition, start))
        consumer.incremental_assign(starts)
        self.owned |= found
        self._since = time.monotonic()

    def _read(self, committed: TopicPartition) -> Ledger:
        try:
            return Ledger.read(committed.offset, committed.metadata)
        except ValueError as error:
            log.warning("kafka: %s: partition %d: %s; attempts count anew", self._doing, committed.partition, error)
            return Ledger(committed.offset)

    def _on_revoke(self, _consumer: Consumer, revoked: list[TopicPartition]) -> None:
        for each in revoked:
            self.owned.pop(each.partition, None)

    def _on_commit(self, error: KafkaError | None, committed: list[TopicPartition]) -> None:
        """The answer to a commit; to which one, its offsets say."""
        states = {each.partition: (each.metadata or "", each.offset) for each in committed}
        if self._answers is not None or states != {at: state for at, (_, state) in self._wanted.items()}:
            return
        self._answers = {}
        for each in committed:
            fault = each.error or error
            told = None if fault is None else _caused(KafkaException(fault), self._committing)
            self._answers[self._wanted[each.partition][0]] = told

    def _answered(self) -> bool:
        return self._answers is not None or self._stop.is_set()

    @property
    def _committing(self) -> str:
        return f"committing offsets of {self._doing}"

    def _on_error(self, error: KafkaError) -> None:
        """What the client tells by the way: it goes on by itself after most of it."""
        # Of a member, one connection may be refused for a moment.
        if error.code() == KafkaError._ALL_BROKERS_DOWN or (self._joined and refused(error)):  # noqa: SLF001 - its public name
            self._down = error
            return
        told = classify(KafkaException(error), self._doing)
        if isinstance(told, Fatal) and error.code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
            self._fail(told)
        else:
            log.debug("%s", told)

    def _fail(self, error: BrokerError) -> None:
        self.failure = self.failure or error
        self.owned.clear()
        self._stop.set()

    def _leave(self) -> None:
        end = time.monotonic() + _PARTING
        try:
            # Who closes while it joins, or owning nothing, stays a member until its session ends (librdkafka 2.16).
            while self._subscribed and not self._joined and time.monotonic() < end:
                self._consumer.poll(_GLANCE)
            self._consumer.unsubscribe()
            while self._subscribed and self._consumer.memberid() and time.monotonic() < end:
                self._consumer.poll(_GLANCE)
            self._consumer.close()
        except (KafkaException, RuntimeError, BrokerError) as error:
            log.warning("kafka: %s: leaving the group: %s", self._doing, error)
        _alive.pop(id(self._consumer), None)


def _caused(error: KafkaException, doing: str) -> BrokerError:
    found = classify(error, doing)
    found.__cause__ = error
    return found


def _classified(error: Exception, doing: str) -> BrokerError:
    if isinstance(error, BrokerError):
        return error
    if isinstance(error, KafkaException):
        return _caused(error, doing)
    found = Retriable(f"kafka: {doing}: {type(error).__name__}: {error}", native_code=type(error).__name__)
    found.__cause__ = error
    return found
