"""SQS's faults, on ElasticMQ. Seen on 1.6.14.

It keeps its queues in memory, so `restart` would prove nothing; it has no permissions, no alarm and no full queue.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from faults import containers
from faults.actions import Fault, Make
from faults.broker import BrokerUnderTest
from redelivery_sqs.testing import reading


def _freeze(under_test: BrokerUnderTest) -> Fault:
    runtime: Any = under_test.runtime
    return containers.freeze(runtime.container)


def _dead_letters_deleted(under_test: BrokerUnderTest) -> Fault:
    runtime: Any = under_test.runtime
    sqs, name = runtime.sqs, under_test.letters or ""
    return containers.dead_letters_deleted(under_test, lambda: sqs.delete_queue(QueueUrl=reading.url(sqs, name)))


FAULTS: Final[Mapping[str, Make]] = {
    "freeze": _freeze,
    "queue-deleted": containers.queue_deleted,
    "dead-letters-deleted": _dead_letters_deleted,
}
