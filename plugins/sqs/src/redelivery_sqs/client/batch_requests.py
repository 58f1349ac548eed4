"""Requests of up to ten entries, in which each entry has its own answer."""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from redelivery.errors import Ambiguous, BrokerError, Retriable
from redelivery_sqs.errors import classified, classify_entry

#: Entries of one request at most.
MAX_ENTRIES: Final = 10
#: Seconds after which no further request begins: together with the client's own timeouts this bounds a call.
PATIENCE: Final = 5.0
#: SQS's codes for a receipt handle that has expired, was used, or never existed.
_INVALID_HANDLE: Final = frozenset({"ReceiptHandleIsInvalid", "MessageNotInflight", "InvalidIdFormat"})

#: The answer to one entry; None: done.
Answer = BrokerError | None
#: A method of a boto3 client.
Call = Callable[..., Mapping[str, Any]]


def request_each(
    call: Call,
    url: str,
    entries: Sequence[Mapping[str, Any]],
    doing: str,
    *,
    end: float | None = None,
    concurrency: int = 1,
) -> list[Answer]:
    """Send entries in requests of ten and return one answer each, in order. Never raises for SQS's answers.

    After a request has failed as a whole, or took too long, the rest is not tried: nothing happened to it.

    Args:
        call: the client's method; it gets `QueueUrl` and `Entries`.
        url: of the queue.
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
                answers[at] = _request(call, url, chunks[at], doing)
            except BrokerError as error:
                answers[at] = [error] * len(chunks[at])
                failed.append(error)
            except Exception as error:  # noqa: BLE001 - in a thread: the request must not look as if it was never made
                unknown = Ambiguous(f"sqs: {doing}: {type(error).__name__}; it may have been done or not")
                unknown.__cause__ = error
                answers[at] = [unknown] * len(chunks[at])
                failed.append(unknown)

    # A thread started while the interpreter ends never begins, and a scan may be given up as late as that.
    more = 0 if sys.is_finalizing() else min(concurrency, len(chunks)) - 1
    helpers = [threading.Thread(target=work, daemon=True) for _ in range(more)]
    for helper in helpers:
        helper.start()
    work()
    for helper in helpers:
        helper.join()
    rest: BrokerError = Retriable(
        f"sqs: {doing}: not tried, because earlier requests took too long", native_code="NOT_TRIED"
    )
    rest = next((error for error in failed if not isinstance(error, Ambiguous)), rest)
    return [answer for chunk, found in zip(chunks, answers, strict=True) for answer in found or [rest] * len(chunk)]


def answers_by_entry(response: Mapping[str, Any], count: int, doing: str) -> list[Answer]:
    """The answer to each of `count` entries, whose `Id` is their position."""
    done = {each.get("Id") for each in response.get("Successful") or ()}
    if len(done) == count:
        return [None] * count
    failed = {each.get("Id"): classify_entry(each, doing) for each in response.get("Failed") or ()}
    silent = Ambiguous(
        f"sqs: {doing}: the answer does not mention this entry; it may have been done or not", native_code="UNTOLD"
    )
    return [failed.get(id_, None if id_ in done else silent) for id_ in map(str, range(count))]


def is_lost(answer: Answer) -> bool:
    """Whether SQS refused a receipt handle because it is no longer valid."""
    if answer is None:
        return False
    # FIFO queues say "The receipt handle has expired" with the code of any bad parameter.
    expired = answer.native_code == "InvalidParameterValue" and "receipt" in str(answer).lower()
    return answer.native_code in _INVALID_HANDLE or expired


def _request(call: Call, url: str, entries: Sequence[Mapping[str, Any]], doing: str) -> list[Answer]:
    """Make one request. Raises BrokerError: it failed as a whole."""
    named = [{**entry, "Id": str(at)} for at, entry in enumerate(entries)]
    with classified(doing):
        response = call(QueueUrl=url, Entries=named)
    return answers_by_entry(response, len(named), doing)
