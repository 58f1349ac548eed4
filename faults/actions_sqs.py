"""SQS's faults, on ElasticMQ. Seen on 1.6.14.

It keeps its queues in memory, so `restart` would prove nothing; it has no permissions, no alarm and no full queue.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from faults import containers
from faults.actions import Fault, Make
from faults.broker import BrokerUnderTest
from faults.containers import provision
from redelivery_sqs.testing import reading


def _freeze(under_test: BrokerUnderTest) -> Fault:
    runtime: Any = under_test.runtime
    return containers.freeze(runtime.container)


def _queue_deleted(under_test: BrokerUnderTest) -> Fault:
    return Fault(
        "queue-deleted",
        under_test.place.vanish,
        lambda: provision(under_test),
        frozenset({"destination", "source"}),
    )


def _dead_letters_deleted(under_test: BrokerUnderTest) -> Fault:
    runtime: Any = under_test.runtime
    name = under_test.letters or ""
    return Fault(
        "dead-letters-deleted",
        lambda: runtime.sqs.delete_queue(QueueUrl=reading.url(runtime.sqs, name)),
        lambda: provision(under_test),
        frozenset({"letters"}),
    )


FAULTS: Final[Mapping[str, Make]] = {
    "freeze": _freeze,
    "queue-deleted": _queue_deleted,
    "dead-letters-deleted": _dead_letters_deleted,
}
