"""The plugin contract: a broker, its roles, and what each call returns and raises.

`docs/plugin_contract.md` is the page to read first. A plugin registers a `BrokerPlugin` (`hooks.py`): URL schemes and a
factory. The factory makes a `Broker` on the machine that will use it. A broker has up to four small roles. Its
`Capabilities` say which roles it has, how well each works, and within which limits. The suite `redelivery_conformance`
proves it.

Every call returns or raises within its stated time. `send` returns by its deadline, `collect` and `receive` within
their wait, and any other call within 30 seconds: the plugin gives its client these timeouts. A plugin may poll while it
waits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal, Self

from redelivery.codes import Code
from redelivery.contract.capabilities import FEATURES, Capabilities, Limits, Support
from redelivery.contract.letters import WHOLE, Letter, LetterBatch, Wanted, batches
from redelivery.contract.message import Batch, Message
from redelivery.contract.refs import check_ref
from redelivery.contract.spec import DeliverySpec, DeliveryStatus, Ref
from redelivery.errors import BrokerError, ConfigurationError, Fatal, LeaseLost, Unsupported

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
    "LetterBatch",
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
    "Wanted",
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
        duplicates: how many rows the broker recognised (by identity, else by id) and did not store again. Only brokers
            with `Capabilities.reports_duplicates` report it.
    """

    batch: int
    failures: Sequence[Failure] = ()
    error: BrokerError | None = None
    duplicates: int = 0


class Role(ABC):
    """A part of a broker that can be closed separately.

    Closing twice is allowed and does nothing; using a closed role is an error. Leases that a receiver holds continue
    until they end.
    """

    @abstractmethod
    def close(self) -> None:
        """Give back what the role holds. Never hangs: the client's own close timeout bounds it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Sender(Role):
    """Sends batches to the broker, and reports which are settled. Used by one thread at a time.

    A batch is settled exactly once, by its deadline. Rows whose result is still unknown then are `Ambiguous`.
    """

    def check(self, *, deadline: float) -> None:
        """Find out whether rows could be sent to the URL's own target: whether it exists, and this user may send to it.

        Called on the driver, before any row is sent. Must send nothing, and create nothing that `send` would not
        create. The default does nothing, because `Broker.sender` has already asked.

        Args:
            deadline: `time.monotonic()` seconds by which it must have returned.

        Raises:
            BrokerError: what every row would fail with. Retriable or Ambiguous where the answer is not known now, or
                where this user has no right to ask.
        """

    @abstractmethod
    def send(self, batch: Batch, *, deadline: float) -> None:
        """Hand a batch over; may block for back pressure, but not past the deadline.

        Args:
            batch: not to be altered; may be kept until it is settled.
            deadline: `time.monotonic()` seconds by which `collect` must have settled it.

        Raises:
            BrokerError: the batch was not handed over. Each of its rows failed with this error, and `collect` must not
                report it.
        """

    @abstractmethod
    def collect(self, wait: float) -> Sequence[Settled]:
        """Report which batches have been settled since the last call.

        Called about once a second while the sender is open, even with nothing in flight: send heartbeats here.

        Args:
            wait: how long to wait, at most, for the first batch, in seconds; 0 does not wait.

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
    """Outcome: move it to the dead letter queue as `letter` (the message with its error context), then forget it.

    Another letter with the same id must not suppress it: only the same `identity` means that it is already stored.
    `reason` and `description` are for brokers that store their own.
    """

    letter: Message
    reason: str = ""
    description: str = ""


@dataclass(frozen=True, slots=True)
class Release:
    """Outcome: not handled; return it to its queue. Does not count as an attempt, where the broker allows that."""


Outcome = Accept | Retry | Terminate | Release


@dataclass(slots=True, kw_only=True)  # not frozen: that would cost a microsecond per message
class Source:
    """Where a message was read, on brokers that number places. Core writes it into the context of the message's letter.

    Attributes:
        topic, partition, offset: the place.
        timestamp_type: which clock set the message's timestamp: CREATE_TIME or LOG_APPEND_TIME (the broker's).
    """

    topic: str
    partition: int | None = None
    offset: int | None = None
    timestamp_type: Literal["CREATE_TIME", "LOG_APPEND_TIME"] | None = None


