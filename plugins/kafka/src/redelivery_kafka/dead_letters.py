"""The dead letters role: reads a topic without a group, and remembers which of its letters are removed.

A record cannot be taken out of a log. What is removed or redriven is remembered in the committed offsets of a group of
its own, `<topic>.redelivery-removed`, as a receiver remembers what is settled (`offsets.py`), and is not shown again.
This file must not alter the topic.
"""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, Final

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, Consumer, KafkaError, KafkaException, TopicPartition

from redelivery.contract.broker import DeadLetters, Letter
from redelivery.contract.context import ErrorContext
from redelivery.errors import Ambiguous, BrokerError, ConfigurationError, Fatal, Permanent, Retriable
from redelivery_kafka.address import Address
from redelivery_kafka.config import Settings
from redelivery_kafka.errors import classified, classify
from redelivery_kafka.group import committed_by_group
from redelivery_kafka.offsets import Ledger, TooMuch
from redelivery_kafka.record import message_of, position

log = logging.getLogger("redelivery.kafka")

#: What is put behind the topic's name to name the group that remembers what is removed.
REMOVED: Final = ".redelivery-removed"
#: Seconds for one question, and without any letter before a browse gives up.
_QUESTION: Final = 10.0
_SILENCE: Final = 20.0
#: Letters read ahead of a partition, where another one has none yet; and taken in one go.
_AHEAD: Final = 500
_TAKEN: Final = 100
#: Bytes that the client fetches ahead.
_FETCHED_KB: Final = 8_192
#: What a commit is answered with.
_Answer = tuple[KafkaError | None, list[TopicPartition]]
#: Consumers of this process and, in a child, its parent's: see `membership`.
_alive: dict[int, Consumer] = {}


