"""The receiver role: partitions are owned, attempts counted and settled in the committed offset's metadata.

A record is given only when its attempt has been committed, so a crash is counted; it is settled when that is committed.
How it is remembered is `offsets.py`'s, which may be given next is `partition.py`'s, what is owned `membership.py`'s.
This file must not retry: what could not be committed is told, and nothing of it holds.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Final, Self

from redelivery.contract.broker import Accept, Outcome, Received, Receiver, Release, Retry, Source, Terminate
from redelivery.errors import BrokerError, Fatal, LeaseLost, Retriable, Unsupported
from redelivery_kafka.address import Address
from redelivery_kafka.burial import Burial
from redelivery_kafka.config import Settings
from redelivery_kafka.membership import Membership
from redelivery_kafka.offsets import Ledger
from redelivery_kafka.partition import Lease, Partition
from redelivery_kafka.record import position

#: Sessions that brokers take by default, in seconds.
_SESSION_MIN: Final = 6.0
_SESSION_MAX: Final = 1800.0
#: Seconds between heartbeats: how soon a member learns that another came or went.
_HEARTBEAT: Final = 0.5
_MILLISECOND: Final = timedelta(milliseconds=1)


class KafkaReceiver(Receiver):
    """Receives the records of a topic as a member of a group.

    Args:
        address: the topic and the group.
        settings: makes the clients.
        lease: how long the partitions of a receiver that died stay its own (its session).
    """

    def __init__(self, address: Address, settings: Settings, lease: timedelta) -> None:
        self._address = address
        self._settings = settings
        self._session = min(max(lease.total_seconds(), _SESSION_MIN), _SESSION_MAX)
        self._burial = Burial(address.dead_letters, settings)
        self._membership: Membership | None = None
        self._closed = False
        self._pid = os.getpid()
        self._turn = 0

    def open(self) -> Self:
        """Join the group, and see what lies in its partitions: the first `receive` then keeps to its wait.

        What keeps it from joining, the first `receive` tells.
        """
        with suppress(BrokerError):
            member = self._joined()
            with member.lock:
                while not member.ready and member.failure is None and (left := member.patience - time.monotonic()) > 0:
                    member.poll(min(left, 1.0))
        return self

    def receive(self, max_messages: int, *, wait: float) -> Sequence[Received]:
        self._check_open()
        end = time.monotonic() + wait
        member = self._joined()
        with member.lock:
            while member.failure is None:
                received, due = self._give(member, max_messages)
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
                    text = "the group has not let us join yet; it waits for a member that died until its session ends"
                    raise Retriable(f"kafka: {self._doing}: {text}", native_code="JOINING")
                member.poll(min(end if member.ready else now + 1.0, due or end) - now)
            failure = member.failure
        self._part()  # without the lock, which its thread needs to end
        raise failure

    def settle(self, outcomes: Sequence[tuple[Received, Outcome]]) -> Sequence[LeaseLost | BrokerError | None]:
        self._check_open()
        member = self._membership
        if member is None:
            return [self._lost(received) for received, _ in outcomes]
        with member.lock:
            answers: list[LeaseLost | BrokerError | None] = [None] * len(outcomes)
            valid: dict[int, tuple[Lease, Outcome]] = {}
            seen: set[int] = set()
            for at, (received, outcome) in enumerate(outcomes):
                lease = received.lease
                if self._holds(member, lease) and id(lease) not in seen:
                    seen.add(id(lease))
                    valid[at] = (lease, outcome)
                else:
                    answers[at] = self._lost(received)
            letters = {
                at: (lease, outcome.letter)
                for at, (lease, outcome) in valid.items()
                if isinstance(outcome, Terminate) and lease.letter is not outcome.letter
            }
            for at, error in self._burial.bury(letters).items():
                answers[at] = error
                del valid[at]
            for at in letters.keys() & valid.keys():
                valid[at][0].letter = letters[at][1]
            self._settle(member, valid, answers)
            return answers

    def extend(self, leases: Sequence[Received], seconds: float) -> Sequence[Received | LeaseLost]:  # noqa: ARG002
        raise Unsupported("kafka: a lease lasts as long as its partition is ours; there is nothing to prolong")

    def close(self) -> None:
        """Leave the group: what is under lease comes again, to whoever gets its partitions."""
        self._closed = True
        self._part()
        self._burial.close()

    # --- receiving ---

    def _joined(self) -> Membership:
        if self._membership is None:
            member = Membership(
                lambda callbacks: self._settings.consumer(
                    self._address,
                    **{
                        "partition.assignment.strategy": "cooperative-sticky",
                        "enable.auto.commit": False,
                        "enable.auto.offset.store": False,
                        "enable.partition.eof": True,
                        "auto.offset.reset": "earliest",
                        "isolation.level": "read_committed",
                        "session.timeout.ms": int(self._session * 1000),
                        "heartbeat.interval.ms": int(_HEARTBEAT * 1000),
                        "fetch.wait.max.ms": 100,
                        **callbacks,
                    },
                ),
                self._address.topic,
                self._doing,
                session=self._session,
            )
            try:
                member.start()
            except BaseException:
                member.close()
                raise
            self._membership = member
        return self._membership

    def _part(self) -> None:
        member, self._membership = self._membership, None
        if member is not None:
            member.close()

    def _give(self, member: Membership, most: int) -> tuple[list[Received], float | None]:
        """Lease what may be given; also when the next of those that wait is due."""
        now, now_ms = time.monotonic(), time.time_ns() // 1_000_000
        chosen: dict[Partition, list[int]] = {}
        owned = sorted(member.owned.values(), key=lambda each: each.number)
        if owned:  # each in its turn is the first
            self._turn = (self._turn + 1) % len(owned)
            owned = owned[self._turn :] + owned[: self._turn]
        left = most
        for partition in owned:
            if left > 0 and (offsets := partition.choose(left, now)):
                chosen[partition] = offsets
                left -= len(offsets)
        due = min((each.next_due for each in owned if each.next_due is not None), default=None)
        if not chosen:
            return [], due
        counted = {partition: partition.ledger.copy() for partition in chosen}
        for partition, offsets in chosen.items():
            partition.count(counted[partition], offsets, now_ms)
        failed: dict[Partition, BrokerError] = dict.fromkeys(chosen, Fatal("kafka: interrupted"))
        try:
            failed = member.commit(counted)
        finally:
            for partition in failed:
                partition.back(chosen[partition])
        received = []
        for partition, offsets in chosen.items():
            if partition in failed or member.owned.get(partition.number) is not partition:
                continue
            partition.count(partition.ledger, offsets, now_ms)
            received += [self._received(partition, offset) for offset in offsets]
            member.balance(partition)
        if failed and not received:
            raise next(iter(failed.values()))
        return received, due

    def _received(self, partition: Partition, offset: int) -> Received:
        tries = partition.ledger.tries[offset]
        return Received(
            message=partition.message(offset),
            attempt=tries.attempts,
            lease=partition.give(offset),
            position=position(self._address.topic, partition.number, offset),
            lasting=True,
            first_ms=tries.first_ms,
            source=Source(
                topic=self._address.topic,
                partition=partition.number,
                offset=offset,
                timestamp_type="LOG_APPEND_TIME" if partition.is_stamped_by_broker(offset) else "CREATE_TIME",
            ),
            undecodable=partition.fault(offset),
        )

    # --- settling ---

    def _settle(
        self,
        member: Membership,
        valid: dict[int, tuple[Lease, Outcome]],
        answers: list[LeaseLost | BrokerError | None],
    ) -> None:
        now, now_ms = time.monotonic(), time.time_ns() // 1_000_000
        after: dict[Partition, Ledger] = {}
        for lease, outcome in valid.values():
            ledger = after.setdefault(lease.partition, lease.partition.ledger.copy())
            _apply(ledger, lease.offset, outcome, now_ms)
        failed = member.commit(after)
        for at, (lease, outcome) in valid.items():
            partition, offset = lease.partition, lease.offset
            if partition in failed:
                answers[at] = failed[partition]
                continue
            _apply(partition.ledger, offset, outcome, now_ms)  # more may have been fetched meanwhile
            if isinstance(outcome, Accept | Terminate):
                partition.settled(offset)
            elif isinstance(outcome, Retry) and outcome.delay > timedelta(0):
                partition.delayed(offset, now + outcome.delay.total_seconds())
            else:
                partition.back([offset])
        for partition in after:
            member.balance(partition)

    @staticmethod
    def _holds(member: Membership, lease: object) -> bool:
        if not isinstance(lease, Lease):
            return False
        partition = lease.partition
        return member.owned.get(partition.number) is partition and partition.in_hand.get(lease.offset) is lease

    # --- words ---

    @property
    def _doing(self) -> str:
        return f"receiving from topic {self._address.topic!r} as group {self._address.group!r}"

    def _check_open(self) -> None:
        if os.getpid() != self._pid:
            raise Fatal(
                f"kafka: {self._doing}: this receiver is another process's; open one here", native_code="FORKED"
            )
        if self._closed:
            raise Fatal(f"kafka: {self._doing}: this receiver is closed; open another", native_code="CLOSED")

    def _lost(self, received: Received) -> LeaseLost:
        text = "is not ours any more: settled already, or its partition was revoked"
        return LeaseLost(f"kafka: {received.position} {text}")


def _apply(ledger: Ledger, offset: int, outcome: Outcome, now_ms: int) -> None:
    """What an outcome does to what is remembered."""
    tries = ledger.tries[offset]
    if isinstance(outcome, Accept | Terminate):
        ledger.settle(offset)
    elif isinstance(outcome, Release):
        if tries.attempts > 1:
            ledger.tries[offset] = tries._replace(attempts=tries.attempts - 1)
        else:
            del ledger.tries[offset]
    elif outcome.delay > timedelta(0):
        ledger.tries[offset] = tries._replace(due_ms=max(now_ms, tries.first_ms) - (-outcome.delay // _MILLISECOND))
