"""The simulated broker: the suite's broker in memory (`redelivery_conformance.memory`) behind a network that fails.

The broker in memory keeps the contract; this module adds all that lies between it and a caller: requests that are
refused, answers that are late or never come, connections that break, messages that arrive after all, leases that are
revoked, letters that a look hides from others. It keeps the books that the invariants are checked against.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, ClassVar, Final

from redelivery.codes import Code
from redelivery.contract.broker import (
    Broker,
    Capabilities,
    Failure,
    Letter,
    Outcome,
    Received,
    Settled,
    Support,
    Terminate,
)
from redelivery.contract.message import Batch, Message
from redelivery.errors import Ambiguous, BrokerError, Fatal, LeaseLost, Permanent, Retriable, Throttled, Unattributed
from redelivery_conformance.memory import DEAD_LETTERS, FULL, MemoryBroker, MemoryDeadLetters
from redelivery_conformance.memory_receiver import MemoryReceiver
from redelivery_conformance.memory_sender import MemorySender
from redelivery_conformance.memory_store import State, Store
from simulation.scheduler import Process, Scheduler

HOST: Final = "sim"
#: What may happen to one row of a batch. "lost", "stored" and "late" are ambiguous: no answer comes.
ROW_FAULTS: Final = ("ok", "retriable", "throttled", "lost", "stored", "late")
#: What may happen to a whole request that sends. "silent": no answer comes until its deadline.
SEND_FAULTS: Final = ("ok", "refused", "down", "silent", "fatal")
#: What may happen to any other request. "unanswered": it was carried out, and "unheard": it was not.
CALL_FAULTS: Final = ("ok", "refused", "unheard", "unanswered")
#: Seconds that a broker that cannot look without taking hides a letter from others.
HIDDEN: Final = 30.0

PLAIN: Final = replace(FULL, deduplicate=Support.NONE, reports_duplicates=False, order=Support.NONE)


@dataclass(slots=True)
class Book:
    """The broker's account of one row, message or letter at one queue.

    Attributes:
        tried: how often it was handed over, attempts that only look for a culprit left out.
        failed: how often its sender got the answer that it failed.
        ambiguous: of those, how often the answer was that the outcome is unknown.
        confirmed: how often its sender got the answer that it is stored.
        arrived: copies that were stored.
        ids: ids of the copies.
        blamed: how often it failed because a row of its batch did.
        last_failure: when it last failed, seconds.
        early: a try that came before its time, for people.
        altered: what a copy had that the original has not, for people.
        misrecognised: it was taken for another one and not stored.
        searched: how often its batch was refused as a whole, because of one of its rows.
    """

    tried: int = 0
    failed: int = 0
    ambiguous: int = 0
    confirmed: int = 0
    blamed: int = 0
    arrived: list[Message] = field(default_factory=list)
    last_failure: float | None = None
    early: str = ""
    altered: str = ""
    misrecognised: bool = False
    searched: int = 0


#: The book of something that never came to a queue.
NOTHING: Final = Book()


@dataclass(slots=True)
class Network:
    """All queues of a run, and what goes wrong on the way to them.

    Attributes:
        scheduler: of the run.
        intensity: the chance that a request goes wrong.
        can: capabilities of a queue.
        named: returns which row, message or letter a stored message is.
        differs: returns how a copy at a queue differs from what was sent; an empty text where it does not.
        poison: what a queue never takes: "permanent" or "culprit", by queue and name.
        soonest: returns the earliest time of the next try of what has failed so often; None: not known.
        quiet: nothing goes wrong any more.
        books: by queue and name.
    """

    scheduler: Scheduler
    intensity: float
    named: Callable[[Message], str]
    differs: Callable[[str, str, Message], str] = lambda _queue, _name, _message: ""
    soonest: Callable[[str, Book], float | None] = lambda _queue, _book: None
    settled: Callable[[Process, Received, Outcome, LeaseLost | BrokerError | None], None] = lambda *_: None
    leased: Callable[[Process, Received], None] = lambda *_: None
    sent: Callable[[Process, str, str], None] = lambda *_: None
    told: Callable[[Process, str, str], None] = lambda *_: None
    asked_to_remove: Callable[[Process, Sequence[str]], None] = lambda *_: None
    looked: Callable[[Process, str], None] = lambda *_: None
    can: dict[str, Capabilities] = field(default_factory=dict)
    poison: dict[tuple[str, str], str] = field(default_factory=dict)
    hides: bool = False
    shown: int | None = None
    quiet: bool = False
    fatal: bool = False
    books: dict[tuple[str, str], Book] = field(default_factory=dict)
    down: dict[str, float] = field(default_factory=dict)
    arriving: list[tuple[float, str, Message, str]] = field(default_factory=list)
    store: Store = field(default_factory=Store)
    hidden: dict[tuple[str, int], tuple[object, float]] = field(default_factory=dict)
    roles: int = 0

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """Make the queues reachable."""
        Store.by_name[HOST] = self.store
        try:
            yield
        finally:
            del Store.by_name[HOST]

    @contextlib.contextmanager
    def connected(self, url: str, options: Mapping[str, str]) -> Iterator[Broker]:
        """A `ConnectionFactory` of the library."""
        self.call("connect", url.rpartition("/")[2])
        yield SimulatedBroker(url, options, self)

    def book(self, queue: str, name: str) -> Book:
        """Return the book of something at a queue."""
        found = self.books.get((queue, name))
        if found is None:
            found = self.books[queue, name] = Book()
        return found

    def call(self, what: str, queue: str) -> str:
        """Return the label of a call that begins now: here its process may be killed, and time passes."""
        label = f"{what} {queue}"
        self.scheduler.seam(label)
        slow = 0 if self.quiet else self.scheduler.choices.often("slow", 2, self.intensity / 2)
        if slow:
            self.scheduler.sleep((0.0, 0.3, 1.2)[slow])
        self.arrive()
        return label

    def trouble(self, what: str, queue: str, kinds: Sequence[str], share: float = 0.5) -> str:
        """Return what goes wrong with a request."""
        if self.quiet:
            return "ok"
        return kinds[self.scheduler.choices.often(f"{what} {queue}", len(kinds) - 1, self.intensity * share)]

    def arrive(self, *, all_: bool = False) -> None:
        """Store what was under way for long."""
        now = self.scheduler.now
        for each in [each for each in self.arriving if all_ or each[0] <= now]:
            self.arriving.remove(each)
            _, queue, message, wrong = each
            name = self.named(message)
            self.keep(queue, name, message, wrong)
            self.scheduler.reach("an attempt without an answer arrived late")
            self.scheduler.note(f"{name} arrives late at {queue}")

    def refused(self, queue: str, name: str, message: Message) -> str:
        """Return why a queue never takes a message in this form; an empty text: it takes it."""
        kind = self.poison.get((queue, name), "")
        return kind if kind and message.value == name.encode() else ""

    def keep(self, queue: str, name: str, message: Message, wrong: str) -> bool:
        """Store a message; return False where it was recognised."""
        book, has = self.book(queue, name), self.can[queue]
        kept = replace(message, destination=None, extra={})
        if has.deduplicate and not self.store.put(queue, kept):
            book.misrecognised |= not book.arrived
            return False
        if not has.deduplicate:
            self.store.add(queue, kept)
        book.arrived.append(message)
        book.altered = book.altered or wrong
        return True


def error(kind: type[BrokerError], text: str, code: Code = Code.UNKNOWN) -> BrokerError:
    """Return a broker's error."""
    return kind(text, code=code, native_code=kind.__name__)


