"""The conformance suite against `kafka:`, in consumer groups and in share groups."""

from redelivery_conformance import BrokerSuite
from redelivery_kafka.testing import KafkaShareHarness


class TestKafka(BrokerSuite):
    broker = "kafka"


class TestKafkaShare(BrokerSuite):
    broker = KafkaShareHarness()
