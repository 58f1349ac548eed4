"""The admin role: creates and compares the queues of one destination, and never alters an existing one.

`client/arguments.py` says how the arguments of an existing queue are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from pika.adapters.blocking_connection import BlockingConnection

from redelivery.codes import Code
from redelivery.contract.broker import Admin, Difference, NativeObject, Plan
from redelivery.contract.spec import DeliverySpec, DeliveryStatus, Ref
from redelivery.errors import BrokerError, Fatal
from redelivery.kit.plans import none_if_missing
from redelivery_rabbitmq.address import API_GROUP, QUEUE, Binding
from redelivery_rabbitmq.client import arguments
from redelivery_rabbitmq.client.at_least_once import FEATURE_FLAG, FLAG_IS_OFF, is_at_least_once
from redelivery_rabbitmq.client.connection import QueueRole
from redelivery_rabbitmq.client.queue_delays import DELAY_ARGUMENTS, SINCE, QueueDelay
from redelivery_rabbitmq.client.topology import REMOVED, Argument, Queue, delivery_limit, queues, retry_steps
from redelivery_rabbitmq.errors import TABLE

API: Final = f"{API_GROUP}/v1beta1"


class RabbitmqAdmin(QueueRole, Admin):
    """Creates and compares the queues of one address. No I/O until a method is called."""

    def plan(self, spec: DeliverySpec) -> Plan:
        with self.connected("comparing") as connection:
            notes = [
                *self._delays(spec),
                "policies of the broker's operator are not visible over AMQP, and may add to what is declared",
            ]
            objects: list[NativeObject] = []
            warnings: list[str] = []
            for each in self._queues(spec):
                item, found = self._compare(connection, each, notes)
                objects.append(item)
                warnings += self._losses(connection, item, found)
            if self._address.binding is not None:
                objects.append(_binding_object(self._address.binding, objects, notes))
                if not _exchange_exists(connection, self._address.binding.exchange):
                    warnings.append(_missing_exchange(self._address.binding))
        return Plan(objects=objects, status=self._status(spec), approximations=notes, warnings=warnings)

    def provision(self, spec: DeliverySpec) -> DeliveryStatus:
        plan = self.plan(spec)
        plan.refuse_differences(f"rabbitmq: {self._address.url}")
        if self._address.binding is not None:
            self._check_exchange(self._address.binding)
        missing = {item.name for item in plan.objects if item.action == "create"}
        there = {item.name for item in plan.objects}
        for name in missing:
            if name + REMOVED in there - missing:
                text = f"queue {name + REMOVED!r} says what was removed of an earlier {name!r}: delete it first"
                raise Fatal(f"rabbitmq: {self.doing('provisioning')}: {text}", code=Code.CONFLICT)
        for queue in self._queues(spec):
            if queue.name in missing:
                if "x-dead-letter-strategy" in queue.arguments and not self._is_at_least_once(queue):
                    raise Fatal(f"rabbitmq: creating the queue {queue.name!r}: {FLAG_IS_OFF}", code=Code.UNSUPPORTED)
                what = f"creating {queue.name!r} to provision"
                with self.connected(what, needs=_permissions(queue)) as connection:
                    arguments.create(connection, queue)
        if self._address.binding is not None:
            self._bind(self._address.binding)
        return plan.status

    def depth(self) -> int:
        """Return the number of ready messages; AMQP does not tell how many are unacknowledged."""
        with self.connected("counting") as connection:
            return _count(connection, self._address.queue)

    def _queues(self, spec: DeliverySpec) -> list[Queue]:
        return queues(self._address.queue, spec, self._settings, self.broker_version)

    def _delays(self, spec: DeliverySpec) -> Iterator[str]:
        """Yield how the delays of retries differ from the spec. Raises Fatal: `rabbitmq.delays` cannot be kept."""
        if self._address.queue == self._address.dead_letters.queue or not any(retry_steps(spec)):
            return
        delay = QueueDelay.of_spec(spec, self._settings, self.broker_version)
        if self._settings.delays == "native":
            arguments.refuse_native(self.broker_version)
            if delay is None:
                text = "rabbitmq.delays is 'native', but a queue itself delays only linearly"
                advice = "give backoffPolicy linear, without backoffProfile, and quorum queues"
                raise Fatal(f"rabbitmq: {self._address.url}: {text}; {advice}", code=Code.MISCONFIGURED)
        if delay is not None:
            yield (
                f"the queue itself delays a message after each failed delivery, a lost connection included: {delay}; "
                "receivers need the configure permission on the queue to see that, or rabbitmq.delays=native"
            )
            return
        yield "a retry may come late if one with a longer delay waits before it: by its own delay or by 1 s at most"
        if self.broker_version >= SINCE and self._settings.delays == "auto":
            yield "retry queues keep the delays, a copy each time: this broker's own queues delay only linearly"

    def _check_exchange(self, binding: Binding) -> None:
        with self.connected("provisioning") as connection:
            if not _exchange_exists(connection, binding.exchange):
                text = f"rabbitmq: {self.doing('provisioning')}: {_missing_exchange(binding)}"
                raise Fatal(text, code=Code.NO_SUCH_DESTINATION)

    def _bind(self, binding: Binding) -> None:
        what = f"binding to exchange {binding.exchange!r} the"
        needs = f"write permission on {binding.queue!r} and read permission on {binding.exchange!r}"
        with self.connected(what, needs=needs) as connection, connection.channel() as channel:
            channel.queue_bind(binding.queue, binding.exchange, binding.routing_key)

    def _status(self, spec: DeliverySpec) -> DeliveryStatus:
        place = self._address.dead_letters
        return DeliveryStatus.of(spec, uri=place.full_url, channel=Ref(api_version=API, kind=QUEUE, name=place.queue))

    def _compare(
        self, connection: BlockingConnection, queue: Queue, notes: list[str]
    ) -> tuple[NativeObject, Mapping[str, Argument]]:
        """Return a queue, compared with the wanted one, and the arguments that it has, as far as they are visible."""
        found: Mapping[str, Argument] = queue.arguments
        texts = {name: str(value) for name, value in queue.arguments.items()}
        if none_if_missing(lambda: _count(connection, queue.name)) is None:
            return NativeObject(kind="queue", name=queue.name, action="create", attributes=texts), found
        differences: list[Difference] = []
        try:
            with TABLE.while_doing(f"comparing queue {queue.name!r}"):
                differences, found = arguments.compared(connection, queue)
        except BrokerError as error:
            if error.code is not Code.NOT_AUTHORIZED:
                raise
            notes.append(
                f"queue {queue.name!r} exists; its arguments are not compared, as this user may not configure it"
            )
        else:
            if not differences and "x-dead-letter-strategy" in texts and not self._is_at_least_once(queue):
                kept = f"at-most-once, as the broker's feature flag {FEATURE_FLAG} is off"
                differences = [Difference("x-dead-letter-strategy", texts["x-dead-letter-strategy"], kept)]
        return NativeObject.compared("queue", queue.name, texts, differences), found

    def _losses(
        self, connection: BlockingConnection, item: NativeObject, found: Mapping[str, Argument]
    ) -> Iterator[str]:
        """Yield how the broker itself would silently lose messages of a queue with these arguments."""
        if any(name in item.attributes and name not in found for name in DELAY_ARGUMENTS):
            yield (
                f"queue {item.name!r} was created without delays of its own: retries go through retry queues until it "
                "is created again; rabbitmq.delays=emulated keeps them"
            )
        is_work_queue = item.name == self._address.queue != self._address.dead_letters.queue
        if is_work_queue and found.get("x-queue-type", "classic") == "classic":
            yield (
                f"queue {item.name!r} is a classic queue: messages that the broker itself dead-letters (expired, "
                "over the length) move at most once; a quorum queue keeps them until that is confirmed"
            )
        exchange = found.get("x-dead-letter-exchange")
        limit = delivery_limit(found, self.broker_version)
        if exchange is None and limit is not None:
            text = f"the broker drops a message that comes back from its delivery {limit + 1}"
            yield f"queue {item.name!r} has a delivery limit of {limit} and no dead letter exchange: {text}"
        if exchange and not _exchange_exists(connection, str(exchange)):
            text = f"the exchange {exchange!r}, which does not exist: the broker drops its letters silently"
            yield f"queue {item.name!r} dead-letters to {text}"

    def _is_at_least_once(self, queue: Queue) -> bool:
        return is_at_least_once(self._address, self._settings, self.broker_version, f"{queue.name}-flag")


def _binding_object(binding: Binding, objects: list[NativeObject], notes: list[str]) -> NativeObject:
    is_new = any(item.name == binding.queue and item.action == "create" for item in objects)
    if not is_new:
        notes.append(
            f"the bindings of queue {binding.queue!r} are not visible over AMQP: applying binds it again, which "
            "changes nothing if it is bound; bindings with other routing keys stay"
        )
    return NativeObject(
        kind="binding",
        name=f"{binding.exchange} -> {binding.queue}",
        action="create" if is_new else "keep",
        attributes={"routing_key": binding.routing_key},
    )


def _exchange_exists(connection: BlockingConnection, name: str) -> bool:
    try:
        with TABLE.while_doing(f"looking for exchange {name!r}"), connection.channel() as channel:
            channel.exchange_declare(name, passive=True)
    except BrokerError as error:
        if error.code not in {Code.NO_SUCH_DESTINATION, Code.NOT_AUTHORIZED}:
            raise
        return error.code is Code.NOT_AUTHORIZED  # a user without the right to look assumes that it exists
    return True


def _missing_exchange(binding: Binding) -> str:
    return f"the exchange {binding.exchange!r} does not exist; declare it, with the type that its publishers need"


def _count(connection: BlockingConnection, name: str) -> int:
    # Brokers before 4.2.6 and 4.3.0 let every user look.
    with (
        TABLE.while_doing(f"counting queue {name!r}", needs=f"any permission on {name!r}"),
        connection.channel() as channel,
    ):
        return int(channel.queue_declare(name, passive=True).method.message_count)


def _permissions(queue: Queue) -> str:
    """Return the permissions that declaring a queue takes; the broker's refusal does not name them."""
    permissions = f"configure permission on {queue.name!r}"
    if "x-dead-letter-exchange" in queue.arguments:
        permissions += (
            f", read permission on {queue.name!r} and write permission on 'amq.default', its dead letter exchange"
        )
    return permissions
