"""The admin role: the topic and its dead letter topic. It never changes what exists.

A new dead letter topic keeps its letters forever: Kafka deletes records by their own time, and a letter has that of the
message that died. An existing one is right if it keeps records at least as long as the topic does.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # the client's own way to name them
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from redelivery.contract.broker import Admin, Difference, NativeObject, Plan
from redelivery.contract.spec import NATIVE, DeliverySpec, DeliveryStatus, Ref, Sink
from redelivery.errors import BrokerError, ConfigurationError, Fatal, Retriable, Unsupported
from redelivery.kit.address import has_scheme, redact
from redelivery.kit.errors import Code
from redelivery.kit.options import resolve_secrets
from redelivery.kit.plans import deliveries, deliveries_note, longest_wait
from redelivery.kit.roles import Resource
from redelivery_kafka.address import API_GROUP, KIND, SHARE_PREFIX, Address
from redelivery_kafka.client import instances
from redelivery_kafka.client.committed import committed_offsets
from redelivery_kafka.client.offset_map import lag
from redelivery_kafka.client.share_group import COPIES, LETTERS, MOST_DELIVERIES, TAKES_LETTERS, GroupSettings
from redelivery_kafka.client.share_group import KIND as GROUP
from redelivery_kafka.errors import classify, is_refused, while_doing, while_reading
from redelivery_kafka.options import Settings

#: Seconds for one request, and for a new topic to be known to the brokers.
_REQUEST: Final = 8.0
_POLL: Final = 0.05
#: As a value of `retention.ms` and `retention.bytes`: keep records forever.
_FOREVER: Final = -1
#: Codes of a partition whose leader has just been chosen.
_NOT_YET: Final = frozenset({"LEADER_NOT_AVAILABLE", "NOT_LEADER_FOR_PARTITION", "UNKNOWN_TOPIC_OR_PART"})
#: Bytes that a batch needs in addition to its record.
_BATCH_OVERHEAD: Final = 65_536
_API: Final = f"{API_GROUP}/v1beta2"


@dataclass(frozen=True, slots=True)
class _Topic:
    """An existing topic."""

    partitions: int
    replicas: int
    config: Mapping[str, str]

    def number(self, name: str) -> int:
        """Return a setting that is a number."""
        return int(self.config.get(name, _FOREVER))

    @property
    def compacted(self) -> bool:
        return self.config.get("cleanup.policy", "delete") == "compact"


class KafkaAdmin(Resource, Admin):
    """Creates and checks the topic of one address and its dead letter topic."""

    def __init__(self, address: Address, settings: Settings) -> None:
        super().__init__("kafka", f"topic {address.topic!r}")
        self._address = address
        self._settings = settings
        self._request = min(_REQUEST, settings.socket_timeout or _REQUEST)
        self._client: AdminClient | None = None
        self._errors: list[KafkaError] = []  # of connections

    def plan(self, spec: DeliverySpec) -> Plan:
        letters, sinks = self._letter_topics(spec)
        topic = self._describe(self._address)
        objects = [
            NativeObject(kind="topic", name=self._address.topic, action="keep" if topic else "create"),
            *(self._compare(each, spec, topic) for each in letters if each != self._address),
        ]
        warnings = list(self._warnings(letters, spec, topic))
        approximations: list[str] = []
        if self._is_share:
            group = self._group()
            most = deliveries(spec, MOST_DELIVERIES)
            objects.append(group.object(self._address.group, self._group_letters(letters).topic, most))
            warnings += self._group_warnings(group, letters, topic)
            approximations += deliveries_note(spec, MOST_DELIVERIES, "Kafka")
            if longest_wait(spec):
                approximations.append("a share group retries at once: a subscription there needs backoffDelay=PT0S")
        return Plan(
            objects=objects,
            status=self._status(spec),
            approximations=approximations,
            warnings=warnings,
            sinks=sinks,
        )

    def provision(self, spec: DeliverySpec) -> DeliveryStatus:
        plan = self.plan(spec)
        plan.refuse_differences(f"kafka: {self._address.url}")
        created = False
        for item in plan.objects:
            if item.action == "create":
                # Once the topic exists, the plan says what a dead letter topic takes over from it.
                again = item
                if created:
                    same = (item.kind, item.name)
                    again = next(each for each in self.plan(spec).objects if (each.kind, each.name) == same)
                if again.kind == GROUP:
                    self._set(again)
                elif not self._create(again):
                    self.plan(spec).refuse_differences(f"kafka: {self._address.url}")
                created = True
        return plan.status

    def depth(self) -> int:
        if self._address.is_share:
            text = "the client cannot ask how far a share group is; use kafka-share-groups.sh --describe --offsets"
            raise Unsupported(f"kafka: {text} (capability `depth`)")
        doing = self.doing("counting the records waiting in")
        replicas = self._replicas(self._address, doing)
        if replicas is None:
            text = "no such topic exists; provision it, or correct the URL"
            raise Fatal(f"kafka: {doing}: {text}", code=Code.NO_SUCH_DESTINATION)
        consumer = instances.consumer(self._settings, self._address)
        try:
            with while_reading(doing):
                here = [TopicPartition(self._address.topic, each) for each in range(len(replicas))]
                count = 0
                for each in committed_offsets(consumer, here, self._request, consumer.poll):
                    low, high = consumer.get_watermark_offsets(each, timeout=self._request)
                    count += lag(each.offset, each.metadata, low, high)
        finally:
            consumer.close()
            instances.release(consumer)
        return count

    def _release(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            instances.release(client)

    # --- what a spec needs ---

    def _letter_topics(self, spec: DeliverySpec) -> tuple[list[Address], list[str]]:
        """Return the dead letter topics of this cluster, and the URLs of those sinks that are not the native one.

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
        if self._is_share and self._group_letters(found) not in found:
            found.append(self._group_letters(found))
        return list(dict.fromkeys(found)), urls

    @property
    def _is_share(self) -> bool:
        """Whether a share group receives here: a dead letter topic opened by itself has none."""
        return self._address.is_share and not self._address.is_dead_letters

    def _group_letters(self, letters: Sequence[Address]) -> Address:
        """Return the share group's dead letter topic: the first sink that brokers write to, or the native place."""
        return next((each for each in letters if each.topic.startswith(SHARE_PREFIX)), self._address.dead_letters)

    def _sink(self, sink: Sink) -> Address | None:
        """Return the topic that a sink is; None if it is at another cluster or broker."""
        if sink.uri == NATIVE:
            url = self._address.dead_letters.url
        elif not has_scheme(sink.uri):
            url = self._address.at(sink.uri).url
        elif sink.uri.lower().startswith("kafka:"):
            url = sink.uri
        else:
            return None
        options = {name.lower().removeprefix("kafka."): value for name, value in sink.options.items()}
        names = ("bootstrap.servers", "metadata.broker.list")
        servers = resolve_secrets({name: options[name] for name in names if name in options})
        address = Address.parse(url, next(iter(servers.values()), None))
        return self._address.at(address.topic) if address.bootstrap == self._address.bootstrap else None

    def _status(self, spec: DeliverySpec) -> DeliveryStatus:
        """Return the status of the first sink; empty if it is not at this cluster."""
        address = self._sink(spec.dead_letter_sink[0]) if spec.dead_letter_sink else None
        if address is None:
            return DeliveryStatus()
        reference = Ref(api_version=_API, kind=KIND, name=address.topic)
        return DeliveryStatus(dead_letter_sink_uri=redact(address.url), dead_letter_channel=reference)

    def _compare(self, address: Address, spec: DeliverySpec, topic: _Topic | None) -> NativeObject:
        """Compare a dead letter topic with its wanted settings."""
        found = self._describe(address)
        if found is not None:
            differences = list(_differences(found, spec, topic))
            takes = found.config.get(TAKES_LETTERS, "true")
            if self._is_share and address.topic.startswith(SHARE_PREFIX) and takes != "true":
                differences.append(Difference(TAKES_LETTERS, "true", takes))
            return NativeObject.compared("topic", address.topic, {}, differences)
        wanted = {"cleanup.policy": "delete", "retention.ms": str(_FOREVER), "retention.bytes": str(_FOREVER)}
        partitions = spec.sink_partitions or (topic.partitions if topic else None)
        replicas = spec.sink_replication_factor or (topic.replicas if topic else None)
        if partitions is not None:
            wanted["partitions"] = str(partitions)
        if replicas is not None:
            wanted["replication.factor"] = str(replicas)
        # A row that was too large for the topic must fit here, with its context: the client's own limit bounds both.
        most = max(topic.number("max.message.bytes") if topic else 0, self._settings.message_bytes + _BATCH_OVERHEAD)
        wanted["max.message.bytes"] = str(most)
        if self._is_share and address.topic.startswith(SHARE_PREFIX):
            wanted[TAKES_LETTERS] = "true"
        return NativeObject(kind="topic", name=address.topic, action="create", attributes=wanted)

    def _warnings(self, letters: Sequence[Address], spec: DeliverySpec, topic: _Topic | None) -> Iterator[str]:
        if topic is not None:
            yield from durability_warnings(self._address.topic, self._settings.acks, topic.replicas, topic.config)
        for address in letters:
            found = self._describe(address)
            if found is None:
                continue
            if topic and found.partitions < topic.partitions and spec.sink_partitions is None:
                yield (
                    f"{address.topic} has fewer partitions ({found.partitions}) than {self._address.topic} "
                    f"({topic.partitions}): letters of the others are placed by their key"
                )
            most = found.number("max.message.bytes")
            if most < self._settings.message_bytes:
                yield (
                    f"{address.topic} takes {most} bytes, the client {self._settings.message_bytes}: a row too large "
                    "for both topics fails the job"
                )
            retention = found.number("retention.ms")
            if retention != _FOREVER:
                yield (
                    f"{address.topic} keeps letters for {retention} ms of their timestamp, that of the message that "
                    "died: the broker may delete them unread"
                )

    def _group_warnings(self, group: GroupSettings, letters: Sequence[Address], topic: _Topic | None) -> Iterator[str]:
        missing = group.object(self._address.group, self._group_letters(letters).topic, MOST_DELIVERIES).attributes
        found = replace(group, values={**group.values, **missing})  # as it will be
        yield from (f"share group {self._address.group!r}: {fault}" for fault in found.faults())
        kept = self._describe(self._group_letters(letters))
        if topic is None or LETTERS not in found.values:
            return
        originals, longer = topic.number("retention.ms"), kept.number("retention.ms") if kept else _FOREVER
        if originals != _FOREVER and (longer == _FOREVER or longer > originals):
            copied = found.values.get(COPIES) == "true"
            lose = "lose headers and time" if copied else "point at nothing, and cannot be redriven"
            yield (
                f"{self._address.topic} keeps records for {originals} ms, less than its dead letters are kept: then "
                f"letters of the broker {lose}"
            )

    # --- the cluster ---

    def _group(self) -> GroupSettings:
        with self._asking(f"reading the settings of share group {self._address.group!r}") as client:
            return GroupSettings.read(client, self._address.group, self.doing("planning"))

    def _set(self, group: NativeObject) -> None:
        """Set what was never set of a share group."""
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
            for name, value in group.attributes.items()
        ]
        resource = ConfigResource(ResourceType.GROUP, group.name, incremental_configs=entries)
        with self._asking(f"setting up share group {group.name!r}", reading=False) as client:
            answer: Future[Any] = client.incremental_alter_configs([resource], request_timeout=self._request)[resource]
            answer.result()

    def _describe(self, address: Address) -> _Topic | None:
        """Return an existing topic; None if it does not exist."""
        doing = f"reading the settings of topic {address.topic!r}"
        replicas = self._replicas(address, doing)
        if replicas is None:
            return None
        with self._asking(doing) as client:
            resource = ConfigResource(ResourceType.TOPIC, address.topic)
            answer: Future[Any] = client.describe_configs([resource], request_timeout=self._request)[resource]
            config = answer.result()
        return _Topic(len(replicas), min(replicas), {n: e.value for n, e in config.items() if e.value is not None})

    def _replicas(self, address: Address, doing: str) -> list[int] | None:
        """Return how many replicas each partition has; None if the topic does not exist."""
        with self._asking(doing) as client:
            found = client.list_topics(address.topic, timeout=self._request).topics[address.topic]
            if found.error is not None and found.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                return None
            if found.error is not None:
                raise KafkaException(found.error)
            return [len(each.replicas) for each in found.partitions.values()]

    def _create(self, item: NativeObject) -> bool:
        """Create a topic, and wait until it can be used. Return False if another process just created it."""
        doing = f"creating topic {item.name!r}"
        config = dict(item.attributes)
        partitions, replicas = int(config.pop("partitions", -1)), int(config.pop("replication.factor", -1))
        new = NewTopic(item.name, num_partitions=partitions, replication_factor=replicas, config=config)
        created = True
        try:
            with self._asking(doing, reading=False) as client:
                client.create_topics([new], request_timeout=self._request)[item.name].result()
        except BrokerError as error:
            if error.code is Code.NOT_AUTHORIZED:
                text = f"{error}; or let a user who may create it run: {_command(item, self._address)}"
                raise error.reclassified(Fatal, text) from error
            if error.code is not Code.CONFLICT:
                raise
            created = False
        deadline = time.monotonic() + self._request
        while not self._has_leaders(item.name):
            if time.monotonic() > deadline:
                text = "it was created, but the brokers do not know it yet; try again"
                raise Retriable(f"kafka: {doing}: {text}", code=Code.DEADLINE_EXCEEDED)
            self.sleep_unless_closed(_POLL)
        return created

    def _has_leaders(self, name: str) -> bool:
        """Return whether a new topic is known and the leader of each partition answers: before, it cannot be used."""
        topic = self._describe(self._address.at(name))
        if topic is None:
            return False
        asked = {TopicPartition(name, each): OffsetSpec.latest() for each in range(topic.partitions)}  # type: ignore[no-untyped-call]
        try:
            with self._asking(f"reading the offsets of topic {name!r}") as client:
                for each in client.list_offsets(asked, request_timeout=self._request).values():
                    each.result()
        except BrokerError as error:
            return error.native_code not in _NOT_YET
        return True

    @contextmanager
    def _asking(self, doing: str, *, reading: bool = True) -> Iterator[AdminClient]:
        """Give the client for one request. Its errors are raised as ours."""
        self.check_open("administering")
        if self._client is None:
            self._client = instances.admin(self._settings, self._address, on_error=self._errors.append)
        try:
            with while_reading(doing) if reading else while_doing(doing):
                yield self._client
        except BrokerError as error:
            # Where brokers refuse the credentials, the request itself only times out; the connection says why.
            self._client.poll(0)
            for each in filter(is_refused, self._errors):
                raise classify(each, doing) from error
            raise


