"""The conformance suite against `servicebus:`; in parts against queues with sessions, and with duplicate detection."""

from redelivery_conformance import BrokerSuite
from redelivery_conformance.suite import (
    Attempts,
    Codes,
    Copies,
    Destinations,
    Extending,
    Failures,
    Fidelity,
    Hostility,
    Ids,
    Leases,
    Limiting,
    Opening,
    Ordering,
    Receiving,
    ReceivingEnds,
    Redriving,
    Retrying,
    Settling,
    Subscribing,
    Terminating,
)
from redelivery_servicebus.testing import (
    ServicebusDuplicatesHarness,
    ServicebusSessionsHarness,
    ServicebusSubscriptionsHarness,
)


class TestServicebus(BrokerSuite):
    broker = "servicebus"


class TestSessions(
    Opening,
    Hostility,
    Destinations,
    Settling,
    Failures,
    Codes,
    Ordering,
    Receiving,
    ReceivingEnds,
    Leases,
    Extending,
    Attempts,
    Retrying,
    Terminating,
    Limiting,
    Redriving,
    Fidelity,
    Subscribing,
    Copies,
):
    """All but statements that read the queue itself as a place of letters: its messages come by session alone."""

    broker = ServicebusSessionsHarness()


class TestDuplicateDetection(Ids, Redriving, Retrying):
    broker = ServicebusDuplicatesHarness()


class TestSubscriptions(
    Receiving, ReceivingEnds, Leases, Extending, Attempts, Retrying, Terminating, Limiting, Fidelity
):
    """Receiving from a subscription of a topic. Its letters are sent back to the topic."""

    broker = ServicebusSubscriptionsHarness()
