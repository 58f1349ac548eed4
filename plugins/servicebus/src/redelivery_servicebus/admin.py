"""The admin role: the queue, the queue for its dead letters, the forwarding between them, and that of a subscription.

It needs the claim Manage; without it, it says what could not be checked. This file must not alter what exists.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from shlex import quote
from typing import Any, Final, TypeVar

from azure.servicebus.management import QueueProperties, ServiceBusAdministrationClient

from redelivery.contract.broker import Admin, Difference, NativeObject, Plan
from redelivery.contract.spec import UNLIMITED, DeliverySpec, DeliveryStatus, Ref
from redelivery.errors import BrokerError, ConfigurationError, Fatal
from redelivery_servicebus.address import Address
from redelivery_servicebus.client.connection import admin_client, client
from redelivery_servicebus.client.links import Link
from redelivery_servicebus.errors import classified, is_denied, is_missing
from redelivery_servicebus.options import Settings

#: Deliveries beyond core's own limit: only handlers that never come back to core get so far.
MARGIN: Final = 10
#: What a queue is called in a `ref`: the kind of Azure's operator for Kubernetes.
KIND: Final = "NamespacesQueue"
API_GROUP: Final = "servicebus.azure.com"
API: Final = f"{API_GROUP}/v1api20211101"
#: The most that Service Bus takes as MaxDeliveryCount.
MOST_DELIVERIES: Final = 2_000

_COUNT, _LOCK, _TTL = "MaxDeliveryCount", "LockDuration", "DefaultMessageTimeToLive"
_EXPIRED, _DUPLICATES = "DeadLetteringOnMessageExpiration", "RequiresDuplicateDetection"
_SUBSCRIPTION: Final = "subscription"
_WINDOW, _FORWARD, _SESSION = (
    "DuplicateDetectionHistoryTimeWindow",
    "ForwardDeadLetteredMessagesTo",
    "RequiresSession",
)
_OTHER_KIND: Final = "OTHER_KIND"
_IS_TOPIC: Final = "it is a topic: name a subscription of it ('?subscription=<name>')"
_IS_QUEUE: Final = (
    "it is a queue, whose messages are for one receiver each: name a topic, or leave the subscription out"
)
_FORWARD_ALL: Final = "ForwardTo"
#: A time to live so long is none: Azure's own default is 10,675,199 days.
_FOR_EVER: Final = timedelta(days=36_500)
#: What a queue is made with where nothing says otherwise: seconds.
_LOCK_SECONDS: Final = 60
_LETTER_LOCK_SECONDS: Final = 300

_Found = TypeVar("_Found")

log = logging.getLogger("redelivery.servicebus")


class ServicebusAdmin(Admin):
    """Makes and checks the queue of an address, the queue for its dead letters, and what fills it from a topic."""

    def __init__(self, address: Address, settings: Settings) -> None:
        self._address = address
        self._place = address.dead_letters
        self._settings = settings
        self._client: ServiceBusAdministrationClient | None = None
        self._pid = os.getpid()

    def plan(self, spec: DeliverySpec) -> Plan:
        notes: list[str] = []
        objects = [self._letters(notes)]
        if not self._address.is_dead_letters:
            objects.append(self._work(spec, notes))
        if self._address.topic:
            objects.append(self._subscription(objects[-1], notes))
        return Plan(objects=objects, status=self._status(spec), approximations=_limits(spec), warnings=notes)

    def provision(self, spec: DeliverySpec) -> DeliveryStatus:
        plan = self.plan(spec)
        for note in plan.warnings:
            log.warning("servicebus: %s", note)
        plan.refuse_differences(f"servicebus: queue {self._address.queue!r}")
        if any(item.kind == _SUBSCRIPTION and item.action == "create" for item in plan.objects):
            self._needs_topic()
        for item in plan.objects:
            if item.action == "create":
                (self._subscribe if item.kind == _SUBSCRIPTION else self._create)(item)
        return plan.status

    def depth(self) -> int:
        doing = f"counting queue {self._address.queue!r}"
        with classified(doing, claim="Manage"), self._asking() as asked:
            return _of_this_kind(doing, _IS_TOPIC, lambda: _count(asked, self._address.queue))

    def forwards_to(self) -> str | None:
        """Name of the queue that dead letters are forwarded to; None where they are not. Raises BrokerError."""
        found = self._get(self._address)
        if found is None:
            text = f"there is no queue {self._address.queue!r} in {self._address.namespace}: provision it"
            raise Fatal(f"servicebus: {text}", native_code="amqp:not-found")
        return _name(found.forward_dead_lettered_messages_to)

    def drops_letters(self) -> bool:
        """Whether the queue for letters drops what comes under an id that it has seen. Raises BrokerError."""
        found = self._get(self._place)
        return found is not None and bool(found.requires_duplicate_detection)

    def exists(self, address: Address) -> bool:
        """Whether there is such a queue, by the claim Listen alone. Raises BrokerError."""
        connected = client(address, self._settings)
        patience = self._settings.operation_timeout
        doing = f"looking at {address.queue!r}"
        link = Link(lambda: connected.get_queue_receiver(address.queue), doing, "Listen", patience)
        try:
            link.open(patience)
        except BrokerError as error:
            if is_missing(error):
                return False
            raise
        finally:
            link.drop()
        return True

    def close(self) -> None:
        given, self._client = self._client, None
        if given is not None and self._pid == os.getpid():  # in a fork, its connections are the parent's
            given.close()

    # --- comparing ---

    def _letters(self, notes: list[str]) -> NativeObject:
        """The queue for dead letters: what looks at it must never be taken for too many deliveries."""
        wanted = {_COUNT: str(MOST_DELIVERIES), _LOCK: f"{_LETTER_LOCK_SECONDS}s"}
        name = self._place.queue
        try:
            found = self._get(self._place)
        except BrokerError as error:
            return self._unchecked(self._place, wanted, error, notes)
        if found is None:
            return NativeObject(kind="queue", name=name, action="create", attributes=wanted)
        if (found.max_delivery_count or 0) < MOST_DELIVERIES:
            text = (
                f"{name} gives a letter {found.max_delivery_count} times at most: removing letters behind others counts"
            )
            notes.append(f"{text}, and what is over it goes to its own sub-queue (which is read, too)")
        kept = found.default_message_time_to_live
        if isinstance(kept, timedelta) and kept < _FOR_EVER:
            notes.append(f"{name} keeps a letter for {_seconds(kept)}: it may expire before anybody has looked at it")
        differences = [Difference(_SESSION, "false", "true")] if found.requires_session else []
        if found.requires_duplicate_detection:  # a letter is told as stored, and dropped: its id was seen
            differences.append(Difference(_DUPLICATES, "false", "true"))
        if found.forward_to:
            differences.append(Difference("ForwardTo", "none", str(_name(found.forward_to))))
        return NativeObject.compared("queue", name, wanted, differences)

    def _work(self, spec: DeliverySpec, notes: list[str]) -> NativeObject:
        wanted = self._wanted(spec)
        name = self._address.queue
        try:
            found = self._get(self._address)
        except BrokerError as error:
            return self._unchecked(self._address, wanted, error, notes)
        if found is None:
            return NativeObject(kind="queue", name=name, action="create", attributes=wanted)
        there = _told(found)
        differences = [
            Difference(attribute, value, there[attribute])
            for attribute, value in wanted.items()
            if there[attribute].lower() != value.lower() and attribute in self._asked(spec)
        ]
        if found.requires_session:
            differences.append(Difference(_SESSION, "false", "true"))
        if there[_EXPIRED] == "false" and _EXPIRED not in self._asked(spec):
            notes.append(f"{name} forgets what expires: {_EXPIRED} is false")
        if there[_DUPLICATES] == "true" and not self._settings.duplicate_detection:
            text = f"{name} drops a message whose id it has seen within {there[_WINDOW]}"
            notes.append(f"{text}: say so (servicebus.duplicate_detection)")
        return NativeObject.compared("queue", name, wanted, differences)

    def _subscription(self, work: NativeObject, notes: list[str]) -> NativeObject:
        """What copies each message of the topic to the queue."""
        address = self._address
        name, wanted = f"{address.topic}/Subscriptions/{address.native}", {_FORWARD_ALL: address.queue}
        try:
            has_topic = self._has_topic()
            found = self._looked(
                f"subscription {name!r}", lambda asked: asked.get_subscription(address.topic, address.native)
            )
        except BrokerError as error:
            if not is_denied(error):
                raise
            if work.action != "create":
                notes.append(f"whether {name} forwards to {address.queue} could not be checked: Manage is missing")
            return NativeObject(kind=_SUBSCRIPTION, name=name, action=work.action, attributes=wanted)
        if not has_topic:
            notes.append(self._no_topic())
        if found is None:
            return NativeObject(kind=_SUBSCRIPTION, name=name, action="create", attributes=wanted)
        target = _name(found.forward_to) or "none"
        differences = (
            [] if target.lower() == address.queue.lower() else [Difference(_FORWARD_ALL, address.queue, target)]
        )
        return NativeObject.compared(_SUBSCRIPTION, name, wanted, differences)

    def _has_topic(self) -> bool:
        """Whether there is the topic. Raises BrokerError: it is a queue, or cannot be found out."""
        topic = self._address.topic
        return self._looked(f"topic {topic!r}", lambda asked: asked.get_topic(topic), _IS_QUEUE) is not None

    def _needs_topic(self) -> None:
        if not self._has_topic():
            raise Fatal(f"servicebus: subscribing {self._address.name!r}: {self._no_topic()}", native_code="NO_TOPIC")

    def _no_topic(self) -> str:
        return f"there is no topic {self._address.topic!r}; create it, with the settings that its publishers need"

    def _wanted(self, spec: DeliverySpec) -> dict[str, str]:
        settings = self._settings
        wanted = {
            _COUNT: str(_max_deliveries(spec)),
            _LOCK: f"{settings.lock_duration or _LOCK_SECONDS}s",
            _EXPIRED: "true",
            _FORWARD: self._place.queue,
        }
        if settings.message_ttl is not None:
            wanted[_TTL] = f"{settings.message_ttl}s"
        if settings.duplicate_detection:
            wanted |= {_DUPLICATES: "true", _WINDOW: f"{settings.duplicate_detection_window}s"}
        return wanted

    def _asked(self, spec: DeliverySpec) -> set[str]:
        """What the spec or an option asks for; all else is as good as it is."""
        settings = self._settings
        asked = {_FORWARD}
        asked |= {_COUNT} if spec.retry is not None else set()
        asked |= {_LOCK} if settings.lock_duration is not None else set()
        asked |= {_TTL, _EXPIRED} if settings.message_ttl is not None else set()
        return asked | ({_DUPLICATES, _WINDOW} if settings.duplicate_detection else set())

    def _unchecked(
        self, address: Address, wanted: dict[str, str], error: BrokerError, notes: list[str]
    ) -> NativeObject:
        """Without Manage: whether it is there can be seen, and no more."""
        if not is_denied(error):
            raise error
        there = self.exists(address)
        if there:
            notes.append(f"{', '.join(wanted)} of {address.queue} could not be checked: the claim Manage is missing")
        return NativeObject(kind="queue", name=address.queue, action="keep" if there else "create", attributes=wanted)

    # --- asking ---

    def _get(self, address: Address) -> QueueProperties | None:
        """A queue as the namespace has it; None where it has none."""
        return self._looked(f"queue {address.queue!r}", lambda asked: asked.get_queue(address.queue))

    def _looked(
        self, what: str, ask: Callable[[ServiceBusAdministrationClient], _Found], other: str = _IS_TOPIC
    ) -> _Found | None:
        """What the namespace answers; None where it has no such thing. Raises BrokerError."""
        doing = f"looking at {what}"
        with self._asking() as asked:
            try:
                with classified(doing, claim="Manage", asked=False):
                    return _of_this_kind(doing, other, lambda: ask(asked))
            except Fatal as error:
                if is_missing(error):
                    return None
                raise

    def _subscribe(self, item: NativeObject) -> None:
        address = self._address
        with classified(f"making subscription {item.name!r}", claim="Manage"), self._asking() as asked:
            asked.create_subscription(
                address.topic, address.native, forward_to=item.attributes[_FORWARD_ALL], user_metadata=address.name
            )

    def _create(self, item: NativeObject) -> None:
        wanted = item.attributes
        forward = wanted.get(_FORWARD)
        given: dict[str, Any] = {
            "max_delivery_count": int(wanted[_COUNT]),
            "lock_duration": _timed(wanted[_LOCK]),
            "default_message_time_to_live": _timed(wanted.get(_TTL)),
            "dead_lettering_on_message_expiration": wanted.get(_EXPIRED) == "true" or None,
            "requires_duplicate_detection": wanted.get(_DUPLICATES) == "true" or None,
            "duplicate_detection_history_time_window": _timed(wanted.get(_WINDOW)),
            "forward_dead_lettered_messages_to": forward,
        }
        with classified(f"making queue {item.name!r}", claim="Manage"), self._asking() as asked:
            asked.create_queue(item.name, **{name: value for name, value in given.items() if value is not None})

    @contextmanager
    def _asking(self) -> Iterator[ServiceBusAdministrationClient]:
        if self._pid != os.getpid():
            text = "this admin was made by another process; open another"
            raise Fatal(f"servicebus: queue {self._address.queue!r}: {text}", native_code="CLOSED")
        self._client = self._client or admin_client(self._address, self._settings)
        yield self._client

    def _status(self, spec: DeliverySpec) -> DeliveryStatus:
        channel = Ref(api_version=API, kind=KIND, name=self._place.queue)
        return DeliveryStatus.of(spec, uri=self._place.url, channel=channel)


def native_sink(address: Address, settings: Settings) -> str:
    """URL of the queue that a queue's dead letters are forwarded to.

    Raises:
        ConfigurationError: they are not; the text holds the command that sees to it.
        BrokerError: it cannot be found out.
    """
    place = address.dead_letters
    if place == address:
        return place.url
    with ServicebusAdmin(address, settings) as admin:
        drops = False
        try:
            target = admin.forwards_to()
            drops = admin.drops_letters()
        except Fatal as error:
            if error.native_code == _OTHER_KIND:
                text = f"servicebus: {address.queue!r} is a topic, which has no dead letters of its own"
                raise ConfigurationError(f"{text}: name another sink, or a subscription of it") from error
            if not is_denied(error):
                raise
            if admin.exists(place):
                text = (
                    "servicebus: whether the dead letters of %r are forwarded to %r was not checked: Manage is missing"
                )
                log.warning(text, address.queue, place.queue)
                return place.url
            target = None
    if drops:
        text = f"servicebus: {place.queue!r} has duplicate detection: a letter whose id it has seen would be dropped"
        raise ConfigurationError(f"{text}. Make that queue anew without it, or name another sink")
    if target is not None and target.lower() == place.queue.lower():
        return place.url
    found = "nowhere" if target is None else f"to {target!r}"
    text = (
        f"servicebus: letters of {address.queue!r} are forwarded {found}, not to {place.queue!r}, and its dead-letter "
        f"sub-queue cannot be sent to. Run: redelivery apply {quote(address.url)} --option deadLetterSink=native"
    )
    raise ConfigurationError(text if target is None else f"{text}, or name {address.at(target).url} as the sink")


def _of_this_kind(doing: str, other: str, ask: Callable[[], _Found]) -> _Found:
    """The SDK takes the answer for that of the kind it asked for, and fails within itself where it is another."""
    try:
        return ask()
    except AttributeError as error:
        raise Fatal(f"servicebus: {doing}: {other}", native_code=_OTHER_KIND) from error


def _count(asked: ServiceBusAdministrationClient, queue: str) -> int:
    found = asked.get_queue_runtime_properties(queue)
    return (found.active_message_count or 0) + (found.scheduled_message_count or 0)


def _told(found: QueueProperties) -> Mapping[str, str]:
    ttl = found.default_message_time_to_live
    return {
        _COUNT: str(found.max_delivery_count),
        _LOCK: _seconds(found.lock_duration),
        _TTL: _seconds(ttl),
        _EXPIRED: str(bool(found.dead_lettering_on_message_expiration)).lower(),
        _DUPLICATES: str(bool(found.requires_duplicate_detection)).lower(),
        _WINDOW: _seconds(found.duplicate_detection_history_time_window),
        _FORWARD: _name(found.forward_dead_lettered_messages_to) or "none",
    }


def _name(target: str | None) -> str | None:
    """A queue's name, of the URI that the administration endpoint tells."""
    if not target:
        return None
    return target.partition("://")[2].partition("/")[2].strip("/") if "://" in target else target.strip("/")


def _seconds(value: Any) -> str:
    return f"{value.total_seconds():.15g}s" if isinstance(value, timedelta) else str(value)


def _timed(text: str | None) -> timedelta | None:
    return None if text is None else timedelta(seconds=float(text.removesuffix("s")))


def _max_deliveries(spec: DeliverySpec) -> int:
    if spec.retry is None or spec.retry == UNLIMITED:
        return MOST_DELIVERIES
    return min(spec.retry + 1 + MARGIN, MOST_DELIVERIES)


def _limits(spec: DeliverySpec) -> list[str]:
    if spec.retry is None or 0 <= spec.retry <= MOST_DELIVERIES - 1 - MARGIN:
        return []
    said = "without a limit" if spec.retry == UNLIMITED else f"{spec.retry} times"
    return [f"retried {said}, but Service Bus itself dead-letters what it has given {MOST_DELIVERIES} times"]
