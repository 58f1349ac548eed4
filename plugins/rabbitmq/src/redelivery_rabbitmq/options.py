"""The client options, and pika's connection parameters made of them. This file must not do I/O but read TLS files.

Some can be given in the URL too, by the names that RabbitMQ's URI specification has for them (`QUERY`).
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import pika
from pika.credentials import ExternalCredentials, PlainCredentials

from redelivery.base.secrets import guard_loggers
from redelivery.base.urls import is_local, resolve_secret, unknown
from redelivery.errors import ConfigurationError

if TYPE_CHECKING:
    from redelivery_rabbitmq.address import Address

OPTIONS: Mapping[str, str] = {
    "username": "user to log in as (the URL's, else guest)",
    "password": "its password; a reference, as env:NAME (the URL's, else guest)",
    "auth": "PLAIN, or EXTERNAL: log in as whom the TLS certificate names (PLAIN)",
    "heartbeat": "seconds between heartbeats; a connection that is silent for longer is lost; 0: none (10)",
    "connection_timeout": "seconds that opening a connection may take (10)",
    "blocked_connection_timeout": "seconds that a request of the receiving side may get no answer (10)",
    "connection_name": "what the broker's operator sees the connection as (redelivery)",
    "ssl": "true: TLS, also where the URL's scheme is not amqps (false)",
    "ssl.ca": "file of the authorities that the broker's certificate is checked with (the system's)",
    "ssl.cert": "file of our certificate, where the broker wants one",
    "ssl.key": "file of its private key",
    "ssl.server_name": "name that the broker's certificate must bear (the URL's host)",
    "ssl.verify": "false: take any certificate, which protects from nobody but eavesdroppers (true)",
    "queue_type": "quorum or classic: of the queues that provisioning makes (quorum)",
    "queue_ttl": "seconds after which provisioning lets an unhandled message go to the dead letters; 0: never (0)",
    "queue_length": "messages that a provisioned queue takes before it refuses more; 0: any number (0)",
    "message_bytes": "largest body that the broker takes, its max_message_size (134217728)",
}

#: RabbitMQ's URI query parameters that are honoured -> our option.
QUERY: Mapping[str, str] = {
    "heartbeat": "heartbeat",
    "connection_timeout": "connection_timeout",
    "auth_mechanism": "auth",
    "cacertfile": "ssl.ca",
    "certfile": "ssl.cert",
    "keyfile": "ssl.key",
    "server_name_indication": "ssl.server_name",
    "verify": "ssl.verify",
}
_VERIFY: Final = {"verify_peer": "true", "verify_none": "false"}
_MILLISECONDS: Final = 1000
_MOST_HEARTBEAT: Final = 65_535


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The client options, read."""

    username: str | None = None
    password: str | None = field(default=None, repr=False)
    external: bool = False
    heartbeat: int = 10
    connection_timeout: float = 10.0
    blocked_connection_timeout: float = 10.0
    connection_name: str = "redelivery"
    ssl: bool = False
    ssl_ca: str | None = None
    ssl_cert: str | None = None
    ssl_key: str | None = None
    ssl_server_name: str | None = None
    ssl_verify: bool = True
    queue_type: str = "quorum"
    queue_ttl_ms: int | None = None
    queue_length: int | None = None
    message_bytes: int = 128 << 20

    @classmethod
    def parse(cls, options: Mapping[str, str], parameters: Mapping[str, str] | None = None) -> Settings:
        """Read the options, and a URL's parameters; an option goes before a parameter.

        Raises:
            UnknownOption, ConfigurationError: names the option and what it takes.
        """
        for name in options:
            if name not in OPTIONS:
                raise unknown("option", f"rabbitmq.{name}", [f"rabbitmq.{each}" for each in OPTIONS])
        given = {**_of_url(parameters or {}), **options}
        auth = given.get("auth", "PLAIN").upper()
        kind = given.get("queue_type", "quorum").lower()
        if auth not in {"PLAIN", "EXTERNAL"}:
            raise ConfigurationError(f"rabbitmq.auth: PLAIN or EXTERNAL, not {auth!r}")
        if kind not in {"quorum", "classic"}:
            raise ConfigurationError(f"rabbitmq.queue_type: quorum or classic, not {kind!r}")
        return cls(
            username=given.get("username"),
            password=given.get("password"),
            external=auth == "EXTERNAL",
            heartbeat=int(_number(given, "heartbeat", 10, most=_MOST_HEARTBEAT)),
            connection_timeout=_number(given, "connection_timeout", 10, least=0.001),
            blocked_connection_timeout=_number(given, "blocked_connection_timeout", 10, least=0.001),
            connection_name=given.get("connection_name", "redelivery"),
            ssl=_flag(given, "ssl", default=False),
            ssl_ca=given.get("ssl.ca"),
            ssl_cert=given.get("ssl.cert"),
            ssl_key=given.get("ssl.key"),
            ssl_server_name=given.get("ssl.server_name"),
            ssl_verify=_flag(given, "ssl.verify", default=True),
            queue_type=kind,
            queue_ttl_ms=int(_number(given, "queue_ttl", 0) * _MILLISECONDS) or None,
            queue_length=int(_number(given, "queue_length", 0)) or None,
            message_bytes=int(_number(given, "message_bytes", 128 << 20, least=1)),
        )


