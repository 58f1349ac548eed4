"""The world of a job's task: `Delivery` with its thread, `Engine` and `SendQueue`, over a destination and its sinks.

Rows are written in batches. Some are poison. The task may be killed at any seam, and is then retried with the same
rows, as Spark retries a task.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

from redelivery import policy
from redelivery.codes import Code
from redelivery.contract.broker import Support
from redelivery.contract.message import Batch, Message
from redelivery.contract.spec import DeliverySpec, Sink
from redelivery.errors import DeliveryFailed, Fatal, Permanent, RedeliveryError, Retriable
from redelivery.formats import dialects
from redelivery.policy.backoff import wait_before_retry
from redelivery.sending.delivery import Delivery
from redelivery.sending.engine import Flow, Rejected
from redelivery.sending.group import Origin
from redelivery.sending.report import DeliveryReport
from redelivery.sending.send_queue import Bounds
from simulation import invariants
from simulation.broker import NOTHING, PLAIN, Book, url_of
from simulation.choices import Choices
from simulation.invariants import End, Item
from simulation.scheduler import Killed, Process
from simulation.world import World, difference

WORK: Final = "work"


class EngineWorld(World):
    """One task."""

    name = "engine"
    states = (
        "an ambiguous attempt is followed by a refusal",
        "what was stored without an answer is sent again",
        "an attempt without an answer arrived late",
        "a batch is refused as a whole, and its culprit is unknown",
        "answers overtake each other",
        "a connection is lost with several batches in flight",
        "a sink fails in the middle of a batch",
        "the first sink fails, and the second one takes the letters",
        "no sink takes a letter, and the job fails",
        "the task is killed between what the broker stored and its answer",
        "the task is killed with a letter under way",
        "rows are given up in an outage",
        "two rows of one id are dead letters",
        "a sink refuses a letter, and takes it wrapped",
        "rows are skipped, and counted",
        "a fatal error fails the job",
    )

    def __init__(self, choices: Choices) -> None:
        super().__init__(choices)
        net, pick = self.network, choices.pick
        self.sinks = [f"sink{number}" for number in range(choices.below("sinks", 3))]
        net.can[WORK] = self._can("work")
        for sink in self.sinks:
            net.can[sink] = self._can("sink")
        net.fatal = choices.happens("fatal errors", 0.1)
        net.soonest, net.differs, net.sent = self._soonest, self._differs, self._sent
        retries = pick("retry", (0, 1, 2, 3, None))
        self.spec = DeliverySpec(
            retry=retries,
            retry_timeout=pick("retry timeout", (None, None, timedelta(seconds=4))),
            backoff_delay=timedelta(seconds=pick("backoff", (0.0, 0.2, 2.0))),
            backoff_policy=pick("backoff policy", ("linear", "exponential")),
            timeout=timedelta(seconds=pick("timeout", (2.0, 1.0, 5.0))),
            dead_letter_sink=tuple(Sink(uri=url_of(sink)) for sink in self.sinks),
            allow_skip=not self.sinks,
            tolerance="all",
            tolerance_limit=pick("tolerance limit", (None, None, None, 2)),
            log_enable=False,
        )
        self.flow = Flow(
            ordering=pick("ordering", ("none", "none", "key")), park_successors=choices.happens("park", 0.3)
        )
        self.batches = list(self._rows())
        self.rejected = [
            self._named(Message(value=f"r{number}".encode(), id=f"r{number}", key=b"rejected"), f"r{number}")
            for number in range(choices.often("rejected rows", 2, 0.2))
        ]
        self.restarts = 0
        self.skipped: set[str] = set()
        self.overtook: dict[str, str] = {}
        self.done = False
        self.began: dict[tuple[str, str], tuple[int, int, int]] = {}

    def _can(self, what: str) -> Any:
        if not self.choices.happens(f"{what} recognises duplicates", 0.4):
            return PLAIN
        return replace(PLAIN, deduplicate=Support.NATIVE, reports_duplicates=self.choices.happens("reported", 0.5))

    def _named(self, message: Message, name: str) -> Message:
        return self.send(message, name)

    def _rows(self) -> Iterator[list[Message]]:
        number = 0
        for _ in range(1 + self.choices.below("batches", 4)):
            rows = []
            for _ in range(1 + self.choices.below("rows of a batch", 4)):
                name = f"m{number}"
                # Two rows may have one id where the destination does not recognise ids: they are two rows.
                shared = number and not self.network.can[WORK].deduplicate and self.choices.happens("shared id", 0.1)
                key = self.choices.pick("key", (None, b"a", b"b"))
                message = Message(value=name.encode(), id="m0" if shared else name, key=key, headers=(("mine", b"1"),))
                rows.append(self._named(message, name))
                kind = ("", "permanent", "culprit")[self.choices.often("poison", 2, 0.2)]
                if kind:
                    self.network.poison[WORK, name] = kind
                for sink in self.sinks:
                    if self.choices.happens("a letter that a sink refuses", 0.05):
                        self.network.poison[sink, name] = "permanent"
                number += 1
            yield rows

    # --- the run ---

    def run(self) -> None:
        failure: BaseException | None = None
        for process in self.lives("task", 3, 80, 0.4):
            began = self.scheduler.now
            self.began = {at: (book.tried, book.failed, book.confirmed) for at, book in self.network.books.items()}
            self.report: DeliveryReport | None = None
            self.skipped = set()
            self.opened = False
            failure = self.start(self._task, process)
            if not isinstance(failure, Killed) and (self.opened or not isinstance(failure, Retriable)):
                self._check_time(began)
                break
            self.restarts += 1
            self.scheduler.sleep(1.0)
        self.network.arrive(all_=True)
        self._check_end(failure)

    def _task(self) -> None:
        delivery = Delivery.open(
            url_of(WORK),
            self.spec,
            origin=Origin(run="job"),
            bounds=Bounds(in_flight_records=8, waiting_records=6),
            flow=self.flow,
            connection_factory=self.network.connected,
            skipped=self._skip,
        )
        self.opened = True
        with delivery:
            for rows in self.batches:
                delivery.write(Batch.of(rows))
                self.scheduler.seam("rows")
            if self.rejected:
                error = Permanent("no time", code=Code.INVALID_MESSAGE)
                delivery.reject(Rejected(Batch.of(self.rejected), [error], "VALUE_CONVERTER"))
            self.report = delivery.finish()
        self.done = True
        self.scheduler.note(f"the job is green: {self._account(self.report)}")

    def _skip(self, positions: Iterable[int]) -> None:
        names = [row.value.decode() for rows in (*self.batches, self.rejected) for row in rows if row.value]
        self.skipped |= {names[position] for position in positions}
        self.scheduler.reach("rows are skipped, and counted")

    @staticmethod
    def _account(report: DeliveryReport) -> str:
        return f"{report.delivered} delivered, {report.dead_lettered} dead, {report.skipped} skipped"

    def on_kill(self, process: Process) -> None:
        books = self.network.books.items()
        if any(len(book.arrived) > book.confirmed for (queue, _), book in books if queue == WORK):
            self.scheduler.reach("the task is killed between what the broker stored and its answer")
        if any(book.tried > book.failed + book.confirmed for (queue, _), book in books if queue in self.sinks):
            self.scheduler.reach("the task is killed with a letter under way")

    # --- what is checked ---

    def items(self) -> Iterator[Item]:
        for name in self.originals:
            work = self.network.books.get((WORK, name), NOTHING)
            books = {sink: book for sink in self.sinks if (book := self.network.books.get((sink, name)))}
            letters = list(books.values())
            confirmed = bool(work.confirmed or any(book.confirmed for book in letters))
            stored = bool(work.arrived or any(book.arrived for book in letters))
            yield Item(
                name=name,
                gone=self.done,
                kept=stored,
                confirmed=confirmed,
                skipped=name in self.skipped,
                copies=len(work.arrived),
                excused=self._excused(WORK, work),
                ids=len({message.id for message in work.arrived}),
                altered=work.altered,
                retries=self._tries(WORK, name, work) - 1,
                allowed=self._allowed(work),
                early=work.early,
                harmed=self._harmed(name, work, letters),
                suppressed=work.misrecognised,
                overtook=self.overtook.get(name, ""),
            )
            for sink, book in books.items():
                yield Item(
                    name=f"the letter of {name}",
                    copies=len(book.arrived),
                    excused=self._excused(sink, book) + book.searched,
                    altered=book.altered,
                    suppressed=book.misrecognised,
                )

    def _sent(self, _process: Process, queue: str, name: str) -> None:
        """Look whether all earlier rows of a row's key are done when it is sent, as no queue here keeps an order."""
        key = self.originals[name].key
        if queue != WORK or self.flow.ordering != "key" or key is None:
            return
        for earlier in itertools.takewhile(lambda each: each != name, self.originals):
            if self.originals[earlier].key == key:
                dead = earlier in self.skipped or any(self._confirmed(sink, earlier) for sink in self.sinks)
                if dead and self.flow.park_successors:
                    self.overtook[name] = f"is sent, and {earlier} of its key is dead"
                elif not dead and not self._confirmed(WORK, earlier):
                    self.overtook[name] = f"is sent, and {earlier} of its key is not done"

    def _excused(self, queue: str, book: Book) -> int:
        return 0 if self.network.can[queue].deduplicate else book.ambiguous + self.restarts

    def _tries(self, queue: str, name: str, book: Book) -> int:
        """How often this task has tried it."""
        return book.tried - self.began.get((queue, name), (0, 0, 0))[0]

    def _allowed(self, book: Book) -> int | None:
        """How often a row may be tried again. Finding a culprit does not count as a retry."""
        if book.searched:
            return None
        if self.spec.retry is None:
            return 0 if self.spec.retry_timeout is None else None
        return self.spec.retry

    def _soonest(self, queue: str, book: Book) -> float | None:
        """When a row may be tried again: after the policy's wait, unless a timeout ends the waiting."""
        tries = self._tries_of(book, queue)
        if queue != WORK or not tries or book.last_failure is None or book.searched:
            return None
        if self.spec.retry_timeout is not None:
            return None
        return book.last_failure + wait_before_retry(self.spec, tries, lambda: 0.0)

    def _tries_of(self, book: Book, queue: str) -> int:
        at = next((name for (where, name), each in self.network.books.items() if each is book and where == queue), "")
        return self._tries(queue, at, book)

    def _harmed(self, name: str, work: Book, letters: list[Book]) -> str:
        if (WORK, name) in self.network.poison or name.startswith("r") or not any(book.arrived for book in letters):
            return ""
        if self.flow.ordering == "key" and self.flow.park_successors:
            return ""
        letter = next(message for book in letters for message in book.arrived)
        if work.failed > work.blamed:
            return ""
        context = dialects.read(letter)
        if context is not None and "not sent, as what went before" in context.reason:
            self.scheduler.reach("rows are given up in an outage")
            return ""
        return "" if context is None else context.reason

    def _differs(self, queue: str, name: str, copy: Message) -> str:
        original = self.originals[name]
        if queue == WORK:
            return difference(original, copy)
        wrong = difference(original, dialects.strip(copy))
        context = dialects.read(copy)
        if wrong or context is None:
            return wrong or "it does not say why it is dead"
        work = self.network.book(WORK, name)
        if (self.network.poison.get((queue, name)) == "permanent") and not wrong:
            self.scheduler.reach("a sink refuses a letter, and takes it wrapped")
        others = [each for each in self.originals if each != name and self.originals[each].id == original.id]
        if any(self.network.book(queue, each).arrived for each in others):
            self.scheduler.reach("two rows of one id are dead letters")
        tried = 0 if name.startswith("r") else self._tries(WORK, name, work)
        if not work.searched and "not sent, as what went before" not in context.reason and context.attempts != tried:
            return f"it tells of {context.attempts} attempts, and there were {tried}"
        return ""

    def _check_time(self, began: float) -> None:
        stated = policy.worst_case_seconds(self.spec) * (1 + len(self.batches)) + 200.0
        took = self.scheduler.now - began
        late = f"the task took {took:.0f} s, and must end within {stated:.0f} s" if took > stated else ""
        invariants.at_the_end(End(open=[], late=late))

    def _check_end(self, failure: BaseException | None) -> None:
        if failure is not None:
            invariants.at_the_end(End(open=[], unexplained=self._unexplained(failure)))
            return
        assert self.report is not None
        invariants.always(self.items())
        invariants.at_the_end(End(open=[], account=self._wrong_account(self.report)))
        confirmed = [[self._confirmed(sink, name) for name in self.originals] for sink in self.sinks]
        if len(self.sinks) > 1 and not any(confirmed[0]) and any(confirmed[1]):
            self.scheduler.reach("the first sink fails, and the second one takes the letters")

    def _confirmed(self, queue: str, name: str) -> int:
        """How often this task got the answer that it is stored there."""
        book = self.network.books.get((queue, name))
        return 0 if book is None else book.confirmed - self.began.get((queue, name), (0, 0, 0))[2]

    def _wrong_account(self, report: DeliveryReport) -> str:
        rows = len(self.originals)
        delivered = sum(self._confirmed(WORK, name) for name in self.originals)
        dead = sum(self._confirmed(sink, name) for sink in self.sinks for name in self.originals)
        told = (report.rows, report.delivered, report.dead_lettered, report.skipped)
        true = (rows, delivered, dead, len(self.skipped))
        if told != true or sum(true[1:]) != rows:
            return f"rows, delivered, dead, skipped: told {told}, in truth {true}"
        return ""

    def _unexplained(self, failure: BaseException) -> str:
        """Return why the job should not have failed, or hides why it did."""
        if not isinstance(failure, RedeliveryError):
            return f"the job ended with {failure!r}"
        if isinstance(failure, Fatal) or not self.opened:
            self.scheduler.reach("a fatal error fails the job")
            return ""
        if not isinstance(failure, DeliveryFailed) or "does not add up" in str(failure):
            return f"the job ended with {failure!r}"
        if "no dead letter sink could take it" in str(failure):
            self.scheduler.reach("no sink takes a letter, and the job fails")
            named = all(url_of(sink) in str(failure) for sink in self.sinks)
            return "" if named and failure.__cause__ is not None else f"a sink's failure is not told: {failure}"
        return "" if failure.__cause__ is not None else f"its cause is not told: {failure}"
