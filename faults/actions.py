"""The effect of a fault on a broker under test: `action` makes it, `begin` starts it, `end` heals it.

| fault | what it is |
|---|---|
| those of `faults.proxy` | the network |
| `freeze` | the broker's processes stop (SIGSTOP): connections stay open and nothing answers |
| `restart` | kill -9 of the broker, which starts again with its files and ports |
| `disk-full`, `memory-alarm` | the broker has no room, or says so by its alarm |
| `queue-deleted` | the queue or topic is gone, and is made again, empty |
| `permission-revoked` | the user of the run may no longer write |
| `dead-letters-deleted` | the dead letter place is gone, and is made again, empty |
| `dead-letters-full` | the dead letter place takes nothing |
| `throttled` | the broker refuses requests to send because it is busy |
| `locked` | another process holds the lock of the file |
| `clock-back`, `clock-forward` | the wall clock of the processes under test jumps by an hour, and back at the end |
| `killed` | kill -9 of a process under test, which its owner starts again |
| `worker-killed` | kill -9 of one of Spark's Python workers |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final, Protocol, TypeAlias, get_args

from faults import clock
from faults.broker import BrokerUnderTest
from faults.proxy import NetworkFault
from faults.workloads import Running
from redelivery_conformance.harness import Harness


class Action(Protocol):
    """A fault that can begin and end, several times.

    Attributes:
        name: of the fault.
        destroys: places (`destination`, `letters`, `source`) whose rows may be gone if they were stored before the
            fault ended, as when a queue is deleted.
    """

    @property
    def name(self) -> str: ...

    @property
    def destroys(self) -> frozenset[str]: ...

    def begin(self) -> None:
        """Start the fault; return when it is in effect."""

    def end(self) -> None:
        """Heal it; return when the broker can be reached again. Called also after `begin` has failed."""


@dataclass(frozen=True, slots=True)
class Fault:
    """An action of two functions; see `Action`."""

    name: str
    begins: Callable[[], object]
    ends: Callable[[], object] = lambda: None
    destroys: frozenset[str] = frozenset()

    def begin(self) -> None:
        """Start it."""
        self.begins()

    def end(self) -> None:
        """Heal it."""
        self.ends()


#: Makes a fault of one broker. Its module `actions_<broker>` has a table of them, `FAULTS`.
Make: TypeAlias = Callable[[BrokerUnderTest], Fault]
#: Seconds by which clocks jump.
JUMP: Final = 3600.0
_JUMPS: Final = {"clock-back": -JUMP, "clock-forward": JUMP}


def action(fault: str, under_test: BrokerUnderTest, running: Running) -> Action:
    """Return the action of a fault on a broker. Raises ValueError: this broker, or this workload, has no such fault.

    Args:
        fault: a name of the table.
        under_test: the broker.
        running: the workload, for faults of the processes under test.
    """
    if fault == "killed":
        return Fault(fault, running.restart)
    if fault == "worker-killed":
        return Fault(fault, _worker(running))
    if fault in _JUMPS:
        return _jump(fault, under_test)
    for network in get_args(NetworkFault):
        if fault == network:
            return _network(network, under_test)
    made = faults_of(under_test.broker)
    if fault not in made:
        raise ValueError(f"no fault {fault!r} on {under_test.broker}; it has {', '.join(sorted(made))}")
    return made[fault](under_test)


def faults_of(broker: str) -> Mapping[str, Make]:
    """Return the faults that one broker has, besides those of the network and of the processes under test."""
    made: Mapping[str, Make] = import_module(f"faults.actions_{broker}").FAULTS
    return made


def harness_of(broker: str) -> Harness | None:
    """Return a harness whose broker can suffer more than the usual one; None: it has none."""
    made: type[Harness] | None = getattr(import_module(f"faults.actions_{broker}"), "HARNESS", None)
    return None if made is None else made()


def _network(fault: NetworkFault, under_test: BrokerUnderTest) -> Fault:
    proxy = under_test.proxy
    if proxy is None:
        raise ValueError(f"{under_test.broker} has no network between it and its clients")
    return Fault(fault, lambda: proxy.begin(fault), proxy.end)


def _worker(running: Running) -> Callable[[], object]:
    with_workers: Any = running
    if not hasattr(running, "kill_worker"):
        raise ValueError("worker-killed: this workload is no Spark job")
    found: Callable[[], object] = with_workers.kill_worker
    return found


def _jump(fault: str, under_test: BrokerUnderTest) -> Fault:
    return Fault(
        fault,
        lambda: clock.jump(under_test.scratch, _JUMPS[fault]),
        lambda: clock.jump(under_test.scratch, 0.0),
    )
