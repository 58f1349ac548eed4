"""The conformance suite against `sqs:`, and against its FIFO queues."""

from redelivery_conformance import BrokerSuite
from redelivery_sqs.testing import SqsFifoHarness


class TestSqs(BrokerSuite):
    broker = "sqs"


class TestSqsFifo(BrokerSuite):
    broker = SqsFifoHarness()
