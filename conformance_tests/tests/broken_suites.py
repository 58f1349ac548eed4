"""A class of statements for each broken broker, collected only by `test_suite_catches.py`."""

from __future__ import annotations

import broken_attempts
import broken_codes
import broken_content
import broken_copies
import broken_ends
import broken_fidelity
import broken_leases
import broken_outages
import broken_places
import broken_rhythm
import broken_secrecy
import broken_splits
from broken import Broken

from redelivery_conformance import BrokerSuite
from redelivery_conformance.memory import MemoryHarness

# Imported for the brokers that they hold.
__all__ = [
    "broken_attempts",
    "broken_codes",
    "broken_content",
    "broken_copies",
    "broken_ends",
    "broken_fidelity",
    "broken_leases",
    "broken_outages",
    "broken_places",
    "broken_rhythm",
    "broken_secrecy",
    "broken_splits",
]


def statements_of(broken: type[Broken]) -> type:
    """The class of statements that holds the one meant for a broken broker: collecting all for each takes long."""
    name = f"test_{broken.caught_by.partition('[')[0]}"
    return next(each for each in BrokerSuite.__mro__ if name in vars(each))


for _broken in Broken.all:
    globals()[f"Test{_broken.__name__}"] = type(
        f"Test{_broken.__name__}",
        (statements_of(_broken),),
        {"broker": MemoryHarness(_broken, patience=0.5), "__module__": __name__},
    )
