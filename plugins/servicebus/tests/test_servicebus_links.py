"""Links that are slow, silent, idle or another process's: bounded waits, another connection, no harm to others."""

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from azure.servicebus import _base_handler
from standin_proxy import Proxy

from redelivery.contract.broker import Broker, Retry
from redelivery.contract.message import Batch, Message
from redelivery.errors import Ambiguous, BrokerError, Retriable
from redelivery_servicebus import connect
from redelivery_servicebus.client import links
from servicebus_standin import StandIn
from servicebus_standin.amqp import management
from servicebus_standin.codec import DATA, int32, section, write


@pytest.fixture(scope="module")
def server() -> Iterator[StandIn]:
    with StandIn() as server:
        server.create_queue("q", lock_duration=60.0)
        yield server


@pytest.fixture
def proxy(server: StandIn) -> Iterator[Proxy]:
    with Proxy(server.port) as proxy:
        yield proxy


def at(port: int, server: StandIn, **options: str) -> Broker:
    return connect(f"servicebus://localhost:{port}/q", {"connection_string": server.connection_string, **options})


def failures(sender: Any, seconds: float = 5.0) -> list[BrokerError]:
    sender.send(Batch.of([Message(value=b"v")]), deadline=time.monotonic() + seconds)
    (settled,) = sender.collect(0.0)
    return [each.error for each in settled.failures]


def codes(sender: Any, seconds: float = 5.0) -> list[str | None]:
    return [each.native_code for each in failures(sender, seconds)]


def opening() -> int:
    return sum(each.name == "servicebus-open" for each in threading.enumerate())


def test_a_sender_gives_up_a_silent_connection_for_another(server: StandIn, proxy: Proxy) -> None:
    proxy.silent = 1
    with at(proxy.port, server, operation_timeout="1").sender() as sender:
        assert codes(sender) == ["OPEN_TIMEOUT"]
        assert codes(sender) == []
    assert proxy.taken == 2


def test_a_receiver_gives_up_a_silent_connection_for_another(server: StandIn, proxy: Proxy) -> None:
    server.put("q", section(DATA, write(b"a")))
    with at(proxy.port, server, operation_timeout="1").receiver() as receiver:
        proxy.silent = 1
        receiver._link.drop()  # type: ignore[attr-defined]
        with pytest.raises(Retriable) as caught:
            receiver.receive(1, wait=1.0)
        assert caught.value.native_code == "OPEN_TIMEOUT"
        assert len(receiver.receive(1, wait=3.0)) == 1


def test_an_opening_goes_on_over_waits_that_are_short(server: StandIn, proxy: Proxy) -> None:
    """It is given up by its age: a caller in a hurry must not begin another each time."""
    proxy.silent = 1
    with at(proxy.port, server, operation_timeout="5").sender() as sender:
        assert [codes(sender, seconds=0.3) for _ in range(3)] == [["OPEN_TIMEOUT"]] * 3
        assert proxy.taken == 1


@pytest.mark.parametrize("role", ["sender", "receiver"])
def test_a_silent_connection_that_was_given_up_is_closed_and_its_thread_ends(
    server: StandIn, proxy: Proxy, role: str
) -> None:
    proxy.silent = 1
    broker = at(proxy.port, server, operation_timeout="0.5")
    if role == "sender":
        with broker.sender() as sender:
            assert codes(sender) == ["OPEN_TIMEOUT"]
            assert opening()
    else:
        with pytest.raises(Retriable, match="no link within"):
            broker.receiver()
    (held,) = proxy.held
    held.settimeout(3.0)
    while held.recv(1024):  # what it said at first; then its end
        pass
    end = time.monotonic() + 3.0
    while opening():
        assert time.monotonic() < end
        time.sleep(0.05)


