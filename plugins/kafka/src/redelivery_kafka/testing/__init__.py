"""Brokers for tests: a container, topics beside an explicit URL, or librdkafka's mock cluster.

It needs the extra `testing`. `reading.py` reads stored records without the plugin's code.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from confluent_kafka import KafkaError, KafkaException, Producer, libversion

from redelivery.contract.message import Message
from redelivery.kit.address import redact
from redelivery.kit.options import resolve_secrets
from redelivery_conformance.containers import Container, free_port
from redelivery_conformance.harness import CannotShow, Foreign, Harness, NotHere, Outage, Place, Runtime, RuntimeKind
from redelivery_conformance.proxy import Proxy
from redelivery_kafka.testing.cluster import Cluster
from redelivery_kafka.testing.damage import send_damaged
from redelivery_kafka.testing.gaps import ABSENT, NO_SHARE_GROUPS
from redelivery_kafka.testing.mock import MockCluster
from redelivery_kafka.testing.reading import PATIENCE

IMAGE: Final = "apache/kafka:4.4.0"
#: Seconds for a broker to come up, on a busy machine.
START: Final = 120.0
DEAD_LETTERS: Final = "-dead-letters"
#: A request's number in the protocol.
PRODUCE: Final = 0
#: The listener without credentials.
CLIENT: Final = "CLIENT"
#: The listener behind the proxy that outages command.
PROXIED: Final = "PROXIED"
SHARE_DEAD_LETTERS: Final = "dlq."
#: Seconds for which a share group's place locks a record; brokers under test take locks that short.
SHARE_LOCK: Final = 6.0
#: Longer than any test waits.
_NEVER_MS: Final = 3_600_000


class KafkaPlace(Place):
    """A new topic with one partition. Provisioning creates its dead letter topic, `letters`."""

    def __init__(self, runtime: KafkaRuntime, topic: str) -> None:
        self._runtime = runtime
        self._cluster = runtime.cluster
        self.topic = topic
        # Otherwise a rebalance would wait for the session of another test's dead member to end.
        self.group = f"redelivery.{topic}"
        self.url = f"kafka://{self._cluster.bootstrap}/{topic}?group={self.group}"
        self.letters = topic + DEAD_LETTERS
        self._closed_port = free_port()
        self.options = runtime.options
        self.patience = runtime.patience
        runtime.make(topic)

    def stored(self, destination: str | None = None) -> Sequence[Message]:
        return self._log(destination or self.topic)

    def snapshot(self) -> object:
        names = {**self._cluster.names(self.topic), **self._cluster.names(self.letters)}
        return [
            (
                name,
                partitions,
                self._runtime.config(name),
                self._log(name),
                self._cluster.reader.committed(name, self.group, share=self._runtime.share),
            )
            for name, partitions in names.items()
        ]

    def destination(self, label: str) -> str:
        name = f"{self.topic}-{label}"
        self._runtime.make(name)
        return name

    def for_several(self) -> str:
        return self.url.partition("?")[0]

    def impossible_destination(self) -> str | None:
        return "no topic can be called so"

    def unreachable(self) -> str:
        return f"kafka://127.0.0.1:{self._closed_port}/{self.topic}"

    def logins(self, secret: str) -> Iterator[Mapping[str, str]]:
        for mechanism in ("PLAIN", "SCRAM-SHA-512"):
            yield {
                **self.options,
                "kafka.security.protocol": "sasl_plaintext",
                "kafka.sasl.mechanism": mechanism,
                "kafka.sasl.username": "someone",
                "kafka.sasl.password": secret,
            }

    @property
    def outage_url(self) -> str:
        proxy = self._runtime.proxy
        return self.url if proxy is None else self.url.replace(self._cluster.bootstrap, f"127.0.0.1:{proxy.port}")

    def outage(self, kind: Outage = "refused") -> AbstractContextManager[None]:
        return self._runtime.cut_off(kind)

    def limited(self) -> str:
        """Looking is not a delivery: letters are read by offset, whatever a share group of the topic counts."""
        return self.url

    def vanish(self) -> None:
        self._runtime.vanish(self.topic)

    def alter(self) -> None:
        self._cluster.alter(self.letters, **{"retention.ms": "3600000"})

    def put_foreign(self, *, dead: bool) -> Foreign:
        producer = Producer(dict(self._cluster.settings))
        producer.produce(
            self.letters if dead else self.topic,
            b"theirs \xff",
            b"k\xff",
            headers=[("b", b"\xff\xfe"), ("a", None), ("a", b"")],
            timestamp=1_700_000_000_123,
        )
        if producer.flush(START):
            raise RuntimeError(f"the record for {self.topic} was not delivered")
        (written,) = self.foreign(dead=dead)
        return written

    def foreign(self, *, dead: bool) -> Sequence[Foreign]:
        return [
            Foreign(
                {name: [value for other, value in each.headers if other == name] for name, _ in each.headers},
                {"key": each.key, "value": each.value, "timestamp": each.timestamp_ms},
            )
            for each in self._log(self.letters if dead else self.topic)
        ]

    def damage(self) -> None:
        send_damaged(self._cluster.settings, self.topic)

    def close(self) -> None:
        self._runtime.remove(self.topic)
        self._runtime.remove(self.letters)

    def _log(self, topic: str) -> list[Message]:
        return [_message(each) for each in self._cluster.reader.left(topic, self.group, share=self._runtime.share)]


class KafkaSharePlace(KafkaPlace):
    """A new topic, and a share group that begins with its first record."""

    lease = SHARE_LOCK

    def __init__(self, runtime: KafkaRuntime, topic: str) -> None:
        super().__init__(runtime, topic)
        self.url = self.url.replace("?group=", "?share=")
        self.letters = SHARE_DEAD_LETTERS + topic
        if runtime.absent:  # nothing can be provisioned
            runtime.make(self.letters)
        else:
            lock = str(int(SHARE_LOCK * 1000))
            self._cluster.alter_group(
                self.group, **{"share.auto.offset.reset": "earliest", "share.record.lock.duration.ms": lock}
            )

    def limiting(self, deliveries: int) -> Mapping[str, str]:
        self._cluster.alter_group(self.group, **{"share.delivery.count.limit": str(deliveries)})
        return {}

    def unreachable(self) -> str:
        return f"{super().unreachable()}?share={self.group}"


class KafkaRuntime(Runtime):
    """A cluster whose topics can be made and removed."""

    def __init__(
        self,
        kind: RuntimeKind,
        cluster: Cluster,
        description: str,
        *,
        prefix: str = "",
        options: Mapping[str, str] | None = None,
        share: bool = False,
    ) -> None:
        self.kind = kind
        self.share = share
        self.cluster = cluster
        self.description = description + (", share groups" if share else "")
        if share and not cluster.has_share_groups():
            self.absent = NO_SHARE_GROUPS
        self.options = options or {}
        self.proxy: Proxy | None = None
        self.patience = 10.0
        self._stem = f"{prefix}conformance"

    def place(self) -> KafkaPlace:
        return (KafkaSharePlace if self.share else KafkaPlace)(self, self.fresh_name(self._stem))

    def make(self, topic: str) -> None:
        """Make a topic with one partition."""
        self.cluster.make(topic)

    def remove(self, prefix: str) -> None:
        """Remove the topics of a place."""
        names = self.cluster.names(prefix)
        if names:
            self.cluster.remove(*names)

    def vanish(self, topic: str) -> None:
        """Remove a topic, and wait until no broker knows it."""
        self.cluster.remove(topic)
        deadline = time.monotonic() + PATIENCE
        while topic in self.cluster.names(topic):
            if time.monotonic() > deadline:
                raise RuntimeError(f"the topic {topic} is still known")
            self.cluster.admin.poll(0.02)

    def config(self, topic: str) -> object:
        """Return the settings of a topic that are not the broker's defaults."""
        return self.cluster.config(topic)

    def outage(self) -> AbstractContextManager[None]:
        """While entered, the broker itself is down. Raises CannotShow."""
        raise CannotShow("an outage: a cluster named by a URL is not stopped")

    def cut_off(self, kind: Outage) -> AbstractContextManager[None]:
        """Cut clients off, as `Place.outage` says. Raises CannotShow."""
        if self.proxy is None:
            raise CannotShow(f"an outage, {kind}: a cluster named by a URL is not cut off")
        return self.proxy.outage(kind)

    def close(self) -> None:
        self.cluster.close()