@dataclass(slots=True)
class Flight:
    """A batch in flight: what is answered, and when; `names` of its rows."""

    settled: Settled
    at: float
    names: list[str]


class SimulatedSender(MemorySender):
    """Sends over the network."""

    broker: SimulatedBroker

    def __init__(self, broker: SimulatedBroker) -> None:
        super().__init__(broker)
        self.flights: list[Flight] = []

    def send(self, batch: Batch, *, deadline: float) -> None:
        net, queue = self.broker.network, self.broker.queue
        label = net.call("send", queue)
        clock, rows = net.scheduler, list(batch.rows())
        names = [net.named(message) for message in rows]
        label = f"{label}: {' '.join(names)}"
        for name in names:
            self._begin(queue, name)
        fault = net.trouble("send to", queue, SEND_FAULTS if net.fatal else SEND_FAULTS[:-1])
        if fault == "down":
            net.down[queue] = clock.now + (3.0, 15.0, 90.0)[clock.choices.below("down for", 3)]
        if fault in {"refused", "down", "fatal"} or (net.down.get(queue, 0.0) > clock.now and not net.quiet):
            for name in names:
                self._fail(queue, name, ambiguous=False)
            clock.note(f"{label}: {'no access' if fault == 'fatal' else 'refused'}")
            if fault == "fatal":
                raise error(Fatal, "no access", Code.NOT_AUTHORIZED)
            raise error(Retriable, f"{queue} is down", Code.CONNECTION_LOST)
        settled, said = self._stored(net, queue, batch, rows, names)
        latency = (0.0, 0.1, 0.7)[0 if net.quiet else clock.choices.often("latency", 2, 0.3)]
        if fault == "silent":
            settled = Settled(batch=batch.number, error=error(Ambiguous, "no answer", Code.DEADLINE_EXCEEDED))
            self.flights.append(Flight(settled, deadline, names))
        else:
            self.flights.append(Flight(settled, min(deadline, clock.now + latency), names))
        clock.note(f"{label}: {said}{', and no answer' if fault == 'silent' else ''}")

    def _begin(self, queue: str, name: str) -> None:
        net = self.broker.network
        book = net.book(queue, name)
        soonest = net.soonest(queue, book)
        if soonest is not None and net.scheduler.now < soonest - 0.002:
            book.early = book.early or f"{name} is sent {soonest - net.scheduler.now:.3f} s too early to {queue}"
        book.tried += 1
        net.sent(net.scheduler.process, queue, name)
        if book.ambiguous and book.arrived:
            net.scheduler.reach("what was stored without an answer is sent again")

    def _fail(self, queue: str, name: str, *, ambiguous: bool) -> None:
        net = self.broker.network
        book = net.book(queue, name)
        if book.ambiguous and not ambiguous:
            net.scheduler.reach("an ambiguous attempt is followed by a refusal")
        book.failed += 1
        book.ambiguous += ambiguous
        book.last_failure = net.scheduler.now

    def _stored(
        self, net: Network, queue: str, batch: Batch, rows: list[Message], names: list[str]
    ) -> tuple[Settled, str]:
        """Store what can be stored now; return the answer, and it for people."""
        kinds = [net.refused(queue, name, message) for name, message in zip(names, rows, strict=True)]
        if "culprit" in kinds and not batch.isolate:
            for name in names:
                net.book(queue, name).searched += 1
            net.scheduler.reach("a batch is refused as a whole, and its culprit is unknown")
            return Settled(batch=batch.number, error=error(Unattributed, "a row of the batch")), "refused as a whole"
        failures: list[Failure] = []
        said: list[str] = []
        duplicates = 0
        for index, (message, name, kind) in enumerate(zip(rows, names, kinds, strict=True)):
            fate = kind or net.trouble("a row at", queue, ROW_FAULTS, 1.0)
            if fate in {"ok", "stored"}:
                duplicates += not net.keep(queue, name, message, net.differs(queue, name, message))
            elif fate == "late":
                at = net.scheduler.now + (0.5, 5.0, 40.0)[net.scheduler.choices.below("late by", 3)]
                net.arriving.append((at, queue, message, net.differs(queue, name, message)))
            if fate != "ok":
                failures.append(Failure(index, _ROW_ERRORS[fate]()))
                said.append(f"{name} {fate}")
        if failures and len(failures) < len(rows) and queue.startswith("sink"):
            net.scheduler.reach("a sink fails in the middle of a batch")
        shown = duplicates if net.can[queue].reports_duplicates else 0
        return Settled(batch=batch.number, failures=failures, duplicates=shown), ", ".join(said) or "taken"

    def collect(self, wait: float) -> Sequence[Settled]:
        net, queue = self.broker.network, self.broker.queue
        if not self.flights:
            net.scheduler.switch()
            return []
        label = net.call("collect", queue)
        clock = net.scheduler
        if net.trouble("connection to", queue, ("ok", "cut"), 0.3) == "cut":
            return self._cut(label)
        first = min(flight.at for flight in self.flights)
        if first > clock.now and wait > 0:
            clock.sleep(min(wait, first - clock.now))
        due = [flight for flight in self.flights if flight.at <= clock.now]
        if len(due) > 1 and not net.quiet and clock.choices.happens("answers overtake", 0.3):
            clock.reach("answers overtake each other")
            due.reverse()
        self.flights = [flight for flight in self.flights if flight.at > clock.now]
        for flight in due:
            self._tell(queue, flight)
        if due:
            clock.note(f"{label}: {'; '.join(_said(flight) for flight in due)}")
        return [flight.settled for flight in due]

    def _cut(self, label: str) -> Sequence[Settled]:
        """Lose the connection: the outcome of all that is in flight is unknown."""
        net, queue = self.broker.network, self.broker.queue
        if len(self.flights) > 1:
            net.scheduler.reach("a connection is lost with several batches in flight")
        flights, self.flights = self.flights, []
        lost = error(Ambiguous, "the connection was lost", Code.CONNECTION_LOST)
        for flight in flights:
            flight.settled = Settled(batch=flight.settled.batch, error=lost)
            self._tell(queue, flight)
        net.scheduler.note(f"{label}: the connection is lost with {' '.join(n for f in flights for n in f.names)}")
        if net.scheduler.choices.happens("cut is raised", 0.5):
            raise lost
        return [flight.settled for flight in flights]

    def _tell(self, queue: str, flight: Flight) -> None:
        """Write down what the answer reports to the sender of a batch."""
        failures = {failure.index: failure.error for failure in flight.settled.failures}
        for index, name in enumerate(flight.names):
            told = failures.get(index, flight.settled.error)
            if told is None:
                self.broker.network.book(queue, name).confirmed += 1
                self.broker.network.told(self.broker.network.scheduler.process, queue, name)
            else:
                self._fail(queue, name, ambiguous=isinstance(told, Ambiguous))
                self.broker.network.book(queue, name).blamed += isinstance(told, Unattributed)

    def close(self) -> None:
        super().close()


