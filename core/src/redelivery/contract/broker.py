"""The plugin contract: a broker, its roles, and what each call returns and raises.

`docs/plugin_contract.md` is the page to read first. A plugin registers a `BrokerPlugin` (`hooks.py`): URL schemes and a
factory. The factory makes a `Broker` on the machine that will use it. A broker gives up to four small roles and says by
`Capabilities` which of them, how well, and within which limits. The suite `redelivery_conformance` proves it.

Every call returns or raises within its stated time: `send` by its deadline, `collect` and `receive` by their wait, any
other within 30 seconds, by timeouts that the plugin gives its client. Waiting so long, by polling too, is no sleep.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal, Self

from redelivery.codes import Code
from redelivery.contract.capabilities import FEATURES, Capabilities, Limits, Support
from redelivery.contract.context import ErrorContext, moment_ms, sound
from redelivery.contract.message import Batch, Message
from redelivery.contract.refs import check_ref
from redelivery.contract.spec import DeliverySpec, DeliveryStatus, Ref
from redelivery.errors import BrokerError, Fatal, LeaseLost, Unsupported

__all__ = [
    "CONTRACT_VERSION",
    "FEATURES",
    "Accept",
    "Admin",
    "Broker",
    "BrokerPlugin",
    "Capabilities",
    "DeadLetters",
    "Difference",
    "Failure",
    "Letter",
    "Limits",
    "NativeObject",
    "Outcome",
    "Plan",
    "Received",
    "Receiver",
    "Release",
    "Retry",
    "Role",
    "Sender",
    "Settled",
    "Source",
    "Support",
    "Terminate",
]

#: Checked when a plugin is loaded: a plugin written for another contract is reported and left out.
CONTRACT_VERSION = 1


# --- sending -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Failure:
    """Row `index` of a batch failed with `error`."""

    index: int
    error: BrokerError


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """A batch is settled: every row not named here is stored at the broker.

    Attributes:
        batch: `Batch.number`.
        failures: the rows that failed, each index once at most.
        error: where not None, every row *not* in `failures` failed with it (a lost connection).
        duplicates: how many rows the broker recognised (by identity, else id) and did not store again, where it
            tells (`Capabilities.reports_duplicates`).
    """

    batch: int
    failures: Sequence[Failure] = ()
    error: BrokerError | None = None
    duplicates: int = 0


class Role(ABC):
    """A part of a broker that can be closed by itself.

    Closing twice is allowed and does nothing; using a closed role is an error. What a receiver had leased stays leased
    until its leases end.
    """

    @abstractmethod
    def close(self) -> None:
        """Give back what the role holds. Never hangs: bounded by the client's own close timeout."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Sender(Role):
    """Leases batches to the broker, and tells which are settled. Used by one thread at a time.

    A batch handed over is settled exactly once, by its deadline; what is unknown then is `Ambiguous`.
    """

    def check(self, *, deadline: float) -> None:
        """Find out whether rows could be sent to the URL's own target: is it there, and may this user send to it?

        Called on the driver, before any row is sent. Must send nothing, and make nothing that `send` would not make.
        By default there is nothing to ask, because `Broker.sender` has asked.

        Args:
            deadline: `time.monotonic()` seconds by which it must have returned.

        Raises:
            BrokerError: what every row would fail with. Retriable or Ambiguous where that is not known now, or where
                this user has no right to look.
        """

    @abstractmethod
    def send(self, batch: Batch, *, deadline: float) -> None:
        """Hand a batch over; may block for back pressure, but not past the deadline.

        Args:
            batch: not to be altered; may be kept until it is settled.
            deadline: `time.monotonic()` seconds by which `collect` must have settled it.

        Raises:
            BrokerError: the batch was not handed over; every row of it failed with this error, and `collect`
                must not mention it.
        """

    @abstractmethod
    def collect(self, wait: float) -> Sequence[Settled]:
        """Tell which batches have been settled since the last call.

        Called about once a second while the sender is open, with nothing in flight too: the place for heartbeats.

        Args:
            wait: how long to wait, at most, for the first of them, in seconds; 0 only looks.

        Returns:
            The settled batches, possibly none. With nothing in flight it returns at once.
        """


# --- receiving -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Accept:
    """Outcome: handled; the broker may forget the message."""


@dataclass(frozen=True, slots=True)
class Retry:
    """Outcome: give it again, not before `delay`."""

    delay: timedelta = timedelta(0)


