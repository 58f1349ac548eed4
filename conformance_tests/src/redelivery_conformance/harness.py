"""How a plugin gives its broker to the suite: `Harness`, `Runtime`, `Place`. The one file that a plugin author reads.

A harness knows how its broker is had on this machine; a runtime is one such broker, running; a place is a fresh
destination of it, for one test. A plugin registers its harness by an entry point in the group `redelivery_testing`.

This file must not know any broker, nor import the suite: a harness is also of use to benchmarks and examples.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cached_property
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar, Final, Literal, Self, TypeAlias

from redelivery.contract.broker import Broker, BrokerPlugin, Capabilities
from redelivery.contract.message import Message
from redelivery.registry import connect, installed, open_broker

#: Entry point group of harnesses; each entry point is a `Harness` subclass without arguments.
GROUP: Final = "redelivery_testing"

#: What a broker under test can be, in the order in which it is looked for.
RuntimeKind: TypeAlias = Literal["url", "container", "process", "embedded"]
RUNTIME_KINDS: Final[tuple[RuntimeKind, ...]] = ("url", "container", "process", "embedded")

#: How a broker can be out; `Place.outage` says what each means.
Outage: TypeAlias = Literal["refused", "silent", "reset"]

#: The names by which the suite subscribes to what `Place.for_several` gives.
SUBSCRIBERS: Final = ("billing", "audit", "mistyped")

#: A limit above this is not tried out: the suite stays fast.
TRIED_BYTES: Final = 32 << 20


class NotHere(Exception):
    """This machine has no such broker; the text says what to install or to set."""


class CannotShow(Exception):
    """This runtime cannot show what a statement asks for; the text says what could."""


class Place(ABC):
    """A fresh, empty destination for one test, and what can be done to it behind the plugin's back.

    It takes rows as it is: what must exist before a row can be sent is made by the place itself, when it is made. What
    dead-lettering needs besides is made by the statements that need it, by the plugin's admin role, where it has one;
    a place may have it already. Other targets (`destination`) take rows too, and are not provisioned.

    Attributes:
        url: names it.
        options: the client options to open it with, with their prefix.
        patience: seconds that a healthy broker needs at most for a batch; also what deadlines are made of. The outage
            statement takes twice as long, so it sets the suite's pace.
        many: rows of a large batch; fewer only where the broker takes them one by one, and slowly.
        lease: the shortest lease worth waiting for, in seconds; longer only where the broker has none so short.
    """

    url: str
    options: Mapping[str, str] = MappingProxyType({})
    patience: float = 10.0
    many: int = 10_000
    lease: float = 0.5

    @abstractmethod
    def stored(self, destination: str | None = None) -> Sequence[Message]:
        """What truly lies at the URL's own target, or at a row's `destination`, in order of arrival; left there.

        Read by other means than the plugin's code: its own reader, the broker's own tools, another client.
        """

    @abstractmethod
    def unreachable(self) -> str:
        """A URL that opens, but behind which there is no broker (a closed port, a missing folder)."""

    def snapshot(self) -> object:
        """A picture of all that is at this place: two are equal if and only if nothing was changed in between."""
        return list(self.stored())

    def destination(self, label: str) -> str:
        """Name of another target that rows may go to, not provisioned; it is made if it must be there before."""
        return label

    def for_several(self) -> str:
        """URL of a destination of which named subscriptions get copies; it is made if it must be there before."""
        return self.url

    def poison(self, capabilities: Capabilities) -> Message | None:
        """A message that this broker refuses for good, by itself. None: it takes every message."""
        limits = capabilities.limits
        if capabilities.headers and limits.header_count is not None:
            return Message(value=b"poison", headers=tuple((f"h{at}", b"") for at in range(limits.header_count + 1)))
        if limits.message_bytes is not None and limits.message_bytes <= TRIED_BYTES:
            return Message(value=bytes(limits.message_bytes + 1))
        nowhere = self.impossible_destination() if capabilities.destinations else "nowhere"
        if nowhere is not None:
            return Message(value=b"poison", destination=nowhere)
        if capabilities.ids and limits.id_bytes is not None:
            return Message(value=b"poison", id="x" * (limits.id_bytes + 1))
        return None

    def impossible_destination(self) -> str | None:
        """A row's destination that cannot be, nor be made. None: there is none."""
        return ""

    def secret_url(self, secret: str) -> str:
        """A URL of this scheme that holds a password, and behind which nothing answers."""
        scheme = self.url.partition(":")[0]
        return f"{scheme}://someone:{secret}@localhost:1/place"

    def logins(self, secret: str) -> Iterable[Mapping[str, str]]:  # noqa: ARG002
        """Each way to log in, as client options for this place, the secret being this one: wrong, but really used.

        A secret option alone is tried by itself: here is what takes several options together, or what holds a secret
        within more.
        """
        return ()

    def wrong_login(self) -> Mapping[str, str] | None:
        """Options that this broker refuses as a wrong login, besides `options`. None: it takes any, or has none."""
        return None

    @property
    def outage_url(self) -> str:
        """URL of this place by a way that `outage` can cut, as through a `proxy.Proxy`. By default it is `url`."""
        return self.url

    def outage(self, kind: Outage = "refused") -> AbstractContextManager[None]:
        """While entered, the broker is out for whoever came by `outage_url`. The kinds are not equal.

        A plugin that is right in one may lose or double rows in another, so a broker with a network shows them all.

        Args:
            kind: "refused": connections have ended and new ones are refused, as where a broker is stopped; a file is
                locked or gone. Clients learn it at once, and nothing that is sent arrives.
                "silent": connections stay and nothing is answered, as where a process is frozen (SIGSTOP), a container
                paused or a cable cut. What is sent may arrive all the same; nothing but a deadline ends the wait.
                "reset": every connection is cut once, on entering; new ones are taken at once. What is leased for as
                long as a connection is lost, and a client that reconnects by itself hides that. It may be entered
                within "silent": answers that were held back are lost then.

        Raises:
            CannotShow: this place has no such outage. A broker of one host (`Capabilities.networked` is False) has no
                peer, so the statement does not apply there.
        """
        raise CannotShow(f"an outage, {kind}: its harness has no `outage`")

    def vanish(self) -> None:
        """Remove the URL's own target, with what lies there; it returns when that is gone. Raises CannotShow."""
        raise CannotShow("a target that disappears: its harness has no `vanish`")

    def alter(self) -> None:
        """Change a provisioned native object so that it differs from what a spec wants. Raises CannotShow."""
        raise CannotShow("drift: its harness has no `alter`")

    def expiring(self, seconds: float) -> Mapping[str, str]:  # noqa: ARG002
        """Make what is sent to this place expire after so many seconds. Raises CannotShow.

        It runs after provisioning and before anything is sent, so what provisioning made may be altered or made again.

        Returns:
            Client options to open the place with, besides `options`.
        """
        raise CannotShow("expiry: its harness has no `expiring`")

    def limiting(self, deliveries: int) -> Mapping[str, str]:  # noqa: ARG002
        """Make the broker itself dead-letter what it has delivered so often. Raises CannotShow.

        It runs after provisioning and before anything is sent, so what provisioning made may be altered or made again.

        Returns:
            Client options to open the place with, besides `options`.
        """
        raise CannotShow("a native limit of deliveries: its harness has no `limiting`")

    def forgetting(self, seconds: float) -> Mapping[str, str]:  # noqa: ARG002
        """Client options under which letters that a killed process looked at are there again after so many seconds."""
        return {}

    def damage(self) -> None:
        """Put a message there that the plugin cannot decode. Raises CannotShow."""
        raise CannotShow("a message that cannot be decoded: its harness has no `damage`")

    def close(self) -> None:  # noqa: B027 - nothing to do is a common case
        """Remove what the test left behind."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Runtime(ABC):
    """A broker that runs for as long as the tests do.

    Attributes:
        kind: what it is; the report says so.
        description: one line: product, version, where.
        cannot_show: what this kind of runtime cannot show, for the report.
        gaps: what a stand-in does otherwise than the product it stands for: a statement's name without its `test_`,
            or a pattern of names, and the reason. Such a statement is run and must fail: no gap outlives its cause.
        absent: capabilities that a stand-in lacks as a whole, though the product has them, and the reason: what is
            stated of them does not apply to it. Without `provision` its places are made provisioned.
        across_processes: other processes of this host reach it too.
    """

    kind: RuntimeKind
    description: str
    cannot_show: Sequence[str] = ()
    gaps: Mapping[str, str] = MappingProxyType({})
    absent: Mapping[str, str] = MappingProxyType({})
    across_processes: bool = True

    @abstractmethod
    def place(self) -> Place:
        """A fresh place; nothing else uses it."""

    def fresh_name(self, stem: str) -> str:
        """Return a name that no other place has, in this run or another: `<stem>-<8 hex digits>-<number>`."""
        return f"{stem}-{next(self._endings)}"

    @cached_property
    def _endings(self) -> Iterator[str]:
        run = secrets.token_hex(4)
        return (f"{run}-{number}" for number in count(1))

    def close(self) -> None:  # noqa: B027 - nothing to do is a common case
        """Stop it and give back what it holds."""


class Harness(ABC):
    """How one plugin's broker is had for a test. Made without arguments and without I/O.

    Attributes:
        name: the plugin's name.
    """

    name: ClassVar[str]

    def starts(self) -> Mapping[RuntimeKind, Callable[[Path], Runtime]]:
        """How it is started here, by kind. Each takes a scratch folder and raises NotHere with what to install."""
        return {}

    def at(self, url: str, options: Mapping[str, str], scratch: Path) -> Runtime:  # noqa: ARG002
        """The broker that an explicit URL names; its places lie beside that URL's target. Raises NotHere."""
        raise NotHere(f"{self.name}: its harness takes no URL")

    def plugin(self) -> BrokerPlugin:
        """The plugin under test."""
        return installed().plugins[self.name]

    def connect(self, url: str, options: Mapping[str, str]) -> Broker:
        """Open a URL as `redelivery.registry.connect` does."""
        return connect(url, options)


