"""The conformance suite: each statement of `redelivery.contract.broker` as a test that any plugin can run.

A plugin needs three lines in its own tests (README.md)::

    from redelivery_conformance import BrokerSuite

    class TestCarrier(BrokerSuite):
        broker = "carrier"
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from redelivery_conformance.suite import BrokerSuite

__all__ = ["BrokerSuite"]

pytest.register_assert_rewrite(
    *(f"redelivery_conformance.{name}" for name in ("suite", "subject", "taking", "forking"))
)


def __getattr__(name: str) -> Any:
    # Imported on first use: pytest must be able to rewrite the suite's modules before they are loaded.
    if name != "BrokerSuite":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from redelivery_conformance.suite import BrokerSuite  # noqa: PLC0415 - see above

    return BrokerSuite
