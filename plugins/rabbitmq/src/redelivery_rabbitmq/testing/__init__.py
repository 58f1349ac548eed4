"""How the conformance suite gets a RabbitMQ: a container, a private node of a local installation, or an explicit URL.

Needs the extra `testing`. `reading.py` reads the stored messages without the plugin's code.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import urlencode

import pika

from redelivery.contract.message import Message
from redelivery.contract.spec import DeliverySpec
from redelivery.kit.address import redact
from redelivery.kit.options import resolve_secrets
from redelivery_conformance.containers import Container
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
from redelivery_rabbitmq import connect
from redelivery_rabbitmq.address import Address
from redelivery_rabbitmq.client.parameters import connection_parameters
from redelivery_rabbitmq.options import settings_of
from redelivery_rabbitmq.testing.node import Node
from redelivery_rabbitmq.testing.reading import BROKERS, Cluster

IMAGE: Final = "rabbitmq:4.3"
PORT: Final = 5672
#: Seconds for a broker to come up, on a busy machine.
START: Final = 120.0
DEAD_LETTERS: Final = "-dead-letters"
_STEM: Final = "conformance"
#: From this version on a quorum queue has a delivery limit of 20 unless told otherwise.
_LIMITED_BY_DEFAULT: Final = (4, 0)


#: Another application's headers: a value of each type that the broker takes.
FIELDS: Final[Mapping[str, bytes]] = {
    "text": b"S\0\0\0\x02hi",
    "bytes that are text": b"x\0\0\0\x02hi",
    "text in Latin-1": b"S\0\0\0\x02h\xe9",
    "yes": b"t\x01",
    "int8": b"b\xff",
    "uint8": b"B\xff",
    "int16": b"s\xff\xfe",
    "uint16": b"u\xff\xfe",
    "int32": b"I\xff\xff\xff\xfe",
    "uint32": b"i\xff\xff\xff\xfe",
    "int64": b"l\0\0\0\0\0\0\0\x07",
    "float": struct.pack(">cf", b"f", 1.1),
    "double": struct.pack(">cd", b"d", 1.1),
    "decimal": b"D\x02\0\0\0\x96",
    "time": b"T" + struct.pack(">q", 1_700_000_000),
    "time in milliseconds": b"T" + struct.pack(">q", 1_700_000_000_123),
    "nothing": b"V",
    "table": b"F\0\0\0\x09" + b"\x01a" + b"s\0\x07" + b"\x01b" + b"t\x00",
    "array": b"A\0\0\0\x08" + b"s\0\x07" + b"I\0\0\0\x07",
}
PROPERTIES: Final[Mapping[str, object]] = {
    "content_type": "text/x-theirs",
    "content_encoding": "gzip",
    "priority": 7,
    "correlation_id": "order-7",
    "reply_to": "answers",
    "message_id": "theirs-1",
    "timestamp": 1_700_000_000,
    "type": "order.created",
    "app_id": "shop",
}


class Operator(Protocol):
    """Operates a broker that was started here."""

    def execute(self, *command: str) -> str:
        """Run one of the broker's tools, such as `rabbitmqctl status`; return its output."""

    def paused(self) -> AbstractContextManager[None]:
        """Freeze it while entered."""


