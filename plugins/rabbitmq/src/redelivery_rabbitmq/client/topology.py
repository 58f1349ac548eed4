"""The queues that a destination with a spec needs: their names and arguments.

The dead letter exchange is the default exchange, with a routing key: every queue is bound to it under its own name. It
cannot be deleted and its bindings cannot be removed, so no missing binding can silently drop letters.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from redelivery.contract.spec import UNLIMITED, DeliverySpec
from redelivery.kit.plans import MARGIN
from redelivery.policy.backoff import wait_before_retry

#: Between the name of a queue and the step of its retry queue.
RETRY_SUFFIX: Final = "-retry-"

#: The longest step in seconds; the broker takes delays of less than 2**32 ms.
_LAST_STEP: Final = 1 << 22
DELAY_MAX: Final = timedelta(seconds=_LAST_STEP)
#: From this version on a queue without a delivery limit has one of 20, and -1 means none; before, -1 is 0.
_LIMITED_BY_DEFAULT: Final = (4, 0)

Argument = str | int


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """One durable queue.

    Attributes:
        name: its name.
        arguments: the arguments of its declaration.
        unspecified: arguments that the spec does not determine; any value is right.
    """

    name: str
    arguments: Mapping[str, Argument]
    unspecified: frozenset[str] = field(default_factory=frozenset)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSettings:
    """What the options determine for the queues of a destination.

    Attributes:
        kind: "quorum" or "classic".
        dead_letters: name of the dead letter queue.
        ttl_ms: time after which a message is dead-lettered; None: never.
        length: messages that the queue takes before it refuses more; None: any number.
        version: the broker's.
    """

    kind: str
    dead_letters: str
    ttl_ms: int | None = None
    length: int | None = None
    version: tuple[int, ...] = ()


def work_queue(name: str, spec: DeliverySpec, settings: QueueSettings) -> Queue:
    """Return the queue that messages are received from."""
    arguments: dict[str, Argument] = {"x-queue-type": settings.kind, **_dead_lettering_to(settings.dead_letters)}
    unspecified = set()
    if settings.kind == "quorum":
        arguments |= _AT_LEAST_ONCE
        limit = _delivery_limit(spec, settings.version)
        if limit is not None:
            arguments["x-delivery-limit"] = limit
        if spec.retry is None:
            unspecified.add("x-delivery-limit")
    elif settings.length is not None:
        arguments["x-overflow"] = _AT_LEAST_ONCE["x-overflow"]
    if settings.ttl_ms is not None:
        arguments["x-message-ttl"] = settings.ttl_ms
    if settings.length is not None:
        arguments["x-max-length"] = settings.length
    return Queue(name=name, arguments=arguments, unspecified=frozenset(unspecified))


def dead_letter_queue(settings: QueueSettings) -> Queue:
    """Return the dead letter queue: its messages never expire, overflow, or reach a delivery limit."""
    arguments: dict[str, Argument] = {"x-queue-type": settings.kind}
    if settings.kind == "quorum" and settings.version >= _LIMITED_BY_DEFAULT:
        arguments["x-delivery-limit"] = -1
    return Queue(name=settings.dead_letters, arguments=arguments)


def retry_queue(work: str, step: int) -> Queue:
    """Return the queue where messages wait for up to `step` seconds; always a quorum queue, as only those lose none."""
    arguments = {"x-queue-type": "quorum", **_dead_lettering_to(work), **_AT_LEAST_ONCE, "x-message-ttl": 1000 * step}
    return Queue(name=f"{work}{RETRY_SUFFIX}{step}s", arguments=arguments)


def retry_step(delay: timedelta) -> int:
    """Return the step of the retry queue for a delay: the first power of two of at least so many seconds."""
    seconds = max(1, -(-delay // timedelta(seconds=1)))
    return min(1 << (seconds - 1).bit_length(), _LAST_STEP)


def retry_steps(spec: DeliverySpec) -> Iterator[int]:
    """Yield the steps of the retry queues that the delays of a spec can need."""
    if not spec.retry and not spec.retry_timeout:
        return
    retries = spec.retry if spec.retry is not None and spec.retry != UNLIMITED else 64
    longest = max((wait_before_retry(spec, n, lambda: 1.0) for n in range(1, min(retries, 64) + 1)), default=0.0)
    if longest <= 0:
        return
    last = retry_step(min(timedelta(seconds=longest), DELAY_MAX))
    step = 1
    while step <= last:
        yield step
        step *= 2


def queues(name: str, spec: DeliverySpec, settings: QueueSettings) -> list[Queue]:
    """Return all queues of a destination, each after those that it refers to. A dead letter queue needs no others."""
    dead_letters = dead_letter_queue(settings)
    if name == settings.dead_letters:
        return [dead_letters]
    return [dead_letters, work_queue(name, spec, settings), *(retry_queue(name, step) for step in retry_steps(spec))]


#: With these arguments the broker keeps what it dead-letters until the other queue has confirmed it.
_AT_LEAST_ONCE: Final[Mapping[str, Argument]] = {
    "x-dead-letter-strategy": "at-least-once",
    "x-overflow": "reject-publish",
}


def _dead_lettering_to(queue: str) -> dict[str, Argument]:
    return {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue}


def _delivery_limit(spec: DeliverySpec, version: tuple[int, ...]) -> int | None:
    if spec.retry is None:
        return None
    if spec.retry == UNLIMITED:
        return -1 if version >= _LIMITED_BY_DEFAULT else None
    return spec.retry + 1 + MARGIN
