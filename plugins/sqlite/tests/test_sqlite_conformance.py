"""The conformance suite against `sqlite:`."""

from redelivery_conformance import BrokerSuite


class TestSqlite(BrokerSuite):
    broker = "sqlite"
