"""Kafka's faults, by the harness's own admin client. Seen on 4.4.0.

It has no alarm, and a full disk ends its only node for good, so `disk-full` is not in the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka.admin import (  # type: ignore[attr-defined]  # the client's own way to name them
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from faults import containers
from faults.actions import Fault, Make
from faults.broker import BrokerUnderTest
from faults.containers import provision
from redelivery_kafka.testing import KafkaAclHarness

HARNESS: Final = KafkaAclHarness
_PATIENCE: Final = 15.0
#: A letter with its context is larger than this; the least that a topic takes.
_SMALL: Final = "100"
_USUAL: Final = "1048588"


def _runtime(under_test: BrokerUnderTest) -> Any:
    return under_test.runtime


def _topic(under_test: BrokerUnderTest) -> str:
    place: Any = under_test.place
    name: str = place.topic
    return name


def _freeze(under_test: BrokerUnderTest) -> Fault:
    return containers.freeze(_runtime(under_test).container)


def _restart(under_test: BrokerUnderTest) -> Fault:
    runtime = _runtime(under_test)
    return containers.restart(runtime.container, runtime.cluster.answers)


def _permission_revoked(under_test: BrokerUnderTest) -> Fault:
    """Deny everybody to write to the topic; the other clients of the run only read it."""
    admin, topic = _runtime(under_test).cluster.admin, _topic(under_test)
    what = (ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, "User:*", "*", AclOperation.WRITE)
    denied, meant = AclBinding(*what, AclPermissionType.DENY), AclBindingFilter(*what, AclPermissionType.DENY)

    def begin() -> None:
        for each in admin.create_acls([denied], request_timeout=_PATIENCE).values():
            each.result()

    def end() -> None:
        for each in admin.delete_acls([meant], request_timeout=_PATIENCE).values():
            each.result()

    return Fault("permission-revoked", begin, end)


def _queue_deleted(under_test: BrokerUnderTest) -> Fault:
    runtime, topic = _runtime(under_test), _topic(under_test)

    def end() -> None:
        runtime.make(topic)
        provision(under_test)

    return Fault("queue-deleted", under_test.place.vanish, end, frozenset({"destination", "source"}))


def _dead_letters_deleted(under_test: BrokerUnderTest) -> Fault:
    runtime = _runtime(under_test)
    return containers.dead_letters_deleted(under_test, lambda: runtime.vanish(under_test.letters))


def _dead_letters_full(under_test: BrokerUnderTest) -> Fault:
    """Kafka's topics are never full; this one refuses every record for its size."""
    cluster, letters = _runtime(under_test).cluster, under_test.letters
    return Fault(
        "dead-letters-full",
        lambda: cluster.alter(letters, **{"max.message.bytes": _SMALL}),
        lambda: cluster.alter(letters, **{"max.message.bytes": _USUAL}),
    )


FAULTS: Final[Mapping[str, Make]] = {
    "freeze": _freeze,
    "restart": _restart,
    "permission-revoked": _permission_revoked,
    "queue-deleted": _queue_deleted,
    "dead-letters-deleted": _dead_letters_deleted,
    "dead-letters-full": _dead_letters_full,
}
