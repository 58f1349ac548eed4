"""A share group as its broker describes it: its settings, which the broker keeps apart from those of topics."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # the client's own way to name them
    AdminClient,
    ConfigResource,
    ResourceType,
)

from redelivery.contract.broker import Difference, NativeObject
from redelivery.errors import BrokerError, Fatal
from redelivery.kit.errors import Code
from redelivery_kafka.address import Address
from redelivery_kafka.client import instances
from redelivery_kafka.errors import classify, classify_reading, is_refused, while_reading
from redelivery_kafka.options import Settings

#: Seconds for one request, and between looks for a topic that was just created.
_REQUEST: Final = 8.0
_PAUSE: Final = 0.05
#: Seconds until a broker that does not answer counts as out of reach, and that one request takes in that time.
_CONTACT: Final = 8.0
_SHORT: Final = 0.5
#: Seconds for which a topic that was just created may be unknown to the broker that is asked.
_PROPAGATION: Final = 2.0
#: Seconds of the shortest lock that brokers take by default: assumed where this user may not read the group's settings.
_LEAST_LOCK: Final = 15.0

#: Kind of a share group in a plan.
KIND: Final = "share group"
#: The highest limit of deliveries that brokers take by default (`group.share.max.delivery.count.limit`).
MOST_DELIVERIES: Final = 10

LOCK: Final = "share.record.lock.duration.ms"
START: Final = "share.auto.offset.reset"
LIMIT: Final = "share.delivery.count.limit"
ISOLATION: Final = "share.isolation.level"
LETTERS: Final = "errors.deadletterqueue.topic.name"
COPIES: Final = "errors.deadletterqueue.copy.record.enable"
#: A topic's setting: share groups may write their dead letters to it.
TAKES_LETTERS: Final = "errors.deadletterqueue.group.enable"


class ShareGroup:
    """Asks brokers about a share group and its topic. No call changes anything."""

    def __init__(self, address: Address, settings: Settings) -> None:
        self._address = address
        self._errors: list[KafkaError] = []  # of connections
        self._client = instances.admin(settings, address, on_error=self._errors.append)

    def check_topic(self, doing: str) -> None:
        """Reach the brokers and find the topic: a share consumer of a missing one reports nothing.

        Raises:
            BrokerError
        """
        began = time.monotonic()
        while True:
            try:
                error = self._client.list_topics(self._address.topic, timeout=_SHORT).topics[self._address.topic].error
            except KafkaException as unreached:
                self._client.poll(0)
                refused = next(filter(is_refused, self._errors), None)
                if refused is not None or self._errors or time.monotonic() - began > _CONTACT:
                    raise classify_reading(refused or unreached, doing) from unreached
                continue
            if error is None:
                return
            if time.monotonic() - began > _PROPAGATION or error.code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise classify(error, doing) from KafkaException(error)
            self._client.poll(_PAUSE)

    def begin(self, doing: str) -> float:
        """Return for how many seconds a record is locked; warn of settings with which records are lost.

        Raises:
            BrokerError: the brokers have no share groups, or gave another answer.
        """
        try:
            found = GroupSettings.read(self._client, self._address.group, doing)
        except BrokerError as error:
            if error.code is not Code.NOT_AUTHORIZED:
                raise
            instances.log.info("%s; a lock is taken to last %g s", error, _LEAST_LOCK)
            return _LEAST_LOCK
        for fault in found.faults():
            instances.log.warning("kafka: share group %r: %s; 'redelivery plan' says more", self._address.group, fault)
        return int(found.values[LOCK]) / 1000

    def close(self) -> None:
        """Release the client."""
        instances.release(self._client)


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """The settings of a share group: all, with the brokers' defaults, and the names of those that were set for it."""

    values: Mapping[str, str]
    own: frozenset[str] = frozenset()

    @classmethod
    def read(cls, client: AdminClient, group: str, doing: str) -> GroupSettings:
        """Ask the brokers.

        Raises:
            BrokerError: also where the brokers have no share groups.
        """
        with while_reading(f"reading the settings of share group {group!r}, {doing}"):
            resource = ConfigResource(ResourceType.GROUP, group)
            answer: Any = client.describe_configs([resource], request_timeout=_REQUEST)[resource]
            found = answer.result()
        if LOCK not in found:
            raise no_share_groups(doing)
        values = {name: entry.value or "" for name, entry in found.items()}
        return cls(values, frozenset(name for name, entry in found.items() if not entry.is_default))

    def object(self, group: str, letters: str, deliveries: int) -> NativeObject:
        """Compare with what a group needs: what was never set is missing, and what was set stays as it is.

        Args:
            group: its name.
            letters: its dead letter topic.
            deliveries: how often the broker has to give a record before it dead-letters it.
        """
        wanted = {
            LETTERS: letters,
            COPIES: "true",
            LIMIT: str(deliveries),
            START: "earliest",
            ISOLATION: "read_committed",
        }
        missing = {
            name: value
            for name, value in wanted.items()
            if name in self.values and name not in self.own and self.values[name] != value
        }
        differences = []
        if LETTERS in self.own and self.values[LETTERS] not in {"", letters}:
            differences.append(Difference(LETTERS, letters, self.values[LETTERS]))
        if LIMIT in self.own and int(self.values[LIMIT]) < deliveries:
            differences.append(Difference(LIMIT, f"{deliveries} or more", self.values[LIMIT]))
        if LETTERS in self.own and not self.values[LETTERS]:
            missing[LETTERS] = letters
        if missing and not differences:
            return NativeObject(kind=KIND, name=group, action="create", attributes=missing)
        return NativeObject.compared(KIND, group, {}, differences)

    def faults(self) -> Iterator[str]:
        """Yield how a group with these settings loses records, or what of them, one clause each."""
        if self.values[START] == "latest":
            yield f"{START} is 'latest': a new group never sees the records that were there before it"
        if LETTERS not in self.values:
            yield "its brokers have no dead letter topics for groups (Kafka 4.4 has): they drop what is given too often"
        elif not self.values[LETTERS]:
            often = self.values.get(LIMIT, "too many")
            yield f"{LETTERS} is not set: the broker drops a record that it has given {often} times"
        elif self.values.get(COPIES) != "true":
            yield f"{COPIES} is not true: letters of the broker hold neither key nor value, and only point at records"
        if self.values.get(ISOLATION) == "read_uncommitted":
            yield f"{ISOLATION} is 'read_uncommitted': records of aborted transactions are given too"


def no_share_groups(doing: str) -> Fatal:
    """Return the error where brokers have no share groups."""
    text = "the brokers have no share groups: Kafka has them from 4.2, unless its feature share.version is 0"
    return Fatal(f"kafka: {doing}: {text}; leave out ?share= to use a consumer group", code=Code.UNSUPPORTED)
