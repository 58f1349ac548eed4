"""The dead letters role: browses, removes and purges the messages of one queue, and lets SQS move them all back.

SQS shows a message only by receiving it. So a browsed letter is hidden from others until it is removed, the next scan
begins, or the role is closed; if the process dies, until `dead_letter_visibility_timeout` seconds have passed.
"""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

from redelivery.contract.broker import DeadLetters, Letter
from redelivery.contract.context import ErrorContext
from redelivery.contract.letters import WHOLE, LetterBatch, Wanted
from redelivery.errors import Ambiguous, BrokerError, ConfigurationError, Fatal, Retriable, Unsupported
from redelivery.kit.errors import Code
from redelivery.kit.letters import given_up, undecodable
from redelivery.kit.roles import Resource
from redelivery_sqs import codec
from redelivery_sqs.address import Address
from redelivery_sqs.client import batch_requests
from redelivery_sqs.client.batch_requests import Answer, is_lost
from redelivery_sqs.client.limits import GROUP, MAX_ENTRIES
from redelivery_sqs.client.queue import Queue
from redelivery_sqs.client.scan import Scan, sent_ms, server_ms
from redelivery_sqs.options import Settings

#: Letters that are sorted together, and about how many bytes of them at most.
_PAGE: Final = 1_000
_PAGE_BYTES: Final = 8 << 20
#: Letters that are asked for at once, for each that the page has: the first ones may be smaller than the others.
_GROWTH: Final = 4
#: Requests side by side while looking through the queue.
_READERS: Final = 8
#: Seconds of a long poll: SQS asks all of its servers only if it may wait.
_WAIT: Final = 1
#: Seconds between requests for the state of a move task, and the states of one that has not ended.
_POLL: Final = 0.2
_RUNNING: Final = frozenset({"RUNNING", "CANCELLING"})
#: Seconds that a call may take.
_CALL_SECONDS: Final = 29.0
_VISIBLE: Final = "ApproximateNumberOfMessages"
_HIDDEN: Final = "ApproximateNumberOfMessagesNotVisible"
_SOURCE: Final = "DeadLetterQueueSourceArn"

log = logging.getLogger("redelivery.sqs")


