"""The stand-in's administration endpoint by the real administration client, its tokens, and itself as a command."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from azure.core.exceptions import (
    ClientAuthenticationError,
    HttpResponseError,
    ResourceExistsError,
    ResourceNotFoundError,
    ServiceRequestError,
)
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.management import ServiceBusAdministrationClient

from servicebus_standin import StandIn
from servicebus_standin.auth import Key, Unauthorized, allowed, check_token, entity_path, sign
from servicebus_standin.codec import Content
from servicebus_standin.frames import FrameReader


@pytest.fixture(scope="module")
def server() -> Iterator[StandIn]:
    with StandIn() as made:
        yield made


@contextmanager
def client(server: StandIn, connection_string: str | None = None) -> Iterator[ServiceBusAdministrationClient]:
    given = connection_string or server.connection_string
    options: dict[str, Any] = {"connection_verify": str(server.certificate), "retry_total": 0}
    with ServiceBusAdministrationClient.from_connection_string(given, **options) as made:
        yield made


def test_a_queue_is_made_as_asked_and_is_so(server: StandIn) -> None:
    wanted: dict[str, Any] = {
        "lock_duration": timedelta(seconds=1.5),
        "max_delivery_count": 7,
        "default_message_time_to_live": timedelta(days=2),
        "dead_lettering_on_message_expiration": True,
        "requires_duplicate_detection": True,
        "duplicate_detection_history_time_window": timedelta(minutes=3),
        "max_size_in_megabytes": 2048,
        "requires_session": False,
        "status": "SendDisabled",
        "user_metadata": "ours <&>",
    }
    server.create_queue("elsewhere")
    with client(server) as admin:
        made = admin.create_queue("Orders", forward_dead_lettered_messages_to="elsewhere", **wanted)
        (listed,) = (each for each in admin.list_queues() if each.name == "Orders")
        for queue in (made, admin.get_queue("orders"), listed):
            assert {name: getattr(queue, name) for name in wanted} == wanted
            assert (queue.forward_dead_lettered_messages_to or "").endswith("/elsewhere")
            assert queue.forward_to is None
    settings = server.store.queue("orders").settings
    assert (settings.lock_duration, settings.max_delivery_count) == (1.5, 7)
    assert settings.forward_dead_lettered_messages_to == "elsewhere"
    assert settings.default_message_time_to_live == 2 * 24 * 3600


def test_an_update_changes_what_it_names_and_what_cannot_change_is_refused(server: StandIn) -> None:
    with client(server) as admin:
        queue = admin.create_queue("altered")
        queue.max_delivery_count = 3
        admin.update_queue(queue)
        found = admin.get_queue("altered")
        assert (found.max_delivery_count, found.lock_duration) == (3, timedelta(seconds=60))
        queue.requires_duplicate_detection = True
        with pytest.raises(HttpResponseError, match="cannot be changed"):
            admin.update_queue(queue)


def test_counts_are_told(server: StandIn) -> None:
    server.create_queue("counted", max_delivery_count=1)
    with ServiceBusClient.from_connection_string(server.connection_string) as bus:
        with bus.get_queue_sender("counted") as sender:
            sender.send_messages([ServiceBusMessage(b"x"), ServiceBusMessage(b"y")])
        with bus.get_queue_receiver("counted") as receiver:
            (message,) = receiver.receive_messages(1, max_wait_time=10)
            receiver.abandon_message(message)
    with client(server) as admin:
        found = admin.get_queue_runtime_properties("counted")
    assert (found.total_message_count, found.active_message_count, found.dead_letter_message_count) == (2, 1, 1)
    assert found.scheduled_message_count == 0
    assert (found.size_in_bytes or 0) > 0


def test_a_deleted_queue_is_gone(server: StandIn) -> None:
    with client(server) as admin:
        admin.create_queue("gone")
        admin.delete_queue("gone")
        with pytest.raises(ResourceNotFoundError):
            admin.get_queue("gone")
        with pytest.raises(ResourceNotFoundError):
            admin.delete_queue("gone")


def test_many_queues_are_listed_by_pages(server: StandIn) -> None:
    for number in range(105):
        server.create_queue(f"page-{number:03}")
    with client(server) as admin:
        names = [queue.name for queue in admin.list_queues() if queue.name.startswith("page-")]
    assert names == [f"page-{number:03}" for number in range(105)]


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"lock_duration": timedelta(minutes=6)}, "five minutes"),
        ({"max_delivery_count": 2001}, "2000"),
        ({"forward_to": "nowhere"}, "nowhere"),
    ],
)
def test_what_azure_refuses_is_refused(server: StandIn, settings: dict[str, Any], text: str) -> None:
    with client(server) as admin, pytest.raises(HttpResponseError, match=text):
        admin.create_queue("refused", **settings)


def test_an_existing_name_is_a_conflict(server: StandIn) -> None:
    server.create_queue("twice")
    with client(server) as admin, pytest.raises(ResourceExistsError):
        admin.create_queue("TWICE")


def test_without_manage_nothing_is_told(server: StandIn) -> None:
    weak = server.add_key("weak", "Send", "Listen")
    with client(server, weak) as admin, pytest.raises(ClientAuthenticationError, match="'Manage' claim"):
        admin.get_queue("any")


def test_a_client_that_does_not_trust_the_certificate_is_cut_off_and_the_server_lives(server: StandIn) -> None:
    wary = ServiceBusAdministrationClient.from_connection_string(server.connection_string, retry_total=0)
    with wary as admin, pytest.raises(ServiceRequestError):
        admin.get_queue("any")
    with client(server) as admin, pytest.raises(ResourceNotFoundError):
        admin.get_queue("any")


def test_a_token_is_checked_in_each_of_its_parts() -> None:
    key = Key("k", "secret", frozenset(("Send",)))
    token = sign("sb://host:1/a%20b/q", key, 2000)
    keys = {"k": key}
    grant = check_token(token, keys, 1999)
    assert grant.path == "a b/q"
    assert allowed([grant], "a b/Q", "Send", 1999)
    assert allowed([grant], "a b/q/$DeadLetterQueue", "Send", 1999)
    assert not allowed([grant], "a b/q2", "Send", 1999)
    assert not allowed([grant], "a b/q", "Listen", 1999)
    assert not allowed([grant], "a b/q", "Send", 2000)
    for wrong in (token.replace("skn=k", "skn=j"), token.replace("2000", "9000"), token.replace("sb%3A", "sc%3A"), "x"):
        with pytest.raises(Unauthorized) as raised:
            check_token(wrong, keys, 1999)
        assert "sig=" not in str(raised.value)
    with pytest.raises(Unauthorized, match="expired"):
        check_token(token, keys, 2000)
    assert "secret" not in repr(key)


def test_addresses_name_entities_however_they_are_written() -> None:
    assert entity_path("amqps://host:5671/q/$management") == "q/$management"
    assert entity_path("q") == "q"
    assert entity_path("sb://host/") == entity_path(None) == ""


def test_frames_may_come_a_byte_at_a_time() -> None:
    def frame(performative: int, fields: bytes, count: int) -> bytes:
        body = b"\x00\x53" + bytes([performative]) + b"\xc0" + bytes([len(fields) + 1, count]) + fields
        return (len(body) + 8).to_bytes(4) + b"\x02\x00\x00\x00" + body

    attach = frame(0x12, b"\xa1\x01L" + b"\x43", 2)
    batch = frame(0x14, b"\x43\x43\xa0\x01t\x70\x80\x01\x37\x00\x42\x41", 6)
    rest = frame(0x14, b"\x43\x40\x40\x40\x40\x42", 6)
    single = frame(0x14, b"\x43\x52\x01\xa0\x01t\x43", 4)
    reader = FrameReader()
    for byte in b"AMQP\x00\x01\x00\x00" + attach + batch + rest + single:
        reader.feed(bytes([byte]))
    assert [reader.is_batch("L"), reader.is_batch("L")] == [True, False]


def test_a_message_that_is_cut_and_put_together_again_is_the_same_to_its_reader() -> None:
    content = Content.parse(b"\x00\x53\x75\xa0\x02hi")
    again = Content.parse(content.encode(3, {"x-opt-sequence-number": 7}, {"DeadLetterReason": "é"}))
    assert again.data() == b"hi"
    assert again.annotation("x-opt-sequence-number") == 7
    assert again.application_properties() == {"DeadLetterReason": "é"}
    assert again.property(0) == content.property(0)


def test_it_runs_by_itself_and_says_how_to_reach_it() -> None:
    command = [sys.executable, "-m", "servicebus_standin", "--port", "0", "--queue", "q", "--topic", "t"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            connection_string, certificate = (process.stdout.readline().strip() for _ in range(2))
            with ServiceBusClient.from_connection_string(connection_string) as bus, bus.get_queue_sender("q") as sender:
                sender.send_messages(ServiceBusMessage(b"x"))
            options: dict[str, Any] = {"connection_verify": certificate}
            with ServiceBusAdministrationClient.from_connection_string(connection_string, **options) as admin:
                assert admin.get_queue_runtime_properties("q").active_message_count == 1
                assert admin.get_topic("t").name == "t"
        finally:
            process.terminate()
        assert process.wait(10) == 0
