"""Delays that a quorum queue keeps itself, on brokers that have them; and that every other delay is kept as before."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Self

import pytest
from pika.exceptions import ChannelClosedByBroker
from rabbitmq_operating import as_user, broker_version, queue_of, raw

from redelivery.contract.broker import Accept, Difference, Plan, Received, Release, Retry
from redelivery.contract.message import Message
from redelivery.contract.spec import DeliverySpec
from redelivery.errors import Fatal
from redelivery_conformance.statements import Statements
from redelivery_conformance.subject import NotApplicable, Subject
from redelivery_conformance.taking import Taker
from redelivery_rabbitmq.client.arguments import KeptDelays, compared
from redelivery_rabbitmq.client.queue_delays import SINCE, QueueDelay
from redelivery_rabbitmq.client.renewal import is_limitless
from redelivery_rabbitmq.client.topology import Queue, queues
from redelivery_rabbitmq.options import Settings

MILLI = timedelta(milliseconds=1)
STEP = 400 * MILLI
LINEAR = DeliverySpec(retry=5, backoff_policy="linear", backoff_delay=STEP, backoff_max=2.5 * STEP)
EXPONENTIAL = DeliverySpec(retry=2, backoff_policy="exponential", backoff_delay=STEP)
ARGUMENTS = {"x-delayed-retry-type": "failed", "x-delayed-retry-min": 400, "x-delayed-retry-max": 1000}
#: Seconds that a busy machine may take to bring a message whose delay is over.
LATE = 1.0


def needs_native(subject: Subject) -> None:
    """Only newer brokers delay."""
    if broker_version(subject) < SINCE:
        raise NotApplicable("the queues of this version delay nothing")


def linear(subject: Subject) -> None:
    """Provision the place again, with linear backoff."""
    needs_native(subject)
    subject.place.cluster.remove(queue_of(subject))  # type: ignore[attr-defined]
    with subject.broker.admin() as admin:
        admin.provision(LINEAR)


def planned(subject: Subject, spec: DeliverySpec, **options: str) -> Plan:
    """What an admin plans."""
    with subject.connect(options={f"rabbitmq.{name}": value for name, value in options.items()}).admin() as admin:
        return admin.plan(spec)


def retry_queues(subject: Subject) -> list[str]:
    """The retry queues that exist."""
    names = [f"{queue_of(subject)}-retry-{1 << step}s" for step in range(4)]
    return [name for name in names if subject.place.cluster.count(name) is not None]  # type: ignore[attr-defined]


def retried(taker: Taker, received: Received, delay: timedelta) -> Received:
    """Ask for a delay; assert that the message comes after it, and soon; return it."""
    began = time.monotonic()
    taker.settle(Retry(delay), received)
    again = taker.one()
    waited, wanted = time.monotonic() - began, delay.total_seconds()
    assert wanted - 0.01 <= waited <= wanted + LATE
    return again


class TestDelaysOfTheQueueItself(Statements):
    """Linear backoff: no retry queue, no copy."""

    broker = "rabbitmq"

    def test_each_retry_comes_after_its_linear_delay_and_nothing_is_copied(self, subject: Subject) -> None:
        linear(subject)
        subject.deliver(Message(value=b"v", id="one"))
        taker = Taker(subject)
        received = taker.one()
        for attempt, factor in ((1, 1.0), (2, 2.0), (3, 2.5), (4, 2.5)):
            assert received.attempt == attempt
            received = retried(taker, received, factor * STEP)
        assert received.message.id == "one"
        assert not retry_queues(subject)
        taker.settle(Accept(), received)
        assert subject.values().total() == 0

    def test_a_delayed_message_holds_up_no_other(self, subject: Subject) -> None:
        linear(subject)
        subject.deliver(Message(value=b"1"), Message(value=b"2"))
        taker = Taker(subject)
        first = taker.one()
        began = time.monotonic()
        taker.settle(Retry(STEP), first)
        second = taker.one()
        assert time.monotonic() - began < STEP.total_seconds()
        late = taker.one()
        assert time.monotonic() - began >= STEP.total_seconds() - 0.01
        assert [(each.message.value, each.attempt) for each in (second, late)] == [(b"2", 1), (b"1", 2)]
        taker.settle(Accept(), second, late)

    def test_a_released_message_is_neither_delayed_nor_counted(self, subject: Subject) -> None:
        linear(subject)
        subject.deliver(Message(value=b"1"), Message(value=b"2"))
        taker = Taker(subject)
        first, second = taker.take(2)
        began = time.monotonic()
        taker.settle(Release(), first, second)
        again = taker.take(2)
        assert time.monotonic() - began < STEP.total_seconds()
        assert [(each.message.value, each.attempt) for each in again] == [(b"1", 1), (b"2", 1)]
        taker.settle(Accept(), *again)

    def test_a_delay_that_is_not_the_queues_goes_through_a_retry_queue(self, subject: Subject) -> None:
        """A handler may ask for a longer pause. The queue then counts from one again, and the attempts go on."""
        linear(subject)
        subject.deliver(Message(value=b"v"))
        taker = Taker(subject)
        received = retried(taker, taker.one(), 3 * STEP)
        assert retry_queues(subject) == [f"{queue_of(subject)}-retry-2s"]
        assert received.attempt == 2
        received = retried(taker, received, 2 * STEP)
        assert received.attempt == 3
        taker.settle(Accept(), received)

    def test_a_receiver_without_the_right_to_look_trusts_the_option(self, subject: Subject) -> None:
        linear(subject)
        url = as_user(subject, "^$", r"^amq\.default$", f"^{queue_of(subject)}$")
        subject.deliver(Message(value=b"v"))
        taker = Taker(subject, broker=subject.connect(url))
        received = taker.one()
        (answer,) = taker.answers((received, Retry(STEP)))
        assert isinstance(answer, Fatal), "there are no retry queues, and it may not make one"
        taker.settle(Release(), received)
        taker.receiver.close()
        taker = Taker(subject, broker=subject.connect(url, {"rabbitmq.delays": "native"}))
        taker.settle(Accept(), retried(taker, taker.one(), STEP))

    def test_reading_the_arguments_of_a_queue_that_was_deleted_creates_none(self, subject: Subject) -> None:
        linear(subject)
        subject.deliver(Message(value=b"v"))
        taker = Taker(subject)
        received = taker.one()
        subject.place.cluster.remove(queue_of(subject))  # type: ignore[attr-defined]
        with pytest.raises(Fatal, match="does not exist"):
            taker.answers((received, Retry(STEP)))
        assert subject.place.cluster.count(queue_of(subject)) is None  # type: ignore[attr-defined]

    def test_the_plan_has_the_arguments_and_no_retry_queue(self, subject: Subject) -> None:
        linear(subject)
        plan = planned(subject, LINEAR)
        assert not plan.drift
        assert not [item.name for item in plan.objects if "-retry-" in item.name]
        assert any("400 ms more each time, up to 1000 ms" in each for each in plan.approximations)
        with raw(subject) as channel:  # equal, or refused
            wanted = {**subject.place._arguments(), **ARGUMENTS, "x-delivery-limit": 16}  # type: ignore[attr-defined]
            channel.queue_declare(queue_of(subject), durable=True, arguments=wanted)

    def test_another_delay_is_drift(self, subject: Subject) -> None:
        linear(subject)
        other = DeliverySpec(retry=5, backoff_policy="linear", backoff_delay=2 * STEP, backoff_max=4 * STEP)
        assert set(self._differences(subject, other)) == {
            Difference("x-delayed-retry-min", "800", "400"),
            Difference("x-delayed-retry-max", "1600", "1000"),
        }
        assert Difference("x-delayed-retry-type", "none", "failed") in self._differences(subject, EXPONENTIAL)
        assert not self._differences(subject, DeliverySpec())

    def test_a_queue_from_before_differs_and_is_used_with_retry_queues(self, subject: Subject) -> None:
        needs_native(subject)
        plan = planned(subject, LINEAR)
        assert any("without delays of its own" in each for each in plan.warnings)
        emulated = planned(subject, LINEAR, delays="emulated")
        assert not [each for each in emulated.warnings if "delays" in each]
        assert [item.name for item in emulated.objects if item.name.endswith("-retry-1s")]
        subject.deliver(Message(value=b"v"))
        taker = Taker(subject)
        received = retried(taker, taker.one(), STEP)
        assert retry_queues(subject)
        taker.settle(Accept(), received)

    def test_exponential_backoff_goes_through_retry_queues_and_the_plan_says_so(self, subject: Subject) -> None:
        needs_native(subject)
        plan = planned(subject, EXPONENTIAL)
        assert any("delay only linearly" in each for each in plan.approximations)
        assert [item.name for item in plan.objects if "-retry-" in item.name]

    @staticmethod
    def _differences(subject: Subject, spec: DeliverySpec) -> list[Difference]:
        return [
            each
            for item in planned(subject, spec).objects
            if item.name == queue_of(subject)
            for each in item.differences
        ]


class TestRefusing(Statements):
    """The option `native` where the queue cannot delay."""

    broker = "rabbitmq"

    def test_native_delays_are_refused_by_the_version(self, subject: Subject) -> None:
        if broker_version(subject) >= SINCE:
            raise NotApplicable("the queues of this version delay")
        with pytest.raises(Fatal, match=r"queues delay from 4\.3 on"):
            planned(subject, LINEAR, delays="native")
        subject.deliver(Message(value=b"v"))
        taker = Taker(subject, broker=subject.connect(options={"rabbitmq.delays": "native"}))
        received = taker.one()
        with pytest.raises(Fatal, match=r"queues delay from 4\.3 on"):
            taker.answers((received, Retry(STEP)))
        taker.settle(Accept(), received)

    def test_native_delays_are_refused_if_the_backoff_is_not_linear(self, subject: Subject) -> None:
        with pytest.raises(Fatal, match=r"rabbitmq\.delays"):
            planned(subject, EXPONENTIAL, delays="native")


@pytest.mark.parametrize(
    ("version", "settings", "spec", "native"),
    [
        ((4, 3, 6), {}, LINEAR, True),
        ((4, 4), {"delays": "native"}, LINEAR, True),
        ((4, 3), {"delays": "emulated"}, LINEAR, False),
        ((4, 3), {"queue_type": "classic"}, LINEAR, False),
        ((4, 3), {}, EXPONENTIAL, False),
        ((4, 2, 6), {}, LINEAR, False),
        ((3, 10, 8), {}, LINEAR, False),
        ((), {}, LINEAR, False),
    ],
)
def test_who_delays_depends_on_version_queue_spec_and_option(
    version: tuple[int, ...], settings: dict[str, str], spec: DeliverySpec, native: bool
) -> None:
    found = queues("q", spec, Settings(**settings), version)  # type: ignore[arg-type]
    assert any("-retry-" in each.name for each in found) is not native
    assert any("x-delayed-retry-type" in each.arguments for each in found) is native


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ({"type": "failed", "min": "5", "max": "9"}, QueueDelay(5, 9)),
        ({"type": "all", "min": "5"}, QueueDelay(5, 5)),
        ({"type": "returned", "min": "5"}, None),
        ({"type": "disabled", "min": "5"}, None),
        ({"type": "failed"}, None),
        ({"min": "5"}, None),
    ],
)
def test_a_queue_delays_what_was_rejected_or_it_does_not_count(arguments: dict[str, str], found: object) -> None:
    given = {f"x-delayed-retry-{name}": value for name, value in arguments.items()}
    assert QueueDelay.of_arguments({"x-queue-type": "quorum", **given}) == found
    assert QueueDelay.of_arguments({"x-queue-type": "classic", **given}) is None


def test_a_delay_is_kept_if_the_queues_is_not_shorter_and_at_most_twice_as_long() -> None:
    delay = QueueDelay(400, 1000)
    assert [delay.after(failures) / MILLI for failures in (1, 2, 3, 9)] == [400, 800, 1000, 1000]
    assert [delay.keeps(asked * MILLI, 1) for asked in (400, 200, 401, 199)] == [True, True, False, False]


# --- reading the arguments of queues, without a broker ---


class FakeQueue:
    """Connection, channel and broker in one: it refuses a declaration as RabbitMQ does, in 255 bytes at most."""

    def __init__(self, name: str, **arguments: tuple[str, object]) -> None:
        self.name = name
        self.arguments = {"x-" + each.replace("_", "-"): typed for each, typed in arguments.items()}

    def channel(self) -> FakeQueue:
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def queue_declare(self, name: str, *, arguments: dict[str, object], **flags: bool) -> None:
        given = {each: value for each, value in arguments.items() if each != "x-max-priority"}
        for each in sorted(self.arguments.keys() | given.keys()):
            type_, value = self.arguments.get(each, ("", None))
            if given.get(each) != value:
                got = f"the value '{given[each]}' of type 'longstr'" if each in given else "none"
                shown = str(value).lower() if isinstance(value, bool) else value
                has = "none" if value is None else f"the value '{shown}' of type '{type_}'"
                text = f"PRECONDITION_FAILED - inequivalent arg '{each}' for queue '{name}' in vhost '/': "
                text += f"received {got} but current is {has}"
                raise ChannelClosedByBroker(406, text if len(text) <= 255 else text[:252] + "...")


@pytest.mark.parametrize(
    ("type_", "value"), [("bool", True), ("bool", False), ("long", 5), ("unsignedbyte", 5), ("longstr", "5")]
)
def test_an_argument_is_read_with_its_type(type_: str, value: object) -> None:
    found = compared(FakeQueue("q", single_active_consumer=(type_, value)), Queue("q", {}))  # type: ignore[arg-type]
    assert found[1] == {"x-single-active-consumer": value}
    assert type(found[1]["x-single-active-consumer"]) is type(value)


@pytest.mark.parametrize(
    "queue",
    [
        FakeQueue(
            "customer-orders.eu-west.invoicing.requests.and.answers.of.v2",
            dead_letter_routing_key=("longstr", "q" * 90),
        ),
        FakeQueue("q", other=("table", "[]")),
        FakeQueue("q", other=("float", "0.5")),
    ],
    ids=["cut off", "a table", "a fraction"],
)
def test_a_queue_whose_arguments_cannot_be_read_keeps_no_delay_and_may_have_a_limit(queue: FakeQueue) -> None:
    delays = KeptDelays(queue.name, Settings())
    delays.read(queue, SINCE)  # type: ignore[arg-type]
    assert not delays.keep(STEP, 1)
    assert not is_limitless(queue, queue.name)  # type: ignore[arg-type]


def test_a_long_name_hides_no_delay() -> None:
    """The broker's refusal names the queue, its virtual host, and the dead letter queue, of which we guess the name."""
    name = "customer-orders.eu-west.invoicing.requests.and.answers.of.v2"
    delaying = {"delayed_retry_type": ("longstr", "failed"), "delayed_retry_min": ("long", 400)}
    ours = {
        "dead_letter_exchange": ("longstr", ""),
        "dead_letter_routing_key": ("longstr", f"{name}-dead-letters"),
        "dead_letter_strategy": ("longstr", "at-least-once"),
        "overflow": ("longstr", "reject-publish"),
    }
    for others in (ours, {}):
        queue = FakeQueue(name, queue_type=("longstr", "quorum"), **delaying, **others)
        delays = KeptDelays(name, Settings())
        delays.read(queue, SINCE)  # type: ignore[arg-type]
        assert delays.keep(STEP, 1), others
