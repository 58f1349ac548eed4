"""The dead letters role: browse, remove and purge the messages of one queue, and have SQS itself move them all back.

SQS shows a message only by receiving it. So what is looked at is hidden from others until the look is over, and for
`dead_letter_hold` seconds where nobody ends it. This file must not retry.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from email.utils import parsedate_to_datetime
from typing import Any, Final

from redelivery.broker import DeadLetters, Letter
from redelivery.context import ErrorContext
from redelivery.errors import Ambiguous, Fatal, Retriable, Unsupported
from redelivery_sqs import batches, encoding
from redelivery_sqs.address import Address
from redelivery_sqs.config import Settings, client, queue_url
from redelivery_sqs.errors import classified

#: Letters, and at most about so many bytes, that are put in order together.
_PAGE: Final = 1_000
_PAGE_BYTES: Final = 8 << 20
#: Answers in a row that show nothing new, after which there is nothing new.
_OLD_ANSWERS: Final = 10
#: SQS looks at all of its servers only where it is asked to wait.
_WAIT: Final = 1
#: Seconds between looks at a move task, and the states of one that is not over.
_LOOK: Final = 0.2
_UNDER_WAY: Final = frozenset({"RUNNING", "CANCELLING"})
#: How far a server's `Date` may be behind its clock: it tells seconds, and some servers keep it for one.
_COARSE_MS: Final = 2_000
_VISIBLE: Final = "ApproximateNumberOfMessages"
_SOURCE: Final = "DeadLetterQueueSourceArn"

log = logging.getLogger("redelivery.sqs")


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
        self._closed = threading.Event()

    def browse(self) -> Iterator[Letter]:
        self._release()
        looked = _Looked()
        try:
            while page := self._page(looked):
                for raw in page:
                    yield _letter(raw, fifo=self._address.fifo)
            if self._address.fifo:
                self._tell_of_hidden()
        finally:
            self._release()

    def remove(self, positions: Sequence[str]) -> int:
        wanted = dict.fromkeys(positions)
        if not wanted:
            return 0
        now = time.monotonic()
        known = [name for name in wanted if name in self._held and now < self._held[name][1]]
        gone = self._delete(known)
        left = wanted.keys() - gone
        before = set(self._held)
        looked = _Looked()
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
        count = len(self._delete([name for name, (_, until) in self._held.items() if now < until]))
        looked = _Looked()
        try:
            while (found := self._receive(looked)) is not None:
                count += len(self._delete([raw["MessageId"] for raw in found]))
        finally:
            self._release()
        return count

    def move_back(self, *, wait: float) -> int:
        if self._source is None:
            raise Unsupported(
                f"sqs: {self._address.queue!r} is named by itself: it is not known whose letters it holds"
            )
        self._release()
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
            if time.monotonic() >= end:
                raise Ambiguous(f"sqs: {doing}: it goes on; {_progress(task)}", code="TASK_RUNNING")
            self._closed.wait(_LOOK)
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

    def _page(self, looked: _Looked) -> list[Mapping[str, Any]]:
        """The next letters that were not shown yet, the oldest first."""
        page: list[Mapping[str, Any]] = []
        size = 0
        while len(page) < _PAGE and size < _PAGE_BYTES and (found := self._receive(looked)) is not None:
            page += found
            size += sum(len(raw["Body"]) for raw in found)
        # What came in one millisecond: a FIFO queue's in their order, a standard queue's in the same order each time.
        page.sort(key=_age if self._address.fifo else lambda raw: (_age(raw), raw["MessageId"]))
        return page

    def _receive(self, looked: _Looked) -> list[Mapping[str, Any]] | None:
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
        return looked.at(came, _server_ms(answer))

    def _tell_of_hidden(self) -> None:
        with classified(f"counting queue {self._address.queue!r}"):
            told = self._client().get_queue_attributes(QueueUrl=self._url(), AttributeNames=[_VISIBLE])
        hidden = int(told.get("Attributes", {}).get(_VISIBLE, 0))
        if hidden:
            text = "about %d letters of %r are behind others of their group: SQS shows them when those are gone"
            log.warning(text, hidden, self._address.queue)

    def _delete(self, names: Sequence[str]) -> set[str]:
        """Delete what we hold; which of it was still ours to delete."""
        if not names:
            return set()
        self._check_open()
        doing = f"removing from queue {self._address.queue!r}"
        entries = [{"ReceiptHandle": self._held[name][0]} for name in names]
        call = self._client().delete_message_batch
        answers = batches.each(call, self._url(), entries, doing)
        gone = {name for name, answer in zip(names, answers, strict=True) if answer is None}
        for name, answer in zip(names, answers, strict=True):
            if answer is None or batches.is_lost(answer):
                del self._held[name]
        failed = [answer for answer in answers if answer is not None and not batches.is_lost(answer)]
        if failed:
            raise failed[0]
        return gone

    def _release(self, names: Iterable[str] | None = None) -> None:
        """Show these again, or all that we hide."""
        now = time.monotonic()
        held = [self._held.pop(name) for name in (list(self._held) if names is None else list(names))]
        handles = [handle for handle, until in held if now < until]
        if not handles:
            return
        entries = [{"ReceiptHandle": handle, "VisibilityTimeout": 0} for handle in handles]
        call = self._client().change_message_visibility_batch
        batches.each(call, self._url(), entries, f"showing again what is in queue {self._address.queue!r}")

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


class _Looked:
    """How far one look through a queue has come.

    It ends where SQS has nothing more to show: nothing at all, or only what was seen or came after it began. That is by
    SQS's own clock, of which an answer tells seconds: of many letters, one that comes just then may be shown.
    """

    def __init__(self) -> None:
        self.ended = False
        self._seen: set[str] = set()
        self._until_ms: int | None = None
        self._old = 0

    @property
    def begun(self) -> bool:
        """Whether anything was shown."""
        return self._until_ms is not None

    def at(self, came: Sequence[Mapping[str, Any]], now_ms: int) -> list[Mapping[str, Any]]:
        """What of an answer is new."""
        if self._until_ms is None:
            self._until_ms = max(now_ms + _COARSE_MS, *map(_age, came))
        new = [raw for raw in came if raw["MessageId"] not in self._seen and _age(raw) <= self._until_ms]
        self._seen.update(raw["MessageId"] for raw in new)
        self._old = 0 if new else self._old + 1
        self.ended = self._old >= _OLD_ANSWERS
        return new


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
    # A standard queue's message that SQS itself moved keeps the time at which it was first sent.
    known = fifo or _SOURCE not in attributes
    return Letter(
        position=raw["MessageId"],
        message=message,
        context=context,
        dead_lettered_ms=_age(raw) if known and "SentTimestamp" in attributes else None,
    )


def _age(raw: Mapping[str, Any]) -> int:
    return int((raw.get("Attributes") or {}).get("SentTimestamp", 0))


def _server_ms(answer: Mapping[str, Any]) -> int:
    """What SQS's clock says, to the second; ours, if it does not tell."""
    text = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date", "")
    try:
        return int(parsedate_to_datetime(text).timestamp() * 1000)
    except ValueError:
        return time.time_ns() // 1_000_000
