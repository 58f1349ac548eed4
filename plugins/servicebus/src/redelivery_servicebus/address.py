"""The URL of a queue: `servicebus://<namespace>/<queue>`. This file must not do I/O."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from redelivery.errors import ConfigurationError, InvalidURL
from redelivery.settings import redact, split_url, unknown

SCHEME: Final = "servicebus"
#: What is put behind a queue's name to name the queue that its dead letters are forwarded to.
DEAD_LETTERS: Final = "-dead-letters"
#: The sub-queue that every queue has; it can be received from, and not sent to.
SUB_QUEUE: Final = "/$DeadLetterQueue"
#: The longest name of a queue.
NAME_LENGTH: Final = 260

_NAME = re.compile(r"[A-Za-z0-9._-]+(?:/[A-Za-z0-9._-]+)*")
_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?(?::[0-9]{1,5})?")
_LATER: Final = {
    "topic": "topics and subscriptions",
    "subscription": "topics and subscriptions",
    "session": "sessions",
    "session_id": "sessions",
}
_EXAMPLE = "it is written 'servicebus://orders.servicebus.windows.net/incoming'"


def fault(name: str) -> str | None:
    """What is wrong with a queue's name; None where nothing is."""
    if not name:
        return "a queue's name is missing"
    if "/subscriptions/" in name.lower():
        return "topics and subscriptions are for later: name a queue"
    if "$" in name:
        return "a sub-queue cannot be named: name its queue, and ask for the dead letters"
    if len(name) > NAME_LENGTH:
        return f"a queue's name has {NAME_LENGTH} characters at most, and this one {len(name)}"
    if not _NAME.fullmatch(name):
        return "a queue's name is made of letters, digits, '.', '-', '_' and '/'"
    return None


@dataclass(frozen=True, slots=True)
class Address:
    """One queue of one namespace."""

    namespace: str
    queue: str

    @property
    def url(self) -> str:
        """The URL that names it, always in the same form."""
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
        return replace(self, queue=queue)

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
            InvalidURL: no namespace, no queue, a user or password.
            UnknownOption: a parameter.
        """
        parts = split_url(url)
        shown = redact(url)
        if parts.fragment or "@" in parts.netloc:
            text = f"servicebus: {shown!r} holds a fragment or a user; credentials are options; {_EXAMPLE}"
            raise InvalidURL(text)
        for name, _ in parse_qsl(parts.query, keep_blank_values=True):
            if name.lower() in _LATER:
                raise InvalidURL(f"servicebus: {shown!r}: {_LATER[name.lower()]} are for later: name a queue")
            raise unknown("URL parameter", name, ())
        if not _HOST.fullmatch(parts.netloc):
            raise InvalidURL(f"servicebus: {shown!r} names no namespace; {_EXAMPLE}")
        queue = unquote(parts.path).strip("/")
        wrong = fault(queue)
        if wrong is not None:
            raise InvalidURL(f"servicebus: {shown!r}: {wrong}; {_EXAMPLE}")
        return cls(parts.netloc.lower(), queue)
