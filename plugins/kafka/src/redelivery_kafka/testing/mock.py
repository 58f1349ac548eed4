"""librdkafka's own mock cluster, by the library that confluent-kafka brings: brokers in this process, on TCP.

This file must not know the suite.
"""

from __future__ import annotations

import ctypes
from typing import Any

import confluent_kafka.cimpl
from confluent_kafka import KafkaError

_TEXT = 512


class MockCluster:
    """A mock cluster, until it is closed. Topics that it is not told of get four partitions when first asked about."""

    def __init__(self, brokers: int = 1) -> None:
        self._library: Any = library()
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
        """Answer whoever asks for a topic with an error: there is none. With the code 0 it is there again."""
        self._library.rd_kafka_mock_topic_set_error(self._cluster, topic.encode(), code)

    def lose_leader(self, topic: str, partition: int) -> None:
        """Let a partition have no leader, as where all its brokers are down."""
        self._check(self._library.rd_kafka_mock_partition_set_leader(self._cluster, topic.encode(), partition, -1))

    def lead(self, topic: str, partition: int) -> None:
        """Let the first broker be its leader."""
        self._check(self._library.rd_kafka_mock_partition_set_leader(self._cluster, topic.encode(), partition, 1))

    def refuse(self, request: int, *codes: int) -> None:
        """Let the next requests of a kind, by its number in the protocol, be answered with these errors."""
        self._library.rd_kafka_mock_push_request_errors_array(
            self._cluster, request, len(codes), (ctypes.c_int * len(codes))(*codes)
        )

    def forgive(self, request: int) -> None:
        """Answer requests of this kind as they deserve again."""
        self._library.rd_kafka_mock_clear_request_errors(self._cluster, request)

    def down(self, broker: int) -> None:
        """Cut a broker's connections and refuse new ones."""
        self._check(self._library.rd_kafka_mock_broker_set_down(self._cluster, broker))

    def up(self, broker: int) -> None:
        """Let it be reached again."""
        self._check(self._library.rd_kafka_mock_broker_set_up(self._cluster, broker))

    def close(self) -> None:
        """End it; once."""
        if self._cluster:
            self._library.rd_kafka_mock_cluster_destroy(self._cluster)
            self._library.rd_kafka_destroy(self._client)
            self._cluster = None

    @staticmethod
    def _check(code: int) -> None:
        if code:
            raise RuntimeError(f"librdkafka's mock cluster answered {code}")


def library() -> Any:
    """The loaded librdkafka. Raises OSError, AttributeError where the client was not built so that it can be had."""
    found = ctypes.CDLL(confluent_kafka.cimpl.__file__)
    pointer, text = ctypes.c_void_p, ctypes.c_char_p
    for name, result, arguments in (
        ("conf_new", pointer, ()),
        ("conf_set", ctypes.c_int, (pointer, text, text, text, ctypes.c_size_t)),
        ("new", pointer, (ctypes.c_int, pointer, text, ctypes.c_size_t)),
        ("destroy", None, (pointer,)),
        ("mock_cluster_new", pointer, (pointer, ctypes.c_int)),
        ("mock_cluster_destroy", None, (pointer,)),
        ("mock_cluster_bootstraps", text, (pointer,)),
        ("mock_topic_create", ctypes.c_int, (pointer, text, ctypes.c_int, ctypes.c_int)),
        ("mock_topic_set_error", None, (pointer, text, ctypes.c_int)),
        ("mock_partition_set_leader", ctypes.c_int, (pointer, text, ctypes.c_int32, ctypes.c_int32)),
        (
            "mock_push_request_errors_array",
            None,
            (pointer, ctypes.c_int16, ctypes.c_size_t, ctypes.POINTER(ctypes.c_int)),
        ),
        ("mock_clear_request_errors", None, (pointer, ctypes.c_int16)),
        ("mock_broker_set_down", ctypes.c_int, (pointer, ctypes.c_int32)),
        ("mock_broker_set_up", ctypes.c_int, (pointer, ctypes.c_int32)),
    ):
        function = getattr(found, f"rd_kafka_{name}")
        function.restype = result
        function.argtypes = arguments
    return found
