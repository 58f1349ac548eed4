"""`Subject`: the broker under test, as the statements use it. Each test gets one.

It keeps the bookkeeping of sending and comparing out of the statements. It asserts only what sending relies on: a
batch is settled once, by its deadline.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TypeVar

import pytest

from redelivery.contract.broker import Broker, Capabilities, DeadLetters, Letter, Role, Sender, Settled, Support
from redelivery.contract.message import Batch, Message
from redelivery.contract.spec import DeliverySpec
from redelivery.errors import BrokerError, Permanent, Unattributed, Unsupported
from redelivery_conformance.harness import CannotShow, Harness, Outage, Place, Runtime, comparable

R = TypeVar("R", bound=Role)

#: How late a settlement may be reported, in seconds: a busy machine is not a broken broker.
GRACE = 1.0
#: See `Subject.brief`.
BRIEF = 1.5


class NotApplicable(Exception):
    """A statement does not apply; the capabilities give the reason."""


class Subject:
    """A broker under test at a fresh place. It closes everything that a test opens through it."""

    def __init__(self, harness: Harness, runtime: Runtime, place: Place) -> None:
        self.harness = harness
        self.runtime = runtime
        self.place = place
        self._stack = ExitStack()
        self._url = place.url
        self.broker = self.connect()
        self._feed = self.broker if place.feed is None else self.connect(place.feed)
        self._numbers = iter(range(1, 1_000_000))

    def close(self) -> None:
        """Close everything that was opened, last first."""
        self._stack.close()

    @property
    def capabilities(self) -> Capabilities:
        """Return the broker's capabilities without those that its stand-in lacks; it sends as its feed does."""
        found = self.broker.capabilities
        if self.place.feed is not None:
            assert not found.send, "a place with a feed cannot be sent to"
            found = replace(found, send=self._feed.capabilities.send)
        return replace(found, **dict.fromkeys(self.runtime.absent, Support.NONE))  # type: ignore[arg-type]

    # --- opening ---

    def connect(self, url: str | None = None, options: Mapping[str, str] | None = None) -> Broker:
        """Open a broker for the place, or for another URL, with the place's options and these."""
        both = {**self.place.options, **(options or {})}
        return self.keep(self.harness.connect(self._url if url is None else url, both))

    @contextmanager
    def connected(self, url: str, options: Mapping[str, str]) -> Iterator[Broker]:
        """Open a broker for core, with the place's options, and close it again: a `ConnectionFactory`."""
        with self.harness.connect(url, {**self.place.options, **options}) as broker:
            yield broker

    def expect_outages(self) -> None:
        """Reach the place through the URL that an outage can cut off, from now on."""
        self._url = self.place.outage_url
        self.broker = self.connect()
        self._feed = self.broker if self.place.feed is None else self._feed

    @contextmanager
    def outage(self, *kinds: Outage) -> Iterator[None]:
        """Start the first of these kinds of outage that the place can show. Raises CannotShow, NotApplicable."""
        with ExitStack() as stack:
            reason = CannotShow()
            for kind in kinds:
                try:
                    stack.enter_context(self.place.outage(kind))
                except CannotShow as error:
                    reason = error
                else:
                    break
            else:
                if self.capabilities.networked:
                    raise reason
                raise NotApplicable(f"a broker of one host has no peer that could be out so ({', '.join(kinds)})")
            yield

    def keep(self, role: R) -> R:
        """Close this role at the end of the test."""
        self._stack.callback(role.close)
        return role

    def sender(self, url: str | None = None) -> Sender:
        """Open a new sender."""
        return self.keep((self._feed if url is None else self.connect(url)).sender())

    def dead_letters(self, *, direct: bool) -> DeadLetters:
        """Open a new dead letters role."""
        return self.keep(self.broker.dead_letters(direct=direct))

    def provision(self) -> None:
        """Provision the place, if sending does not create it."""
        if self.capabilities.provision:
            with self.broker.admin() as admin:
                admin.provision(DeliverySpec())

    # --- sending ---

    def batch(self, messages: Sequence[Message], *, isolate: bool = False, ordered: bool = False) -> Batch:
        """Return a batch with its own number."""
        return Batch.of(messages, number=next(self._numbers), isolate=isolate, ordered=ordered)

    def deadline(self, seconds: float | None = None) -> float:
        """Return a deadline from now; the default is the place's patience."""
        return time.monotonic() + (self.place.patience if seconds is None else seconds)

    @property
    def brief(self) -> float:
        """Return a short time for batches that no broker answers, in seconds. A longer wait shows nothing more."""
        return min(self.place.patience, BRIEF)

    def settle(self, sender: Sender, *batches: Batch, deadline: float | None = None) -> dict[int, Settled]:
        """Send batches and collect until each is settled: exactly once, by the deadline, and no other batch."""
        deadline = self.deadline() if deadline is None else deadline
        settled: dict[int, Settled] = {}
        for batch in batches:
            self.hand_over(sender, batch, settled, deadline=deadline)
            self.look(sender, settled, *batches)
        return self.collect(sender, settled, *batches, deadline=deadline)

    @staticmethod
    def hand_over(sender: Sender, batch: Batch, settled: dict[int, Settled], *, deadline: float) -> None:
        """Send a batch. A batch that is refused as a whole counts as settled."""
        try:
            sender.send(batch, deadline=deadline)
        except BrokerError as error:
            settled[batch.number] = Settled(batch=batch.number, error=error)

    def collect(
        self, sender: Sender, settled: dict[int, Settled], *batches: Batch, deadline: float
    ) -> dict[int, Settled]:
        """Collect until each sent batch is settled: exactly once, by the deadline, and no other batch."""
        while len(settled) < len(batches):
            left = deadline - time.monotonic()
            self.look(sender, settled, *batches, wait=max(0.0, min(left, 0.1)))
            # Of a look that began in time, a busy machine may make a long one: only one that began late has to tell.
            late = left < -GRACE and len(settled) < len(batches)
            assert not late, f"{len(batches) - len(settled)} of {len(batches)} batches unsettled at the deadline"
        return settled

    def send(self, *messages: Message, isolate: bool = False, sender: Sender | None = None) -> Settled:
        """Send messages as one batch and return its settlement."""
        batch = self.batch(messages, isolate=isolate)
        if sender is not None:
            return self.settle(sender, batch)[batch.number]
        with self._feed.sender() as own:
            return self.settle(own, batch)[batch.number]

    def deliver(self, *messages: Message, url: str | None = None, options: Mapping[str, str] | None = None) -> None:
        """Send messages that must all be accepted."""
        with self.connect(url or self.place.feed, options) as broker, broker.sender() as sender:
            settled = self.send(*messages, sender=sender)
        assert settled.error is None, f"a good batch was refused: {settled.error!r}"
        assert not settled.failures, f"good rows were refused: {settled.failures!r}"

    @staticmethod
    def look(sender: Sender, settled: dict[int, Settled], *batches: Batch, wait: float = 0.0) -> None:
        """Collect once."""
        for each in sender.collect(wait):
            assert each.batch in {batch.number for batch in batches}, f"settled a batch never sent: {each.batch}"
            assert each.batch not in settled, f"batch {each.batch} was settled twice"
            settled[each.batch] = each

    # --- reading ---

    def values(self, destination: str | None = None) -> Counter[bytes | None]:
        """Count the stored values, as the independent reader sees them."""
        return Counter(message.value for message in self.place.stored(destination))

    def browse(self, *, direct: bool) -> list[Letter]:
        """Return the letters that the dead letters role shows."""
        with self.broker.dead_letters(direct=direct) as letters:
            return list(letters.browse())

    def returns(self, *messages: Message) -> None:
        """Assert that exactly these messages come back unchanged, from the independent reader and from browsing."""
        _same(self.place.stored(), messages, "the independent reader")
        if self.capabilities.browse:
            _same([letter.message for letter in self.browse(direct=True)], messages, "browsing")

    # --- features that some brokers lack ---

    def kept_or_refused(self, message: Message) -> None:
        """Assert that a message comes back unchanged, or is refused as Permanent while its neighbours are stored."""
        before, after = Message(value=b"before"), Message(value=b"after")
        settled = self.send(before, message, after, isolate=True)
        if settled.failures:
            self.refused(settled, 1)
            self.returns(before, after)
        else:
            assert settled.error is None
            self.returns(before, message, after)

    def refuses_alone(self, message: Message) -> None:
        """Assert that a message is refused as Permanent and its neighbours are stored."""
        settled = self.send(Message(value=b"before"), message, Message(value=b"after"), isolate=True)
        self.refused(settled, 1)
        assert self.values() == Counter([b"before", b"after"])

    @staticmethod
    def refused(settled: Settled, *indexes: int) -> None:
        """Assert that exactly these rows are refused as Permanent, each once."""
        assert settled.error is None, f"all rows failed: {settled.error!r}"
        assert sorted(each.index for each in settled.failures) == sorted(indexes), settled.failures
        for each in settled.failures:
            assert isinstance(each.error, Permanent), f"row {each.index}: {each.error!r} is not Permanent"

    @staticmethod
    def is_unsupported(ask: Callable[[], object]) -> None:
        """Assert that a call raises Unsupported with a text."""
        with pytest.raises(Unsupported, match=r"\w"):
            ask()

    def poison(self) -> Message:
        """Return a message that the broker always refuses."""
        message = self.place.poison(self.capabilities)
        if message is None:
            raise CannotShow("a message that this broker refuses: its harness knows none")
        return message

    def other_processes(self) -> None:
        """Continue only if other processes reach the broker."""
        if not self.runtime.across_processes:
            raise NotApplicable("this broker lives within one process")


