"""A message as Service Bus carries it comes back as it was, through the SDK's own bytes; too large is refused."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage
from hypothesis import given
from hypothesis import strategies as st

from redelivery.contract.message import Message
from redelivery.errors import Permanent
from redelivery_servicebus.client.resend import copy_of
from redelivery_servicebus.codec import (
    HEADERS_BYTES,
    PACKED,
    changed_properties,
    decode,
    encode,
    letter_in_place,
    outgoing,
)

MOST = 262_144
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
NAMES = TEXT | st.sampled_from([PACKED, "DeadLetterReason", "content-type", "n"])
VALUES = st.none() | st.binary(max_size=30) | TEXT.map(str.encode)
MESSAGES = st.builds(
    Message,
    value=st.none() | st.binary(max_size=50),
    key=st.none() | st.binary(max_size=20) | TEXT.map(str.encode),
    headers=st.lists(st.tuples(NAMES, VALUES), max_size=6).map(tuple),
    id=st.none() | TEXT,
    timestamp_ms=st.none() | st.integers(0, 1 << 52),
)


def received(message: ServiceBusMessage | AmqpAnnotatedMessage) -> ServiceBusReceivedMessage:
    """As it comes back: encoded and decoded by the SDK, as it does with what it sends and receives."""
    from azure.servicebus._pyamqp._encode import encode_payload  # noqa: PLC0415 - only here
    from azure.servicebus._transport._pyamqp_transport import PyamqpTransport  # noqa: PLC0415 - only here

    annotated = message.raw_amqp_message if isinstance(message, ServiceBusMessage) else message
    encoded = bytes(encode_payload(bytearray(), PyamqpTransport.to_outgoing_amqp_message(annotated)))
    return ServiceBusReceivedMessage.from_bytes(encoded)


@given(MESSAGES)
def test_whatever_is_taken_comes_back_as_it_was(message: Message) -> None:
    decoded = decode(received(outgoing(encode(message, MOST))))
    assert decoded.fault is None
    assert decoded.message == message
    assert decoded.attempt == 0


@given(MESSAGES, MESSAGES)
def test_a_letters_properties_make_its_message_into_it(message: Message, letter: Message) -> None:
    """As Service Bus does: it sets properties where they lie, and removes none."""
    raw = received(outgoing(encode(message, MOST)))
    properties = changed_properties(encode(letter, MOST), raw)
    sent = outgoing(encode(message, MOST))
    merged: dict[Any, Any] = {**(sent.application_properties or {}), **properties}
    there = ServiceBusMessage(b"".join(sent.raw_amqp_message.body), application_properties=merged)
    there.message_id = sent.message_id
    found = decode(received(there)).message
    assert (found.key, found.headers, found.id, found.timestamp_ms) == (
        letter.key,
        letter.headers,
        letter.id,
        letter.timestamp_ms,
    )


@given(MESSAGES, st.integers(1, 9))
def test_a_copy_is_the_message_with_its_attempts_under_an_id_of_its_own(message: Message, attempt: int) -> None:
    raw = received(outgoing(encode(message, MOST)))
    copy = received(copy_of(raw, attempt))
    decoded = decode(copy)
    assert decoded.message == message
    assert decoded.attempt == attempt
    assert copy.message_id != raw.message_id
    again = decode(received(copy_of(copy, attempt + 1)))
    assert (again.message, again.attempt) == (message, attempt + 1)


def test_text_is_readable_by_others_and_content_type_is_the_native_one() -> None:
    headers = (("cloudEvents_type", b"order"), ("content-type", b"application/json"), ("raw", b"\xff"))
    found = outgoing(encode(Message(value=b"{}", headers=headers, id="i-1"), MOST))
    assert found.message_id == "i-1"
    assert found.content_type == "application/json"
    assert (found.application_properties or {})["cloudEvents_type"] == "order"
    assert "raw" not in (found.application_properties or {})


def test_a_message_of_another_maker_is_read_as_far_as_it_goes() -> None:
    annotated = AmqpAnnotatedMessage(
        data_body=[b"two ", b"sections"],
        application_properties={"n": 42, "ok": True, "ratio": 0.5, "text": "größe"},
        properties={"message_id": "theirs", "content_type": "text/plain"},
    )
    message = decode(received(annotated)).message
    assert message.value == b"two sections"
    assert message.id == "theirs"
    assert dict(message.headers) == {
        "n": b"42",
        "ok": b"true",
        "ratio": b"0.5",
        "text": "größe".encode(),
        "content-type": b"text/plain",
    }


def test_a_body_that_is_no_bytes_is_told_and_a_text_is_read() -> None:
    assert decode(received(AmqpAnnotatedMessage(value_body="text"))).message.value == b"text"
    assert decode(received(AmqpAnnotatedMessage(sequence_body=[[1, 2]]))).fault
    assert decode(received(AmqpAnnotatedMessage(value_body={"a": 1}))).fault


def test_a_letter_has_no_time_to_live_and_a_copy_has_that_of_its_message() -> None:
    """The sink would discard the letter, when the message that it is made of is gone."""
    raw = received(ServiceBusMessage(b"v", time_to_live=timedelta(seconds=30)))
    letter = replace(decode(raw).message, headers=(("redelivery-letter", b"{}"),))
    assert outgoing(encode(letter, MOST)).time_to_live is None
    assert copy_of(raw, 1).time_to_live == timedelta(seconds=30)


@pytest.mark.parametrize("theirs", ["{}", '{"v":2}', "{oops", '{"id":"i","v":2}'])
def test_a_property_of_our_name_is_sent_again_as_it_was(theirs: str) -> None:
    raw = received(ServiceBusMessage(b"v", message_id="m", application_properties={PACKED: theirs}))
    found = decode(raw)
    assert (found.fault is None) == (theirs in {"{}", '{"v":2}'})
    again = outgoing(encode(found.message, MOST))
    assert (again.message_id, again.application_properties) == ("m", {PACKED: theirs})
    letter = decode(received(outgoing(encode(found.message, MOST, attempt=2))))
    assert (letter.attempt, letter.fault) == (2, None)
    assert outgoing(encode(letter.message, MOST)).application_properties == {PACKED: theirs}
    if found.fault is None:  # else it is not retried
        copy = decode(received(copy_of(raw, 3)))
        assert (copy.attempt, copy.message.id, copy.fault) == (3, "m", None)
        assert (outgoing(encode(copy.message, MOST)).application_properties or {})[PACKED] == theirs


DAMAGED = ["{oops", "[]", "1", '{"key": {"base64": "?"}}', '{"headers": [[1]]}', '{"gone": 5}', '{"gone": [[1]]}']


@pytest.mark.parametrize("text", [*DAMAGED, pytest.param("[" * 20_000, id="deep")])
def test_a_damaged_property_of_ours_is_told(text: str) -> None:
    message = ServiceBusMessage(b"v", application_properties={PACKED: text})
    found = decode(received(message))
    assert found.fault is not None
    assert PACKED in found.fault
    assert found.message.value == b"v"


@pytest.mark.parametrize(
    ("there", "context", "description", "kept"),
    [
        (50_000, 100, 100, ("description", "context")),
        (50_000, 15_000, 100, ("description",)),
        (50_000, 12_000, 4_000, ("description",)),
        (64_000, 100, 4_000, ()),
    ],
)
def test_what_does_not_fit_beside_a_message_is_left_out_of_its_letter(
    there: int, context: int, description: int, kept: tuple[str, ...]
) -> None:
    """The context first, then the description; the reason never."""
    raw = received(
        ServiceBusMessage(b"v", application_properties={"a": "x" * (there // 2), "b": "x" * (there - there // 2)})
    )
    letter = encode(Message(value=b"v", headers=(("context", b"c" * context),)), None)
    reason, said, properties = letter_in_place(letter, raw, "r" * 500, "d" * description)
    assert reason == "r" * 500
    assert bool(said) == ("description" in kept)
    assert ("context" in properties) == ("context" in kept)


@pytest.mark.parametrize(
    "message",
    [
        Message(value=bytes(MOST)),
        Message(value=b"v", id="i" * 129),
        Message(value=b"v", headers=(("h", b"x" * (HEADERS_BYTES + 1)),)),
        Message(value=b"v", headers=tuple((f"h{at}", b"x" * 1000) for at in range(30))),
        Message(value=b"v", key=b"k" * 40_000),
    ],
)
def test_what_does_not_fit_is_refused(message: Message) -> None:
    with pytest.raises(Permanent, match="cannot be sent"):
        encode(message, MOST)
