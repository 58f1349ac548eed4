"""What RabbitMQ's receiver does beyond the contract: how it counts, waits, passes on, and refuses."""

from __future__ import annotations

import datetime as dt
import select
import signal
import time
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pika
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rabbitmq_operating import broker_version, operate, properties_of_next, queue_of, raw

from redelivery.contract.broker import Accept, Release, Retry, Terminate
from redelivery.contract.message import Message
from redelivery.contract.spec import DeliverySpec
from redelivery.errors import Ambiguous, BrokerError, ConfigurationError, Fatal, LeaseLost, Retriable
from redelivery_conformance.statements import Statements
from redelivery_conformance.subject import NotApplicable, Subject
from redelivery_conformance.taking import Taker, values
from redelivery_rabbitmq.address import Address
from redelivery_rabbitmq.client import broker_headers, topology
from redelivery_rabbitmq.client.deliveries import Delivery
from redelivery_rabbitmq.client.parameters import connection_parameters
from redelivery_rabbitmq.options import settings_of
from redelivery_rabbitmq.receiver import RabbitmqReceiver


class TestRetrying(Statements):
    """Retries, with and without a delay."""

    broker = "rabbitmq"

    def test_attempts_go_on_counting_over_delayed_and_undelayed_retries(self, subject: Subject) -> None:
        subject.provision()
        subject.deliver(Message(value=b"v", headers=(("a", b"b"),), id="id-1"))
        taker = Taker(subject)
        first = received = taker.one()
        for attempt, delay in ((2, 0.05), (3, 0.0), (4, 0.05), (5, 0.0)):
            taker.settle(Retry(timedelta(seconds=delay)), received)
            received = taker.one()
            assert received.attempt == attempt
            assert received.message == first.message, "what is added on the way must not be seen"

    def test_a_message_that_names_its_publisher_is_retried_by_another_user(self, subject: Subject) -> None:
        """The broker closes the channel of who publishes in another's name."""
        subject.provision()
        user = "who-publishes"
        operate(subject, "add_user", user, "pw")
        try:
            operate(subject, "set_permissions", user, ".*", ".*", ".*")
            options = {name.removeprefix("rabbitmq."): value for name, value in subject.place.options.items()}
            settings = settings_of(options | {"username": user, "password": "pw"})
            with pika.BlockingConnection(
                connection_parameters(Address.parse(subject.place.url), settings)
            ) as connection:
                named = pika.BasicProperties(user_id=user, delivery_mode=2)
                connection.channel().basic_publish("", queue_of(subject), b"v", named)
        finally:
            operate(subject, "delete_user", user)
        taker = Taker(subject)
        received = taker.one()
        taker.settle(Retry(timedelta(seconds=0.05)), received)
        again = taker.one()
        assert (again.message, again.attempt) == (received.message, 2)

    def test_a_retry_waits_in_the_queue_of_its_delay_and_is_nowhere_else(self, subject: Subject) -> None:
        subject.provision()
        subject.deliver(Message(value=b"v"))
        taker = Taker(subject)
        taker.settle(Retry(timedelta(seconds=100)), taker.one())
        name = f"{queue_of(subject)}-retry-128s"
        with raw(subject) as channel:
            counts = [
                channel.queue_declare(each, passive=True).method.message_count for each in (queue_of(subject), name)
            ]
            channel.queue_delete(name)
        assert counts == [0, 1]

    def test_a_retry_queue_that_was_deleted_meanwhile_is_made_again(self, subject: Subject) -> None:
        subject.provision()
        subject.deliver(Message(value=b"1"), Message(value=b"2"))
        taker = Taker(subject)
        first, second = taker.take(2)
        taker.settle(Retry(timedelta(seconds=1)), first)  # long enough to be deleted with its queue
        with raw(subject) as channel:
            channel.queue_delete(f"{queue_of(subject)}-retry-1s")
        taker.settle(Retry(timedelta(seconds=0.05)), second)
        assert taker.one().message.value == b"2"

    def test_where_the_broker_would_lose_what_waits_no_message_is_kept_waiting(self, subject: Subject) -> None:
        """Before 3.12 at-least-once rests on a feature flag; an operator cannot take it back, so it is by force."""
        if broker_version(subject) >= (3, 12):
            raise NotApplicable("this version has no feature flag stream_queue")
        subject.provision()
        subject.deliver(Message(value=b"v"))
        taker = Taker(subject)
        received = taker.one()
        operate(subject, "eval", "rabbit_feature_flags:mark_as_enabled_locally(stream_queue, false).")
        try:
            (answer,) = taker.answers((received, Retry(timedelta(seconds=0.05))))
        finally:
            operate(subject, "eval", "rabbit_feature_flags:mark_as_enabled_locally(stream_queue, true).")
        assert isinstance(answer, Fatal)
        assert "enable it" in str(answer)
        with raw(subject) as channel, pytest.raises(pika.exceptions.ChannelClosedByBroker, match="NOT_FOUND"):
            channel.queue_declare(f"{queue_of(subject)}-retry-1s", passive=True)
        taker.settle(Retry(timedelta(seconds=0.05)), received)
        assert taker.one().attempt == 2

    def test_a_queue_of_the_retry_queues_name_that_is_none_takes_no_message(self, subject: Subject) -> None:
        """It would never give it back."""
        subject.provision()
        name = f"{queue_of(subject)}-retry-1s"
        with raw(subject) as channel:
            channel.queue_declare(name, durable=True)
        subject.deliver(Message(value=b"v"))
        taker = Taker(subject)
        received = taker.one()
        (answer,) = taker.answers((received, Retry(timedelta(seconds=0.1))))
        assert isinstance(answer, Fatal)
        assert name in str(answer)
        assert "inequivalent arg" in str(answer)
        with raw(subject) as channel:
            assert channel.queue_delete(name).method.message_count == 0
        taker.settle(Accept(), received)

    def test_without_a_dead_letter_queue_nothing_is_terminated_and_the_message_stays(self, subject: Subject) -> None:
        subject.provision()
        with raw(subject) as channel:
            channel.queue_delete(f"{queue_of(subject)}-dead-letters")
        subject.deliver(Message(value=b"v"), Message(value=b"w"))
        taker = Taker(subject)
        received, neighbour = taker.take(2)
        answers = taker.answers((received, Terminate(received.message, "why")), (neighbour, Accept()))
        assert isinstance(answers[0], Fatal)
        assert "provision" in str(answers[0])
        assert answers[1] is None
        taker.settle(Release(), received)
        assert values(taker.take(1)) == [b"v"]


