"""What a fault does to a broker under test: `action` makes it, `begin` starts it, `end` heals it."""

from __future__ import annotations

from typing import Protocol, get_args

from faults.broker import BrokerUnderTest
from faults.proxy import NetworkFault
from faults.workloads import Running


class Action(Protocol):
    """A fault that can begin and end, several times.

    Attributes:
        name: of the fault.
        destroys: places (`destination`, `letters`, `source`) whose rows may be gone if they were stored before it
            ended, as when a queue is deleted.
    """

    name: str
    destroys: frozenset[str]

    def begin(self) -> None:
        """Start the fault; return when it is in effect."""

    def end(self) -> None:
        """Heal it; return when the broker can be reached again. Called also after `begin` has failed."""


class _Network:
    """A fault of the network, by the proxy."""

    destroys: frozenset[str] = frozenset()

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


class _Restart:
    """kill -9 of a process under test; its owner starts it again."""

    destroys: frozenset[str] = frozenset()

    def __init__(self, name: str, running: Running) -> None:
        self.name = name
        self._running = running

    def begin(self) -> None:
        self._running.restart()

    def end(self) -> None:
        """Nothing is left to heal."""


def action(fault: str, under_test: BrokerUnderTest, running: Running) -> Action:
    """Return the action of a fault on a broker. Raises ValueError: this broker has no such fault.

    Args:
        fault: a name of the table.
        under_test: the broker.
        running: the workload, for faults of the processes under test.
    """
    if fault == "killed":
        return _Restart(fault, running)
    for network in get_args(NetworkFault):
        if fault == network:
            return _Network(network, under_test)
    raise ValueError(f"no fault {fault!r} on {under_test.broker}")