def _said(flight: Flight) -> str:
    if flight.settled.error is not None:
        return f"{' '.join(flight.names)}: {flight.settled.error.kind}"
    failed = {failure.index: failure.error.kind for failure in flight.settled.failures}
    return ", ".join(f"{name} {failed.get(index, 'confirmed')}" for index, name in enumerate(flight.names))


_ROW_ERRORS: Final[Mapping[str, Callable[[], BrokerError]]] = {
    "retriable": lambda: error(Retriable, "try again"),
    "throttled": lambda: Throttled("slow down", native_code="Throttled", retry_after=2.0),
    "lost": lambda: error(Ambiguous, "no answer"),
    "stored": lambda: error(Ambiguous, "no answer"),
    "late": lambda: error(Ambiguous, "no answer"),
    "permanent": lambda: error(Permanent, "never", Code.INVALID_MESSAGE),
    "culprit": lambda: error(Permanent, "it is the culprit", Code.INVALID_MESSAGE),
}


class SimulatedReceiver(MemoryReceiver):
    """Leases and settles over the network."""

    broker: SimulatedBroker

    def receive(self, max_messages: int, *, wait: float) -> Sequence[Received]:
        net, queue = self.broker.network, self.broker.queue
        label = net.call("receive", queue)
        if net.trouble("receive from", queue, ("ok", "refused"), 0.1) == "refused":
            net.scheduler.note(f"{label}: refused")
            raise error(Retriable, "not now", Code.CONNECTION_LOST)
        taken = super().receive(max_messages, wait=0.0)
        if not taken and wait > 0:
            net.scheduler.wait(lambda: self._due() <= net.scheduler.now, min(wait, max(0.0, self._due_in())))
            taken = super().receive(max_messages, wait=0.0)
        for each in taken:
            net.leased(net.scheduler.process, each)
        if taken:
            net.scheduler.note(f"{label}: {' '.join(f'{net.named(r.message)}#{r.attempt}' for r in taken)}")
        return taken

    def _due(self) -> float:
        queue = self.broker.network.store.queue(self.broker.queue)
        return min((queue.state(position).visible for position in queue.messages), default=float("inf"))

    def _due_in(self) -> float:
        return self._due() - self.broker.network.scheduler.now

    def settle(self, outcomes: Sequence[tuple[Received, Outcome]]) -> Sequence[LeaseLost | BrokerError | None]:
        net, queue = self.broker.network, self.broker.queue
        if not outcomes:
            return []
        label = net.call("settle", queue)
        fault = net.trouble("settle at", queue, (*CALL_FAULTS, "revoked", "one refused"))
        said = ", ".join(f"{net.named(r.message)} {type(o).__name__.lower()}" for r, o in outcomes)
        if fault == "refused":
            net.scheduler.note(f"{label}: {said}: refused")
            raise error(Retriable, "not now")
        if fault == "unheard":
            net.scheduler.note(f"{label}: {said}: unheard")
            raise error(Ambiguous, "no answer")
        if fault == "revoked":
            self.revoke(outcomes[0][0])
        answers: list[LeaseLost | BrokerError | None] = []
        for index, (received, outcome) in enumerate(outcomes):
            if fault == "one refused" and not index:
                answers.append(error(Retriable, "not this one now"))
            else:
                answers += super().settle([(received, outcome)])
            if answers[-1] is None and isinstance(outcome, Terminate):
                net.book("work" + DEAD_LETTERS, net.named(received.message)).confirmed += 1
        for (received, outcome), answer in zip(outcomes, answers, strict=True):
            net.settled(net.scheduler.process, received, outcome, answer)
        told = "; no answer" if fault == "unanswered" else ""
        lost = "".join(f", {net.named(r.message)} lost" for (r, _), a in zip(outcomes, answers, strict=True) if a)
        net.scheduler.note(f"{label}: {said}{lost}{told}")
        if fault == "unanswered":
            net.scheduler.reach("a settlement is carried out and not answered")
            raise error(Ambiguous, "no answer")
        return answers

    def terminate(self, store: Store, position: int, state: State, outcome: Terminate) -> None:
        net, place = self.broker.network, self.broker.dead_letter_queue
        name = net.named(outcome.letter)
        net.store.queue(self.broker.queue).drop(position)
        net.keep(place, name, outcome.letter, net.differs(place, name, outcome.letter))

    def revoke(self, received: Received) -> None:
        """Take a lease away, as a broker does that restarts or that has waited too long."""
        net = self.broker.network
        position, lease = received.lease
        state = net.store.queue(self.broker.queue).states.get(position)
        if state is not None and state.lease == lease:
            state.lease, state.visible = 0, net.scheduler.now
            net.scheduler.reach("a lease is revoked")

    def extend(self, leases: Sequence[Received], seconds: float) -> Sequence[Received | LeaseLost]:
        net, queue = self.broker.network, self.broker.queue
        label = net.call("extend", queue)
        fault = net.trouble("extend at", queue, ("ok", "refused", "revoked"))
        if fault == "refused":
            net.scheduler.note(f"{label}: refused")
            raise error(Retriable, "not now")
        if fault == "revoked":
            self.revoke(leases[0])
        answers = super().extend(leases, seconds)
        lost = [net.named(r.message) for r, a in zip(leases, answers, strict=True) if isinstance(a, LeaseLost)]
        net.scheduler.note(f"{label}: {f'{lost} lost' if lost else 'done'}")
        return answers