class TestReceiving(Statements):
    """What comes, and how."""

    broker = "rabbitmq"

    def test_what_is_returned_at_a_close_was_never_more_than_what_was_asked_for(self, subject: Subject) -> None:
        """A consumer that had taken more than was asked for would have had the others counted as delivered."""
        subject.provision()
        subject.deliver(*(Message(value=b"%d" % at) for at in range(50)))
        with Taker(subject) as taker:
            held = taker.take(7)
        again = Taker(subject).take(50)
        returned = {each.message.value for each in again if each.lease.redelivered}
        assert returned == set(values(held))

    def test_what_several_calls_took_comes_again_in_its_order(self, subject: Subject) -> None:
        """A quorum queue takes back what consumers had in the order of their names."""
        wanted = [b"%d" % at for at in range(30)]
        subject.deliver(*(Message(value=value) for value in wanted))
        with Taker(subject) as taker:
            received = [each for count in (1, 1, 3, 5, 1, 7, 6) for each in taker.take(count)]
            taker.settle(Release(), *received)
        assert values(Taker(subject).take(30)) == wanted

    def test_a_call_that_a_signal_interrupts_loses_no_message(self, subject: Subject) -> None:
        """A consumer that stayed would receive messages unseen, and they would be acknowledged."""
        taker = Taker(subject)
        assert not taker.receiver.receive(1, wait=0.0)
        before = signal.signal(signal.SIGALRM, signal.default_int_handler)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.5)
            with pytest.raises(KeyboardInterrupt):
                taker.receiver.receive(10, wait=30.0)
        finally:
            signal.signal(signal.SIGALRM, before)
        wanted = [b"%d" % at for at in range(30)]
        subject.deliver(*(Message(value=value) for value in wanted))
        for _ in range(3):
            taker.settle(Accept(), *taker.take(10))
        assert not subject.values()

    def test_a_message_in_hand_for_longer_than_the_broker_allows_is_retriable_and_comes_again(
        self, subject: Subject
    ) -> None:
        set_env = "application:set_env(rabbit, {}, {})".format
        operate(subject, "eval", f"{set_env('consumer_timeout', 500)}, {set_env('channel_tick_interval', 200)}.")
        try:
            subject.deliver(Message(value=b"v"))
            taker = Taker(subject, options={"rabbitmq.heartbeat": "0"})
            received = taker.one()
            role: Any = taker.receiver
            with role._lock:  # so that the close of the channel is not read too early
                socket = role._connection._impl._transport._sock
                assert select.select([socket], [], [], 30)[0], "the broker says nothing"
                with pytest.raises(Retriable, match="held for longer"):
                    taker.receiver.settle([(received, Accept())])
        finally:
            reset = f"{set_env('consumer_timeout', 1_800_000)}, {set_env('channel_tick_interval', 60_000)}."
            operate(subject, "eval", reset)
        taker.is_lost(received, Accept())
        taker.settle(Accept(), taker.one())

    def test_a_receiver_goes_on_where_a_message_was_in_hand_for_too_long(self, subject: Subject) -> None:
        set_env = "application:set_env(rabbit, {}, {})".format
        operate(subject, "eval", f"{set_env('consumer_timeout', 2_000)}, {set_env('channel_tick_interval', 200)}.")
        try:
            subject.deliver(Message(value=b"v"))
            taker = Taker(subject)
            received = taker.one()
            end = time.monotonic() + 30
            again = []
            while not again:
                assert time.monotonic() < end, "the message does not come again"
                again = list(taker.receiver.receive(1, wait=1.0))
            taker.settle(Accept(), *again)
        finally:
            reset = f"{set_env('consumer_timeout', 1_800_000)}, {set_env('channel_tick_interval', 60_000)}."
            operate(subject, "eval", reset)
        taker.is_lost(received, Accept())
        assert not subject.values()

    def test_giving_back_costs_a_message_no_life_where_the_broker_can(self, subject: Subject) -> None:
        """More often than the broker's default limit of deliveries."""
        if broker_version(subject) < (4, 3):
            raise NotApplicable("this version counts every return")
        url = subject.place.limited()
        subject.deliver(Message(value=b"1"), Message(value=b"2"), url=url)
        broker = subject.connect(url)
        for _ in range(25):
            with broker.receiver(lease=timedelta(seconds=30)) as receiver:
                received = receiver.receive(2, wait=5.0)
                assert [(each.message.value, each.attempt) for each in received] == [(b"1", 1), (b"2", 1)]
                assert receiver.settle([(each, Release()) for each in received]) == [None, None]

    def test_a_broker_that_falls_silent_bounds_a_request_without_heartbeats_too(self, subject: Subject) -> None:
        options = {"rabbitmq.heartbeat": "0", "rabbitmq.blocked_connection_timeout": "1"}
        subject.deliver(Message(value=b"v"))
        admin = subject.keep(subject.connect(options=options).admin())
        assert admin.depth() == 1
        with subject.runtime.outage():
            began = time.monotonic()
            with pytest.raises(Ambiguous, match="no answer for 1 s"):
                admin.depth()
            assert time.monotonic() - began < 5
        assert admin.depth() == 1

    def test_a_queue_that_does_not_answer_bounds_a_request_though_heartbeats_come(self, subject: Subject) -> None:
        options = {"rabbitmq.heartbeat": "1", "rabbitmq.blocked_connection_timeout": "3"}
        queue = f"{queue_of(subject)}-hung"
        of_it = f'{{ok, Q}} = rabbit_amqqueue:lookup(rabbit_misc:r(<<"/">>, queue, <<"{queue}">>)), sys:'
        subject.place.runtime.cluster.make(queue, {"x-queue-type": "classic"})  # type: ignore[attr-defined]
        admin = subject.keep(subject.connect(subject.place.runtime.url(queue), options).admin())  # type: ignore[attr-defined]
        assert admin.depth() == 0
        operate(subject, "eval", f"{of_it}suspend(amqqueue:get_pid(Q)).")
        try:
            began = time.monotonic()
            with pytest.raises(Ambiguous, match="no answer for 3 s"):
                admin.depth()
            assert time.monotonic() - began < 8
        finally:
            operate(subject, "eval", f"{of_it}resume(amqqueue:get_pid(Q)).")
        assert admin.depth() == 0
        subject.place.runtime.cluster.remove(queue)  # type: ignore[attr-defined]

    def test_waiting_for_a_message_is_no_silence(self, subject: Subject) -> None:
        options = {"rabbitmq.heartbeat": "0", "rabbitmq.blocked_connection_timeout": "0.2"}
        taker = Taker(subject, options=options)
        assert not taker.receiver.receive(1, wait=1.0)
        subject.deliver(Message(value=b"v"))
        taker.settle(Accept(), taker.one())

    def test_a_deleted_queue_is_told(self, subject: Subject) -> None:
        subject.provision()
        taker = Taker(subject)
        with raw(subject) as channel:
            channel.queue_delete(queue_of(subject))
        with pytest.raises(BrokerError, match=queue_of(subject)):
            taker.receiver.receive(1, wait=0.0)

    def test_a_queue_deleted_while_it_waits_ends_the_wait(self, subject: Subject) -> None:
        subject.provision()
        taker = Taker(subject)
        assert taker.receiver.receive(1, wait=0.0) == []
        with raw(subject) as channel:
            channel.queue_delete(queue_of(subject))
        began = time.monotonic()
        with pytest.raises(BrokerError):
            taker.receiver.receive(5, wait=5.0)
        assert time.monotonic() - began < 4.0

    def test_a_connection_that_an_operator_closes_loses_the_leases_and_no_message(self, subject: Subject) -> None:
        """The next call has a new connection."""
        subject.provision()
        subject.deliver(Message(value=b"v"))
        taker = Taker(subject)
        received = taker.one()
        operate(subject, "close_all_connections", "test")
        with suppress(BrokerError):  # or the lease is lost, if the connection's end was seen before
            assert isinstance(taker.receiver.settle([(received, Accept())])[0], LeaseLost)
        again = taker.one()
        taker.is_lost(received, Accept())
        taker.settle(Accept(), again)
        assert not subject.values()

    def test_an_exchange_without_a_queue_cannot_be_received_from(self, subject: Subject) -> None:
        url = subject.place.url.replace("?queue=", "?exchange=")
        with pytest.raises(ConfigurationError, match="queue"):
            subject.connect(url).receiver()

    def test_headers_of_any_kind_from_others_are_read_and_come_again_after_a_retry(self, subject: Subject) -> None:
        """Nested tables, lists, times, numbers, and 100 KB in one value."""
        subject.provision()
        headers = {
            "table": {"deep": {"deeper": [1, "two", {"three": None}]}},
            "when": dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC),
            "price": Decimal("1.25"),
            "number": -(2**40),
            "flag": True,
            "bytes": b"\xff\0",
            "large": "x" * 100_000,
        }
        with raw(subject) as channel:
            channel.confirm_delivery()
            given_ = pika.BasicProperties(
                headers=headers, delivery_mode=2, message_id="m", correlation_id="c", priority=3
            )
            channel.basic_publish("", queue_of(subject), b"v", given_, mandatory=True)
        taker = Taker(subject)
        first = taker.one()
        found = dict(first.message.headers)
        assert first.undecodable is None
        assert first.message.id == "m"
        assert found["table"] == b'{"deep": {"deeper": [1, "two", {"three": null}]}}'
        assert found["large"] == b"x" * 100_000
        taker.settle(Retry(timedelta(milliseconds=20)), first)
        again = taker.one()
        assert dict(again.message.headers) == found, "their order is lost: a quorum queue sorts them"
        assert replace(again.message, headers=()) == replace(first.message, headers=())
        taker.settle(Retry(timedelta(milliseconds=20)), again)
        properties = properties_of_next(subject, queue_of(subject))
        assert {name: properties.headers[name] for name in headers} == headers, "a copy is the same, to the type"
        assert (properties.correlation_id, properties.priority) == ("c", 3)


