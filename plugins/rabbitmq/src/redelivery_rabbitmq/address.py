"""The URL of a queue or an exchange.

RabbitMQ's URI specification, with the destination as query parameters::

    amqp://user:password@host:5672/vhost?queue=orders
    amqp://host/vhost?exchange=shop&routing_key=orders.new
    amqp://host/vhost?exchange=shop&routing_key=orders.*&subscription=billing
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlencode, urlsplit

from redelivery.errors import ConfigurationError, InvalidURL, Unsupported
from redelivery.kit.address import REDACTED, unknown
from redelivery.kit.names import DeadLetterNames
from redelivery_rabbitmq.options import QUERY

#: The kinds of a `ref`, named as in RabbitMQ's topology operator for Kubernetes.
QUEUE: Final = "Queue"
EXCHANGE: Final = "Exchange"
API_GROUP: Final = "rabbitmq.com"
SCHEMES: Final = ("rabbitmq", "amqp", "amqps")
DEAD_LETTERS: Final = DeadLetterNames()
#: Longest name of a queue or exchange and longest routing key in bytes: an AMQP short string.
SHORT: Final = 255
#: Longest name of a subscription's queue; the names of its dead letter queue and retry queues are longer.
_COPY_LENGTH: Final = 230

#: Between the name of an exchange and of a subscription, in the name of the subscription's queue.
COPY: Final = ":"
#: Prefix that RabbitMQ reserves for its own names. Clients cannot create such queues, but can use such exchanges.
_RESERVED: Final = "amq."

_NAMES: Final = ("queue", "exchange", "routing_key", "subscription")
_PORT: Final = 5672
_TLS_PORT: Final = 5671
_EXAMPLE: Final = "write 'rabbitmq://user@host:5672/vhost?queue=orders', or '?exchange=shop&routing_key=new'"
_ESCAPE: Final = "in a user, password or vhost write '/' as %2F, '#' as %23, '@' as %40, '?' as %3F and ':' as %3A"


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """The binding of a subscription's queue.

    Attributes:
        exchange, routing_key: what the queue is bound to, and with which key.
        name: name of the subscription.
    """

    exchange: str
    routing_key: str
    name: str

    @property
    def queue(self) -> str:
        """The queue's name. Raises ConfigurationError: the name of the subscription is not valid."""
        escape = COPY if self.exchange.startswith((_RESERVED, COPY)) else ""
        queue = f"{escape}{self.exchange}{COPY}{self.name}"
        allowed = self.name.isprintable() and COPY not in self.name and not DEAD_LETTERS.is_dead_letters(self.name)
        if not self.name or not allowed or len(queue.encode("utf-8", "surrogatepass")) > _COPY_LENGTH:
            text = f"must be printable, without {COPY!r}, must not end with {DEAD_LETTERS.suffix!r}, and must be"
            end = f"at most {_COPY_LENGTH} bytes long together with the exchange's"
            raise ConfigurationError(f"rabbitmq: the name of a subscription {text} {end}")
        return queue


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """One destination of one virtual host.

    Attributes:
        host, port, vhost, tls: where the broker is.
        username, password: those of the URL; None: those of the options, or `guest`.
        queue: the queue to receive from, and to send to without an exchange; "" if the URL names no queue.
        exchange: the exchange to send to; "" is the default exchange, whose routing keys are names of queues.
        routing_key: the routing key to send with.
        binding: of a subscription: what `queue` is bound to; None for anything else.
        parameters: the URL's other query parameters, by RabbitMQ's names.
    """

    host: str = "localhost"
    port: int = _PORT
    vhost: str = "/"
    tls: bool = False
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    queue: str = ""
    exchange: str = ""
    routing_key: str = ""
    binding: Binding | None = None
    parameters: Mapping[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        """The URL without its password: for people."""
        return self._url(None if self.password is None else REDACTED)

    @property
    def full_url(self) -> str:
        """The URL with its password, for opening it: never for people."""
        return self._url(None if self.password is None else quote(self.password, safe=""))

    @property
    def where(self) -> str:
        """The broker and virtual host, for error texts."""
        return f"{self.host}:{self.port}, vhost {self.vhost!r}"

    @property
    def dead_letters(self) -> Address:
        """The address of its dead letter queue; its own, if it is one. Raises ConfigurationError: it has no queue."""
        queue = self.needs_queue("a dead letter queue")
        return self if DEAD_LETTERS.is_dead_letters(queue) else self.at(DEAD_LETTERS.of(queue))

    def at(self, queue: str) -> Address:
        """Return the address of another queue of the same virtual host."""
        return replace(self, queue=queue, exchange="", routing_key=queue, binding=None)

    def subscription(self, name: str) -> Address:
        """Return the address of a subscription to this exchange. Raises Unsupported, ConfigurationError."""
        if self.binding is not None or (self.exchange and self.queue):
            text = f"names both the queue {self.queue!r} and a subscription; leave one out"
            raise ConfigurationError(f"rabbitmq: {self.url} {text}")
        if not self.exchange:
            text = "is a queue, and each of its messages goes to one receiver; name the exchange that it is bound to"
            raise Unsupported(f"rabbitmq: {self.url} {text} ('?exchange=shop&routing_key=new')")
        binding = Binding(exchange=self.exchange, routing_key=self.routing_key, name=name)
        return replace(self.at(binding.queue), binding=binding)

    def _subscribed(self, name: str) -> Address:
        """Return the address of the subscription that a URL names. Raises InvalidURL."""
        if self.queue or not self.exchange:
            raise InvalidURL(f"rabbitmq: the URL's subscription needs an exchange, and no queue; {_EXAMPLE}")
        try:
            return self.subscription(name)
        except ConfigurationError as error:
            raise InvalidURL(str(error)) from None

    def through(self, exchange: str) -> Address:
        """Return the address of another exchange, where each message names its routing key, or has an empty one."""
        return replace(self, queue="", exchange=exchange, routing_key="", binding=None)

    def needs_queue(self, what: str) -> str:
        """Return the queue's name. Raises ConfigurationError: the URL names only an exchange."""
        if not self.queue:
            text = f"names only an exchange; {what} needs a queue: add '&queue=<name>' or '&subscription=<name>'"
            raise ConfigurationError(f"rabbitmq: {self.url} {text}")
        return self.queue

    def _url(self, password: str | None) -> str:
        user = "" if self.username is None else quote(self.username, safe="")
        if password is not None:
            user += f":{password}"
        host = f"[{self.host}]" if ":" in self.host else quote(self.host, safe="")
        place = f"{user}@{host}" if user else host
        port = "" if self.port == (_TLS_PORT if self.tls else _PORT) else f":{self.port}"
        vhost = "" if self.vhost == "/" else f"/{quote(self.vhost, safe='')}"
        query = urlencode(self._destination() | dict(self.parameters), quote_via=quote)
        return f"{'amqps' if self.tls else 'rabbitmq'}://{place}{port}{vhost}?{query}"

    def _destination(self) -> dict[str, str]:
        """Return the query parameters that name it."""
        named = {"queue": self.queue, "exchange": self.exchange}
        if self.binding is not None:
            bound = self.binding
            named = {"exchange": bound.exchange, "routing_key": bound.routing_key, "subscription": bound.name}
        elif self.exchange:
            named["routing_key"] = self.routing_key
        return {name: text for name, text in named.items() if text}

    @classmethod
    def parse(cls, url: str) -> Address:
        """Read a URL.

        Raises:
            InvalidURL: it names no destination, or does not parse. The error does not show the URL, because any part
                of it may be a password.
            UnknownOption: an unknown parameter.
        """
        parts = _split(url)
        user, at, _ = parts.netloc.rpartition("@")
        name, colon, password = user.partition(":")
        given = _parameters(parts.query)
        subscription = given.pop("subscription", None)
        tls = parts.scheme.lower() == "amqps"
        address = cls(
            host=unquote(parts.hostname or ""),
            port=parts.port or (_TLS_PORT if tls else _PORT),
            vhost=_text(parts.path[1:], "vhost") or "/",
            tls=tls,
            username=_text(name, "user") if at else None,
            password=_text(password, "password") if colon else None,
            queue=given.pop("queue", ""),
            exchange=given.pop("exchange", ""),
            routing_key=given.pop("routing_key", ""),
            parameters=given,
        )
        return address._routed() if subscription is None else address._subscribed(subscription)

    def _routed(self) -> Address:
        """Complete the routing key. Raises InvalidURL: no destination, or a routing key without an exchange."""
        if self.exchange:
            return self
        if not self.queue:
            raise InvalidURL(f"rabbitmq: the URL names neither a queue nor an exchange; {_EXAMPLE}")
        if self.routing_key:
            raise InvalidURL(f"rabbitmq: the URL has a routing_key but no exchange; {_EXAMPLE}")
        return replace(self, routing_key=self.queue)


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        raise InvalidURL(f"rabbitmq: the URL does not parse; {_EXAMPLE}; {_ESCAPE}") from None  # may show a password
    if "@" in parts.netloc.rpartition("@")[0] or "@" in parts.path + parts.query or parts.fragment:
        raise InvalidURL(f"rabbitmq: the URL has an '@' or '#' in the wrong place; {_ESCAPE}")
    if "/" in parts.path[1:]:
        raise InvalidURL(f"rabbitmq: the URL has more than one '/' after its host; {_ESCAPE}")
    if not parts.hostname:
        raise InvalidURL(f"rabbitmq: the URL names no host; {_EXAMPLE}")
    return parts


def _parameters(query: str) -> dict[str, str]:
    given: dict[str, str] = {}
    known = (*_NAMES, *QUERY)
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in known:
            raise unknown("URL parameter", name, known)
        if name in given:
            raise InvalidURL(f"rabbitmq: the URL gives {name!r} twice")
        if name in _NAMES and len(value.encode("utf-8", "surrogatepass")) > SHORT:
            raise InvalidURL(f"rabbitmq: the URL's {name} is longer than {SHORT} bytes")
        given[name] = value
    return given


def _text(quoted: str, what: str) -> str:
    text = unquote(quoted, errors="strict") if quoted.isascii() else unquote(quoted)
    if "\0" in text or len(text.encode("utf-8", "surrogatepass")) > SHORT:
        raise InvalidURL(f"rabbitmq: the URL's {what} is longer than {SHORT} bytes or holds a NUL")
    return text
