"""The receiver role: partitions are owned, attempts are counted and settled in the committed offset's metadata.

A record is leased only after its attempt has been committed, so that a crash is counted; it is settled when that is
committed. `client.offset_map` holds that state, `client.partition` says which record is next, `client.membership` which
partitions are owned. What could not be committed is reported, and has not happened.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any, Final, Self

from confluent_kafka import Consumer

from redelivery.contract.broker import Accept, Outcome, Received, Receiver, Release, Retry, Source, Terminate
from redelivery.errors import BrokerError, Fatal, LeaseLost, Retriable, Unsupported
from redelivery.kit.errors import Code
from redelivery.kit.leases import Settlement, lost
from redelivery.kit.roles import Resource
from redelivery_kafka.address import Address
from redelivery_kafka.client import instances
from redelivery_kafka.client.letter_producer import LetterProducer
from redelivery_kafka.client.membership import Membership
from redelivery_kafka.client.offset_map import Attempts, OffsetMap, stretches
from redelivery_kafka.client.partition import Lease, Partition
from redelivery_kafka.codec import position
from redelivery_kafka.options import Settings

#: Sessions that brokers accept by default, in seconds.
_SESSION_MIN: Final = 6.0
_SESSION_MAX: Final = 1800.0
#: Seconds between heartbeats: how soon a member learns that another one joined or left.
_HEARTBEAT: Final = 0.5
_MILLISECOND: Final = timedelta(milliseconds=1)


class KafkaReceiver(Resource, Receiver):
    """Receives the records of a topic as a member of a group.

    Args:
        address: the topic and the group.
        settings: the client settings.
        lease: how long the partitions of a receiver that died stay assigned to it (its session).
    """

    def __init__(self, address: Address, settings: Settings, lease: timedelta) -> None:
        super().__init__("kafka", f"topic {address.topic!r} as group {address.group!r}")
        self._address = address
        self._settings = settings
        self._session = min(max(lease.total_seconds(), _SESSION_MIN), _SESSION_MAX)
        self._letters = LetterProducer(address.dead_letters, settings)
        self._membership: Membership | None = None
        self._turn = 0

    def open(self) -> Self:
        """Join the group, and fetch from its partitions, so that the first `receive` keeps to its wait.

        An error that prevents joining is raised by the first `receive`.
        """
        with suppress(BrokerError):
            member = self._joined()
            with member.lock:
                while not member.ready and member.failure is None and (left := member.patience - time.monotonic()) > 0:
                    member.poll(min(left, 1.0))
        return self

    def receive(self, max_messages: int, *, wait: float) -> Sequence[Received]:
        self.check_open("receiving from")
        end = time.monotonic() + wait
        member = self._joined()
        with member.lock:
            while member.failure is None:
                received, due = self._lease(member, max_messages)
                if received or max_messages <= 0:
                    return received
                now = time.monotonic()
                if now >= (end if member.ready else max(end, member.patience)):
                    member.check_reach()
                    member.check_topic()
                    if member.failure is not None:
                        break
                    if member.ready:
                        return []
                    text = "the group has not let this member join yet: it waits for the session of a dead one to end"
                    raise Retriable(f"kafka: {self.doing('receiving from')}: {text}", code=Code.UNAVAILABLE)
                end_of_wait = end if member.ready else now + 1.0
                member.poll(min(end_of_wait, due or end_of_wait) - now)
            failure = member.failure
        self._leave()  # without the lock, which the member's thread needs to end
        raise failure

    def settle(self, outcomes: Sequence[tuple[Received, Outcome]]) -> Sequence[LeaseLost | BrokerError | None]:
        self.check_open("settling records of")
        member = self._membership
        if member is None:
            return [self._lost(received) for received, _ in outcomes]
        with member.lock:
            settlement = Settlement(outcomes, partial(_holds, member.owned), self._lost)
            if any(isinstance(outcome, Terminate) for _, outcome in outcomes):
                self._store_letters(settlement)
            self._settle(member, settlement)
            return settlement.answers

    def extend(self, leases: Sequence[Received], seconds: float) -> Sequence[Received | LeaseLost]:  # noqa: ARG002
        raise Unsupported("kafka: a lease lasts as long as its partition is assigned to this receiver; leave it out")

    def _release(self) -> None:
        """Leave the group: records that are leased are given again, to the next owners of the partitions."""
        self._leave()
        self._letters.close()

    # --- receiving ---

    def _joined(self) -> Membership:
        if self._membership is None:
            doing = self.doing("receiving from")
            member = Membership(self._consumer, self._address.topic, doing, session=self._session)
            try:
                member.start()
            except BaseException:
                member.close()
                raise
            self._membership = member
        return self._membership

    def _consumer(self, callbacks: Mapping[str, Any]) -> Consumer:
        return instances.consumer(
            self._settings,
            self._address,
            **{
                "partition.assignment.strategy": "cooperative-sticky",
                "enable.partition.eof": True,
                "session.timeout.ms": int(self._session * 1000),
                "heartbeat.interval.ms": int(_HEARTBEAT * 1000),
                **callbacks,
            },
        )

    def _leave(self) -> None:
        member, self._membership = self._membership, None
        if member is not None:
            member.close()

    def _take(self, member: Membership, most: int) -> tuple[dict[Partition, list[int]], float | None]:
        """Take up to `most` records that may be leased; also return when the next of those that wait is due."""
        owned = sorted(member.owned.values(), key=lambda each: each.number)
        if owned:  # each partition is the first in its turn
            self._turn = (self._turn + 1) % len(owned)
            owned = owned[self._turn :] + owned[: self._turn]
        taken: dict[Partition, list[int]] = {}
        now = time.monotonic()
        for partition in owned:
            if most > 0 and (offsets := partition.take(most, now)):
                taken[partition] = offsets
                most -= len(offsets)
        return taken, min((each.next_due for each in owned if each.next_due is not None), default=None)

    def _lease(self, member: Membership, most: int) -> tuple[list[Received], float | None]:
        """Lease up to `most` records; also return when the next of those that wait is due."""
        taken, due = self._take(member, most)
        if not taken:
            return [], due
        now_ms = time.time_ns() // 1_000_000
        counted = {partition: partition.offsets.copy() for partition in taken}
        for partition, offsets in taken.items():
            counted[partition].begin(offsets, now_ms)
        failed: dict[Partition, BrokerError] = dict.fromkeys(taken, Fatal("kafka: interrupted", code=Code.UNCONFIRMED))
        try:
            failed = member.commit(counted)
        finally:
            for partition in failed:
                partition.release(taken[partition])
        received: list[Received] = []
        for partition, offsets in taken.items():
            if partition in failed or member.owned.get(partition.number) is not partition:
                continue
            attempts = partition.offsets.begin(offsets, now_ms)  # more may have been fetched since the copy
            received += map(partial(self._received, partition), offsets, attempts)
            member.balance(partition)
        if failed and not received:
            raise next(iter(failed.values()))
        return received, due

    def _received(self, partition: Partition, offset: int, attempts: Attempts) -> Received:
        lease = partition.lease(offset)
        topic, record = self._address.topic, lease.record
        return Received(
            message=record.message,
            attempt=attempts.number,
            lease=lease,
            position=position(topic, partition.number, offset),
            lasting=True,
            first_ms=attempts.first_ms,
            source=Source(
                topic=topic,
                partition=partition.number,
                offset=offset,
                timestamp_type="LOG_APPEND_TIME" if record.log_append_time else "CREATE_TIME",
            ),
            undecodable=record.fault,
        )

    # --- settling ---

    def _store_letters(self, settlement: Settlement) -> None:
        """Store the letters of terminated records that are not stored yet; answer those that may not be stored."""
        letters = {
            at: (received.lease, outcome.letter)
            for at, (received, outcome) in settlement.waiting(Terminate)
            if received.lease.letter is not outcome.letter
        }
        failed = self._letters.store({at: (lease.partition.number, letter) for at, (lease, letter) in letters.items()})
        settlement.answer_failed_copies(failed)
        for at in letters.keys() - failed.keys():
            lease, letter = letters[at]
            lease.letter = letter

    @staticmethod
    def _settle(member: Membership, settlement: Settlement) -> None:
        now, now_ms = time.monotonic(), time.time_ns() // 1_000_000
        ended: dict[Partition, _Ended] = {}
        for _, (received, outcome) in settlement.waiting():
            ended.setdefault(received.lease.partition, _Ended()).add(received.lease.offset, outcome)
        after = {partition: each.applied(partition.offsets.copy(), now_ms) for partition, each in ended.items()}
        failed = member.commit(after)
        if failed:
            for at, (received, _) in settlement.waiting():
                settlement.answer(at, failed.get(received.lease.partition))
        else:
            settlement.answer_rest(None)
        for partition in ended.keys() - failed.keys():
            each = ended[partition]
            each.applied(partition.offsets, now_ms)  # more may have been fetched since the copy
            for offset in each.done:
                partition.settled(offset)
            for offset, outcome in each.again.items():
                if isinstance(outcome, Retry) and outcome.delay > timedelta(0):
                    partition.delayed(offset, now + outcome.delay.total_seconds())
                else:
                    partition.release([offset])
        for partition in after:
            member.balance(partition)

    def _lost(self, received: Received) -> LeaseLost:
        return lost("kafka", self._place, received)


class _Ended:
    """The effect of one call of `settle` on the records of one partition.

    Attributes:
        done: are settled.
        again: come again, with their outcomes.
    """

    def __init__(self) -> None:
        self.done: list[int] = []
        self.again: dict[int, Release | Retry] = {}

    def add(self, offset: int, outcome: Outcome) -> None:
        if isinstance(outcome, Accept | Terminate):
            self.done.append(offset)
        else:
            self.again[offset] = outcome

    def applied(self, offsets: OffsetMap, now_ms: int) -> OffsetMap:
        """Write it into the state of the partition, and return that."""
        self.done.sort()
        for start, end in stretches(self.done):
            offsets.settle(start, end)
        for offset, outcome in self.again.items():
            attempts = offsets.attempts(offset) or Attempts(1, now_ms)
            if isinstance(outcome, Release):
                offsets.put(offset, attempts._replace(number=attempts.number - 1) if attempts.number > 1 else None)
            elif outcome.delay > timedelta(0):
                due_ms = max(now_ms, attempts.first_ms) - (-outcome.delay // _MILLISECOND)
                offsets.put(offset, attempts._replace(due_ms=due_ms))
        return offsets


def _holds(owned: Mapping[int, Partition], received: Received) -> bool:
    lease = received.lease
    return isinstance(lease, Lease) and lease.held and owned.get(lease.partition.number) is lease.partition
