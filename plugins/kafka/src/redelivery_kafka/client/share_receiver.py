"""The receiver role in a share group: several receivers take records of one partition, each under a lock that ends.

A member that holds a record is given no others, so a receiver has several members: while one holds records that are
being handled, another takes the next ones.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import cache
from typing import Any, Final, Self

from confluent_kafka import AcknowledgeType, ShareConsumer

from redelivery.contract.broker import Accept, Outcome, Received, Receiver, Retry, Source, Terminate
from redelivery.errors import BrokerError, LeaseLost, Retriable, Unsupported
from redelivery.kit.errors import Code
from redelivery.kit.leases import Settlement, lost
from redelivery.kit.roles import Resource
from redelivery_kafka.address import Address
from redelivery_kafka.client import instances
from redelivery_kafka.client.letter_producer import LetterProducer
from redelivery_kafka.client.share_group import ShareGroup
from redelivery_kafka.client.share_member import ShareLease, ShareMember
from redelivery_kafka.codec import position
from redelivery_kafka.options import Settings

log = logging.getLogger("redelivery.kafka")

#: Members of one receiver, at most. Each is a client with a connection to each broker, and counts in the group.
_MEMBERS: Final = 8
#: Records that a member asks for. Brokers give it more where a batch holds more.
_RECORDS: Final = 100
#: Seconds that joining takes: the broker answers at the second heartbeat (every 5 s, at most 15 s).
_JOINING: Final = 20.0
#: Seconds in which a member that has joined is given what waits.
_FIRST: Final = 1.0
#: Seconds of one poll while several members take turns, and between looks while all of them hold records.
_TURN: Final = 0.1
_PAUSE: Final = 0.02
#: Seconds between the client's statistics, which say that a member has joined.
_STATISTICS: Final = 0.25
#: Seconds in which members leave the group, side by side.
_LEAVING: Final = 20.0
_TOO_MANY: Final = (
    "kafka: %s: %d records were given back unhandled when their locks ended, after %g s. A batch is locked as a whole, "
    "and the broker counts a delivery of each of its records: send smaller batches, or use more workers"
)
#: Seconds between looks whether the topic still exists.
_TOPIC_CHECK: Final = 5.0


class KafkaShareReceiver(Resource, Receiver):
    """Receives the records of a topic in a share group.

    Args:
        address: the topic and the share group.
        settings: the client settings.
    """

    def __init__(self, address: Address, settings: Settings) -> None:
        super().__init__("kafka", f"topic {address.topic!r} in share group {address.group!r}")
        self._address = address
        self._settings = settings
        self._letters = LetterProducer(address.dead_letters, settings)
        self._group: ShareGroup | None = None
        self._lock = 0.0
        self._members: list[ShareMember] = []
        self._ready: deque[ShareLease] = deque()  # held by a member, not given to the caller yet
        self._patience = 0.0
        self._next_check = 0.0

    def open(self) -> Self:
        """Join the group, so that the first `receive` keeps to its wait; an error is raised by the first `receive`."""
        with suppress(BrokerError):
            (member,) = self._joined()
            while not member.joined and not self._ready and time.monotonic() < self._patience:
                self._ready.extend(member.poll(_TURN))
            end = time.monotonic() + _FIRST
            while not self._ready and time.monotonic() < end:
                self._ready.extend(member.poll(_TURN))
        return self

    def receive(self, max_messages: int, *, wait: float) -> Sequence[Received]:
        self.check_open("receiving from")
        end = time.monotonic() + wait
        has_polled = False
        try:
            self._joined()
            while True:
                self._end_leases()
                if self._ready or max_messages <= 0:
                    return [self._received(self._ready.popleft()) for _ in range(min(max_messages, len(self._ready)))]
                now = time.monotonic()
                # Where nothing is in hand, nothing found means that nothing is left: so a member that joins is awaited.
                waits = all(member.joined for member in self._members) or any(member.held for member in self._members)
                if has_polled and now >= (end if waits else max(end, self._patience)):
                    self._check()
                    return []
                self._poll(max(0.0, end - now) if waits else _TURN)
                has_polled = True
        except BrokerError:
            if any(member.failure is not None for member in self._members):
                self._leave()
            raise

    def settle(self, outcomes: Sequence[tuple[Received, Outcome]]) -> Sequence[LeaseLost | BrokerError | None]:
        self.check_open("settling records of")
        for _, outcome in outcomes:
            if isinstance(outcome, Retry) and outcome.delay > timedelta(0):
                text = "a share group gives a record again at once; leave out the delay, or receive by ?group="
                raise Unsupported(f"kafka: {self.doing('settling records of')}: {text}")
        settlement = Settlement(outcomes, self._holds, self._lost)
        self._store_letters(settlement)
        waiting = settlement.waiting()
        for member in list(self._members):
            mine = {at: pair for at, pair in waiting if pair[0].lease.member is member}
            failed = member.acknowledge({each.lease: _kind(outcome) for each, outcome in mine.values()}) if mine else {}
            for at, (received, _) in mine.items():
                settlement.answer(at, failed.get(received.lease))
        for at, _ in settlement.waiting():  # of a member that is gone
            settlement.lose(at)
        return settlement.answers

    def extend(self, leases: Sequence[Received], seconds: float) -> Sequence[Received | LeaseLost]:  # noqa: ARG002
        text = "a record's lock lasts as long as its group says (share.record.lock.duration.ms); leave it out"
        raise Unsupported(f"kafka: {text}")

    def _release(self) -> None:
        """Leave the group: records that are held are given again at once."""
        self._leave()
        self._letters.close()

    # --- the group ---

    def _joined(self) -> list[ShareMember]:
        if not self._members:
            if self._group is None:
                self._group = ShareGroup(self._address, self._settings)
            self._group.check_topic(self.doing("receiving from"))
            self._lock = self._group.begin(self.doing("receiving from"))
            _say_preview()
            self._join()
        return self._members

    def _join(self) -> None:
        self._patience = time.monotonic() + _JOINING
        self._next_check = time.monotonic() + _TOPIC_CHECK
        self._members.append(ShareMember(self._consumer, self._address.topic, self.doing("receiving from"), self._lock))

    def _consumer(self, callbacks: Mapping[str, Any]) -> ShareConsumer:
        return instances.share_consumer(
            self._settings,
            self._address,
            **{
                "share.acknowledgement.mode": "explicit",
                "max.poll.records": _RECORDS,
                "statistics.interval.ms": int(_STATISTICS * 1000),
                **callbacks,
            },
        )

    def _leave(self) -> None:
        members, self._members = self._members, []
        self._ready.clear()
        for member in members:
            member.held.clear()
        threads = [threading.Thread(target=member.close, daemon=True) for member in members]
        for thread in threads:
            thread.start()
        end = time.monotonic() + _LEAVING
        for thread in threads:
            thread.join(max(0.0, end - time.monotonic()))
        group, self._group = self._group, None
        if group is not None:
            group.close()

    def _check(self) -> None:
        """Raise what explains that nothing came. Raises BrokerError."""
        now = time.monotonic()
        lost = [member.lost_connection() for member in self._members]
        if self._group is not None and (now >= self._next_check or any(lost)):
            self._next_check = now + _TOPIC_CHECK
            self._group.check_topic(self.doing("receiving from"))
        if not any(member.joined for member in self._members):
            text = "the share group has not let this member join yet; try again"
            raise Retriable(f"kafka: {self.doing('receiving from')}: {text}", code=Code.UNAVAILABLE)

    # --- receiving ---

    def _poll(self, seconds: float) -> None:
        """Let members that hold nothing take records, and wait up to so long for the first."""
        idle = [member for member in self._members if not member.held]
        if not idle and len(self._members) < _MEMBERS:
            self._join()
            idle = self._members[-1:]
        if not idle:
            self.sleep_unless_closed(min(seconds, _PAUSE))
            return
        # The client may have records for any of them: their locks run.
        for member in idle[1:]:
            self._ready.extend(member.poll(0.0))
        if not self._ready:
            self._ready.extend(idle[0].poll(min(seconds, _TURN)))
        self._members.append(self._members.pop(self._members.index(idle[0])))

    def _end_leases(self) -> None:
        """Release records whose leases are over: before, their member can take no others."""
        now = time.monotonic()
        for member in self._members:
            over = [lease for lease in member.held.values() if not lease.is_valid(now)]
            if not over:
                continue
            waited = sum(lease in self._ready for lease in over)
            if waited:
                log.warning(_TOO_MANY, self.doing("receiving from"), waited, self._lock)
                self._ready = deque(lease for lease in self._ready if lease.is_valid(now))
            member.give_back(over)

    def _received(self, lease: ShareLease) -> Received:
        partition, offset = lease.place
        return Received(
            message=lease.fetched.message,
            attempt=lease.delivery,
            lease=lease,
            expires=lease.expires,
            position=position(self._address.topic, partition, offset),
            lasting=True,
            source=Source(
                topic=self._address.topic,
                partition=partition,
                offset=offset,
                timestamp_type="LOG_APPEND_TIME" if lease.fetched.log_append_time else "CREATE_TIME",
            ),
            undecodable=lease.fetched.fault,
        )

    # --- settling ---

    def _store_letters(self, settlement: Settlement) -> None:
        """Store the letters of terminated records that are not stored yet; answer those that may not be stored."""
        letters = {
            at: (received.lease, outcome.letter)
            for at, (received, outcome) in settlement.waiting(Terminate)
            if received.lease.letter is not outcome.letter
        }
        failed = self._letters.store({at: (lease.place[0], letter) for at, (lease, letter) in letters.items()})
        settlement.answer_failed_copies(failed)
        for at in letters.keys() - failed.keys():
            lease, letter = letters[at]
            lease.letter = letter

    def _holds(self, received: Received) -> bool:
        lease = received.lease
        return isinstance(lease, ShareLease) and lease.is_valid() and lease.member.held.get(lease.place) is lease

    def _lost(self, received: Received) -> LeaseLost:
        return lost("kafka", self._place, received)


def _kind(outcome: Outcome) -> AcknowledgeType:
    """Return how an outcome is acknowledged. A letter of ours is stored already, so its record is accepted."""
    return AcknowledgeType.ACCEPT if isinstance(outcome, Accept | Terminate) else AcknowledgeType.RELEASE


@cache
def _say_preview() -> None:
    log.warning("kafka: share groups are a preview in confluent-kafka 2.16; consumer groups (?group=) are the default")
