"""The conformance suite against `nats:`, on the real server."""

from redelivery_conformance import BrokerSuite


class TestNats(BrokerSuite):
    broker = "nats"
