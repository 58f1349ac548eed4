"""The classes by which a plugin gives its broker to the suite: `Harness`, `Runtime`, `Place`.

A plugin author needs to read this file only. A harness finds or starts its broker on this machine. A runtime is one
running broker. A place is a fresh destination for one test. A plugin registers its harness by an entry point in the
group `redelivery_testing`. Benchmarks and examples use harnesses too, so this file does not import the suite.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
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

#: Kinds of brokers under test, in the order in which they are tried.
RuntimeKind: TypeAlias = Literal["url", "container", "process", "embedded"]
RUNTIME_KINDS: Final[tuple[RuntimeKind, ...]] = ("url", "container", "process", "embedded")

#: Kinds of outages; `Place.outage` explains them.
Outage: TypeAlias = Literal["refused", "silent", "reset"]

#: Names of the suite's subscriptions to the destination from `Place.for_several`.
SUBSCRIBERS: Final = ("billing", "audit", "mistyped")

#: Larger limits are not tested, to keep the suite fast.
TRIED_BYTES: Final = 32 << 20


class NotHere(Exception):
    """The broker is not available on this machine; the text says what to install or to set."""


class CannotShow(Exception):
    """This runtime cannot show what a statement asks for; the text names a runtime that can."""


@dataclass(frozen=True, slots=True)
class Foreign:
    """A message of another application, as an independent client shows it.

    Attributes:
        headers: by name, each with its value as the broker types it: application properties, message attributes. The
            suite compares types too: `True` is not `1`, and 1 is not 1.0.
        rest: everything else that the application has set: body, id, properties. Whatever the broker itself adds or
            changes at each delivery (counters, times of arrival, a history of deaths) is left out. The suite compares
            it with its types as well.
    """

    headers: Mapping[str, object]
    rest: Mapping[str, object]


class Place(ABC):
    """A fresh, empty destination for one test. Its methods read and change it without the plugin.

    A new place accepts rows: it creates everything that must exist before a row can be sent. Statements about dead
    letters create the rest with the plugin's admin role, if it has one; a place may have created it already. Other
    targets (`destination`) accept rows too, and are not provisioned.

    Attributes:
        url: the URL of the place.
        feed: the URL that statements send to, where the place itself can only be received from and everything that is
            sent there arrives at it; None: the place's own. A redrive of its letters is sent there as well.
        options: the client options to open it with, including their prefix.
        patience: the longest time that a healthy broker needs for a batch, in seconds. Deadlines derive from it. The
            outage statement takes twice as long, so it dominates the suite's duration.
        many: rows of a large batch; fewer only if the broker takes them one by one, and slowly.
        lease: the shortest lease that tests wait for, in seconds; longer only if the broker's minimum is longer.
    """

    url: str
    feed: str | None = None
    options: Mapping[str, str] = MappingProxyType({})
    patience: float = 10.0
    many: int = 10_000
    lease: float = 0.5

    @abstractmethod
    def stored(self, destination: str | None = None) -> Sequence[Message]:
        """Return the messages stored at the URL's own target, or at a row's `destination`, in order of arrival.

        They stay there. Read with a separate reader, the broker's tools or another client, not with the plugin's code.
        """

    @abstractmethod
    def unreachable(self) -> str:
        """Return a valid URL without a broker behind it (a closed port, a missing folder)."""

    def snapshot(self) -> object:
        """Return a picture of everything at this place. Two are equal if and only if nothing has changed in between."""
        return list(self.stored())

    def destination(self, label: str) -> str:
        """Return the name of another target for rows, not provisioned. It is created if the broker needs that."""
        return label

    def for_several(self) -> str:
        """Return the URL of a destination with named subscriptions. It is created if the broker needs that."""
        return self.url

    def poison(self, capabilities: Capabilities) -> Message | None:
        """Return a message that this broker always refuses. None: it accepts every message."""
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
        """Return a destination for a row that cannot exist and cannot be created. None: every name is valid."""
        return ""

    def secret_url(self, secret: str) -> str:
        """Return a URL of this scheme that contains a password and where nothing answers."""
        scheme = self.url.partition(":")[0]
        return f"{scheme}://someone:{secret}@localhost:1/place"

    def logins(self, secret: str) -> Iterable[Mapping[str, str]]:  # noqa: ARG002
        """Return each way to log in to this place, as client options with this secret. It is wrong, but is really used.

        The suite tests single secret options itself. Return the ways that need several options together, and values
        that contain a secret among other text.
        """
        return ()

    def wrong_login(self) -> Mapping[str, str] | None:
        """Return options that, added to `options`, are a wrong login. None: the broker has no login, or accepts any."""
        return None

    @property
    def outage_url(self) -> str:
        """Return the URL that `outage` can cut off, as one through a `proxy.Proxy`. By default it is `url`."""
        return self.url

    def outage(self, kind: Outage = "refused") -> AbstractContextManager[None]:
        """Cut the broker off from clients of `outage_url` for the length of the `with` block.

        A plugin that is right in one kind may lose or duplicate rows in another. A broker with a network shows all.

        Args:
            kind: "refused": connections end and new ones are refused, as if the broker were stopped; a file is locked
                or gone. Clients notice at once, and nothing that they send arrives.
                "silent": connections stay open and nothing answers, as if a process were frozen (SIGSTOP), a container
                paused or a cable cut. Sent messages may still arrive; only a deadline ends the wait.
                "reset": every connection is cut once, on entering; new ones are accepted at once. Leases that last as
                long as the connection are lost, and a client that reconnects by itself hides that. It may be entered
                within "silent": the answers held back are then lost.

        Raises:
            CannotShow: this place has no such outage. The statement does not apply to a broker of one host
                (`Capabilities.networked` is False): it has no peer.
        """
        raise CannotShow(f"an outage, {kind}: its harness has no `outage`")

    def vanish(self) -> None:
        """Delete the URL's own target with its messages; return when it is gone. Raises CannotShow."""
        raise CannotShow("a target that disappears: its harness has no `vanish`")

    def alter(self) -> None:
        """Change a provisioned native object so that it differs from the spec. Raises CannotShow."""
        raise CannotShow("drift: its harness has no `alter`")

    def expiring(self, seconds: float) -> Mapping[str, str]:  # noqa: ARG002
        """Make messages sent to this place expire after this many seconds. Raises CannotShow.

        It runs after provisioning and before anything is sent, so it may change or replace the provisioned objects.

        Returns:
            Client options to open the place with, besides `options`.
        """
        raise CannotShow("expiry: its harness has no `expiring`")

    def limiting(self, deliveries: int) -> Mapping[str, str]:  # noqa: ARG002
        """Make the broker itself dead-letter messages after this many deliveries. Raises CannotShow.

        It runs after provisioning and before anything is sent, so it may change or replace the provisioned objects.

        Returns:
            Client options to open the place with, besides `options`.
        """
        raise CannotShow("a native limit of deliveries: its harness has no `limiting`")

    def limited(self) -> str | None:
        """Return the URL of a new target where the broker drops what was delivered too often, as others create it.

        None: this broker drops nothing for that unless its owner asks for it.
        """
        return None

    def forgetting(self, seconds: float) -> Mapping[str, str]:  # noqa: ARG002
        """Return client options under which letters browsed by a killed process reappear after this many seconds."""
        return {}

    def damage(self) -> None:
        """Store a message that the plugin cannot decode. Raises CannotShow."""
        raise CannotShow("a message that cannot be decoded: its harness has no `damage`")

    def put_foreign(self, *, dead: bool) -> Foreign:  # noqa: ARG002
        """Write one message that uses everything that this broker has, as another application does; return it.

        It has an id, if messages have ids here, and every property and every type of header that this plugin promises
        to keep. Write it with an independent client, not with the plugin's code. Nothing of it may be ours.

        Args:
            dead: into the native dead letter place, in a way in which other applications' letters come there: by the
                broker (a rejection, a limit) or by a client. Otherwise into the destination.

        Raises:
            CannotShow: no such client exists.
        """
        raise CannotShow("another application's message: its harness has no `put_foreign`")

    def foreign(self, *, dead: bool) -> Sequence[Foreign]:  # noqa: ARG002
        """Return the messages of the dead letter place, or of the destination, as `put_foreign` does. They stay.

        Read with an independent client. Raises CannotShow.
        """
        raise CannotShow("another application's message: its harness has no `foreign`")

    def close(self) -> None:  # noqa: B027 - nothing to do is a common case
        """Remove everything that the test left behind."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Runtime(ABC):
    """A broker that runs as long as the tests do.

    Attributes:
        kind: kind of the runtime, for the report.
        description: one line: product, version, location.
        cannot_show: features that this kind of runtime cannot show, for the report.
        gaps: where a stand-in differs from its product: the name of a statement without `test_`, or a pattern of names,
            and the reason. Such a statement runs and must fail, so no gap outlives its cause.
        absent: capabilities of the product that the stand-in lacks altogether, and the reason. Statements about them do
            not apply to it. Without `provision` its places are created provisioned.
        across_processes: whether other processes of this host reach it.
    """

    kind: RuntimeKind
    description: str
    cannot_show: Sequence[str] = ()
    gaps: Mapping[str, str] = MappingProxyType({})
    absent: Mapping[str, str] = MappingProxyType({})
    across_processes: bool = True

    @abstractmethod
    def place(self) -> Place:
        """Return a fresh place that nothing else uses."""

    def fresh_name(self, stem: str) -> str:
        """Return a name that no other place has, in any run: `<stem>-<8 hex digits>-<number>`."""
        return f"{stem}-{next(self._endings)}"

    @cached_property
    def _endings(self) -> Iterator[str]:
        run = secrets.token_hex(4)
        return (f"{run}-{number}" for number in count(1))

    def close(self) -> None:  # noqa: B027 - nothing to do is a common case
        """Stop the broker and release its resources."""


class Harness(ABC):
    """Finds or starts one plugin's broker for tests. Its constructor takes no arguments and does no I/O.

    Attributes:
        name: the plugin's name.
    """

    name: ClassVar[str]

    def starts(self) -> Mapping[RuntimeKind, Callable[[Path], Runtime]]:
        """Return a function per kind that starts the broker here in a scratch folder.

        Each raises NotHere, with a text that says what to install.
        """
        return {}

    def at(self, url: str, options: Mapping[str, str], scratch: Path) -> Runtime:  # noqa: ARG002
        """Return the broker of an explicit URL. Its places lie beside that URL's target. Raises NotHere."""
        raise NotHere(f"{self.name}: its harness takes no URL")

    def plugin(self) -> BrokerPlugin:
        """Return the plugin under test."""
        return installed().plugins[self.name]

    def connect(self, url: str, options: Mapping[str, str]) -> Broker:
        """Open a URL as `redelivery.registry.connect` does."""
        return connect(url, options)


class Unregistered(Harness):
    """A harness that carries its plugin, for a plugin that is not installed as a distribution."""

    def __init__(self, plugin: BrokerPlugin) -> None:
        self._plugin = plugin

    def plugin(self) -> BrokerPlugin:
        return self._plugin

    def connect(self, url: str, options: Mapping[str, str]) -> Broker:
        return open_broker(self._plugin, url, options)


def start(
    harness: Harness, url: str | None, options: Mapping[str, str], scratch: Path, kind: RuntimeKind | None = None
) -> Runtime:
    """Start the first available runtime: the URL if one is given; else container, process, embedded stand-in.

    With a `kind`, only that one is tried.

    Raises:
        NotHere: no runtime is available; the text gives the reason for each kind.
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
    """Return the parts of a message that must come back: all but its destination and the broker's own columns."""
    return replace(message, destination=None, extra={})
