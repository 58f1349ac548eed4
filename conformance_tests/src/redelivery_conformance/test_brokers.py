"""The suite against every named or installed broker: `pytest --pyargs redelivery_conformance` runs this module."""

from __future__ import annotations

from redelivery_conformance.suite import BrokerSuite


class TestBroker(BrokerSuite):
    """The brokers of `--broker-url` or `--broker`; without either, every installed one that has a harness."""