class ContainerRuntime(KafkaRuntime):
    """One node in a container."""

    cannot_show = (
        "several brokers: replication, elections and one host of three down need a cluster",
        "power loss: a container is killed, its disk's cache is not",
    )

    def __init__(
        self,
        container: Container,
        cluster: Cluster,
        where: str,
        ports: Mapping[str, int],
        proxy: Proxy,
        *,
        share: bool = False,
    ) -> None:
        super().__init__("container", cluster, f"Kafka in {container.image}, {where}", share=share)
        self.container = container
        self.proxy: Proxy = proxy
        self.ports = ports

    @contextmanager
    def outage(self) -> Iterator[None]:
        """Kill the container, and start it again."""
        with self.container.stopped(self.cluster.answers, START):
            yield

    def close(self) -> None:
        super().close()
        self.proxy.close()
        self.container.close()


class MockRuntime(KafkaRuntime):
    """librdkafka's mock cluster."""

    cannot_show = (
        "what brokers check: sizes, names, permissions, retention; a real broker does, in a container or by URL",
        "provisioning and drift: it has no topic administration",
        "groups: one receiver works there, and a second one waits for half a minute",
    )
    absent = ABSENT

    def __init__(self, mock: MockCluster) -> None:
        description = f"librdkafka {libversion()[0]}'s mock cluster, in this process"
        # It leaves some requests unanswered: a shorter wait than for a cluster is enough.
        options = {"kafka.socket.timeout.ms": "1500"}
        super().__init__("embedded", Cluster(mock.bootstrap, {}), description, options=options)
        self.mock = mock

    def make(self, topic: str) -> None:
        for name in (topic, topic + DEAD_LETTERS):
            with suppress(RuntimeError):  # it exists
                self.mock.make(name, 1)

    def remove(self, prefix: str) -> None:  # noqa: ARG002 - it has no such request
        """Accept again what `vanish` let it refuse. It cannot remove topics; they end with the process."""
        self.mock.forgive(PRODUCE)

    def vanish(self, topic: str) -> None:
        """It keeps the topic, but refuses records for it, and answers requests for it that it does not exist."""
        self.mock.disown(topic)
        self.mock.refuse(PRODUCE, *[KafkaError.NOT_LEADER_FOR_PARTITION] * 100)

    def config(self, topic: str) -> object:  # noqa: ARG002 - it knows none
        return None

    @contextmanager
    def outage(self) -> Iterator[None]:
        """All brokers are down: connections end, and new ones are refused."""
        for broker in self.mock.brokers:
            self.mock.down(broker)
        try:
            yield
        finally:
            for broker in self.mock.brokers:
                self.mock.up(broker)

    @contextmanager
    def cut_off(self, kind: Outage) -> Iterator[None]:
        """Silent: answers are delayed for longer than any test waits, and lost at the end."""
        if kind == "refused":
            with self.outage():
                yield
            return
        if kind == "silent":
            self._answer_after(_NEVER_MS)
        else:
            self._reset()
        try:
            yield
        finally:
            if kind == "silent":
                self._answer_after(0)
                self._reset()

    def _answer_after(self, milliseconds: int) -> None:
        for broker in self.mock.brokers:
            self.mock.delay(broker, milliseconds)

    def _reset(self) -> None:
        with self.outage():
            pass

    def close(self) -> None:
        super().close()
        self.mock.close()


