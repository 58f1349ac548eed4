"""NATS's faults, on the server that the harness starts as a process. Seen on 2.15.1.

It keeps permissions in its configuration, and does not read the one that counts here (`no_auth_user`) again.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, Final

from faults import containers
from faults.actions import Fault, Make
from faults.broker import BrokerUnderTest


def _freeze(under_test: BrokerUnderTest) -> Fault:
    runtime: Any = under_test.runtime
    stack = ExitStack()
    return Fault("freeze", lambda: stack.enter_context(runtime.process.paused()), stack.close)


def _restart(under_test: BrokerUnderTest) -> Fault:
    """Kill -9; the same files and the same port again."""
    runtime: Any = under_test.runtime

    def end() -> None:
        runtime.process.start()
        runtime.process.wait(runtime.independent.version, containers.START)

    return Fault("restart", runtime.process.kill, end)


def _dead_letters_deleted(under_test: BrokerUnderTest) -> Fault:
    runtime: Any = under_test.runtime
    return containers.dead_letters_deleted(under_test, lambda: runtime.independent.remove(under_test.letters))


def _dead_letters_full(under_test: BrokerUnderTest) -> Fault:
    runtime: Any = under_test.runtime
    name = under_test.letters

    return Fault(
        "dead-letters-full",
        lambda: runtime.independent.configure_stream(name, max_msgs=max(1, len(under_test.dead()))),
        lambda: runtime.independent.configure_stream(name, max_msgs=-1),
    )


FAULTS: Final[Mapping[str, Make]] = {
    "freeze": _freeze,
    "restart": _restart,
    "queue-deleted": containers.queue_deleted,
    "dead-letters-deleted": _dead_letters_deleted,
    "dead-letters-full": _dead_letters_full,
}
