"""The statements, in one class per capability. `BrokerSuite` combines them."""

from __future__ import annotations

from redelivery_conformance.suite.attempts import Attempts, Retrying
from redelivery_conformance.suite.closing import Closing
from redelivery_conformance.suite.codes import Codes
from redelivery_conformance.suite.copies import Copies
from redelivery_conformance.suite.destinations import Destinations
from redelivery_conformance.suite.failures import Failures
from redelivery_conformance.suite.fidelity import Fidelity
from redelivery_conformance.suite.headers import Headers
from redelivery_conformance.suite.hostility import Hostility
from redelivery_conformance.suite.ids import Ids
from redelivery_conformance.suite.leases import Extending, Leases
from redelivery_conformance.suite.letters import Browsing, DeadLetterPlaces
from redelivery_conformance.suite.opening import Opening
from redelivery_conformance.suite.ordering import Ordering
from redelivery_conformance.suite.provisioning import Provisioning
from redelivery_conformance.suite.publishing import Publishing
from redelivery_conformance.suite.receiving import Receiving, ReceivingEnds
from redelivery_conformance.suite.redriving import Redriving
from redelivery_conformance.suite.secrecy import Secrecy
from redelivery_conformance.suite.settling import Settling
from redelivery_conformance.suite.spark import SparkWrites
from redelivery_conformance.suite.splits import Cursors, Reading, Splits
from redelivery_conformance.suite.subscribing import Subscribing
from redelivery_conformance.suite.terminating import Limiting, Terminating
from redelivery_conformance.suite.watching import Watching

__all__ = [
    "Attempts",
    "BrokerSuite",
    "Browsing",
    "Closing",
    "Codes",
    "Copies",
    "Cursors",
    "DeadLetterPlaces",
    "Destinations",
    "Extending",
    "Failures",
    "Fidelity",
    "Headers",
    "Hostility",
    "Ids",
    "Leases",
    "Limiting",
    "Opening",
    "Ordering",
    "Provisioning",
    "Publishing",
    "Reading",
    "Receiving",
    "ReceivingEnds",
    "Redriving",
    "Retrying",
    "Secrecy",
    "Settling",
    "SparkWrites",
    "Splits",
    "Subscribing",
    "Terminating",
    "Watching",
]


class BrokerSuite(
    Opening,
    Secrecy,
    Hostility,
    Publishing,
    Headers,
    Ids,
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
    DeadLetterPlaces,
    Browsing,
    Reading,
    Splits,
    Cursors,
    Redriving,
    Fidelity,
    Provisioning,
    Closing,
    Subscribing,
    Copies,
    Watching,
    SparkWrites,
):
    """All statements. A plugin's test class names its broker: `broker = "carrier"`."""