@dataclass(frozen=True, slots=True)
class Terminate:
    """Outcome: move it to the dead letter place as `letter` (the message with its error context), then forget it.

    Another letter of its id must not swallow it: only its `identity` says that it is there already.
    `reason` and `description` are for brokers that keep their own.
    """

    letter: Message
    reason: str = ""
    description: str = ""


@dataclass(frozen=True, slots=True)
class Release:
    """Outcome: not handled; back to its place. Does not count as an attempt, where the broker can leave it out."""


Outcome = Accept | Retry | Terminate | Release


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where a message was read, where the broker's places are numbered: the context of its letter says so.

    Attributes:
        topic, partition, offset: the place.
        timestamp_type: whose time the message's timestamp is: CREATE_TIME or LOG_APPEND_TIME (the broker's own).
    """

    topic: str
    partition: int | None = None
    offset: int | None = None
    timestamp_type: Literal["CREATE_TIME", "LOG_APPEND_TIME"] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """A message under a lease.

    Attributes:
        message: what was sent.
        attempt: 1 for the first delivery; see `Capabilities.attempts` for how far to trust it.
        lease: the broker's own handle; opaque.
        expires: `time.monotonic()` seconds when the lease runs out unless extended; None: with the connection. The
            broker's clock starts before its answer is here, at some moment after it was asked: count from that request,
            also for what was fetched ahead. An end that is told too early costs a settlement, one too late a double.
        position: names the message for people and logs.
        lasting: the position is the same each time that this message is given, and never another message's.
        first_ms: when it was first delivered, milliseconds since the epoch; None where the broker does not tell.
        undecodable: what of it the plugin could not decode; core dead-letters it unhandled, with this reason.
        source: where it was read; None where that has no numbers.
    """

    message: Message
    attempt: int
    lease: Any
    expires: float | None = None
    position: str = ""
    first_ms: int | None = None
    undecodable: str | None = None
    source: Source | None = None
    lasting: bool = False


class Receiver(Role):
    """Leases messages and settles them. Used by one thread at a time."""

    @abstractmethod
    def receive(self, max_messages: int, *, wait: float) -> Sequence[Received]:
        """Lease up to `max_messages`, waiting up to `wait` seconds for the first.

        Raises:
            BrokerError: nothing was leased.
        """

    @abstractmethod
    def settle(self, outcomes: Sequence[tuple[Received, Outcome]]) -> Sequence[LeaseLost | BrokerError | None]:
        """End leases; returns when the broker has confirmed it.

        Returns:
            One answer each, in order. None: done. LeaseLost: the lease had run out, was revoked, or was already
            settled, and nothing was changed. BrokerError: the broker refused this one.

        Raises:
            BrokerError: none was settled, or (Ambiguous) it is unknown which.
            Unsupported: an outcome is one that the capabilities deny, or a delay is over `Limits.delay_max`; none
                was settled. Core asks for no such thing.
        """

    @abstractmethod
    def extend(self, leases: Sequence[Received], seconds: float) -> Sequence[Received | LeaseLost]:
        """Prolong leases to `seconds` from now; one answer each, in order.

        Raises:
            BrokerError: none was prolonged, or it is unknown which.
            Unsupported: leases cannot be prolonged here.
        """


# --- administering -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Difference:
    """One attribute of a native object that is not as the spec wants it."""

    attribute: str
    wanted: str
    found: str

    def __str__(self) -> str:
        return f"{self.attribute} is {self.found!r}, not {self.wanted!r}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeObject:
    """A queue, topic, exchange or file that a spec needs.

    `action` is "create" (it is missing), "keep" (it is right) or "differs" (it exists with other attributes,
    which are never altered unless told to).
    """

    kind: str
    name: str
    action: Literal["create", "keep", "differs"]
    attributes: Mapping[str, str] = field(default_factory=dict)
    differences: Sequence[Difference] = ()

    @classmethod
    def compared(
        cls, kind: str, name: str, attributes: Mapping[str, str], differences: Sequence[Difference]
    ) -> NativeObject:
        """One that exists."""
        action: Literal["keep", "differs"] = "differs" if differences else "keep"
        return cls(kind=kind, name=name, action=action, attributes=attributes, differences=differences)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a spec means natively.

    Attributes:
        objects: what it needs at the broker.
        status: what its first sink is resolved to, where that is the native place (`DeliveryStatus.of`) or another
            that the admin knows. Empty where the spec has no sink, though a place for what the broker itself
            dead-letters may be among the objects.
        approximations: what of the spec is done otherwise than it says, a sentence each.
        warnings: what an operator should see to, though nothing differs from the spec: letters forgotten earlier
            than the messages of their source, dead-lettering that may lose, rights that were missing to look.
        sinks: URLs of those of the spec's sinks, other than `native`, that are among the objects.
    """

    objects: Sequence[NativeObject]
    status: DeliveryStatus
    approximations: Sequence[str] = ()
    warnings: Sequence[str] = ()
    sinks: Sequence[str] = ()

    @property
    def drift(self) -> bool:
        """Whether the broker differs from the spec in anything."""
        return any(item.action != "keep" for item in self.objects)

    def refuse_differences(self, where: str) -> None:
        """Raise Fatal, code DIFFERS, naming each attribute, where something exists otherwise than it should be."""
        found = [f"{item.name}: {each}" for item in self.objects for each in item.differences]
        if found:
            raise Fatal(f"{where} is not altered, though it differs: {'; '.join(found)}", code=Code.CONFLICT)


