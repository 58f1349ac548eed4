"""The client options: librdkafka's own settings, checked, and the clients that are made of them.

Settings are checked when they are read, by the library itself and without I/O. This file must not keep a promise for a
role: it only refuses settings under which a role could not keep its own.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from redelivery.base.urls import is_local, redact, unknown
from redelivery.errors import ConfigurationError, UnknownOption
from redelivery_kafka.address import Address
from redelivery_kafka.known import CONSUMER_ONLY, HARMLESS, JAVA_ONLY, KNOWN, OURS, PRODUCER_ONLY

_Client = TypeVar("_Client")

log: Final = logging.getLogger("redelivery.kafka")


class _Demoted(logging.Filter):
    """The client repeats itself many times a second in an outage; what it broke is told as an error of ours.

    And it shows the URLs that it asks, with their passwords.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = redact(record.getMessage()), ()
        if record.levelno > logging.INFO:
            record.levelno, record.levelname = logging.INFO, logging.getLevelName(logging.INFO)
        return True


_client_log: Final = logging.getLogger("redelivery.kafka.client")
_client_log.addFilter(_Demoted())

#: Set last, so that the library refuses it when it has found nothing wrong with those before: no client is made.
_PROBE: Final = "redelivery.probe"
#: What the library reads as a number above 0, and in one way only.
_ACKS: Final = re.compile(r"all|-1|[1-9][0-9]*")
_NAMED: Final = re.compile(r'No such configuration property: "(?P<name>[^"]*)"')

#: For every client. A connection that answers nothing is given up within these, which are below the contract's 30 s.
_BOUNDS: Final[Mapping[str, Any]] = {
    "socket.timeout.ms": 20_000,
    "socket.connection.setup.timeout.ms": 10_000,
    "socket.keepalive.enable": True,
    "reconnect.backoff.max.ms": 2_000,
}
#: Unless the user says otherwise. The JVM's partitioner, so that its clients and ours place a key alike.
_PRODUCER: Final[Mapping[str, Any]] = {
    "enable.idempotence": True,
    "partitioner": "murmur2_random",
    "queue.buffering.max.messages": 1_000_000,
    "topic.metadata.propagation.max.ms": 2_000,
}
_MESSAGE_BYTES: Final = 1_000_000
_MOST_BYTES: Final = 1_000_000_000
#: The client counts some bytes for each header besides its name and value; the sender, which does not, refuses first.
_HEADERS_BYTES: Final = 4_096
_TOKENS: Final = "sasl.oauthbearer.token.endpoint.url"
#: How librdkafka's switches are switched off.
_OFF: Final = frozenset({"false", "f", "0"})