class KafkaDeadLetters(DeadLetters):
    """The records of one topic that are not removed."""

    def __init__(self, address: Address, settings: Settings) -> None:
        self._address = replace(address, named_group=address.topic + REMOVED)
        self._settings = settings
        self._open: set[int] = set()
        self._closed = False
        self._pid = os.getpid()

    def browse(self) -> Iterator[Letter]:
        answers: list[_Answer] = []
        with self._consumer("browsing", on_commit=lambda *answer: answers.append(answer)) as consumer:
            reading = {}
            for partition, (low, high, removed) in self._state(consumer, renew=answers).items():
                removed.settle(0, low)
                if removed.unsettled(high):
                    reading[partition] = _Reading(partition, removed, high)
            consumer.assign([TopicPartition(self._address.topic, p, each.removed.base) for p, each in reading.items()])
            last = time.monotonic()
            while reading:
                if any(not each.ahead and not each.ended for each in reading.values()):
                    with classified(self._doing("browsing"), reading=True):
                        records = consumer.consume(_TAKEN, 0.05)
                    if records:
                        last = time.monotonic()
                    elif time.monotonic() > last + _SILENCE:
                        text = f"nothing came for {_SILENCE:g} s, though not all letters were read"
                        raise Retriable(f"kafka: {self._doing('browsing')}: {text}", native_code="_TIMED_OUT")
                    self._take(consumer, records, reading)
                    continue
                reading = {p: each for p, each in reading.items() if each.ahead}
                if reading:
                    oldest = min(reading.values(), key=lambda each: each.ahead[0][0])
                    yield oldest.ahead.popleft()[1]
                    if oldest.paused and not oldest.ahead:
                        oldest.paused = False
                        consumer.resume([TopicPartition(self._address.topic, oldest.number)])
                    last = time.monotonic()

    def remove(self, positions: Sequence[str]) -> int:
        wanted: dict[int, set[int]] = {}
        for each in positions:
            partition, offset = self._place(each)
            wanted.setdefault(partition, set()).add(offset)
        if not wanted:
            return 0
        return self._remember("removing from", {p: sorted(offsets) for p, offsets in wanted.items()})

    def purge(self) -> int:
        return self._remember("purging", None)

    def close(self) -> None:
        self._closed = True
        if os.getpid() == self._pid:
            for each in list(self._open):
                self._give_back(each)

    # --- browsing ---

    def _take(self, consumer: Consumer, records: Sequence[Any], reading: dict[int, _Reading]) -> None:
        for record in records:
            error = record.error()
            if error is not None and error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001 - its public name
                self._on_error(error)
                continue
            each = reading.get(record.partition())
            if each is None:
                continue
            if error is not None:
                each.ended = True
                continue
            offset = record.offset()
            if offset < each.high and not each.removed.is_done(offset):
                kind, timestamp = record.timestamp()
                message, fault = message_of(record)
                letter = Letter(
                    position=position(self._address.topic, each.number, offset),
                    message=message,
                    context=None if fault is None else ErrorContext(kind="invalid", reason=fault, broker="kafka"),
                    # Else it is the time of what the letter was made of, not of its death.
                    dead_lettered_ms=timestamp if kind == TIMESTAMP_LOG_APPEND_TIME else None,
                )
                each.ahead.append((timestamp, letter))
            each.ended = each.ended or offset + 1 >= each.high
        for each in reading.values():
            if len(each.ahead) > _AHEAD and not each.paused and not each.ended:
                each.paused = True
                consumer.pause([TopicPartition(self._address.topic, each.number)])

    def _on_error(self, error: KafkaError) -> None:
        told = classify(error, self._doing("browsing"))
        if isinstance(told, Fatal):
            raise told from KafkaException(error)

    # --- remembering ---

    def _remember(self, what: str, wanted: dict[int, list[int]] | None) -> int:
        """Remember letters as removed, by partition, or all of them; returns how many were not so before."""
        count = 0
        commits = []
        answers: list[_Answer] = []
        with self._consumer(what, on_commit=lambda *answer: answers.append(answer)) as consumer:
            for partition, (low, high, removed) in self._state(consumer, wanted).items():
                removed.settle(0, low)
                if wanted is None:
                    new = removed.settle(low, high)
                else:
                    new = sum(removed.settle(offset) for offset in wanted[partition] if low <= offset < high)
                if not new:
                    continue
                count += new
                try:
                    said = f"{removed.metadata()} {_today()}"
                    commits.append(TopicPartition(self._address.topic, partition, removed.base, said))
                except TooMuch as error:
                    text = "no more removed letters can be remembered apart; remove the older ones too, or purge"
                    raise Permanent(
                        f"kafka: {self._doing(what)}: {text} ({error})", native_code="REMEMBERED"
                    ) from error
            if not commits:
                return 0
            self._commit(consumer, what, commits, answers)
        return count

    def _commit(self, consumer: Consumer, what: str, commits: list[TopicPartition], answers: list[_Answer]) -> None:
        with classified(self._doing(what)):
            consumer.commit(offsets=commits, asynchronous=True)
            end = time.monotonic() + _QUESTION
            while not answers:  # the client's blocking commit has no bound
                if time.monotonic() > end:
                    text = f"no answer within {_QUESTION:g} s, so they may be removed or not"
                    raise Ambiguous(f"kafka: {self._doing(what)}: {text}", native_code="_TIMED_OUT")
                consumer.poll(0.01)
            general, committed = answers[0]
            for fault in (general, *(each.error for each in committed)):
                _check(fault)

    def _renew(self, consumer: Consumer, states: Sequence[TopicPartition], answers: list[_Answer]) -> None:
        """Commit once more what was just read: a broker forgets what nobody commits for days, and letters come back.

        Once a day, as what another process removes between the reading and the commit would be forgotten. Only those
        who may remove may do so; who may not looks all the same.
        """
        today, stale = _today(), []
        for each in states:
            text, _, day = (each.metadata or "").partition(" ")
            if each.offset >= 0 and day != today:
                stale.append(TopicPartition(each.topic, each.partition, each.offset, f"{text} {today}"))
        if stale:
            try:
                self._commit(consumer, "renewing what is removed of", stale, answers)
            except BrokerError as error:
                log.info("%s", error)

    def _state(
        self,
        consumer: Consumer,
        partitions: dict[int, list[int]] | None = None,
        *,
        renew: list[_Answer] | None = None,
    ) -> dict[int, tuple[int, int, Ledger]]:
        """Of each partition: its watermarks, and what is removed."""
        with classified(self._doing("reading"), reading=True):
            topic = consumer.list_topics(self._address.topic, timeout=_QUESTION).topics[self._address.topic]
            _check(topic.error)
            numbers = [each for each in topic.partitions if partitions is None or each in partitions]
            here = [TopicPartition(self._address.topic, each) for each in numbers]
            states = committed_by_group(consumer, here, _QUESTION, consumer.poll)
            if renew is not None:  # at once, so that hardly anybody can have removed more meanwhile
                self._renew(consumer, states, renew)
            marks = [consumer.get_watermark_offsets(each, timeout=_QUESTION) for each in here]
        found = {}
        for each, (low, high) in zip(states, marks, strict=True):
            found[each.partition] = (low, high, Ledger(low) if each.offset < 0 else self._read(each))
        return found

    def _read(self, committed: TopicPartition) -> Ledger:
        try:
            return Ledger.read(committed.offset, (committed.metadata or "").partition(" ")[0])
        except ValueError as error:
            text = f"what the group {self._address.group!r} remembers is damaged ({error})"
            raise Fatal(f"kafka: {self._doing('reading')}: {text}; delete it, and all letters show again") from error

    # --- the client ---

    @contextmanager
    def _consumer(self, what: str, **callbacks: Any) -> Iterator[Consumer]:
        if self._closed or os.getpid() != self._pid:
            raise Fatal(f"kafka: {self._doing(what)}: this role is closed, or another process's; open another")
        consumer = self._settings.consumer(
            self._address,
            **{
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "fetch.wait.max.ms": 100,
                "queued.max.messages.kbytes": _FETCHED_KB,
                **callbacks,
            },
        )
        _alive[id(consumer)] = consumer
        self._open.add(id(consumer))
        try:
            yield consumer
        finally:
            if os.getpid() == self._pid:
                self._give_back(id(consumer))

    def _give_back(self, name: int) -> None:
        self._open.discard(name)
        consumer = _alive.pop(name, None)
        if consumer is not None:
            with suppress(KafkaException, RuntimeError):
                consumer.close()

    def _place(self, text: str) -> tuple[int, int]:
        topic, partition, offset = (["", "", *text.split("/")])[-3:]
        if topic != self._address.topic or not _is_number(partition) or not _is_number(offset):
            example = position(self._address.topic, 0, 42)
            raise ConfigurationError(f"kafka: not a position of this topic: {text!r}; one is written {example!r}")
        return int(partition), int(offset)

    def _doing(self, what: str) -> str:
        return f"{what} the dead letters in topic {self._address.topic!r}"


class _Reading:
    """What is read of one partition, up to where it ended when it began."""

    def __init__(self, number: int, removed: Ledger, high: int) -> None:
        self.number = number
        self.removed = removed
        self.high = high
        self.ahead: deque[tuple[int, Letter]] = deque()
        self.ended = False
        self.paused = False


def _today() -> str:
    """The day, as it stands behind what is remembered, after a blank: when that was committed last."""
    return str(int(time.time() // 86_400))


def _check(error: KafkaError | None) -> None:
    if error is not None:
        raise KafkaException(error)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 20  # noqa: PLR2004 - digits of 64 bits
