"""Requests of up to ten entries, each with an answer of its own. This file must not decide what follows from one."""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, Final

from redelivery.errors import Ambiguous, BrokerError, Retriable
from redelivery_sqs.errors import classified, classify_entry

#: Entries of one request.
MOST: Final = 10
#: Seconds after which no further request is begun: with the client's own timeouts a call ends within its bound.
PATIENCE: Final = 5.0
#: What SQS answers to a receipt handle that has run out, was used, or never was one.
_LOST: Final = frozenset({"ReceiptHandleIsInvalid", "MessageNotInflight", "InvalidIdFormat"})

Answer = BrokerError | None


def each(
    call: Callable[..., Mapping[str, Any]],
    url: str,
    entries: Sequence[Mapping[str, Any]],
    doing: str,
    *,
    end: float | None = None,
    wide: int = 1,
) -> list[Answer]:
    """Ask for entries in requests of ten, `wide` at a time; one answer each, in order. Never raises for SQS's answers.

    Once a whole request has failed, or it takes too long, the rest is not tried: nothing happened to it.
    No request is begun after `end`, monotonic seconds; `PATIENCE` from now if nothing is said.
    """
    end = time.monotonic() + PATIENCE if end is None else end
    chunks = [entries[start : start + MOST] for start in range(0, len(entries), MOST)]
    told: list[list[Answer]] = [[] for _ in chunks]
    waiting = deque(range(len(chunks)))
    failed: list[BrokerError] = []

    def work() -> None:
        while not failed and time.monotonic() <= end:
            try:
                at = waiting.popleft()
            except IndexError:
                return
            try:
                told[at] = _ask(call, url, chunks[at], doing)
            except BrokerError as error:
                told[at] = [error] * len(chunks[at])
                failed.append(error)
            except Exception as error:  # noqa: BLE001 - a thread's own: it must not pass for a request that was not made
                unknown = Ambiguous(f"sqs: {doing}: {type(error).__name__}; it may have been done or not")
                unknown.__cause__ = error
                told[at] = [unknown] * len(chunks[at])
                failed.append(unknown)

    # A thread that is started while the interpreter ends never begins: a look may be given up as late as that.
    more = 0 if sys.is_finalizing() else min(wide, len(chunks)) - 1
    helpers = [threading.Thread(target=work, daemon=True) for _ in range(more)]
    for helper in helpers:
        helper.start()
    work()
    for helper in helpers:
        helper.join()
    rest: BrokerError = Retriable(f"sqs: {doing}: not tried, as what went before took too long", code="NOT_TRIED")
    rest = next((error for error in failed if not isinstance(error, Ambiguous)), rest)
    return [answer for chunk, asked in zip(told, chunks, strict=True) for answer in chunk or [rest] * len(asked)]


def _ask(
    call: Callable[..., Mapping[str, Any]], url: str, entries: Sequence[Mapping[str, Any]], doing: str
) -> list[Answer]:
    """One request. Raises BrokerError: it failed as a whole."""
    named = [{**entry, "Id": str(at)} for at, entry in enumerate(entries)]
    with classified(doing):
        response = call(QueueUrl=url, Entries=named)
    done = {each.get("Id") for each in response.get("Successful") or ()}
    failed = {each.get("Id"): each for each in response.get("Failed") or ()}
    return [_answer(entry["Id"], done, failed, doing) for entry in named]


def is_lost(answer: Answer) -> bool:
    """Whether a receipt handle was refused because it is no longer good."""
    if answer is None:
        return False
    # FIFO queues say "The receipt handle has expired" with the code of any bad parameter.
    expired = answer.code == "InvalidParameterValue" and "receipt" in str(answer).lower()
    return answer.code in _LOST or expired


def _answer(id_: str, done: Container[Any], failed: Mapping[Any, Mapping[str, Any]], doing: str) -> Answer:
    if id_ in failed:
        return classify_entry(failed[id_], doing)
    if id_ in done:
        return None
    return Ambiguous(f"sqs: {doing}: SQS did not say what became of it", code="UNTOLD")
