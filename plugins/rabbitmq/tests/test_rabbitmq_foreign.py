"""Messages of other clients that we would not publish: they are received, delayed and dead-lettered all the same."""

from __future__ import annotations

import struct
from datetime import timedelta
from typing import Any

import pika
import pytest
from rabbitmq_operating import broker_version, properties_of_next, queue_of, raw

from redelivery.codes import Code
from redelivery.contract.broker import Accept, Retry, Terminate
from redelivery.contract.context import ErrorContext
from redelivery.contract.message import Message
from redelivery.errors import Permanent
from redelivery.formats.dialects import attach, read
from redelivery_conformance.statements import Statements
from redelivery_conformance.subject import NotApplicable, Subject
from redelivery_conformance.taking import Taker, values
from redelivery_rabbitmq.address import Address
from redelivery_rabbitmq.client.renewal import counts_looks
from redelivery_rabbitmq.codec import EncodedProperties, decode, encode

SOON = timedelta(milliseconds=20)


def put(subject: Subject, body: bytes, properties: pika.BasicProperties) -> None:
    """Put a message into the place's queue, as another client does."""
    subject.place.runtime.cluster.put(queue_of(subject), body, properties)  # type: ignore[attr-defined]


def table(name: str, kind: bytes, payload: bytes) -> EncodedProperties:
    """Properties with one header, which pika itself would not write."""
    field = bytes((len(name),)) + name.encode() + kind + payload
    return EncodedProperties(struct.pack(">HI", 1 << 13 | 1 << 12, len(field)) + field + b"\x02")


def nested(kind: str, depth: int) -> bytes:
    """The payload of a table, with tables or arrays nested so deep in it."""
    payload = struct.pack(">I", 0)
    for _ in range(depth):
        value = b"F" + payload
        inner = b"\x01a" + (value if kind == "table" else b"A" + struct.pack(">I", len(value)) + value)
        payload = struct.pack(">I", len(inner)) + inner
    return payload


def dead_lettered(subject: Subject, taker: Taker, reason: str = "Terminated") -> pika.BasicProperties:
    """Take one message and dead-letter it as core does; return its properties in the dead letter queue."""
    received = taker.one()
    context = ErrorContext(reason="no", kind="terminated")
    limits = subject.broker.capabilities.limits
    letter = attach(received.message, context, dialect="json", limits=limits, prefix=None)
    taker.settle(Terminate(letter, reason, "no good"), received)
    return properties_of_next(subject, f"{queue_of(subject)}-dead-letters")


REFUSED = {
    "headers over our bound": {"headers": {"h": "x" * 100_000}},
    "a timestamp in nanoseconds": {"timestamp": 1_700_000_000_000_000_000},
    "a key that is a number": {"headers": {"x-redelivery-key": 5}},
    "a null header with a value": {"headers": {"x-redelivery-null": "no"}},
    "a header of the broker's, otherwise written": {"headers": {"X-Death": "mine"}},
}


class TestDeadLettering(Statements):
    """No message blocks its queue forever."""

    broker = "rabbitmq"

    @pytest.mark.parametrize("name", REFUSED)
    def test_what_we_would_not_write_is_dead_lettered_with_a_reason(self, subject: Subject, name: str) -> None:
        subject.provision()
        given: dict[str, Any] = REFUSED[name]
        put(subject, b"v", pika.BasicProperties(delivery_mode=2, message_id="m", correlation_id="c", **given))
        properties = dead_lettered(subject, Taker(subject))
        assert (properties.message_id, properties.correlation_id) == ("m", "c")
        assert properties.timestamp == given.get("timestamp")
        found = properties.headers or {}
        assert {each: found[each] for each in given.get("headers", {})} == given.get("headers", {})
        context = read(decode(properties, b"v")[0])
        assert context is not None
        assert context.kind == "terminated"
        Taker(subject).nothing()

    def test_a_reason_that_does_not_fit_is_left_out_and_that_is_logged(
        self, subject: Subject, caplog: pytest.LogCaptureFixture
    ) -> None:
        subject.provision()
        headers = {"h": "x" * 130_900}
        put(subject, b"v", pika.BasicProperties(headers=headers, delivery_mode=2))
        with caplog.at_level("WARNING", "redelivery.rabbitmq"):
            properties = dead_lettered(subject, Taker(subject))
        assert {"h": headers["h"]} == {name: value for name, value in (properties.headers or {}).items() if name == "h"}
        assert "without its reason" in caplog.text

    def test_headers_that_no_frame_takes_are_permanent_and_the_connection_stays(self, subject: Subject) -> None:
        """A broker that is sent a larger frame than was agreed on closes the connection."""
        subject.provision()
        put(subject, b"v", pika.BasicProperties(headers={"h": "x" * 131_020}, delivery_mode=2))
        taker = Taker(subject)
        received = taker.one()
        (answer,) = taker.answers((received, Retry(SOON)))
        assert isinstance(answer, Permanent)
        assert answer.code is Code.TOO_LARGE
        taker.settle(Accept(), received)

    @pytest.mark.parametrize("kind", ["table", "array"])
    def test_tables_nested_deep_are_undecodable_and_dead_lettered_whole(self, subject: Subject, kind: str) -> None:
        """pika's decoder overflowed within its loop: it ended every consumer, and hid the dead letter queue."""
        subject.provision()
        payload = nested(kind, 400)
        put(subject, b"v", table("deep", b"F", payload))
        put(subject, b"next", pika.BasicProperties(delivery_mode=2))
        taker = Taker(subject)
        deep, behind = taker.take(2)
        assert "nested more than 32 deep" in (deep.undecodable or "")
        assert behind.message.value == b"next"
        taker.settle(Retry(), deep)
        taker.settle(Accept(), behind)
        again = taker.one()
        taker.settle(Terminate(again.message, "Undecodable"), again)
        with subject.broker.dead_letters() as letters:
            (letter,) = letters.browse()
        assert letter.message.value == b"v"
        assert letter.message.headers == (("deep", b"F" + payload),)

    @pytest.mark.parametrize("order", [5, "9" * 5_000, "0,0", "x", b"\xff"], ids=lambda order: str(order)[:9])
    def test_an_order_of_headers_that_is_none_is_left_out(self, subject: Subject, order: object) -> None:
        subject.provision()
        put(subject, b"v", pika.BasicProperties(headers={"x-redelivery-order": order, "a": "b"}, delivery_mode=2))
        taker = Taker(subject)
        received = taker.one()
        assert received.message == Message(value=b"v", headers=(("a", b"b"),))
        taker.settle(Terminate(received.message, "why"), received)


