"""The native objects that a destination with a spec needs, as data: names and arguments of queues.

The dead letter exchange is the default exchange, with a routing key: every queue is bound to it under its own name,
nobody can delete it or unbind a queue, so that there is no binding that could be missing and drop letters silently.
This file must not talk to a broker.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from redelivery.contract.spec import UNLIMITED, DeliverySpec
from redelivery.policy.backoff import wait_before_retry

#: What a retry queue's name has besides that of its queue.
RETRY: Final = "-retry-"

#: Deliveries beyond core's own limit: only handlers that never come back to core get so far.
MARGIN: Final = 10

#: Seconds of the longest step; the broker takes delays of less than 2**32 ms.
_LAST_STEP: Final = 1 << 22
DELAY_MAX: Final = timedelta(seconds=_LAST_STEP)
#: From here on a queue without a limit of deliveries has one of 20, and -1 means none; before, -1 is 0.
_LIMITED_BY_DEFAULT: Final = (4, 0)

Argument = str | int


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """One durable queue.

    Attributes:
        name: its name.
        arguments: as it is declared.
        free: arguments that the spec says nothing of: whatever they are, they are right.
    """

    name: str
    arguments: Mapping[str, Argument]
    free: frozenset[str] = field(default_factory=frozenset)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What the settings say of the queues of a destination.

    Attributes:
        kind: "quorum" or "classic".
        dead_letters: name of the dead letter queue.
        ttl_ms: after which a message is dead-lettered; None: never.
        length: messages that the queue takes, further ones are refused; None: any number.
        version: the broker's.
    """

    kind: str
    dead_letters: str
    ttl_ms: int | None = None
    length: int | None = None
    version: tuple[int, ...] = ()


def work_queue(name: str, spec: DeliverySpec, shape: Shape) -> Queue:
    """The queue that messages are received from."""
    arguments: dict[str, Argument] = {"x-queue-type": shape.kind, **_to(shape.dead_letters)}
    free = set()
    if shape.kind == "quorum":
        arguments |= _KEPT
        limit = _limit(spec, shape.version)
        if limit is not None:
            arguments["x-delivery-limit"] = limit
        if spec.retry is None:
            free.add("x-delivery-limit")
    elif shape.length is not None:
        arguments["x-overflow"] = _KEPT["x-overflow"]
    if shape.ttl_ms is not None:
        arguments["x-message-ttl"] = shape.ttl_ms
    if shape.length is not None:
        arguments["x-max-length"] = shape.length
    return Queue(name=name, arguments=arguments, free=frozenset(free))


def dead_letter_queue(shape: Shape) -> Queue:
    """The dead letter place: nothing in it expires, is pushed out, or is lost by being looked at too often."""
    arguments: dict[str, Argument] = {"x-queue-type": shape.kind}
    if shape.kind == "quorum" and shape.version >= _LIMITED_BY_DEFAULT:
        arguments["x-delivery-limit"] = -1
    return Queue(name=shape.dead_letters, arguments=arguments)


def retry_queue(work: str, step: int) -> Queue:
    """Where messages wait out a delay of at most `step` seconds; always a quorum queue, which alone loses none."""
    arguments = {"x-queue-type": "quorum", **_to(work), **_KEPT, "x-message-ttl": 1000 * step}
    return Queue(name=f"{work}{RETRY}{step}s", arguments=arguments)


def step(delay: timedelta) -> int:
    """The retry queue for a delay: the first power of two that is at least so many seconds."""
    whole = max(1, -(-delay // timedelta(seconds=1)))
    return min(1 << (whole - 1).bit_length(), _LAST_STEP)


def steps(spec: DeliverySpec) -> Iterator[int]:
    """The retry queues that a spec's own delays can need."""
    if not spec.retry and not spec.retry_timeout:
        return
    retries = spec.retry if spec.retry is not None and spec.retry != UNLIMITED else 64
    longest = max((wait_before_retry(spec, n, lambda: 1.0) for n in range(1, min(retries, 64) + 1)), default=0.0)
    if longest <= 0:
        return
    last = step(min(timedelta(seconds=longest), DELAY_MAX))
    each = 1
    while each <= last:
        yield each
        each *= 2


def wanted(name: str, spec: DeliverySpec, shape: Shape) -> list[Queue]:
    """All queues of a destination; of a dead letter place only itself. What others rely on comes first."""
    place = dead_letter_queue(shape)
    if name == shape.dead_letters:
        return [place]
    return [place, work_queue(name, spec, shape), *(retry_queue(name, each) for each in steps(spec))]


#: With these the broker itself keeps what it dead-letters until the other queue has confirmed it.
_KEPT: Final[Mapping[str, Argument]] = {
    "x-dead-letter-strategy": "at-least-once",
    "x-overflow": "reject-publish",
}


def _to(queue: str) -> dict[str, Argument]:
    return {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue}


def _limit(spec: DeliverySpec, version: tuple[int, ...]) -> int | None:
    if spec.retry is None:
        return None
    if spec.retry == UNLIMITED:
        return -1 if version >= _LIMITED_BY_DEFAULT else None
    return spec.retry + 1 + MARGIN
