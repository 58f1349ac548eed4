"""A class of statements for each broken broker, collected only by `test_suite_catches.py`."""

from __future__ import annotations

import broken_content
import broken_ends
import broken_leases
import broken_places
import broken_rhythm
from broken import Broken

from redelivery_conformance import BrokerSuite
from redelivery_conformance.memory import MemoryHarness

# Imported for the brokers that they hold.
__all__ = ["broken_content", "broken_ends", "broken_leases", "broken_places", "broken_rhythm"]

for _broken in Broken.all:
    globals()[f"Test{_broken.__name__}"] = type(
        f"Test{_broken.__name__}", (BrokerSuite,), {"broker": MemoryHarness(_broken), "__module__": __name__}
    )
