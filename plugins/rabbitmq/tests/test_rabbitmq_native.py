"""What a message of another client holds beyond the fields of a message: it is written again as it was encoded."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pika
import pytest
from rabbitmq_operating import properties_of_next, queue_of

from redelivery.contract.message import Batch, Message
from redelivery.deadletters.queue import dead_letters
from redelivery_conformance.statements import Statements
from redelivery_conformance.subject import Subject
from redelivery_rabbitmq.client import field_tables
from redelivery_rabbitmq.codec import Native, decode, encode
from redelivery_rabbitmq.testing import FIELDS, PROPERTIES, reading

field_tables.install()

#: A text of AMQP 1.0 as a body section.
SECTION = b"\x00Sw\xa1\x05hello"


def encoded(headers: Mapping[str | bytes, Any] | None = None, **properties: Any) -> bytes:
    """Properties as another client encodes them: with fields that pika would not write."""
    table = b"".join(
        bytes((len(name),)) + (name if isinstance(name, bytes) else name.encode()) + value
        for name, value in (headers or {}).items()
    )
    whole = b"".join(pika.BasicProperties(**properties).encode())  # type: ignore[no-untyped-call]
    flags, at = int.from_bytes(whole[:2], "big"), 2
    for name in ("content_type", "content_encoding"):
        at += 1 + len(properties[name]) if name in properties else 0
    mode = b"" if "delivery_mode" in properties else b"\x02"
    given = struct.pack(">I", len(table)) + table if table else b""
    flags |= (1 << 13 if table else 0) | 1 << 12
    return struct.pack(">H", flags) + whole[2:at] + given + mode + whole[at:]


def read(payload: bytes, body: bytes = b"v") -> Message:
    properties = pika.BasicProperties()  # type: ignore[no-untyped-call]
    properties.decode(payload)
    return decode(properties, body)[0]


def written(message: Message, user: str | None = None) -> bytes:
    return b"".join(encode(message, user)[1].encode())


def fields_of(payload: bytes) -> dict[str, Any]:
    properties = pika.BasicProperties()  # type: ignore[no-untyped-call]
    properties.decode(payload)
    return {name: value for name, value in vars(properties).items() if value is not None}


WHOLE = {
    "everything": encoded(FIELDS, **PROPERTIES),
    "properties without headers": encoded(**PROPERTIES),
    "a content type alone": encoded(content_type="text/plain"),
    "headers in no order": encoded({"b": b"V", "a": b"V"}),
    "a timestamp in nanoseconds": encoded(timestamp=1_700_000_000_000_000_000),
    "the milliseconds of a plugin of the broker": encoded(
        {"timestamp_in_ms": b"l" + struct.pack(">q", 1_700_000_000_000)}, timestamp=1_700_000_000
    ),
    "milliseconds that disagree": encoded({"timestamp_in_ms": b"l" + struct.pack(">q", 7)}, timestamp=1_700_000_000),
    "a content type in the headers too": encoded({"content-type": b"S\0\0\0\x01x"}, content_type="text/plain"),
    "another spelling in the headers": encoded({"Content-Type": b"S\0\0\0\x01x"}, content_type="text/plain"),
    "names and an id that are not UTF-8": encoded({b"\xff": b"t\x01"}, message_id=b"\xfe"),
    "headers with names of ours": encoded({"x-redelivery-key": b"I\0\0\0\x05", "X-Death": b"S\0\0\0\x01m"}),
    "a correlation id that is not UTF-8": encoded(correlation_id=b"\xfe"),
}


@pytest.mark.parametrize("payload", WHOLE.values(), ids=WHOLE)
def test_a_message_of_another_client_is_written_as_it_was(payload: bytes) -> None:
    """Byte by byte, and in another process too."""
    message = pickle.loads(pickle.dumps(read(payload)))  # noqa: S301 - our own
    assert written(message) == payload


def test_what_the_fields_of_a_message_say_counts() -> None:
    message = read(WHOLE["everything"])
    headers = tuple(each for each in message.headers if each[0] not in {"int8", "content-type"})
    mended = replace(
        message,
        id="other",
        timestamp_ms=1_000,
        headers=(*(("int16", b"17") if name == "int16" else (name, value) for name, value in headers), ("new", b"n")),
    )
    found = fields_of(written(mended))
    assert (found["message_id"], found["timestamp"]) == ("other", 1)
    assert "content_type" not in found
    there = found["headers"]
    assert "int8" not in there
    assert (there["int16"], there["new"], there["int32"]) == ("17", "n", -2)
    assert (found["priority"], found["type"]) == (7, "order.created")


def test_a_property_that_says_how_to_read_the_body_holds_for_that_body_only() -> None:
    message = read(encoded(type="amqp-1.0", content_encoding="gzip", app_id="a"), SECTION)
    assert fields_of(written(message))["type"] == "amqp-1.0"
    found = fields_of(written(replace(message, value=b"another")))
    assert found.keys() & {"type", "content_encoding", "app_id"} == {"app_id"}


@pytest.mark.parametrize(("user", "kept"), [("guest", True), ("other", False), (None, False)])
def test_a_user_is_named_only_by_that_user(user: str | None, kept: bool) -> None:
    """The broker closes the channel of another one."""
    message = read(encoded(user_id="guest"))
    assert ("user_id" in fields_of(written(message, user))) is kept


def test_a_time_to_live_is_not_repeated_and_every_letter_is_persistent() -> None:
    message = read(encoded({"a": b"V"}, expiration="1000", delivery_mode=1))
    assert fields_of(written(message)) == {"headers": {"a": None}, "delivery_mode": 2}


def test_a_native_part_of_another_plugin_is_left_alone() -> None:
    message = Message(value=b"v", id="i", headers=(("a", b"b"),))
    assert written(replace(message, native={"priority": 7})) == written(message)


def test_messages_of_ours_have_no_native_part() -> None:
    row = Message(value=b"v", key=b"k", id="i", headers=(("b", b"1"), ("a", b"\xff")), timestamp_ms=1_700_000_000_123)
    assert read(written(row)).native is None


def test_the_decoder_and_the_independent_reader_find_every_header_whatever_names_sort_around_ours() -> None:
    """The order counts the headers of a row, not those of ours: `timestamp_in_ms` sorts between these."""
    headers = (("traceparent", b"00-1"), ("tracestate", b"v=1"), ("Trace", b"t"), ("binary", b"\xfe\0"))
    row = Message(value=b"v", key=b"\xff", id="i", headers=headers, timestamp_ms=1_700_000_000_123)
    payload = written(row)
    properties = pika.BasicProperties()  # type: ignore[no-untyped-call]
    properties.decode(payload)
    assert read(payload) == row
    assert reading._message(properties, b"v") == row


def test_a_native_part_counts_in_what_is_in_flight() -> None:
    message = read(encoded({"table": b"A" + struct.pack(">I", 50_000) + b"t\x01" * 25_000}))
    assert isinstance(message.native, Native)
    assert message.nbytes > 100_000
    assert Batch.of([message]).nbytes == message.nbytes


class TestOtherProtocols(Statements):
    """Bodies that the broker translates from AMQP 1.0."""

    broker = "rabbitmq"

    def test_a_body_of_amqp_1_0_is_redriven_as_such(self, subject: Subject) -> None:
        """Its type says that the body holds sections; without it every reader gets those as bytes."""
        subject.provision()
        properties = pika.BasicProperties(type="amqp-1.0", message_id="m", delivery_mode=2)  # type: ignore[no-untyped-call]
        place = f"{queue_of(subject)}-dead-letters"
        subject.place.runtime.cluster.put(place, SECTION, properties)  # type: ignore[attr-defined]
        options = subject.place.options
        with dead_letters(subject.place.url, options=options, connection_factory=subject.connected) as letters:
            assert letters.redrive().removed == 1
        (there,) = subject.place.stored()
        assert there.value == SECTION
        found = properties_of_next(subject, queue_of(subject))
        assert (found.type, found.message_id) == ("amqp-1.0", "m")
