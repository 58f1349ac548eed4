"""The seeds' own dead letter sink, `{uri: http://...}`: letters of events with Knative's attributes, and others."""

import base64
import json
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme
from cloudevents.core.bindings.http import HTTPMessage, from_http
from cloudevents.core.formats.json import JSONFormat

from redelivery import provisioning
from redelivery.contract.message import Batch, Message
from redelivery.errors import ConfigurationError, DeliveryFailed
from redelivery.formats import dialects
from redelivery.formats.specs import knative
from redelivery.registry import connect
from redelivery.sending import Delivery, Origin
from redelivery_http.testing import message
from redelivery_http.testing.server import Posted, Reply, Server

EVENT = Message(
    value=b'{"total": 3}',
    headers=(
        ("ce-specversion", b"1.0"),
        ("ce-id", b"1"),
        ("ce-source", b"/orders"),
        ("ce-type", b"com.example.order"),
        ("content-type", b"application/json"),
    ),
    id="1",
)
RAW = Message(value=b"\xff raw", key=b"k", headers=(("a", b"1"),), id="2")


@pytest.fixture
def server() -> Iterator[Server]:
    there = Server()
    yield there
    there.close()


def jwt(**claims: object) -> str:
    parts = [json.dumps(each).encode() for each in ({"alg": "none"}, claims)]
    return ".".join([*(base64.urlsafe_b64encode(each).decode().rstrip("=") for each in parts), "c2lnbmF0dXJl"])


def deliver(server: Server, spec: str, *messages: Message, **options: str) -> object:
    """Deliver messages to `/orders` as Knative writes the spec, with the sink `/letters`."""
    delivery = f"spec: {{delivery: {{deadLetterSink: {{uri: '{server.url}/letters'}}, {spec}}}}}"
    named = {f"http.{name}": value for name, value in options.items()}
    with Delivery.open(f"{server.url}/orders", knative.read(delivery), origin=Origin(run="r"), options=named) as opened:
        opened.write(Batch.of(messages))
        return opened.finish()


def test_http_a_sinks_own_authorities_and_audience_are_as_knatives_destination_has_them(
    server: Server, tmp_path: Path
) -> None:
    """`CACerts` is PEM text; `audience` is what the token of a file must be for, as nobody can request one here."""
    authority, context = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    letters = Server(context=context)
    (tmp_path / "token").write_text(jwt(aud="letters"))
    sink = {
        "uri": f"{letters.url}/letters",
        "CACerts": f"{trustme.CA().cert_pem.bytes().decode()}{authority.cert_pem.bytes().decode()}",
        "audience": "letters",
        "options": {"token": f"file:{tmp_path}/token"},
    }
    server.always("/orders", Reply(status=400, keep=False))
    spec = knative.read({"retry": 0, "deadLetterSink": sink})
    with Delivery.open(f"{server.url}/orders", spec, origin=Origin(run="r")) as opened:
        opened.write(Batch.of([EVENT]))
        assert opened.finish().dead_lettered == 1
    (tmp_path / "token").write_text(jwt(aud="orders"))
    with (
        Delivery.open(f"{server.url}/orders", spec, origin=Origin(run="r")) as opened,
        pytest.raises(DeliveryFailed, match="'orders', not 'letters'"),
    ):
        opened.write(Batch.of([EVENT]))
        opened.finish()
    letters.close()
    (posted,) = letters.posted("/letters")
    assert posted.header("authorization") == f"Bearer {jwt(aud='letters')}"


def test_http_a_plan_does_not_say_how_to_make_a_sink_that_nothing_here_can_make(server: Server) -> None:
    sink = f"{server.url}/letters"
    (said,) = provisioning._of_sinks("carrier://orders", [sink], made=(), place=None, reads=(), options={})
    assert "is another place" in said
    assert "redelivery apply" not in said


