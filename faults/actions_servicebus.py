"""Service Bus's faults, on the stand-in in the command's process.

Its queues are in memory: `restart` ends its connections and its port, and keeps the messages, as Azure would.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, Final

from faults.actions import Fault, Make
from faults.broker import BrokerUnderTest
from redelivery_servicebus.admin import MOST_DELIVERIES
from servicebus_standin.standin import ROOT_KEY

#: Requests to send that a busy namespace refuses: more than a run has.
_BUSY: Final = 1_000_000
_ALL: Final = ("Send", "Listen", "Manage")


def _namespace(under_test: BrokerUnderTest) -> Any:
    runtime: Any = under_test.runtime
    return runtime.namespace


def _queue(under_test: BrokerUnderTest) -> str:
    place: Any = under_test.place
    name: str = place.queue
    return name


def _while(name: str, entered: Any) -> Fault:
    """Return the fault that lasts as long as a context manager is entered."""
    stack = ExitStack()
    return Fault(name, lambda: stack.enter_context(entered()), stack.close)


def _freeze(under_test: BrokerUnderTest) -> Fault:
    return _while("freeze", _namespace(under_test).paused)


def _restart(under_test: BrokerUnderTest) -> Fault:
    return _while("restart", _namespace(under_test).stopped)


def _throttled(under_test: BrokerUnderTest) -> Fault:
    namespace = _namespace(under_test)
    return Fault("throttled", lambda: namespace.throttle(_BUSY), lambda: namespace.throttle(0))


def _permission_revoked(under_test: BrokerUnderTest) -> Fault:
    namespace = _namespace(under_test)
    return Fault(
        "permission-revoked",
        lambda: namespace.limit_key(ROOT_KEY, "Listen"),
        lambda: namespace.limit_key(ROOT_KEY, *_ALL),
    )


def _queue_deleted(under_test: BrokerUnderTest) -> Fault:
    namespace, queue, letters = _namespace(under_test), _queue(under_test), under_test.letters
    lease = under_test.place.lease
    return Fault(
        "queue-deleted",
        under_test.place.vanish,
        lambda: namespace.create_queue(queue, lock_duration=lease, forward_dead_lettered_messages_to=letters),
        frozenset({"destination", "source"}),
    )


def _queue_full(under_test: BrokerUnderTest) -> Fault:
    """Its quota is reached: this is how Service Bus has no room."""
    return _quota("disk-full", under_test, _queue(under_test))


def _dead_letters_full(under_test: BrokerUnderTest) -> Fault:
    return _quota("dead-letters-full", under_test, under_test.letters or "")


def _quota(name: str, under_test: BrokerUnderTest, queue: str) -> Fault:
    namespace = _namespace(under_test)
    return Fault(
        name,
        lambda: namespace.alter_queue(queue, max_size_in_megabytes=0),
        lambda: namespace.alter_queue(queue, max_size_in_megabytes=1024),
    )


def _dead_letters_deleted(under_test: BrokerUnderTest) -> Fault:
    namespace, letters, lease = _namespace(under_test), under_test.letters, under_test.place.lease
    return Fault(
        "dead-letters-deleted",
        lambda: namespace.delete_queue(letters),
        lambda: namespace.create_queue(letters, lock_duration=lease, max_delivery_count=MOST_DELIVERIES),
        frozenset({"letters"}),
    )


FAULTS: Final[Mapping[str, Make]] = {
    "freeze": _freeze,
    "restart": _restart,
    "throttled": _throttled,
    "permission-revoked": _permission_revoked,
    "disk-full": _queue_full,
    "queue-deleted": _queue_deleted,
    "dead-letters-full": _dead_letters_full,
    "dead-letters-deleted": _dead_letters_deleted,
}
