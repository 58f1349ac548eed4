"""The conformance suite against `kafka:`."""

from redelivery_conformance import BrokerSuite


class TestKafka(BrokerSuite):
    broker = "kafka"
