"""A dead letter topic at another cluster than the job's topic, as Connect's properties write it."""

from contextlib import contextmanager

from redelivery.delivery import Delivery, Origin
from redelivery.forms import connect
from redelivery.message import Batch, Message
from redelivery_kafka.testing.mock import MockCluster
from redelivery_kafka.testing.reading import Reader


@contextmanager
def cluster(topic):
    """A mock cluster with one topic."""
    mock = MockCluster()
    try:
        mock.make(topic, 1)
        yield mock.bootstrap
    finally:
        mock.close()


def stored(bootstrap, topic):
    reader = Reader({"bootstrap.servers": bootstrap, "log_level": 0})
    try:
        return [each.value() for each in reader.left(topic, "none")]
    finally:
        reader.close()


def test_a_bare_name_with_servers_of_its_own_is_a_topic_at_those():
    with cluster("orders") as home, cluster("letters") as elsewhere:
        properties = {
            "errors.tolerance": "all",
            "errors.deadletterqueue.topic.name": "letters",
            "errors.deadletterqueue.producer.bootstrap.servers": elsewhere,
            "errors.deadletterqueue.producer.linger.ms": "0",
        }
        spec = connect.read(properties)
        rows = [Message(value=b"good"), Message(value=b"bad", destination="no such topic")]
        with Delivery.open(f"kafka://{home}/orders", spec, origin=Origin(run="run")) as delivery:
            delivery.write(Batch.of(rows, number=1))
            report = delivery.finish()
        assert (report.delivered, report.dead_lettered) == (1, 1)
        assert stored(home, "orders") == [b"good"]
        assert stored(elsewhere, "letters") == [b"bad"]
        assert stored(home, "letters") == []
