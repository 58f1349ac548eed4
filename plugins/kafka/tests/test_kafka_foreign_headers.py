"""Golden vectors: the error context of dead letters of Kafka's share groups, of Spring and of Kafka Streams is read.

Written as these programs write them: share groups as seen on Kafka 4.4.0; Spring for Apache Kafka 3.3 and Kafka Streams
4.2 by their sources.
"""

from __future__ import annotations

import pytest

from redelivery.codes import Code
from redelivery.contract.context import ErrorContext
from redelivery.contract.message import Headers, Message
from redelivery.formats import dialects
from redelivery.registry import installed

SPRING: Headers = (
    ("mine", b"1"),
    ("kafka_dlt-original-topic", b"orders"),
    ("kafka_dlt-original-partition", (2).to_bytes(4, "big")),
    ("kafka_dlt-original-offset", (1 << 33).to_bytes(8, "big")),
    ("kafka_dlt-original-timestamp", (1_700_000_000_000).to_bytes(8, "big")),
    ("kafka_dlt-original-timestamp-type", b"CreateTime"),
    ("kafka_dlt-original-consumer-group", b"billing"),
    ("kafka_dlt-exception-fqcn", b"org.springframework.kafka.listener.ListenerExecutionFailedException"),
    ("kafka_dlt-exception-cause-fqcn", b"org.example.NoSuchAirport"),
    ("kafka_dlt-exception-message", "no such airport: größe".encode()),
    ("kafka_dlt-exception-stacktrace", b"org.springframework...\n\tat ..."),
)
OF_SPRING = ErrorContext(
    reason="no such airport: größe",
    exception="org.example.NoSuchAirport",
    stacktrace="org.springframework...\n\tat ...",
    source_topic="orders",
    source_partition=2,
    source_offset=1 << 33,
    source_timestamp_type="CREATE_TIME",
    target="orders",
    subscriber="billing",
    extra={"exception-fqcn": "org.springframework.kafka.listener.ListenerExecutionFailedException"},
)
#: Of a retry topic of Spring's, whose names lack `dlt-`.
RETRIED: Headers = (
    ("kafka_original-topic", b"orders"),
    ("kafka_original-partition", (0).to_bytes(4, "big")),
    ("kafka_original-offset", (7).to_bytes(8, "big")),
    ("kafka_exception-fqcn", b"org.example.NoSuchAirport"),
    ("kafka_exception-message", b"no such airport"),
)
STREAMS: Headers = (
    ("__streams.errors.exception", b"org.apache.kafka.common.errors.SerializationException: Size of data is 3"),
    ("__streams.errors.message", b"Size of data is 3"),
    ("__streams.errors.stacktrace", b"org.apache...\n\tat ..."),
    ("__streams.errors.topic", b"orders"),
    ("__streams.errors.partition", b"2"),
    ("__streams.errors.offset", b"17"),
)
OF_STREAMS = ErrorContext(
    reason="Size of data is 3",
    exception="org.apache.kafka.common.errors.SerializationException",
    stacktrace="org.apache...\n\tat ...",
    source_topic="orders",
    source_partition=2,
    source_offset=17,
    target="orders",
)
#: With a header that the broker does not write: another program has copied the letter.
COPIED: Headers = (
    ("__dlq.errors.topic", b"orders"),
    ("__dlq.errors.partition", b"2"),
    ("__dlq.errors.offset", b"17"),
    ("__dlq.errors.group", b"billing"),
    ("__dlq.errors.delivery.count", b"5"),
    ("__dlq.errors.message", b"Offset delivery count exceeded the threshold."),
    ("mine", b"1"),
)
OF_SHARE_GROUPS = ErrorContext(
    reason="Offset delivery count exceeded the threshold.",
    kind="delivery-limit",
    code=Code.DELIVERY_LIMIT,
    broker="kafka",
    attempts=5,
    source_topic="orders",
    source_partition=2,
    source_offset=17,
    target="orders",
    subscriber="billing",
)


@pytest.mark.parametrize(
    ("headers", "context"),
    [
        (SPRING, OF_SPRING),
        (
            RETRIED,
            ErrorContext(
                reason="no such airport",
                exception="org.example.NoSuchAirport",
                source_topic="orders",
                source_partition=0,
                source_offset=7,
                target="orders",
            ),
        ),
        ((*RETRIED, *SPRING), OF_SPRING),
        (SPRING[7:8], ErrorContext(exception="org.springframework.kafka.listener.ListenerExecutionFailedException")),
        (STREAMS, OF_STREAMS),
        # an exception without a message: the client writes no value for it
        (
            (("__streams.errors.exception", b"java.lang.NullPointerException"), ("__streams.errors.message", None)),
            ErrorContext(reason="java.lang.NullPointerException", exception="java.lang.NullPointerException"),
        ),
        ((("__streams.errors.partition", b"9" * 5000), ("__streams.errors.topic", b"")), ErrorContext(source_topic="")),
        (COPIED, OF_SHARE_GROUPS),
        (COPIED[:2], None),
    ],
)
def test_the_headers_of_other_writers_are_read_and_stay(headers: Headers, context: ErrorContext | None) -> None:
    installed()
    letter = Message(value=b"v", headers=headers)
    assert dialects.read(letter) == context
    assert dialects.strip(letter) == letter