@pytest.mark.parametrize("pem", ["nonsense", "ä", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----"])
def test_http_text_that_holds_no_certificate_is_refused(pem: str) -> None:
    with pytest.raises(ConfigurationError, match=r"http\.ssl\.ca\.pem must be PEM text with a certificate"):
        connect("https://h/", {"http.ssl.ca.pem": pem})


def read(posted: Posted) -> object:
    """A letter as CloudEvents' own SDK reads it."""
    return from_http(HTTPMessage(dict(posted.headers), posted.body), JSONFormat())


def test_http_a_letter_of_an_event_has_knatives_error_attributes(server: Server) -> None:
    server.answer("/orders", Reply(status=422, body=b"no such customer", keep=False))
    report = deliver(server, "retry: 0", EVENT)
    assert report.dead_lettered == 1
    (posted,) = server.posted("/letters")
    event = read(posted)
    assert (event.get_id(), event.get_type(), event.get_data()) == ("1", "com.example.order", {"total": 3})
    assert event.get_extension("knativeerrorcode") == "422"
    assert event.get_extension("knativeerrordest") == f"{server.url}/orders"
    assert b"no such customer" in base64.b64decode(event.get_extension("knativeerrordata"))
    assert event.get_extension("deadletterretry") == "1"
    letter = message(posted)
    assert dialects.read(letter).native_code == "422"
    assert dialects.strip(letter).value == EVENT.value


def test_http_a_structured_event_stays_structured_where_the_spec_asks(server: Server) -> None:
    server.answer("/orders", Reply(status=400, keep=False))
    deliver(server, "retry: 0, format: json", EVENT)
    (posted,) = server.posted("/letters")
    assert posted.header("content-type") == "application/cloudevents+json"
    assert str(read(posted).get_extension("knativeerrorcode")) == "400"


def test_http_what_is_retried_comes_after_the_servers_pause_up_to_the_specs_own(server: Server) -> None:
    again = Reply(status=429, headers={"Retry-After": "3600"}, keep=False)
    server.answer("/orders", again, Reply(status=404, keep=False))
    report = deliver(server, "retry: 2, backoffPolicy: linear, backoffDelay: PT0.01S, retryAfterMax: PT0.2S", EVENT)
    assert (report.delivered, len(server.posted("/orders"))) == (1, 1)


def test_http_a_slow_server_costs_no_retry_and_no_row_is_given_up_unsent(server: Server) -> None:
    server.always("/orders", Reply(after=0.05))
    rows = [Message(value=b"%d" % at) for at in range(40)]
    report = deliver(server, "retry: 0, timeout: PT0.7S", *rows, concurrency="1")
    sent = [each.body for each in server.posted("/orders")]
    assert {*sent} == {row.value for row in rows}
    assert report.delivered + report.dead_lettered == 40
    assert report.dead_lettered <= report.ambiguous, "a row was given up that was never sent"


def test_http_a_letter_that_is_no_event_goes_as_it_is(server: Server) -> None:
    server.answer("/orders", Reply(status=422, keep=False))
    deliver(server, "retry: 0", RAW)
    (posted,) = server.posted("/letters")
    letter = message(posted)
    assert (letter.value, letter.key, letter.id) == (RAW.value, RAW.key, RAW.id)
    assert dialects.read(letter).native_code == "422"
    assert dialects.strip(letter).headers[:1] == RAW.headers


def test_http_a_letter_whose_form_the_sink_refuses_goes_as_an_event(server: Server) -> None:
    server.answer("/orders", Reply(status=422, keep=False))
    server.answer("/letters", Reply(status=400, body=b"no CloudEvent", keep=False))
    report = deliver(server, "retry: 0", RAW)
    assert report.dead_lettered == 1
    (posted,) = server.posted("/letters")
    event = read(posted)
    assert event.get_type() == "redelivery.message"
    assert event.get_extension("knativeerrorcode") in {422, "422"}
    stripped = dialects.strip(message(posted))
    assert (stripped.value, stripped.key, stripped.headers[:1]) == (RAW.value, RAW.key, RAW.headers)
