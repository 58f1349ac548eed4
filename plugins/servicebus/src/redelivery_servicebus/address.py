"""The URL of a queue, a topic or a subscription. This file must not do I/O.

servicebus://<namespace>/<queue or topic>
servicebus://<namespace>/<topic>?subscription=<name>
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from redelivery.base.urls import redact, split_url, unknown
from redelivery.errors import ConfigurationError, InvalidURL, Unsupported

SCHEME: Final = "servicebus"
#: What is put behind a queue's name to name the queue that its dead letters are forwarded to.
DEAD_LETTERS: Final = "-dead-letters"
#: The sub-queue that every queue has; it can be received from, and not sent to.
SUB_QUEUE: Final = "/$DeadLetterQueue"
#: The longest name of a queue.
NAME_LENGTH: Final = 260
#: The longest name that a URL gives a subscription.
SUBSCRIPTION_LENGTH: Final = 255
#: Between the names of a topic and of its subscription, which cannot have it: together they name the queue of copies.
COPY: Final = "."

_NAME = re.compile(r"[A-Za-z0-9._-]+(?:/[A-Za-z0-9._-]+)*")
_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?(?::[0-9]{1,5})?")
#: Names that Service Bus can give a subscription, of which no two are one to it: it knows no case.
_NATIVE = re.compile(r"(?!sha256-)(?=.{1,50}$)[a-z0-9](?:[a-z0-9_-]*[a-z0-9])?(?<!-dead-letters)")
_SUBSCRIPTION: Final = "subscription"
_SESSIONS: Final = ("session", "session_id")
_EXAMPLE = "it is written 'servicebus://orders.servicebus.windows.net/incoming'"


def fault(name: str) -> str | None:
    """What is wrong with a queue's name; None where nothing is."""
    if not name:
        return "a queue's name is missing"
    if "/subscriptions/" in name.lower():
        return "a subscription is written '<topic>?subscription=<name>'"
    if "$" in name:
        return "a sub-queue cannot be named: name its queue, and ask for the dead letters"
    if len(name) > NAME_LENGTH:
        return f"a queue's name has {NAME_LENGTH} characters at most, and this one {len(name)}"
    if not _NAME.fullmatch(name):
        return "a queue's name is made of letters, digits, '.', '-', '_' and '/'"
    return None


@dataclass(frozen=True, slots=True)
class Address:
    """One queue of one namespace, or one topic.

    Attributes:
        namespace: host, and port where it is not the usual one.
        queue: what is sent to and received from; that may be a topic, which can only be sent to.
        topic: of a subscription: what its queue, which is then `queue`, gets copies of; "" of all else.
        name: of a subscription: as it was asked for.
    """

    namespace: str
    queue: str
    topic: str = ""
    name: str = ""

    @property
    def url(self) -> str:
        """The URL that names it, always in the same form."""
        if self.topic:
            return f"{SCHEME}://{self.namespace}/{quote(self.topic)}?{_SUBSCRIPTION}={quote(self.name, safe='')}"
        return f"{SCHEME}://{self.namespace}/{quote(self.queue)}"

    @property
    def host(self) -> str:
        """The host of the namespace, without a port."""
        return urlsplit(f"//{self.namespace}").hostname or self.namespace

    @property
    def is_dead_letters(self) -> bool:
        """Whether its name is that of a queue for dead letters."""
        return self.queue.lower().endswith(DEAD_LETTERS)

    @property
    def dead_letters(self) -> Address:
        """Where its dead letters are gathered: its own place, if it is one already."""
        return self if self.is_dead_letters else self.at(self.queue + DEAD_LETTERS)

    def at(self, queue: str) -> Address:
        """Another queue of the namespace."""
        return replace(self, queue=queue, topic="", name="")

    @property
    def native(self) -> str:
        """The name that Service Bus knows a subscription by: its own, or where that cannot be, a digest of it."""
        if _NATIVE.fullmatch(self.name):
            return self.name
        return f"sha256-{hashlib.sha256(self.name.encode()).hexdigest()[:40]}"

    def subscription(self, name: str) -> Address:
        """A subscription to this topic.

        Raises:
            Unsupported: this is a queue for dead letters.
            ConfigurationError: no subscription can have this name, or this is one already.
        """
        if self.topic:
            raise ConfigurationError(
                f"servicebus: {self.url} is the subscription {self.name!r} already: leave that out"
            )
        if self.is_dead_letters:
            text = f"servicebus: {self.url} is a queue, whose messages are for one receiver each: name a topic"
            raise Unsupported(text)
        if not name.isprintable() or not 0 < len(name) <= SUBSCRIPTION_LENGTH:
            text = f"servicebus: a subscription's name can be printed and has 1 to {SUBSCRIPTION_LENGTH} characters"
            raise ConfigurationError(f"{text}, not {name[:40]!r}")
        made = replace(self, topic=self.queue, name=name)
        queue = f"{self.queue}{COPY}{made.native}"
        wrong = fault(queue + DEAD_LETTERS)
        if wrong is not None:
            text = (
                f"servicebus: {self.queue!r} can have no subscription {name[:40]!r}: it would need the queue {queue!r}"
            )
            raise ConfigurationError(f"{text}, and one more for its dead letters: {wrong}")
        return replace(made, queue=queue)

    def sibling(self, queue: str) -> Address:
        """`at`, of a name that somebody wrote.

        Raises:
            ConfigurationError: no queue has this name.
        """
        wrong = fault(queue)
        if wrong is not None:
            raise ConfigurationError(f"servicebus: {queue!r} is no queue: {wrong}")
        return self.at(queue)

    @classmethod
    def parse(cls, url: str) -> Address:
        """Read a URL.

        Raises:
            InvalidURL: no namespace, no queue, a user or password, a subscription that cannot be.
            UnknownOption: a parameter.
        """
        parts = split_url(url)
        shown = redact(url)
        if parts.fragment or "@" in parts.netloc:
            text = f"servicebus: {shown!r} holds a fragment or a user; credentials are options; {_EXAMPLE}"
            raise InvalidURL(text)
        given = parse_qsl(parts.query, keep_blank_values=True)
        for name, _ in given:
            if name.lower() in _SESSIONS:
                raise InvalidURL(f"servicebus: {shown!r}: sessions are for later: name a queue without them")
            if name != _SUBSCRIPTION:
                raise unknown("URL parameter", name, (_SUBSCRIPTION,))
        if len(given) > 1:
            raise InvalidURL(f"servicebus: {shown!r} names more than one subscription")
        if not _HOST.fullmatch(parts.netloc):
            raise InvalidURL(f"servicebus: {shown!r} names no namespace; {_EXAMPLE}")
        queue = unquote(parts.path).strip("/")
        wrong = fault(queue)
        if wrong is not None:
            raise InvalidURL(f"servicebus: {shown!r}: {wrong}; {_EXAMPLE}")
        address = cls(parts.netloc.lower(), queue)
        try:
            return address.subscription(given[0][1]) if given else address
        except (ConfigurationError, Unsupported) as error:
            raise InvalidURL(str(error)) from None
