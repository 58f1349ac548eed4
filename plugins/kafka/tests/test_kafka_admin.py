"""Provisioning on a real cluster: topics that it creates, reports and refuses."""

import time
from contextlib import suppress

import pytest
from confluent_kafka import Producer

from redelivery import provisioning
from redelivery.contract.message import Batch, Message
from redelivery.contract.spec import NATIVE, DeliverySpec, Ref, Sink
from redelivery.errors import ConfigurationError, Fatal
from redelivery.registry import connect
from redelivery_conformance.harness import CannotShow, NotHere
from redelivery_conformance.plugin import not_here
from redelivery_conformance.statements import Statements
from redelivery_kafka.admin import durability_warnings
from redelivery_kafka.testing import in_container

SPEC = DeliverySpec(dead_letter_sink=(Sink(uri=NATIVE),))


def cluster(subject):
    """The cluster under test, with topic administration."""
    if subject.runtime.kind == "embedded":
        raise CannotShow("topic administration: run it in a container, or by --broker-url")
    return subject.runtime.cluster


def letters(subject):
    return subject.place.topic + "-dead-letters"


def plan(subject, spec=SPEC):
    with subject.broker.admin() as admin:
        return admin.plan(spec)


def provision(subject, spec=SPEC):
    with subject.broker.admin() as admin:
        return admin.provision(spec)


def item(found, name):
    return next(each for each in found.objects if each.name == name)