class KafkaHarness(Harness):
    """A container first; without a container engine, the mock cluster, which needs nothing."""

    name = "kafka"
    share = False
    #: More settings of a node in a container.
    environment: Mapping[str, str] = {}

    def starts(self) -> Mapping[RuntimeKind, Callable[[Path], Runtime]]:
        return {
            "container": lambda _: in_container(environment=self.environment, share=self.share),
            "embedded": lambda _: embedded(),
        }

    def at(self, url: str, options: Mapping[str, str], scratch: Path) -> Runtime:  # noqa: ARG002 - nothing is kept
        parts = urlsplit(url)
        mine = {name: value for name, value in options.items() if name.lower().startswith(f"{self.name}.")}
        settings = {name.partition(".")[2]: value for name, value in resolve_secrets(mine).items()}
        bootstrap = parts.netloc or settings.get("bootstrap.servers", "")
        cluster = Cluster(bootstrap, settings)
        try:
            cluster.answers()
        except KafkaException as error:
            raise NotHere(f"no Kafka at {redact(url)}: {error.args[0].str()}") from error
        prefix = parts.path.strip("/") + "-"
        return KafkaRuntime("url", cluster, f"Kafka at {bootstrap}", prefix=prefix, options=mine, share=self.share)


class KafkaAclHarness(KafkaHarness):
    """A node with an authorizer: permissions can be revoked. Without an ACL on a topic, everybody may use it."""

    environment: Mapping[str, str] = {
        "KAFKA_AUTHORIZER_CLASS_NAME": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "KAFKA_ALLOW_EVERYONE_IF_NO_ACL_FOUND": "true",
    }


class KafkaShareHarness(KafkaHarness):
    """Receiving in share groups, in a container or by URL: the mock cluster does not describe a group's settings."""

    share = True

    def starts(self) -> Mapping[RuntimeKind, Callable[[Path], Runtime]]:
        return {kind: begin for kind, begin in super().starts().items() if kind != "embedded"}


