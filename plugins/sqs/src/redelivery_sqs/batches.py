"""Requests of up to ten entries, each with an answer of its own. This file must not decide what follows from one."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
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
) -> list[Answer]:
    """Ask for entries in requests of ten; one answer each, in order. Never raises for what SQS answers.

    Once a whole request has failed, or it takes too long, the rest is not tried: nothing happened to it.
    No request is begun after `end`, monotonic seconds; `PATIENCE` from now if nothing is said.
    """
    answers: list[Answer] = []
    end = time.monotonic() + PATIENCE if end is None else end
    for start in range(0, len(entries), MOST):
        chunk = [{**entry, "Id": str(at)} for at, entry in enumerate(entries[start : start + MOST])]
        if time.monotonic() > end:
            answers += _untried(len(entries) - start, doing)
            break
        try:
            with classified(doing):
                response = call(QueueUrl=url, Entries=chunk)
        except BrokerError as error:
            answers += [error] * len(chunk)
            rest = len(entries) - len(answers)
            answers += _untried(rest, doing) if isinstance(error, Ambiguous) else [error] * rest
            break
        done = {each["Id"] for each in response.get("Successful") or ()}
        failed = {each["Id"]: each for each in response.get("Failed") or ()}
        answers += [_answer(entry["Id"], done, failed, doing) for entry in chunk]
    return answers


def is_lost(answer: Answer) -> bool:
    """Whether a receipt handle was refused because it is no longer good."""
    if answer is None:
        return False
    # FIFO queues say "The receipt handle has expired" with the code of any bad parameter.
    expired = answer.code == "InvalidParameterValue" and "receipt" in str(answer).lower()
    return answer.code in _LOST or expired


def _answer(id_: str, done: set[str], failed: Mapping[str, Mapping[str, Any]], doing: str) -> Answer:
    if id_ in failed:
        return classify_entry(failed[id_], doing)
    if id_ in done:
        return None
    return Ambiguous(f"sqs: {doing}: SQS did not say what became of it", code="UNTOLD")


def _untried(count: int, doing: str) -> list[Answer]:
    return [Retriable(f"sqs: {doing}: not tried, as what went before took too long", code="NOT_TRIED")] * count
