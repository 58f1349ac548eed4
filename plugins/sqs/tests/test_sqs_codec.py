"""A message as SQS carries it, and back."""

import base64
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redelivery.contract.message import Message
from redelivery.errors import Permanent
from redelivery_sqs.client.limits import binary_limit
from redelivery_sqs.codec import NATIVE_HEADERS, PACKED, TRANSFER, decode, encode, fifo_fields
from redelivery_sqs.testing import reading

MOST = 1 << 20
TAKEN = re.compile("[\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]+")

values = st.none() | st.binary(max_size=50) | st.text(max_size=50).map(lambda text: text.encode("utf-8", "replace"))
names = st.text("abAB.-_\0é ", max_size=5) | st.sampled_from([PACKED, TRANSFER, "AWS.x", "n", "content-type"])
messages = st.builds(
    Message,
    value=values,
    key=st.none() | st.binary(max_size=10),
    headers=st.lists(st.tuples(names, st.none() | st.binary(max_size=10) | st.just(b"text")), max_size=14).map(tuple),
    id=st.none() | st.text(max_size=10),
    timestamp_ms=st.none() | st.integers(0, 1 << 60),
)


def received(message: Message) -> dict[str, object]:
    encoded = encode(message, MOST)
    return {"Body": encoded.body, "MessageAttributes": encoded.attributes}


@given(messages)
def test_what_is_encoded_is_what_sqs_takes_and_is_decoded_to_the_same(message: Message) -> None:
    encoded = encode(message, MOST)
    assert TAKEN.fullmatch(encoded.body)
    assert len(encoded.attributes) <= 10
    for name, attribute in encoded.attributes.items():
        assert re.fullmatch(r"[A-Za-z0-9_.-]{1,256}", name)
        assert not re.match(r"(?i:aws\.|amazon\.)|\.|.*\.\.|.*\.$", name)
        assert TAKEN.fullmatch(attribute["StringValue"])
    weight = sum(len((n + a["DataType"] + a["StringValue"]).encode()) for n, a in encoded.attributes.items())
    assert encoded.size == len(encoded.body.encode()) + weight, "what counts against the limit"
    assert decode(received(message)) == (message, None)
    assert reading.message(encoded.body, encoded.attributes) == message, "by another reader of the documented form"


@pytest.mark.parametrize("value", [b"plain", "größe 📏".encode(), b"\t\r\n", b'{"a": 1}'])
def test_text_goes_as_it_is(value: bytes) -> None:
    encoded = encode(Message(value=value), MOST)
    assert encoded.body.encode() == value
    assert not encoded.attributes


@pytest.mark.parametrize("value", [b"\0", b"\x0b", b"\xff", "\ufffe".encode(), b"\xed\xa0\x80", "a\uffffb".encode()])
def test_a_body_that_sqs_forbids_is_base64_and_says_so_to_everybody(value: bytes) -> None:
    encoded = encode(Message(value=value), MOST)
    assert base64.b64decode(encoded.body) == value
    assert encoded.attributes == {TRANSFER: {"DataType": "String", "StringValue": "base64"}}


def test_plain_headers_can_be_read_by_any_consumer() -> None:
    encoded = encode(Message(value=b"v", headers=(("b", b"1"), ("a", b"2"))), MOST)
    assert {name: each["StringValue"] for name, each in encoded.attributes.items() if name != PACKED} == {
        "a": "2",
        "b": "1",
    }
    assert json.loads(encoded.attributes[PACKED]["StringValue"]) == {"headers": ["b", "a"]}


def test_more_than_ten_headers_fit_ten_attributes() -> None:
    message = Message(value=b"\0", id="i", headers=tuple((f"h{at}", b"%d" % at) for at in range(100)))
    assert len(encode(message, MOST).attributes) == NATIVE_HEADERS + 2
    assert decode(received(message))[0] == message


def test_a_message_of_another_producer_is_read_as_far_as_it_goes() -> None:
    raw = {
        "Body": "text",
        "MessageAttributes": {
            "n": {"DataType": "Number", "StringValue": "7"},
            "b": {"DataType": "Binary", "BinaryValue": b"\xff"},
            TRANSFER: {"DataType": "String", "StringValue": "8bit"},
        },
    }
    headers = (("b", b"\xff"), (TRANSFER, b"8bit"), ("n", b"7"))
    assert decode(raw) == (Message(value=b"text", headers=headers), None)
    assert decode({"Body": "x"}) == (Message(value=b"x"), None)


@pytest.mark.parametrize(
    "packed",
    [
        "{oops",
        '{"id": ' * 100_000,
        '{"key": {}}',
        '{"headers": [[]]}',
        '{"headers": 1}',
        '{"id": 1}',
        '{"timestamp": ""}',
    ],
)
def test_a_damaged_attribute_is_told_and_leaves_the_rest(packed: str) -> None:
    found, fault = decode({"Body": "v", "MessageAttributes": {PACKED: {"DataType": "String", "StringValue": packed}}})
    assert fault is not None
    assert PACKED in fault
    assert found == Message(value=b"v")


def test_a_body_that_is_not_what_it_is_said_to_be_is_told() -> None:
    attributes = {TRANSFER: {"DataType": "String", "StringValue": "base64"}}
    found, fault = decode({"Body": "no base64!", "MessageAttributes": attributes})
    assert fault is not None
    assert found.value == b"no base64!"


