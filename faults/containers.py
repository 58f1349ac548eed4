"""What brokers of several kinds can suffer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from faults.actions import Fault
from faults.broker import BrokerUnderTest
from redelivery.contract.spec import DeliverySpec
from redelivery.registry import connect
from redelivery_conformance.containers import Container

#: Seconds for a broker to come up again, on a busy machine.
START: Final = 90.0


def freeze(container: Container) -> Fault:
    """Stop its processes (SIGSTOP, by the engine's freezer)."""
    return Fault("freeze", container.pause, container.unpause)


def restart(container: Container, ready: Callable[[], object]) -> Fault:
    """Kill its processes (SIGKILL); start them again with the same files and ports."""

    def end() -> None:
        container.start()
        container.wait(ready, START)

    return Fault("restart", container.kill, end)


def provision(under_test: BrokerUnderTest) -> None:
    """Make what is missing of the place."""
    with connect(under_test.place.url, under_test.options) as broker, broker.admin() as admin:
        admin.provision(DeliverySpec())


def queue_deleted(under_test: BrokerUnderTest) -> Fault:
    """Delete the queue; provision it again."""
    destroys = frozenset({"destination", "source"})
    return Fault("queue-deleted", under_test.place.vanish, lambda: provision(under_test), destroys)


def dead_letters_deleted(under_test: BrokerUnderTest, delete: Callable[[], object]) -> Fault:
    """Delete the dead letter place; provision it again."""
    return Fault("dead-letters-deleted", delete, lambda: provision(under_test), frozenset({"letters"}))
