"""The URL of a queue, a topic or a subscription.

servicebus://<namespace>/<queue or topic>
servicebus://<namespace>/<queue>?sessions=true
servicebus://<namespace>/<topic>/subscriptions/<name>
servicebus://<namespace>/<topic>?subscription=<name>

The second is a queue that requires sessions: a row's key is its session id. The third is a subscription as it is at
Service Bus; the fourth is a queue that has a subscription's messages.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from redelivery.errors import ConfigurationError, InvalidURL, Unsupported
from redelivery.kit.address import redact, split_url, unknown
from redelivery.kit.names import DeadLetterNames

#: The kind of a queue in a `ref`: that of Azure's operator for Kubernetes.
KIND: Final = "NamespacesQueue"
API_GROUP: Final = "servicebus.azure.com"
SCHEME: Final = "servicebus"
#: The name of the queue that a queue's dead letters are forwarded to.
DEAD_LETTERS: Final = DeadLetterNames(ignores_case=True)
#: The sub-queue that every queue has. It can be received from, and not sent to.
SUB_QUEUE: Final = "/$DeadLetterQueue"
#: The longest name of a queue.
NAME_LENGTH: Final = 260
#: The longest name that a URL gives a subscription.
SUBSCRIPTION_LENGTH: Final = 255
#: Between the names of a topic and of its subscription, in the name of the queue that has the subscription's messages.
#: A subscription's native name does not contain it.
COPY: Final = "."

_NAME = re.compile(r"[A-Za-z0-9._-]+(?:/[A-Za-z0-9._-]+)*")
_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?(?::[0-9]{1,5})?")
#: Names that Service Bus can give a subscription. It ignores case, so these are in lower case.
_NATIVE = re.compile(r"(?!sha256-)(?=.{1,50}$)[a-z0-9](?:[a-z0-9_-]*[a-z0-9])?(?<!-dead-letters)")
_SUBSCRIPTION: Final = "subscription"
_PATH = re.compile(
    r"(?P<topic>[^$]+)/subscriptions/(?P<name>(?=.{1,50}$)[a-z0-9](?:[a-z0-9._-]*[a-z0-9])?)", re.IGNORECASE
)
_LETTERS: Final = DEAD_LETTERS.of("")
_SESSIONS: Final = "sessions"
_SESSION: Final = ("session", "session_id")
_EXAMPLE = "write it as in 'servicebus://orders.servicebus.windows.net/incoming'"


def why_invalid(name: str) -> str | None:
    """Return why no queue can have this name; None if one can."""
    if not name:
        return "the name of the queue is missing"
    if "/subscriptions/" in name.lower():
        return "a subscription cannot be sent to, and its name has up to 50 letters, digits, '.', '-' and '_'"
    if "$" in name:
        return "a sub-queue cannot be named: name its queue, and read its dead letters"
    if len(name) > NAME_LENGTH:
        return f"the name of a queue has at most {NAME_LENGTH} characters, and this one has {len(name)}"
    if not _NAME.fullmatch(name):
        return "the name of a queue consists of letters, digits, '.', '-', '_' and '/'"
    return None


@dataclass(frozen=True, slots=True)
class Address:
    """One queue or topic of a namespace, or one subscription.

    Attributes:
        namespace: host, and port if it is not the usual one.
        queue: the queue to send to and receive from. It may be a topic, which only accepts messages.
        topic: of a subscription: the topic whose messages are forwarded to `queue`; else "".
        name: of a subscription: its name in the URL.
        sessions: it requires sessions.
        owner: of a subscription that is itself received from, whose path is `queue`: its topic; else "".
    """

    namespace: str
    queue: str
    topic: str = ""
    name: str = ""
    owner: str = ""
    sessions: bool = False

    @property
    def url(self) -> str:
        """The URL that names it, always in the same form."""
        if self.topic:
            return f"{SCHEME}://{self.namespace}/{quote(self.topic)}?{_SUBSCRIPTION}={quote(self.name, safe='')}"
        return f"{SCHEME}://{self.namespace}/{quote(self.queue)}" + (f"?{_SESSIONS}=true" if self.sessions else "")

    @property
    def host(self) -> str:
        """The host of the namespace, without a port."""
        return urlsplit(f"//{self.namespace}").hostname or self.namespace

    @property
    def is_dead_letters(self) -> bool:
        """Whether its name is that of a dead letter queue."""
        return not self.owner and DEAD_LETTERS.is_dead_letters(self.queue)

    @property
    def dead_letters(self) -> Address:
        """The queue that its dead letters are forwarded to: the same one, if it is a dead letter queue."""
        if self.is_dead_letters:
            return self
        if not self.owner:
            return self.at(DEAD_LETTERS.of(self.queue))
        native = self.native  # with a dot, it could be the end of another topic's name and a subscription
        return self.at(DEAD_LETTERS.of(f"{self.owner}{COPY}{_digest(native.lower()) if COPY in native else native}"))

    def at(self, queue: str) -> Address:
        """Return another queue of the namespace."""
        return replace(self, queue=queue, topic="", name="", owner="", sessions=False)

    @property
    def native(self) -> str:
        """A subscription's name at Service Bus: the one in the URL, or a digest of it where that is not possible."""
        if self.owner:
            return self.queue.rpartition("/")[2]
        if _NATIVE.fullmatch(self.name):
            return self.name
        return _digest(self.name)

    def subscription(self, name: str) -> Address:
        """Return a subscription to this topic.

        Raises:
            Unsupported: this is a dead letter queue.
            ConfigurationError: no subscription can have this name, or this is a subscription already.
        """
        if self.topic or self.owner:
            its = self.name or self.native
            raise ConfigurationError(f"servicebus: {self.url} is already the subscription {its!r}: leave it out")
        if self.is_dead_letters:
            text = f"servicebus: {self.url} is a queue, each message of which goes to one receiver: name a topic"
            raise Unsupported(text)
        if not name.isprintable() or not 0 < len(name) <= SUBSCRIPTION_LENGTH:
            text = f"servicebus: the name of a subscription is printable and has 1 to {SUBSCRIPTION_LENGTH} characters"
            raise ConfigurationError(f"{text}, not {name[:40]!r}")
        made = replace(self, topic=self.queue, name=name)
        made = replace(made, queue=f"{self.queue}{COPY}{made.native}")
        why = why_invalid(DEAD_LETTERS.of(made.queue))
        if why is not None:
            text = f"servicebus: {self.queue!r} cannot have a subscription {name[:40]!r}"
            raise ConfigurationError(f"{text}: its queues would be named after {made.queue!r}: {why}")
        return made

    def sibling(self, queue: str) -> Address:
        """`at`, of a name that a user gave.

        Raises:
            ConfigurationError: no queue can have this name.
        """
        why = why_invalid(queue)
        if why is not None:
            raise ConfigurationError(f"servicebus: {queue!r} is not a valid queue: {why}")
        return self.at(queue)

    @classmethod
    def parse(cls, url: str) -> Address:
        """Read a URL.

        Raises:
            InvalidURL: it has no namespace or queue, has a user or password, or a subscription that is not possible.
            UnknownOption: a parameter.
        """
        parts = split_url(url)
        where = f"servicebus: {redact(url)!r}"
        if parts.fragment or "@" in parts.netloc:
            raise InvalidURL(f"{where} has a fragment or a user; credentials are options; {_EXAMPLE}")
        name, sessions = _parameters(where, parts.query)
        if not _HOST.fullmatch(parts.netloc):
            raise InvalidURL(f"{where} names no namespace; {_EXAMPLE}")
        queue = unquote(parts.path).strip("/")
        path = _PATH.fullmatch(queue)
        why = why_invalid(queue if path is None else f"{path['topic']}{COPY}{path['name']}{_LETTERS}")
        if why is not None:
            raise InvalidURL(f"{where}: {why}; {_EXAMPLE}")
        address = cls(parts.netloc.lower(), queue)
        if path is not None:
            address = replace(address, queue=f"{path['topic']}/subscriptions/{path['name']}", owner=path["topic"])
        if sessions and (address.owner or address.is_dead_letters):
            raise InvalidURL(f"{where}: sessions are those of a queue that is sent to")
        try:
            return replace(address, sessions=sessions) if name is None else address.subscription(name)
        except (ConfigurationError, Unsupported) as error:
            raise InvalidURL(str(error)) from None


def _digest(name: str) -> str:
    return f"sha256-{hashlib.sha256(name.encode()).hexdigest()[:40]}"


def _parameters(where: str, query: str) -> tuple[str | None, bool]:
    """Return the subscription that a URL names, and whether its queue requires sessions.

    Raises:
        InvalidURL: more than one parameter, or a value that is not possible.
        UnknownOption
    """
    given = parse_qsl(query, keep_blank_values=True)
    for name, value in given:
        if name.lower() in _SESSION:
            text = f"a single session cannot be named; '?{_SESSIONS}=true' writes to all of them"
            raise InvalidURL(f"{where}: {text}")
        if name not in {_SUBSCRIPTION, _SESSIONS}:
            raise unknown("URL parameter", name, (_SUBSCRIPTION, _SESSIONS))
        if name == _SESSIONS and value not in {"true", "false"}:
            raise InvalidURL(f"{where}: {_SESSIONS} is true or false, not {value[:20]!r}")
    if len(given) > 1:
        raise InvalidURL(f"{where} has more than one parameter")
    found = dict(given)
    return found.get(_SUBSCRIPTION), found.get(_SESSIONS) == "true"
