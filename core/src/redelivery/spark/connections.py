"""Connections that outlive a task: a worker process keeps those of a successful task for its next task.

Spark reuses its worker processes but has no hook for their end, so this module must not need one. A connection is used
by one task at a time, and never again after a failure.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Final, TypeAlias

from redelivery import registry
from redelivery.contract.broker import Broker
from redelivery.sending import ConnectionFactory

log = logging.getLogger("redelivery.spark")

#: Seconds that a connection may lie idle; after that a broker may have dropped it.
IDLE_MAX: Final = 60.0

_Key: TypeAlias = tuple[int, str, frozenset[tuple[str, str]]]
_Connect: TypeAlias = Callable[[str, Mapping[str, str]], Broker]

#: Idle connections and since when (monotonic seconds). The pid in the key keeps a forked child off its parent's.
_idle: dict[_Key, list[tuple[Broker, float]]] = {}


@contextmanager
def task_connections(connect: _Connect = registry.connect) -> Iterator[ConnectionFactory]:
    """The connections of one task, in the form that `Delivery.open(connection_factory=...)` takes.

    Kept for the next task if the block ends well, closed if it raises.
    """
    _sweep()
    returned: list[tuple[_Key, Broker]] = []

    def connection_factory(url: str, options: Mapping[str, str]) -> AbstractContextManager[Broker]:
        @contextmanager
        def lend() -> Iterator[Broker]:
            key = (os.getpid(), url, frozenset(options.items()))
            broker = _take(key) or connect(url, options)
            try:
                yield broker
            except BaseException:
                _close(broker)
                raise
            returned.append((key, broker))

        return lend()

    try:
        yield connection_factory
    except BaseException:
        for _, broker in returned:
            _close(broker)
        raise
    now = time.monotonic()
    for key, broker in returned:
        _idle.setdefault(key, []).append((broker, now))


def close_idle() -> None:
    """Close the connections that this process keeps."""
    for key in [key for key in _idle if key[0] == os.getpid()]:
        for broker, _ in _idle.pop(key):
            _close(broker)


def _sweep() -> None:
    """Close connections that have been idle too long, whichever task used them."""
    oldest = time.monotonic() - IDLE_MAX
    for key in [key for key in _idle if key[0] == os.getpid()]:
        for broker, _ in [each for each in _idle[key] if each[1] < oldest]:
            _close(broker)
        _idle[key] = [each for each in _idle[key] if each[1] >= oldest]


def _take(key: _Key) -> Broker | None:
    """Return an idle connection; the latest used first."""
    kept = _idle.get(key)
    return kept.pop()[0] if kept else None


def _close(broker: Broker) -> None:
    with contextlib.suppress(Exception):  # it is given up, and the task has its own error
        broker.close()
