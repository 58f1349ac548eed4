"""Requests: the three modes of CloudEvents, as its own SDK reads them, and messages that are no events."""

import json
from dataclasses import replace

import pytest
from cloudevents.core.bindings.http import HTTPMessage, from_http
from cloudevents.core.formats.json import JSONFormat
from hypothesis import given
from hypothesis import strategies as st

from redelivery.codes import Code
from redelivery.contract.message import Message
from redelivery.errors import Permanent
from redelivery_http import codec
from redelivery_http.options import Settings
from redelivery_http.testing import message, messages
from redelivery_http.testing.server import Posted

BINARY = Message(
    value=b'{"total": 3}',
    headers=(
        ("ce-specversion", b"1.0"),
        ("ce-id", b"1"),
        ("ce-source", b"/orders"),
        ("ce-type", b"com.example.order"),
        ("ce-time", b"2024-01-31T12:00:00.123456Z"),
        ("ce-subject", "Euro € 😀".encode()),
        ("ce-quoted", b'a "b" 100%'),
        ("content-type", b"application/json"),
    ),
    id="1",
)
FORM = {"specversion": "1.0", "id": "1", "source": "/orders", "type": "com.example.order", "subject": "Euro € 😀"}
STRUCTURED = Message(
    value=json.dumps(FORM).encode(), headers=(("content-type", b"application/cloudevents+json; charset=UTF-8"),), id="1"
)


def encoder(**options: str) -> codec.Encoder:
    return codec.Encoder(Settings.parse(options))


def sent(given: Message, **options: str) -> Posted:
    """A message as a server gets it."""
    wire, body = encoder(**options).one(given)
    return Posted(tuple((name.decode("ascii"), value.decode("ascii")) for name, value in wire), body)


def test_http_an_event_in_binary_mode_is_written_as_the_binding_says() -> None:
    wire, body = encoder().one(BINARY)
    assert body == b'{"total": 3}'
    assert wire == [
        (b"ce-specversion", b"1.0"),
        (b"ce-id", b"1"),
        (b"ce-source", b"/orders"),
        (b"ce-type", b"com.example.order"),
        (b"ce-time", b"2024-01-31T12:00:00.123456Z"),
        (b"ce-subject", b"Euro%20%E2%82%AC%20%F0%9F%98%80"),  # the specification's own example
        (b"ce-quoted", b"a%20%22b%22%20100%25"),
        (b"content-type", b"application/json"),
    ]


def test_http_cloudevents_own_sdk_reads_binary_and_structured_mode() -> None:
    for given_ in (BINARY, STRUCTURED):
        posted = sent(given_)
        event = from_http(HTTPMessage(dict(posted.headers), posted.body), JSONFormat())
        assert (event.get_id(), event.get_source(), event.get_type()) == ("1", "/orders", "com.example.order")
        assert event.get_subject() == "Euro € 😀"


def test_http_an_event_in_structured_mode_is_its_body_and_content_type() -> None:
    wire, body = encoder().one(STRUCTURED)
    assert (wire, body) == (
        [(b"content-type", b"application/cloudevents+json; charset=UTF-8")],
        STRUCTURED.value,
    )


def test_http_a_batch_is_a_json_array_of_events() -> None:
    raw = Message(value=b"plain", key=b"k", headers=(("a", b"\xff"),), id="2")
    wire, body = codec.batch([encoder().event(each) for each in (BINARY, STRUCTURED, raw)])
    assert wire == [(b"Content-Type", b"application/cloudevents-batch+json")]
    first, second, third = json.loads(body)
    assert first["subject"] == second["subject"] == "Euro € 😀"
    assert first["data"] == {"total": 3}
    assert first["time"] == "2024-01-31T12:00:00.123456Z"
    assert second == FORM
    assert (third["type"], third["data"]) == ("redelivery.message", "plain")
    for each in (first, second, third):
        assert JSONFormat().read(None, json.dumps(each)).get_id() in {"1", "2"}
    assert messages(Posted((("content-type", wire[0][1].decode()),), body))[2] == raw


def test_http_an_event_with_more_than_an_event_holds_keeps_it_in_a_batch() -> None:
    for given_ in (replace(BINARY, key=b"k"), replace(STRUCTURED, headers=(*STRUCTURED.headers, ("n", b"v")))):
        body = encoder().event(given_)
        assert json.loads(body)["subject"] == "Euro € 😀"
        (found,) = messages(Posted((("content-type", "application/cloudevents-batch+json"),), b"[%b]" % body))
        assert found == given_


