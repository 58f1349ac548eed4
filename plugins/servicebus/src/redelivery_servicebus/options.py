"""The client options."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from redelivery.errors import ConfigurationError
from redelivery.kit.options import Options, choice, integer, number, option, remember, secret, text
from redelivery_servicebus.address import Address

_PARTS: Final = frozenset({
    "endpoint", "hostname", "sharedaccesskeyname", "sharedaccesskey", "sharedaccesssignature", "entitypath",
    "usedevelopmentemulator",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Login:
    """A shared access policy with its key, or a signature. Secrets are left out of its repr.

    Attributes:
        entity: the only queue that it is good for; None: the namespace.
        emulator: it is for Microsoft's emulator, which has no TLS.
    """

    key_name: str | None = None
    key: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    entity: str | None = None
    emulator: bool = False

    @classmethod
    def parse(cls, connection_string: str) -> Login:
        """Read a connection string.

        Raises:
            ConfigurationError: it is malformed; no part of it is shown.
        """
        found = _parts(connection_string)
        name, key, token = (found.get(f"sharedaccess{each}") or None for each in ("keyname", "key", "signature"))
        if [name is None, key is None, token is None] not in ([False, False, True], [True, True, False]):
            raise _malformed("it needs SharedAccessKeyName and SharedAccessKey, or SharedAccessSignature alone")
        remember(token or key or "")
        emulator = found.get("usedevelopmentemulator", "").lower() == "true"
        return cls(name, key, token, found.get("entitypath") or None, emulator)

    def connection_string(self, namespace: str) -> str:
        """Return it in the SDK's own form, for a namespace."""
        who = f"SharedAccessKeyName={self.key_name};SharedAccessKey={self.key}"
        if self.token is not None:
            who = f"SharedAccessSignature={self.token}"
        return f"Endpoint=sb://{namespace}/;{who}" + (";UseDevelopmentEmulator=true" if self.emulator else "")


@dataclass(frozen=True, slots=True)
class Settings(Options, broker="servicebus"):
    """The client options, read."""

    admin_port: int | None = integer(
        None,
        "port of the emulator's administration endpoint, which is without TLS (5300 there)",
        least=1,
        most=65_535,
        shown="that of the URL",
    )
    cloudevents_prefix: str = choice(
        "cloudEvents_", "prefix of the properties of CloudEvents", ("cloudEvents_", "cloudEvents:")
    )
    connection_string: Login | None = option(  # noqa: RUF009 - it returns a dataclass's field
        None,
        "connection string of the namespace or of the queue, as a reference; the host is that of the URL",
        Login.parse,
        "a connection string",
        secret=True,
    )
    connection_verify: str | None = text("file of certificates to trust", shown="those of certifi")
    credential: str | None = choice(None, "azure-identity's DefaultAzureCredential (the extra azure)", ("default",))
    duplicate_detection: str | None = choice(
        None, "whether the queue has duplicate detection; provisioning creates it so", ("true", "false")
    )
    duplicate_detection_window: int = integer(
        600, "seconds for which a provisioned queue remembers ids", least=20, most=604_800
    )
    lock_duration: int | None = integer(
        None, "seconds for which a provisioned queue locks a message for a receiver", least=1, most=300, shown="60"
    )
    max_message_bytes: int = integer(
        262_144,
        "size of the largest message that the queue accepts",
        least=1 << 16,
        most=100 << 20,
        shown="262144, as in the Standard tier",
    )
    message_ttl: int | None = integer(
        None, "seconds after which a provisioned queue dead-letters a message", least=1, most=1 << 31, shown="never"
    )
    operation_timeout: float = number(
        10.0, "seconds for one operation, including opening a connection", least=0.1, most=25
    )
    sas_key: str | None = secret("key of sas_key_name")
    sas_key_name: str | None = text("name of a shared access policy")
    sas_token: str | None = secret("a shared access signature")
    session_id: str | None = text(
        "queues with sessions: the session id of rows without a key; by default such a row is refused"
    )
    socket_timeout: float | None = number(
        None, "seconds that the socket waits", least=0.01, most=60, shown="the SDK's own default"
    )
    transport_type: str = choice(
        "amqp", "the transport (websockets needs the package websocket-client)", ("amqp", "websockets")
    )

    def __post_init__(self) -> None:
        if (self.sas_key_name is None) != (self.sas_key is None):
            raise ConfigurationError("servicebus.sas_key_name and servicebus.sas_key belong together")
        logins = ("connection_string", "sas_key", "sas_token", "credential")
        given = [f"servicebus.{name}" for name in logins if getattr(self, name) is not None]
        if len(given) > 1:
            raise ConfigurationError(f"{' and '.join(given)} are two logins; give one")

    @property
    def deduplicates(self) -> bool:
        """Whether the options say that the queue has duplicate detection."""
        return self.duplicate_detection == "true"

    @property
    def login(self) -> Login | None:
        """The shared access policy or signature; None where an Azure credential is used, or nothing is given."""
        if self.sas_key is not None or self.sas_token is not None:
            return Login(self.sas_key_name, self.sas_key, self.sas_token)
        return self.connection_string

    def check(self, address: Address) -> None:
        """Check that these options can reach an address.

        Raises:
            ConfigurationError: a connection string of another queue, or a port that only the emulator has.
        """
        login = self.login
        entity = None if login is None else login.entity
        if entity is not None and entity.lower() not in {address.queue.lower(), address.owner.lower()}:
            why = f"the connection string is for {entity!r} alone; give one of the namespace"
            raise ConfigurationError(f"servicebus: {address.queue!r} cannot be reached: {why}")
        if self.admin_port is not None and (login is None or not login.emulator):
            why = "only the emulator has an admin_port, and its connection string contains UseDevelopmentEmulator=true"
            raise ConfigurationError(f"servicebus: {address.namespace!r} cannot be administered: {why}")
        if ":" in address.namespace and (self.credential or (login is not None and not login.emulator)):
            why = "only the emulator has a port, and its connection string contains UseDevelopmentEmulator=true"
            raise ConfigurationError(f"servicebus: {address.namespace!r} cannot be reached: {why}")


def _parts(connection_string: str) -> dict[str, str]:
    """Return the values of a connection string by their names in lower case. Raises ConfigurationError."""
    pairs = [each.partition("=") for each in connection_string.strip().strip(";").split(";")]
    found = {name.strip().lower(): value.strip() for name, sign, value in pairs if sign}
    if len(found) < len(pairs) or not found.keys() <= _PARTS:
        raise _malformed("it must consist of 'Name=value' parts, separated by ';', each of a known name, once")
    if not (found.get("endpoint") or found.get("hostname")):
        raise _malformed("it has no Endpoint")
    return found


def _malformed(why: str) -> ConfigurationError:
    return ConfigurationError(f"servicebus.connection_string is malformed (it is not shown): {why}")
