"""A running cluster as the harness's own clients see it: its topics, their settings, and what they hold."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # the client's own way to name them
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from redelivery_kafka.testing.reading import PATIENCE, Reader


class Cluster:
    """A running cluster, as the clients of this harness see it."""

    def __init__(self, bootstrap: str, settings: Mapping[str, str]) -> None:
        self.bootstrap = bootstrap
        self.settings: dict[str, Any] = {**settings, "bootstrap.servers": bootstrap, "log_level": "0"}
        self.reader = Reader(self.settings)
        self._admin: AdminClient | None = None

    @property
    def admin(self) -> AdminClient:
        """The admin client, made when first used."""
        if self._admin is None:
            self._admin = AdminClient(self.settings)
        return self._admin

    def answers(self) -> bool:
        """Return whether topics can be created and groups described."""
        client = AdminClient(self.settings)
        brokers = client.list_topics(timeout=2).brokers
        return bool(brokers) and client.describe_cluster(request_timeout=2).result().controller is not None

    def make(self, topic: str, partitions: int = 1, **config: str) -> None:
        """Make a topic that keeps records whose time is years ago, and wait until it can be written to."""
        new = NewTopic(topic, partitions, 1, config={"retention.ms": "-1", **config})
        with suppress_codes(KafkaError.TOPIC_ALREADY_EXISTS):
            self.admin.create_topics([new], request_timeout=PATIENCE)[topic].result()
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            found = self.admin.list_topics(topic, timeout=PATIENCE).topics[topic]
            if found.error is None and all(each.leader >= 0 for each in found.partitions.values()):
                return
            self.admin.poll(0.02)
        raise RuntimeError(f"the topic {topic} did not come up")

    def remove(self, *topics: str) -> None:
        """Remove those of these topics that exist."""
        for each in self.admin.delete_topics(list(topics), request_timeout=PATIENCE).values():
            with suppress_codes(KafkaError.UNKNOWN_TOPIC_OR_PART):
                each.result()

    def names(self, prefix: str) -> dict[str, int]:
        """Return the topics with this prefix, and how many partitions each has."""
        found = self.admin.list_topics(timeout=PATIENCE).topics
        return {name: len(each.partitions) for name, each in sorted(found.items()) if name.startswith(prefix)}

    def config(self, topic: str) -> dict[str, str | None]:
        """Return the settings of a topic that are not the broker's defaults."""
        resource = ConfigResource(ResourceType.TOPIC, topic)
        found: Future[Any] = self.admin.describe_configs([resource], request_timeout=PATIENCE)[resource]
        return {name: each.value for name, each in found.result().items() if not each.is_default}

    def alter(self, topic: str, **config: str) -> None:
        """Set some settings of a topic."""
        self._alter(ResourceType.TOPIC, topic, config)

    def alter_group(self, group: str, **config: str) -> None:
        """Set some settings of a share group."""
        self._alter(ResourceType.GROUP, group, config)

    def has_share_groups(self) -> bool:
        """Return whether the brokers have share groups with dead letters (Kafka 4.4)."""
        resource = ConfigResource(ResourceType.GROUP, "none")
        found: Future[Any] = self.admin.describe_configs([resource], request_timeout=PATIENCE)[resource]
        return "errors.deadletterqueue.topic.name" in found.result()

    def _alter(self, kind: ResourceType, name: str, config: Mapping[str, str]) -> None:
        entries = [
            ConfigEntry(each, value, incremental_operation=AlterConfigOpType.SET) for each, value in config.items()
        ]
        resource = ConfigResource(kind, name, incremental_configs=entries)
        self.admin.incremental_alter_configs([resource], request_timeout=PATIENCE)[resource].result()

    def close(self) -> None:
        """Close its clients."""
        self.reader.close()


@contextmanager
def suppress_codes(*codes: int) -> Iterator[None]:
    """Ignore these error codes of the broker."""
    try:
        yield
    except KafkaException as error:
        if error.args[0].code() not in codes:
            raise