class RabbitmqPlace(Place):
    """A new queue with its dead letter queue, as provisioning creates them."""

    patience = 5.0
    many = 3_000
    lease = 0.5

    def __init__(self, runtime: RabbitmqRuntime, queue: str) -> None:
        self.runtime = runtime
        self.cluster = runtime.cluster
        self.queue = queue
        self.url = runtime.url(queue)
        self.options: Mapping[str, str] = {
            "rabbitmq.connection_timeout": "3",
            "rabbitmq.blocked_connection_timeout": "3",
            **runtime.options,
        }
        self._made = [
            queue,
            queue + DEAD_LETTERS,
            f"{queue.removesuffix(DEAD_LETTERS)}{DEAD_LETTERS}-removed",
            *(f"{queue}-retry-{1 << step}s" for step in range(8)),
        ]
        self._exchanges: list[str] = []
        self._provision({})

    def stored(self, destination: str | None = None) -> Sequence[Message]:
        return self.cluster.messages(self.queue if destination is None else destination)

    def snapshot(self) -> object:
        return [(name, None if self.cluster.count(name) is None else self.stored(name)) for name in self._made]

    def destination(self, label: str) -> str:
        name = f"{self.queue}-{label}"
        self._made.append(name)
        self.cluster.make(name, {"x-queue-type": self.runtime.queue_type})
        return name

    def for_several(self) -> str:
        exchange = f"{self.queue}-exchange"
        self._exchanges.append(exchange)
        self._made += [f"{exchange}:{name}{end}" for name in SUBSCRIBERS for end in ("", DEAD_LETTERS)]
        self.cluster.make_exchange(exchange, "topic")
        named = urlencode({"exchange": exchange, "routing_key": "orders.new"})
        return self.url.replace(urlencode({"queue": self.queue}), named)

    def impossible_destination(self) -> str | None:
        return f"{self.queue}-that-was-never-made"

    def secret_url(self, secret: str) -> str:
        return f"rabbitmq://someone:{secret}@localhost:1/place?queue=orders"

    def logins(self, secret: str) -> Iterator[Mapping[str, str]]:
        yield {**self.options, "rabbitmq.username": "someone", "rabbitmq.password": secret}

    def wrong_login(self) -> Mapping[str, str] | None:
        return {"rabbitmq.username": "someone", "rabbitmq.password": "wrong"}

    def unreachable(self) -> str:
        return "rabbitmq://localhost:1?queue=orders"

    @property
    def outage_url(self) -> str:
        return self.url if self.runtime.proxy is None else self.runtime.at(self.runtime.proxy.port, self.queue)

    def outage(self, kind: Outage = "refused") -> AbstractContextManager[None]:
        if self.runtime.proxy is None:
            raise CannotShow(f"an outage, {kind}: a broker that was not started here is not cut off")
        return self.runtime.proxy.outage(kind)

    def vanish(self) -> None:
        self.cluster.remove(self.queue)

    def alter(self) -> None:
        self.cluster.make(self.queue, {**self._arguments(), "x-max-length": 1_000_000})

    def expiring(self, seconds: float) -> Mapping[str, str]:
        options = {"rabbitmq.queue_ttl": str(seconds)}
        self.cluster.remove(self.queue)
        self._provision(options)
        return options

    def limiting(self, deliveries: int) -> Mapping[str, str]:
        # The broker counts those that were given back, and lets one more go out than its limit says.
        self.cluster.make(self.queue, {**self._arguments(), "x-delivery-limit": deliveries - 1})
        return {}

    def limited(self) -> str | None:
        if self.runtime.queue_type != "quorum" or self.cluster.version_number() < _LIMITED_BY_DEFAULT:
            return None
        return self.runtime.url(self.destination("limited"))

    def damage(self) -> None:
        headers: dict[str, object] = {b"\xff": "a name that is not UTF-8"}  # type: ignore[dict-item]
        properties = pika.BasicProperties(headers=headers, delivery_mode=2)  # type: ignore[no-untyped-call]
        self.cluster.put(self.queue, b"damaged", properties)

    def put_foreign(self, *, dead: bool) -> Foreign:
        cluster, credentials = self.cluster, self.cluster.parameters.credentials
        user = credentials.username if isinstance(credentials, pika.PlainCredentials) else None
        message = {
            "body": b"\x1f\x8b theirs \xff".hex(),
            "headers": {name: value.hex() for name, value in FIELDS.items()},
            "properties": {**PROPERTIES, **({} if user is None else {"user_id": user})},
        }
        cluster.foreign(self.queue, message, reject=dead)
        return _foreign(message)

    def foreign(self, *, dead: bool) -> Sequence[Foreign]:
        return list(map(_foreign, self.cluster.foreign(self.queue + DEAD_LETTERS if dead else self.queue)))

    def close(self) -> None:
        with suppress(pika.exceptions.AMQPError):
            self.cluster.remove(*self._made)
            self.cluster.remove_exchanges(*self._exchanges)

    def _provision(self, options: Mapping[str, str]) -> None:
        broker = connect(self.url, _client_options({**self.options, **options}))
        with broker, broker.admin() as admin:
            admin.provision(DeliverySpec())

    def _arguments(self) -> dict[str, object]:
        """Return the arguments with which provisioning creates the queue, written independently of it."""
        kept = {"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}
        return {
            "x-queue-type": self.runtime.queue_type,
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": self.queue + DEAD_LETTERS,
            **(kept if self.runtime.queue_type == "quorum" else {}),
        }


class RabbitmqRuntime(Runtime):
    """One broker that was started here, or that a URL names.

    Attributes:
        operator: operates it; None if it was not started here.
        proxy: by which statements about outages reach it; None where it was not started here.
    """

    cannot_show = ("several nodes: a quorum of one never loses its leader",)

    def __init__(
        self,
        kind: RuntimeKind,
        cluster: Cluster,
        url: Callable[[str], str],
        *,
        where: str,
        operator: Operator | None = None,
        options: Mapping[str, str] | None = None,
        close: Callable[[], None] | None = None,
        proxy: Proxy | None = None,
        end: str = "",
    ) -> None:
        self.kind = kind
        self.proxy = proxy
        self.cluster = cluster
        self.url = url
        self.operator = operator
        self.options = options or {}
        self._end = end
        self.queue_type = self.options.get("rabbitmq.queue_type", "quorum")
        self.description = f"{cluster.version()}, {self.queue_type} queues, {where}"
        self._close = close

    def place(self) -> RabbitmqPlace:
        return RabbitmqPlace(self, self.fresh_name(_STEM) + self._end)

    @staticmethod
    def at(port: int, queue: str) -> str:
        """URL of a queue at a port of this host."""
        return f"rabbitmq://127.0.0.1:{port}?{urlencode({'queue': queue})}"

    def outage(self) -> AbstractContextManager[None]:
        """While entered, the broker itself is frozen: connections stay, and nothing answers."""
        if self.operator is None:
            raise CannotShow("an outage: a broker that was not started here is not stopped")
        return self.operator.paused()

    def close(self) -> None:
        if self.proxy is not None:
            self.proxy.close()
        if self._close is not None:
            self._close()


class RabbitmqHarness(Harness):
    """A container, or else a node of a locally installed RabbitMQ.

    Args:
        queue_type: type of the queues under test.
        dead_letters: what their letters are in.
        direct: the places are such themselves, to be looked at as letters.
    """

    name = "rabbitmq"

    def __init__(self, queue_type: str = "quorum", *, dead_letters: str = "queue", direct: bool = False) -> None:
        self._end = DEAD_LETTERS if direct else ""
        self._options = {"rabbitmq.queue_type": queue_type} if queue_type != "quorum" else {}
        if dead_letters != "queue":
            self._options["rabbitmq.dead_letters"] = dead_letters

    def starts(self) -> Mapping[RuntimeKind, Callable[[Path], Runtime]]:
        return {"container": self._container, "process": self._process}

    def at(self, url: str, options: Mapping[str, str], scratch: Path) -> Runtime:  # noqa: ARG002 - nothing is written
        given = {**self._options, **options}
        there = Address.parse(url)
        cluster = Cluster(connection_parameters(there, settings_of(_client_options(given), there.parameters)))
        try:
            cluster.version()
        except (pika.exceptions.AMQPError, OSError) as error:
            raise NotHere(f"rabbitmq: nothing answers at {redact(url)}: {error!r}") from None
        return RabbitmqRuntime(
            "url",
            cluster,
            lambda queue: there.at(queue).full_url,
            where=redact(url),
            options=given,
            end=self._end,
        )

    def _container(self, scratch: Path) -> Runtime:  # noqa: ARG002 - nothing is written
        container = Container(self.name, IMAGE, ports=[PORT])
        runtime = self._local("container", container.host, container.port(PORT), container.wait)
        return self._runtime(*runtime, where=f"container of {container.image}", operator=container)

    def _process(self, scratch: Path) -> Runtime:
        node = Node(scratch)
        runtime = self._local("process", "localhost", node.port, node.wait)
        return self._runtime(*runtime, where=f"node of {node.program}", operator=node)

    @staticmethod
    def _local(
        kind: RuntimeKind, host: str, port: int, wait: Callable[[Callable[[], object], float], None]
    ) -> tuple[RuntimeKind, Cluster, str]:
        cluster = Cluster(pika.ConnectionParameters(host=host, port=port, socket_timeout=5, stack_timeout=5))
        wait(lambda: cluster.greets() and cluster.version(), START)
        return kind, cluster, f"{host}:{port}"

    def _runtime(
        self, kind: RuntimeKind, cluster: Cluster, at: str, *, where: str, operator: Container | Node
    ) -> Runtime:
        host, _, port = at.rpartition(":")
        return RabbitmqRuntime(
            kind,
            cluster,
            lambda queue: f"rabbitmq://{at}?{urlencode({'queue': queue})}",
            where=where,
            operator=operator,
            options=self._options,
            close=operator.close,
            proxy=Proxy(host, int(port)),
            end=self._end,
        )


def _foreign(message: Mapping[str, Any]) -> Foreign:
    """Return a message that `foreign.py` reads or writes, without what the broker adds."""
    headers = {name: value for name, value in message["headers"].items() if not name.startswith(BROKERS)}
    return Foreign(headers, {"body": message["body"], **message["properties"]})


def _client_options(options: Mapping[str, str]) -> dict[str, str]:
    """Return client options without their prefix, with secrets resolved."""
    return {name.removeprefix("rabbitmq."): value for name, value in resolve_secrets(options).items()}
