"""Provisioning: what a spec asks for, what differs, and how far one comes without the claim Manage."""

from collections.abc import Mapping
from typing import Any

import pytest

from redelivery.contract.spec import DeliverySpec, Sink
from redelivery.errors import BrokerError, ConfigurationError, Fatal
from redelivery_conformance.statements import Statements
from redelivery_conformance.subject import Subject
from redelivery_servicebus.testing import CONNECTION_STRING
from servicebus_standin import StandIn


def namespace(subject: Subject) -> StandIn:
    runtime: Any = subject.runtime
    return runtime.namespace  # type: ignore[no-any-return]


def queue(subject: Subject) -> str:
    place: Any = subject.place
    return str(place.queue)


def without_manage(subject: Subject) -> Mapping[str, str]:
    return {CONNECTION_STRING: namespace(subject).add_key("worker", "Send", "Listen")}


class TestAdmin(Statements):
    broker = "servicebus"

    def test_what_is_missing_is_made_as_the_spec_and_the_options_ask(self, subject: Subject) -> None:
        name = f"{queue(subject)}-new"
        options = {
            "servicebus.duplicate_detection": "true",
            "servicebus.lock_duration": "30",
            "servicebus.message_ttl": "3600",
        }
        spec = DeliverySpec(retry=5, dead_letter_sink=(Sink(uri="native"),))
        with subject.connect(subject.broker.sibling(name), options=options) as broker, broker.admin() as admin:
            assert [item.action for item in admin.plan(spec).objects] == ["create", "create"]
            assert admin.provision(spec).dead_letter_sink_uri == broker.native_sink()
            assert {item.action for item in admin.plan(spec).objects} == {"keep"}
            assert admin.plan(spec).warnings == []
        store = namespace(subject).store
        made, letters = store.queue(name).settings, store.queue(f"{name}-dead-letters").settings
        assert (made.max_delivery_count, made.lock_duration) == (16, 30.0)
        assert (made.default_message_time_to_live, made.dead_lettering_on_message_expiration) == (3600.0, True)
        assert made.requires_duplicate_detection
        assert made.forward_dead_lettered_messages_to == f"{name}-dead-letters"
        assert letters.max_delivery_count == 2_000
        assert letters.dead_lettering_on_message_expiration
        namespace(subject).delete_queue(name)
        namespace(subject).delete_queue(f"{name}-dead-letters")

    def test_each_attribute_that_differs_is_named(self, subject: Subject) -> None:
        options = {
            "servicebus.duplicate_detection": "true",
            "servicebus.lock_duration": "30",
            "servicebus.message_ttl": "60",
        }
        subject.place.alter()
        with subject.connect(options=options).admin() as admin:
            (item,) = [item for item in admin.plan(DeliverySpec(retry=2)).objects if item.action == "differs"]
            assert {each.attribute for each in item.differences} >= {
                "MaxDeliveryCount",
                "LockDuration",
                "DefaultMessageTimeToLive",
                "DeadLetteringOnMessageExpiration",
                "RequiresDuplicateDetection",
                "ForwardDeadLetteredMessagesTo",
            }
            with pytest.raises(Fatal, match="MaxDeliveryCount is '10', not '13'"):
                admin.provision(DeliverySpec(retry=2))

    def test_without_a_provisioned_place_native_is_refused_with_the_command(self, subject: Subject) -> None:
        subject.place.alter()
        with pytest.raises(ConfigurationError) as caught:
            subject.broker.native_sink()
        assert f"redelivery apply {subject.place.url} --option deadLetterSink=native" in str(caught.value)

    def test_letters_forwarded_elsewhere_are_told_with_that_place(self, subject: Subject) -> None:
        other = subject.place.destination("other")
        namespace(subject).alter_queue(queue(subject), forward_dead_lettered_messages_to=other)
        with pytest.raises(ConfigurationError, match=other):
            subject.broker.native_sink()

    def test_without_manage_it_says_what_was_not_checked_and_goes_on(self, subject: Subject) -> None:
        with subject.connect(options=without_manage(subject)) as broker, broker.admin() as admin:
            plan = admin.plan(DeliverySpec(retry=3))
            assert not plan.drift
            assert len(plan.warnings) == 2
            assert all("Manage is missing" in each for each in plan.warnings)
            admin.provision(DeliverySpec(retry=3))
            assert broker.native_sink() == subject.broker.native_sink()
            with pytest.raises(BrokerError, match="the claim Manage"):
                admin.depth()

    def test_without_manage_what_is_missing_cannot_be_made(self, subject: Subject) -> None:
        url = subject.broker.sibling("nobody")
        with subject.connect(url, options=without_manage(subject)) as broker, broker.admin() as admin:
            assert {item.action for item in admin.plan(DeliverySpec()).objects} == {"create"}
            with pytest.raises(Fatal, match="the claim Manage"):
                admin.provision(DeliverySpec())

    def test_letters_that_expire_are_warned_of(self, subject: Subject) -> None:
        place = f"{queue(subject)}-dead-letters"
        with subject.broker.admin() as admin:
            assert "may expire" not in " ".join(admin.plan(DeliverySpec()).warnings)
            namespace(subject).alter_queue(place, default_message_time_to_live=3_600.0)
            assert f"{place} keeps a letter for 3600s" in " ".join(admin.plan(DeliverySpec()).warnings)

    def test_letters_that_are_discarded_with_their_time_to_live_are_warned_of(self, subject: Subject) -> None:
        """A message that Service Bus itself dead-letters keeps its own, which starts again where it is forwarded to."""
        place = f"{queue(subject)}-dead-letters"
        with subject.broker.admin() as admin:
            assert f"{place} discards a letter" in " ".join(admin.plan(DeliverySpec()).warnings)
            namespace(subject).alter_queue(place, dead_lettering_on_message_expiration=True)
            assert "discards a letter" not in " ".join(admin.plan(DeliverySpec()).warnings)

    def test_a_queue_for_letters_that_drops_repeated_ids_differs_and_is_no_sink(self, subject: Subject) -> None:
        """A letter would be reported as stored, and dropped."""
        name = f"{queue(subject)}-dropping"
        namespace(subject).create_queue(f"{name}-dead-letters", requires_duplicate_detection=True)
        namespace(subject).create_queue(name, forward_dead_lettered_messages_to=f"{name}-dead-letters")
        with subject.connect(subject.broker.sibling(name)) as broker, broker.admin() as admin:
            (item,) = [item for item in admin.plan(DeliverySpec()).objects if item.name == f"{name}-dead-letters"]
            assert [str(each) for each in item.differences] == ["RequiresDuplicateDetection is 'true', not 'false'"]
            with pytest.raises(ConfigurationError, match="duplicate detection"):
                broker.native_sink()
        namespace(subject).delete_queue(name)
        namespace(subject).delete_queue(f"{name}-dead-letters")

    def test_a_queue_that_drops_repeated_ids_unsaid_is_warned_of(self, subject: Subject) -> None:
        name = f"{queue(subject)}-unsaid"
        namespace(subject).create_queue(name, requires_duplicate_detection=True)
        for said in ("false", "true"):
            options = {"servicebus.duplicate_detection": said}
            with subject.connect(subject.broker.sibling(name), options=options).admin() as admin:
                warnings = " ".join(admin.plan(DeliverySpec()).warnings)
            assert (f"{name} drops a message whose id it has seen within 600s" in warnings) == (said == "false")
        namespace(subject).delete_queue(name)

    def test_a_queue_with_sessions_is_told(self, subject: Subject) -> None:
        name = f"{queue(subject)}-sessions"
        namespace(subject).create_queue(name, requires_session=True)
        with subject.connect(subject.broker.sibling(name)).admin() as admin:
            (item,) = [item for item in admin.plan(DeliverySpec()).objects if item.name == name]
        assert "RequiresSession" in {each.attribute for each in item.differences}
        namespace(subject).delete_queue(name)