class SimulatedLetters(MemoryDeadLetters):
    """Looks at letters and removes them over the network."""

    broker: SimulatedBroker

    def browse(self) -> Iterator[Letter]:
        net = self.broker.network
        label = net.call("browse", self.queue)
        if net.trouble("browse", self.queue, ("ok", "refused"), 0.3) == "refused":
            net.scheduler.note(f"{label}: refused")
            raise error(Retriable, "not now")
        self._show()
        seen = []
        for number, letter in enumerate(super().browse()):
            if number == net.shown:
                break
            key = self.queue, int(letter.position)
            if net.hides:
                holder, until = net.hidden.get(key, (self, 0.0))
                if holder is not self and until > net.scheduler.now:
                    net.scheduler.reach("a letter is hidden by somebody else who looked at it")
                    continue
                net.hidden[key] = self, net.scheduler.now + HIDDEN
            net.looked(net.scheduler.process, letter.position)
            seen.append(net.named(letter.message))
            yield letter
        net.scheduler.note(f"{label}: {' '.join(seen) or 'nothing'}")

    def _show(self) -> None:
        """Let others see again what this one looked at."""
        hidden = self.broker.network.hidden
        for key in [key for key, (holder, _) in hidden.items() if holder is self]:
            del hidden[key]

    def remove(self, positions: Sequence[str]) -> int:
        net = self.broker.network
        label = net.call("remove", self.queue)
        there = self.messages()
        names = [net.named(there[int(each)]) if int(each) in there else f"({each})" for each in positions]
        label = f"{label}: {' '.join(names)}"
        net.asked_to_remove(net.scheduler.process, positions)
        fault = net.trouble("remove", self.queue, (*CALL_FAULTS, "in part"))
        if fault in {"refused", "unheard"}:
            net.scheduler.note(f"{label}: {fault}")
            raise error(Retriable if fault == "refused" else Ambiguous, "no answer")
        if fault == "in part":
            positions = positions[: len(positions) // 2]
        held = [each for each in positions if not self._is_hidden(int(each))]
        gone = super().remove(held)
        net.scheduler.note(f"{label}: {gone} removed{'; no answer' if fault in {'unanswered', 'in part'} else ''}")
        if fault in {"unanswered", "in part"}:
            net.scheduler.reach("a removal is carried out, perhaps in part, and not answered")
            raise error(Ambiguous, "no answer")
        return gone

    def _is_hidden(self, position: int) -> bool:
        net = self.broker.network
        holder, until = net.hidden.get((self.queue, position), (self, 0.0))
        return net.hides and holder is not self and until > net.scheduler.now

    def close(self) -> None:
        if self.broker.network.scheduler.process.alive:
            self._show()


class SimulatedBroker(MemoryBroker):
    """One queue behind the network."""

    SenderRole: ClassVar[Any] = SimulatedSender
    ReceiverRole: ClassVar[Any] = SimulatedReceiver
    LettersRole: ClassVar[Any] = SimulatedLetters

    def __init__(self, url: str, options: Mapping[str, str], network: Network) -> None:
        super().__init__(url, options)
        self.network = network
        self.capabilities = network.can[self.queue]
        self.canonical_url = url

    def sender(self) -> SimulatedSender:
        net = self.network
        label = net.call("open", self.queue)
        if net.trouble("open", self.queue, ("ok", "refused"), 0.2) == "refused":
            net.scheduler.note(f"{label}: refused")
            raise error(Retriable, f"{self.queue} is down", Code.CONNECTION_LOST)
        return SimulatedSender(self)

    def receiver(self, *, lease: timedelta = timedelta(seconds=30)) -> SimulatedReceiver:
        self.network.call("open", self.queue)
        return SimulatedReceiver(self, lease.total_seconds())


def url_of(queue: str) -> str:
    """Return the URL of a queue."""
    return f"memory://{HOST}/{queue}"
