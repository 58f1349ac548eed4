"""librdkafka's own mock cluster, from the library inside confluent-kafka: brokers in this process, reached over TCP."""

from __future__ import annotations

import ctypes
from typing import Any

from confluent_kafka import KafkaError

from redelivery_kafka.testing.librdkafka import librdkafka

_TEXT = 512


class MockCluster:
    """A mock cluster, until it is closed. A topic that was not made gets four partitions when a client first asks."""

    def __init__(self, brokers: int = 1) -> None:
        self._library: Any = librdkafka()
        text = ctypes.create_string_buffer(_TEXT)
        settings = self._library.rd_kafka_conf_new()
        self._library.rd_kafka_conf_set(settings, b"log_level", b"0", text, _TEXT)
        self._client = self._library.rd_kafka_new(0, settings, text, _TEXT)
        if not self._client:
            raise RuntimeError(text.value.decode())
        self._cluster = self._library.rd_kafka_mock_cluster_new(self._client, brokers)
        if not self._cluster:
            raise RuntimeError("librdkafka made no mock cluster")
        self.brokers = range(1, brokers + 1)
        self.bootstrap: str = self._library.rd_kafka_mock_cluster_bootstraps(self._cluster).decode()

    def make(self, topic: str, partitions: int) -> None:
        """Make a topic."""
        self._check(self._library.rd_kafka_mock_topic_create(self._cluster, topic.encode(), partitions, 1))

    def disown(self, topic: str, code: int = KafkaError.UNKNOWN_TOPIC_OR_PART) -> None:
        """Answer every request for a topic's metadata with an error code; 0 ends that."""
        self._library.rd_kafka_mock_topic_set_error(self._cluster, topic.encode(), code)

    def lose_leader(self, topic: str, partition: int) -> None:
        """Leave a partition without a leader, as when all its brokers are down."""
        self._check(self._library.rd_kafka_mock_partition_set_leader(self._cluster, topic.encode(), partition, -1))

    def lead(self, topic: str, partition: int) -> None:
        """Make the first broker the leader of a partition."""
        self._check(self._library.rd_kafka_mock_partition_set_leader(self._cluster, topic.encode(), partition, 1))

    def refuse(self, request: int, *codes: int) -> None:
        """Answer the next requests of a kind (its number in the protocol) with these error codes."""
        self._library.rd_kafka_mock_push_request_errors_array(
            self._cluster, request, len(codes), (ctypes.c_int * len(codes))(*codes)
        )

    def forgive(self, request: int) -> None:
        """Drop the errors that are left for requests of this kind."""
        self._library.rd_kafka_mock_clear_request_errors(self._cluster, request)

    def down(self, broker: int) -> None:
        """Cut a broker's connections and refuse new ones."""
        self._check(self._library.rd_kafka_mock_broker_set_down(self._cluster, broker))

    def up(self, broker: int) -> None:
        """Let a broker accept connections again."""
        self._check(self._library.rd_kafka_mock_broker_set_up(self._cluster, broker))

    def delay(self, broker: int, milliseconds: int) -> None:
        """Delay a broker's answers; it carries out the requests at once."""
        self._check(self._library.rd_kafka_mock_broker_set_rtt(self._cluster, broker, milliseconds))

    def close(self) -> None:
        """End it. A second call does nothing."""
        if self._cluster:
            self._library.rd_kafka_mock_cluster_destroy(self._cluster)
            self._library.rd_kafka_destroy(self._client)
            self._cluster = None

    @staticmethod
    def _check(code: int) -> None:
        if code:
            raise RuntimeError(f"librdkafka's mock cluster answered {code}")
