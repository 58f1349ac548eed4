"""The harness on the stand-in, without the plugin: what a place tells of itself and what can be done to it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from redelivery.base.urls import resolve_secrets
from redelivery.contract.message import Message
from redelivery_conformance.harness import NotHere, start
from redelivery_servicebus.testing import CONNECTION_STRING, ServicebusHarness, ServicebusPlace, ServicebusRuntime


@pytest.fixture(scope="module")
def runtime() -> Iterator[ServicebusRuntime]:
    made = start(ServicebusHarness(), None, {}, Path(), "embedded")
    assert isinstance(made, ServicebusRuntime)
    yield made
    made.close()


def client(place: ServicebusPlace) -> ServiceBusClient:
    text = resolve_secrets(place.options)[CONNECTION_STRING]
    return ServiceBusClient.from_connection_string(text, retry_total=0)


def send(place: ServicebusPlace, *messages: ServiceBusMessage) -> None:
    with client(place) as bus, bus.get_queue_sender(place.queue) as sender:
        sender.send_messages(list(messages))


def test_it_says_what_it_is(runtime: ServicebusRuntime) -> None:
    assert runtime.kind == "embedded"
    assert "stand-in" in runtime.description
    assert "not Azure" in runtime.description
    assert any("stand-in" in each for each in runtime.cannot_show)


def test_a_place_reads_what_is_stored_without_taking_it(runtime: ServicebusRuntime) -> None:
    with runtime.place() as place:
        packed: Any = {"h": "v", "redelivery": '{"key":{"base64":"/w=="},"timestamp":5,"headers":["h",["n",null]]}'}
        send(place, ServiceBusMessage(b"x", message_id="i", application_properties=packed))
        headers = (("h", b"v"), ("n", None))
        expected = Message(value=b"x", key=b"\xff", headers=headers, id="i", timestamp_ms=5)
        assert place.stored() == [expected]
        before = place.snapshot()
        assert place.stored() == [expected]
        assert place.snapshot() == before
        send(place, ServiceBusMessage(b"y"))
        assert place.snapshot() != before


def test_a_place_is_its_own_and_leaves_nothing(runtime: ServicebusRuntime) -> None:
    place, other = runtime.place(), runtime.place()
    send(place, ServiceBusMessage(b"x"))
    assert other.stored() == []
    assert place.stored(place.destination("more")) == []
    place.close()
    other.close()
    again = runtime.place()
    assert again.stored() == []
    again.close()


def test_what_is_done_behind_the_back_takes_effect(runtime: ServicebusRuntime) -> None:
    with runtime.place() as place:
        place.limiting(1)
        place.expiring(60.0)
        place.alter()
        place.damage()
        with client(place) as bus, bus.get_queue_receiver(place.queue) as receiver:
            (message,) = receiver.receive_messages(1, max_wait_time=10)
            assert message.application_properties == {b"redelivery": b"{oops"}
            assert message.expires_at_utc is None  # it has another time to live than the queue
            receiver.abandon_message(message)
        assert place.stored() == place.stored(place.letters) == []
        (letter,) = runtime.namespace.raw_messages(f"{place.queue}/$DeadLetterQueue")
        assert letter.properties["DeadLetterReason"] == "MaxDeliveryCountExceeded"


def test_an_outage_ends(runtime: ServicebusRuntime) -> None:
    with runtime.place() as place:
        send(place, ServiceBusMessage(b"x", time_to_live=timedelta(seconds=60)))
        with runtime.outage(), pytest.raises(Exception, match=r"refused|closed|connect"):
            send(place, ServiceBusMessage(b"y"))
        send(place, ServiceBusMessage(b"z"))
        assert [each.value for each in place.stored()] == [b"x", b"z"]


def test_a_namespace_by_connection_string_has_places_too(runtime: ServicebusRuntime) -> None:
    with runtime.place() as beside:
        there = ServicebusHarness().at(beside.url, beside.options, Path())
        assert isinstance(there, ServicebusRuntime)
        with there.place() as place:
            assert place.url.startswith(beside.url)
            send(place, ServiceBusMessage(b"x", message_id="i"))
            place.damage()
            place.limiting(3)
            place.expiring(60.0)
            place.alter()
            stored = runtime.namespace.raw_messages(place.queue)
            assert [each.body for each in stored] == [b"x", b"damaged"]
            assert runtime.namespace.raw_messages(place.queue) == there.namespace.raw_messages(place.queue)
        with pytest.raises(NotHere, match="connection_string"):
            ServicebusHarness().at(beside.url, {}, Path())
