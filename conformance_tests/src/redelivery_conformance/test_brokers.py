"""What `pytest --pyargs redelivery_conformance` runs: the suite against every broker that is named or installed."""

from __future__ import annotations

from redelivery_conformance.suite import BrokerSuite


class TestBroker(BrokerSuite):
    """The brokers of `--broker-url` or `--broker`; without either, every installed one that brings a harness."""
