"""The stand-in by the real SDK: what its clients see of a queue."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from azure.servicebus import (
    ServiceBusMessage,
    ServiceBusReceiveMode,
)
from azure.servicebus.amqp import AmqpAnnotatedMessage
from azure.servicebus.exceptions import (
    MessageLockLostError,
    MessageNotFoundError,
    MessageSizeExceededError,
    ServiceBusError,
    ServiceBusQuotaExceededError,
)
from standin_namespace import DEAD, WAIT, Namespace, body, one, refused, until

# --- sending -------------------------------------------------------------------------------------------------------


def test_a_message_comes_back_as_it_was_sent(namespace: Namespace) -> None:
    queue = namespace.queue()
    properties: dict[str | bytes, Any] = {"text": "é", "number": 1 << 20, "real": 0.5, "yes": True}
    sent = ServiceBusMessage(
        b"\x00\xff body",
        application_properties=properties,
        message_id="id-1",
        subject="subject",
        content_type="text/plain",
        correlation_id="c",
        reply_to="r",
        to="t",
        partition_key="p",
        time_to_live=timedelta(seconds=60),
    )
    with namespace.sender(queue) as sender, namespace.receiver(queue) as receiver:
        sender.send_messages(sent)
        got = one(receiver)
        receiver.complete_message(got)
    assert body(got) == b"\x00\xff body"
    assert got.application_properties == {b"text": "é".encode(), b"number": 1 << 20, b"real": 0.5, b"yes": True}
    assert (got.message_id, got.subject, got.content_type, got.correlation_id) == ("id-1", "subject", "text/plain", "c")
    assert (got.reply_to, got.to, got.partition_key) == ("r", "t", "p")
    assert got.time_to_live == timedelta(seconds=60)
    assert (got.delivery_count, got.sequence_number, got.enqueued_sequence_number) == (0, 1, 1)
    assert got.enqueued_time_utc is not None
    assert abs(got.enqueued_time_utc - datetime.now(UTC)) < timedelta(seconds=WAIT)
    assert got.expires_at_utc == got.enqueued_time_utc + timedelta(seconds=60)
    assert namespace.seen(queue) == []


def test_a_batch_is_stored_as_its_messages_in_order(namespace: Namespace) -> None:
    queue = namespace.queue()
    with namespace.sender(queue) as sender:
        batch = sender.create_message_batch()
        for number in range(100):
            batch.add_message(ServiceBusMessage(b"%d" % number, message_id=str(number)))
        sender.send_messages(batch)
    assert [each.message_id for each in namespace.seen(queue)] == [str(number) for number in range(100)]
    assert namespace.bodies(queue)[-1] == b"99"


def test_a_body_that_looks_like_a_batch_is_one_message(namespace: Namespace) -> None:
    queue = namespace.queue()
    inner = b"\x00\x53\x75\xa0\x05hello"
    with namespace.sender(queue) as sender:
        sender.send_messages(AmqpAnnotatedMessage(data_body=[inner, inner]))
        sender.send_messages(ServiceBusMessage(inner))
        sender.send_messages([ServiceBusMessage(inner), ServiceBusMessage(inner)])
    assert namespace.bodies(queue) == [inner * 2, inner, inner, inner]


def test_a_batch_as_large_as_the_link_allows_goes_in_several_frames(namespace: Namespace) -> None:
    queue = namespace.queue()
    with namespace.sender(queue) as sender:
        batch = sender.create_message_batch()
        assert batch.max_size_in_bytes == 262_144
        with pytest.raises(MessageSizeExceededError):
            while True:
                batch.add_message(ServiceBusMessage(bytes(30_000)))
        sender.send_messages(batch)
        sender.send_messages(ServiceBusMessage(b"after"))
    assert namespace.bodies(queue) == [bytes(30_000)] * len(batch) + [b"after"]


def test_a_message_over_the_limit_is_refused_and_the_link_lives(namespace: Namespace) -> None:
    queue = namespace.queue()
    with namespace.sender(queue) as sender:
        with refused(MessageSizeExceededError):
            sender.send_messages(ServiceBusMessage(bytes(262_145)))
        sender.send_messages(ServiceBusMessage(b"small"))
    assert namespace.bodies(queue) == [b"small"]


def test_a_message_without_an_id_is_given_one(namespace: Namespace) -> None:
    queue = namespace.queue()
    namespace.put(queue, b"a", b"b")
    first, second = namespace.seen(queue)
    assert first.message_id
    assert first.message_id != second.message_id


def test_a_full_queue_refuses_for_want_of_room(namespace: Namespace) -> None:
    queue = namespace.queue(max_size_in_megabytes=0.01)
    with namespace.sender(queue) as sender, refused(ServiceBusQuotaExceededError):
        for _ in range(11):
            sender.send_messages(ServiceBusMessage(bytes(1000)))
    assert 9 <= len(namespace.seen(queue)) <= 10


def test_a_batch_is_stored_wholly_or_not_at_all(namespace: Namespace) -> None:
    queue = namespace.queue(max_size_in_megabytes=0.01)
    with namespace.sender(queue) as sender:
        with refused(ServiceBusQuotaExceededError):
            sender.send_messages([ServiceBusMessage(bytes(1000)) for _ in range(11)])
        assert namespace.seen(queue) == []
        sender.send_messages([ServiceBusMessage(bytes(1000)) for _ in range(9)])
    assert len(namespace.seen(queue)) == 9


def test_an_id_seen_within_the_window_is_taken_but_not_stored(namespace: Namespace) -> None:
    queue = namespace.queue(requires_duplicate_detection=True, duplicate_detection_history_time_window=1.0)
    namespace.put(queue, b"a", b"b", message_id="same")
    namespace.put(queue, b"c", message_id="other")
    assert namespace.bodies(queue) == [b"a", b"c"]
    time.sleep(1.0)
    namespace.put(queue, b"d", message_id="same")
    assert namespace.bodies(queue) == [b"a", b"c", b"d"]


def test_names_of_queues_have_no_case(namespace: Namespace) -> None:
    queue = namespace.queue()
    namespace.put(queue.upper(), b"a")
    with namespace.receiver(queue.lower()) as receiver:
        assert body(one(receiver)) == b"a"


# --- receiving and settling ----------------------------------------------------------------------------------------


def test_a_locked_message_is_nobody_elses_and_goes_when_completed(namespace: Namespace) -> None:
    queue = namespace.queue()
    namespace.put(queue, b"a")
    with namespace.receiver(queue) as first, namespace.receiver(queue) as second:
        message = one(first)
        assert second.receive_messages(1, max_wait_time=0.3) == []
        first.complete_message(message)
        assert namespace.seen(queue) == []


def test_an_abandoned_message_comes_again_counted_and_in_its_place(namespace: Namespace) -> None:
    queue = namespace.queue()
    namespace.put(queue, b"a", b"b")
    with namespace.receiver(queue) as receiver:
        receiver.abandon_message(one(receiver))
        again = one(receiver)
        assert (body(again), again.delivery_count) == (b"a", 1)


def test_a_message_delivered_too_often_is_dead_lettered_by_the_queue(namespace: Namespace) -> None:
    queue = namespace.queue(max_delivery_count=2)
    namespace.put(queue, b"a")
    with namespace.receiver(queue) as receiver, namespace.dead(queue) as dead:
        receiver.abandon_message(one(receiver))
        receiver.abandon_message(one(receiver))
        letter = one(dead)
        assert letter.dead_letter_reason == "MaxDeliveryCountExceeded"
        assert letter.dead_letter_error_description == "Message could not be consumed after 2 delivery attempts."
        assert (body(letter), letter.delivery_count) == (b"a", 2)
        dead.abandon_message(letter)
        assert one(dead).delivery_count == 3


def test_a_dead_lettered_message_keeps_reason_description_and_itself(namespace: Namespace) -> None:
    queue = namespace.queue()
    namespace.put(queue, b"a", message_id="m", application_properties={"h": "v"})
    with namespace.receiver(queue) as receiver:
        receiver.dead_letter_message(one(receiver), reason="why", error_description="because " * 100)
    assert namespace.seen(queue) == []
    with namespace.dead(queue) as dead:
        letter = one(dead)
        dead.complete_message(letter)
    assert letter.dead_letter_reason == "why"
    assert letter.dead_letter_error_description == "because " * 100
    assert (body(letter), letter.message_id) == (b"a", "m")
    assert letter.application_properties is not None
    assert letter.application_properties[b"h"] == b"v"
    assert namespace.seen(queue + DEAD) == []


def test_a_deferred_message_is_had_by_its_number_only(namespace: Namespace) -> None:
    queue = namespace.queue()
    namespace.put(queue, b"a", b"b")
    with namespace.receiver(queue) as receiver:
        deferred = one(receiver)
        number = deferred.sequence_number
        assert number is not None
        receiver.defer_message(deferred)
        assert body(one(receiver)) == b"b"
        assert [each.state for each in namespace.seen(queue)] == ["deferred", "locked"]
        (again,) = receiver.receive_deferred_messages([number])
        assert body(again) == b"a"
        receiver.complete_message(again)
        with refused(MessageNotFoundError):
            receiver.receive_deferred_messages([number])
    assert namespace.bodies(queue) == [b"b"]


def test_receive_and_delete_leaves_nothing(namespace: Namespace) -> None:
    queue = namespace.queue()
    namespace.put(queue, b"a", b"b")
    with namespace.receiver(queue, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE) as receiver:
        assert body(one(receiver)) == b"a"
        assert namespace.bodies(queue) == [b"b"]


def test_a_lock_runs_out_whether_or_not_its_link_lives_and_is_counted(namespace: Namespace) -> None:
    queue = namespace.queue(lock_duration=0.8)
    namespace.put(queue, b"a")
    with namespace.receiver(queue) as receiver:
        message = one(receiver)
        until(lambda: namespace.seen(queue)[0].deliveries == 1)
        with refused(MessageLockLostError):
            receiver.complete_message(message)
        one(receiver)
    assert namespace.seen(queue)[0].state == "locked"
    until(lambda: namespace.seen(queue)[0].state == "active")
    assert namespace.seen(queue)[0].deliveries == 2


def test_a_renewed_lock_holds(namespace: Namespace) -> None:
    queue = namespace.queue(lock_duration=1.0)
    namespace.put(queue, b"a")
    with namespace.receiver(queue) as receiver:
        message = one(receiver)
        for _ in range(4):
            time.sleep(0.4)
            until_then = receiver.renew_message_lock(message)
            assert until_then > datetime.now(UTC)
        receiver.complete_message(message)
    assert namespace.seen(queue) == []


def test_a_lost_lock_cannot_be_renewed(namespace: Namespace) -> None:
    queue = namespace.queue(lock_duration=5.0)
    namespace.put(queue, b"a")
    with namespace.receiver(queue) as receiver:
        message = one(receiver)
        with namespace.server.lock:
            namespace.server.store.queue(queue).main.complete(UUID(str(message.lock_token)))
        with refused(MessageLockLostError):
            receiver.renew_message_lock(message)


def test_a_lock_can_be_settled_from_another_connection(namespace: Namespace) -> None:
    queue = namespace.queue()
    namespace.put(queue, b"a", b"b", b"c", b"d")
    with namespace.receiver(queue) as receiver:
        messages = receiver.receive_messages(4, max_wait_time=WAIT)
    assert len(messages) == 4
    with namespace.receiver(queue) as other:
        for message, settle in zip(
            messages, ("complete_message", "abandon_message", "defer_message", "dead_letter_message"), strict=True
        ):
            message._receiver = other  # what it was received with is closed; the SDK then settles by management
            getattr(other, settle)(message)
    assert [(each.body, each.state, each.deliveries) for each in namespace.seen(queue)] == [
        (b"b", "active", 1),
        (b"c", "deferred", 1),
    ]
    assert namespace.bodies(queue + DEAD) == [b"d"]


def test_peeking_changes_nothing_and_sees_all_states(namespace: Namespace) -> None:
    queue = namespace.queue()
    namespace.put(queue, b"locked", b"deferred", b"active")
    with namespace.sender(queue) as sender:
        sender.schedule_messages(ServiceBusMessage(b"scheduled"), datetime.now(UTC) + timedelta(minutes=5))
    with namespace.receiver(queue) as receiver, namespace.receiver(queue) as looker:
        one(receiver)
        receiver.defer_message(one(receiver))
        before = namespace.seen(queue)
        peeked = looker.peek_messages(10, sequence_number=1)
        assert [(body(each), each.state.name) for each in peeked] == [
            (b"locked", "ACTIVE"),
            (b"deferred", "DEFERRED"),
            (b"active", "ACTIVE"),
            (b"scheduled", "SCHEDULED"),
        ]
        assert [body(each) for each in looker.peek_messages(1, sequence_number=3)] == [b"active"]
        assert looker.peek_messages(1, sequence_number=5) == []
        assert namespace.seen(queue) == before


def test_a_peek_gives_at_most_what_fits_into_a_reply(namespace: Namespace) -> None:
    queue = namespace.queue()
    namespace.put(queue, *[bytes(100_000)] * 4)
    with namespace.receiver(queue) as receiver:
        assert len(receiver.peek_messages(10)) == 2


# --- time ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["annotation", "management"])
def test_a_scheduled_message_is_not_early_and_comes(namespace: Namespace, how: str) -> None:
    queue = namespace.queue()
    with namespace.sender(queue) as sender, namespace.receiver(queue) as receiver:
        due = datetime.now(UTC) + timedelta(seconds=1)
        message = ServiceBusMessage(b"a")
        if how == "annotation":
            message.scheduled_enqueue_time_utc = due
            sender.send_messages(message)
        else:
            assert sender.schedule_messages(message, due) == [1]
        assert namespace.seen(queue)[0].state == "scheduled"
        got = one(receiver)
        assert datetime.now(UTC) >= due - timedelta(milliseconds=1)
        assert body(got) == b"a"
        assert got.enqueued_time_utc is not None
        assert abs(got.enqueued_time_utc - due) < timedelta(milliseconds=2)


def test_a_scheduled_message_comes_behind_later_ones_under_another_number(
    namespace: Namespace,
) -> None:
    """The number that scheduling tells is good only for cancelling it."""
    queue = namespace.queue()
    with namespace.sender(queue) as sender:
        assert sender.schedule_messages(ServiceBusMessage(b"late"), datetime.now(UTC) + timedelta(seconds=1)) == [1]
        sender.send_messages(ServiceBusMessage(b"early"))
        until(lambda: namespace.seen(queue)[-1].body == b"late")
        assert [(each.body, each.sequence) for each in namespace.seen(queue)] == [(b"early", 2), (b"late", 3)]
        with refused(MessageNotFoundError):
            sender.cancel_scheduled_messages(1)
    with namespace.receiver(queue) as receiver:
        assert [(body(each), each.sequence_number) for each in (one(receiver), one(receiver))] == [
            (b"early", 2),
            (b"late", 3),
        ]


def test_a_cancelled_schedule_never_comes(namespace: Namespace) -> None:
    queue = namespace.queue()
    with namespace.sender(queue) as sender:
        messages = [ServiceBusMessage(b"a"), ServiceBusMessage(b"b")]
        first, second = sender.schedule_messages(messages, datetime.now(UTC) + timedelta(seconds=60))
        sender.cancel_scheduled_messages(first)
        with refused(MessageNotFoundError):
            sender.cancel_scheduled_messages(first)
    assert [each.sequence for each in namespace.seen(queue)] == [second]


@pytest.mark.parametrize("kept", [True, False])
def test_an_expired_message_is_dead_lettered_or_dropped(namespace: Namespace, kept: bool) -> None:
    queue = namespace.queue(dead_lettering_on_message_expiration=kept)
    namespace.put(queue, b"a", time_to_live=timedelta(milliseconds=200))
    until(lambda: not namespace.seen(queue))
    if kept:
        (letter,) = namespace.seen(queue + DEAD)
        assert (letter.body, letter.reason) == (b"a", "TTLExpiredException")
    else:
        assert namespace.seen(queue + DEAD) == []


def test_a_locked_message_expires_only_when_it_is_given_back(namespace: Namespace) -> None:
    queue = namespace.queue(default_message_time_to_live=2.0, dead_lettering_on_message_expiration=True)
    with namespace.receiver(queue) as receiver, namespace.sender(queue) as sender:
        sender.send_messages(ServiceBusMessage(b"a"))
        message = one(receiver)
        time.sleep(2.1)
        assert namespace.seen(queue)[0].state == "locked"
        receiver.abandon_message(message)
        until(lambda: [each.reason for each in namespace.seen(queue + DEAD)] == ["TTLExpiredException"])


# --- forwarding ----------------------------------------------------------------------------------------------------


def test_a_forwarded_dead_letter_keeps_its_reason_and_tells_its_source(namespace: Namespace) -> None:
    letters = namespace.queue()
    queue = namespace.queue(forward_dead_lettered_messages_to=letters)
    namespace.put(queue, b"other", b"a")
    with namespace.receiver(queue) as receiver:
        receiver.complete_message(one(receiver))
        receiver.dead_letter_message(one(receiver), reason="why", error_description="because")
    assert namespace.seen(queue + DEAD) == []
    with namespace.receiver(letters) as receiver:
        letter = one(receiver)
        assert (letter.dead_letter_reason, letter.dead_letter_error_description) == ("why", "because")
        assert letter.dead_letter_source == queue
        assert (body(letter), letter.sequence_number, letter.enqueued_sequence_number) == (b"a", 1, 2)
        assert letter.delivery_count == 0


def test_a_queue_that_forwards_passes_all_on_and_has_no_receivers(namespace: Namespace) -> None:
    target = namespace.queue()
    queue = namespace.queue(forward_to=target)
    namespace.put(queue, b"a")
    assert namespace.bodies(target) == [b"a"]
    with refused(ServiceBusError, "amqp:not-allowed"), namespace.receiver(queue) as receiver:
        receiver.receive_messages(1, max_wait_time=0.5)