@dataclass(slots=True, kw_only=True)  # not frozen: that would cost a microsecond per message
class Received:
    """A message under a lease.

    Attributes:
        message: what was sent.
        attempt: 1 for the first delivery; see `Capabilities.attempts` for how far to trust it.
        lease: the broker's own handle; opaque.
        expires: `time.monotonic()` seconds when the lease runs out unless extended; None: with the connection. The
            broker's clock starts at some moment between the request and the answer: count from the request, also for
            messages fetched ahead. An end reported too early costs a settlement; one reported too late, a duplicate.
        position: names the message for people and logs.
        lasting: the position is the same on each delivery of this message, and no other message ever has it.
        first_ms: when it was first delivered, milliseconds since the epoch; None where the broker does not report it.
        undecodable: which part of it the plugin could not decode; core dead-letters it unhandled, with this reason.
        source: where it was read; None on brokers that do not number places.
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
            BrokerError: nothing was leased. After one that passes (Retriable, Throttled, Ambiguous) it is called
                again, and connects again where its connection was lost.
        """

    @abstractmethod
    def settle(self, outcomes: Sequence[tuple[Received, Outcome]]) -> Sequence[LeaseLost | BrokerError | None]:
        """End leases; returns when the broker has confirmed it.

        Returns:
            One answer each, in order. None: done. LeaseLost: the lease had run out, was revoked, or was already
            settled, and nothing was changed. BrokerError: the broker refused this outcome.

        Raises:
            BrokerError: none was settled, or (Ambiguous) it is unknown which were.
            Unsupported: the capabilities exclude an outcome, or a delay exceeds `Limits.delay_max`; none was settled.
                Core requests no such outcome.
        """

    @abstractmethod
    def extend(self, leases: Sequence[Received], seconds: float) -> Sequence[Received | LeaseLost]:
        """Prolong leases to `seconds` from now; return one answer each, in order.

        Raises:
            BrokerError: none was prolonged, or it is unknown which were.
            Unsupported: leases cannot be prolonged here.
        """


