"""The client options, and RabbitMQ's own URI query parameters, which set some of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from redelivery.errors import ConfigurationError
from redelivery.kit.options import Options, choice, flag, integer, seconds, secret, text

_MAX: Final = 2**32 - 1
#: The default `max_message_size` from RabbitMQ 4.0 on; before, 128 MiB. The broker does not tell its own.
MESSAGE_BYTES: Final = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(Options, broker="rabbitmq"):
    """The client options."""

    username: str | None = text("user to log in as; a user in the URL takes precedence", shown="guest")
    password: str | None = secret("password to log in with; a password in the URL takes precedence")
    auth: str = choice("PLAIN", "login; EXTERNAL takes the user from the TLS certificate", ("PLAIN", "EXTERNAL"))
    heartbeat: int = integer(
        10, "seconds between heartbeats; a connection that is silent for longer is lost; 0: none", least=0, most=65_535
    )
    connection_timeout: float = seconds(10, "time to open a connection", least=0.001, most=_MAX)
    blocked_connection_timeout: float = seconds(
        10, "time to wait for an answer when receiving, browsing or provisioning", least=0.001, most=_MAX
    )
    connection_name: str = text("name of the connection in RabbitMQ's management", "redelivery")
    ssl: bool = flag("use TLS, also if the URL's scheme is not amqps", default=False)
    ssl_ca: str | None = text("file of authorities to trust", name="ssl.ca", shown="the system's")
    ssl_cert: str | None = text("file of our certificate, if the broker demands one", name="ssl.cert")
    ssl_key: str | None = text("file of its private key", name="ssl.key")
    ssl_server_name: str | None = text(
        "name that the broker's certificate must have", name="ssl.server_name", shown="the URL's host"
    )
    ssl_verify: bool = flag(
        "check the broker's certificate; without it anybody can impersonate the broker", default=True, name="ssl.verify"
    )
    cloudevents_prefix: str = choice(
        "ce-",
        "prefix of the headers of CloudEvents: Knative's, or one that readers by AMQP 1.0 know",
        ("ce-", "cloudEvents:", "cloudEvents_"),
    )
    delays: str = choice(
        "auto",
        "who delays retries: native, the queue itself (RabbitMQ 4.3, linear backoff); emulated, retry queues",
        ("auto", "native", "emulated"),
    )
    queue_type: str = choice("quorum", "type of the queues that provisioning creates", ("quorum", "classic"))
    dead_letters: str = choice(
        "queue",
        "what the letters are in: a stream is looked at without taking, by several readers, and keeps what is removed",
        ("queue", "stream"),
    )
    queue_ttl: float = seconds(
        0, "time after which a provisioned queue dead-letters an unhandled message; 0: never", most=_MAX
    )
    queue_length: int = integer(
        0, "messages that a provisioned queue takes before it refuses more; 0: any number", least=0, most=_MAX
    )
    message_bytes: int = integer(
        MESSAGE_BYTES, "largest body that the broker takes, its max_message_size", least=1, most=_MAX
    )


#: RabbitMQ's URI query parameters that are supported -> our option.
QUERY: Final[Mapping[str, str]] = {
    "heartbeat": "heartbeat",
    "connection_timeout": "connection_timeout",
    "auth_mechanism": "auth",
    "cacertfile": "ssl.ca",
    "certfile": "ssl.cert",
    "keyfile": "ssl.key",
    "server_name_indication": "ssl.server_name",
    "verify": "ssl.verify",
    "dead_letters": "dead_letters",  # ours
}
_VERIFY: Final = {"verify_peer": "true", "verify_none": "false"}


def settings_of(options: Mapping[str, str], parameters: Mapping[str, str] | None = None) -> Settings:
    """Read the options and a URL's query parameters; an option takes precedence.

    Raises:
        UnknownOption, ConfigurationError: names the option and the values that it takes.
    """
    return Settings.parse({**_options_of_url(parameters or {}), **options})


def _options_of_url(parameters: Mapping[str, str]) -> dict[str, str]:
    options = {QUERY[name]: value for name, value in parameters.items()}
    if "verify" in parameters:
        if parameters["verify"] not in _VERIFY:
            raise ConfigurationError("rabbitmq: the URL's verify must be verify_peer or verify_none")
        options["ssl.verify"] = _VERIFY[parameters["verify"]]
    if "connection_timeout" in parameters:
        try:
            options["connection_timeout"] = str(float(parameters["connection_timeout"]) / 1000)
        except ValueError:
            text = "rabbitmq: the URL's connection_timeout must be a number of milliseconds"
            raise ConfigurationError(text) from None
    return options
