"""The conformance suite against `rabbitmq:`, on quorum queues; on classic ones, what depends on the kind of queue."""

from redelivery_conformance import BrokerSuite
from redelivery_conformance.suite import (
    Attempts,
    Browsing,
    DeadLetterPlaces,
    Failures,
    Leases,
    Ordering,
    Provisioning,
    Receiving,
    ReceivingEnds,
    Retrying,
    Settling,
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
