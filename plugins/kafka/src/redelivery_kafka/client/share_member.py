"""One member of a share group: a share consumer, the records that it holds, and what it reports between them.

confluent-kafka 2.16 fetches nothing more for a member that holds a record, and the broker (4.4) gives it whole batches
as they were sent, whatever `max.poll.records` says. A record's lock cannot be prolonged.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from confluent_kafka import (
    TIMESTAMP_LOG_APPEND_TIME,
    AcknowledgeType,
    IllegalStateException,
    KafkaError,
    ShareConsumer,
)

from redelivery.codes import Code
from redelivery.errors import Ambiguous, BrokerError, Fatal, LeaseLost
from redelivery.kit.leases import Lease
from redelivery_kafka.client import instances
from redelivery_kafka.client.partition import Fetched
from redelivery_kafka.client.share_group import no_share_groups
from redelivery_kafka.codec import message_of
from redelivery_kafka.errors import ALL_BROKERS_DOWN, ERRORS, classify, has_code, is_refused

#: Seconds that the answer to an acknowledgement may take.
_ANSWER: Final = 10.0
#: Part of the lock that may have passed on the record's way here, before the call that it came for.
_ON_ITS_WAY: Final = 0.1
#: Codes for records whose lock has ended: another member may hold them.
_LOCK_ENDED: Final = (KafkaError.INVALID_RECORD_STATE,)

Place = tuple[int, int]
"""A record's partition and offset."""


class ShareLease(Lease):
    """One delivery of a record to a member, until its lock ends.

    Attributes:
        fetched: the record.
        delivery: which delivery of the record this is, as the broker counts: 1 for the first.
        letter: the letter of it that the dead letter topic has already stored.
    """

    __slots__ = ("delivery", "fetched", "letter", "member", "place")

    def __init__(self, member: ShareMember, place: Place, fetched: Fetched, delivery: int, expires: float) -> None:
        super().__init__(expires)
        self.member = member
        self.place = place
        self.fetched = fetched
        self.delivery = delivery
        self.letter: object = None

    def __repr__(self) -> str:
        return f"ShareLease({self.place[0]}/{self.place[1]})"


