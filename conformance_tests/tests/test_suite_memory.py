"""The suite against the broker in memory that keeps the whole contract, and against three that have little of it."""

from __future__ import annotations

from redelivery_conformance import BrokerSuite
from redelivery_conformance.memory import BARE, PLAIN, READ_ONLY, MemoryBroker, MemoryHarness


class Bare(MemoryBroker):
    """A sender and nothing else."""

    capabilities = BARE


class ReadOnly(MemoryBroker):
    """Browsing and nothing else."""

    capabilities = READ_ONLY


class Plain(MemoryBroker):
    """A receiver without any feature."""

    capabilities = PLAIN


class TestMemory(BrokerSuite):
    broker = MemoryHarness()


class TestBareMemory(BrokerSuite):
    broker = MemoryHarness(Bare)


class TestPlainMemory(BrokerSuite):
    broker = MemoryHarness(Plain)


class TestReadOnlyMemory(BrokerSuite):
    broker = MemoryHarness(ReadOnly)
