"""The harness for tests: the stand-in in this process, or a namespace that a connection string names.

It needs the extra `testing`. The stand-in is neither Azure Service Bus nor Microsoft's emulator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Protocol

from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusClient

from redelivery.contract.message import Message
from redelivery.kit.address import split_url
from redelivery.kit.options import resolve_secrets
from redelivery_conformance.harness import (
    SUBSCRIBERS,
    CannotShow,
    Foreign,
    Harness,
    NotHere,
    Outage,
    Place,
    Runtime,
    RuntimeKind,
)
from redelivery_conformance.proxy import Proxy
from redelivery_servicebus.admin import MOST_DELIVERIES
from redelivery_servicebus.testing import reading
from redelivery_servicebus.testing.namespace import Azure
from redelivery_servicebus.testing.reading import RawMessage
from servicebus_standin import StandIn
from servicebus_standin.codec import APPLICATION, DATA, NULL, PROPERTIES, Content, compound, kind, read, section, write

__all__ = [
    "ServicebusDuplicatesHarness",
    "ServicebusHarness",
    "ServicebusPlace",
    "ServicebusRuntime",
    "ServicebusSessionsHarness",
    "ServicebusSubscriptionsHarness",
]

DEAD: Final = "/$DeadLetterQueue"
CONNECTION_STRING: Final = "servicebus.connection_string"
CONNECTION_VERIFY: Final = "servicebus.connection_verify"


class Namespace(Protocol):
    """Changes of queues without the plugin."""

    def create_queue(self, name: str, **settings: Any) -> None:
        """Create a queue."""

    def alter_queue(self, name: str, **settings: Any) -> None:
        """Change some settings."""

    def delete_queue(self, name: str) -> None:
        """Remove it."""

    def create_topic(self, name: str) -> None:
        """Create a topic."""

    def create_subscription(self, topic: str, name: str, **settings: Any) -> None:
        """Create a subscription of it, without filters."""

    def delete_topic(self, name: str) -> None:
        """Remove it, with its subscriptions."""

    def raw_messages(self, path: str) -> Sequence[RawMessage]:
        """Return the messages of a queue in order, without removing them."""

    def foreign(self, path: str) -> Sequence[Foreign]:
        """Return the messages of a queue with all that an application may set, and its types. Raises CannotShow."""

    def client(self) -> ServiceBusClient:
        """Return a client of the plain SDK."""

    def damage(self, name: str) -> None:
        """Store a message that the plugin cannot decode."""


class Embedded(StandIn):
    """The stand-in as a namespace of places."""

    def client(self) -> ServiceBusClient:
        return ServiceBusClient.from_connection_string(self.connection_string, retry_total=0)

    def foreign(self, path: str) -> Sequence[Foreign]:
        return [_foreign(content) for content in self.contents(path)]

    def raw_messages(self, path: str) -> Sequence[RawMessage]:
        return [RawMessage(each.body, each.message_id, each.application_properties) for each in self.messages(path)]

    def damage(self, name: str) -> None:
        session = section(PROPERTIES, compound(0xD0, [NULL] * 10 + [write("damaged")]))  # some queues require one
        self.put(name, session + section(APPLICATION, write(dict(reading.DAMAGED))) + section(DATA, write(b"damaged")))


#: What Service Bus itself writes.
_BROKERS: Final = ("x-opt-", "DeadLetter")


def _foreign(content: Content) -> Foreign:
    """Return a stored message unchanged: each value with AMQP's name for its type."""
    texts = {str(read(name)): value for name, value in content.application.items()}
    annotations = {str(read(name)): value for name, value in content.annotations.items()}
    sent = {name: value for name, value in annotations.items() if "partition-key" in name or name[:6] != _BROKERS[0]}
    times = () if content.ttl is None else (8, 9)  # with a time to live, the SDK sets them as it sends
    properties = {at: kind(each) for at, each in enumerate(content.properties) if at not in times and each != NULL}
    return Foreign(
        headers={name: kind(value) for name, value in texts.items() if not name.startswith(_BROKERS[1])},
        rest={
            "header": [kind(each) for each in content.header],
            "annotations": {name: kind(value) for name, value in sent.items()},
            "properties": properties,
            "body": content.body,
        },
    )