class Admin(Role):
    """Makes and checks the native objects of one destination."""

    @abstractmethod
    def plan(self, spec: DeliverySpec) -> Plan:
        """Compare what the spec needs with what exists. Reads only.

        Args:
            spec: its sinks are `native`, URLs and bare names: core has resolved refs.
        """

    @abstractmethod
    def provision(self, spec: DeliverySpec) -> DeliveryStatus:
        """Make what is missing. Idempotent; never alters what exists.

        Raises:
            BrokerError: refused, or something exists that differs (each difference named).
        """

    @abstractmethod
    def depth(self) -> int:
        """Messages waiting at this destination; leased ones included where that can be told, dead letters not."""


# --- dead letters --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """A dead letter as it lies in its place.

    Attributes:
        position: names it within its place, for `remove`; opaque text, never used again for another letter.
        message: as stored, its context headers included.
        context: what only the broker itself knows of why it is there; None where it says nothing. What is
            written in headers is read by core, whichever dialect wrote it. A letter that cannot be decoded is given as
            far as it can be read, with kind "invalid" and a reason here. What the broker gave up by itself has one of
            the kinds of `context.GIVEN_UP`: "delivery-limit" or "expired".
        dead_lettered_ms: when it came there, milliseconds since the epoch; None where unknown.
        signed: whether one of the reader's keys has signed it; None where the reader has none. Plugins leave it.
    """

    position: str
    message: Message
    context: ErrorContext | None = None
    dead_lettered_ms: int | None = None
    signed: bool | None = None

    def __post_init__(self) -> None:
        """Check what the broker tells: it may be somebody else's word. What nobody can show becomes unknown."""
        if self.context is not None:
            object.__setattr__(self, "context", sound(self.context))
        object.__setattr__(self, "dead_lettered_ms", moment_ms(self.dead_lettered_ms))


class DeadLetters(Role):
    """Reads and removes what lies in a dead letter place."""

    @abstractmethod
    def browse(self) -> Iterator[Letter]:
        """Oldest first, left in place, in bounded memory. Ends at what was there when it began.

        A broker that cannot look without taking may hide what it shows from others, until the next look or `close`.
        """

    @abstractmethod
    def remove(self, positions: Sequence[str]) -> int:
        """Remove these letters; returns how many existed."""

    @abstractmethod
    def purge(self) -> int:
        """Remove all letters; returns how many."""

    def move_back(self, *, wait: float) -> int:  # noqa: ARG002
        """Have the broker itself move all letters back to work, as they are; returns how many, when it is done.

        Args:
            wait: how long it may take, in seconds.

        Raises:
            Ambiguous: it goes on; the text says how far it is.
            BrokerError: it was not begun, or ended early; what was not moved is still there.
            Unsupported: the capability `redrive` is none.
        """
        raise Unsupported("this broker does not move its letters back by itself (capability `redrive`)")


# --- the broker ----------------------------------------------------------------------------------------------------