def in_container(
    listeners: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
    files: Mapping[str, bytes] | None = None,
    *,
    share: bool = False,
) -> ContainerRuntime:
    """Start a node with a listener without credentials and those that `listeners` adds (name -> protocol).

    Raises:
        NotHere
    """
    port, proxied = free_port(), free_port()
    others = {name: free_port() for name in listeners or {}}
    proxy = Proxy("127.0.0.1", proxied)
    container = Container(
        "kafka",
        IMAGE,
        bind={each: each for each in (port, proxied, *others.values())},
        environment={
            **node(
                {CLIENT: port, PROXIED: proxied, **others},
                {CLIENT: "PLAINTEXT", PROXIED: "PLAINTEXT", **(listeners or {})},
                {PROXIED: proxy.port},
            ),
            **(environment or {}),
        },
        files=files,
    )
    cluster = Cluster(f"127.0.0.1:{port}", {})
    try:
        container.wait(cluster.answers, START)
    except BaseException:
        container.close()
        raise
    return ContainerRuntime(container, cluster, f"at {cluster.bootstrap}", others, proxy, share=share)


def node(
    ports: Mapping[str, int], protocols: Mapping[str, str], advertised: Mapping[str, int] | None = None
) -> dict[str, str]:
    """Return the settings of a single node with these listeners, each on the same port of the host, or as advertised.

    The name of a listener must not contain an underscore or end in SSL: images read such names in different ways.
    """
    controller = "CONTROLLER"
    return {
        "KAFKA_NODE_ID": "1",
        "KAFKA_PROCESS_ROLES": "broker,controller",
        "KAFKA_CONTROLLER_QUORUM_VOTERS": "1@localhost:9093",
        "KAFKA_CONTROLLER_LISTENER_NAMES": controller,
        "KAFKA_LISTENERS": ",".join(f"{name}://:{port}" for name, port in {**ports, controller: 9093}.items()),
        "KAFKA_ADVERTISED_LISTENERS": ",".join(
            f"{name}://127.0.0.1:{port}" for name, port in {**ports, **(advertised or {})}.items()
        ),
        "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": ",".join(
            f"{name}:{protocol}" for name, protocol in {**protocols, controller: "PLAINTEXT"}.items()
        ),
        "KAFKA_INTER_BROKER_LISTENER_NAME": CLIENT,
        "KAFKA_AUTO_CREATE_TOPICS_ENABLE": "false",
        "KAFKA_NUM_PARTITIONS": "1",
        "KAFKA_OFFSETS_TOPIC_NUM_PARTITIONS": "1",
        "KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR": "1",
        "KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR": "1",
        "KAFKA_TRANSACTION_STATE_LOG_MIN_ISR": "1",
        "KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
        # A topic that does not keep a test's old records loses them at once, not in one of a hundred runs.
        "KAFKA_LOG_RETENTION_CHECK_INTERVAL_MS": "1000",
        "KAFKA_LOG_INITIAL_TASK_DELAY_MS": "1000",
        # Members of a share group join at a heartbeat, and statements wait for locks to end.
        "KAFKA_SHARE_COORDINATOR_STATE_TOPIC_NUM_PARTITIONS": "1",
        "KAFKA_SHARE_COORDINATOR_STATE_TOPIC_REPLICATION_FACTOR": "1",
        "KAFKA_SHARE_COORDINATOR_STATE_TOPIC_MIN_ISR": "1",
        "KAFKA_GROUP_SHARE_MIN_HEARTBEAT_INTERVAL_MS": "100",
        "KAFKA_GROUP_SHARE_HEARTBEAT_INTERVAL_MS": "200",
        "KAFKA_GROUP_SHARE_MIN_RECORD_LOCK_DURATION_MS": "1000",
        # A killed node may join again only after its old session has ended.
        "KAFKA_BROKER_SESSION_TIMEOUT_MS": "4000",
        "KAFKA_BROKER_HEARTBEAT_INTERVAL_MS": "500",
    }


def embedded() -> MockRuntime:
    """Start the mock cluster. Raises NotHere."""
    try:
        return MockRuntime(MockCluster())
    except (OSError, AttributeError, RuntimeError) as error:
        raise NotHere(f"this confluent-kafka has no mock cluster ({error}); install its wheel from PyPI") from error


def _message(found: Any) -> Message:
    headers: Any = ()
    with suppress(SystemError):  # a name is not UTF-8; asking twice would give a list with a hole in it
        headers = found.headers()
    return Message(
        value=found.value(),
        key=found.key(),
        headers=tuple(headers or ()),
        timestamp_ms=found.timestamp()[1],
    )
