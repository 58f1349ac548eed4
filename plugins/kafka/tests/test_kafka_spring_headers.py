"""The error context of dead letters of Spring's applications is read."""

from redelivery.contract.context import ErrorContext
from redelivery.contract.message import Message
from redelivery.formats import dialects


def test_springs_headers_are_read():
    letter = Message(
        value=b"v",
        headers=(
            ("mine", b"1"),
            ("kafka_dlt-exception-fqcn", b"org.example.NoSuchAirport"),
            ("kafka_dlt-exception-message", "no such airport: größe".encode()),
            ("kafka_dlt-original-topic", b"orders"),
            ("kafka_dlt-original-partition", (2).to_bytes(4, "big")),
            ("kafka_dlt-original-offset", (1 << 33).to_bytes(8, "big")),
            ("kafka_dlt-original-consumer-group", b"billing"),
        ),
    )
    assert dialects.read(letter) == ErrorContext(
        reason="no such airport: größe",
        exception="org.example.NoSuchAirport",
        source_topic="orders",
        source_partition=2,
        source_offset=1 << 33,
        subscriber="billing",
    )
    assert dialects.strip(letter) == letter