class TestProvisioning(Statements):
    broker = "kafka"

    def test_the_dead_letter_topic_is_made_like_its_topic_and_keeps_letters_for_ever(self, subject):
        there = cluster(subject)
        wide = subject.place.topic + "-wide"
        there.make(wide, 3, **{"max.message.bytes": "2000000", "retention.ms": "1000000"})
        with subject.connect(f"kafka://{there.bootstrap}/{wide}") as broker, broker.admin() as admin:
            made = item(admin.plan(SPEC), wide + "-dead-letters")
            assert made.action == "create"
            assert made.attributes["partitions"] == "3"
            admin.provision(SPEC)
            assert not admin.plan(SPEC).drift
        assert there.names(wide + "-dead-letters") == {wide + "-dead-letters": 3}
        config = there.config(wide + "-dead-letters")
        assert {name: config[name] for name in ("retention.ms", "retention.bytes", "cleanup.policy")} == {
            "retention.ms": "-1",
            "retention.bytes": "-1",
            "cleanup.policy": "delete",
        }
        assert config["max.message.bytes"] == "2000000"

    def test_both_topics_are_made_where_neither_is(self, subject):
        there = cluster(subject)
        name = subject.place.topic + "-new"
        with subject.connect(f"kafka://{there.bootstrap}/{name}") as broker, broker.admin() as admin:
            assert [each.action for each in admin.plan(SPEC).objects] == ["create", "create"]
            status = admin.provision(SPEC)
            assert status == admin.provision(SPEC)
            assert status.dead_letter_channel.name == name + "-dead-letters"
        assert sorted(there.names(name)) == [name, name + "-dead-letters"]

    def test_partitions_and_replicas_of_the_spec_are_made_and_compared(self, subject):
        spec = DeliverySpec(dead_letter_sink=(Sink(uri=NATIVE),), sink_partitions=2, sink_replication_factor=1)
        provision(subject, spec)
        assert cluster(subject).names(letters(subject)) == {letters(subject): 2}
        other = DeliverySpec(dead_letter_sink=(Sink(uri=NATIVE),), sink_partitions=5, sink_replication_factor=3)
        found = item(plan(subject, other), letters(subject))
        assert {each.attribute for each in found.differences} == {"partitions", "replication.factor"}
        with pytest.raises(Fatal, match=r"partitions is '2', not '5'.*replication.factor is '1', not '3'"):
            provision(subject, other)

    def test_more_replicas_than_brokers_are_refused_in_the_brokers_words(self, subject):
        cluster(subject)
        spec = DeliverySpec(dead_letter_sink=(Sink(uri=NATIVE),), sink_replication_factor=30)
        with pytest.raises(Fatal, match=r"replication factor of 30 .*INVALID_REPLICATION_FACTOR"):
            provision(subject, spec)

    def test_a_named_sink_at_the_same_cluster_is_made_and_no_warning_says_otherwise(self, subject):
        there = cluster(subject)
        name = subject.place.topic + "-dlq"
        strimzi = Ref(api_version="kafka.strimzi.io/v1", kind="KafkaTopic", name=name)
        for sink in (Sink(uri=name), Sink(uri=f"kafka://{there.bootstrap}/{name}"), Sink(ref=strimzi)):
            spec = DeliverySpec(dead_letter_sink=(sink,))
            found = provisioning.plan(subject.place.url, spec, options=subject.place.options)
            assert [each.name for each in found.plan.objects] == [subject.place.topic, name]
            assert not [each for each in found.warnings if "is another place" in each]
            status = provisioning.apply(subject.place.url, spec, options=subject.place.options)
            assert f"/{name}" in status.dead_letter_sink_uri
            assert status.dead_letter_channel.name == name
        assert there.names(name) == {name: 1}

    def test_a_sink_at_another_cluster_is_left_to_its_own_url(self, subject):
        cluster(subject)
        elsewhere = (
            Sink(uri="kafka://elsewhere:9092/dlq"),
            Sink(uri="dlq", options={"bootstrap.servers": "elsewhere:9092"}),
            Sink(uri="file:///letters"),
        )
        for sink in elsewhere:
            found = plan(subject, DeliverySpec(dead_letter_sink=(sink,)))
            assert [each.name for each in found.objects] == [subject.place.topic]

    def test_the_topic_itself_is_no_dead_letter_topic(self, subject):
        for uri in (subject.place.topic, subject.place.url):
            spec = DeliverySpec(dead_letter_sink=(Sink(uri=uri),))
            for ask in (plan, provision):
                with pytest.raises(ConfigurationError, match="is the topic itself"):
                    ask(subject, spec)

    @pytest.mark.parametrize(
        ("name", "source", "letter", "wanted"),
        [
            ("retention.ms", "2000000", "1000000", "2000000 or more"),
            ("retention.ms", "-1", "2000000", "-1"),
            ("retention.bytes", "-1", "1000000", "-1"),
            ("cleanup.policy", "delete", "compact", "delete"),
            ("max.message.bytes", "2000000", "1000000", "2000000 or more"),
        ],
    )
    def test_a_dead_letter_topic_that_forgets_or_refuses_what_its_topic_takes_differs(
        self, subject, name, source, letter, wanted
    ):
        there = cluster(subject)
        provision(subject)
        there.alter(subject.place.topic, **{name: source})
        there.alter(letters(subject), **{name: letter})
        (difference,) = item(plan(subject), letters(subject)).differences
        assert (difference.attribute, difference.wanted, difference.found) == (name, wanted, letter)

    def test_a_compacted_topic_forgets_nothing_by_time_so_its_letters_must_not(self, subject):
        there = cluster(subject)
        provision(subject)
        there.alter(subject.place.topic, **{"cleanup.policy": "compact", "retention.ms": "1000"})
        assert not plan(subject).drift
        there.alter(letters(subject), **{"retention.ms": "999999999"})
        assert [each.attribute for each in item(plan(subject), letters(subject)).differences] == ["retention.ms"]

    def test_what_the_broker_may_delete_unread_is_a_warning(self, subject):
        there = cluster(subject)
        provision(subject)
        assert not plan(subject).warnings
        there.alter(letters(subject), **{"retention.ms": str(10 * 86_400_000)})
        (warning,) = plan(subject).warnings
        assert "may delete them unread" in warning

    def test_a_leader_that_confirms_alone_is_a_warning(self, subject):
        provision(subject)
        options = {"kafka.acks": "1", "kafka.enable.idempotence": "false"}
        with subject.connect(options=options) as broker, broker.admin() as admin:
            assert "is lost if that broker is" in " ".join(admin.plan(SPEC).warnings)

    def test_fewer_partitions_than_the_topic_has_are_a_warning_unless_asked_for(self, subject):
        there = cluster(subject)
        wide = subject.place.topic + "-wide"
        there.make(wide, 2)
        there.make(wide + "-dead-letters", 1, **{"retention.ms": "-1"})
        with subject.connect(f"kafka://{there.bootstrap}/{wide}") as broker, broker.admin() as admin:
            found = admin.plan(SPEC)
            assert not found.drift
            assert "fewer partitions (1)" in " ".join(found.warnings)

    @pytest.mark.parametrize(
        ("found", "differs"), [({"retention.ms": "-1"}, ""), ({"cleanup.policy": "compact"}, "compact")]
    )
    def test_a_topic_that_somebody_else_just_made_is_compared_too(self, subject, monkeypatch, found, differs):
        there = cluster(subject)
        with subject.broker.admin() as admin:
            plan = admin.plan
            before = [plan(SPEC)]
            there.make(letters(subject), **found)
            monkeypatch.setattr(admin, "plan", lambda spec: before.pop() if before else plan(spec))
            if differs:
                with pytest.raises(Fatal, match=differs):
                    admin.provision(SPEC)
            else:
                admin.provision(SPEC)

    def test_depth_of_a_topic_that_is_not_there_says_so(self, subject):
        there = cluster(subject)
        broker = subject.connect(f"kafka://{there.bootstrap}/{subject.place.topic}-missing")
        with broker.admin() as admin, pytest.raises(Fatal, match="no such topic exists; provision it"):
            admin.depth()

    def test_depth_counts_every_partition_and_group_by_group(self, subject):
        there = cluster(subject)
        wide = subject.place.topic + "-wide"
        there.make(wide, 3)
        producer = Producer({"bootstrap.servers": there.bootstrap, "log_level": 0})
        for at in range(6):
            producer.produce(wide, b"%d" % at, partition=at % 3)
        assert producer.flush(10) == 0
        for query in ("", "?group=another"):
            with subject.connect(f"kafka://{there.bootstrap}/{wide}{query}") as broker, broker.admin() as admin:
                assert admin.depth() == 6

    def test_a_closed_admin_says_so(self, subject):
        admin = subject.broker.admin()
        admin.close()
        admin.close()
        for ask in (lambda: admin.plan(SPEC), lambda: admin.provision(SPEC), admin.depth):
            with pytest.raises(Fatal, match="is closed"):
                ask()

    def test_letters_sent_to_a_provisioned_place_are_browsed_in_order_of_time(self, subject):
        cluster(subject)
        provision(subject, DeliverySpec(dead_letter_sink=(Sink(uri=NATIVE),), sink_partitions=3))
        rows = [Message(value=b"%d" % at, timestamp_ms=1_700_000_000_000 + at) for at in range(9)]
        for row in rows:
            subject.deliver(row, url=subject.broker.native_sink())
        assert [each.message.value for each in subject.browse(direct=False)] == [row.value for row in rows]


