"""The stand-in by the real SDK: what it refuses, and what becomes of its clients when it stops or meets nonsense."""

from __future__ import annotations

import gc
import socket

import pytest
from azure.servicebus import (
    ServiceBusClient,
    ServiceBusMessage,
)
from azure.servicebus.exceptions import (
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusConnectionError,
    ServiceBusError,
)
from standin_namespace import DEAD, WAIT, Namespace, one, refused, until

from servicebus_standin import StandIn

# --- refusals ------------------------------------------------------------------------------------------------------


def test_an_unknown_queue_is_not_found(namespace: Namespace) -> None:
    with refused(MessagingEntityNotFoundError), namespace.sender("nowhere"):
        pass
    with refused(MessagingEntityNotFoundError), namespace.receiver("nowhere"):
        pass


def test_a_disabled_queue_says_so(namespace: Namespace) -> None:
    queue = namespace.queue(status="Disabled")
    with refused(MessagingEntityDisabledError), namespace.sender(queue):
        pass
    with refused(MessagingEntityDisabledError), namespace.receiver(queue):
        pass


def test_a_queue_disabled_under_an_open_link_refuses_and_stores_nothing(namespace: Namespace) -> None:
    queue = namespace.queue()
    with namespace.sender(queue) as sender:
        namespace.server.alter_queue(queue, status="SendDisabled")
        with refused(MessagingEntityDisabledError):
            sender.send_messages(ServiceBusMessage(b"a"))
    assert namespace.seen(queue) == []


def test_a_queue_deleted_under_open_links_is_not_found(namespace: Namespace) -> None:
    queue = namespace.queue()
    with namespace.sender(queue) as sender, namespace.receiver(queue) as receiver:
        namespace.server.delete_queue(queue)
        with refused(MessagingEntityNotFoundError):
            sender.send_messages(ServiceBusMessage(b"a"))
        with refused(MessagingEntityNotFoundError):
            receiver.receive_messages(1, max_wait_time=2)


def test_a_dead_letter_queue_cannot_be_sent_to(namespace: Namespace) -> None:
    with refused(ServiceBusError, "amqp:not-allowed"), namespace.sender(namespace.queue() + DEAD):
        pass


def test_a_session_is_named_where_there_are_sessions_and_nowhere_else(namespace: Namespace) -> None:
    queue = namespace.queue(requires_session=True)
    with refused(ServiceBusError, "requires sessions"), namespace.receiver(queue):
        pass
    with refused(ServiceBusError, "has no sessions"), namespace.receiver(namespace.queue(), session_id="a"):
        pass
    with namespace.sender(queue) as sender, refused(ServiceBusError, "session id"):
        sender.send_messages(ServiceBusMessage(b"a"))


def test_a_wrong_key_is_refused(namespace: Namespace) -> None:
    queue = namespace.queue()
    wrong = namespace.server.connection("RootManageSharedAccessKey", secret="not-the-key")  # noqa: S106 - it opens nothing
    with namespace.connect(wrong) as client, refused(ServiceBusAuthenticationError):
        client.get_queue_sender(queue).__enter__()


def test_an_expired_token_is_refused(namespace: Namespace) -> None:
    queue = namespace.queue()
    token = namespace.server.token(queue, seconds=-1)
    string = f"Endpoint=sb://{namespace.server.namespace};SharedAccessSignature={token};UseDevelopmentEmulator=true;"
    with namespace.connect(string) as client, refused(ServiceBusAuthenticationError):
        client.get_queue_sender(queue).__enter__()


def test_a_token_is_good_for_its_entity_only(namespace: Namespace) -> None:
    queue, other = namespace.queue(), namespace.queue()
    token = namespace.server.token(queue)
    string = f"Endpoint=sb://{namespace.server.namespace};SharedAccessSignature={token};UseDevelopmentEmulator=true;"
    with namespace.connect(string) as client:
        with client.get_queue_sender(queue) as sender:
            sender.send_messages(ServiceBusMessage(b"a"))
        with refused(ServiceBusAuthorizationError):
            client.get_queue_sender(other).__enter__()