def durability_warnings(name: str, acks: str, replicas: int, config: Mapping[str, str]) -> Iterator[str]:
    """Yield how a row that counts as stored can still be lost."""
    least = config.get("min.insync.replicas", "1")
    if acks not in {"all", "-1"}:
        yield f"kafka.acks={acks}: a row counts as stored once its leader has it, and is lost if that broker is"
    elif least == "1" and replicas > 1:
        yield (
            f"{name} has min.insync.replicas=1: a row counts as stored with one of its {replicas} replicas alone, "
            "and is lost if that broker is"
        )


def _differences(found: _Topic, spec: DeliverySpec, topic: _Topic | None) -> Iterator[Difference]:
    """Yield the settings of a dead letter topic that are not as they should be."""
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
        wanted, has = _FOREVER if topic.compacted else topic.number(name), found.number(name)
        if has != _FOREVER and (wanted == _FOREVER or has < wanted):
            yield Difference(name, f"{wanted} or more" if wanted != _FOREVER else str(_FOREVER), str(has))
    name = "max.message.bytes"
    if name in topic.config and found.number(name) < topic.number(name):
        yield Difference(name, f"{topic.config[name]} or more", found.config.get(name, "missing"))


def _command(item: NativeObject, address: Address) -> str:
    """Return the command that creates the topic with Kafka's own tool."""
    flags = {"partitions": "--partitions", "replication.factor": "--replication-factor"}
    parts = [f"{flags[n]} {v}" if n in flags else f"--config {n}={v}" for n, v in item.attributes.items()]
    return " ".join([f"kafka-topics.sh --bootstrap-server {address.bootstrap} --create --topic {item.name}", *parts])