@pytest.mark.parametrize("said", ['"see attachment"', '"null"', '"empty"', "[]", "7", "true", '{"of": "it"}'])
def test_a_body_that_is_none_of_ours_is_kept_whatever_is_said_of_it(said: str) -> None:
    """An attribute of another producer must not erase a body."""
    packed = {PACKED: {"DataType": "String", "StringValue": f'{{"id": "i", "body": {said}}}'}}
    found, fault = decode({"Body": "precious", "MessageAttributes": packed})
    assert found == Message(value=b"precious", id="i")
    assert fault is not None
    assert PACKED in fault


def test_base64_in_lines_is_read() -> None:
    """RFC 2045, which names it, breaks its lines."""
    value = bytes(range(256))
    attributes = {TRANSFER: {"DataType": "String", "StringValue": "base64"}}
    body = base64.encodebytes(value).decode().replace("\n", "\r\n")
    assert decode({"Body": body, "MessageAttributes": attributes}) == (Message(value=value), None)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["base64", "a"]), inner, max_size=2),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(["id", "key", "timestamp", "body", "headers"]), json_values), st.booleans())
def test_whatever_others_write_the_body_is_given(packed: dict[str, object], marked: bool) -> None:
    attributes = {PACKED: {"DataType": "String", "StringValue": json.dumps(packed)}}
    if marked:
        attributes[TRANSFER] = {"DataType": "String", "StringValue": "base64"}
    found, _ = decode({"Body": "no base64!", "MessageAttributes": attributes})
    assert found.value == b"no base64!"


@pytest.mark.parametrize("attributes", [{PACKED: None}, {TRANSFER: 7}, {"n": "text"}, [1]])
def test_attributes_of_no_known_form_keep_back_nothing_but_themselves(attributes: object) -> None:
    found, fault = decode({"Body": "v", "MessageAttributes": attributes})
    assert found == Message(value=b"v")
    assert fault is not None
    assert "attributes" in fault


def test_what_is_too_large_is_refused_with_sizes() -> None:
    encode(Message(value=b"x" * MOST), MOST)
    encode(Message(value=bytes(binary_limit(MOST))), MOST)
    for message in (Message(value=b"x" * (MOST + 1)), Message(value=bytes(binary_limit(MOST) + 1))):
        with pytest.raises(Permanent, match=r"\d+ bytes .*takes \d+"):
            encode(message, MOST)


@pytest.mark.parametrize("change", [{"timestamp_ms": "soon"}, {"id": b"i"}, {"key": "k"}, {"headers": (("h", "v"),)}])
def test_a_row_of_wrong_types_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(Permanent, match="wrong type"):
        encode(Message(value=b"v", **change), MOST)  # type: ignore[arg-type]


tokens = st.text("!~aZ09", min_size=1, max_size=128)


@given(tokens, tokens)
def test_a_key_and_an_id_that_sqs_takes_go_as_they_are(key: str, id_: str) -> None:
    fields = fifo_fields(id_, key.encode(), None)
    assert fields == {"MessageGroupId": key, "MessageDeduplicationId": id_}


@given(
    st.lists(st.text(max_size=200), unique=True, max_size=5), st.lists(st.binary(max_size=200), unique=True, max_size=5)
)
def test_any_other_is_replaced_and_those_that_differ_still_do(ids: list[str], keys: list[bytes]) -> None:
    unique = {fifo_fields(id_, b"k", None)["MessageDeduplicationId"] for id_ in ids}
    groups = {fifo_fields("i", key, None)["MessageGroupId"] for key in keys}
    assert (len(unique), len(groups)) == (len(ids), len(keys))
    assert all(re.fullmatch(r"[!-~]{1,128}", each) for each in unique | groups)


def test_rows_without_an_id_are_never_repeats() -> None:
    first, second = (fifo_fields(None, b"k", None)["MessageDeduplicationId"] for _ in range(2))
    assert first != second


@given(
    st.lists(
        st.none() | st.text(max_size=200),
        min_size=2,
        max_size=6,
        unique_by=lambda id_: object() if id_ is None else id_,
    )
)
def test_rows_without_a_key_are_a_group_each_where_that_is_asked_for(ids: list[str | None]) -> None:
    """So that none waits for another; a row with a key keeps its own, and one that comes again its group."""
    each = [fifo_fields(id_, None, "*") for id_ in ids]
    assert len({fields["MessageGroupId"] for fields in each}) == len(ids)
    assert all(re.fullmatch(r"[!-~]{1,128}", fields["MessageGroupId"]) for fields in each)
    again = [fifo_fields(id_, None, "*") for id_ in ids]
    assert all(was == now for id_, was, now in zip(ids, each, again, strict=True) if id_ is not None)
    assert fifo_fields("i", b"k", "*")["MessageGroupId"] == "k"


def test_a_fifo_queue_without_a_group_says_what_to_add() -> None:
    with pytest.raises(Permanent, match=r"column 'key'.*sqs\.message_group"):
        fifo_fields("i", None, None)
    assert fifo_fields("i", None, "all")["MessageGroupId"] == "all"