def test_a_key_does_what_its_claims_allow_and_no_more(namespace: Namespace) -> None:
    queue = namespace.queue()
    with namespace.connect(namespace.server.add_key("sends", "Send")) as client:
        with client.get_queue_sender(queue) as sender:
            sender.send_messages(ServiceBusMessage(b"a"))
        with refused(ServiceBusAuthorizationError, "'Listen' claim"):
            client.get_queue_receiver(queue).__enter__()
    with namespace.connect(namespace.server.add_key("listens", "Listen")) as client:
        with client.get_queue_receiver(queue) as receiver:
            assert len(receiver.peek_messages(1)) == 1
        with refused(ServiceBusAuthorizationError, "'Send' claim"):
            client.get_queue_sender(queue).__enter__()


def test_a_limited_key_is_refused_what_it_could_do_before_and_gets_it_back(namespace: Namespace) -> None:
    server, queue = namespace.server, namespace.queue()
    connection = server.add_key("mine")
    with namespace.connect(connection) as client, client.get_queue_sender(queue) as sender:
        sender.send_messages(ServiceBusMessage(b"a"))
    server.limit_key("mine", "Listen")
    with namespace.connect(connection) as client:
        with refused(ServiceBusAuthorizationError, "'Send' claim"):
            client.get_queue_sender(queue).__enter__()
        with client.get_queue_receiver(queue) as receiver:
            assert len(receiver.peek_messages(1)) == 1
    server.limit_key("mine", "Send", "Listen")
    with namespace.connect(connection) as client, client.get_queue_sender(queue) as sender:
        sender.send_messages(ServiceBusMessage(b"b"))
    assert len(server.messages(queue)) == 2


# --- the server ----------------------------------------------------------------------------------------------------


# The SDK, when its connection was cut, shuts its socket down, which fails, and then never closes it.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_what_is_stored_and_locked_outlives_a_stop_of_the_server() -> None:
    server = StandIn().start()
    server.create_queue("q")
    with ServiceBusClient.from_connection_string(server.connection_string, retry_total=0) as client:
        with client.get_queue_sender("q") as sender:
            sender.send_messages([ServiceBusMessage(b"a"), ServiceBusMessage(b"b")])
            with server.stopped(), pytest.raises(ServiceBusConnectionError):
                sender.send_messages(ServiceBusMessage(b"lost"), timeout=5)
            sender.send_messages(ServiceBusMessage(b"c"))
        with client.get_queue_receiver("q") as receiver:
            one(receiver)
    gc.collect()  # the socket goes here, where its warning is expected
    with server.stopped():
        pass
    assert [(each.body, each.state) for each in server.messages("q")] == [
        (b"a", "locked"),
        (b"b", "active"),
        (b"c", "active"),
    ]
    server.stop()


def test_a_connection_that_talks_nonsense_harms_no_other(namespace: Namespace) -> None:
    queue = namespace.queue()
    with namespace.sender(queue) as sender:
        for nonsense in (b"GET / HTTP/1.1\r\n\r\n", b"AMQP\x00\x01\x00\x00\xff\xff", b"\x16\x03\x01nonsense", b"\x00"):
            with socket.create_connection(("127.0.0.1", namespace.server.port), timeout=WAIT) as other:
                other.sendall(nonsense)
        sender.send_messages(ServiceBusMessage(b"a"))
    assert namespace.bodies(queue) == [b"a"]


def test_a_paused_server_answers_nothing_and_then_goes_on(namespace: Namespace) -> None:
    queue = namespace.queue()
    with namespace.sender(queue) as sender:
        with namespace.server.paused(), pytest.raises(ServiceBusError):
            sender.send_messages(ServiceBusMessage(b"a"), timeout=1)
        sender.send_messages(ServiceBusMessage(b"b"))
    until(lambda: b"b" in namespace.bodies(queue))
