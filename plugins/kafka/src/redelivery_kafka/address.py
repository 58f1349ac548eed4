"""The URL of a topic at a cluster."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import quote, unquote

from redelivery.errors import ConfigurationError, InvalidURL, Unsupported
from redelivery.kit.address import quoted, redact, split_url, url_parameters
from redelivery.kit.names import DeadLetterNames

#: The kind of a topic in a `ref`: that of Strimzi, Kafka's operator for Kubernetes.
KIND: Final = "KafkaTopic"
API_GROUP: Final = "kafka.strimzi.io"
DEAD_LETTER_NAMES: Final = DeadLetterNames("-dead-letters")
#: Prefix of the dead letter topics of share groups: by default brokers write to no others
#: (`errors.deadletterqueue.topic.name.prefix`).
SHARE_PREFIX: Final = "dlq."
PORT: Final = 9092
#: Prefix that makes of a topic's name that of its default group.
GROUP_PREFIX: Final = "redelivery."
#: Between the default group and the name of a subscription: together they name its group. No topic's name has it.
SUBSCRIPTION: Final = ":"
#: Bytes of a group's name: brokers keep it in a field of 16 bits, together with its committed metadata.
GROUP_LENGTH: Final = 1024

#: Kafka's own limit for the name of a topic.
TOPIC_LENGTH: Final = 249
_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]+")
_HOST: Final = re.compile(r"(?P<host>\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]+)(?::(?P<port>[0-9]{1,5}))?")
_EXAMPLE: Final = "write 'kafka://host:9092,other:9092/topic' or, with kafka.bootstrap.servers, 'kafka:///topic'"


@dataclass(frozen=True, slots=True)
class Address:
    """One topic at one cluster, and the group that receives from it.

    Attributes:
        named_group: the group that the URL names; empty: the topic's default group. No two topics share that, since
            members of one group wait for each other whatever they receive.
        is_share: the group is a share group; the URL always names it.
    """

    bootstrap: str
    topic: str
    named_group: str = ""
    is_share: bool = False

    @property
    def group(self) -> str:
        """The consumer group or share group."""
        return self.named_group or f"{GROUP_PREFIX}{self.topic}"

    @property
    def url(self) -> str:
        """The URL that names it."""
        group = f"?{self._parameter}={quote(self.named_group, safe='')}" if self.named_group else ""
        return f"kafka://{self.bootstrap}/{self.topic}{group}"

    @property
    def _parameter(self) -> str:
        return "share" if self.is_share else "group"

    @property
    def hosts(self) -> list[str]:
        """The hosts of the bootstrap servers."""
        return [server.rpartition(":")[0].strip("[]") or server for server in self.bootstrap.split(",")]

    @property
    def unreached(self) -> str:
        """The error text where none of the bootstrap servers was reached."""
        count = len(self.hosts)
        return f"none of {count} bootstrap servers was reached" if count > 1 else "the bootstrap server was not reached"

    @property
    def is_dead_letters(self) -> bool:
        """Whether it is a dead letter topic."""
        return DEAD_LETTER_NAMES.is_dead_letters(self.topic) or self.topic.startswith(SHARE_PREFIX)

    @property
    def dead_letters(self) -> Address:
        """Its dead letter topic; itself, if it is one."""
        if self.is_dead_letters:
            return self
        return self.at(SHARE_PREFIX + self.topic if self.is_share else DEAD_LETTER_NAMES.of(self.topic))

    @property
    def source(self) -> str:
        """The topic whose dead letters are kept here; of any other topic, its own name."""
        if DEAD_LETTER_NAMES.is_dead_letters(self.topic):
            return DEAD_LETTER_NAMES.source(self.topic)
        return self.topic.removeprefix(SHARE_PREFIX)

    def subscription(self, name: str) -> Address:
        """Return the same topic with the group of a named subscription.

        Raises:
            ConfigurationError: the URL names a group already, or no group can have this name.
            Unsupported: the URL names a share group.
        """
        if self.is_share:
            text = "a share group is named by the URL alone: write a name of its own behind ?share="
            raise Unsupported(f"kafka: subscription {quoted(name)}: {text} (capability `subscriptions`)")
        if self.named_group:
            text = f"the URL names the group {self.named_group!r}, which selects a subscription too"
            raise ConfigurationError(f"kafka: subscription {quoted(name)}: {text}; leave out one of them")
        if not _is_group(name):
            text = f"the name must have 1 to {GROUP_LENGTH} bytes, all of them printable"
            raise ConfigurationError(f"kafka: subscription {quoted(name, 40)}: {text}")
        return replace(self, named_group=self.group + SUBSCRIPTION + name)

    def at(self, topic: str) -> Address:
        """Return another topic of the same cluster.

        Raises:
            ConfigurationError: no topic can have this name.
        """
        fault = topic_fault(topic)
        if fault is not None:
            raise ConfigurationError(f"kafka: {fault}")
        return replace(self, topic=topic)

    @classmethod
    def parse(cls, url: str, bootstrap: str | None = None) -> Address:
        """Read a URL.

        Args:
            url: `kafka://host:port,.../topic?group=...`, or `?share=...`.
            bootstrap: the servers as the client options give them. They take precedence over the URL's: a dead letter
                topic given by its name alone, with separate client options, may lie at another cluster.

        Raises:
            InvalidURL
            UnknownOption: an unknown parameter.
        """
        parts = split_url(url, several_hosts=True)
        shown = redact(url)
        if "@" in parts.netloc:
            text = "put them into kafka.sasl.username and kafka.sasl.password (a reference, as in 'env:NAME')"
            raise InvalidURL(f"kafka: {shown!r} holds credentials; {text}")
        if parts.fragment:
            raise InvalidURL(f"kafka: {shown!r} has a fragment ('#'), which has no meaning here; {_EXAMPLE}")
        servers = _servers(parts.netloc, f"{shown!r}") if parts.netloc else ""
        given = _servers(bootstrap, "kafka.bootstrap.servers") if bootstrap else ""
        if not servers and not given:
            raise InvalidURL(f"kafka: {shown!r} names no host, and kafka.bootstrap.servers is not set; {_EXAMPLE}")
        topic = unquote(parts.path.removeprefix("/"))
        fault = topic_fault(topic)
        if fault is not None:
            raise InvalidURL(f"kafka: {shown!r}: {fault}; {_EXAMPLE}")
        named = url_parameters(parts.query, ["group", "share"], f"kafka: {shown!r}")
        if len(named) > 1:
            text = "names a consumer group and a share group; a receiver is a member of one: leave out group or share"
            raise InvalidURL(f"kafka: {shown!r} {text}")
        is_share = "share" in named
        if is_share and not _is_group(named["share"]):
            text = f"a share group has a name of 1 to {GROUP_LENGTH} bytes, all of them printable"
            raise InvalidURL(f"kafka: {shown[:200]!r}: {text}")
        return cls(given or servers, topic, named["share"] if is_share else named.get("group", ""), is_share)


def _is_group(name: str) -> bool:
    return bool(name) and name.isprintable() and len(name.encode("utf-8", "surrogatepass")) <= GROUP_LENGTH


def topic_fault(name: str) -> str | None:
    """Return why no topic can have this name; None if one can."""
    if not name:
        return "the topic has an empty name"
    if len(name) > TOPIC_LENGTH:
        return f"a topic's name has at most {TOPIC_LENGTH} characters, not {len(name)}"
    if name in {".", ".."} or _TOPIC.fullmatch(name) is None:
        return f"{quoted(name)} is not a valid topic name: use letters (a to z), digits, '.', '_' and '-'"
    return None


def _servers(text: str, where: str) -> str:
    """Return host and port of each server, comma separated, with the default port filled in."""
    found = []
    for each in text.split(","):
        match = _HOST.fullmatch(each.strip())
        port = int(match["port"] or PORT) if match else 0
        if match is None or not 0 < port < 1 << 16:
            raise InvalidURL(f"kafka: {where}: {redact(each)!r} is not host:port; {_EXAMPLE}")
        found.append(f"{match['host']}:{port}")
    return ",".join(found)
