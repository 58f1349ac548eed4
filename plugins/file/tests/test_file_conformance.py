"""The conformance suite against `file:`."""

from redelivery_conformance import BrokerSuite


class TestFile(BrokerSuite):
    broker = "file"