@dataclass(frozen=True)
class Settings:
    """The client options, read and checked. Values are never shown: some are secret."""

    values: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> Settings:
        """Read the options.

        Raises:
            UnknownOption: names the nearest known one, or what stands for a setting that only Java's client has.
            ConfigurationError: a value that the library does not take, or under which a promise could not be kept.
        """
        for name, value in options.items():
            _check(name, value)
        found = cls(dict(options))
        if found.acks not in {"all", "-1"} and options.get("enable.idempotence", "true").lower() != "false":
            text = "set kafka.enable.idempotence=false too, and retries may then double or reorder rows"
            raise ConfigurationError(f"kafka.acks={found.acks}: an idempotent producer needs acks=all; {text}")
        _probe(options)
        return found

    @property
    def acks(self) -> str:
        """How many replicas confirm a row."""
        return self.values.get("acks", self.values.get("request.required.acks", "all"))

    @property
    def hosts(self) -> list[str]:
        """Hosts that the settings name besides the bootstrap servers: where tokens are obtained."""
        url = self.values.get(_TOKENS)
        return [] if url is None else [urlsplit(url).hostname or ""]

    def insecure(self, hosts: Sequence[str]) -> list[str]:
        """What of a connection to these hosts is insecure, a clause each."""

        def of(name: str) -> str:
            return self.values.get(name, "").lower()

        found = []
        remote = [host for host in hosts if not is_local(host)]
        if of("security.protocol") == "sasl_plaintext" and remote:
            found.append(f"credentials go to {remote[0]} over plain text; set kafka.security.protocol=sasl_ssl")
        if of("enable.ssl.certificate.verification") in _OFF:
            found.append("kafka.enable.ssl.certificate.verification is off: anybody can take the broker's place")
        if of("ssl.endpoint.identification.algorithm") == "none":
            found.append("kafka.ssl.endpoint.identification.algorithm is none: any certificate's owner is believed")
        if of(_TOKENS).startswith("http:") and not is_local(self.hosts[0]):
            found.append(f"tokens come over plain text; write https in kafka.{_TOKENS}")
        return found

    @property
    def message_bytes(self) -> int:
        """The largest message that the client takes, its own overhead included."""
        return int(self.values.get("message.max.bytes", _MESSAGE_BYTES))

    @property
    def message_timeout(self) -> float | None:
        """Seconds in which the user lets the client deliver a message; None: not said."""
        given = self.values.get("message.timeout.ms", self.values.get("delivery.timeout.ms"))
        milliseconds = int(given) if given is not None else 0
        return milliseconds / 1000 if milliseconds > 0 else None  # 0 means for ever, which a deadline bounds

    def producer(
        self,
        address: Address,
        *,
        timeout: float = 300.0,
        strict: bool = False,
        on_error: Callable[[KafkaError], None] | None = None,
    ) -> Producer:
        """A producer that tells of failed messages only, and of each within `timeout` seconds.

        A strict one has one request on its way at a time to a broker, and, if it is idempotent, stops at the first
        that is refused.

        Raises:
            ConfigurationError
        """
        bound = min(timeout, self.message_timeout or timeout)
        conf = {
            **_PRODUCER,
            **self._common(address, without=CONSUMER_ONLY | {"message.timeout.ms", "delivery.timeout.ms"}),
            "message.timeout.ms": max(1, int(bound * 1000)),
            "message.max.bytes": min(self.message_bytes + _HEADERS_BYTES, _MOST_BYTES),
            "delivery.report.only.error": True,
            "error_cb": on_error or _say,
        }
        if strict:
            conf.pop("max.in.flight", None)
            conf["max.in.flight.requests.per.connection"] = 1
            if str(conf["enable.idempotence"]).lower() not in {"false", "f", "0"}:
                conf["enable.gapless.guarantee"] = True
        if "linger.ms" not in conf and "queue.buffering.max.ms" not in conf:
            conf["linger.ms"] = min(5, conf["message.timeout.ms"])
        return _make(Producer, conf)

    def consumer(self, address: Address, **overrides: Any) -> Consumer:
        """A consumer in the address's group; `overrides` are settings that its role insists on.

        Raises:
            ConfigurationError
        """
        conf = {
            **self._common(address, without=PRODUCER_ONLY),
            "group.id": address.group,
            "enable.auto.commit": False,
            "error_cb": _say,
            **overrides,
        }
        return _make(Consumer, conf)

    def admin(self, address: Address, *, on_error: Callable[[KafkaError], None] | None = None) -> AdminClient:
        """An admin client.

        Raises:
            ConfigurationError
        """
        conf = {**self._common(address, without=PRODUCER_ONLY | CONSUMER_ONLY), "error_cb": on_error or _say}
        return _make(AdminClient, conf)

    def _common(self, address: Address, *, without: frozenset[str] | set[str]) -> dict[str, Any]:
        own = {name: value for name, value in self.values.items() if name not in without}
        own.pop("metadata.broker.list", None)
        # Else asking for a topic makes it, where brokers allow that: with their defaults, which forget letters.
        return {**_BOUNDS, **own, "bootstrap.servers": address.bootstrap, "allow.auto.create.topics": False}


def _check(name: str, value: str) -> None:
    if name in OURS or name.endswith("_cb"):
        hint = OURS.get(name, "a function cannot be an option")
        if value.lower() not in HARMLESS.get(name, ()):
            raise ConfigurationError(f"kafka.{name} cannot be set: {hint}")
    if name in JAVA_ONLY:
        raise UnknownOption(f"kafka.{name} is a setting of Java's client; {JAVA_ONLY[name]}")
    if name in {"acks", "request.required.acks"} and _ACKS.fullmatch(value) is None:
        text = "it is 'all' or 1: with another, a row could count as delivered that no broker has confirmed"
        raise ConfigurationError(f"kafka.{name}={value} cannot be set: {text}")
    if name == _TOKENS:
        try:
            urlsplit(value)
        except ValueError as error:  # the value may hold a password
            raise ConfigurationError(f"kafka.{name} is not a URL: {error}; write https://host/path") from None


def _probe(options: Mapping[str, str]) -> None:
    """Let the library check names and values one by one. It never gets as far as making a client."""
    try:
        Producer({**options, _PROBE: ""})
    except KafkaException as error:
        said = redact(str(error.args[0].str())).strip()
        match = _NAMED.search(said)
        if match is None:
            raise ConfigurationError(f"kafka: {said}") from error
        if match["name"] != _PROBE:
            raise _unknown(match["name"]) from error
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"kafka: a setting that the client does not take: {redact(str(error))}") from error


def _unknown(name: str) -> UnknownOption:
    return unknown("option", f"kafka.{name}", [f"kafka.{each}" for each in KNOWN])


def _make(client: Callable[..., _Client], conf: Mapping[str, Any]) -> _Client:
    """Make a client; its own words go to Python's logging."""
    try:
        return client(dict(conf), logger=_client_log)
    except KafkaException as error:
        raise ConfigurationError(f"kafka: {redact(str(error.args[0].str())).strip()}") from error
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"kafka: the client cannot be made: {redact(str(error))}") from error


def _say(error: KafkaError) -> None:
    """Errors of the connection: the client mends them, and what they broke is told by the call that needed it."""
    log.info("%s", redact(f"{error.name()}: {error.str()}"))
