"""Leases of received messages, and one answer to each outcome.

::

    def settle(self, outcomes):
        call = Settlement(outcomes, self._is_held, self._lost)
        for at, (received, outcome) in call.waiting(Terminate):
            call.answer(at, self._send_letter(received, outcome.letter))
        ...
        return call.answers
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar, overload

from redelivery.base.clock import Clock, SystemClock
from redelivery.contract.broker import Outcome, Received
from redelivery.errors import Ambiguous, BrokerError, LeaseLost

__all__ = ["Clock", "Lease", "Settlement", "SystemClock", "answer_extend", "is_held", "lost", "prolonged"]

T = TypeVar("T")

Answer = LeaseLost | BrokerError | None


class Lease:
    """The right to settle one received message, until a given time or until it is settled.

    A plugin derives from it to add the broker's own handle.

    Args:
        expires: when it ends, monotonic seconds; None: with the connection.
    """

    __slots__ = ("__weakref__", "expires", "is_settled", "pid")

    def __init__(self, expires: float | None) -> None:
        self.expires = expires
        self.is_settled = False
        self.pid = os.getpid()

    def is_valid(self, now: float | None = None) -> bool:
        """Whether the message may still be settled: after a fork, only the parent may."""
        if self.is_settled or self.pid != os.getpid():
            return False
        return self.expires is None or (time.monotonic() if now is None else now) < self.expires


def is_held(received: Received) -> bool:
    """Whether a message's lease is one of this module, and valid."""
    return isinstance(received.lease, Lease) and received.lease.is_valid()


def lost(broker: str, place: str, received: Received) -> LeaseLost:
    """Return the answer for a message whose lease is no longer valid; nothing was changed."""
    text = "its lease has run out, belongs to another process, or was settled before; nothing was changed"
    return LeaseLost(f"{broker}: message {received.position} of {place}: {text}")


def prolonged(received: Received, expires: float) -> Received:
    """Return a message whose lease now ends at another time, monotonic seconds."""
    received.lease.expires = expires
    return replace(received, expires=expires)


def answer_extend(
    leases: Sequence[Received], ends: Mapping[int, float | BrokerError | None], lost: Callable[[Received], LeaseLost]
) -> list[Received | LeaseLost]:
    """Return the answers of a call of `Receiver.extend`, in order.

    Args:
        leases: the messages, in the order of the call.
        ends: by index, when the lease ends now (monotonic seconds), the error that prevented the prolongation, or
            None where it was not tried: the last two are answered with the unchanged message. Missing indexes are lost.
        lost: makes the answer for lost leases.

    Raises:
        BrokerError: each one that was tried failed; this is the first of the errors.
    """
    tried = [end for end in ends.values() if end is not None]
    errors = [end for end in tried if isinstance(end, BrokerError)]
    if errors and len(errors) == len(tried):
        raise errors[0]
    answers: list[Received | LeaseLost] = []
    for at, received in enumerate(leases):
        end = ends.get(at)
        if at not in ends:
            answers.append(lost(received))
        else:
            answers.append(prolonged(received, end) if isinstance(end, float | int) else received)
    return answers


class Settlement:
    """One call of `Receiver.settle`: which outcomes can be carried out, and one answer to each, in their order.

    An outcome whose lease is lost, or that is the second for its message, is answered at once.

    Args:
        outcomes: in the order of the call.
        is_held: whether a message is still leased to the caller.
        lost: makes the answer where the lease is lost.
    """

    def __init__(
        self,
        outcomes: Sequence[tuple[Received, Outcome]],
        is_held: Callable[[Received], bool],
        lost: Callable[[Received], LeaseLost],
    ) -> None:
        self.answers: list[Answer] = [None] * len(outcomes)
        self._lost = lost
        self._waiting: dict[int, tuple[Received, Outcome]] = {}
        seen: set[int] = set()
        for at, pair in enumerate(outcomes):
            received = pair[0]
            lease = id(received.lease)
            if lease not in seen and is_held(received):
                seen.add(lease)
                self._waiting[at] = pair
            else:
                self.answers[at] = lost(received)

    @overload
    def waiting(self) -> list[tuple[int, tuple[Received, Outcome]]]: ...

    @overload
    def waiting(self, *kinds: type[T]) -> list[tuple[int, tuple[Received, T]]]: ...

    def waiting(self, *kinds: type[Any]) -> list[tuple[int, tuple[Received, Any]]]:
        """Return the outcomes of these kinds, or all, that have no answer yet, each with its index."""
        return [(at, pair) for at, pair in self._waiting.items() if not kinds or isinstance(pair[1], kinds)]

    def answer(self, at: int, answer: Answer) -> None:
        """Answer an outcome. None: it was carried out. Both that and LeaseLost end the lease."""
        received, _ = self._waiting.pop(at)
        self.answers[at] = answer
        if isinstance(received.lease, Lease):
            received.lease.is_settled = answer is None or isinstance(answer, LeaseLost)

    def lose(self, at: int) -> None:
        """Answer an outcome whose lease turned out to be lost."""
        self.answer(at, self._lost(self._waiting[at][0]))

    def answer_failed_copies(self, failed: Mapping[int, BrokerError]) -> None:
        """Answer outcomes whose copy was not stored elsewhere, so that the message itself stays.

        A copy must be confirmed before its message is acknowledged. Where the confirmation is unknown, two messages may
        exist: the copy, and the message that comes again.
        """
        for at, error in failed.items():
            if isinstance(error, Ambiguous):
                kept = error.reclassified(Ambiguous, f"{error}; its message is kept, so that it may be there twice")
                kept.__cause__ = error
                self.answer(at, kept)
            else:
                self.answer(at, error)

    def answer_rest(self, answer: Answer) -> None:
        """Give the same answer to all outcomes that have none yet."""
        for at in list(self._waiting):
            self.answer(at, answer)
