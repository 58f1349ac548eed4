"""What RabbitMQ's admin makes, reads and says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pika
import pytest
from rabbitmq_operating import broker_version, operate, raw

from redelivery.contract.broker import Difference, NativeObject, Retry
from redelivery.contract.message import Message
from redelivery.contract.spec import UNLIMITED, DeliverySpec
from redelivery.deadletters.queue import dead_letters
from redelivery.errors import BrokerError, Fatal, Retriable
from redelivery_conformance.statements import Statements
from redelivery_conformance.subject import NotApplicable, Subject
from redelivery_conformance.taking import Taker
from redelivery_rabbitmq.address import Address
from redelivery_rabbitmq.client import topology
from redelivery_rabbitmq.options import Settings

SPEC = DeliverySpec(retry=3)


def fresh(subject: Subject, name: str = "-made") -> str:
    """URL of a queue that is not there; it and what belongs to it are removed when the test ends."""
    queue = Address.parse(subject.place.url).queue + name

    def remove() -> None:
        with raw(subject) as channel:
            for each in (queue, f"{queue}-dead-letters", *(f"{queue}-retry-{2**n}s" for n in range(8))):
                channel.queue_delete(each)

    subject._stack.callback(remove)
    return subject.place.url.replace(f"queue={Address.parse(subject.place.url).queue}", f"queue={queue}")


def planned(subject: Subject, url: str, spec: DeliverySpec = SPEC, **options: str) -> dict[str, NativeObject]:
    """Return the plan, by name without that of the queue."""
    queue = Address.parse(url).queue
    with subject.connect(url, {f"rabbitmq.{name}": value for name, value in options.items()}).admin() as admin:
        return {item.name.removeprefix(queue): item for item in admin.plan(spec).objects}


def provision(subject: Subject, url: str, spec: DeliverySpec = SPEC, **options: str) -> None:
    """Make it."""
    with subject.connect(url, {f"rabbitmq.{name}": value for name, value in options.items()}).admin() as admin:
        admin.provision(spec)


class TestProvisioning(Statements):
    """Queues are created as planned, and differences are reported."""

    broker = "rabbitmq"

    def test_a_work_queue_dead_letters_at_least_once_with_a_limit_above_cores_own(self, subject: Subject) -> None:
        url = fresh(subject)
        provision(subject, url, queue_type="quorum")
        queue = Address.parse(url).queue
        wanted = {
            "x-queue-type": "quorum",
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": f"{queue}-dead-letters",
            "x-dead-letter-strategy": "at-least-once",
            "x-overflow": "reject-publish",
            "x-delivery-limit": SPEC.retry + 11 if SPEC.retry else 0,
        }
        with raw(subject) as channel:  # equal, or refused
            channel.queue_declare(queue, durable=True, arguments=wanted)

    def test_every_attribute_that_differs_is_named_with_what_is_wanted_and_found(self, subject: Subject) -> None:
        url = fresh(subject)
        queue = Address.parse(url).queue
        with raw(subject) as channel:
            arguments = {"x-queue-type": "quorum", "x-delivery-limit": 2, "x-max-length": 9, "x-overflow": "drop-head"}
            channel.queue_declare(queue, durable=True, arguments=arguments)
        differences = planned(subject, url, queue_type="quorum", queue_ttl="60")[""].differences
        assert set(differences) == {
            Difference("x-delivery-limit", "14", "2"),
            Difference("x-max-length", "none", "9"),
            Difference("x-overflow", "reject-publish", "drop-head"),
            Difference("x-dead-letter-exchange", "", "none"),
            Difference("x-dead-letter-routing-key", f"{queue}-dead-letters", "none"),
            Difference("x-dead-letter-strategy", "at-least-once", "none"),
            Difference("x-message-ttl", "60000", "none"),
        }
        with pytest.raises(Fatal) as caught:
            provision(subject, url, queue_type="quorum", queue_ttl="60")
        assert all(each.attribute in str(caught.value) for each in differences)

    @pytest.mark.parametrize(("there", "wanted"), [("classic", "quorum"), ("quorum", "classic")])
    def test_a_queue_of_another_type_is_told_in_words(self, subject: Subject, there: str, wanted: str) -> None:
        url = fresh(subject)
        provision(subject, url, queue_type=there)
        (found,) = [
            each
            for each in planned(subject, url, queue_type=wanted)[""].differences
            if each.attribute == "x-queue-type"
        ]
        assert found == Difference("x-queue-type", wanted, there)

    @pytest.mark.parametrize(("kind", "warned"), [("classic", True), ("quorum", False)])
    def test_dead_lettering_at_most_once_is_a_warning(self, subject: Subject, kind: str, warned: bool) -> None:
        """Of a missing queue, and of an existing one."""
        url = fresh(subject)
        for _ in range(2):
            with subject.connect(url, {"rabbitmq.queue_type": kind}).admin() as admin:
                assert ("at most once" in " ".join(admin.plan(SPEC).warnings)) is warned
                admin.provision(SPEC)

    def test_a_dead_letter_exchange_that_is_not_there_is_a_warning(self, subject: Subject) -> None:
        url = fresh(subject)
        for exchange, warned in (("nowhere-to-be-found", True), ("amq.fanout", False)):
            with raw(subject) as channel:
                channel.queue_delete(Address.parse(url).queue)
                arguments = {"x-queue-type": "quorum", "x-dead-letter-exchange": exchange}
                channel.queue_declare(Address.parse(url).queue, durable=True, arguments=arguments)
            with subject.connect(url).admin() as admin:
                text = f"the exchange {exchange!r}, which does not exist"
                assert (text in " ".join(admin.plan(SPEC).warnings)) is warned

    @pytest.mark.parametrize("end", ["", "-dead-letters"])
    def test_a_queue_that_drops_what_exceeds_its_delivery_limit_is_a_warning(self, subject: Subject, end: str) -> None:
        """From 4.0 on a quorum queue has a limit of 20 unless told otherwise. The broker then really drops it."""
        url = fresh(subject)
        name = f"{Address.parse(url).queue}{end}"
        by_default = 20 if broker_version(subject) >= (4, 0) else None
        there: tuple[tuple[dict[str, object], int | None], ...] = (
            ({"x-queue-type": "quorum"}, by_default),
            ({"x-queue-type": "quorum", "x-delivery-limit": 1}, 1),
            ({"x-queue-type": "quorum", "x-delivery-limit": 1, "x-dead-letter-exchange": "amq.fanout"}, None),
            ({"x-queue-type": "classic"}, None),
        )
        for arguments, limit in there:
            with raw(subject) as channel:
                channel.queue_delete(name)
                channel.queue_declare(name, durable=True, arguments=arguments)
            with subject.connect(url).admin() as admin:
                found = [each for each in admin.plan(DeliverySpec()).warnings if "drops a message" in each]
            assert len(found) == (limit is not None), arguments
            assert all(f"queue {name!r} has a delivery limit of {limit} and no" in each for each in found)

    def test_a_message_over_the_limit_is_dropped_as_the_warning_says(self, subject: Subject) -> None:
        url = fresh(subject)
        name = Address.parse(url).queue
        with raw(subject) as channel:
            channel.queue_declare(name, durable=True, arguments={"x-queue-type": "quorum", "x-delivery-limit": 2})
            channel.basic_publish("", name, b"v")
        with subject.connect(url).admin() as admin:
            (warning,) = [each for each in admin.plan(DeliverySpec()).warnings if "drops a message" in each]
        taker = Taker(subject, broker=subject.connect(url))
        deliveries = 0
        while received := taker.receiver.receive(1, wait=1.0):
            deliveries += 1
            taker.settle(Retry(), *received)
        assert f"comes back from its delivery {deliveries}" in warning

    def test_a_queue_that_outlives_no_restart_differs(self, subject: Subject) -> None:
        url = fresh(subject)
        with raw(subject) as channel:
            arguments = {
                "x-dead-letter-exchange": "",
                "x-dead-letter-routing-key": f"{Address.parse(url).queue}-dead-letters",
            }
            channel.queue_declare(Address.parse(url).queue, durable=False, arguments=arguments)
        assert planned(subject, url, queue_type="classic")[""].differences == [Difference("durable", "true", "false")]

    def test_a_limit_that_the_spec_says_nothing_of_is_no_difference(self, subject: Subject) -> None:
        url = fresh(subject)
        provision(subject, url, queue_type="quorum")
        assert planned(subject, url, DeliverySpec(), queue_type="quorum")[""].action == "keep"
        assert planned(subject, url, DeliverySpec(retry=4), queue_type="quorum")[""].differences == [
            Difference("x-delivery-limit", "15", "14")
        ]

    def test_length_and_time_to_live_are_made_by_option(self, subject: Subject) -> None:
        url = fresh(subject)
        provision(subject, url, queue_length="2", queue_ttl="90")
        assert planned(subject, url, queue_length="2", queue_ttl="90")[""].action == "keep"
        with pytest.raises(AssertionError, match="refused"):
            for value in (b"1", b"2", b"3", b"4", b"5", b"6", b"7", b"8"):
                subject.deliver(Message(value=value), url=url)

    def test_planning_what_is_missing_makes_nothing(self, subject: Subject) -> None:
        url = fresh(subject)
        spec = DeliverySpec(retry=1, backoff_policy="exponential", backoff_delay=timedelta(seconds=1))
        plan = planned(subject, url, spec)
        assert {item.action for item in plan.values()} == {"create"}
        assert {"", "-dead-letters", "-retry-1s", "-retry-2s"} <= set(plan)
        with raw(subject) as channel:
            for item in plan.values():
                with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="NOT_FOUND"):
                    channel.connection.channel().queue_declare(item.name, passive=True)

    def test_a_queue_whose_node_is_down_is_not_missing(self, subject: Subject) -> None:
        """The broker then lists it among the durable queues, and not among those that are up."""
        if broker_version(subject) >= (3, 13):
            raise NotApplicable("later brokers keep a queue whose node is down otherwise")
        url = fresh(subject)
        provision(subject, url, queue_type="classic")
        name = f'rabbit_misc:r(<<"/">>, queue, <<"{Address.parse(url).queue}">>)'
        operate(subject, "eval", f"mnesia:dirty_delete(rabbit_queue, {name}).")
        try:
            with subject.connect(url, {"rabbitmq.queue_type": "classic"}).admin() as admin:
                for ask in (lambda: admin.plan(SPEC), admin.depth, lambda: admin.provision(SPEC)):
                    with pytest.raises(Retriable, match="is down"):
                        ask()
        finally:
            back = f"[Q] = mnesia:dirty_read(rabbit_durable_queue, {name}), mnesia:dirty_write(rabbit_queue, Q)."
            operate(subject, "eval", back)
        assert planned(subject, url, queue_type="classic")[""].action == "keep"

    def test_depth_of_a_missing_queue_says_what_to_do(self, subject: Subject) -> None:
        url = fresh(subject)
        with subject.connect(url).admin() as admin, pytest.raises(Fatal, match="provision it"):
            admin.depth()

    def test_a_wrong_password_is_told_and_never_shown(self, subject: Subject) -> None:
        self._refused(subject, lambda address: replace(address, username="guest", password="s3/c#r@t"))  # noqa: S106

    def test_a_wrong_virtual_host_is_told(self, subject: Subject) -> None:
        assert "nowhere" in self._refused(subject, lambda address: replace(address, vhost="nowhere"))

    def _refused(self, subject: Subject, change: Callable[[Address], Address]) -> str:
        url = change(Address.parse(subject.place.url)).full_url
        for role in (subject.connect(url).admin().depth, lambda: subject.connect(url).receiver().receive(1, wait=0.0)):
            with pytest.raises(BrokerError) as caught:
                role()
            assert "s3" not in repr(caught.value) + str(caught.value.__cause__)
        return str(caught.value)


SETTINGS = Settings(queue_type="quorum")


@pytest.mark.parametrize(
    ("version", "retry", "limit"),
    [((3, 10), UNLIMITED, None), ((4, 0), UNLIMITED, -1), ((3, 10), 0, 11), ((4, 0), None, None), ((4, 2), 5, 16)],
)
def test_a_limit_is_written_as_the_version_reads_it(version: tuple[int, ...], retry: int, limit: int | None) -> None:
    """From 4.0 a queue has a limit of 20 unless told otherwise, by -1; before, -1 is a limit of 0 deliveries."""
    queue = topology.work_queue("q", DeliverySpec(retry=retry), SETTINGS, version)
    assert queue.arguments.get("x-delivery-limit") == limit
    letters = topology.dead_letter_queue("q", SETTINGS, version)
    assert letters.arguments.get("x-delivery-limit") == (-1 if version >= (4, 0) else None), "looking must not lose any"


def test_a_dead_letter_place_has_no_dead_letter_place() -> None:
    assert [each.name for each in topology.queues("q-dead-letters", SPEC, SETTINGS, (3, 10))] == ["q-dead-letters"]


class TestSubscriptions(Statements):
    """A queue a name, fed by an exchange."""

    broker = "rabbitmq"

    def test_what_a_name_needs_is_planned_and_made_and_what_is_not_told_is_said(self, subject: Subject) -> None:
        several = subject.connect(subject.place.for_several())
        there = subject.connect(several.subscription("billing"))
        with there.admin() as admin:
            binding = next(item for item in admin.plan(SPEC).objects if item.kind == "binding")
            assert (binding.action, binding.attributes) == ("create", {"routing_key": "orders.new"})
            admin.provision(SPEC)
            after = admin.plan(SPEC)
        assert {item.action for item in after.objects} == {"keep"}
        assert any("bindings of queue" in each for each in after.approximations)
        assert not after.warnings

    def test_an_exchange_that_is_not_there_is_told_and_not_made(self, subject: Subject) -> None:
        url = fresh(subject).replace("?queue=", "?exchange=no-such-")
        with subject.connect(subject.connect(url).subscription("billing")).admin() as admin:
            assert any("does not exist" in each for each in admin.plan(SPEC).warnings)
            with pytest.raises(Fatal, match="does not exist"):
                admin.provision(SPEC)
            assert {item.action for item in admin.plan(SPEC).objects} == {"create"}, "something was made all the same"

    def test_an_exchange_of_the_brokers_own_can_be_subscribed_to(self, subject: Subject) -> None:
        """Its name begins with `amq.`, as no queue's may that is made by others."""
        queue = Address.parse(subject.place.url).queue
        own = subject.place.url.replace(f"queue={queue}", f"exchange=amq.topic&routing_key={queue}")
        there = subject.connect(subject.connect(own).subscription(queue))

        def remove() -> None:
            with raw(subject) as channel:
                for end in ("", "-dead-letters"):
                    channel.queue_delete(f":amq.topic:{queue}{end}")

        subject._stack.callback(remove)
        with there.admin() as admin:
            admin.provision(SPEC)
            subject.deliver(Message(value=b"copy"), url=own)
            assert admin.depth() == 1

    def test_a_redriven_letter_goes_to_its_subscriber_alone(self, subject: Subject) -> None:
        several = subject.connect(subject.place.for_several())
        urls = {name: several.subscription(name) for name in ("billing", "audit")}
        for url in urls.values():
            provision(subject, url)
        subject.deliver(Message(value=b"lost", id="a"), url=subject.connect(urls["billing"]).native_sink())
        with dead_letters(urls["billing"], options=subject.place.options) as letters:
            assert letters.redrive().redriven == 1
        for name, count in (("billing", 1), ("audit", 0)):
            with subject.connect(urls[name]).admin() as admin:
                assert admin.depth() == count
