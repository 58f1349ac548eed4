"""The dead letters role: browse, remove and purge the messages of one queue, and have SQS itself move them all back.

SQS shows a message only by receiving it. So what is looked at is hidden from others until it is removed, the next look,
or the role's end, and for `dead_letter_hold` seconds where nobody ends it. This file must not retry.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypedDict

from redelivery.contract.broker import DeadLetters, Letter
from redelivery.contract.context import ErrorContext
from redelivery.errors import Ambiguous, BrokerError, Fatal, Retriable, Unsupported
from redelivery_sqs import batches, encoding
from redelivery_sqs.address import Address
from redelivery_sqs.config import Settings, client, queue_url
from redelivery_sqs.errors import classified
from redelivery_sqs.look import Look, age, server_ms

#: Letters, and at most about so many bytes, that are put in order together.
_PAGE: Final = 1_000
_PAGE_BYTES: Final = 8 << 20
#: SQS looks at all of its servers only where it is asked to wait.
_WAIT: Final = 1
#: Seconds between looks at a move task, and the states of one that is not over.
_LOOK: Final = 0.2
_UNDER_WAY: Final = frozenset({"RUNNING", "CANCELLING"})
#: Seconds that a call may take.
_BOUND: Final = 29.0
_VISIBLE: Final = "ApproximateNumberOfMessages"
_HIDDEN: Final = "ApproximateNumberOfMessagesNotVisible"
_SOURCE: Final = "DeadLetterQueueSourceArn"

log = logging.getLogger("redelivery.sqs")


class _Bounds(TypedDict):
    end: float
    wide: int


class SqsDeadLetters(DeadLetters):
    """The letters of a queue's dead letter queue.

    Args:
        address: the queue.
        settings: of the client.
        direct: the queue itself holds the letters.
    """

    def __init__(self, address: Address, settings: Settings, direct: bool) -> None:  # noqa: FBT001 - the contract's own word
        self._address = address if direct else address.dead_letters
        self._source = address if self._address != address else None
        self._settings = settings
        #: What is hidden by us: its receipt handle, and until when, by SQS's own id.
        self._held: dict[str, tuple[str, float]] = {}
        #: The latest look.
        self._looked: Look | None = None
        self._closed = threading.Event()
        _roles.add(self)

    def browse(self) -> Iterator[Letter]:
        self._show_all()
        self._looked = looked = Look()
        try:
            yield from self._shown(looked)
            self._tell_of_hidden()
        except BaseException:  # also where it is given up
            if self._looked is looked:
                self._release()
            raise

    def remove(self, positions: Sequence[str]) -> int:
        wanted = dict.fromkeys(positions)
        if not wanted:
            return 0
        now = time.monotonic()
        known = [name for name in wanted if name in self._held and now < self._held[name][1]]
        gone = self._delete(known)
        left = wanted.keys() - gone
        before = set(self._held)
        looked = Look()
        try:
            while left and (found := self._receive(looked)) is not None:
                taken = self._delete([raw["MessageId"] for raw in found if raw["MessageId"] in left])
                left -= taken
                gone |= taken
        finally:
            self._release(self._held.keys() - before)
        return len(gone)

    def purge(self) -> int:
        now = time.monotonic()
        held = [name for name, (_, until) in self._held.items() if now < until]
        some = batches.MOST * self._settings.concurrency
        looked = Look()
        count = 0
        try:
            for start in range(0, len(held), some):
                count += len(self._delete(held[start : start + some]))
            while (found := self._receive(looked)) is not None:
                count += len(self._delete([raw["MessageId"] for raw in found]))
            self._tell_of_hidden()
        finally:
            self._release()
        return count

    def move_back(self, *, wait: float) -> int:
        if self._source is None:
            raise Unsupported(
                f"sqs: {self._address.queue!r} is named by itself: it is not known whose letters it holds"
            )
        self._show_all()
        end = time.monotonic() + wait
        doing = f"moving the letters of queue {self._address.queue!r}"
        arns = {"SourceArn": self._arn(self._address), "DestinationArn": self._arn(self._source)}
        task = self._task(arns["SourceArn"], doing)
        if task.get("Status") in _UNDER_WAY:
            text = f"{_progress(task)}; SQS runs one move task a queue: wait for its end, or cancel it"
            raise Retriable(f"sqs: {doing}: another move task is under way; {text}", code="TASK_RUNNING")
        with classified(doing):
            # Not left to SQS: it knows no source of letters that were sent there, only of those that it moved itself.
            self._client().start_message_move_task(**arns)
        while (task := self._task(arns["SourceArn"], doing)).get("Status") in _UNDER_WAY:
            if time.monotonic() >= end or self._closed.wait(_LOOK):
                raise Ambiguous(f"sqs: {doing}: it goes on; {_progress(task)}", code="TASK_RUNNING")
        if task.get("Status") != "COMPLETED":
            text = f"{task.get('Status')} {task.get('FailureReason', '')}".strip()
            raise Retriable(f"sqs: {doing}: {text}; {_progress(task)}, the rest is still there", code="TASK_ENDED")
        return int(task.get("ApproximateNumberOfMessagesMoved", 0))

    def close(self) -> None:
        """Show what was hidden; what cannot be shown now comes into sight by itself."""
        if not self._closed.is_set():
            self._release()
            self._closed.set()

    # --- looking ---

    def _shown(self, looked: Look) -> Iterator[Letter]:
        """Page by page, each letter while it is ours."""
        while page := self._page(looked):
            shown = False
            for raw in page:
                if self._keep(raw, page):
                    shown = True
                    yield _letter(raw, fifo=self._address.fifo)
                else:  # another may have it in hand; if not, it comes by again
                    looked.again(raw)
            if not shown:
                text = "what was received came into sight again before it was shown; set sqs.dead_letter_hold higher"
                raise Retriable(f"sqs: browsing queue {self._address.queue!r}: {text}", code="HOLD")

    def _page(self, looked: Look) -> list[Mapping[str, Any]]:
        """The next letters that were not shown yet, the oldest first."""
        page: list[Mapping[str, Any]] = []
        size = 0
        while len(page) < _PAGE and size < _PAGE_BYTES and (found := self._receive(looked)) is not None:
            page += found
            size += sum(len(raw["Body"]) for raw in found)
            if page:
                self._keep(page[0], page)  # whose first one comes into sight before the others
        # What came in one millisecond: a FIFO queue's in their order, a standard queue's in the same order each time.
        page.sort(key=age if self._address.fifo else lambda raw: (age(raw), raw["MessageId"]))
        return page

    def _receive(self, looked: Look) -> list[Mapping[str, Any]] | None:
        """What one request shows of what was there and not seen before; None where nothing is left."""
        self._check_open()
        if looked.ended:
            return None
        doing = f"browsing queue {self._address.queue!r}"
        url = self._url()
        before = time.monotonic()
        with classified(doing):
            answer = self._client().receive_message(
                QueueUrl=url,
                MaxNumberOfMessages=batches.MOST,
                # A FIFO queue shows no more of a group while its first ones are in hand: waiting shows none of them.
                WaitTimeSeconds=0 if self._address.fifo and looked.begun else _WAIT,
                VisibilityTimeout=self._settings.dead_letter_hold,
                MessageAttributeNames=["All"],
                MessageSystemAttributeNames=["All"],
            )
        came = answer.get("Messages") or []
        self._held.update(
            (raw["MessageId"], (raw["ReceiptHandle"], before + self._settings.dead_letter_hold)) for raw in came
        )
        if not came:
            looked.ended = True
            return None
        return looked.at(came, server_ms(answer))

    def _keep(self, raw: Mapping[str, Any], page: Sequence[Mapping[str, Any]]) -> bool:
        """Hide a letter's whole page for longer, once half of its time is over; whether the letter is still ours."""
        held = self._held.get(raw["MessageId"])
        now = time.monotonic()
        if held is None or held[1] <= now:
            return False
        hold = self._settings.dead_letter_hold
        if held[1] - now < hold / 2:
            names = [each["MessageId"] for each in page]
            names = [name for name in names if name in self._held and now < self._held[name][1]]
            failed = self._visibility(names, hold, "keeping what was looked at")
            if failed is not None:
                raise failed
        return raw["MessageId"] in self._held

    def _tell_of_hidden(self) -> None:
        """Log how many letters were not shown: a look must not pass for all that there is."""
        try:
            with classified(f"counting queue {self._address.queue!r}"):
                told = self._client().get_queue_attributes(QueueUrl=self._url(), AttributeNames=[_VISIBLE, _HIDDEN])
        except BrokerError as error:
            log.warning("%s (whether others hide letters is not known)", error)
            return
        counts = told.get("Attributes", {})
        behind = int(counts.get(_VISIBLE, 0)) if self._address.fifo else 0
        if behind:
            text = "about %d letters of %r are behind others of their group: SQS shows them when those are gone"
            log.warning(text, behind, self._address.queue)
        now = time.monotonic()
        ours = [until for role in list(_roles) if role._address == self._address for _, until in [*role._held.values()]]  # noqa: SLF001 - of this class
        hidden = int(counts.get(_HIDDEN, 0)) - sum(now < until for until in ours)
        if hidden > 0:
            text = (
                "about %d letters of %r are hidden, and were not shown: others have them in hand, or ended in a look "
                "(SQS counts late: they may be gone); look again in %d s"
            )
            log.warning(text, hidden, self._address.queue, self._settings.dead_letter_hold)

    def _delete(self, names: Sequence[str]) -> set[str]:
        """Delete what we hold; which of it was still ours to delete."""
        if not names:
            return set()
        self._check_open()
        doing = f"removing from queue {self._address.queue!r}"
        entries = [{"ReceiptHandle": self._held[name][0]} for name in names]
        call = self._client().delete_message_batch
        answers = batches.each(call, self._url(), entries, doing, **self._bounds())
        gone = {name for name, answer in zip(names, answers, strict=True) if answer is None}
        for name, answer in zip(names, answers, strict=True):
            if answer is None or batches.is_lost(answer):
                del self._held[name]
        failed = [answer for answer in answers if answer is not None and not batches.is_lost(answer)]
        if failed:
            raise failed[0]
        return gone

    def _show_all(self) -> None:
        """Show all that we hide. Raises BrokerError: some stays hidden, and no look would be a whole one."""
        failed = self._release()
        if failed is not None:
            raise failed

    def _release(self, names: Iterable[str] | None = None) -> BrokerError | None:
        """Show these again, or all that we hide; what cannot be shown stays ours, and is told of."""
        now = time.monotonic()
        names = list(self._held if names is None else names)
        self._held = {name: held for name, held in self._held.items() if now < held[1]}
        names = [name for name in names if name in self._held]
        failed = self._visibility(names, 0, "showing again what is")
        if failed is not None:
            count = sum(name in self._held for name in names)
            text = "%d letters of %r stay hidden for %d s at most: they could not be shown again (%s)"
            log.warning(text, count, self._address.queue, self._settings.dead_letter_hold, failed)
        return failed

    def _visibility(self, names: Sequence[str], seconds: int, what: str) -> BrokerError | None:
        """Hide what we hold for so long from now; 0: show it. Returns the first error; what is lost is none."""
        if not names:
            return None
        until = time.monotonic() + seconds
        entries = [{"ReceiptHandle": self._held[name][0], "VisibilityTimeout": seconds} for name in names]
        call, doing = self._client().change_message_visibility_batch, f"{what} in queue {self._address.queue!r}"
        answers = batches.each(call, self._url(), entries, doing, **self._bounds())
        failed = None
        for name, answer in zip(names, answers, strict=True):
            if batches.is_lost(answer) or (answer is None and not seconds):
                del self._held[name]
            elif answer is None:
                self._held[name] = (self._held[name][0], until)
            else:
                failed = failed or answer
        return failed

    def _bounds(self) -> _Bounds:
        """How many requests go at a time, and when the last is begun, so that it ends within its time."""
        last = _BOUND - self._settings.connect_timeout - self._settings.read_timeout
        return {"end": time.monotonic() + max(batches.PATIENCE, last), "wide": self._settings.concurrency}

    def _task(self, arn: str, doing: str) -> Mapping[str, Any]:
        """The latest move task of this place, as SQS tells of it."""
        self._check_open()
        with classified(doing):
            tasks = self._client().list_message_move_tasks(SourceArn=arn, MaxResults=1).get("Results") or [{}]
        found: Mapping[str, Any] = max(tasks, key=lambda task: task.get("StartedTimestamp", 0))
        return found

    def _arn(self, address: Address) -> str:
        url = queue_url(address, self._settings)
        with classified(f"looking at queue {address.queue!r}"):
            told = self._client().get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])
        return str(told.get("Attributes", {}).get("QueueArn", ""))

    def _client(self) -> Any:
        return client(self._address, self._settings)

    def _url(self) -> str:
        return queue_url(self._address, self._settings)

    def _check_open(self) -> None:
        if self._closed.is_set():
            text = f"sqs: reading queue {self._address.queue!r}: this role is closed; open another"
            raise Fatal(text, code="CLOSED")


