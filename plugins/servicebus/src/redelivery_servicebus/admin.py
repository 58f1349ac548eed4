"""The admin role: the queue, its dead letter queue, the forwarding between them, and a subscription's forwarding.

It needs the claim Manage; without it, it reports the checks that were not possible. It never alters existing objects.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from shlex import quote
from typing import Any, Final, TypeVar

from azure.servicebus.management import QueueProperties, ServiceBusAdministrationClient, SubscriptionProperties

from redelivery.codes import Code
from redelivery.contract.broker import Admin, Difference, NativeObject, Plan
from redelivery.contract.spec import DeliverySpec, DeliveryStatus, Ref
from redelivery.errors import BrokerError, ConfigurationError, Fatal
from redelivery.kit.plans import compared, deliveries, deliveries_note, none_if_missing
from redelivery.kit.roles import Resource
from redelivery_servicebus.address import API_GROUP, KIND, Address
from redelivery_servicebus.client.connection import Namespace, admin_client
from redelivery_servicebus.errors import MANAGE, TABLE, is_denied
from redelivery_servicebus.options import Settings

API: Final = f"{API_GROUP}/v1api20211101"
#: The highest MaxDeliveryCount that Service Bus accepts.
MOST_DELIVERIES: Final = 2_000

_COUNT: Final = "MaxDeliveryCount"
_LOCK: Final = "LockDuration"
_TTL: Final = "DefaultMessageTimeToLive"
_EXPIRED: Final = "DeadLetteringOnMessageExpiration"
_DUPLICATES: Final = "RequiresDuplicateDetection"
_WINDOW: Final = "DuplicateDetectionHistoryTimeWindow"
_SESSION: Final = "RequiresSession"
_FORWARD: Final = "ForwardTo"
_FORWARD_DEAD: Final = "ForwardDeadLetteredMessagesTo"
_SUBSCRIPTION: Final = "subscription"
_IS_TOPIC: Final = "it is a topic: name a subscription of it ('?subscription=<name>')"
_IS_QUEUE: Final = (
    "it is a queue, each message of which goes to one receiver: name a topic, or leave the subscription out"
)
#: A longer time to live is as good as none: Azure's own default is 10,675,199 days.
_FOREVER: Final = timedelta(days=36_500)
#: Seconds of LockDuration that a queue is created with unless an option says otherwise, and a dead letter queue always.
_LOCK_SECONDS: Final = 60
_LETTER_LOCK_SECONDS: Final = 300

_Found = TypeVar("_Found")

log = logging.getLogger("redelivery.servicebus")


class ServicebusAdmin(Resource, Admin):
    """Creates and checks the queue of an address, its dead letter queue, and the subscription that fills it."""

    def __init__(self, address: Address, settings: Settings) -> None:
        self._kind = _SUBSCRIPTION if address.owner else "queue"
        super().__init__("servicebus", f"{self._kind} {address.queue!r}")
        self._address = address
        self._letters = address.dead_letters
        self._settings = settings
        self._client: ServiceBusAdministrationClient | None = None

    def plan(self, spec: DeliverySpec) -> Plan:
        notes: list[str] = []
        objects = [self._plan_letters(notes)]
        if not self._address.is_dead_letters:
            objects.append(self._plan_queue(spec, notes))
        if self._address.topic:
            objects.append(self._plan_subscription(objects[-1], notes))
        channel = Ref(api_version=API, kind=KIND, name=self._letters.queue)
        return Plan(
            objects=objects,
            status=DeliveryStatus.of(spec, uri=self._letters.url, channel=channel),
            approximations=deliveries_note(spec, MOST_DELIVERIES, "Service Bus"),
            warnings=notes,
        )

    def provision(self, spec: DeliverySpec) -> DeliveryStatus:
        plan = self.plan(spec)
        for note in plan.warnings:
            log.warning("servicebus: %s", note)
        plan.refuse_differences(f"servicebus: queue {self._address.queue!r}")
        missing = [item for item in plan.objects if item.action == "create"]
        if any(item.kind == _SUBSCRIPTION for item in missing) and not self._has_topic():
            text = f"servicebus: subscribing {self._address.name or self._address.native!r}: {self._no_topic()}"
            raise Fatal(text, code=Code.NO_SUCH_DESTINATION)
        for item in missing:
            self._create(item)
        return plan.status

    def depth(self) -> int:
        address = self._address

        def count(client: ServiceBusAdministrationClient) -> int:
            if address.owner:
                return (
                    client.get_subscription_runtime_properties(address.owner, address.native).active_message_count or 0
                )
            found = client.get_queue_runtime_properties(address.queue)
            return (found.active_message_count or 0) + (found.scheduled_message_count or 0)

        return self._ask(self.doing("counting"), count)

    def forwards_to(self) -> str | None:
        """Return the name of the queue that dead letters are forwarded to; None if they are not. Raises BrokerError."""
        found = self._get(self._address)
        if found is None:
            text = f"{self._place} does not exist in {self._address.namespace}: provision it"
            raise Fatal(f"servicebus: {text}", code=Code.NO_SUCH_DESTINATION)
        return _name(found.forward_dead_lettered_messages_to)

    def drops_letters(self) -> bool:
        """Return whether the dead letter queue drops messages with an id that it has seen. Raises BrokerError."""
        found: Any = self._get(self._letters)
        return found is not None and bool(found.requires_duplicate_detection)

    def remembers_ids(self) -> bool:
        """Return whether the queue or topic drops messages with an id that it has seen. Raises BrokerError."""
        try:
            found: Any = self._get(self._address)
        except Fatal as error:
            if error.code is not Code.INVALID_DESTINATION:
                raise
            name = self._address.queue
            found = self._look(f"topic {name!r}", lambda client: client.get_topic(name))
        return found is not None and bool(found.requires_duplicate_detection)

    def exists(self, address: Address) -> bool:
        """Return whether a queue exists, by the claim Listen alone. Raises BrokerError."""
        link = Namespace(address, self._settings).receiver(address.queue, "looking at")
        try:
            return none_if_missing(lambda: link.open(self._settings.operation_timeout)) is not None
        finally:
            link.drop()

    def _release(self) -> None:
        if self._client is not None:
            self._client.close()

    # --- comparing ---

    def _plan_letters(self, notes: list[str]) -> NativeObject:
        """Return the plan of the dead letter queue. Browsing and removing must never exceed its count of deliveries."""
        wanted = {_COUNT: str(MOST_DELIVERIES), _LOCK: f"{_LETTER_LOCK_SECONDS}s", _EXPIRED: "true"}
        name = self._letters.queue
        found = self._get_or_plan(self._letters, wanted, notes)
        if isinstance(found, NativeObject):
            return found
        if (found.max_delivery_count or 0) < MOST_DELIVERIES:
            text = f"{name} gives a letter at most {found.max_delivery_count} times: removing letters behind it counts"
            notes.append(f"{text}, and a letter over that limit goes to its own sub-queue (which is read, too)")
        kept = found.default_message_time_to_live
        if isinstance(kept, timedelta) and kept < _FOREVER:
            notes.append(f"{name} keeps a letter for {_seconds(kept)}: it may expire before anybody has looked at it")
        if not found.dead_lettering_on_message_expiration:
            text = f"{name} discards a letter whose own time to live ends there: {_EXPIRED} is false"
            notes.append(f"{text} (if it is true, the letter goes to that queue's own sub-queue)")
        # With duplicate detection a letter would be confirmed and dropped if its id was seen.
        needed = {_SESSION: "false", _DUPLICATES: "false", _FORWARD: "none"}
        return compared("queue", name, wanted, {}, only=(), also=_differences(needed, _attributes(found)))

    def _plan_queue(self, spec: DeliverySpec, notes: list[str]) -> NativeObject:
        wanted, asked = self._wanted(spec)
        name, kind = self._address.queue, self._kind
        if self._address.owner and not self._topic_is_there(notes):
            notes.append(self._no_topic())
        found = self._get_or_plan(self._address, wanted, notes)
        if isinstance(found, NativeObject):
            return replace(found, kind=kind)
        attributes = _attributes(found)
        if attributes[_FORWARD_DEAD].lower() == self._letters.queue.lower():
            attributes[_FORWARD_DEAD] = self._letters.queue
        if attributes[_EXPIRED] == "false" and _EXPIRED not in asked:
            notes.append(f"{name} discards expired messages: {_EXPIRED} is false")
        if attributes[_DUPLICATES] == "true" and not self._settings.deduplicates:
            text = f"{name} drops a message whose id it has seen within {attributes[_WINDOW]}"
            notes.append(f"{text}: set servicebus.duplicate_detection")
        needed = {_SESSION: _flag(self._address.sessions)} | ({_FORWARD: "none"} if self._address.owner else {})
        return compared(kind, name, wanted, attributes, only=asked, also=_differences(needed, attributes))

    def _plan_subscription(self, queue: NativeObject, notes: list[str]) -> NativeObject:
        """Return the plan of the subscription that forwards each message of the topic to the queue."""
        address = self._address
        name, wanted = f"{address.topic}/Subscriptions/{address.native}", {_FORWARD: address.queue}
        try:
            has_topic = self._has_topic()
            found = self._look(
                f"subscription {name!r}", lambda client: client.get_subscription(address.topic, address.native)
            )
        except BrokerError as error:
            if not is_denied(error):
                raise
            if queue.action != "create":
                notes.append(f"whether {name} forwards to {address.queue} could not be checked: Manage is missing")
            return NativeObject(kind=_SUBSCRIPTION, name=name, action=queue.action, attributes=wanted)
        if not has_topic:
            notes.append(self._no_topic())
        if found is None:
            return compared(_SUBSCRIPTION, name, wanted, None)
        target = _name(found.forward_to) or "none"
        same = target.lower() == address.queue.lower()
        return compared(_SUBSCRIPTION, name, wanted, {_FORWARD: address.queue if same else target})

    def _wanted(self, spec: DeliverySpec) -> tuple[dict[str, str], set[str]]:
        """Return the attributes of a queue, and those that the spec or an option asks for: others may differ."""
        settings = self._settings
        asked = {_FORWARD_DEAD}
        wanted = {
            _COUNT: str(deliveries(spec, MOST_DELIVERIES)),
            _LOCK: f"{settings.lock_duration or _LOCK_SECONDS}s",
            _EXPIRED: "true",
            _FORWARD_DEAD: self._letters.queue,
        }
        if self._address.sessions:
            wanted[_SESSION] = "true"
        if spec.retry is not None:
            asked.add(_COUNT)
        if settings.lock_duration is not None:
            asked.add(_LOCK)
        if settings.message_ttl is not None:
            asked |= {_TTL, _EXPIRED}
            wanted[_TTL] = f"{settings.message_ttl}s"
        if settings.deduplicates and not self._address.owner:
            asked |= {_DUPLICATES, _WINDOW}
            wanted |= {_DUPLICATES: "true", _WINDOW: f"{settings.duplicate_detection_window}s"}
        return wanted, asked

    def _get_or_plan(
        self, address: Address, wanted: dict[str, str], notes: list[str]
    ) -> QueueProperties | SubscriptionProperties | NativeObject:
        """Return a queue, or its plan if it does not exist or if the claim Manage is missing."""
        try:
            found = self._get(address)
            return compared("queue", address.queue, wanted, None) if found is None else found
        except BrokerError as error:
            if not is_denied(error):
                raise
        if not self.exists(address):
            return compared("queue", address.queue, wanted, None)
        notes.append(f"{', '.join(wanted)} of {address.queue} could not be checked: the claim Manage is missing")
        return compared("queue", address.queue, wanted, wanted)

    def _topic_is_there(self, notes: list[str]) -> bool:
        """Return whether the topic exists, or may."""
        try:
            return self._has_topic()
        except BrokerError as error:
            if not is_denied(error):
                raise
            notes.append(f"topic {self._address.owner!r} could not be checked: the claim Manage is missing")
            return True

    def _has_topic(self) -> bool:
        """Return whether the topic exists. Raises BrokerError: it is a queue, or cannot be looked at."""
        topic = self._address.topic or self._address.owner
        return self._look(f"topic {topic!r}", lambda client: client.get_topic(topic), _IS_QUEUE) is not None

    def _no_topic(self) -> str:
        topic = self._address.topic or self._address.owner
        return f"topic {topic!r} does not exist: create it, with the settings that its publishers need"

    # --- requests ---

    def _get(self, address: Address) -> QueueProperties | SubscriptionProperties | None:
        """Return a queue, or a subscription that is received from; None if it does not exist."""
        if address.owner:
            owner, name = address.owner, address.native
            return self._look(f"subscription {address.queue!r}", lambda client: client.get_subscription(owner, name))
        return self._look(f"queue {address.queue!r}", lambda client: client.get_queue(address.queue))

    def _look(
        self, what: str, ask: Callable[[ServiceBusAdministrationClient], _Found], other: str = _IS_TOPIC
    ) -> _Found | None:
        """Return an object of the namespace; None if it does not exist. Raises BrokerError."""
        return none_if_missing(lambda: self._ask(f"looking at {what}", ask, other))

    def _ask(
        self, doing: str, ask: Callable[[ServiceBusAdministrationClient], _Found], other: str = _IS_TOPIC
    ) -> _Found:
        """Read an object of the namespace. Raises BrokerError, with the text `other` if it is of another kind.

        The SDK does not check the kind in the answer, and raises AttributeError if it is another one.
        """
        client = self._connected()
        with TABLE.while_doing(doing, safe=True, needs=MANAGE):
            try:
                return ask(client)
            except AttributeError as error:
                raise Fatal(f"servicebus: {doing}: {other}", code=Code.INVALID_DESTINATION) from error

    def _create(self, item: NativeObject) -> None:
        client, wanted, address = self._connected(), item.attributes, self._address
        with TABLE.while_doing(f"creating {item.kind} {item.name!r}", needs=MANAGE):
            if item.kind == _SUBSCRIPTION and not address.owner:
                client.create_subscription(
                    address.topic, address.native, forward_to=wanted[_FORWARD], user_metadata=address.name
                )
                return
            made: dict[str, Any] = {
                "max_delivery_count": int(wanted[_COUNT]),
                "lock_duration": _duration(wanted[_LOCK]),
                "default_message_time_to_live": _duration(wanted.get(_TTL)),
                "dead_lettering_on_message_expiration": wanted.get(_EXPIRED) == "true" or None,
                "forward_dead_lettered_messages_to": wanted.get(_FORWARD_DEAD),
            }
            if item.kind == _SUBSCRIPTION:
                client.create_subscription(address.owner, address.native, **made)
                return
            client.create_queue(
                item.name,
                requires_duplicate_detection=wanted.get(_DUPLICATES) == "true" or None,
                duplicate_detection_history_time_window=_duration(wanted.get(_WINDOW)),
                requires_session=wanted.get(_SESSION) == "true" or None,
                **made,
            )

    def _connected(self) -> ServiceBusAdministrationClient:
        self.check_open("administering")
        self._client = self._client or admin_client(self._address, self._settings)
        return self._client


def native_sink(address: Address, settings: Settings) -> str:
    """Return the URL of the queue that a queue's dead letters are forwarded to.

    Raises:
        ConfigurationError: they are not forwarded; the text has the command that provisions it.
        BrokerError: it cannot be looked at.
    """
    letters = address.dead_letters
    if letters == address:
        return letters.url
    with ServicebusAdmin(address, settings) as admin:
        drops = False
        try:
            target = admin.forwards_to()
            drops = admin.drops_letters()
        except Fatal as error:
            if error.code is Code.INVALID_DESTINATION:
                text = f"servicebus: {address.queue!r} is a topic, which has no dead letters"
                raise ConfigurationError(f"{text}: name another sink, or a subscription of it") from error
            if not is_denied(error):
                raise
            if admin.exists(letters):
                text = "servicebus: without Manage, whether dead letters of %r are forwarded to %r was not checked"
                log.warning(text, address.queue, letters.queue)
                return letters.url
            target = None
    if drops:
        text = f"servicebus: {letters.queue!r} has duplicate detection: a letter whose id it has seen would be dropped"
        raise ConfigurationError(f"{text}. Create that queue again without it, or name another sink")
    if target is not None and target.lower() == letters.queue.lower():
        return letters.url
    found = "nowhere" if target is None else f"to {target!r}"
    text = (
        f"servicebus: dead letters of {address.queue!r} are forwarded {found}, not to {letters.queue!r}, and its "
        "dead-letter sub-queue cannot be sent to. "
        f"Run: redelivery apply {quote(address.url)} --option deadLetterSink=native"
    )
    raise ConfigurationError(text if target is None else f"{text}, or name {address.at(target).url} as the sink")


def _attributes(found: Any) -> dict[str, str]:
    """Return the attributes of a queue or a subscription, which has no duplicate detection."""
    return {
        _COUNT: str(found.max_delivery_count),
        _LOCK: _seconds(found.lock_duration),
        _TTL: _seconds(found.default_message_time_to_live),
        _EXPIRED: _flag(found.dead_lettering_on_message_expiration),
        _DUPLICATES: _flag(getattr(found, "requires_duplicate_detection", None)),
        _WINDOW: _seconds(getattr(found, "duplicate_detection_history_time_window", None)),
        _SESSION: _flag(found.requires_session),
        _FORWARD: _name(found.forward_to) or "none",
        _FORWARD_DEAD: _name(found.forward_dead_lettered_messages_to) or "none",
    }


def _differences(needed: Mapping[str, str], found: Mapping[str, str]) -> list[Difference]:
    return [Difference(name, value, found[name]) for name, value in needed.items() if found[name] != value]


def _flag(value: bool | None) -> str:  # noqa: FBT001 - a value of the SDK's
    return str(bool(value)).lower()


def _name(target: str | None) -> str | None:
    """Return the name of a queue from the URI that the administration endpoint returns."""
    if not target:
        return None
    return target.partition("://")[2].partition("/")[2].strip("/") if "://" in target else target.strip("/")


def _seconds(value: Any) -> str:
    return f"{value.total_seconds():.15g}s" if isinstance(value, timedelta) else str(value)


def _duration(text: str | None) -> timedelta | None:
    return None if text is None else timedelta(seconds=float(text.removesuffix("s")))
