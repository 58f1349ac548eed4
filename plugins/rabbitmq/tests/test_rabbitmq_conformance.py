"""The conformance suite against `rabbitmq:`, on quorum queues; on classic ones, what depends on the kind of queue."""

from redelivery_conformance import BrokerSuite
from redelivery_conformance.suite import (
    Attempts,
    Browsing,
    Cursors,
    DeadLetterPlaces,
    Failures,
    Leases,
    Ordering,
    Provisioning,
    Reading,
    Receiving,
    ReceivingEnds,
    Redriving,
    Retrying,
    Settling,
    Splits,
    Terminating,
)
from redelivery_rabbitmq.testing import RabbitmqHarness


class TestRabbitmq(BrokerSuite):
    broker = "rabbitmq"


class TestRabbitmqClassic(
    Settling,
    Failures,
    Ordering,
    Receiving,
    ReceivingEnds,
    Leases,
    Attempts,
    Retrying,
    Terminating,
    DeadLetterPlaces,
    Browsing,
    Provisioning,
):
    broker = RabbitmqHarness("classic")


class TestRabbitmqLettersInAStream(DeadLetterPlaces, Browsing, Redriving, Terminating, Provisioning):
    broker = RabbitmqHarness(dead_letters="stream")


class TestRabbitmqStream(Reading, Splits, Cursors):
    """A stream that is itself looked at as dead letters."""

    broker = RabbitmqHarness(dead_letters="stream", direct=True)
