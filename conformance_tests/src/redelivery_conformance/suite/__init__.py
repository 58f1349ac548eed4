"""The statements, in classes by capability. `BrokerSuite` is all of them."""

from __future__ import annotations

from redelivery_conformance.suite.closing import Closing
from redelivery_conformance.suite.destinations import Destinations
from redelivery_conformance.suite.failures import Failures
from redelivery_conformance.suite.headers import Headers
from redelivery_conformance.suite.ids import Ids
from redelivery_conformance.suite.letters import Browsing, DeadLetterPlaces
from redelivery_conformance.suite.opening import Opening
from redelivery_conformance.suite.provisioning import Provisioning
from redelivery_conformance.suite.publishing import Publishing
from redelivery_conformance.suite.settling import Settling
from redelivery_conformance.suite.spark import SparkWrites

__all__ = [
    "BrokerSuite",
    "Browsing",
    "Closing",
    "DeadLetterPlaces",
    "Destinations",
    "Failures",
    "Headers",
    "Ids",
    "Opening",
    "Provisioning",
    "Publishing",
    "Settling",
    "SparkWrites",
]


class BrokerSuite(
    Opening,
    Publishing,
    Headers,
    Ids,
    Destinations,
    Settling,
    Failures,
    DeadLetterPlaces,
    Browsing,
    Provisioning,
    Closing,
    SparkWrites,
):
    """Every statement. A plugin's test names its broker: `broker = "carrier"`."""