#: This process's: a redrive looks for what came back while it has the rest in hand.
_roles: weakref.WeakSet[SqsDeadLetters] = weakref.WeakSet()


def _progress(task: Mapping[str, Any]) -> str:
    moved, of = (task.get(f"ApproximateNumberOfMessages{name}", "?") for name in ("Moved", "ToMove"))
    return f"about {moved} of {of} are moved"


def _letter(raw: Mapping[str, Any], *, fifo: bool) -> Letter:
    attributes = raw.get("Attributes") or {}
    message, fault = encoding.decode(raw)
    context = None
    if _SOURCE in attributes:
        source = str(attributes[_SOURCE])
        text = f"received more often than the redrive policy of {source} lets it, without being deleted"
        context = ErrorContext(
            kind="delivery-limit", reason=text, broker="sqs", destination=f"sqs:{source}", message_id=message.id
        )
    if fault is not None:
        context = ErrorContext(kind="invalid", reason=fault, broker="sqs")
    if message.key is None and "MessageGroupId" in attributes:
        message = replace(message, extra={encoding.GROUP: str(attributes["MessageGroupId"])})
    # A standard queue's message that SQS itself moved keeps the time at which it was first sent.
    known = fifo or _SOURCE not in attributes
    return Letter(
        position=raw["MessageId"],
        message=message,
        context=context,
        dead_lettered_ms=age(raw) if known and "SentTimestamp" in attributes else None,
    )
