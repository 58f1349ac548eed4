"""Sessions of the stand-in, with the real SDK."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusReceiver
from azure.servicebus.exceptions import OperationTimeoutError, SessionCannotBeLockedError, SessionLockLostError
from standin_namespace import DEAD, Namespace, body, one, refused, until


def session_queue(namespace: Namespace, **settings: object) -> str:
    return namespace.queue(requires_session=True, **settings)


def following(namespace: Namespace, queue: str, wait: float = 5.0) -> ServiceBusReceiver:
    return namespace.receiver(queue, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=wait)


def id_of(receiver: ServiceBusReceiver) -> str:
    return receiver.session.session_id


def test_the_next_session_is_the_one_that_waits_for_longest(namespace: Namespace) -> None:
    queue = session_queue(namespace)
    for name in ("b", "a", "b"):
        namespace.put(queue, name.encode(), session_id=name)
    with following(namespace, queue) as first, following(namespace, queue) as second:
        assert (id_of(first), id_of(second)) == ("b", "a")
        assert [body(each) for each in first.receive_messages(5, max_wait_time=1)] == [b"b", b"b"]
        assert [body(each) for each in second.receive_messages(5, max_wait_time=1)] == [b"a"]


def test_without_a_session_the_attach_times_out(namespace: Namespace) -> None:
    began = time.monotonic()
    with refused(OperationTimeoutError), following(namespace, session_queue(namespace), 1.0):
        pass
    assert 0.9 < time.monotonic() - began < 4.0


def test_a_receiver_that_waits_gets_the_session_that_comes(namespace: Namespace) -> None:
    queue = session_queue(namespace)
    timer = threading.Timer(0.5, lambda: namespace.put(queue, b"late", session_id="late"))
    timer.start()
    with following(namespace, queue) as receiver:
        assert (id_of(receiver), body(one(receiver))) == ("late", b"late")
    timer.join()


def test_a_locked_session_is_no_one_elses_until_its_receiver_closes(namespace: Namespace) -> None:
    queue = session_queue(namespace)
    namespace.put(queue, b"1", b"2", session_id="s")
    with namespace.receiver(queue, session_id="s") as receiver:
        assert body(one(receiver)) == b"1"
        with refused(SessionCannotBeLockedError), namespace.receiver(queue, session_id="s"):
            pass
        with refused(OperationTimeoutError), following(namespace, queue, 0.3):
            pass
    with following(namespace, queue) as receiver:  # a session that is closed counts no delivery
        messages = receiver.receive_messages(5, max_wait_time=1)
        assert [(body(each), each.delivery_count) for each in messages] == [(b"1", 0), (b"2", 0)]
        receiver.complete_message(messages[0])
    assert namespace.bodies(queue) == [b"2"]


def test_a_connection_that_is_cut_gives_its_session_back(namespace: Namespace) -> None:
    queue = session_queue(namespace)
    namespace.put(queue, b"1", session_id="s")
    receiver = following(namespace, queue)
    receiver.__enter__()
    handler: Any = receiver
    socket = handler._handler._connection._transport.sock  # the SDK forgets it when it is cut
    with namespace.server.stopped():
        pass
    socket.close()
    receiver.close()
    with following(namespace, queue) as other:
        assert id_of(other) == "s"


def test_a_session_lock_ends_and_its_deliveries_count(namespace: Namespace) -> None:
    queue = session_queue(namespace, lock_duration=0.5)
    namespace.put(queue, b"1", b"2", session_id="s")
    with following(namespace, queue) as receiver:
        message = one(receiver)
        until(lambda: namespace.seen(queue)[0].state == "active")
        with pytest.raises(SessionLockLostError):
            receiver.receive_messages(1, max_wait_time=1)
        with pytest.raises(SessionLockLostError):
            receiver.session.renew_lock()
        assert message.delivery_count == 0
    with following(namespace, queue) as receiver:
        messages = receiver.receive_messages(5, max_wait_time=1)
        assert [(body(each), each.delivery_count) for each in messages] == [(b"1", 1), (b"2", 0)]


def test_a_renewed_session_lock_holds_all_its_messages(namespace: Namespace) -> None:
    queue = session_queue(namespace, lock_duration=1.0)
    namespace.put(queue, b"1", session_id="s")
    with following(namespace, queue) as receiver:
        message = one(receiver)
        first = receiver.session.locked_until_utc
        assert first is not None
        assert abs(first.timestamp() - time.time() - 1.0) < 0.7
        time.sleep(0.6)
        assert receiver.session.renew_lock() > first
        time.sleep(0.6)
        receiver.complete_message(message)
    assert not namespace.seen(queue)


def test_an_abandoned_message_keeps_its_place(namespace: Namespace) -> None:
    queue = session_queue(namespace)
    namespace.put(queue, b"1", b"2", b"3", session_id="s")
    with following(namespace, queue) as receiver:
        message = one(receiver)
        receiver.abandon_message(message)
        again = receiver.receive_messages(3, max_wait_time=1)
        assert [(body(each), each.delivery_count) for each in again] == [(b"1", 1), (b"2", 0), (b"3", 0)]


def test_a_session_has_a_state_and_its_own_messages(namespace: Namespace) -> None:
    queue = session_queue(namespace)
    namespace.put(queue, b"1", session_id="s")
    namespace.put(queue, b"2", session_id="other")
    with namespace.receiver(queue, session_id="s") as receiver:
        assert receiver.session.get_state() is None
        receiver.session.set_state("half")
        assert receiver.session.get_state() == b"half"
        assert [body(each) for each in receiver.peek_messages(5)] == [b"1"]
    with namespace.receiver(queue, session_id="s") as receiver:
        assert receiver.session.get_state() == b"half"
        receiver.session.set_state(None)
        assert receiver.session.get_state() is None


def test_its_dead_letters_have_no_sessions(namespace: Namespace) -> None:
    queue = session_queue(namespace)
    namespace.put(queue, b"1", session_id="s")
    with following(namespace, queue) as receiver:
        receiver.dead_letter_message(one(receiver), reason="r")
    with namespace.dead(queue) as letters:
        assert one(letters).session_id == "s"
    assert namespace.seen(queue + DEAD)