def confirmed(batch: Batch, settled: Settled) -> list[Message]:
    """Return the rows of a batch that are stored according to its settlement."""
    if settled.error is not None:
        return []
    failed = {each.index for each in settled.failures}
    return [batch.row(index) for index in range(batch.length) if index not in failed]


def unattributed(settled: Settled) -> bool:
    """Return whether a batch failed as a whole: nothing is stored and the cause is not a known row."""
    return isinstance(settled.error, Unattributed) and not settled.failures


def has(capabilities: Capabilities, name: str) -> bool:
    """Return whether a capability is supported; `limits.<name>` asks for a limit."""
    if name.startswith("limits."):
        return getattr(capabilities.limits, name.removeprefix("limits.")) is not None
    return bool(getattr(capabilities, name))


def check_applies(item: pytest.Item, capabilities: Capabilities, absent: Mapping[str, str]) -> None:
    """Raise NotApplicable, naming the capability, if a statement is about another kind of broker."""
    for mark in item.iter_markers():
        lacking = [name for name in mark.args if name in absent] if mark.name in {"broker_has", "broker_lacks"} else []
        if lacking:
            raise NotApplicable(f"this stand-in lacks {lacking[0]}: {absent[lacking[0]]}")
        if mark.name == "broker_has":
            missing = [name for name in mark.args if not has(capabilities, name)]
            if missing:
                raise NotApplicable(f"capability {missing[0]} is none")
        elif mark.name == "broker_lacks":
            there = [name for name in mark.args if has(capabilities, name)]
            if there:
                raise NotApplicable(f"capability {there[0]} is {getattr(capabilities, there[0], 'there')}")


def _same(found: Iterable[Message], wanted: Iterable[Message], who: str) -> None:
    """Assert that both are the same, in any order. A missing id or timestamp may be replaced by the broker's own."""
    found, wanted = sorted(found, key=_order), sorted(wanted, key=_order)
    assert len(found) == len(wanted), f"{who} found {len(found)} of {len(wanted)} messages"
    for there, sent in zip(found, wanted, strict=True):
        own = {name: None for name in ("id", "timestamp_ms") if getattr(sent, name) is None}
        got, expected = replace(comparable(there), **own), comparable(sent)  # type: ignore[arg-type]
        assert got == expected, f"{who} found {_brief(got)} in place of {_brief(expected)}"


def _order(message: Message) -> tuple[bool, bytes, str]:
    return (message.value is not None, message.value or b"", message.id or "")


def _brief(message: Message) -> str:
    return f"{message!r:.2000}"
