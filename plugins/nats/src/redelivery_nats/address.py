"""The address of a stream, written `nats://HOST:PORT/STREAM`."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final
from urllib.parse import quote, unquote, urlencode

from redelivery.errors import InvalidURL, Permanent
from redelivery.kit.address import quoted, redact, split_url, url_parameters
from redelivery.kit.errors import Code
from redelivery.kit.names import DeadLetterNames

PORT: Final = 4222
#: Kinds of a `ref`: a stream, and one of NACK, the controller of NATS for Kubernetes.
KIND: Final = "Stream"
API_GROUP: Final = "jetstream.nats.io"
NAMES: Final = DeadLetterNames()
#: The durable consumer that receivers share.
CONSUMER: Final = "redelivery"

#: Of a stream or a consumer: it is one token of the API's subjects, and a folder's name on the server.
_NAME = re.compile(r"[^\s.*>/\\\x00-\x1f\x7f]{1,128}")
#: A subject: tokens between dots, without wildcards.
_SUBJECT = re.compile(r"[^\s.*>\x00-\x1f\x7f]+(?:\.[^\s.*>\x00-\x1f\x7f]+)*")
_SUBJECT_BYTES: Final = 1000
_HOST = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.%]+)\]|(?P<name>[^\[\]:,@\s]+))(?::(?P<port>[0-9]{1,5}))?")
_PORTS: Final = range(1, 1 << 16)
_EXAMPLE: Final = "it is written 'nats://HOST:PORT/STREAM', with further hosts after commas"


@lru_cache(maxsize=1024)
def check_subject(subject: str) -> str:
    """Return a subject to which rows may be sent.

    Raises:
        Permanent: it is no subject, or one of the server's own: `$JS.API.STREAM.DELETE.orders` is a command.
    """
    valid = len(subject.encode("utf-8", "surrogatepass")) <= _SUBJECT_BYTES and _SUBJECT.fullmatch(subject)
    if not valid or not subject.isprintable():
        text = f"no message can have the subject {quoted(subject)}: it has tokens between dots, without spaces, * and >"
        raise Permanent(f"nats: {text}", code=Code.INVALID_DESTINATION)
    if subject[0] in "$_":
        text = f"rows are not sent to {quoted(subject)}: subjects that begin with $ or _ are the server's and clients'"
        raise Permanent(f"nats: {text}", code=Code.INVALID_DESTINATION)
    return subject


@dataclass(frozen=True, slots=True)
class Address:
    """A stream of a server or cluster.

    Attributes:
        hosts: of the servers, each with its port.
        stream: its name.
        subject: what messages are sent under.
        consumer: the durable consumer that receives them.
    """

    hosts: tuple[tuple[str, int], ...]
    stream: str
    subject: str
    consumer: str = CONSUMER

    @property
    def url(self) -> str:
        """Its URL, always in the same form."""
        hosts = ",".join(f"{_bracketed(host)}:{port}" for host, port in self.hosts)
        given = {"subject": self.subject} if self.subject != self.stream else {}
        given |= {"consumer": self.consumer} if self.consumer != CONSUMER else {}
        query = urlencode(given, quote_via=quote)
        return f"nats://{hosts}/{quote(self.stream, safe='')}" + (f"?{query}" if query else "")

    @property
    def servers(self) -> list[str]:
        """The URLs of the servers, for the client."""
        return [f"nats://{_bracketed(host)}:{port}" for host, port in self.hosts]

    @property
    def is_dead_letters(self) -> bool:
        """Whether its name is that of a dead letter stream."""
        return NAMES.is_dead_letters(self.stream)

    @property
    def dead_letters(self) -> Address:
        """Its dead letter stream; a dead letter stream is its own."""
        return self if self.is_dead_letters else self.sibling(NAMES.of(self.stream))

    @property
    def source(self) -> Address | None:
        """The stream whose dead letters are kept here; None: it is not the dead letter stream of any."""
        return self.sibling(NAMES.source(self.stream)) if self.is_dead_letters else None

    def sibling(self, stream: str) -> Address:
        """Another stream of the same servers."""
        return replace(self, stream=stream, subject=stream)

    def checked(self) -> Address:
        """Return it. Raises InvalidURL: no stream, subject or consumer can have this name."""
        for what, name in (("stream", self.stream), ("consumer", self.consumer)):
            if not _NAME.fullmatch(name) or not name.isprintable():
                text = "a name has 1 to 128 characters, without spaces and . * > / \\"
                raise InvalidURL(f"nats: no {what} can be called {quoted(name)}: {text}")
        try:
            check_subject(self.subject)
        except Permanent as error:
            raise InvalidURL(str(error)) from None
        return self

    @classmethod
    def parse(cls, url: str) -> Address:
        """Parse a URL.

        Raises:
            InvalidURL: no host, no stream, an invalid name, a login, a parameter given twice.
            UnknownOption: an unknown parameter.
        """
        scheme, _, rest = url.partition("://")
        netloc = re.split(r"[/?#]", rest, maxsplit=1)[0]
        shown = redact(url)
        if "@" in netloc:
            text = "a URL holds no login: use nats.user and nats.password, nats.token, or a key"
            raise InvalidURL(f"nats: {shown!r}: {text}")
        parts = split_url(f"{scheme}://host{rest[len(netloc) :]}")
        stream = unquote(parts.path[1:])
        if not netloc or parts.fragment or not stream:
            raise InvalidURL(f"nats: {shown!r} has no host, no stream, or a fragment; {_EXAMPLE}")
        given = url_parameters(parts.query, ("subject", "consumer"), f"nats: {shown!r}")
        hosts = tuple(dict.fromkeys(_host(each, shown) for each in netloc.split(",")))
        return cls(hosts, stream, given.get("subject", stream), given.get("consumer", CONSUMER)).checked()


def _host(text: str, shown: str) -> tuple[str, int]:
    match = _HOST.fullmatch(text)
    port = PORT if match is None or match["port"] is None else int(match["port"])
    if match is None or port not in _PORTS:
        raise InvalidURL(f"nats: {shown!r}: {quoted(text)} is not a host with a port; {_EXAMPLE}")
    return (match["v6"] or match["name"]).lower(), port


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
