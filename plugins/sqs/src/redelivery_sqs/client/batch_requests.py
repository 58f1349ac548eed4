"""Requests of up to ten entries, in which each entry has its own answer."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from queue import Empty, SimpleQueue
from typing import Any, Final

from redelivery.errors import Ambiguous, BrokerError, Retriable
from redelivery.kit.errors import Code
from redelivery_sqs.client.limits import MAX_ENTRIES
from redelivery_sqs.errors import entry_error

#: Seconds after which no further request begins: together with the client's own timeouts this bounds a call.
PATIENCE: Final = 5.0
#: Seconds that a thread waits for its next task.
_IDLE: Final = 10.0
#: The answer to one entry; None: done.
Answer = BrokerError | None
#: Makes one request of up to ten entries and returns their answers; raises BrokerError if it fails as a whole.
Request = Callable[[Sequence[Mapping[str, Any]]], list[Answer]]


def request_each(
    request: Request,
    entries: Sequence[Mapping[str, Any]],
    doing: str,
    *,
    end: float | None = None,
    concurrency: int = 1,
) -> list[Answer]:
    """Send entries in requests of ten and return one answer each, in order. Never raises for SQS's answers.

    After a request has failed as a whole, or took too long, the rest is not tried: nothing happened to it.

    Args:
        request: makes one request.
        entries: without their `Id`.
        doing: for error texts.
        end: monotonic seconds after which no request begins; by default `PATIENCE` seconds from now.
        concurrency: requests in flight at once.
    """
    end = time.monotonic() + PATIENCE if end is None else end
    chunks = [entries[start : start + MAX_ENTRIES] for start in range(0, len(entries), MAX_ENTRIES)]
    answers: list[list[Answer]] = [[] for _ in chunks]
    waiting = deque(range(len(chunks)))
    failed: list[BrokerError] = []

    def work() -> None:
        while not failed and time.monotonic() <= end:
            try:
                at = waiting.popleft()
            except IndexError:
                return
            try:
                answers[at] = request(chunks[at])
            except BrokerError as error:
                answers[at] = [error] * len(chunks[at])
                failed.append(error)

    side_by_side(work, min(concurrency, len(chunks)))
    rest: BrokerError = Retriable(
        f"sqs: {doing}: not tried, because earlier requests took too long", code=Code.NOT_SENT
    )
    rest = next((error for error in failed if not isinstance(error, Ambiguous)), rest)
    return [answer for chunk, found in zip(chunks, answers, strict=True) for answer in found or [rest] * len(chunk)]


class _Helpers:
    """Threads that work for one call after another: to start one takes as long as many a request.

    A thread without work ends after `_IDLE` seconds.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tasks: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._free = 0  # threads that wait and have no task to come

    def ask(self, task: Callable[[], None]) -> None:
        """Have a task done soon. It must not raise."""
        with self._lock:
            found = self._free > 0
            self._free -= found
        if found:
            self._tasks.put(task)
        else:
            threading.Thread(target=self._work, args=(task,), name="sqs-requests", daemon=True).start()

    def _work(self, task: Callable[[], None] | None) -> None:
        while task is not None:
            task()
            del task  # what it holds is its caller's
            with self._lock:
                self._free += 1
            task = self._next()

    def _next(self) -> Callable[[], None] | None:
        while True:
            try:
                return self._tasks.get(timeout=_IDLE)
            except Empty:
                with self._lock:
                    if self._free > 0:
                        self._free -= 1
                        return None


_helpers = _Helpers()


def _forget_inherited() -> None:
    global _helpers  # noqa: PLW0603 - a forked child has none of its parent's threads
    _helpers = _Helpers()


os.register_at_fork(after_in_child=_forget_inherited)


def side_by_side(work: Callable[[], None], count: int) -> None:
    """Call `work` in this thread and `count` - 1 others, and wait for all of them. It must not raise in the others."""
    # A thread started while the interpreter ends never begins, and a scan may be given up as late as that.
    more = 0 if sys.is_finalizing() else count - 1
    ended = threading.Semaphore(0)

    def help_out() -> None:
        try:
            work()
        finally:
            ended.release()

    asked = 0
    try:
        for _ in range(more):
            _helpers.ask(help_out)
            asked += 1
        work()
    finally:
        for _ in range(asked):
            ended.acquire()


def answers_by_entry(response: Mapping[str, Any], count: int, doing: str) -> list[Answer]:
    """The answer to each of `count` entries, whose `Id` is their position."""
    done = {each.get("Id") for each in response.get("Successful") or ()}
    if len(done) == count:
        return [None] * count
    failed = {each.get("Id"): entry_error(each, doing) for each in response.get("Failed") or ()}
    silent = Ambiguous(
        f"sqs: {doing}: the answer does not mention this entry; it may have been done or not", code=Code.UNCONFIRMED
    )
    return [failed.get(id_, None if id_ in done else silent) for id_ in map(str, range(count))]


def is_lost(answer: Answer) -> bool:
    """Whether SQS refused a receipt handle because it is no longer valid."""
    return answer is not None and answer.code is Code.LEASE_LOST