class TestProvisionedRetries(Statements):
    """Retry queues, made before they are needed."""

    broker = "rabbitmq"

    def test_a_specs_own_delays_need_no_further_queue(self, subject: Subject) -> None:
        spec = DeliverySpec(retry=3, backoff_policy="exponential", backoff_delay=timedelta(seconds=1))
        with subject.broker.admin() as admin:
            names = {item.name for item in admin.plan(spec).objects}
        queue = queue_of(subject)
        wanted = {f"{queue}-retry-{topology.retry_step(timedelta(seconds=2**n))}s" for n in (1, 2, 3)}
        assert wanted <= names


@given(st.integers(0, 60 * 86_400_000).map(lambda ms: timedelta(milliseconds=ms)))
def test_a_delay_waits_in_the_smallest_power_of_two_that_holds_it(delay: timedelta) -> None:
    step = topology.retry_step(delay)
    assert step & (step - 1) == 0
    assert timedelta(seconds=step) >= min(delay, topology.DELAY_MAX)
    assert step == 1 or timedelta(seconds=step // 2) < delay
    assert 1000 * step < 2**32, "the broker takes no longer time to live"


@pytest.mark.parametrize(
    ("headers", "redelivered", "attempt"),
    [
        (None, False, 1),
        (None, True, 2),
        ({"x-delivery-count": 0}, False, 1),
        ({"x-delivery-count": 4}, True, 5),
        ({"x-delivery-count": 4}, False, 1),
        ({"x-acquired-count": 4}, True, 1),
        ({"x-acquired-count": 4, "x-delivery-count": 2}, True, 3),
        ({"x-delivery-count": 4, broker_headers.ATTEMPTS: 3}, True, 8),
        ({broker_headers.ATTEMPTS: 3}, True, 5),
        ({broker_headers.ATTEMPTS: "many", "x-delivery-count": -1}, False, 1),
    ],
)
def test_attempts_are_the_queues_count_and_what_was_before_the_last_delay(
    headers: dict[str, object] | None, redelivered: bool, attempt: int
) -> None:
    _, found = broker_headers.split(pika.BasicProperties(headers=headers))
    assert found.attempt(redelivered=redelivered) == attempt


@pytest.mark.parametrize(("redelivered", "failures"), [(False, 1), (True, 5)])
def test_the_count_of_the_former_queue_is_not_the_failures_in_this_one(redelivered: bool, failures: int) -> None:
    address = Address.parse("rabbitmq://localhost/?queue=q")
    receiver = RabbitmqReceiver(address, settings_of({}, address.parameters), timedelta(0))
    asked: list[int] = []
    keep = lambda _, failures: asked.append(failures) or True  # noqa: E731 - as KeptDelays
    receiver._kept_delays = SimpleNamespace(keep=keep)  # type: ignore[assignment]
    properties = pika.BasicProperties(headers={"x-delivery-count": 4})
    delivery = Delivery(None, 1, redelivered, None, b"", properties, b"")
    assert receiver._is_rejected(delivery, Retry(timedelta(seconds=1)))
    assert asked == [failures]
