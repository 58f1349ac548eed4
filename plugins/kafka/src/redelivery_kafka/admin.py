"""The admin role: the topic and its dead letter topic. This file must not alter what exists.

A dead letter topic is made to keep its letters for ever: Kafka deletes by a record's own time, and a letter has that of
the message that died. One that exists is right if it keeps them at least as long as the topic would.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # the client's own way to name them
    AdminClient,
    ConfigResource,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from redelivery.base.urls import has_scheme, redact, resolve_secrets, scheme_of
from redelivery.contract.broker import Admin, Difference, NativeObject, Plan
from redelivery.contract.spec import NATIVE, DeliverySpec, DeliveryStatus, Ref, Sink
from redelivery.errors import BrokerError, ConfigurationError, Fatal, Retriable
from redelivery_kafka.address import Address
from redelivery_kafka.config import Settings
from redelivery_kafka.errors import classified, classify, refused
from redelivery_kafka.group import committed_by_group
from redelivery_kafka.offsets import waiting

#: Seconds for one question, and for a new topic to be known.
_QUESTION: Final = 8.0
_LOOK: Final = 0.05
#: What keeps a record for ever, as a value of `retention.ms` and `retention.bytes`.
_EVER: Final = -1
#: What is said of a partition whose leader has just been chosen.
_NOT_YET: Final = frozenset(
    {KafkaError.LEADER_NOT_AVAILABLE, KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.UNKNOWN_TOPIC_OR_PART}
)
#: Beside a record in its batch.
_ROOM: Final = 65_536
_RIGHTS: Final = frozenset({"TOPIC_AUTHORIZATION_FAILED", "CLUSTER_AUTHORIZATION_FAILED"})
#: What a topic is called in a `ref`: the kind of Strimzi, Kafka's operator for Kubernetes.
KIND: Final = "KafkaTopic"
API_GROUP: Final = "kafka.strimzi.io"
_API: Final = f"{API_GROUP}/v1beta2"


@dataclass(frozen=True, slots=True)
class _Topic:
    """A topic as it is."""

    partitions: int
    replicas: int
    config: Mapping[str, str]

    @property
    def compacted(self) -> bool:
        return self.config.get("cleanup.policy", "delete") == "compact"


class KafkaAdmin(Admin):
    """Makes and checks the topic of one address and its dead letter topic."""

    def __init__(self, address: Address, settings: Settings) -> None:
        self._address = address
        self._settings = settings
        self._question = min(_QUESTION, int(settings.values.get("socket.timeout.ms", _QUESTION * 1000)) / 1000)
        self._client: AdminClient | None = None
        self._refused: list[KafkaError] = []
        self._closed = False
        self._pid = os.getpid()

    def plan(self, spec: DeliverySpec) -> Plan:
        letters, sinks = self._letters(spec)
        topic = self._look(self._address)
        objects = [
            NativeObject(kind="topic", name=self._address.topic, action="keep" if topic else "create"),
            *(self._letter_topic(each, spec, topic) for each in letters if each != self._address),
        ]
        return Plan(
            objects=objects,
            status=self._status(spec),
            warnings=list(self._warnings(letters, spec, topic)),
            sinks=sinks,
        )

    def provision(self, spec: DeliverySpec) -> DeliveryStatus:
        plan = self.plan(spec)
        plan.refuse_differences(f"kafka: {self._address.url}")
        made = False
        for item in plan.objects:
            if item.action == "create":
                # What a dead letter topic takes over from the topic is known once that is there.
                again = next(each for each in self.plan(spec).objects if each.name == item.name) if made else item
                if not self._make(again):
                    self.plan(spec).refuse_differences(f"kafka: {self._address.url}")
                made = True
        return plan.status

    def depth(self) -> int:
        doing = f"counting what waits in topic {self._address.topic!r}"
        replicas = self._replicas(self._address, doing)
        if replicas is None:
            text = "there is no such topic; provision it, or correct the URL"
            raise Fatal(f"kafka: {doing}: {text}", native_code="UNKNOWN_TOPIC_OR_PART")
        with classified(doing, reading=True):
            consumer = self._settings.consumer(self._address, **{"enable.auto.commit": False})
            try:
                here = [TopicPartition(self._address.topic, each) for each in range(len(replicas))]
                count = 0
                for each in committed_by_group(consumer, here, self._question, consumer.poll):
                    low, high = consumer.get_watermark_offsets(each, timeout=self._question)
                    count += waiting(each.offset, each.metadata, low, high)
            finally:
                consumer.close()
        return count

    def close(self) -> None:
        self._closed = True
        if os.getpid() == self._pid:
            self._client = None

    # --- what a spec needs ---

    def _letters(self, spec: DeliverySpec) -> tuple[list[Address], list[str]]:
        """The dead letter topics of this cluster, and the URLs of those sinks that are not the native one.

        Raises:
            ConfigurationError: a sink is the topic itself.
        """
        found: list[Address] = []
        urls = []
        for sink in spec.dead_letter_sink or (Sink(uri=NATIVE),):
            address = self._sink(sink)
            if address is None:
                continue
            if address.topic == self._address.topic and not self._address.is_dead_letters:
                text = "the job would read its own dead letters as rows; name another topic"
                raise ConfigurationError(f"deadLetterSink: {address.topic!r} is the topic itself: {text}")
            found.append(address)
            if sink.options:
                urls.append(replace(address, named_group="").url)
            elif sink.uri != NATIVE:
                urls.append(sink.uri if has_scheme(sink.uri) else address.url)
        return list(dict.fromkeys(found)), urls

    def _sink(self, sink: Sink) -> Address | None:
        """The topic that a sink is; None where it is elsewhere."""
        if sink.uri == NATIVE:
            url = self._address.dead_letters.url
        elif not has_scheme(sink.uri):
            url = self._address.at(sink.uri).url
        elif scheme_of(sink.uri) == "kafka":
            url = sink.uri
        else:
            return None
        options = {name.lower().removeprefix("kafka."): value for name, value in sink.options.items()}
        names = ("bootstrap.servers", "metadata.broker.list")
        servers = resolve_secrets({name: options[name] for name in names if name in options})
        address = Address.parse(url, next(iter(servers.values()), None))
        return self._address.at(address.topic) if address.bootstrap == self._address.bootstrap else None

    def _status(self, spec: DeliverySpec) -> DeliveryStatus:
        """What the first sink is; empty where that is not of this cluster."""
        address = self._sink(spec.dead_letter_sink[0]) if spec.dead_letter_sink else None
        if address is None:
            return DeliveryStatus()
        reference = Ref(api_version=_API, kind=KIND, name=address.topic)
        return DeliveryStatus(dead_letter_sink_uri=redact(address.url), dead_letter_channel=reference)

    def _letter_topic(self, address: Address, spec: DeliverySpec, topic: _Topic | None) -> NativeObject:
        found = self._look(address)
        if found is None:
            wanted = {"cleanup.policy": "delete", "retention.ms": str(_EVER), "retention.bytes": str(_EVER)}
            partitions = spec.sink_partitions or (topic.partitions if topic else None)
            replicas = spec.sink_replication_factor or (topic.replicas if topic else None)
            if partitions is not None:
                wanted["partitions"] = str(partitions)
            if replicas is not None:
                wanted["replication.factor"] = str(replicas)
            # What was too large for the topic must fit here, with its context: the client's own limit bounds both.
            most = max(_number(topic.config, "max.message.bytes") if topic else 0, self._settings.message_bytes + _ROOM)
            wanted["max.message.bytes"] = str(most)
            return NativeObject(kind="topic", name=address.topic, action="create", attributes=wanted)
        return NativeObject.compared("topic", address.topic, {}, list(_differences(found, spec, topic)))

    def _warnings(self, letters: Sequence[Address], spec: DeliverySpec, topic: _Topic | None) -> Iterator[str]:
        if topic is not None:
            yield from may_be_lost(self._address.topic, self._settings.acks, topic.replicas, topic.config)
        for address in letters:
            found = self._look(address)
            if found is None:
                continue
            if topic and found.partitions < topic.partitions and spec.sink_partitions is None:
                yield (
                    f"{address.topic} has fewer partitions ({found.partitions}) than {self._address.topic} "
                    f"({topic.partitions}): letters of the others are placed by their key"
                )
            most = _number(found.config, "max.message.bytes")
            if most < self._settings.message_bytes:
                yield (
                    f"{address.topic} takes {most} bytes, the client {self._settings.message_bytes}: a row too large "
                    "for both topics fails the job"
                )
            if _kept(found) != _EVER:
                yield (
                    f"{address.topic} keeps letters for {_kept(found)} ms of their own time, that of the message that "
                    "died: the broker may delete them unread"
                )

    # --- the cluster ---

    def _look(self, address: Address) -> _Topic | None:
        """A topic as it is; None where there is none."""
        doing = f"looking at topic {address.topic!r}"
        try:
            replicas = self._replicas(address, doing)
            if replicas is None:
                return None
            client = self._admin(doing)
            with classified(doing, reading=True):
                resource = ConfigResource(ResourceType.TOPIC, address.topic)
                answer: Future[Any] = client.describe_configs([resource], request_timeout=self._question)[resource]
                config = answer.result()
        except BrokerError as error:
            self._say_refused(error, doing)
            raise
        return _Topic(len(replicas), min(replicas), {n: e.value for n, e in config.items() if e.value is not None})

    def _replicas(self, address: Address, doing: str) -> list[int] | None:
        """How many replicas each partition has; None where there is no such topic."""
        client = self._admin(doing)
        with classified(doing, reading=True):
            found = client.list_topics(address.topic, timeout=self._question).topics[address.topic]
            if found.error is not None and found.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                return None
            if found.error is not None:
                raise KafkaException(found.error)
            return [len(each.replicas) for each in found.partitions.values()]

    def _make(self, item: NativeObject) -> bool:
        """Make a topic, and wait until it is of use. False where somebody else just made it, perhaps otherwise."""
        doing = f"making topic {item.name!r}"
        config = dict(item.attributes)
        partitions, replicas = int(config.pop("partitions", -1)), int(config.pop("replication.factor", -1))
        new = NewTopic(item.name, num_partitions=partitions, replication_factor=replicas, config=config)
        made = True
        try:
            with classified(doing):
                self._admin(doing).create_topics([new], request_timeout=self._question)[item.name].result()
        except BrokerError as error:
            self._say_refused(error, doing)
            if error.native_code in _RIGHTS:
                raise error.reclassified(
                    Fatal, f"{error}; or let who may do it run: {_command(item, self._address)}"
                ) from error
            if error.native_code != "TOPIC_ALREADY_EXISTS":
                raise
            made = False
        deadline = time.monotonic() + self._question
        while not self._is_led(item.name):
            if time.monotonic() > deadline:
                raise Retriable(
                    f"kafka: {doing}: it was made, but the brokers do not know it yet", native_code="_TIMED_OUT"
                )
            self._admin(doing).poll(_LOOK)
        return made

    def _is_led(self, name: str) -> bool:
        """Whether a topic that was just made is known, and each of its partitions answers: only then is it of use."""
        topic = self._look(self._address.at(name))
        if topic is None:
            return False
        asked = {TopicPartition(name, each): OffsetSpec.latest() for each in range(topic.partitions)}  # type: ignore[no-untyped-call]
        answers = self._admin(f"looking at topic {name!r}").list_offsets(asked, request_timeout=self._question)
        try:
            for each in answers.values():
                each.result()
        except KafkaException as error:
            return error.args[0].code() not in _NOT_YET
        return True

    def _admin(self, doing: str) -> AdminClient:
        if self._closed or os.getpid() != self._pid:
            raise Fatal(
                f"kafka: {doing}: this role is closed, or another process's; open another", native_code="CLOSED"
            )
        if self._client is None:
            self._client = self._settings.admin(self._address, on_error=self._refused.append)
        return self._client

    def _say_refused(self, error: BrokerError, doing: str) -> None:
        """Where the brokers refuse who we are, the client tells a question only that nobody answered."""
        if self._client is not None:
            self._client.poll(0)
        for each in self._refused:
            if refused(each):
                raise classify(each, doing) from error


def may_be_lost(name: str, acks: str, replicas: int, config: Mapping[str, str]) -> Iterator[str]:
    """What a row that counts as stored can still be lost by, silently."""
    least = config.get("min.insync.replicas", "1")
    if acks not in {"all", "-1"}:
        yield f"kafka.acks={acks}: a row counts as stored once its leader has it, and is lost if that broker is"
    elif least == "1" and replicas > 1:
        yield (
            f"{name} has min.insync.replicas=1: a row counts as stored with one of its {replicas} replicas alone, "
            "and is lost if that broker is"
        )


def _differences(found: _Topic, spec: DeliverySpec, topic: _Topic | None) -> Iterator[Difference]:
    """What a dead letter topic has otherwise than it should."""
    if spec.sink_partitions not in {None, found.partitions}:
        yield Difference("partitions", str(spec.sink_partitions), str(found.partitions))
    if spec.sink_replication_factor not in {None, found.replicas}:
        yield Difference("replication.factor", str(spec.sink_replication_factor), str(found.replicas))
    if "compact" in found.config.get("cleanup.policy", ""):
        yield Difference("cleanup.policy", "delete", found.config["cleanup.policy"])
    if topic is None:
        return
    for name in ("retention.ms", "retention.bytes"):
        # A topic that is only compacted deletes nothing by time or size.
        wanted = _EVER if topic.compacted else _number(topic.config, name)
        has = _number(found.config, name)
        if has != _EVER and (wanted == _EVER or has < wanted):
            yield Difference(name, f"{wanted} or more" if wanted != _EVER else str(_EVER), str(has))
    name = "max.message.bytes"
    if name in topic.config and _number(found.config, name) < _number(topic.config, name):
        yield Difference(name, f"{topic.config[name]} or more", found.config.get(name, "missing"))


def _kept(topic: _Topic) -> int:
    return _number(topic.config, "retention.ms")


def _number(config: Mapping[str, str], name: str) -> int:
    return int(config.get(name, _EVER))


def _command(item: NativeObject, address: Address) -> str:
    """What makes the topic by Kafka's own tool."""
    said = {"partitions": "--partitions", "replication.factor": "--replication-factor"}
    parts = [f"{said[n]} {v}" if n in said else f"--config {n}={v}" for n, v in item.attributes.items()]
    return " ".join([f"kafka-topics.sh --bootstrap-server {address.bootstrap} --create --topic {item.name}", *parts])
