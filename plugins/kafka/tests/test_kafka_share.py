"""Share groups beyond the suite: URLs and settings, what is planned for a group, batches, locks and several members."""

from __future__ import annotations

import logging
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import timedelta

import confluent_kafka
import pytest
from confluent_kafka import AcknowledgeType, TopicPartition

from redelivery.codes import Code
from redelivery.contract.broker import Accept, Letter, Plan, Release, Retry, Support, Terminate
from redelivery.contract.message import Message
from redelivery.contract.spec import NATIVE, DeliverySpec, Sink
from redelivery.deadletters.queue import dead_letters
from redelivery.errors import Ambiguous, ConfigurationError, Fatal, InvalidURL, Unsupported
from redelivery.kit.leases import Lease
from redelivery.registry import connect
from redelivery_conformance.statements import Statements, broker_has
from redelivery_conformance.subject import NotApplicable, Subject
from redelivery_conformance.taking import Taker, values
from redelivery_kafka import CAPABILITIES, SHARE_CAPABILITIES
from redelivery_kafka.address import Address
from redelivery_kafka.client.known_settings import HARMLESS, NOT_FOR_SHARES, RESERVED
from redelivery_kafka.client.share_group import GroupSettings
from redelivery_kafka.client.share_member import ShareMember
from redelivery_kafka.client.share_receiver import KafkaShareReceiver
from redelivery_kafka.options import Settings
from redelivery_kafka.testing import KafkaShareHarness, KafkaSharePlace

SPEC = DeliverySpec(dead_letter_sink=(Sink(uri=NATIVE),))
#: The settings of a group that nobody has set, as Kafka 4.4 describes them.
DEFAULTS = {
    "share.record.lock.duration.ms": "30000",
    "share.auto.offset.reset": "latest",
    "share.delivery.count.limit": "5",
    "share.isolation.level": "read_uncommitted",
    "errors.deadletterqueue.topic.name": "",
    "errors.deadletterqueue.copy.record.enable": "false",
}


# --- members, without a broker ---


class FakeRecord:
    """A record, whose lock began when it was made."""

    def __init__(self) -> None:
        self.locked = time.monotonic()

    def __getattr__(self, name: str) -> Callable[[], object]:
        known = {"offset": 7, "partition": 0, "delivery_count": 1, "timestamp": (0, 0), "value": b"v"}
        return lambda: known.get(name)


class FakeConsumer:
    """A share consumer that is given one record at its third poll, late."""

    def __init__(self, answers: Mapping[TopicPartition, object]) -> None:
        self.answers = answers
        self.polls = 0
        self.record: FakeRecord | None = None

    def subscribe(self, topics: object) -> None:
        pass

    def acknowledge_offset(self, *_: object) -> None:
        pass

    def commit_sync(self, timeout: float) -> Mapping[TopicPartition, object]:
        return self.answers

    def poll(self, timeout: float) -> list[FakeRecord]:
        self.polls += 1
        if self.polls == 1:
            self.record = FakeRecord()
            time.sleep(0.5)
        return [self.record] if self.polls == 3 and self.record is not None else []


def member(consumer: object, *, joined: bool = False) -> ShareMember:
    """A member with this client."""
    return ShareMember(lambda _: consumer, "orders", "receiving", 30.0, joined=joined)  # type: ignore[arg-type, return-value]


def test_a_lease_ends_with_the_lock_also_where_the_record_came_late() -> None:
    consumer = FakeConsumer({})
    here = member(consumer)
    assert not here.poll(0.1)
    (lease,) = here.poll(0.1)
    assert consumer.record is not None
    assert lease.expires <= consumer.record.locked + 30.0


@pytest.mark.parametrize(
    ("answers", "error"),
    [({TopicPartition("orders", 0): None}, None), ({}, Ambiguous), ({TopicPartition("orders", 1): None}, Ambiguous)],
)
def test_a_record_without_an_answer_may_be_acknowledged_or_not(
    answers: dict[TopicPartition, object], error: type[Ambiguous] | None
) -> None:
    here = member(FakeConsumer(answers))
    here.poll(0.1)
    (lease,) = here.poll(0.1)
    assert [type(each) for each in here.acknowledge({lease: AcknowledgeType.ACCEPT}).values()] == [error] * bool(error)