class TestCopies(Statements):
    """`CC` and `BCC` say where a message is published to besides."""

    broker = "rabbitmq"

    def test_neither_a_delayed_retry_nor_a_letter_sends_copies_again(self, subject: Subject) -> None:
        subject.provision()
        other = subject.place.destination("other")
        put(subject, b"v", pika.BasicProperties(headers={"CC": [other], "a": "b"}, delivery_mode=2))
        taker = Taker(subject)
        received = taker.one()
        assert received.message.headers == (("a", b"b"),), "the queues that it was published to are not part of it"
        taker.settle(Retry(SOON), received)
        again = taker.one()
        assert again.message == received.message
        taker.settle(Terminate(again.message, "why"), again)
        assert len(subject.browse(direct=False)) == 1
        with raw(subject) as channel:
            assert channel.queue_declare(other, passive=True).method.message_count == 1

    def test_many_looks_send_no_copies_and_lose_not_who_got_them(self, subject: Subject) -> None:
        other = subject.place.destination("other")
        url = subject.place.limited()
        if url is None:
            raise NotApplicable("without a limit of deliveries no letter is written again")
        queue = Address.parse(url).queue
        properties = pika.BasicProperties(headers={"CC": [other], "a": "b"}, delivery_mode=2)
        subject.place.runtime.cluster.put(queue, b"v", properties)  # type: ignore[attr-defined]
        with subject.connect(url) as broker:
            for _ in range(25):
                with broker.dead_letters(direct=True) as letters:
                    (letter,) = letters.browse()
                assert letter.message.headers == (("a", b"b"),)
        found = properties_of_next(subject, queue).headers or {}
        assert found["x-redelivery-cc" if counts_looks(broker_version(subject)) else "CC"] == [other]
        with raw(subject) as channel:
            assert channel.queue_declare(other, passive=True).method.message_count == 1

    def test_names_that_only_look_alike_are_headers_like_others(self, subject: Subject) -> None:
        message = Message(value=b"v", headers=(("Bcc", b"2"), ("cc", b"1")))
        subject.deliver(message)
        assert Taker(subject).one().message == message


@pytest.mark.parametrize("name", ["CC", "BCC"])
def test_a_row_cannot_name_who_gets_copies(name: str) -> None:
    with pytest.raises(Permanent, match=name):
        encode(Message(value=b"v", headers=((name, b"q"),)))


class TestTimesThatAreNone(Statements):
    """pika's own decoder raises at such a header, and takes the connection along."""

    broker = "rabbitmq"

    @pytest.mark.parametrize("number", [1_700_000_000_000, -1, 1 << 62], ids=["milliseconds", "before 1970", "never"])
    def test_a_header_with_such_a_time_is_read_as_a_number_waits_and_is_looked_at(
        self, subject: Subject, number: int
    ) -> None:
        subject.provision()
        properties = table("t", b"T", struct.pack(">q", number))
        put(subject, b"before", pika.BasicProperties(delivery_mode=2))
        put(subject, b"v", properties)
        put(subject, b"behind", pika.BasicProperties(delivery_mode=2))
        taker = Taker(subject)
        _, received, _ = taken = taker.take(3)
        assert values(taken) == [b"before", b"v", b"behind"]
        assert received.message.headers == (("t", b"%d" % number),)
        taker.settle(Accept(), *(each for each in taken if each is not received))
        taker.settle(Retry(SOON), received)
        again = taker.one()
        assert again.message == received.message
        taker.settle(Terminate(again.message, "why"), again)
        place = subject.connect(subject.broker.native_sink())
        subject.place.runtime.cluster.put(f"{queue_of(subject)}-dead-letters", b"w", properties)  # type: ignore[attr-defined]
        for _ in range(2):
            with place.dead_letters(direct=True) as letters:
                found = [(letter.position, letter.message.value) for letter in letters.browse()]
            assert [value for _, value in found] == [b"v", b"w"]
        with place.dead_letters(direct=True) as letters:
            assert letters.remove([position for position, _ in found]) == 2

    @pytest.mark.parametrize(("kind", "form"), [(b"d", ">d"), (b"f", ">f")], ids=["double", "float"])
    def test_a_fraction_stays_one(self, subject: Subject, kind: bytes, form: str) -> None:
        subject.provision()
        put(subject, b"v", table("f", kind, struct.pack(form, 1.75)))
        taker = Taker(subject)
        for _ in range(2):
            received = taker.one()
            assert received.message.headers == (("f", b"1.75"),)
            taker.settle(Retry(SOON), received)
        properties = properties_of_next(subject, queue_of(subject))
        assert (properties.headers or {})["f"] == 1.75
