"""The conformance suite against `servicebus:`; what rests on ids also against queues with duplicate detection."""

from redelivery_conformance import BrokerSuite
from redelivery_conformance.suite.attempts import Retrying
from redelivery_conformance.suite.ids import Ids
from redelivery_conformance.suite.redriving import Redriving
from redelivery_servicebus.testing import ServicebusDuplicatesHarness, ServicebusSessionsHarness


class TestServicebus(BrokerSuite):
    broker = "servicebus"


class TestSessions(BrokerSuite):
    broker = ServicebusSessionsHarness()


class TestDuplicateDetection(Ids, Redriving, Retrying):
    broker = ServicebusDuplicatesHarness()
