"""The world of a subscription: `Subscription` with its workers, its leases, and the engine behind its sinks.

Messages are handled by handlers that return, raise, give up, take long, or have their message terminated while they
run. Leases run out and are revoked. The process may be killed at any seam, and a supervisor starts it again. At the end
everything is quiet, and one more run handles what is left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Final

from redelivery.codes import Code
from redelivery.contract.broker import Accept, Outcome, Received, Retry, Support, Terminate
from redelivery.contract.message import Message
from redelivery.contract.spec import NATIVE, DeliverySpec, Sink
from redelivery.errors import (
    BrokerError,
    ConfigurationError,
    DeliveryFailed,
    LeaseLost,
    NotTerminated,
    Permanent,
    RedeliveryError,
    TerminalNack,
)
from redelivery.formats import dialects
from redelivery.policy.backoff import wait_before_retry
from redelivery.policy.breaker import Breaker
from redelivery.receiving.subscription import Subscription
from redelivery_conformance.memory import DEAD_LETTERS
from simulation import invariants
from simulation.broker import NOTHING, PLAIN, Book, url_of
from simulation.choices import Choices
from simulation.invariants import End, Item
from simulation.scheduler import Killed, Process, Violated
from simulation.world import World, difference

WORK: Final = "work"
PLACE: Final = WORK + DEAD_LETTERS
#: How a handler treats a message. "slow": it takes longer than a lease. "terminated": while it runs, a call asks
#: for the message to be given up.
HANDLERS: Final = ("returns", "raises", "nacks", "refuses", "slow", "slow and raises", "terminated")


@dataclass(slots=True)
class Handling:
    """What became of a message at its handlers.

    Attributes:
        ran, returned: handlers that began, and that returned.
        delivered: how often the broker has delivered it, by number of the attempt.
        retried: `Retry` outcomes that the broker has carried out, by number of the attempt.
        early: one of them that asked for less than the policy's wait.
        accepted, terminated: how its lease ended.
        hoped: it was accepted, and neither a handler had returned nor a sink confirmed.
        lost: leases that were lost.
        leased: how often each process has leased it.
        refused: the process whose handler has refused it for good.
    """

    ran: int = 0
    returned: int = 0
    delivered: Counter[int] = field(default_factory=Counter)
    retried: Counter[int] = field(default_factory=Counter)
    early: str = ""
    terminated: bool = False
    hoped: bool = False
    lost: int = 0
    leased: Counter[Process] = field(default_factory=Counter)
    refused: Process | None = None
    under_way: set[Process] = field(default_factory=set)


class SubscriptionWorld(World):
    """One subscription."""

    name = "subscription"
    states = (
        "a lease is lost while its message is being dead-lettered",
        "a lease is lost while its handler runs",
        "a lease is revoked",
        "a settlement is carried out and not answered",
        "killed between a stored letter and the end of its lease",
        "killed while a handler runs",
        "a handler overruns its time",
        "a message is terminated while its handler runs",
        "it is stopped while handlers run",
        "a sink fails in the middle of a batch",
        "an ambiguous attempt is followed by a refusal",
        "what was stored without an answer is sent again",
        "no sink takes a letter, and its message stays",
        "a message is handled twice",
        "the first sink fails, and the second one takes the letters",
        "the broker itself moves a message to its dead letters",
        "a message of another application is dead-lettered",
        "an outage opens the breaker",
        "an outage ends, and its messages are handled",
        "poison is dead-lettered in an outage",
        "a message is handled while its broker is away",
        "its broker is away, and gives messages again",
    )

    def __init__(self, choices: Choices) -> None:
        super().__init__(choices)
        net, pick = self.network, choices.pick
        self.native = choices.happens("native", 0.25)
        self.sinks = [f"sink{number}" for number in range(1 + choices.below("sinks", 2))]
        can = PLAIN if choices.happens("prolongs", 0.8) else replace(PLAIN, extend=Support.NONE)
        can = can if choices.happens("terminates", 0.5) else replace(can, terminate=Support.NONE)
        net.can[WORK] = net.can[PLACE] = can
        for sink in self.sinks:
            recognises = choices.happens("sink recognises duplicates", 0.4)
            net.can[sink] = replace(PLAIN, deduplicate=Support.NATIVE) if recognises else PLAIN
        sinks = tuple(Sink(uri=url_of(sink)) for sink in self.sinks)
        if self.native:
            sinks, self.sinks = (Sink(uri=NATIVE), *sinks[:1]), [PLACE, *self.sinks[:1]]
        self.spec = DeliverySpec(
            retry=pick("retry", (0, 1, 2, 3)),
            backoff_delay=timedelta(seconds=pick("backoff", (0.0, 0.5, 4.0))),
            backoff_policy=pick("backoff policy", ("linear", "exponential")),
            timeout=pick("timeout", (None, timedelta(seconds=2), timedelta(seconds=6))),
            dead_letter_sink=sinks,
            log_enable=False,
        )
        self.settings: dict[str, Any] = {
            "workers": 1 + choices.below("workers", 3),
            "prefetch": choices.below("prefetch", 4),
            "lease": timedelta(seconds=pick("lease", (8.0, 3.0, 20.0))),
            "breaker": pick("breaker", (None, Breaker(failures=2), Breaker(failures=3))),
        }
        self.down_from = self.scheduler.now + pick("down after", (0.0, 2.0))
        self.down_until = self.down_from + pick("down for", (0.0, 0.0, 5.0, 40.0))
        self.down_again = pick("down at the end for", (0.0, 10.0))
        self.flooded: set[str] = set()
        self.returned = 0
        net.differs, net.leased, net.settled = self._differs, self._leased, self._settled
        self.handled: dict[str, Handling] = {}
        self.restarts = 0
        self.attempt: dict[str, int] = {}
        for number in range(1 + choices.below("messages", 6)):
            self._put(f"m{number}")

    def _put(self, name: str) -> None:
        choices = self.choices
        message = Message(value=name.encode(), id=name, key=b"k", headers=(("mine", b"1"),))
        if choices.happens("foreign", 0.2):
            message = replace(message, native={"priority": 7}, headers=(("count", b"7"), ("x", None)))
        self.send(message, name)
        self.handled[name] = Handling()
        self.network.store.add(WORK, message)

    # --- the run ---

    def run(self) -> None:
        failure: BaseException | None = None
        for process in self.lives("consumer", 3, 90, 0.5):
            failure = self._one(process)
            if failure is None:
                break
            self.restarts += 1
            self.scheduler.sleep((1.0, 25.0)[self.choices.below("pause", 2)])
        self.network.quiet = True
        self.network.arrive(all_=True)
        self.scheduler.sleep(100.0)
        began = self.scheduler.now
        self.down_from, self.down_until = began, began + self.down_again
        for number in range(self.choices.below("late messages", 5)):
            self._put(f"late{number}")
        failure = self._one(Process("consumer-last"))
        took = self.scheduler.now - began
        invariants.always(self.items())
        invariants.at_the_end(
            End(
                open=[name for name in self.handled if name in self._there()],
                unexplained="" if failure is None else f"the last run ended with {failure!r}",
                late=f"the last run took {took:.0f} s" if took > 300 else "",
            )
        )
        if len(self.sinks) > 1:
            confirmed = [[self._book(sink, name).confirmed for name in self.handled] for sink in self.sinks]
            if not any(confirmed[0]) and any(confirmed[1]):
                self.scheduler.reach("the first sink fails, and the second one takes the letters")

    def _one(self, process: Process) -> BaseException | None:
        failure = self.start(lambda: self._consume(process), process)
        process.alive = False
        if failure is not None and not isinstance(failure, Killed):
            if isinstance(failure, DeliveryFailed) and "no dead letter sink could take it" in str(failure):
                self.scheduler.reach("no sink takes a letter, and its message stays")
            elif isinstance(failure, DeliveryFailed | BrokerError):
                pass  # the broker could not be reached, or handlers hang
            else:
                raised = End(open=[], unexplained=f"{process.name} ended with {failure!r}")
                invariants.at_the_end(raised)
        return failure

    def _consume(self, process: Process) -> None:
        self.subscription = Subscription(
            url_of(WORK),
            lambda message: self._handle(process, message),
            name="billing",
            spec=self.spec,
            connection_factory=self.network.connected,
            random=self.choices.jitter,
            **self.settings,
        )
        report = self.subscription.run(until_empty=True)
        self.scheduler.note(
            f"done: {report.received} received, {report.accepted} accepted, {report.dead_lettered} dead, "
            f"{report.lost} lost"
        )

    def _handle(self, process: Process, message: Message) -> None:
        name = self.named(message)
        handling = self.handled[name]
        kind = self._kind()
        self._look_at_breaker(kind)
        if handling.refused is process and handling.leased[process] == 1:
            handling.early = f"{name} is handled again, although its handler has refused it for good"
        handling.refused = process if kind in {"nacks", "refuses"} else None
        handling.ran += 1
        handling.under_way.add(process)
        if handling.ran > 1:
            self.scheduler.reach("a message is handled twice")
        self.scheduler.note(f"handle {name}: {kind}")
        if not self.network.quiet and self.choices.happens("is stopped", 0.03):
            self.scheduler.reach("it is stopped while handlers run")
            self.subscription.stop()
        try:
            self.scheduler.seam("handler")
            if kind.startswith("slow"):
                self.scheduler.sleep((3.0, 12.0)[self.choices.below("slow for", 2)])
            if kind == "terminated":
                self._terminate(process, message, name)
        finally:
            handling.under_way.discard(process)
        if kind in {"raises", "slow and raises", "down"}:
            raise ConnectionError(name) if kind == "down" else ValueError(name)
        if kind == "nacks":
            raise TerminalNack("never")
        if kind == "refuses":
            raise Permanent("never")
        handling.returned += 1
        self.returned += 1

    def _kind(self) -> str:
        """How the next handler treats its message."""
        kind = HANDLERS[0 if self.network.quiet else self.choices.often("handler", len(HANDLERS) - 1, 0.5)]
        if self.network.quiet and self.choices.happens("still raises", 0.2):
            kind = "raises"
        is_down = self.down_from <= self.scheduler.now < self.down_until
        if is_down and kind not in {"nacks", "refuses"}:
            kind = "down"
        return kind

    def _look_at_breaker(self, kind: str) -> None:
        if self._broker_is_away():
            self.scheduler.reach("a message is handled while its broker is away")
        elif self.subscription.outage is not None:
            self.scheduler.reach("an outage opens the breaker")
            if kind == "returns":
                self.scheduler.reach("an outage ends, and its messages are handled")
            elif kind in {"nacks", "refuses"}:
                self.scheduler.reach("poison is dead-lettered in an outage")

    def _broker_is_away(self) -> bool:
        outage = self.subscription.outage
        return outage is not None and Code.CONNECTION_LOST in outage.reason

    def _terminate(self, process: Process, message: Message, name: str) -> None:
        """Ask for the message to be given up, and wait for it, as a handler may."""
        try:
            future: Future[None] = self.subscription.terminate(message, "asked for")
        except (NotTerminated, ConfigurationError) as refused:
            self.scheduler.note(f"{name} is not terminated: {refused}")
            return
        self.scheduler.reach("a message is terminated while its handler runs")
        if not self.scheduler.wait(future.done, 200.0):
            self._fail(End(open=[], late=f"terminate of {name} was not answered for 200 s"))
        error = future.exception()
        if error is None and name in self._there() and not self._book_of_letters(name):
            self._fail(End(open=[], account=f"{name} is said to be given up, and no sink has it"))
        if error is not None and not isinstance(error, NotTerminated | LeaseLost | RedeliveryError):
            self._fail(End(open=[], unexplained=f"terminate of {name} ended with {error!r}"))

    def _fail(self, end: End) -> None:
        try:
            invariants.at_the_end(end)
        except Violated as violation:
            self.scheduler.fail(violation)

    # --- what the broker sees ---

    def _leased(self, process: Process, received: Received) -> None:
        name = self.named(received.message)
        if self._broker_is_away():
            self.scheduler.reach("its broker is away, and gives messages again")
        self.attempt[name] = received.attempt
        self.handled[name].delivered[received.attempt] += 1
        self.handled[name].leased[process] += 1

    def _settled(
        self, process: Process, received: Received, outcome: Outcome, answer: LeaseLost | BrokerError | None
    ) -> None:
        name = self.named(received.message)
        handling = self.handled[name]
        if isinstance(answer, LeaseLost):
            handling.lost += 1
            if process in handling.under_way:
                self.scheduler.reach("a lease is lost while its handler runs")
            elif self._book_of_letters(name) or isinstance(outcome, Terminate):
                self.scheduler.reach("a lease is lost while its message is being dead-lettered")
        if answer is not None:
            return
        if isinstance(outcome, Accept):
            dead = any(self._book(sink, name).confirmed for sink in self.sinks)
            handling.hoped |= not (handling.returned or dead)
        elif isinstance(outcome, Terminate):
            handling.terminated = True
            self.scheduler.reach("the broker itself moves a message to its dead letters")
        elif isinstance(outcome, Retry):
            handling.retried[received.attempt] += 1
            if process in handling.under_way:
                self.scheduler.reach("a handler overruns its time")
            least = wait_before_retry(self.spec, received.attempt, lambda: 0.0)
            if outcome.delay.total_seconds() < least - 0.002 and not handling.early:
                handling.early = f"{name} comes again after {outcome.delay.total_seconds()} s, and not after {least} s"

    def on_kill(self, process: Process) -> None:
        there = self._there()
        for name, handling in self.handled.items():
            if process in handling.under_way:
                self.scheduler.reach("killed while a handler runs")
            if name in there and self._book_of_letters(name):
                self.scheduler.reach("killed between a stored letter and the end of its lease")

    # --- what is checked ---

    def _there(self) -> set[str]:
        return {self.named(message) for message in self.network.store.queue(WORK).messages.values()}

    def _book(self, queue: str, name: str) -> Book:
        return self.network.books.get((queue, name), NOTHING)

    def _book_of_letters(self, name: str) -> int:
        """How many letters of it are stored."""
        return sum(len(self._book(sink, name).arrived) for sink in self.sinks)

    def items(self) -> Iterator[Item]:
        there = self._there()
        for name, handling in self.handled.items():
            books = {sink: self._book(sink, name) for sink in self.sinks}
            letters = [message for book in books.values() for message in book.arrived]
            foreign = self.originals[name].native is not None
            if letters and foreign:
                self.scheduler.reach("a message of another application is dead-lettered")
            yield Item(
                name=name,
                gone=name not in there,
                kept=bool(letters or handling.returned),
                confirmed=not handling.hoped,
                altered=next((book.altered for book in books.values() if book.altered), ""),
                foreign=foreign,
                retries=handling.retried.total(),
                allowed=self.spec.retry,
                early=handling.early,
                suppressed=any(book.misrecognised for book in books.values()),
                harmed=self._harmed(name, handling, letters),
            )
            for sink, book in books.items():
                yield Item(
                    name=f"the letter of {name}", copies=len(book.arrived), excused=self._excused(sink, name, book)
                )

    def _excused(self, sink: str, name: str, book: Book) -> int:
        """Each delivery that was not settled may be given up again: its letter has the same identity."""
        if self.network.can[sink].deduplicate:
            return 0
        return book.ambiguous + max(0, self.handled[name].ran + self.attempt.get(name, 1) - 1)

    def _harmed(self, name: str, handling: Handling, letters: list[Message]) -> str:
        if letters and not handling.ran:
            return "no handler has seen it"
        return self._flood() if name in self.flooded else ""

    def _flood(self) -> str:
        """The error in the number of letters that an outage has made: some open the breaker, and no more."""
        breaker = self.settings["breaker"]
        most = 0 if breaker is None else (breaker.failures - 1) * (2 + self.restarts + self.returned)
        if breaker is None or len(self.flooded) <= most:
            return ""
        return f"{len(self.flooded)} messages were given up in an outage, and {most} show that there is one"

    def _differs(self, queue: str, name: str, copy: Message) -> str:
        wrong = difference(self.originals[name], dialects.strip(copy))
        context = dialects.read(copy)
        if wrong or context is None:
            return wrong or "it does not say why it is dead"
        # A delivery whose lease is lost may be given up while a later one is under way; one that is retried may not.
        handling, tells = self.handled[name], context.attempts or 0
        if handling.delivered[tells] <= handling.retried[tells]:
            return f"it tells of {tells} attempts, and there were {self.attempt[name]}"
        if "ConnectionError" in context.reason:
            self.flooded.add(name)
        if context.subscriber != "billing":
            return f"it says that {context.subscriber!r} gave it up"
        return ""
