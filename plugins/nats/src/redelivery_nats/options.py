"""The client options."""

from __future__ import annotations

import re
from dataclasses import dataclass

from redelivery.errors import ConfigurationError
from redelivery.kit.options import Options, choice, flag, integer, option, seconds, secret, text

#: A prefix of subjects: tokens between dots, without wildcards.
_PREFIX = re.compile(r"[!-)+\-/-=?-~]+(?:\.[!-)+\-/-=?-~]+)*")


def _prefix(value: str) -> str:
    if not _PREFIX.fullmatch(value):
        raise ValueError(value)
    return value


@dataclass(frozen=True, slots=True)
class Settings(Options, broker="nats"):
    """The values of the client options."""

    ack_wait: float = seconds(30, "seconds that a provisioned consumer leases a message", least=0.1, most=43_200)
    api_prefix: str = option(
        "$JS.API", "prefix of the JetStream API's subjects", _prefix, "a prefix of subjects", shown="$JS.API"
    )
    connect_timeout: float = seconds(5, "seconds to wait for a connection", least=0.1, most=25)
    credentials_secret: str | None = secret("contents of a .creds file: the user's JWT and its seed")
    duplicate_window: float = seconds(
        120, "seconds in which a provisioned stream recognises an id that it has stored", least=0.1, most=86_400
    )
    in_flight: int = integer(4096, "messages sent and not yet confirmed, at most", least=1, most=1 << 16)
    inbox_prefix: str = option(
        "_INBOX", "prefix of the subjects for answers", _prefix, "a prefix of subjects", shown="_INBOX"
    )
    max_ack_pending: int = integer(
        100_000, "messages that a provisioned consumer leases or delays at once", least=1, most=1 << 31
    )
    max_payload: int = integer(
        1 << 20, "size of the largest message that the server accepts, with its headers", least=1024, most=1 << 26
    )
    nkey_secret: str | None = secret("seed of the user's nkey")
    password: str | None = secret("password of user")
    replicas: int = integer(1, "copies that a provisioned stream has", least=1, most=5)
    storage: str = choice("file", "where a provisioned stream keeps its messages", ("file", "memory"))
    tls: bool = flag("refuse a connection without TLS", default=False)
    tls_ca: str | None = text("file of the certificates to trust; by default the system's")
    tls_cert: str | None = text("file of the client's certificate")
    tls_hostname: str | None = text("name that the server's certificate has; by default the host's")
    tls_key: str | None = text("file of the client's key")
    token: str | None = secret("token")
    user: str | None = text("user")

    def __post_init__(self) -> None:
        """Check what one option alone cannot show."""
        for one, other in (("user", "password"), ("tls_cert", "tls_key")):
            if (getattr(self, one) is None) != (getattr(self, other) is None):
                raise ConfigurationError(f"nats.{one} and nats.{other} require each other; give both or none")
        logins = [
            name for name in ("user", "token", "nkey_secret", "credentials_secret") if getattr(self, name) is not None
        ]
        if len(logins) > 1:
            raise ConfigurationError(f"nats.{logins[0]} and nats.{logins[1]} are two logins; give one")

    @property
    def is_tls(self) -> bool:
        """Whether a connection must be encrypted: asked for, or implied by files for it."""
        return self.tls or any((self.tls_ca, self.tls_cert, self.tls_hostname))