def test_a_lock_begins_when_what_was_held_before_is_acknowledged(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long that was handled: else what is fetched quickly would be given back unhandled."""
    consumer = FakeConsumer({TopicPartition("orders", 0): None})
    here = member(consumer)
    here.poll(0.1)
    (lease,) = here.poll(0.1)
    handled = time.monotonic() + 29.0
    monkeypatch.setattr(time, "monotonic", lambda: handled)
    here.acknowledge({lease: AcknowledgeType.ACCEPT})
    consumer.polls = 2
    (again,) = here.poll(0.0)
    assert again.is_valid(handled)


def test_who_asks_without_waiting_is_given_what_is_there() -> None:
    """As a subscription does while a handler works."""
    receiver = KafkaShareReceiver(Address.parse("kafka://localhost:1/orders?share=g"), Settings({}))
    busy, idle = (member(FakeConsumer({}), joined=True) for _ in range(2))
    busy.poll(0.1)
    busy.poll(0.1)
    receiver._members = [busy, idle]
    receiver._next_check = time.monotonic() + 100
    found = [each for _ in range(3) for each in receiver.receive(5, wait=0.0)]
    assert [each.position for each in found] == ["orders/0/7"]


# --- URLs and settings, without a broker ---


def test_the_mode_of_a_url_decides_the_capabilities() -> None:
    share, consumer = connect("kafka://h/orders?share=billing"), connect("kafka://h/orders?group=billing")
    assert share.capabilities == SHARE_CAPABILITIES
    assert consumer.capabilities == CAPABILITIES
    assert (share.capabilities.attempts, share.capabilities.delay) == (Support.NATIVE, Support.NONE)
    assert share.is_at(consumer), "they are one destination"


def test_the_url_of_a_share_group_comes_back() -> None:
    address = Address.parse("kafka://h/orders?share=a%26b")
    assert (address.group, address.is_share) == ("a&b", True)
    assert Address.parse(address.url) == address


def test_the_dead_letters_of_a_share_group_are_where_brokers_write_them() -> None:
    broker = connect("kafka://h/orders?share=billing")
    assert broker.native_sink() == "kafka://h:9092/dlq.orders?share=billing"
    assert connect(broker.native_sink()).native_sink() == broker.native_sink(), "dead letters have no dead letters"
    assert connect("kafka://h/dlq.orders").native_sink() == "kafka://h:9092/dlq.orders"
    for topic in ("dlq.orders", "orders-dead-letters", "orders"):
        assert Address.parse(f"kafka://h/{topic}").source == "orders"


@pytest.mark.parametrize(
    ("query", "text"),
    [("share=", "empty"), ("share=a&share=b", "twice"), ("share=a&group=b", "a consumer group and a share group")],
)
def test_a_faulty_share_group_is_refused_in_one_line(query: str, text: str) -> None:
    with pytest.raises(InvalidURL, match=text) as caught:
        connect(f"kafka://h/t?{query}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["x" * 1025, "a%0Ab"])
def test_a_name_that_no_share_group_can_have_is_refused(name: str) -> None:
    with pytest.raises(InvalidURL, match="share group"):
        connect(f"kafka://h/t?share={name}")


@pytest.mark.parametrize("name", sorted(NOT_FOR_SHARES - HARMLESS.keys() - RESERVED.keys()))
def test_a_setting_that_share_consumers_lack_is_refused_before_any_is_made(name: str) -> None:
    value = "1"
    with pytest.raises(ConfigurationError, match=r"\w") as caught:
        connect("kafka://h/t?share=g", {f"kafka.{name}": value})
    assert name in str(caught.value)


def test_a_client_without_share_consumers_is_told_before_any_io(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(confluent_kafka, "ShareConsumer")
    with pytest.raises(ConfigurationError, match="upgrade"):
        connect("kafka://h/t?share=g")


def test_consumer_groups_need_no_share_consumers() -> None:
    text = """
import confluent_kafka
del confluent_kafka.ShareConsumer
from redelivery.registry import connect
broker = connect("kafka://h/t")
broker.sender, broker.receiver
import redelivery_kafka.admin, redelivery_kafka.receiver
"""
    subprocess.run([sys.executable, "-c", text], check=True, timeout=60)


def test_a_share_group_is_no_subscription_of_another_name() -> None:
    with pytest.raises(Unsupported, match="share"):
        connect("kafka://h/t?share=g").subscription("billing")


# --- what a group needs ---


def test_a_group_that_nobody_has_set_up_gets_all_it_needs() -> None:
    found = GroupSettings(DEFAULTS).object("billing", "dlq.orders", 7)
    assert (found.kind, found.name, found.action) == ("share group", "billing", "create")
    assert dict(found.attributes) == {
        "errors.deadletterqueue.topic.name": "dlq.orders",
        "errors.deadletterqueue.copy.record.enable": "true",
        "share.delivery.count.limit": "7",
        "share.auto.offset.reset": "earliest",
        "share.isolation.level": "read_committed",
    }


def test_what_was_set_for_a_group_is_not_altered() -> None:
    mine = {
        **DEFAULTS,
        "errors.deadletterqueue.topic.name": "dlq.mine",
        "share.delivery.count.limit": "3",
        "errors.deadletterqueue.copy.record.enable": "false",
    }
    found = GroupSettings(mine, frozenset(mine)).object("billing", "dlq.orders", 7)
    assert found.action == "differs"
    assert [each.attribute for each in found.differences] == [
        "errors.deadletterqueue.topic.name",
        "share.delivery.count.limit",
    ]


def test_a_higher_limit_is_right() -> None:
    ours = GroupSettings(DEFAULTS).object("billing", "dlq.orders", 7).attributes
    there = {**DEFAULTS, **ours, "share.delivery.count.limit": "9"}
    assert GroupSettings(there, frozenset(there)).object("billing", "dlq.orders", 7).action == "keep"


@pytest.mark.parametrize(
    ("setting", "value", "text"),
    [
        ("share.auto.offset.reset", "latest", "never sees"),
        ("errors.deadletterqueue.topic.name", "", "drops"),
        ("errors.deadletterqueue.copy.record.enable", "false", "neither key nor value"),
        ("share.isolation.level", "read_uncommitted", "aborted"),
    ],
)
def test_settings_with_which_records_are_lost_are_told(setting: str, value: str, text: str) -> None:
    right = {**DEFAULTS, **GroupSettings(DEFAULTS).object("billing", "dlq.orders", 7).attributes}
    assert not list(GroupSettings(right).faults())
    (fault,) = GroupSettings({**right, setting: value}).faults()
    assert setting in fault
    assert text in fault


def test_brokers_without_dead_letters_for_groups_are_told() -> None:
    older = {name: value for name, value in DEFAULTS.items() if "deadletter" not in name}
    assert any("4.4" in fault for fault in GroupSettings(older).faults())


# --- at a broker ---


def plan(subject: Subject, spec: DeliverySpec = SPEC) -> Plan:
    with subject.broker.admin() as admin:
        return admin.plan(spec)


def place(subject: Subject) -> KafkaSharePlace:
    assert isinstance(subject.place, KafkaSharePlace)
    return subject.place


def group(subject: Subject, **settings: str) -> None:
    subject.runtime.cluster.alter_group(place(subject).group, **settings)  # type: ignore[attr-defined]


class TestKafkaShareGroups(Statements):
    broker = KafkaShareHarness()

    @broker_has("provision", "receive")
    def test_provisioning_sets_up_the_group_and_its_topic_once(self, subject: Subject) -> None:
        before = {each.kind: each.action for each in plan(subject).objects}
        assert before == {"topic": "create", "share group": "create"}
        with subject.broker.admin() as admin:
            admin.provision(SPEC)
        after = plan(subject)
        assert not after.drift
        assert not [each for each in after.warnings if "share group" in each]

    @broker_has("provision", "receive")
    def test_a_limit_below_the_retries_is_drift(self, subject: Subject) -> None:
        subject.provision()
        group(subject, **{"share.delivery.count.limit": "2"})
        found = plan(subject, DeliverySpec(dead_letter_sink=SPEC.dead_letter_sink, retry=3))
        (differs,) = [each for each in found.objects if each.action == "differs"]
        assert [each.attribute for each in differs.differences] == ["share.delivery.count.limit"]

    @broker_has("provision", "receive")
    def test_letters_that_would_be_empty_or_outlive_their_originals_are_warned_of(self, subject: Subject) -> None:
        subject.provision()
        group(subject, **{"errors.deadletterqueue.copy.record.enable": "false"})
        topic = place(subject).topic
        subject.runtime.cluster.alter(topic, **{"retention.ms": "86400000"})  # type: ignore[attr-defined]
        said = plan(subject).warnings
        assert any("neither key nor value" in each for each in said)
        assert any("point at nothing" in each for each in said)
        group(subject, **{"errors.deadletterqueue.copy.record.enable": "true"})
        assert any("lose headers" in each for each in plan(subject).warnings)

    @broker_has("provision", "receive")
    def test_a_sink_that_brokers_write_to_is_the_groups_dead_letter_topic(self, subject: Subject) -> None:
        name = f"dlq.{place(subject).topic}-own"
        found = plan(subject, DeliverySpec(dead_letter_sink=(Sink(uri=name),)))
        (of_group,) = [each for each in found.objects if each.kind == "share group"]
        assert of_group.attributes["errors.deadletterqueue.topic.name"] == name

    @broker_has("receive", "send")
    def test_records_in_hand_keep_no_others_waiting(self, subject: Subject) -> None:
        """A client whose member holds a record fetches no more, so there are others."""
        taker = Taker(subject)
        held = []
        for at in range(4):
            subject.deliver(Message(value=b"%d" % at))
            held.append(taker.one())
        taker.settle(Accept(), *held)
        subject.deliver(*(Message(value=b"%d" % at) for at in range(20)))
        assert Counter(values(taker.take(20))) == Counter(b"%d" % at for at in range(20))

    @broker_has("receive", "send")
    def test_a_receiver_that_holds_records_with_all_its_members_gets_more_when_one_is_settled(
        self, subject: Subject
    ) -> None:
        group(subject, **{"share.record.lock.duration.ms": "30000"})
        taker = Taker(subject)
        held = []
        for at in range(8):
            subject.deliver(Message(value=b"%d" % at))
            held.append(taker.one())
        subject.deliver(Message(value=b"more"))
        taker.nothing()
        taker.settle(Accept(), held[3])
        assert values([taker.one()]) == [b"more"]

    @broker_has("receive", "send")
    def test_locks_that_end_while_records_wait_are_warned_of(
        self, subject: Subject, caplog: pytest.LogCaptureFixture
    ) -> None:
        subject.deliver(*(Message(value=b"%d" % at) for at in range(5)))
        taker = Taker(subject)
        first = taker.one()
        assert first.expires is not None
        time.sleep(max(0.0, first.expires - time.monotonic()) + 0.1)
        with caplog.at_level(logging.WARNING, logger="redelivery.kafka"):
            again = taker.take(5)
        assert "4 records were given back unhandled" in caplog.text
        assert {each.attempt for each in again} == {2}

    @broker_has("receive", "send")
    def test_what_a_lost_member_held_is_never_settled_quietly(self, subject: Subject) -> None:
        subject.deliver(Message(value=b"v"))
        taker = Taker(subject)
        received = taker.one()
        receiver = taker.receiver
        assert isinstance(receiver, KafkaShareReceiver)
        receiver._leave()  # as after an error that ends a membership
        taker.is_lost(received, Accept())
        assert values([taker.one()]) == [b"v"]

    @broker_has("receive", "send")
    def test_a_delay_is_refused_and_the_record_stays(self, subject: Subject) -> None:
        subject.deliver(Message(value=b"v"))
        taker = Taker(subject)
        received = taker.one()
        with pytest.raises(Unsupported, match="delay"):
            taker.receiver.settle([(received, Retry(timedelta(seconds=1)))])
        taker.settle(Accept(), received)

    @broker_has("receive", "send", "provision")
    def test_a_terminated_record_has_one_letter_also_where_settling_is_tried_again(self, subject: Subject) -> None:
        subject.provision()
        subject.deliver(Message(value=b"v"), Message(value=b"w"))
        taker = Taker(subject)
        first, second = taker.take(2)
        taker.settle(Terminate(first.message, "no"), first)
        taker.settle(Release(), second)
        assert [each.message.value for each in subject.browse(direct=False)] == [b"v"]
        assert isinstance(first.lease, Lease)

    @broker_has("receive")
    def test_a_missing_topic_is_told(self, subject: Subject) -> None:
        """A share consumer of a missing topic reports nothing."""
        url = subject.place.url.replace("?share", "-missing?share")
        with pytest.raises(Fatal) as caught:
            subject.keep(subject.connect(url).receiver()).receive(1, wait=0.1)
        assert caught.value.code is Code.NO_SUCH_DESTINATION

    @broker_has("receive", "send", "provision", "browse")
    @pytest.mark.parametrize("copied", [False, True])
    def test_what_the_group_itself_gave_up_is_redriven_as_it_was(self, subject: Subject, copied: bool) -> None:
        """The broker's letter has none of the record's headers, and neither key nor value unless they are copied."""
        subject.provision()
        group(subject, **{"errors.deadletterqueue.copy.record.enable": str(copied).lower()})
        headers = (("mine", b"1"), ("mine", b"2"), ("none", None))
        sent = [
            Message(value=b"%d" % at, key=b"k", headers=headers, timestamp_ms=1_700_000_000_000 + at) for at in range(3)
        ]
        subject.deliver(*sent)
        end = time.monotonic() + 60
        self._reject(subject, len(sent), end)
        with dead_letters(subject.place.url, options=subject.place.options) as box:
            found: list[Letter] = []
            while len(found) < len(sent) and time.monotonic() < end:
                found = list(box)
            assert [each.message for each in found] == sent
            contexts = [each.context for each in found if each.context]
            assert {(each.kind, each.code, each.attempts) for each in contexts} == {("rejected", Code.REJECTED, 1)}
            assert {each.subscriber for each in contexts} == {place(subject).group}
            report = box.redrive()
            assert (report.redriven, report.left) == (len(sent), {})
        again = [each for each in subject.place.stored() if len(each.headers) > len(headers)]
        assert [(each.value, each.key, each.headers[:-1], each.timestamp_ms) for each in again] == [
            (each.value, each.key, each.headers, each.timestamp_ms) for each in sent
        ]

    @staticmethod
    def _reject(subject: Subject, count: int, end: float) -> None:
        """Reject so many records as another program's member."""
        consumer = confluent_kafka.ShareConsumer(
            {
                "bootstrap.servers": subject.runtime.cluster.bootstrap,  # type: ignore[attr-defined]
                "group.id": place(subject).group,
                "share.acknowledgement.mode": "explicit",
            }
        )
        consumer.subscribe([place(subject).topic])
        while count and time.monotonic() < end:
            for record in consumer.poll(1.0):
                consumer.acknowledge(record, confluent_kafka.AcknowledgeType.REJECT)
                count -= 1
            consumer.commit_sync()
        consumer.close()

    def test_a_broker_without_share_groups_is_told_in_one_line(self, subject: Subject) -> None:
        """Kafka 4.1 describes the settings of such groups, but does not know the requests of their members."""
        if not subject.runtime.absent:
            raise NotApplicable("these brokers have share groups")
        with subject.broker.receiver() as receiver, pytest.raises(Fatal, match=r"leave out .share=") as caught:
            receiver.receive(1, wait=0.1)
        assert caught.value.code is Code.UNSUPPORTED
        assert "\n" not in str(caught.value)