def insecure(address: Address, settings: Settings) -> list[str]:
    """What of a connection is insecure, a clause each."""
    if is_local(address.host):
        return []
    if not (address.tls or settings.ssl):
        return [f"credentials go to {address.host} over plain text; write amqps:// or set rabbitmq.ssl=true"]
    return [] if settings.ssl_verify else ["rabbitmq.ssl.verify is off: anybody can take the broker's place"]


def parameters(address: Address, settings: Settings) -> pika.ConnectionParameters:
    """What pika needs to connect; secret references of the URL and TLS files are read here.

    Raises:
        ConfigurationError: a TLS file cannot be used.
    """
    guard_loggers("pika")  # it logs the parameters and the frames of a connection
    timeout = settings.connection_timeout
    return pika.ConnectionParameters(
        host=address.host,
        port=address.port,
        virtual_host=address.vhost,
        credentials=_credentials(address, settings),
        heartbeat=settings.heartbeat,
        blocked_connection_timeout=settings.blocked_connection_timeout,
        socket_timeout=timeout,
        stack_timeout=timeout,
        connection_attempts=1,
        retry_delay=0,
        ssl_options=_tls(address, settings),
        client_properties={"connection_name": settings.connection_name},
    )


def _credentials(address: Address, settings: Settings) -> PlainCredentials | ExternalCredentials:
    if settings.external:
        return ExternalCredentials()
    username = address.username if address.username is not None else settings.username
    password = resolve_secret(address.password) if address.password is not None else settings.password
    return PlainCredentials("guest" if username is None else username, "guest" if password is None else password)


def _tls(address: Address, settings: Settings) -> pika.SSLOptions | None:
    if not (address.tls or settings.ssl):
        return None
    try:
        context = ssl.create_default_context(cafile=settings.ssl_ca)
        if settings.ssl_cert is not None:
            context.load_cert_chain(settings.ssl_cert, settings.ssl_key)
    except (OSError, ValueError) as error:  # an SSLError is an OSError
        files = f"rabbitmq.ssl.ca={settings.ssl_ca!r}, .cert={settings.ssl_cert!r}, .key={settings.ssl_key!r}"
        raise ConfigurationError(f"rabbitmq: the TLS files cannot be used ({files}): {error}") from error
    if not settings.ssl_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return pika.SSLOptions(context, settings.ssl_server_name or address.host)


def _of_url(given: Mapping[str, str]) -> dict[str, str]:
    """A URL's parameters as options."""
    found = {QUERY[name]: value for name, value in given.items()}
    if "verify" in given:
        if given["verify"] not in _VERIFY:
            raise ConfigurationError("rabbitmq: the URL's verify is verify_peer or verify_none")
        found["ssl.verify"] = _VERIFY[given["verify"]]
    if "connection_timeout" in given:  # milliseconds there
        found["connection_timeout"] = str(_number(given, "connection_timeout", 10_000, least=1) / _MILLISECONDS)
    return found


def _flag(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = options.get(name, str(default)).lower()
    if text not in {"true", "false"}:
        raise ConfigurationError(f"rabbitmq.{name}: true or false, not {text!r}")
    return text == "true"


def _number(
    options: Mapping[str, str], name: str, default: float, *, least: float = 0, most: float = 2**32 - 1
) -> float:
    text = options.get(name, str(default))
    try:
        value = float(text)
    except ValueError:
        value = -1
    if not least <= value <= most:  # also refuses nan
        raise ConfigurationError(f"rabbitmq.{name}: a number from {least:g} to {most:g}, not {text!r}")
    return value