@dataclass(eq=False)
class ShareMember:
    """One share consumer. Used by one thread at a time.

    Args:
        make: makes the client, given its callbacks.
        topic: the topic.
        doing: what it does, for errors.
        lock: seconds for which the group locks a record.

    Attributes:
        held: the records that it holds, by place.
        joined: it has partitions.
        failure: the error that ended the membership.
    """

    make: Callable[[Mapping[str, Any]], ShareConsumer]
    topic: str
    doing: str
    lock: float
    held: dict[Place, ShareLease] = field(default_factory=dict)
    joined: bool = False
    failure: BrokerError | None = None

    def __post_init__(self) -> None:
        self._connection_error: KafkaError | None = None
        self._asked = time.monotonic()
        callbacks = {"error_cb": self._on_error, "stats_cb": self._on_statistics}
        self._consumer = self.make(callbacks)
        self._consumer.subscribe([self.topic])

    def poll(self, seconds: float) -> list[ShareLease]:
        """Return the records that arrive, waiting up to so long for the first. Only a member that holds none may poll.

        Raises:
            BrokerError: the membership has ended.
        """
        # A record that is there at once was locked for a poll that ended earlier, not before the last one began, nor
        # before those were acknowledged that it held then.
        since = self._asked
        found = self._poll(0.0)
        if not found and seconds > 0:
            since = time.monotonic()
            found = self._poll(seconds)
        expires = since + (1 - _ON_ITS_WAY) * self.lock
        for record in found:
            error = record.error()
            if error is not None:
                self._on_error(error)
                continue
            self.joined = True
            place = (record.partition(), record.offset())
            fetched = Fetched(*message_of(record), record.timestamp()[0] == TIMESTAMP_LOG_APPEND_TIME)
            self.held[place] = ShareLease(self, place, fetched, record.delivery_count() or 1, expires)
        if self.failure is not None:
            raise self.failure
        return list(self.held.values())

    def acknowledge(self, kinds: Mapping[ShareLease, AcknowledgeType]) -> dict[ShareLease, LeaseLost | BrokerError]:
        """Acknowledge records, each in its way; return those that are not, or may not be, acknowledged, with the error.

        An acknowledged record is held no longer, whatever the answer: the client cannot acknowledge it again.
        """
        failed: dict[ShareLease, LeaseLost | BrokerError] = {}
        doing = f"acknowledging records of {self.doing}"
        for lease, kind in kinds.items():
            try:
                self._consumer.acknowledge_offset(self.topic, *lease.place, kind)
            except (IllegalStateException, *ERRORS):
                failed[lease] = _lock_ended(doing, lease)
            self.held.pop(lease.place, None)
        sent = [lease for lease in kinds if lease not in failed]
        if not sent:
            return failed
        self._asked = time.monotonic()  # while it held these, nothing more was fetched
        try:
            answers = {at.partition: answer for at, answer in self._consumer.commit_sync(_ANSWER).items()}
        except (IllegalStateException, *ERRORS) as error:
            return failed | dict.fromkeys(sent, self._of_answer(error, doing, sent[0]))
        for lease in sent:
            partition = lease.place[0]
            if partition not in answers:
                text = (
                    f"kafka: {doing}: no answer came for partition {partition}; the record may be acknowledged or not"
                )
                failed[lease] = Ambiguous(text, code=Code.UNCONFIRMED)
            elif (answer := answers[partition]) is not None:
                failed[lease] = self._of_answer(answer, doing, lease)
        return failed

    def give_back(self, leases: Iterable[ShareLease]) -> None:
        """Release records whose leases are over, so that the member can poll again; their locks end in any case."""
        self.acknowledge(dict.fromkeys(leases, AcknowledgeType.RELEASE))

    def lost_connection(self) -> bool:
        """Return whether no broker was reached, or one refused the connection, since the last look."""
        error, self._connection_error = self._connection_error, None
        return error is not None

    def close(self) -> None:
        """Leave the group: what it holds is released. Must not be called in a child of the process that joined."""
        try:
            self._consumer.close()
        except (IllegalStateException, *ERRORS) as error:
            instances.log.info("kafka: %s: leaving the share group: %s", self.doing, error)
        instances.release(self._consumer)

    def _poll(self, seconds: float) -> list[Any]:
        self._asked = time.monotonic()
        try:
            return list(self._consumer.poll(seconds))
        except (IllegalStateException, *ERRORS) as error:
            self.failure = self.failure or self._ended(error)
            raise self.failure from error

    def _ended(self, error: Exception) -> BrokerError:
        if has_code(error, KafkaError.UNSUPPORTED_VERSION):
            return no_share_groups(self.doing)
        if self._connection_error is not None and is_refused(self._connection_error):
            return classify(self._connection_error, self.doing)
        return classify(error, self.doing)

    @staticmethod
    def _of_answer(error: Exception, doing: str, lease: ShareLease) -> LeaseLost | BrokerError:
        if any(has_code(error, code) for code in _LOCK_ENDED):
            return _lock_ended(doing, lease)
        return classify(error, doing)

    def _on_error(self, error: KafkaError) -> None:
        """Note what the client reports between records: it recovers from most of it by itself."""
        if error.code() == ALL_BROKERS_DOWN or is_refused(error):
            self._connection_error = error
            return
        found = classify(error, self.doing)
        if isinstance(found, Fatal) and error.code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
            self.failure = self.failure or found
        else:
            instances.log.debug("%s", found)

    def _on_statistics(self, text: str) -> None:
        """Learn from the client's statistics, which nothing else says, that it has partitions."""
        if not self.joined:
            group = json.loads(text).get("cgrp") or {}
            self.joined = group.get("join_state") == "steady" and group.get("assignment_size", 0) > 0


def _lock_ended(doing: str, lease: ShareLease) -> LeaseLost:
    partition, offset = lease.place
    return LeaseLost(f"kafka: {doing}: the lock of record {partition}/{offset} has ended; nothing was changed")
