"""The client options: librdkafka's own settings, checked when they are read, by librdkafka itself and without I/O."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

import confluent_kafka
from confluent_kafka import KafkaException, Producer

from redelivery.errors import ConfigurationError, UnknownOption
from redelivery.kit.address import is_local, redact, unknown
from redelivery_kafka.client.internals import INVALID_SETTING, unknown_setting
from redelivery_kafka.client.known_settings import (
    HARMLESS,
    JAVA_ONLY,
    KNOWN,
    MESSAGE_BYTES,
    NOT_FOR_SHARES,
    ORIGINALS,
    OWN,
    RESERVED,
)

#: What librdkafka reads as a number above 0, in one spelling only.
_ACKS: Final = re.compile(r"all|-1|[1-9][0-9]*")
_TOKEN_ENDPOINT: Final = "sasl.oauthbearer.token.endpoint.url"  # noqa: S105 - the name of an option
#: How a switch of librdkafka is turned off.
_OFF: Final = frozenset({"false", "f", "0"})


@dataclass(frozen=True)
class Settings:
    """The client options, read and checked. Its repr hides the values: some are secret."""

    values: Mapping[str, str] = field(default_factory=dict, repr=False)
    #: The plugin's own options, which the client does not know.
    own: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> Settings:
        """Read the options.

        Raises:
            UnknownOption: names the nearest known setting, or the replacement for one that only Java's client has.
            ConfigurationError: librdkafka rejects a value, or the plugin could not keep a promise with it.
        """
        own = {name: value for name, value in options.items() if name in OWN}
        options = {name: value for name, value in options.items() if name not in OWN}
        for name, value in options.items():
            _check(name, value)
        found = cls(options, own)
        if found.acks not in {"all", "-1"} and found.idempotent:
            text = "set kafka.enable.idempotence=false too; retries may then duplicate or reorder rows"
            raise ConfigurationError(f"kafka.acks={found.acks}: an idempotent producer needs acks=all; {text}")
        _let_library_check(options)
        return found

    def check_share(self) -> None:
        """Refuse a client without share consumers, and settings that those do not have. Raises ConfigurationError."""
        if not hasattr(confluent_kafka, "ShareConsumer"):
            text = "has no share consumers, which ?share= needs: upgrade it (2.16.1 has them), or use ?group="
            raise ConfigurationError(f"kafka: confluent-kafka {confluent_kafka.__version__} {text}")
        for name in sorted(NOT_FOR_SHARES & self.values.keys() - HARMLESS.keys()):
            text = "a share consumer has no such setting: those of its group are kept at the broker (kafka-configs.sh)"
            raise ConfigurationError(f"kafka.{name} cannot be set with ?share=: {text}; leave it out")

    @property
    def originals(self) -> tuple[str, ...]:
        """Topics, or patterns of their names, in which the records may be that letters only point to."""
        return tuple(each.strip() for each in self.own.get(ORIGINALS, "").split(",") if each.strip())

    @property
    def acks(self) -> str:
        """How many replicas confirm a row."""
        return self.values.get("acks", self.values.get("request.required.acks", "all"))

    @property
    def idempotent(self) -> bool:
        """Whether the producer is idempotent."""
        return self.values.get("enable.idempotence", "true").lower() not in _OFF

    @property
    def hosts(self) -> list[str]:
        """Hosts that the settings name apart from the bootstrap servers: the token endpoint's."""
        url = self.values.get(_TOKEN_ENDPOINT)
        return [] if url is None else [urlsplit(url).hostname or ""]

    def insecure(self, hosts: Sequence[str]) -> list[str]:
        """Return why a connection to these hosts is insecure, one clause per reason."""

        def of(name: str) -> str:
            return self.values.get(name, "").lower()

        found = []
        remote = [host for host in hosts if not is_local(host)]
        if of("security.protocol") == "sasl_plaintext" and remote:
            found.append(f"credentials go to {remote[0]} over plain text; set kafka.security.protocol=sasl_ssl")
        if of("enable.ssl.certificate.verification") in _OFF:
            found.append("kafka.enable.ssl.certificate.verification is off: anybody can take the broker's place")
        if of("ssl.endpoint.identification.algorithm") == "none":
            found.append(
                "kafka.ssl.endpoint.identification.algorithm=none: any valid certificate is accepted for the broker"
            )
        if of(_TOKEN_ENDPOINT).startswith("http:") and not is_local(self.hosts[0]):
            found.append(f"tokens come over plain text; write https in kafka.{_TOKEN_ENDPOINT}")
        return found

    @property
    def message_bytes(self) -> int:
        """The largest message that the client sends, with librdkafka's own overhead."""
        return int(self.values.get("message.max.bytes", MESSAGE_BYTES))

    @property
    def message_timeout(self) -> float | None:
        """Seconds for which the user lets the client try to deliver a message; None: not set."""
        given = self.values.get("message.timeout.ms", self.values.get("delivery.timeout.ms"))
        milliseconds = int(given) if given is not None else 0
        return milliseconds / 1000 if milliseconds > 0 else None  # 0 means forever; a deadline bounds that

    @property
    def socket_timeout(self) -> float | None:
        """Seconds that the user gives one request; None: not set."""
        given = self.values.get("socket.timeout.ms")
        return None if given is None else int(given) / 1000

    def without(self, *names: frozenset[str]) -> dict[str, Any]:
        """Return the settings but these, and without the servers: they are in the address."""
        left = frozenset({"bootstrap.servers", "metadata.broker.list"}).union(*names)
        return {name: value for name, value in self.values.items() if name not in left}


def _check(name: str, value: str) -> None:
    if name in RESERVED or name.endswith("_cb"):
        reason = RESERVED.get(name, "an option cannot be a function")
        if value.lower() not in HARMLESS.get(name, ()):
            raise ConfigurationError(f"kafka.{name} cannot be set: {reason}")
    if name in JAVA_ONLY:
        raise UnknownOption(f"kafka.{name} is a setting of Java's client; {JAVA_ONLY[name]}")
    if name in {"acks", "request.required.acks"} and _ACKS.fullmatch(value) is None:
        text = "write 'all' or 1; with any other value a row could count as delivered that no broker has confirmed"
        raise ConfigurationError(f"kafka.{name}={value} cannot be set: {text}")
    if name == _TOKEN_ENDPOINT:
        try:
            urlsplit(value)
        except ValueError as error:  # the value may hold a password
            raise ConfigurationError(f"kafka.{name} is not a URL: {error}; write https://host/path") from None


def _let_library_check(options: Mapping[str, str]) -> None:
    """Let librdkafka check names and values one by one. It never creates a client."""
    try:
        Producer({**options, INVALID_SETTING: ""})
    except KafkaException as error:
        text = redact(str(error.args[0].str())).strip()
        name = unknown_setting(text)
        if name is None:
            raise ConfigurationError(f"kafka: {text}") from error
        if name != INVALID_SETTING:
            raise unknown("option", f"kafka.{name}", [f"kafka.{each}" for each in KNOWN]) from error
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"kafka: the client rejects a setting: {redact(str(error))}") from error