def test_http_a_message_that_is_no_event_goes_as_it_is() -> None:
    given_ = Message(value=b"{}", headers=(("X-GitHub-Event", b"push"), ("traceparent", b"00-1")))
    assert encoder().one(given_) == ([(b"X-GitHub-Event", b"push"), (b"traceparent", b"00-1")], b"{}")


def test_http_what_http_has_no_place_for_is_in_one_header() -> None:
    given_ = Message(value=None, key=b"\xff", id="1", timestamp_ms=0, headers=(("a", "ü".encode()), ("b", b"1")))
    wire, body = encoder().one(given_)
    assert body == b""
    assert wire[0] == (b"b", b"1")
    assert json.loads(dict(wire)[b"redelivery"]) == {
        "headers": [["a", "ü"], "b"],
        "id": "1",
        "key": {"base64": "/w=="},
        "timestamp": 0,
        "body": "null",
    }
    assert message(sent(given_)) == given_


def test_http_the_content_type_of_rows_without_one_can_be_set() -> None:
    wire, _ = encoder(content_type="application/json").one(Message(value=b"{}"))
    assert wire == [(b"Content-Type", b"application/json")]
    wire, _ = encoder(content_type="application/json").one(STRUCTURED)
    assert [name for name, _ in wire] == [b"content-type"]


@pytest.mark.parametrize(
    "name",
    [
        "Host",
        "AUTHORIZATION",
        "cookie",
        "Content-Length",
        "transfer-encoding",
        "X-Forwarded-For",
        "x_forwarded_for",
        "Content_Length",
        "X-HTTP-Method",
        "Proxy-Authorization",
    ],
)
def test_http_no_row_logs_in_frames_a_request_or_leads_it_elsewhere(name: str) -> None:
    given_ = Message(value=b"v", headers=((name, b"evil"),))
    wire, _ = encoder().one(given_)
    assert [each for each, _ in wire] == [b"redelivery"]
    assert message(sent(given_)) == given_


def test_http_a_row_with_a_destination_is_refused() -> None:
    for encode in (encoder().one, encoder().event):
        with pytest.raises(Permanent, match="token") as caught:
            encode(Message(value=b"v", destination="http://elsewhere/"))
        assert caught.value.code is Code.INVALID_DESTINATION


def test_http_headers_that_no_server_takes_are_too_large() -> None:
    for headers in ([("a", b"x" * 9000)], [(f"h{at}", b"") for at in range(81)], [("a", b"\0" * 3000)]):
        with pytest.raises(Permanent) as caught:
            encoder().one(Message(value=b"v", headers=tuple(headers)))
        assert caught.value.code is Code.TOO_LARGE
    encoder(max_header_bytes="20000").one(Message(value=b"v", headers=(("a", b"x" * 9000),)))


headers = st.lists(st.tuples(st.text(max_size=8), st.none() | st.binary(max_size=8)), max_size=4).map(tuple)
names = st.sampled_from(["ce-id", "ce-specversion", "content-type", "a", "A", "redelivery", "host", "x\r\ny"])
odd = st.lists(st.tuples(names, st.none() | st.binary(max_size=4) | st.just("€ %".encode())), max_size=5).map(tuple)


@given(
    st.none() | st.binary(max_size=8),
    st.none() | st.binary(max_size=8),
    headers | odd,
    st.none() | st.text(max_size=8),
    st.none() | st.integers(-(2**62), 2**62),
)
def test_http_any_message_is_a_request_without_injection_and_comes_back(value, key, pairs, id_, timestamp) -> None:
    wire, body = encoder().one(Message(value=value, key=key, headers=pairs, id=id_, timestamp_ms=timestamp))
    for name, text in wire:
        assert name.isascii()
        assert name.decode().lower() not in {"host", "authorization"}
        assert not {*b"\r\n\0\x7f"} & {*name, *text}
        assert text == text.strip()
    own = {name.lower() for name, _ in wire}
    assert len(own) == len(wire)
    if b"ce-specversion" not in own:  # an event has its own id, and no body is no data
        posted = Posted(tuple((name.decode(), text.decode()) for name, text in wire), body)
        assert message(posted) == Message(value=value, key=key, headers=pairs, id=id_, timestamp_ms=timestamp)
