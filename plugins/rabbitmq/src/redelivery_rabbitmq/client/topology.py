"""The queues that a destination with a spec needs: their names and arguments.

The dead letter exchange is the default exchange, with a routing key: every queue is bound to it under its own name. It
cannot be deleted and its bindings cannot be removed, so no missing binding can silently drop letters.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from redelivery.contract.spec import UNLIMITED, DeliverySpec
from redelivery.kit.plans import MARGIN, longest_wait
from redelivery_rabbitmq.address import DEAD_LETTERS
from redelivery_rabbitmq.client.queue_delays import DELAY_ARGUMENTS, QueueDelay
from redelivery_rabbitmq.options import Settings

#: Between the name of a queue and the step of its retry queue.
RETRY_SUFFIX: Final = "-retry-"

#: At the end of the name of the stream that says which letters of another stream are removed.
REMOVED: Final = "-removed"

#: The longest step in seconds; the broker takes delays of less than 2**32 ms.
_LAST_STEP: Final = 1 << 22
DELAY_MAX: Final = timedelta(seconds=_LAST_STEP)
#: From this version on a queue without a delivery limit has one of 20, and -1 means none; before, -1 is 0.
_LIMITED_BY_DEFAULT: Final = (4, 0)
_DEFAULT_LIMIT: Final = 20

Argument = str | int


@dataclass(frozen=True, slots=True)
class Queue:
    """One durable queue.

    Attributes:
        name: its name.
        arguments: the arguments of its declaration.
        unspecified: arguments that the spec does not determine; any value is right.
    """

    name: str
    arguments: Mapping[str, Argument]
    unspecified: frozenset[str] = frozenset()


def work_queue(name: str, spec: DeliverySpec, settings: Settings, version: tuple[int, ...]) -> Queue:
    """Return the queue that messages are received from, for a version of the broker."""
    delay = QueueDelay.of_spec(spec, settings, version)
    arguments: dict[str, Argument] = {"x-queue-type": settings.queue_type, **_dead_lettering_to(DEAD_LETTERS.of(name))}
    unspecified: set[str] = set()
    if settings.queue_type == "quorum":
        arguments |= _AT_LEAST_ONCE
        limit = _delivery_limit(spec, version)
        if limit is not None:
            arguments["x-delivery-limit"] = limit
        if spec.retry is None:
            unspecified.add("x-delivery-limit")
        if delay is not None:
            arguments |= delay.arguments
        elif not spec.retry and not spec.retry_timeout:
            unspecified |= set(DELAY_ARGUMENTS)
    elif settings.queue_length:
        arguments["x-overflow"] = _AT_LEAST_ONCE["x-overflow"]
    if milliseconds := int(settings.queue_ttl * 1000):
        arguments["x-message-ttl"] = milliseconds
    if settings.queue_length:
        arguments["x-max-length"] = settings.queue_length
    return Queue(name, arguments, frozenset(unspecified))


def dead_letter_queue(name: str, settings: Settings, version: tuple[int, ...]) -> Queue:
    """Return the dead letter queue of a queue: its messages never expire, overflow, or reach a delivery limit."""
    if settings.dead_letters == "stream":
        return Queue(DEAD_LETTERS.of(name), {"x-queue-type": "stream"})
    arguments: dict[str, Argument] = {"x-queue-type": settings.queue_type}
    if settings.queue_type == "quorum" and version >= _LIMITED_BY_DEFAULT:
        arguments["x-delivery-limit"] = -1
    return Queue(DEAD_LETTERS.of(name), arguments)


def delivery_limit(arguments: Mapping[str, Argument], version: tuple[int, ...]) -> int | None:
    """Return the delivery limit that an existing queue has by its arguments and the version; None: it has none.

    A policy may set another, and is not visible over AMQP.
    """
    if arguments.get("x-queue-type") != "quorum":
        return None
    default = _DEFAULT_LIMIT if version >= _LIMITED_BY_DEFAULT else -1
    limit = int(arguments.get("x-delivery-limit", default))
    return limit if limit >= 0 else None


def retry_queue(work: str, step: int) -> Queue:
    """Return the queue where messages wait for up to `step` seconds; always a quorum queue, as only those lose none."""
    arguments = {"x-queue-type": "quorum", **_dead_lettering_to(work), **_AT_LEAST_ONCE, "x-message-ttl": 1000 * step}
    return Queue(f"{work}{RETRY_SUFFIX}{step}s", arguments)


def retry_step(delay: timedelta) -> int:
    """Return the step of the retry queue for a delay: the first power of two that is at least this many seconds."""
    seconds = max(1, -(-delay // timedelta(seconds=1)))
    return min(1 << (seconds - 1).bit_length(), _LAST_STEP)


def retry_steps(spec: DeliverySpec) -> Iterator[int]:
    """Yield the steps of the retry queues that the delays of a spec can need."""
    longest = longest_wait(spec)
    if longest > timedelta(0):
        last = retry_step(min(longest, DELAY_MAX))
        yield from (1 << power for power in range(last.bit_length()))


def queues(name: str, spec: DeliverySpec, settings: Settings, version: tuple[int, ...]) -> list[Queue]:
    """Return all queues of a destination, each after those that it refers to. A dead letter queue needs no others."""
    dead_letters = dead_letter_queue(name, settings, version)
    places = [dead_letters]
    if settings.dead_letters == "stream":
        places.append(Queue(dead_letters.name + REMOVED, dead_letters.arguments))
    if name == dead_letters.name:
        return places
    is_native = QueueDelay.of_spec(spec, settings, version) is not None
    retries = [] if is_native else [retry_queue(name, step) for step in retry_steps(spec)]
    return [*places, work_queue(name, spec, settings, version), *retries]


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
