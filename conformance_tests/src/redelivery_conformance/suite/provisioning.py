"""Provisioning: a plan only reads. Provisioning creates what is missing and only reports drift."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

import pytest

from redelivery.base.urls import redact
from redelivery.contract.broker import Broker
from redelivery.contract.message import Message
from redelivery.contract.spec import NATIVE, DeliverySpec, DeliveryStatus, Sink
from redelivery.errors import BrokerError, ConfigurationError
from redelivery.sending import Delivery, Origin
from redelivery_conformance.statements import Statements, broker_has, broker_lacks
from redelivery_conformance.subject import Subject

SPEC = DeliverySpec()
NATIVE_SINK = DeliverySpec(dead_letter_sink=(Sink(uri=NATIVE),))


def _made_and_compared(subject: Subject, field: str, number: int) -> None:
    """Assert that a missing place is created as a field of the spec says, and that another number is reported."""
    asked, other = ({field: each} for each in (number, number + 1))
    admin = subject.keep(subject.broker.admin())
    assert [item.action for item in admin.plan(replace(NATIVE_SINK, **asked)).objects].count("create")  # type: ignore[arg-type]
    admin.provision(replace(NATIVE_SINK, **asked))  # type: ignore[arg-type]
    assert not admin.plan(replace(NATIVE_SINK, **asked)).drift, f"{field} was not heeded"  # type: ignore[arg-type]
    differing = [item for item in admin.plan(replace(NATIVE_SINK, **other)).objects if item.action == "differs"]  # type: ignore[arg-type]
    assert differing, f"{field} is not compared"
    assert str(number + 1) in {each.wanted for item in differing for each in item.differences}


def _is_refused(subject: Subject, spec: DeliverySpec) -> None:
    """Assert that a job with this spec is refused before anything is sent or created."""

    @contextmanager
    def borrowed(url: str, options: Mapping[str, str]) -> Iterator[Broker]:
        with subject.harness.connect(url, options) as broker:
            yield broker

    before = subject.place.snapshot()
    with pytest.raises(ConfigurationError, match=r"errors\.deadletterqueue\.topic\."):
        Delivery.open(
            subject.place.url,
            spec,
            options=subject.place.options,
            origin=Origin(run="refused"),
            connection_factory=borrowed,
        )
    assert subject.place.snapshot() == before


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
        """If sending creates the target, provisioning runs later and finds messages in it."""
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
        """The place for the broker's own dead letters may be created. Failed messages do not go there."""
        admin = subject.keep(subject.broker.admin())
        assert admin.plan(SPEC).status == admin.provision(SPEC) == DeliveryStatus()

    @broker_has("provision", "dead_letter")
    def test_the_status_of_a_sink_elsewhere_is_not_the_native_place(self, subject: Subject) -> None:
        subject.provision()
        elsewhere = DeliverySpec(dead_letter_sink=(Sink(uri="file:///elsewhere"), Sink(uri=NATIVE)))
        status = subject.keep(subject.broker.admin()).plan(elsewhere).status
        assert status.dead_letter_sink_uri != redact(subject.broker.native_sink())

    @broker_has("provision", "dead_letter", "sink_partitions")
    def test_the_partitions_that_a_spec_asks_for_are_made_and_compared(self, subject: Subject) -> None:
        _made_and_compared(subject, "sink_partitions", 2)

    @broker_has("provision", "dead_letter", "sink_replication_factor")
    def test_the_replicas_that_a_spec_asks_for_are_made_and_compared(self, subject: Subject) -> None:
        _made_and_compared(subject, "sink_replication_factor", 1)

    @broker_has("send")
    @broker_lacks("sink_partitions")
    def test_without_partitions_a_spec_that_asks_for_them_is_refused(self, subject: Subject) -> None:
        _is_refused(subject, replace(SPEC, sink_partitions=2))

    @broker_has("send")
    @broker_lacks("sink_replication_factor")
    def test_without_replicas_a_spec_that_asks_for_them_is_refused(self, subject: Subject) -> None:
        _is_refused(subject, replace(SPEC, sink_replication_factor=2))

    @broker_has("provision")
    @broker_lacks("depth")
    def test_without_depth_asking_for_it_is_unsupported(self, subject: Subject) -> None:
        subject.is_unsupported(subject.keep(subject.broker.admin()).depth)

    @broker_has("provision", "send", "depth")
    def test_depth_counts_what_waits(self, subject: Subject) -> None:
        subject.provision()
        admin = subject.keep(subject.broker.admin())
        assert admin.depth() == 0
        subject.deliver(*(Message(value=b"%d" % at) for at in range(3)))
        assert admin.depth() == 3

    @broker_has("provision", "send", "dead_letter", "depth")
    def test_depth_leaves_dead_letters_out(self, subject: Subject) -> None:
        subject.provision()
        subject.deliver(Message(value=b"letter"), url=subject.broker.native_sink())
        assert subject.keep(subject.broker.admin()).depth() == 0

    @broker_lacks("provision")
    def test_without_an_admin_asking_for_one_is_unsupported(self, subject: Subject) -> None:
        subject.is_unsupported(subject.broker.admin)