@pytest.mark.parametrize(
    ("acks", "replicas", "least", "said"),
    [
        ("all", 3, "2", []),
        ("-1", 1, "1", []),
        ("all", 3, "1", ["with one of its 3 replicas alone"]),
        ("1", 3, "2", ["kafka.acks=1"]),
    ],
)
def test_what_counts_as_stored_and_may_still_be_lost_is_a_warning(acks, replicas, least, said):
    """A cluster of one broker cannot show it."""
    found = list(durability_warnings("orders", acks, replicas, {"min.insync.replicas": least}))
    assert [text in each for text, each in zip(said, found, strict=True)] == [True] * len(said)


def test_where_brokers_make_topics_that_are_asked_about_none_is_made_but_by_provisioning(request):
    """As they do by default: with a retention of a week, which forgets letters."""
    try:
        runtime = in_container(environment={"KAFKA_AUTO_CREATE_TOPICS_ENABLE": "true"})
    except NotHere as error:
        not_here(request.config, error)
    there = runtime.cluster
    try:
        with connect(f"kafka://{there.bootstrap}/orders") as broker:
            for ask in (planned, sent, browsed, received, counted):
                with suppress(Fatal):
                    ask(broker)
            assert not there.names("orders")
            with broker.admin() as admin:
                admin.provision(SPEC)
            assert there.config("orders-dead-letters")["retention.ms"] == "-1"
            sent(broker)
        assert [each.value() for each in there.reader.left("orders", "any")] == [b"v"]
    finally:
        runtime.close()


def planned(broker):
    with broker.admin() as admin:
        assert {each.action for each in admin.plan(SPEC).objects} == {"create"}


def counted(broker):
    with broker.admin() as admin:
        admin.depth()


def browsed(broker):
    with broker.dead_letters() as box:
        list(box.browse())


def received(broker):
    with broker.receiver() as receiver:
        receiver.receive(1, wait=1)


def sent(broker):
    """Sends a row to the topic, and one to another topic."""
    with broker.sender() as sender:
        rows = [Message(value=b"v"), Message(value=b"v", destination="orders-of-its-own")]
        sender.send(Batch.of(rows), deadline=time.monotonic() + 20)
        while not sender.collect(1.0):
            pass


def test_an_admin_does_nothing_before_it_is_asked():
    with connect("kafka://127.0.0.1:1/orders", {}) as broker:
        broker.admin().close()
