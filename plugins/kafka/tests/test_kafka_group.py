"""Every request for committed offsets waits for a coordinator that is not ready, for a limited time."""

import time

import pytest
from confluent_kafka import KafkaError, Producer

from redelivery.errors import Fatal, Retriable
from redelivery.registry import connect
from redelivery_conformance.harness import NotHere
from redelivery_conformance.plugin import not_here
from redelivery_kafka.testing import in_container
from redelivery_kafka.testing.mock import MockCluster

LIST_OFFSETS, OFFSET_FETCH = 2, 9  # the requests' numbers in the protocol
NOT_READY = [KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.COORDINATOR_NOT_AVAILABLE]


def depth(broker):
    with broker.admin() as admin:
        return admin.depth()


def browsed(broker):
    with broker.dead_letters() as letters:
        return sum(1 for _ in letters.browse())


def received(broker):
    with broker.receiver() as receiver:
        return len(receiver.receive(10, wait=30.0))


ASKERS = [depth, browsed, received]


@pytest.fixture
def mock():
    cluster = MockCluster()
    cluster.make("orders", 1)
    cluster.make("orders-dead-letters", 1)
    put(cluster.bootstrap, "orders", "orders-dead-letters")
    yield cluster
    cluster.close()


def put(bootstrap, *topics):
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    for topic in topics:
        producer.produce(topic, b"v")
    assert producer.flush(10) == 0


@pytest.mark.parametrize("ask", ASKERS)
def test_a_coordinator_that_is_not_ready_is_asked_again(mock, ask):
    mock.refuse(OFFSET_FETCH, *NOT_READY)
    with connect(f"kafka://{mock.bootstrap}/orders") as broker:
        assert ask(broker) == 1


def test_a_coordinator_that_stays_so_is_told_as_it_is_within_the_stated_time(mock):
    mock.refuse(OFFSET_FETCH, *[KafkaError.NOT_COORDINATOR] * 200)
    began = time.monotonic()
    options = {"kafka.socket.timeout.ms": "1500"}
    with connect(f"kafka://{mock.bootstrap}/orders", options) as broker, pytest.raises(Retriable, match="coordinator"):
        depth(broker)
    assert 1 < time.monotonic() - began < 10


@pytest.mark.parametrize(
    ("request_", "codes", "kind"),
    [
        (OFFSET_FETCH, [KafkaError.NOT_COORDINATOR] * 200, Retriable),
        (OFFSET_FETCH, [KafkaError.GROUP_AUTHORIZATION_FAILED], Fatal),
        (LIST_OFFSETS, [KafkaError.TOPIC_AUTHORIZATION_FAILED] * 10, Fatal),
    ],
)
def test_what_fails_when_partitions_are_assigned_is_the_receivers_error(mock, request_, codes, kind):
    """The client asks for them in a callback, out of which its errors do not come as exceptions."""
    mock.refuse(request_, *codes)
    with connect(f"kafka://{mock.bootstrap}/orders") as broker, pytest.raises(kind, match="orders"):
        received(broker)


@pytest.fixture
def leaderless(mock):
    for topic in ("wide", "wide-dead-letters"):
        mock.make(topic, 3)
        producer = Producer({"bootstrap.servers": mock.bootstrap, "log_level": 0})
        for partition in range(3):
            producer.produce(topic, b"%d" % partition, partition=partition)
        assert producer.flush(10) == 0
        mock.lose_leader(topic, 1)
    return mock


@pytest.mark.parametrize("ask", [depth, browsed])
def test_a_partition_without_a_leader_is_nobodys_fault_and_may_be_asked_again(leaderless, ask):
    with connect(f"kafka://{leaderless.bootstrap}/wide") as broker, pytest.raises(Retriable, match="has no leader"):
        ask(broker)


def test_a_partition_without_a_leader_keeps_no_other_from_being_received(leaderless):
    values, end = set(), time.monotonic() + 60
    with connect(f"kafka://{leaderless.bootstrap}/wide") as broker, broker.receiver() as receiver:
        while len(values) < 3:
            values |= {each.message.value for each in receiver.receive(10, wait=1.0)}
            if values == {b"0", b"2"}:
                leaderless.lead("wide", 1)
            assert time.monotonic() < end
            assert b"1" not in values or len(values) == 3, "it has no leader yet"


def test_a_cluster_that_has_never_seen_a_group_answers_the_first_question(request):
    """The place for commits is made as brokers do by default, with 50 partitions; it takes them a second or more."""
    try:
        runtime = in_container(environment={"KAFKA_OFFSETS_TOPIC_NUM_PARTITIONS": "50"})
    except NotHere as error:
        not_here(request.config, error)
    try:
        with runtime.place() as place:
            put(runtime.cluster.bootstrap, place.topic)
            with connect(place.url) as broker:
                assert [depth(broker), received(broker)] == [1, 1]
    finally:
        runtime.close()
