"""Provisioning: planning reads, provisioning makes what is missing, and what differs is told and never altered."""

from __future__ import annotations

import pytest

from redelivery.errors import BrokerError
from redelivery.message import Message
from redelivery.settings import redact
from redelivery.spec import NATIVE, DeliverySpec, DeliveryStatus, Sink
from redelivery_conformance.statements import Statements, broker_has, broker_lacks
from redelivery_conformance.subject import Subject

SPEC = DeliverySpec()
NATIVE_SINK = DeliverySpec(dead_letter_sink=(Sink(uri=NATIVE),))


class Provisioning(Statements):
    """The admin role."""

    @broker_has("provision")
    def test_planning_only_reads(self, subject: Subject) -> None:
        before = subject.place.snapshot()
        admin = subject.keep(subject.broker.admin())
        assert admin.plan(SPEC) == admin.plan(SPEC)
        assert subject.place.snapshot() == before, "planning changed something"

    @broker_has("provision")
    def test_provisioning_makes_what_was_planned(self, subject: Subject) -> None:
        admin = subject.keep(subject.broker.admin())
        planned = admin.plan(SPEC)
        assert planned.objects, "a plan names the objects that the spec needs"
        status = admin.provision(SPEC)
        after = admin.plan(SPEC)
        assert status == planned.status == after.status
        assert [item.name for item in after.objects] == [item.name for item in planned.objects]
        assert {item.action for item in after.objects} == {"keep"}
        assert not after.drift

    @broker_has("provision", "send")
    def test_provisioning_again_changes_nothing(self, subject: Subject) -> None:
        admin = subject.keep(subject.broker.admin())
        status = admin.provision(SPEC)
        subject.deliver(Message(value=b"v"))
        before = subject.place.snapshot()
        assert admin.provision(SPEC) == status
        assert subject.place.snapshot() == before, "provisioning again changed something"

    @broker_has("provision", "send")
    def test_a_destination_that_was_sent_to_is_provisioned_without_loss(self, subject: Subject) -> None:
        """Where sending makes the target, provisioning comes after it and finds messages there."""
        subject.provision()
        subject.deliver(Message(value=b"v"))
        subject.provision()
        subject.returns(Message(value=b"v"))

    @broker_has("provision")
    def test_what_differs_is_told_and_never_altered(self, subject: Subject) -> None:
        subject.provision()
        subject.place.alter()
        before = subject.place.snapshot()
        admin = subject.keep(subject.broker.admin())
        plan = admin.plan(SPEC)
        assert plan.drift
        different = [item for item in plan.objects if item.action == "differs"]
        assert different, "something exists that differs, and the plan does not say so"
        assert all(item.differences for item in different), "each difference is named"
        with pytest.raises(BrokerError) as caught:
            admin.provision(SPEC)
        for each in (difference for item in different for difference in item.differences):
            assert each.attribute in str(caught.value), "the error names each difference"
        assert subject.place.snapshot() == before, "what differed was altered"

    @broker_has("provision", "dead_letter")
    def test_the_status_names_the_native_place_where_that_is_the_sink(self, subject: Subject) -> None:
        admin = subject.keep(subject.broker.admin())
        status = admin.provision(NATIVE_SINK)
        assert status == admin.plan(NATIVE_SINK).status
        assert status.dead_letter_sink_uri == redact(subject.broker.native_sink())
        assert status.dead_letter_channel is not None, "the native place has a name of its own kind"

    @broker_has("provision", "dead_letter")
    def test_the_status_as_a_reference_is_resolved_to_the_native_place_again(self, subject: Subject) -> None:
        channel = subject.keep(subject.broker.admin()).provision(NATIVE_SINK).dead_letter_channel
        assert channel is not None, "the native place has a name of its own kind"
        assert subject.broker.resolve(channel) == subject.broker.native_sink()

    @broker_has("provision")
    def test_a_spec_without_a_sink_has_none_in_its_status(self, subject: Subject) -> None:
        """The place for what the broker itself dead-letters may be made; no message that fails goes there."""
        admin = subject.keep(subject.broker.admin())
        assert admin.plan(SPEC).status == admin.provision(SPEC) == DeliveryStatus()

    @broker_has("provision", "dead_letter")
    def test_the_status_of_a_sink_elsewhere_is_not_the_native_place(self, subject: Subject) -> None:
        subject.provision()
        elsewhere = DeliverySpec(dead_letter_sink=(Sink(uri="file:///elsewhere"), Sink(uri=NATIVE)))
        status = subject.keep(subject.broker.admin()).plan(elsewhere).status
        assert status.dead_letter_sink_uri != redact(subject.broker.native_sink())

    @broker_has("provision", "send")
    def test_depth_counts_what_waits(self, subject: Subject) -> None:
        subject.provision()
        admin = subject.keep(subject.broker.admin())
        assert admin.depth() == 0
        subject.deliver(*(Message(value=b"%d" % at) for at in range(3)))
        assert admin.depth() == 3

    @broker_has("provision", "send", "dead_letter")
    def test_depth_leaves_dead_letters_out(self, subject: Subject) -> None:
        subject.provision()
        subject.deliver(Message(value=b"letter"), url=subject.broker.native_sink())
        assert subject.keep(subject.broker.admin()).depth() == 0

    @broker_lacks("provision")
    def test_without_an_admin_asking_for_one_is_unsupported(self, subject: Subject) -> None:
        subject.is_unsupported(subject.broker.admin)
