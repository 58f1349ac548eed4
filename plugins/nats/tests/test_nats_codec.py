"""A message as NATS holds it: golden vectors, and what others may have written."""

import pytest

from redelivery.contract.message import Message
from redelivery.errors import Permanent
from redelivery.kit.errors import Code
from redelivery_nats import codec

MOST = 1 << 20
#: What is stored must be read by later versions too.
GOLDEN = [
    (Message(value=b"v"), b"", b"v"),
    (Message(value=b"v", id="i"), b"NATS/1.0\r\nNats-Msg-Id: i\r\n\r\n", b"v"),
    (
        Message(value=b"v", id="i", identity="a"),
        b'NATS/1.0\r\nNats-Msg-Id: a\r\nredelivery: {"id": "i"}\r\n\r\n',
        b"v",
    ),
    (Message(value=b"v", identity="a"), b'NATS/1.0\r\nNats-Msg-Id: a\r\nredelivery: {"id": null}\r\n\r\n', b"v"),
    (
        Message(value=None, key=b"k", timestamp_ms=7),
        b'NATS/1.0\r\nredelivery: {"key": "k", "timestamp_ms": 7, "null": true}\r\n\r\n',
        b"",
    ),
    (
        Message(value=b"v", headers=(("a", b"1"), ("b", None), ("a", b"\xff"), ("Nats-TTL", b"1h"), ("a", b"2"))),
        (
            b"NATS/1.0\r\na: 1\r\na: 2\r\n"
            b'redelivery: {"headers": [[1, "b", null], [2, "a", {"base64": "/w=="}], [3, "Nats-TTL", "1h"]]}\r\n\r\n'
        ),
        b"v",
    ),
    (
        Message(value=b"", headers=((" spaces ", b"x"), ("empty", b""), ("line", b"a\r\nb"))),
        b'NATS/1.0\r\nempty: \r\nredelivery: {"headers": [[0, " spaces ", "x"], [2, "line", "a\\r\\nb"]]}\r\n\r\n',
        b"",
    ),
]


def encode(message: Message, *, most: int = MOST, recognised: bool = True) -> tuple[bytes, bytes]:
    parts = (message.value, message.key, message.headers, message.id, message.identity, message.timestamp_ms)
    return codec.encode(*parts, most=most, recognised=recognised)


@pytest.mark.parametrize(("message", "block", "payload"), GOLDEN)
def test_a_message_is_written_and_read_as_ever(message: Message, block: bytes, payload: bytes) -> None:
    assert encode(message) == (block, payload)
    assert codec.decode(block, payload) == (message, None)


def test_a_long_identity_is_known_by_its_digest_and_two_by_two() -> None:
    first, second = (encode(Message(value=b"v", id="i", identity="x" * 200 + end))[0] for end in "ab")
    assert b"Nats-Msg-Id: sha256-" in first
    assert first != second


def test_a_letter_is_never_recognised_by_its_id() -> None:
    block, payload = encode(Message(value=b"v", id="i"), recognised=False)
    assert b"Nats-Msg-Id" not in block
    assert codec.decode(block, payload)[0].id == "i"


@pytest.mark.parametrize("name", ["Nats-Expected-Last-Sequence", "nats-ttl", "NATS-Rollup", "redelivery"])
def test_no_header_of_a_user_is_a_command_to_the_server(name: str) -> None:
    message = Message(value=b"v", headers=((name, b"1"),))
    block, payload = encode(message)
    assert name.encode() + b": 1" not in block
    assert codec.decode(block, payload) == (message, None)


def test_another_applications_headers_are_written_again_line_by_line() -> None:
    """Else another consumer would not find them where they were, after a redrive."""
    block = "NATS/1.0\r\nB: 1\r\na: größe\r\nB: 2\r\nspaces:  x\t\r\ncontrol: \x01\x7f\r\nnone:\r\n\r\n".encode()
    message, fault = codec.decode(block, b"theirs")
    assert fault is None
    assert message.headers == (
        *(("B", b"1"), ("a", "größe".encode()), ("B", b"2")),
        *(("spaces", b" x\t"), ("control", b"\x01\x7f"), ("none", b"")),
    )
    assert encode(message)[0] == block.replace(b"none:", b"none: ")


@pytest.mark.parametrize(
    "ours",
    [
        b"{oops",
        b"[]",
        b'{"headers": [[0, 1, "x"]]}',
        b'{"headers": 7}',
        b'{"headers": [[1e999, "h", "x"]]}',
        b'{"headers": [[1%s, "h", "x"]]}' % (b"0" * 30),
        b'{"timestamp_ms": 9223372036854775808}',
        b'{"id": 7}',
        b'{"timestamp_ms": true}',
        b'{"timestamp_ms": "7"}',
        b'{"key": {"base64": "%"}}',
        b"[" * 100_000,
    ],
)
def test_what_we_did_not_write_is_undecodable_and_kept(ours: bytes) -> None:
    message, fault = codec.decode(b"NATS/1.0\r\na: 1\r\nredelivery: " + ours + b"\r\n\r\n", b"v")
    assert fault is not None
    assert message.value == b"v"
    assert message.headers == (("a", b"1"), ("redelivery", ours))


def test_a_name_that_is_no_text_is_undecodable() -> None:
    assert codec.decode(b"NATS/1.0\r\n\xff: 1\r\n\r\n", b"v")[1] == "the name of a header is not UTF-8"


@pytest.mark.parametrize(
    "message",
    [
        Message(value=bytes(MOST + 1)),
        Message(value=bytes(MOST), id="i"),
        Message(value=b"v", key=bytes(codec.KEY_BYTES + 1)),
        Message(value=b"v", id="i" * (codec.ID_BYTES + 1)),
        Message(value=b"v", headers=(("h", b"x" * codec.HEADERS_BYTES),)),
        Message(value=b"v", headers=(("h", b"\0" * (codec.HEADERS_BYTES - 1)),)),
    ],
    ids=["value", "value-with-id", "key", "id", "headers", "quoted"],
)
def test_what_does_not_fit_is_refused(message: Message) -> None:
    with pytest.raises(Permanent) as caught:
        encode(message)
    assert caught.value.code is Code.TOO_LARGE


def test_what_fits_goes_to_the_last_byte() -> None:
    assert len(encode(Message(value=bytes(MOST)))[1]) == MOST
    most = Message(value=b"", key=b'"' * codec.KEY_BYTES, headers=(("h", b'"' * (codec.HEADERS_BYTES - 1)),))
    assert codec.decode(*encode(most)) == (most, None)