class Broker(Role):
    """One destination, opened. A role that is not overridden is not there, and asking for it raises `Unsupported`.

    One process may have several brokers of one destination. A broker may be inherited by a fork, and the child then
    makes roles of its own; a role is used in the process that made it, and harms nothing in another.

    Attributes:
        capabilities: what it can do, here and now; may refine the plugin's static ones.
        name: the plugin's name, for messages.
        canonical_url: the destination as the plugin itself writes it, so that two spellings of one place are
            recognised as such; None: URLs are compared as they are written.
        hosts: names or addresses of the hosts that its clients connect to, as far as options name them; empty: none.
            None: the plugin does not tell, so a deployment that restricts hosts refuses it.
        insecure: what of its connections a security-minded operator would not allow, a clause each: credentials over
            plain text to a host that is not local, verification that is switched off. Core warns, or refuses.
    """

    name: str
    capabilities: Capabilities
    canonical_url: str | None = None
    hosts: Sequence[str] | None = None
    insecure: Sequence[str] = ()

    def is_at(self, other: Broker) -> bool:
        """Whether another broker is opened at this very place."""
        return self.canonical_url is not None and self.canonical_url == other.canonical_url

    def close(self) -> None:
        """Give back what the broker itself holds, besides its roles; by default nothing."""

    def sender(self) -> Sender:
        """A new sender; the first I/O may happen here. Raises BrokerError, Unsupported."""
        raise self._without("sender role")

    def native_sink(self) -> str:
        """URL of this destination's native dead letter place: one that this plugin's sender can send to.

        A native place opened by this URL is its own native place: dead letters have no dead letters. May ask the
        broker; what it does not ask, the `check` of a sender at this URL must find out.

        Raises:
            ConfigurationError: it has not been provisioned; the text holds the command that does it.
            BrokerError, Unsupported
        """
        raise self._without("native dead letter place")

    def sibling(self, name: str) -> str:  # noqa: ARG002
        """URL of another place at the same broker, by its native name (queue, topic). No I/O. Raises Unsupported."""
        raise self._without("other places that a bare name could name")

    def subscription(self, name: str) -> str:  # noqa: ARG002
        """URL of a named subscription to this destination: its own place, with a copy of each message sent here.

        It is opened as any other URL is: its receiver takes from the copy, its admin role makes what the name needs,
        which receiving never does, and its letters are its own or say for whom they failed. Receivers of one name
        share one copy, and no outcome of theirs is felt by another name. The copy begins when the name is provisioned,
        or earlier. No I/O.

        Raises:
            Unsupported: the capability `subscriptions` is none, or this destination is one queue; the text says which.
            ConfigurationError: no subscription can have this name, or the URL is one's already.
        """
        raise Unsupported(
            f"{self.name}: a message here is for one receiver, so no name has its own copy (capability "
            "`subscriptions`); send to a destination for each"
        )

    def resolve(self, ref: Ref) -> str:
        """URL of the place at the same broker that a reference names. No I/O: Kubernetes is not asked.

        As it stands it refuses what `Capabilities.ref_kinds` does not name, and takes the name for a sibling's. A
        plugin overrides it for kinds whose place no bare name means.

        Raises:
            ConfigurationError: another kind, group or namespace.
            Unsupported
        """
        check_ref(ref, self.capabilities, self.name)
        return self.sibling(ref.name)

    def receiver(self, *, lease: timedelta = timedelta(seconds=30)) -> Receiver:  # noqa: ARG002
        """A new receiver whose leases last `lease`. Raises BrokerError, Unsupported."""
        raise self._without("receiver role")

    def admin(self) -> Admin:
        """A new admin. Raises BrokerError, Unsupported."""
        raise self._without("admin role")

    def dead_letters(self, *, direct: bool = False) -> DeadLetters:  # noqa: ARG002
        """The dead letters of this destination, from its native place.

        With `direct` the URL itself names the place that letters were sent to (a sink given by URL). Without it, a URL
        that is what `native_sink` gives for another is that very place.
        Raises BrokerError, Unsupported.
        """
        raise self._without("dead letters role")

    def _without(self, role: str) -> Unsupported:
        return Unsupported(f"{self.name}: has no {role} (its capabilities say so)")


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerPlugin:
    """What a plugin's hook returns.

    Attributes:
        name: short, lower case; also the prefix of its client options (`<name>.`).
        schemes: URL schemes it opens, the first being the one it is called by.
        version: the distribution's version.
        capabilities: what its brokers can do, before any is connected.
        connect: makes a `Broker` of a URL and its own options (keys without the prefix, secrets resolved). No I/O.
            Raises InvalidURL, UnknownOption, ConfigurationError.
        options: its client options, each with one line of help; anything else is refused by core.
        open_options: accept options beyond `options` (a client with hundreds of settings checks its own).
        contract: the contract version it was written for.
    """

    name: str
    schemes: tuple[str, ...]
    version: str
    capabilities: Capabilities
    connect: Callable[[str, Mapping[str, str]], Broker]
    options: Mapping[str, str] = field(default_factory=dict)
    open_options: bool = False
    contract: int = CONTRACT_VERSION