class ServicebusPlace(Place):
    """A queue, and the queue that its dead letters are forwarded to."""

    lease = 2.0  # a queue's lock duration, whatever its receiver asks for
    many = 2_000

    def __init__(self, runtime: ServicebusRuntime, queue: str) -> None:
        self._runtime = runtime
        self._namespace = runtime.namespace
        self.queue = queue
        self.letters = f"{queue}{runtime.letters_of}-dead-letters"
        self.options: Mapping[str, str] = runtime.options
        self.url = runtime.url(queue)
        self.lease = runtime.lease
        self._made: list[str] = []
        self._topics: list[str] = []
        self._make(self.letters, max_delivery_count=MOST_DELIVERIES)  # as provisioning makes it
        self._make_own()

    def _make_own(self) -> None:
        self._make(self.queue, forward_dead_lettered_messages_to=self.letters, **self._runtime.settings)

    def _make(self, name: str, **settings: Any) -> str:
        self._namespace.create_queue(name, lock_duration=self.lease, **settings)
        self._made.append(name)
        return name

    def stored(self, destination: str | None = None) -> Sequence[Message]:
        return [reading.message(each) for each in self._namespace.raw_messages(destination or self.queue)]

    def put_foreign(self, *, dead: bool) -> Foreign:
        with self._namespace.client() as client:
            with self._client_sender(client) as sender:
                sender.send_messages(reading.foreign())
            if dead:
                with self._client_receiver(client) as receiver:
                    (message,) = receiver.receive_messages(1, max_wait_time=self.patience)
                    receiver.dead_letter_message(message, reason="refused", error_description="by its reader")
        (there,) = self.foreign(dead=dead)
        return there

    def _client_sender(self, client: ServiceBusClient) -> Any:
        return client.get_queue_sender(self.queue)

    def _client_receiver(self, client: ServiceBusClient) -> Any:
        session: Any = {"session_id": NEXT_AVAILABLE_SESSION} if self._runtime.query else {}
        return client.get_queue_receiver(self.queue, **session)

    def foreign(self, *, dead: bool) -> Sequence[Foreign]:
        places = (self.letters, self.queue + DEAD) if dead else (self.queue,)
        return [each for place in places for each in self._namespace.foreign(place)]

    def snapshot(self) -> object:
        return [
            (name, self._namespace.raw_messages(name), self._namespace.raw_messages(name + DEAD))
            for name in sorted(self._made)
        ]

    def logins(self, secret: str) -> Iterator[Mapping[str, str]]:
        own = {name: value for name, value in self.options.items() if name != CONNECTION_STRING}
        token = f"SharedAccessSignature sr=sb%3A%2F%2Flocalhost&sig={secret}&se=4102444800&skn=someone"
        parts = f"Endpoint={self.url.replace('servicebus:', 'sb:')};UseDevelopmentEmulator=true"
        yield {**own, CONNECTION_STRING: f"{parts};SharedAccessKeyName=someone;SharedAccessKey={secret}"}
        yield {**own, CONNECTION_STRING: f"{parts};SharedAccessSignature={token}"}
        yield {**own, "servicebus.sas_key_name": "someone", "servicebus.sas_key": secret}
        yield {**own, "servicebus.sas_token": token}

    def wrong_login(self) -> Mapping[str, str] | None:
        return next(iter(self.logins("d3Jvbmc="))) if self._runtime.kind == "embedded" else None

    def unreachable(self) -> str:
        return f"servicebus://localhost:1/{self.queue}{self._runtime.query}"

    def destination(self, label: str) -> str:
        settings = {**self._runtime.settings, "requires_session": False}  # a row names no sessions
        return self._make(f"{self.queue}-{label}", **settings)

    def for_several(self) -> str:
        topic = f"{self.queue}-topic"
        self._namespace.create_topic(topic)
        self._topics.append(topic)
        return self._runtime.url(topic)

    def impossible_destination(self) -> str | None:
        return f"{self.queue}-is-not-there"

    @property
    def outage_url(self) -> str:
        proxy = self._runtime.proxy
        return self.url if proxy is None else f"servicebus://localhost:{proxy.port}/{self.queue}{self._runtime.query}"

    def outage(self, kind: Outage = "refused") -> AbstractContextManager[None]:
        if self._runtime.proxy is None:
            raise CannotShow(f"an outage, {kind}: this namespace is not ours to cut off")
        return self._runtime.proxy.outage(kind)

    def vanish(self) -> None:
        self._namespace.delete_queue(self.queue)

    def alter(self) -> None:
        """Its letters stay in the sub-queue."""
        self._namespace.alter_queue(self.queue, forward_dead_lettered_messages_to=None)

    def expiring(self, seconds: float) -> Mapping[str, str]:
        self._namespace.alter_queue(
            self.queue, default_message_time_to_live=seconds, dead_lettering_on_message_expiration=True
        )
        return {}

    def limiting(self, deliveries: int) -> Mapping[str, str]:
        self._namespace.alter_queue(self.queue, max_delivery_count=deliveries)
        return {}

    def damage(self) -> None:
        self._namespace.damage(self.queue)

    def close(self) -> None:
        copies = [f"{topic}.{name}" for topic in self._topics for name in SUBSCRIBERS]
        for name in (*copies, *(f"{each}-dead-letters" for each in copies), *reversed(self._made)):
            with suppress(Exception):  # a test may have removed it, or never made it, or stopped the server
                self._namespace.delete_queue(name)
        for name in self._topics:
            with suppress(Exception):
                self._namespace.delete_topic(name)


