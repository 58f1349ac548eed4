"""What a fault does to a broker under test: `action` makes it, `begin` starts it, `end` heals it."""

from __future__ import annotations

from typing import Protocol, get_args

from faults.broker import BrokerUnderTest
from faults.proxy import NetworkFault


class Action(Protocol):
    """A fault that can begin and end, several times.

    Attributes:
        name: of the fault.
        destroys: whether rows that were stored before it ends may be gone, as when a queue is deleted.
    """

    name: str
    destroys: bool

    def begin(self) -> None:
        """Start the fault; return when it is in effect."""

    def end(self) -> None:
        """Heal it; return when the broker can be reached again. Called also after `begin` has failed."""


class _Network:
    """A fault of the network, by the proxy."""

    destroys = False

    def __init__(self, name: NetworkFault, under_test: BrokerUnderTest) -> None:
        if under_test.proxy is None:
            raise ValueError(f"{under_test.broker} has no network between it and its clients")
        self.name: str = name
        self._fault = name
        self._proxy = under_test.proxy

    def begin(self) -> None:
        self._proxy.begin(self._fault)

    def end(self) -> None:
        self._proxy.end()


def action(fault: str, under_test: BrokerUnderTest) -> Action:
    """Return the action of a fault on a broker. Raises ValueError: this broker has no such fault."""
    for network in get_args(NetworkFault):
        if fault == network:
            return _Network(network, under_test)
    raise ValueError(f"no fault {fault!r} on {under_test.broker}")