class SqsDeadLetters(Resource, DeadLetters):
    """The letters of a queue's dead letter queue.

    Args:
        address: the queue.
        settings: of the client.
        direct: `address` is the dead letter queue itself.
    """

    def __init__(self, address: Address, settings: Settings, direct: bool) -> None:  # noqa: FBT001 - as the contract names it
        self._queue = Queue(address if direct else address.dead_letters, settings)
        self._name = self._queue.address.queue
        super().__init__("sqs", f"queue {self._name!r}")
        self._source = Queue(address, settings) if self._queue.address != address else None
        self._timeout = settings.dead_letter_visibility_timeout
        #: The letters that this role hides: receipt handle, and until when, by SQS's message id.
        self._hidden: dict[str, tuple[str, float]] = {}
        self._scan: Scan | None = None
        _roles.add(self)

    def browse(self) -> Iterator[Letter]:
        self._show_all()
        self._scan = scan = Scan()
        with self._scanning(scan):
            yield from self._letters(scan)

    def read(self, split: str, wanted: Wanted) -> Iterator[LetterBatch]:  # noqa: ARG002 - SQS selects nothing
        if split != WHOLE:
            raise ConfigurationError(f"sqs: {split!r} is not a split of {self._place}")
        return self._read()

    def _read(self) -> Iterator[LetterBatch]:
        """A page is a batch, so that a reader that removes its letters does so while they are hidden."""
        self._show_all()
        self._scan = scan = Scan()
        with self._scanning(scan):
            while page := self._page(scan):
                shown = [raw for raw in page if self._is_shown(raw, page, scan)]
                self._check_shown(shown)
                yield LetterBatch.of([self._letter(raw) for raw in shown])

    def remove(self, positions: Sequence[str]) -> int:
        wanted = dict.fromkeys(positions)
        removed = self._delete(self._still_hidden(wanted))
        missing = wanted.keys() - removed
        before = set(self._hidden)
        scan = Scan()
        try:
            while missing and (found := self._receive(scan)) is not None:
                removed |= self._delete([raw["MessageId"] for raw in found if raw["MessageId"] in missing])
                missing -= removed
        finally:
            self._show(self._hidden.keys() - before)
        return len(removed)

    def purge(self) -> int:
        hidden = self._still_hidden(self._hidden)
        step = MAX_ENTRIES * self._queue.settings.concurrency
        scan = Scan()
        count = 0
        try:
            for start in range(0, len(hidden), step):
                count += len(self._delete(hidden[start : start + step]))
            while (found := self._receive(scan)) is not None:
                count += len(self._delete([raw["MessageId"] for raw in found]))
            self._warn_of_unseen()
        finally:
            self._show()
        return count

    def move_back(self, *, wait: float) -> int:
        if self._source is None:
            raise Unsupported(f"sqs: {self._name!r} is opened by its own URL: the queue of its letters is unknown")
        self._show_all()
        end = time.monotonic() + wait
        doing = self.doing("moving the letters of")
        # The destination is given, because SQS knows the source only of letters that SQS itself has moved.
        others = sorted({*self._queue.sources(doing)} - {self._source.address.queue})
        if others:  # by itself each server does something else with their letters
            text = (
                f"it is also the dead letter queue of {', '.join(map(repr, others))}, and SQS would move all letters; "
                "nothing was moved: redrive with --allow-targets, which sends each letter to its own queue"
            )
            raise Fatal(f"sqs: {doing}: {text}", code=Code.CONFLICT)
        arns = {"SourceArn": self._queue.arn(), "DestinationArn": self._source.arn()}
        task = self._move_task(arns["SourceArn"])
        if task.get("Status") in _RUNNING:
            text = f"{_progress(task)}; SQS runs one move task per queue: wait until it ends, or cancel it"
            raise Retriable(f"sqs: {doing}: another move task is running; {text}", code=Code.CONFLICT)
        self._queue.call("start_message_move_task", "moving the letters of", **arns)
        while (task := self._move_task(arns["SourceArn"])).get("Status") in _RUNNING:
            if time.monotonic() >= end:
                raise Ambiguous(f"sqs: {doing}: the task is still running; {_progress(task)}", code=Code.CONFLICT)
            self.sleep_unless_closed(_POLL)
        if task.get("Status") != "COMPLETED":
            text = f"{task.get('Status')} {task.get('FailureReason', '')}".strip()
            raise Retriable(f"sqs: {doing}: {text}; {_progress(task)}, the others remain", code=Code.REJECTED)
        return int(task.get("ApproximateNumberOfMessagesMoved", 0))

    def _release(self) -> None:
        """Show the hidden letters again; a letter for which that fails appears when its time is over."""
        self._show()

    # --- browsing ---

    @contextmanager
    def _scanning(self, scan: Scan) -> Iterator[None]:
        try:
            yield
            self._warn_of_unseen()
        except BaseException:  # also where the caller stops early
            if self._scan is scan:
                self._show()
            raise

    def _letters(self, scan: Scan) -> Iterator[Letter]:
        """Page by page, each letter while this role hides it."""
        while page := self._page(scan):
            shown = []
            for raw in page:
                if self._is_shown(raw, page, scan):
                    shown.append(raw)
                    yield self._letter(raw)
            self._check_shown(shown)

    def _is_shown(self, raw: Mapping[str, Any], page: Sequence[Mapping[str, Any]], scan: Scan) -> bool:
        """Whether this role still hides a letter. If not, another reader may hold it; otherwise SQS shows it again."""
        if self._keep_hidden(raw, page):
            return True
        scan.forget(raw)
        return False

    def _check_shown(self, shown: Sequence[object]) -> None:
        """Raise Retriable if no letter of a page could be shown."""
        if not shown:
            text = (
                "the letters became visible again before they could be shown; "
                "set sqs.dead_letter_visibility_timeout higher"
            )
            raise Retriable(f"sqs: {self.doing('browsing')}: {text}", code=Code.LEASE_LOST)

    def _page(self, scan: Scan) -> list[Mapping[str, Any]]:
        """The next letters of a scan, oldest first."""
        page: list[Mapping[str, Any]] = []
        size = 0
        while len(page) < _PAGE and size < _PAGE_BYTES:
            fitting = (_PAGE_BYTES - size) * len(page) // max(1, size)  # if the others are as large
            wanted = min(_PAGE - len(page), fitting, _GROWTH * len(page))
            if (found := self._receive(scan, wanted)) is None:
                break
            page += found
            size += sum(len(raw["Body"]) for raw in found)
            if page:
                self._keep_hidden(page[0], page)  # the first one becomes visible before the others
        # Letters of the same millisecond: a FIFO queue's in its order, a standard queue's in the same order each time.
        fifo = self._queue.address.fifo
        page.sort(key=sent_ms if fifo else lambda raw: (sent_ms(raw), raw["MessageId"]))
        return page

    def _receive(self, scan: Scan, wanted: int = 0) -> list[Mapping[str, Any]] | None:
        """The new letters of the next requests; None at the end of the scan.

        Several requests are made side by side: one each takes as long as SQS is away. The first one sets the end of the
        scan. A FIFO queue has one at a time, and shows no more of a group while its first messages are hidden: waiting
        does not help there.

        Args:
            scan: how far it has come.
            wanted: how many letters are wanted; there may be more or fewer.
        """
        self.check_open("browsing")
        if scan.ended:
            return None
        fifo = self._queue.address.fifo
        width = min(self._queue.settings.concurrency, _READERS) if scan.begun and not fifo else 1
        wait = 0 if fifo and scan.begun else _WAIT
        requests = width if width == 1 else max(width, wanted // MAX_ENTRIES)
        receipts, failed = self._queue.receive_each(
            "browsing", [MAX_ENTRIES] * requests, wait=wait, hidden=self._timeout, concurrency=width
        )
        found: list[Mapping[str, Any]] = []
        for receipt in receipts:
            until = receipt.before + self._timeout
            self._hidden.update((raw["MessageId"], (raw["ReceiptHandle"], until)) for raw in receipt.messages)
            found += receipt.messages
        if failed is not None:
            raise failed
        if not found:
            scan.ended = True
            return None
        return scan.new(found, server_ms(receipts[0].answer))

    def _warn_of_unseen(self) -> None:
        """Log how many letters the scan could not show."""
        try:
            counts = self._queue.attributes(_VISIBLE, _HIDDEN, doing="counting")
        except BrokerError as error:
            log.warning("%s (so it is unknown whether others hide letters)", error)
            return
        behind = int(counts.get(_VISIBLE, 0)) if self._queue.address.fifo else 0
        if behind:
            text = "about %d letters of %r are behind others of their group: SQS shows them when those are gone"
            log.warning(text, behind, self._name)
        now = time.monotonic()
        ours = [
            until
            for role in list(_roles)
            if role._queue.address == self._queue.address  # noqa: SLF001 - of this class
            for _, until in [*role._hidden.values()]  # noqa: SLF001 - a copy, because other threads use the role
        ]
        hidden = int(counts.get(_HIDDEN, 0)) - sum(now < until for until in ours)
        if hidden > 0:
            text = (
                "about %d letters of %r are hidden and were not shown: others hold them, or died while browsing "
                "(SQS counts late: they may be gone); look again in %d s"
            )
            log.warning(text, hidden, self._name, self._timeout)

    def _letter(self, raw: Mapping[str, Any]) -> Letter:
        attributes = raw.get("Attributes") or {}
        message, fault = codec.decode(raw)
        context = self._moved(str(attributes[_SOURCE]), message.id) if _SOURCE in attributes else None
        if fault is not None:
            target = None if context is None else context.target
            context = replace(undecodable("sqs", fault), target=target)
        fifo = self._queue.address.fifo
        if "MessageGroupId" in attributes and (message.key is None or not fifo):  # by its key a FIFO row has it again
            message = replace(message, extra={GROUP: str(attributes["MessageGroupId"])})
        # A message that SQS itself moved between standard queues keeps the time at which it was first sent.
        known = fifo or _SOURCE not in attributes
        return Letter(
            position=raw["MessageId"],
            message=message,
            context=context,
            dead_lettered_ms=sent_ms(raw) if known and "SentTimestamp" in attributes else None,
        )

    def _moved(self, arn: str, message_id: str | None) -> ErrorContext:
        """Why SQS itself has moved a letter here from the queue of this ARN; its target is that queue, if not ours."""
        there = self._queue.address.of_arn(arn, self._queue.account)
        name = arn if there is None else there.queue
        text = f"received more often than the redrive policy of {arn} allows, without being deleted"
        return given_up(
            "sqs",
            Code.DELIVERY_LIMIT,
            text,
            destination=f"sqs:{arn}" if there is None else there.url,
            target=name if self._source is not None and name != self._source.address.queue else None,
            message_id=message_id,
        )

    # --- hidden letters ---

    def _still_hidden(self, names: Iterable[str]) -> list[str]:
        now = time.monotonic()
        return [name for name in names if name in self._hidden and now < self._hidden[name][1]]

    def _keep_hidden(self, raw: Mapping[str, Any], page: Sequence[Mapping[str, Any]]) -> bool:
        """Hide a letter's page for longer once half of its time has passed; whether the letter is still hidden."""
        name = raw["MessageId"]
        if not self._still_hidden([name]):
            return False
        if self._hidden[name][1] - time.monotonic() < self._timeout / 2:
            names = self._still_hidden(each["MessageId"] for each in page)
            failed = self._set_visibility(names, self._timeout, "hiding the letters of")
            if failed is not None:
                raise failed
        return name in self._hidden

    def _delete(self, names: Sequence[str]) -> set[str]:
        """Delete letters that this role hides; the names of those that still were its own."""
        self.check_open("removing from")
        handles = [self._hidden[name][0] for name in names]
        answers = dict(zip(names, self._queue.delete("removing from", handles, **self._bounds()), strict=True))
        for name, answer in answers.items():
            if answer is None or is_lost(answer):
                del self._hidden[name]
        self._raise_first(answers.values())
        return {name for name, answer in answers.items() if answer is None}

    def _show_all(self) -> None:
        """Show all letters that this role hides. Raises BrokerError: some stay hidden, so a scan would miss them."""
        failed = self._show()
        if failed is not None:
            raise failed

    def _show(self, names: Iterable[str] | None = None) -> BrokerError | None:
        """Show these letters again, by default all; those for which that fails stay hidden, with a warning."""
        wanted = list(self._hidden if names is None else names)
        self._hidden = {name: self._hidden[name] for name in self._still_hidden([*self._hidden])}
        wanted = self._still_hidden(wanted)
        failed = self._set_visibility(wanted, 0, "showing again the letters of")
        if failed is not None:
            count = sum(name in self._hidden for name in wanted)
            text = "%d letters of %r stay hidden for %d s at most: they could not be shown again (%s)"
            log.warning(text, count, self._name, self._timeout, failed)
        return failed

    def _set_visibility(self, names: Sequence[str], seconds: int, doing: str) -> BrokerError | None:
        """Hide letters for this long from now; 0 shows them. Return the first error other than a lost letter."""
        if not names:
            return None
        until = time.monotonic() + seconds
        handles = [(self._hidden[name][0], seconds) for name in names]
        failed = None
        for name, answer in zip(names, self._queue.hide(doing, handles, **self._bounds()), strict=True):
            if is_lost(answer) or (answer is None and not seconds):
                del self._hidden[name]
            elif answer is None:
                self._hidden[name] = (self._hidden[name][0], until)
            else:
                failed = failed or answer
        return failed

    def _bounds(self) -> Mapping[str, Any]:
        """Requests in flight, and when the last may begin so that the call ends in time."""
        settings = self._queue.settings
        last = _CALL_SECONDS - settings.connect_timeout - settings.read_timeout
        return {"end": time.monotonic() + max(batch_requests.PATIENCE, last), "concurrency": settings.concurrency}

    @staticmethod
    def _raise_first(answers: Iterable[Answer]) -> None:
        for answer in answers:
            if answer is not None and not is_lost(answer):
                raise answer

    def _move_task(self, arn: str) -> Mapping[str, Any]:
        """The latest move task of this queue."""
        self.check_open("moving the letters of")
        answer = self._queue.call("list_message_move_tasks", "moving the letters of", SourceArn=arn, MaxResults=1)
        tasks = answer.get("Results") or [{}]
        latest: Mapping[str, Any] = max(tasks, key=lambda task: task.get("StartedTimestamp", 0))
        return latest


#: The roles of this process: a redrive scans again while it still holds letters.
_roles: weakref.WeakSet[SqsDeadLetters] = weakref.WeakSet()


def _progress(task: Mapping[str, Any]) -> str:
    moved, of = (task.get(f"ApproximateNumberOfMessages{name}", "?") for name in ("Moved", "ToMove"))
    return f"about {moved} of {of} are moved"