class SubscriptionPlace(ServicebusPlace):
    """A subscription of a new topic, and the queue that its dead letters are forwarded to."""

    def _make_own(self) -> None:
        topic, self.queue = self.queue, f"{self.queue}/subscriptions/{SUBSCRIBERS[0]}"
        self._namespace.create_topic(topic)
        self._topics.append(topic)
        settings = {**self._runtime.settings, "forward_dead_lettered_messages_to": self.letters}
        self._namespace.create_subscription(topic, SUBSCRIBERS[0], lock_duration=self.lease, **settings)
        self.url, self.feed = self._runtime.url(self.queue), self._runtime.url(topic)

    def _client_sender(self, client: ServiceBusClient) -> Any:
        return client.get_topic_sender(self._topics[0])

    def _client_receiver(self, client: ServiceBusClient) -> Any:
        return client.get_subscription_receiver(self._topics[0], SUBSCRIBERS[0])

    def vanish(self) -> None:
        self._namespace.delete_topic(self._topics[0])

    def damage(self) -> None:
        self._namespace.damage(self._topics[0])


class ServicebusRuntime(Runtime):
    """A namespace: the stand-in's, or the one of a connection string."""

    def __init__(self, kind: RuntimeKind, description: str, namespace: Namespace, options: Mapping[str, str]) -> None:
        self.kind = kind
        self.description = description
        self.namespace = namespace
        self.options = options
        self.lease = 4.0
        self.stem = "rd"
        self.settings: Mapping[str, Any] = {}
        self.subscriptions = False
        self.host = ""
        self.proxy: Proxy | None = None

    def url(self, queue: str) -> str:
        """Names a queue of it."""
        return f"servicebus://{self.host}/{queue}{self.query}"

    @property
    def query(self) -> str:
        """The part of a queue's URL that says whether it requires sessions."""
        return "?sessions=true" if self.settings.get("requires_session") else ""

    def place(self) -> ServicebusPlace:
        return (SubscriptionPlace if self.subscriptions else ServicebusPlace)(self, self.fresh_name(self.stem))

    @property
    def letters_of(self) -> str:
        """What stands between a queue's name and the end of its dead letter queue's."""
        return f".{SUBSCRIBERS[0]}" if self.subscriptions else ""

    def outage(self) -> AbstractContextManager[None]:
        """While entered, the broker itself is down. Raises CannotShow."""
        raise CannotShow("an outage: this namespace is not ours to stop")


