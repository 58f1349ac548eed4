"""The conformance suite against `servicebus:`; in parts against queues with sessions, and with duplicate detection."""

from redelivery_conformance import BrokerSuite
from redelivery_conformance.suite.attempts import Attempts, Retrying
from redelivery_conformance.suite.codes import Codes
from redelivery_conformance.suite.copies import Copies
from redelivery_conformance.suite.destinations import Destinations
from redelivery_conformance.suite.failures import Failures
from redelivery_conformance.suite.fidelity import Fidelity
from redelivery_conformance.suite.hostility import Hostility
from redelivery_conformance.suite.ids import Ids
from redelivery_conformance.suite.leases import Extending, Leases
from redelivery_conformance.suite.opening import Opening
from redelivery_conformance.suite.ordering import Ordering
from redelivery_conformance.suite.receiving import Receiving, ReceivingEnds
from redelivery_conformance.suite.redriving import Redriving
from redelivery_conformance.suite.settling import Settling
from redelivery_conformance.suite.subscribing import Subscribing
from redelivery_conformance.suite.terminating import Limiting, Terminating
from redelivery_servicebus.testing import ServicebusDuplicatesHarness, ServicebusSessionsHarness


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
