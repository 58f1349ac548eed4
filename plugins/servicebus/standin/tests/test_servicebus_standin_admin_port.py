"""The administration as other languages' clients speak it, and on a port of its own, as Microsoft's emulator has it."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from azure.servicebus.management import ServiceBusAdministrationClient

from servicebus_standin import StandIn

QUEUE = (
    '<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml"><QueueDescription '
    'xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"><MaxDeliveryCount>3</MaxDeliveryCount>'
    "</QueueDescription></content></entry>"
)


@pytest.fixture(scope="module")
def server() -> Iterator[StandIn]:
    with StandIn(admin_port=0) as made:
        yield made


def ask(server: StandIn, method: str, path: str, body: str | None = None) -> tuple[int, str]:
    """A request as JavaScript's client sends it: without TLS, its header names in lower case."""
    assert server.admin_port is not None
    connection = http.client.HTTPConnection("localhost", server.admin_port, timeout=10)
    try:
        connection.putrequest(method, path, skip_accept_encoding=True)
        headers = {"authorization": server.token(), "content-length": str(len(body or ""))}
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders((body or "").encode())
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def test_header_names_have_no_case_and_elements_no_prefix(server: StandIn) -> None:
    assert ask(server, "PUT", "/plain?api-version=2021-05", QUEUE)[0] == 201
    status, text = ask(server, "GET", "/plain")
    assert status == 200
    assert text.startswith('<entry xmlns="http://www.w3.org/2005/Atom"><id>')
    assert "<MaxDeliveryCount>3</MaxDeliveryCount>" in text
    assert '<CountDetails xmlns:d2p1="' in text
    assert "<d2p1:ActiveMessageCount>0<" in text
    assert "ns0:" not in text
    ET.fromstring(text)  # noqa: S314 - our own
    assert ask(server, "DELETE", "/plain")[0] == 200


def test_an_existing_queue_is_replaced_whatever_the_case_of_the_headers(server: StandIn) -> None:
    """JavaScript's client says so by `if-match`."""
    server.create_queue("replaced")
    connection = http.client.HTTPConnection("localhost", server.admin_port or 0, timeout=10)
    connection.request("PUT", "/replaced", QUEUE, {"authorization": server.token(), "if-match": "*"})
    assert connection.getresponse().status == 200
    connection.close()
    assert server.store.queue("replaced").settings.max_delivery_count == 3


def test_topics_and_subscriptions_are_listed(server: StandIn) -> None:
    server.create_topic("listed")
    server.create_subscription("listed", "one")
    server.create_subscription("listed", "two")
    options: dict[str, Any] = {"connection_verify": str(server.certificate), "retry_total": 0}
    text = server.admin_connection_string
    with ServiceBusAdministrationClient.from_connection_string(text, **options) as admin:
        assert "listed" in {each.name for each in admin.list_topics()}
        assert [each.name for each in admin.list_subscriptions("listed")] == ["one", "two"]


def test_the_port_of_its_own_ends_and_begins_with_the_server() -> None:
    with StandIn(admin_port=0) as server:
        port = server.admin_port
        with server.stopped():
            pass
        assert (server.admin_port, ask(server, "GET", "/$Resources/queues")[0]) == (port, 200)
        assert json.dumps(port) in server.admin_connection_string