class Unregistered(Harness):
    """A harness that brings its plugin along, for one that is not installed as a distribution."""

    def __init__(self, plugin: BrokerPlugin) -> None:
        self._plugin = plugin

    def plugin(self) -> BrokerPlugin:
        return self._plugin

    def connect(self, url: str, options: Mapping[str, str]) -> Broker:
        return open_broker(self._plugin, url, options)


def start(
    harness: Harness, url: str | None, options: Mapping[str, str], scratch: Path, kind: RuntimeKind | None = None
) -> Runtime:
    """The first runtime that is available: the URL if one is given; else container, process, embedded stand-in.

    With a `kind`, that one or none.

    Raises:
        NotHere: none; says for each kind why.
    """
    if url is not None:
        return harness.at(url, options, scratch)
    starts = harness.starts()
    reasons = []
    for each in RUNTIME_KINDS if kind is None else (kind,):
        if each in starts:
            try:
                return starts[each](scratch)
            except NotHere as error:
                reasons.append(f"{each}: {error}")
    raise NotHere(f"no {harness.name} to test with; {'; '.join(reasons) or 'its harness starts none'}, or --broker-url")


def comparable(message: Message) -> Message:
    """What must come back of a message: all but where it was sent to and the broker's own columns."""
    return replace(message, destination=None, extra={})
