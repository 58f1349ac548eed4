"""RabbitMQ's faults, by its own tool in the container. Seen on 4.3.6."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from faults import containers
from faults.actions import Fault, Make
from faults.broker import BrokerUnderTest

#: The user of the processes under test, in a container that the run has started.
_USER: Final = "guest"
_POLICY: Final = "faults"
_FULL: Final = {"max-length": 1, "overflow": "reject-publish"}


def _tool(under_test: BrokerUnderTest, *command: str) -> str:
    runtime: Any = under_test.runtime
    said: str = runtime.operator.execute("rabbitmqctl", "-q", *command)
    return said


def _freeze(under_test: BrokerUnderTest) -> Fault:
    runtime: Any = under_test.runtime
    return containers.freeze(runtime.operator)


def _restart(under_test: BrokerUnderTest) -> Fault:
    runtime: Any = under_test.runtime
    cluster, queue = runtime.cluster, under_test.place.queue  # type: ignore[attr-defined]
    return containers.restart(runtime.operator, lambda: cluster.greets() and cluster.count(queue) is not None)


def _disk_full(under_test: BrokerUnderTest) -> Fault:
    """The alarm by which it guards its disk: publishing blocks, on every connection that has published."""
    return Fault(
        "disk-full",
        lambda: _tool(under_test, "set_disk_free_limit", "1000000GB"),
        lambda: _tool(under_test, "set_disk_free_limit", "50MB"),
    )


def _memory_alarm(under_test: BrokerUnderTest) -> Fault:
    return Fault(
        "memory-alarm",
        lambda: _tool(under_test, "set_vm_memory_high_watermark", "absolute", "1000"),
        lambda: _tool(under_test, "set_vm_memory_high_watermark", "0.6"),
    )


def _permission_revoked(under_test: BrokerUnderTest) -> Fault:
    # One call, as each takes a second. Channels remember what they may do, so they end.
    revoke = (
        f'rabbit_auth_backend_internal:clear_permissions(<<"{_USER}">>, <<"/">>, <<"faults">>), '
        f'rabbit_networking:close_all_user_connections(<<"{_USER}">>, "permission revoked").'
    )
    return Fault(
        "permission-revoked",
        lambda: _tool(under_test, "eval", revoke),
        lambda: _tool(under_test, "set_permissions", _USER, ".*", ".*", ".*"),
    )


def _dead_letters_deleted(under_test: BrokerUnderTest) -> Fault:
    runtime: Any = under_test.runtime
    return containers.dead_letters_deleted(under_test, lambda: runtime.cluster.remove(under_test.letters))


def _dead_letters_full(under_test: BrokerUnderTest) -> Fault:
    name = f"^{re.escape(under_test.letters or '')}$"
    return Fault(
        "dead-letters-full",
        lambda: _tool(under_test, "set_policy", "--apply-to", "queues", _POLICY, name, json.dumps(_FULL)),
        lambda: _tool(under_test, "clear_policy", _POLICY),
    )


FAULTS: Final[Mapping[str, Make]] = {
    "freeze": _freeze,
    "restart": _restart,
    "disk-full": _disk_full,
    "memory-alarm": _memory_alarm,
    "permission-revoked": _permission_revoked,
    "queue-deleted": containers.queue_deleted,
    "dead-letters-deleted": _dead_letters_deleted,
    "dead-letters-full": _dead_letters_full,
}
