"""Topics and subscriptions of the stand-in, by the real clients."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError, ResourceExistsError, ResourceNotFoundError
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusSubQueue
from azure.servicebus.exceptions import MessagingEntityNotFoundError, ServiceBusError
from azure.servicebus.management import ServiceBusAdministrationClient

from servicebus_standin import StandIn


@pytest.fixture(scope="module")
def server() -> Iterator[StandIn]:
    with StandIn() as made:
        yield made


@contextmanager
def admin_of(server: StandIn) -> Iterator[ServiceBusAdministrationClient]:
    options: dict[str, Any] = {"connection_verify": str(server.certificate), "retry_total": 0}
    with ServiceBusAdministrationClient.from_connection_string(server.connection_string, **options) as made:
        yield made


@contextmanager
def client(server: StandIn) -> Iterator[ServiceBusClient]:
    with ServiceBusClient.from_connection_string(server.connection_string, retry_total=0) as made:
        yield made


def bodies(server: StandIn, path: str) -> list[bytes | None]:
    return [each.body for each in server.messages(path)]


def test_a_topic_and_its_subscription_are_made_as_asked_and_are_so(server: StandIn) -> None:
    server.create_queue("made-target")
    with admin_of(server) as admin:
        wanted: dict[str, Any] = {"default_message_time_to_live": timedelta(days=2), "max_size_in_megabytes": 2048}
        for topic in (admin.create_topic("Made", **wanted), admin.get_topic("made")):
            assert {name: getattr(topic, name) for name in wanted} == wanted
        wanted = {"lock_duration": timedelta(seconds=5), "max_delivery_count": 7}
        made = admin.create_subscription("made", "billing", forward_to="made-target", **wanted)
        for subscription in (made, admin.get_subscription("MADE", "Billing")):
            assert {name: getattr(subscription, name) for name in wanted} == wanted
            assert (subscription.forward_to or "").endswith("/made-target")
        made.forward_to = None
        made.max_delivery_count = 3
        admin.update_subscription("made", made)
        found = admin.get_subscription("made", "billing")
        assert (found.forward_to, found.max_delivery_count) == (None, 3)
        assert "made" not in {each.name.lower() for each in admin.list_queues()}
        admin.delete_topic("made")
        for missing in (lambda: admin.get_topic("made"), lambda: admin.get_subscription("made", "billing")):
            with pytest.raises(ResourceNotFoundError):
                missing()


def test_what_cannot_be_made_is_refused(server: StandIn) -> None:
    server.create_topic("refusing")
    server.create_queue("refusing-queue")
    with admin_of(server) as admin:
        with pytest.raises(ResourceExistsError):
            admin.create_queue("Refusing")
        with pytest.raises(HttpResponseError, match="could not be found"):
            admin.create_subscription("refusing", "x", forward_to="nowhere")
        with pytest.raises(ResourceNotFoundError):
            admin.create_subscription("refusing-queue", "x")
        for name in ("x" * 51, "-x", "x y"):
            with pytest.raises(HttpResponseError, match="not a valid name"):
                admin.create_subscription("refusing", name)
        admin.create_subscription("refusing", "x" * 50)
        with pytest.raises(ResourceExistsError):
            admin.create_subscription("refusing", "X" * 50)
        topic = admin.get_topic("refusing")
        topic.name = "refusing-queue"
        with pytest.raises(HttpResponseError, match="is a Queue, not a Topic"):
            admin.update_topic(topic)


@pytest.mark.parametrize("way", ["get_topic_sender", "get_queue_sender"])
def test_each_subscription_gets_what_is_sent_or_the_queue_that_it_forwards_to(server: StandIn, way: str) -> None:
    topic = f"sent-by-{way}"
    server.create_queue(f"{topic}-target")
    server.create_topic(topic)
    server.create_subscription(topic, "own")
    server.create_subscription(topic, "forwarded", forward_to=f"{topic}-target")
    with client(server) as bus, getattr(bus, way)(topic) as sender:
        sender.send_messages([ServiceBusMessage(b"a", application_properties={"n": 1}), ServiceBusMessage(b"b")])
        with bus.get_subscription_receiver(topic, "own") as receiver:
            first, second = receiver.receive_messages(2, max_wait_time=5)
            receiver.complete_message(first)
            receiver.dead_letter_message(second, reason="no")
        with bus.get_subscription_receiver(topic, "own", sub_queue=ServiceBusSubQueue.DEAD_LETTER) as receiver:
            (letter,) = receiver.receive_messages(1, max_wait_time=5)
            assert letter.dead_letter_reason == "no"
    there = server.messages(f"{topic}-target")
    assert [(each.body, each.application_properties) for each in there] == [(b"a", {"n": 1}), (b"b", {})]
    assert bodies(server, f"{topic}/Subscriptions/forwarded") == bodies(server, topic) == []


def test_what_is_scheduled_is_copied_when_it_is_due(server: StandIn) -> None:
    server.create_topic("later")
    with client(server) as bus, bus.get_topic_sender("later") as sender:
        sender.schedule_messages(ServiceBusMessage(b"soon"), datetime.now(UTC) + timedelta(seconds=1))
        server.create_subscription("later", "late")
        assert bodies(server, "later/subscriptions/late") == []
        with bus.get_subscription_receiver("later", "late") as receiver:
            (message,) = receiver.receive_messages(1, max_wait_time=10)
            assert b"".join(message.body) == b"soon"


def test_a_topic_is_not_received_from_and_a_subscription_not_sent_to(server: StandIn) -> None:
    server.create_topic("one-way")
    server.create_subscription("one-way", "s")
    with client(server) as bus:
        with pytest.raises(ServiceBusError, match="cannot be received from"), bus.get_queue_receiver("one-way"):
            pass
        with (
            pytest.raises(ServiceBusError, match="nor a subscription"),
            bus.get_queue_sender("one-way/Subscriptions/s") as sender,
        ):
            sender.send_messages(ServiceBusMessage(b"x"))
        with pytest.raises(MessagingEntityNotFoundError), bus.get_subscription_receiver("one-way", "other"):
            pass