class StandInRuntime(ServicebusRuntime):
    """The stand-in, in a thread of this process."""

    cannot_show = (
        "Azure Service Bus itself: this is a stand-in, written from what the real SDK sends and from the documentation",
        "filters, transactions, partitioned queues, AMQP over WebSockets, Azure credentials: it has none",
        "failover, power loss, throttling by load: its queues are in memory, and it throttles when a test says so",
    )

    def __init__(self, *, duplicates: bool = False, sessions: bool = False, subscriptions: bool = False) -> None:
        self._server = Embedded().start()
        secret = self._server.certificate.with_name("connection-string")  # by reference, as Spark asks for
        secret.write_text(self._server.connection_string)
        options = {
            CONNECTION_STRING: f"file:{secret}",
            CONNECTION_VERIFY: str(self._server.certificate),
        }
        super().__init__("embedded", "a stand-in of ours on python-qpid-proton, not Azure", self._server, options)
        self.host = self._server.namespace
        self.proxy: Proxy = Proxy("localhost", int(self.host.rpartition(":")[2]))
        self.subscriptions = subscriptions
        if duplicates:
            self.settings = {"requires_duplicate_detection": True}
            self.options = {**self.options, "servicebus.duplicate_detection": "true"}
        if sessions:
            self.settings = {"requires_session": True}
            self.options = {**self.options, "servicebus.session_id": "rows without a key"}

    @contextmanager
    def outage(self) -> Iterator[None]:
        with self._server.stopped():
            yield

    def close(self) -> None:
        self.proxy.close()
        self._server.stop()


class ServicebusHarness(Harness):
    """The stand-in, or a namespace given by a connection string."""

    name = "servicebus"

    def starts(self) -> Mapping[RuntimeKind, Callable[[Path], Runtime]]:
        """The stand-in. Microsoft's emulator needs a database beside it: start it yourself, and give its URL."""
        return {"embedded": lambda _: StandInRuntime()}

    def at(self, url: str, options: Mapping[str, str], scratch: Path) -> Runtime:  # noqa: ARG002 - needs no folder
        if CONNECTION_STRING not in options:
            raise NotHere(f"servicebus: give {CONNECTION_STRING} (env:NAME), with Manage rights, to test at {url}")
        given = resolve_secrets({CONNECTION_STRING: options[CONNECTION_STRING]})[CONNECTION_STRING]
        parts = split_url(url)
        azure = Azure(given, options.get(CONNECTION_VERIFY))
        runtime = ServicebusRuntime("url", f"Service Bus at {parts.netloc}", azure, options)
        runtime.host, runtime.lease = parts.netloc, 5.0
        runtime.stem = parts.path.strip("/")[:40] or "rd"
        return runtime


class ServicebusSessionsHarness(ServicebusHarness):
    """Queues that require sessions, of the stand-in."""

    def starts(self) -> Mapping[RuntimeKind, Callable[[Path], Runtime]]:
        return {"embedded": lambda _: StandInRuntime(sessions=True)}


class ServicebusSubscriptionsHarness(ServicebusHarness):
    """Subscriptions of topics, of the stand-in."""

    def starts(self) -> Mapping[RuntimeKind, Callable[[Path], Runtime]]:
        return {"embedded": lambda _: StandInRuntime(subscriptions=True)}


class ServicebusDuplicatesHarness(ServicebusHarness):
    """Queues with duplicate detection, of the stand-in."""

    def starts(self) -> Mapping[RuntimeKind, Callable[[Path], Runtime]]:
        return {"embedded": lambda _: StandInRuntime(duplicates=True)}
