"""The admin role: makes and checks the queues of one destination. This file must not alter what exists.

AMQP has no way to read a queue's arguments. But declaring one that exists changes nothing, and is refused where an
argument differs, naming the first that does: each is read by declaring with what the refusal said, until all are equal.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from pika.adapters.blocking_connection import BlockingConnection
from pika.exceptions import ChannelClosedByBroker

from redelivery.contract.broker import Admin, Difference, NativeObject, Plan
from redelivery.contract.spec import DeliverySpec, DeliveryStatus, Ref
from redelivery.errors import Fatal
from redelivery_rabbitmq.address import Address, Binding, Settings
from redelivery_rabbitmq.client.at_least_once import FLAG, OFF, keeps
from redelivery_rabbitmq.client.blocking import Link
from redelivery_rabbitmq.client.topology import Argument, Queue, Shape, wanted
from redelivery_rabbitmq.errors import NODE_DOWN

#: What queues and exchanges are called in a `ref`: the kinds of RabbitMQ's topology operator for Kubernetes.
QUEUE: Final = "Queue"
EXCHANGE: Final = "Exchange"
API_GROUP: Final = "rabbitmq.com"
API: Final = f"{API_GROUP}/v1beta1"

_REFUSED: Final = 403
_NOT_FOUND: Final = 404
_DIFFERS: Final = 406
#: As in: inequivalent arg 'x' for queue 'q' in vhost '/': received none but current is the value '5' of type 'long'
_INEQUIVALENT: Final = re.compile(
    r"inequivalent arg '(?P<name>[^']+)' for .*: received .* but current is (?P<found>.*)$"
)
_FOUND: Final = re.compile(r"(?:none|(?:the value )?'(?P<value>.*?)'(?: of type '(?P<type>\w+)')?)$")
#: Attributes that are no arguments.
_FLAGS: Final = {"durable": "true", "auto_delete": "false"}
#: More attributes than a queue has; the broker names one at a time.
_MOST: Final = 40


class RabbitmqAdmin(Admin):
    """Makes and checks the queues of one address. No I/O until it is asked."""

    def __init__(self, address: Address, settings: Settings) -> None:
        self._address = address
        self._settings = settings
        self._link = Link(address, settings)

    def plan(self, spec: DeliverySpec) -> Plan:
        with self._link.using(self._doing("looking at")) as connection:
            notes = [
                "a retry may come late where a longer one waits before it: by its own delay, or by 1 s, at most",
                "policies of the broker's operator are not seen over AMQP, and may add to what is declared",
            ]
            objects = [self._look(connection, each, notes) for each in self._wanted(spec)]
            warnings = [text for item in objects for text in self._lossy(connection, item)]
            if self._address.binding is not None:
                objects.append(self._binding(self._address.binding, objects, notes))
                if not _has_exchange(connection, self._address.binding.exchange):
                    warnings.append(_no_exchange(self._address.binding))
        return Plan(objects=objects, status=self._status(spec), approximations=notes, warnings=warnings)

    def provision(self, spec: DeliverySpec) -> DeliveryStatus:
        plan = self.plan(spec)
        plan.refuse_differences(f"rabbitmq: {self._address.url}")
        if self._address.binding is not None:
            self._needs_exchange(self._address.binding)
        missing = {item.name for item in plan.objects if item.action == "create"}
        for queue in self._wanted(spec):
            if queue.name in missing:
                if "x-dead-letter-strategy" in queue.arguments and not self._keeps(queue):
                    raise Fatal(f"rabbitmq: making the queue {queue.name!r}: {OFF}", native_code="FEATURE_FLAG")
                with self._link.using(f"making the queue {queue.name!r}", needs=_needed(queue)) as connection:
                    _declare(connection, queue.name, _FLAGS, queue.arguments)
        if self._address.binding is not None:
            self._bind(self._address.binding)
        return plan.status

    def depth(self) -> int:
        """Messages that wait; AMQP does not tell how many others have under lease."""
        with self._link.using(self._doing("counting")) as connection:
            return _count(connection, self._address.queue)

    def close(self) -> None:
        self._link.close()

    def _wanted(self, spec: DeliverySpec) -> list[Queue]:
        return wanted(self._address.queue, spec, self._shape())

    def _shape(self) -> Shape:
        settings = self._settings
        return Shape(
            kind=settings.queue_type,
            dead_letters=self._address.dead_letters.queue,
            ttl_ms=settings.queue_ttl_ms,
            length=settings.queue_length,
            version=self._link.version,
        )

    def _binding(self, binding: Binding, objects: list[NativeObject], notes: list[str]) -> NativeObject:
        is_new = any(item.name == binding.queue and item.action == "create" for item in objects)
        if not is_new:
            notes.append(
                f"whether queue {binding.queue!r} is bound is not told over AMQP, nor by what other keys: applying "
                "binds it, which changes nothing where it is"
            )
        return NativeObject(
            kind="binding",
            name=f"{binding.exchange} -> {binding.queue}",
            action="create" if is_new else "keep",
            attributes={"routing_key": binding.routing_key},
        )

    def _needs_exchange(self, binding: Binding) -> None:
        doing = f"subscribing {binding.name!r}"
        with self._link.using(doing) as connection:
            if not _has_exchange(connection, binding.exchange):
                raise Fatal(f"rabbitmq: {doing}: {_no_exchange(binding)}", native_code="NO_EXCHANGE")

    def _bind(self, binding: Binding) -> None:
        doing = f"binding queue {binding.queue!r} to exchange {binding.exchange!r}"
        needs = f"write permission on {binding.queue!r} and read permission on {binding.exchange!r}"
        with self._link.using(doing, needs=needs) as connection, connection.channel() as channel:
            channel.queue_bind(binding.queue, binding.exchange, binding.routing_key)

    def _status(self, spec: DeliverySpec) -> DeliveryStatus:
        place = self._address.dead_letters
        return DeliveryStatus.of(spec, uri=place.full_url, channel=Ref(api_version=API, kind=QUEUE, name=place.queue))

    def _doing(self, what: str) -> str:
        return f"{what} queue {self._address.queue!r}"

    def _look(self, connection: BlockingConnection, queue: Queue, notes: list[str]) -> NativeObject:
        texts = {name: str(value) for name, value in queue.arguments.items()}
        try:
            _count(connection, queue.name)
        except ChannelClosedByBroker as error:
            if error.reply_code != _NOT_FOUND or NODE_DOWN in error.reply_text:
                raise
            return NativeObject(kind="queue", name=queue.name, action="create", attributes=texts)
        differences = []
        try:
            differences = _differences(connection, queue)
            if not differences and "x-dead-letter-strategy" in texts and not self._keeps(queue):
                found = f"at-most-once, as the broker's feature flag {FLAG} is off"
                differences = [Difference("x-dead-letter-strategy", texts["x-dead-letter-strategy"], found)]
        except ChannelClosedByBroker as error:
            if error.reply_code != _REFUSED:
                raise
            notes.append(f"queue {queue.name!r} is there; what it is like is told only to who may configure it")
        return NativeObject.compared("queue", queue.name, texts, differences)

    def _lossy(self, connection: BlockingConnection, item: NativeObject) -> Iterator[str]:
        """How the broker itself loses letters of a queue without a word."""
        there = {each.attribute: each.found for each in item.differences}
        if item.name == self._address.queue != self._address.dead_letters.queue:
            kind = there.get("x-queue-type", item.attributes["x-queue-type"])
            if kind == "classic":
                yield (
                    f"queue {item.name!r} is a classic one: what the broker itself dead-letters (expired, over the "
                    "length) it sends on at most once; a quorum queue keeps it until that is confirmed"
                )
        exchange = there.get("x-dead-letter-exchange")
        if exchange and exchange != "none" and not _has_exchange(connection, exchange):
            where = f"the exchange {exchange!r}, which is not there"
            yield f"queue {item.name!r} dead-letters to {where}: letters are dropped without a word"

    def _keeps(self, queue: Queue) -> bool:
        return keeps(self._address, self._settings, self._link.version, f"{queue.name}-flag")


def _differences(connection: BlockingConnection, queue: Queue) -> list[Difference]:
    """What differs, attribute by attribute. Declaring is a read here: the queue exists."""
    flags, arguments = dict(_FLAGS), dict(queue.arguments)
    differences = []
    for _ in range(_MOST):
        try:
            _declare(connection, queue.name, flags, arguments)
        except ChannelClosedByBroker as error:
            match = _INEQUIVALENT.search(error.reply_text) if error.reply_code == _DIFFERS else None
            found = match and _FOUND.match(match["found"])
            if not match or not found:
                raise
            name, text = match["name"], found["value"]
            ours = str(flags.get(name, arguments.get(name, "none")))
            if name not in queue.free:
                differences.append(Difference(name, ours, "none" if text is None else text))
            _mend(flags, arguments, name, text, found["type"])
        else:
            break
    return differences


def _mend(flags: dict[str, str], arguments: dict[str, Argument], name: str, text: str | None, kind: str | None) -> None:
    """Take over what was found."""
    if name in flags:
        flags[name] = text or ""
    elif text is None:
        arguments.pop(name, None)
    else:
        is_number = isinstance(arguments.get(name), int) if kind is None else kind != "longstr"
        arguments[name] = int(text) if is_number else text


def _declare(
    connection: BlockingConnection, name: str, flags: Mapping[str, str], arguments: Mapping[str, Argument]
) -> None:
    # A channel of its own: it is closed by a refusal.
    with connection.channel() as channel:
        channel.queue_declare(
            name,
            durable=flags["durable"] == "true",
            auto_delete=flags["auto_delete"] == "true",
            arguments=dict[str, Any](arguments),
        )


def _has_exchange(connection: BlockingConnection, name: str) -> bool:
    try:
        with connection.channel() as channel:
            channel.exchange_declare(name, passive=True)
    except ChannelClosedByBroker as error:
        if error.reply_code not in {_NOT_FOUND, _REFUSED}:
            raise
        return bool(error.reply_code == _REFUSED)  # who may not look is not told, and assumes the best
    return True


def _no_exchange(binding: Binding) -> str:
    return f"there is no exchange {binding.exchange!r}; declare it, of the type that its publishers need"


def _count(connection: BlockingConnection, name: str) -> int:
    with connection.channel() as channel:
        return int(channel.queue_declare(name, passive=True).method.message_count)


def _needed(queue: Queue) -> str:
    """Which permissions declaring it takes; the broker's refusal does not say."""
    needed = f"configure permission on {queue.name!r}"
    if "x-dead-letter-exchange" in queue.arguments:
        needed += f", read permission on {queue.name!r} and write permission on 'amq.default', its dead letter exchange"
    return needed
