"""Subscriptions of a topic: what a name needs, and that what befalls one name is felt by no other."""

from typing import Any

import pytest

from redelivery.contract.broker import Broker
from redelivery.contract.message import Message
from redelivery.contract.spec import DeliverySpec, Sink
from redelivery.deadletters.queue import dead_letters
from redelivery.errors import BrokerError, ConfigurationError, Fatal
from redelivery_conformance.statements import Statements
from redelivery_conformance.subject import Subject
from redelivery_conformance.taking import Taker
from redelivery_servicebus.testing import CONNECTION_STRING
from servicebus_standin import StandIn

SPEC = DeliverySpec(retry=3, dead_letter_sink=(Sink(uri="native"),))


def namespace(subject: Subject) -> StandIn:
    runtime: Any = subject.runtime
    return runtime.namespace  # type: ignore[no-any-return]


def provisioned(subject: Subject, url: str, name: str) -> Broker:
    broker = subject.connect(subject.connect(url).subscription(name))
    with broker.admin() as admin:
        admin.provision(SPEC)
    return broker


def depth(broker: Broker) -> int:
    with broker.admin() as admin:
        return admin.depth()


class TestTopics(Statements):
    broker = "servicebus"

    def test_what_a_name_needs_is_planned_and_made_once(self, subject: Subject) -> None:
        url = subject.place.for_several()
        topic = url.rpartition("/")[2]
        with subject.connect(subject.connect(url).subscription("billing")).admin() as admin:
            assert [(item.kind, item.name, item.action) for item in admin.plan(SPEC).objects] == [
                ("queue", f"{topic}.billing-dead-letters", "create"),
                ("queue", f"{topic}.billing", "create"),
                ("subscription", f"{topic}/Subscriptions/billing", "create"),
            ]
            admin.provision(SPEC)
            plan = admin.plan(SPEC)
            assert {item.action for item in plan.objects} == {"keep"}
            assert plan.warnings == []
            admin.provision(SPEC)
        made = namespace(subject).store.queue(f"{topic}/subscriptions/billing").settings
        assert made.forward_to == f"{topic}.billing"

    def test_a_name_that_service_bus_cannot_have_is_written_beside_its_digest(self, subject: Subject) -> None:
        url = subject.place.for_several()
        broker = provisioned(subject, url, "Überweisung & Co/1")
        (made,) = namespace(subject).store.subscriptions(namespace(subject).store.queue(url.rpartition("/")[2]))
        assert made.settings.user_metadata == "Überweisung & Co/1"
        subject.deliver(Message(value=b"v"), url=url)
        assert depth(broker) == 1
        for end in ("", "-dead-letters"):
            namespace(subject).delete_queue(f"{made.settings.forward_to}{end}")

    @pytest.mark.parametrize("target", [None, "other"])
    def test_a_subscription_that_forwards_elsewhere_differs(self, subject: Subject, target: str | None) -> None:
        url = subject.place.for_several()
        broker = provisioned(subject, url, "billing")
        name = url.rpartition("/")[2]
        other = None if target is None else subject.place.destination(target)
        namespace(subject).alter_queue(f"{name}/Subscriptions/billing", forward_to=other)
        with broker.admin() as admin:
            (item,) = (item for item in admin.plan(SPEC).objects if item.action == "differs")
            said = [f"ForwardTo is '{other or 'none'}', not '{name}.billing'"]
            assert (item.kind, [str(each) for each in item.differences]) == ("subscription", said)
            with pytest.raises(Fatal, match="ForwardTo is"):
                admin.provision(SPEC)

    def test_a_topic_that_is_not_there_is_told_and_not_made(self, subject: Subject) -> None:
        url = f"{subject.place.url}-nowhere"
        with subject.connect(subject.connect(url).subscription("billing")).admin() as admin:
            assert any("does not exist: create it" in each for each in admin.plan(SPEC).warnings)
            with pytest.raises(Fatal, match="does not exist: create it"):
                admin.provision(SPEC)
            assert {item.action for item in admin.plan(SPEC).objects} == {"create"}, "something was made all the same"

    def test_a_queue_where_a_topic_is_named_is_told_and_the_other_way_round(self, subject: Subject) -> None:
        with subject.connect(subject.broker.subscription("billing")).admin() as admin:
            with pytest.raises(Fatal, match="it is a queue"):
                admin.plan(SPEC)
            with pytest.raises(Fatal, match="it is a queue"):
                admin.provision(SPEC)
        topic = subject.connect(subject.place.for_several())
        with topic.admin() as admin:
            for ask in (lambda: admin.plan(SPEC), admin.depth):
                with pytest.raises(Fatal, match=r"it is a topic: .*\?subscription="):
                    ask()
        with pytest.raises(ConfigurationError, match="is a topic, which has no dead letters"):
            topic.native_sink()
        with pytest.raises(BrokerError, match="name a subscription"):
            Taker(subject, broker=topic).nothing()

    def test_without_manage_it_says_what_was_not_checked(self, subject: Subject) -> None:
        url = subject.place.for_several()
        there = provisioned(subject, url, "billing").canonical_url
        options = {CONNECTION_STRING: namespace(subject).add_key("worker", "Send", "Listen")}
        with subject.connect(there, options=options).admin() as admin:
            plan = admin.plan(SPEC)
            assert any("/Subscriptions/billing forwards to" in each for each in plan.warnings)
            assert {item.action for item in plan.objects} == {"keep"}
            admin.provision(SPEC)
        with subject.connect(subject.connect(url).subscription("audit"), options=options).admin() as admin:
            assert {item.action for item in admin.plan(SPEC).objects} == {"create"}
            with pytest.raises(Fatal, match="the claim Manage"):
                admin.provision(SPEC)

    def test_where_letters_of_a_name_are_not_gathered_the_command_that_sees_to_it_names_it(
        self, subject: Subject
    ) -> None:
        url = subject.place.for_several()
        broker = provisioned(subject, url, "billing")
        namespace(subject).alter_queue(f"{url.rpartition('/')[2]}.billing", forward_dead_lettered_messages_to=None)
        with pytest.raises(ConfigurationError) as caught:
            broker.native_sink()
        assert f"redelivery apply '{url}?subscription=billing' --option deadLetterSink=native" in str(caught.value)

    def test_a_redriven_letter_goes_to_its_subscriber_alone(self, subject: Subject) -> None:
        url = subject.place.for_several()
        billing, audit = (provisioned(subject, url, name) for name in ("billing", "audit"))
        subject.deliver(Message(value=b"lost", id="a"), url=billing.native_sink())
        with dead_letters(billing.canonical_url, options=subject.place.options) as letters:
            assert letters.redrive().redriven == 1
        assert (depth(billing), depth(audit)) == (1, 0)