# --- administering -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Difference:
    """One attribute of a native object that differs from the spec."""

    attribute: str
    wanted: str
    found: str

    def __str__(self) -> str:
        return f"{self.attribute} is {self.found!r}, not {self.wanted!r}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeObject:
    """A queue, topic, exchange or file that a spec needs.

    `action` is "create" (it is missing), "keep" (it is right) or "differs" (it exists with other attributes; redelivery
    alters those only on request).
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
        """An existing object, by its kind and name."""
        action: Literal["keep", "differs"] = "differs" if differences else "keep"
        return cls(kind=kind, name=name, action=action, attributes=attributes, differences=differences)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The native objects that a spec needs.

    Attributes:
        objects: what the spec needs at the broker.
        status: where the spec's first sink leads, if that is the native place (`DeliveryStatus.of`) or another that the
            admin knows. Empty where the spec has no sink; even then the objects may include a place for messages that
            the broker itself dead-letters.
        approximations: how the broker's behaviour differs from the spec, one sentence each.
        warnings: what an operator should look at, though nothing differs from the spec: letters that are deleted
            earlier than the messages of their source, dead-lettering that may lose messages, missing rights to look.
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
        """Raise Fatal, code CONFLICT, naming each attribute in which an existing object is not what it should be."""
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
        """Create what is missing. Idempotent; never alters existing objects.

        Raises:
            BrokerError: the broker refused, or an existing object differs (the text names each difference).
        """

    @abstractmethod
    def depth(self) -> int:
        """Count the messages waiting here: leased ones too where the broker counts them, dead letters never.

        Raises:
            BrokerError: the broker does not tell.
            Unsupported: the capability `depth` is `none`.
        """


# --- dead letters --------------------------------------------------------------------------------------------------


class DeadLetters(Role):
    """Reads and removes dead letters. Used by one thread at a time."""

    @abstractmethod
    def browse(self) -> Iterator[Letter]:
        """Return the letters, oldest first, and leave them in place. Ends with the last one that existed at the start.

        Uses bounded memory.

        A broker that cannot look without taking may hide these letters from others, until the next look or `close`.
        """

    def splits(self, wanted: Wanted) -> Sequence[str]:
        """Return the splits of the letters that exist now and that are wanted: ranges that readers may read apart.

        A split is opaque text, which any other role of the same place reads, in any process and at any later time.
        Together the splits have each letter once. Their bounds are fixed: a letter that comes later is in none of them,
        and a removed one is gone. Splits come oldest first, as far as the broker orders them.

        The default is the one split `WHOLE`; capability `splits` is then `none`, and one reader reads it at a time.

        Returns:
            The splits; none where no letter exists. More or fewer than `wanted.readers`.

        Raises:
            BrokerError: the place cannot be read.
            Unsupported: `wanted` has a cursor, and the capability `cursors` is `none`.
        """
        if wanted.after is not None or wanted.before is not None:
            raise Unsupported("letters here have no cursors (capability `cursors`)")
        return (WHOLE,)

    def read(self, split: str, wanted: Wanted) -> Iterator[LetterBatch]:  # noqa: ARG002
        """Return the letters of a split, oldest first, and leave them in place; may be repeated. Uses bounded memory.

        Args:
            split: as `splits` returned it for the same `wanted`.
            wanted: what is asked for.

        Raises:
            BrokerError: the place cannot be read.
            ConfigurationError: this is not a split of this place.
        """
        if split != WHOLE:
            raise ConfigurationError(f"{split!r} is not a split of this place")
        return batches(self.browse())

    def cursor(self, *, after: str | None = None, most: int | None = None) -> str:  # noqa: ARG002
        """Return the point behind the newest letter that exists now, as opaque text.

        Cursors are for streams of letters: `Wanted(after=, before=)` bounds what is read. Letters between two cursors
        are the same at each look, apart from those removed since.

        Args:
            after: an earlier cursor; None: before the oldest letter.
            most: return the point behind about so many letters after that cursor, if more exist.

        Raises:
            BrokerError: Fatal, code CONFLICT, where the place has been created again since the cursor was made.
            ConfigurationError: `after` is not a cursor of this place.
            Unsupported: the capability `cursors` is `none`.
        """
        raise Unsupported("letters here have no cursors (capability `cursors`)")

    @abstractmethod
    def remove(self, positions: Sequence[str]) -> int:
        """Remove these letters; returns how many existed."""

    @abstractmethod
    def purge(self) -> int:
        """Remove all letters; returns how many."""

    def move_back(self, *, wait: float) -> int:  # noqa: ARG002
        """Have the broker itself move all letters back to the source, unchanged; return how many, once it has finished.

        Args:
            wait: how long it may take, in seconds.

        Raises:
            Ambiguous: the move continues; the text says how far it has come.
            BrokerError: the move did not begin, or ended early; letters that were not moved are still in place.
            Unsupported: the capability `redrive` is `none`.
        """
        raise Unsupported("this broker does not move its letters back by itself (capability `redrive`)")


# --- the broker ----------------------------------------------------------------------------------------------------


class Broker(Role):
    """One destination, opened. Asking for a role that the plugin does not override raises `Unsupported`.

    One process may have several brokers of one destination. A forked child may inherit a broker, and then makes its own
    roles. A role is used only in the process that made it; in another process it does no harm.

    Attributes:
        capabilities: what it can do, here and now; may refine the plugin's static ones.
        name: the plugin's name, for messages.
        canonical_url: the destination in the plugin's own spelling, so that core recognises two spellings of one place;
            None: core compares URLs as written.
        hosts: names or addresses of the hosts that its clients connect to, as far as options name them; empty: no host.
            None: the plugin does not report them, so a deployment that restricts hosts refuses it.
        destination_name: the native name of the destination (topic, queue, exchange), for traces and metrics; the same
            for all its rows, and without a secret. None: it has none.
        insecure: properties of its connections that an operator may not allow, one clause each: credentials in plain
            text to a host that is not local, verification switched off. Core warns, or refuses.
    """

    name: str
    capabilities: Capabilities
    canonical_url: str | None = None
    hosts: Sequence[str] | None = None
    destination_name: str | None = None
    insecure: Sequence[str] = ()

    def is_at(self, other: Broker) -> bool:
        """Return whether another broker is opened at this very place."""
        return self.canonical_url is not None and self.canonical_url == other.canonical_url

    def close(self) -> None:
        """Give back what the broker itself holds, apart from its roles; the default does nothing."""

    def sender(self) -> Sender:
        """Return a new sender; the first I/O may happen here. Raises BrokerError, Unsupported."""
        raise self._without("sender role")

    def native_sink(self) -> str:
        """Return the URL of this destination's native dead letter queue: one that this plugin's sender can send to.

        A native place opened by this URL is its own native place: dead letters have no dead letters. The call may ask
        the broker. If it does not, `check` of a sender at this URL must find out whether the place exists.

        Raises:
            ConfigurationError: it has not been provisioned; the text holds the command that provisions it.
            BrokerError: the broker does not tell.
            Unsupported: the broker has no native dead letter place.
        """
        raise self._without("native dead letter place")

    def dead_letter_places(self) -> Sequence[str]:
        """Return the URLs of the places that `dead_letters` reads; the first one names them all.

        People and journals know the letters by that name; it is the same each time. Unlike `native_sink`, no writer
        needs these places: one that accepts no messages may be among them, and nothing has to be provisioned. The
        default is the native sink alone.

        Raises:
            BrokerError: as `native_sink`.
            ConfigurationError: as `native_sink`.
            Unsupported: as `native_sink`.
        """
        return (self.native_sink(),)

    def sibling(self, name: str) -> str:  # noqa: ARG002
        """Return the URL of another place at the same broker, by its native name (queue, topic). No I/O.

        Raises:
            Unsupported: a bare name means nothing to this broker.
        """
        raise self._without("other places that a bare name could name")

    def subscription(self, name: str) -> str:  # noqa: ARG002
        """Return the URL of a named subscription to this destination: it gets its own copy of each message.

        The URL opens as any other does. Its receiver reads the copy; its admin role creates the objects that the name
        needs, which receiving never does; its letters are its own or say for which subscription they failed. Receivers
        of one name share one copy, and their outcomes do not affect other names. The copy begins when the name is
        provisioned, or earlier. No I/O.

        Raises:
            Unsupported: the capability `subscriptions` is `none`, or this destination is one queue; the text says
                which.
            ConfigurationError: no subscription can have this name, or the URL is already that of a subscription.
        """
        raise Unsupported(
            f"{self.name}: a message here is for one receiver, so no name has its own copy (capability "
            "`subscriptions`); send to a destination for each"
        )

    def resolve(self, ref: Ref) -> str:
        """Return the URL of the place at the same broker that a reference names. No I/O: Kubernetes is not asked.

        The default refuses kinds that `Capabilities.ref_kinds` does not list, and treats the name as a sibling's. A
        plugin overrides it for kinds whose place a bare name cannot identify.

        Raises:
            ConfigurationError: another kind, group or namespace.
            Unsupported: this broker knows no `ref`.
        """
        check_ref(ref, self.capabilities, self.name)
        return self.sibling(ref.name)

    def receiver(self, *, lease: timedelta = timedelta(seconds=30)) -> Receiver:  # noqa: ARG002
        """Return a new receiver whose leases last `lease`. Raises BrokerError, Unsupported."""
        raise self._without("receiver role")

    def admin(self) -> Admin:
        """Return a new admin. Raises BrokerError, Unsupported."""
        raise self._without("admin role")

    def dead_letters(self, *, direct: bool = False) -> DeadLetters:  # noqa: ARG002
        """Return the dead letters of this destination, from its native place.

        With `direct` the URL itself names the place that letters were sent to (a sink given by URL). Without `direct`,
        a URL that `native_sink` returns for another destination names that place. Raises BrokerError, Unsupported.
        """
        raise self._without("dead letters role")

    def _without(self, role: str) -> Unsupported:
        return Unsupported(f"{self.name}: has no {role} (its capabilities say so)")


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerPlugin:
    """A plugin, as its hook returns it.

    Attributes:
        name: short, lower case; also the prefix of its client options (`<name>.`).
        schemes: URL schemes it opens; the first is the usual one.
        version: the distribution's version.
        capabilities: what its brokers can do, before any is connected.
        modes: capabilities that differ by the URL, an option or the broker's version: name of the mode ("share group",
            "on 4.3") -> its capabilities. For people: core reads those of the connected broker.
        connect: makes a `Broker` of a URL and its own options (keys without the prefix, secrets resolved). No I/O.
            Raises InvalidURL, UnknownOption, ConfigurationError.
        options: its client options, each with one line of help; core refuses all others.
        open_options: accept options beyond `options` (a client with hundreds of settings checks its own).
        contract: the contract version it was written for.
    """

    name: str
    schemes: tuple[str, ...]
    version: str
    capabilities: Capabilities
    connect: Callable[[str, Mapping[str, str]], Broker]
    modes: Mapping[str, Capabilities] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)
    open_options: bool = False
    contract: int = CONTRACT_VERSION