FORK = """
import os, sys, time
from redelivery.contract.message import Batch, Message
from redelivery.errors import BrokerError
from redelivery_servicebus import connect
url, text = sys.argv[1:]
broker = connect(url, {"connection_string": text})
sender, receiver, letters = broker.sender(), broker.receiver(), broker.dead_letters(direct=True)
def send():
    sender.send(Batch.of([Message(value=b"v")]), deadline=time.monotonic() + 5)
    return [each.error.native_code for each in sender.collect(0.0)[0].failures]
assert send() == [] and len(receiver.receive(1, wait=2)) == 1 and letters.remove([letters._places[0].path + "/99"]) == 0
child = os.fork()
if child == 0:
    try:
        told = send()
    except BrokerError as error:
        told = error.code
    for role in (sender, receiver, letters, broker):
        role.close()
    time.sleep(1.0)  # closing is done aside
    os._exit(0 if told == "CLOSED" else 1)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
sent, got, seen = send(), len(receiver.receive(1, wait=2)), len(list(letters.browse()))
print("child", status, "send", sent, "receive", got, "browse", seen)
"""


def test_a_role_closed_in_a_fork_leaves_its_parents_links_alone(server: StandIn) -> None:
    server.create_queue("forked", lock_duration=60.0)
    given = [f"servicebus://localhost:{server.port}/forked", server.connection_string]
    ran = subprocess.run([sys.executable, "-c", FORK, *given], capture_output=True, text=True, timeout=40, check=False)
    assert ran.stdout.strip() == "child 0 send [] receive 1 browse 2", ran.stderr[-2_000:]


def test_a_token_that_ran_out_on_an_idle_link_is_not_the_keys_fault(
    server: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The SDK renews one only where its link is used. Its hour is four seconds here."""
    real = _base_handler._generate_sas_token
    monkeypatch.setattr(
        _base_handler, "_generate_sas_token", lambda *given: real(*given[:3], expiry=timedelta(seconds=4))
    )
    server.put("q", section(DATA, write(b"a")))
    with at(server.port, server).sender() as sender, at(server.port, server).receiver() as receiver:
        assert codes(sender) == []
        time.sleep(5.0)
        assert [type(each) for each in failures(sender)] == [Ambiguous]
        assert codes(sender) == []
        with pytest.raises(Ambiguous):
            receiver.receive(1, wait=1.0)
        assert receiver.receive(1, wait=2.0)


def test_an_idle_link_is_opened_anew_before_its_token_may_run_out() -> None:
    hour, refreshed = 3_600, 0.1  # by the SDK: its tokens' life, and the last part of it in which it renews them
    assert hour * refreshed > links._IDLE


def test_a_server_that_has_no_time_for_a_token_is_worth_a_retry(
    server: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, busy = management.reply, [503]

    def reply(request: Any, properties: Any, body: Any = None) -> bytes:
        if "status-code" in properties and busy:
            properties = {"status-code": int32(busy.pop()), "status-description": "please retry"}
        return real(request, properties, body)

    monkeypatch.setattr(management, "reply", reply)
    with at(server.port, server).sender() as sender:
        assert [type(each) for each in failures(sender)] == [Retriable]
        assert codes(sender) == []


def test_a_receive_that_has_to_open_its_link_does_not_wait_for_a_whole_operation(server: StandIn) -> None:
    with at(server.port, server).receiver() as receiver, server.paused():
        receiver._link.drop()  # type: ignore[attr-defined]
        began = time.monotonic()
        with pytest.raises(Retriable):
            receiver.receive(1, wait=0.2)
        assert time.monotonic() - began < 4.0


def test_all_steps_of_settling_share_one_deadline(server: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them would have 25 s. Here, all together have three."""
    monkeypatch.setattr("redelivery_servicebus.receiver._END", 3.0, raising=False)
    monkeypatch.setattr("redelivery_servicebus.receiver._COMPLETING", 1.0, raising=False)
    server.create_queue("slow", lock_duration=60.0)
    server.put("slow", section(DATA, write(b"a")))
    with Proxy(server.port, delay=0.3) as slow:
        url, text = f"servicebus://localhost:{slow.port}/slow", server.connection_string
        with connect(url, {"connection_string": text, "operation_timeout": "25"}).receiver() as receiver:
            (received,) = receiver.receive(1, wait=5.0)
            began = time.monotonic()
            (answer,) = receiver.settle([(received, Retry(timedelta(hours=1)))])  # a link takes longer than that
            assert time.monotonic() - began < 4.5
            assert isinstance(answer, Retriable)
            with server.paused():
                began = time.monotonic()
                (answer,) = receiver.settle([(received, Retry(timedelta(hours=1)))])
                assert time.monotonic() - began < 4.5
                assert isinstance(answer, BrokerError)
    assert [each.body for each in server.messages("slow")] == [b"a"]
