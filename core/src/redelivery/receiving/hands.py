"""`Hands`: the messages under our lease. Settles them, keeps their leases alive, gives them back.

A lost lease is never settled. Decides nothing but when to try a settlement again, which is `policy.decide`'s to say.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta

from redelivery import policy
from redelivery.broker import Accept, GiveBack, Outcome, Received, Receiver
from redelivery.clock import Clock
from redelivery.errors import BrokerError, Fatal, LeaseLost, Unsupported
from redelivery.report import SubscriptionReport
from redelivery.settings import redact
from redelivery.spec import DeliverySpec

log = logging.getLogger("redelivery.subscription")


@dataclass(slots=True, eq=False)
class Hand:
    """One message under our lease.

    Attributes:
        received: with the lease as last prolonged.
        began: when its handler began, monotonic seconds; None: it has not.
        ended: its handler has come back.
        overran: its handler took too long, and another thread has the place of its own.
        decided: what becomes of it is under way; what its handler still says no longer matters.
        dead: it was given up, and a sink has confirmed it.
    """

    received: Received
    began: float | None = None
    ended: bool = False
    overran: bool = False
    decided: bool = False
    dead: bool = False

    def is_late(self, now: float, limit: float) -> bool:
        """Whether its handler still runs after so many seconds."""
        if self.began is None or self.ended or self.decided:
            return False
        return now - self.began > limit


@dataclass(frozen=True, slots=True)
class _Pending:
    """A settlement to be tried again."""

    due: float
    attempts: int
    first: float
    hand: Hand
    outcome: Outcome


class Hands:
    """What one receiver has leased.

    Args:
        receiver: the broker's.
        spec: the subscription's; settlements are tried again as deliveries to a sink are.
        lease: how long a prolonged lease lasts.
        report: counts what happens to leases.
    """

    def __init__(
        self,
        receiver: Receiver,
        *,
        spec: DeliverySpec,
        lease: timedelta,
        report: SubscriptionReport,
        clock: Clock,
        random: Callable[[], float],
    ) -> None:
        self.receiver = receiver
        self._spec = policy.for_sink(spec)
        self._lease = lease.total_seconds()
        self._report = report
        self._clock = clock
        self._random = random
        self._held: dict[Hand, None] = {}
        self._can_prolong = True
        self._pending: list[_Pending] = []

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[Hand]:
        return iter(list(self._held))

    def take(self, most: int, wait: float) -> list[Hand]:
        """Lease up to `most` messages, waiting up to `wait` seconds for the first. Raises BrokerError."""
        taken = [Hand(received) for received in self.receiver.receive(most, wait=wait)]
        self._held.update(dict.fromkeys(taken))
        self._report.received += len(taken)
        return taken

    def settle(self, outcomes: Sequence[tuple[Hand, Outcome]]) -> None:
        """End leases. What cannot be ended now is tried again by `tend`. Raises a fatal BrokerError."""
        now = self._clock.monotonic()
        self._settle([_Pending(now, 1, now, hand, outcome) for hand, outcome in outcomes])

    def tend(self) -> None:
        """Try again what is due, and prolong leases that have less than half their time left."""
        now = self._clock.monotonic()
        due = [each for each in self._pending if each.due <= now]
        if due:
            self._pending = [each for each in self._pending if each.due > now]
            self._settle(due)
        self._prolong(now)

    def lose(self, hand: Hand) -> None:
        """The lease is gone: whoever has the message now answers for it."""
        if hand in self._held:
            del self._held[hand]
            self._report.lost += 1
        hand.decided = True

    def forget(self, hand: Hand) -> None:
        """The broker has ended the lease by itself."""
        self._held.pop(hand, None)

    def give_back(self) -> None:
        """Give back everything. Never raises: a lease that cannot be ended runs out."""
        leases = [hand.received for hand in self._held]
        self._held.clear()
        if not leases:
            return
        try:
            answers = self.receiver.settle([(received, GiveBack()) for received in leases])
        except BrokerError as error:
            log.warning("%d messages come back when their leases end: %s", len(leases), redact(str(error)))
            return
        self._report.given_back += sum(answer is None for answer in answers)

    def _settle(self, pending: Sequence[_Pending]) -> None:
        held = [each for each in pending if each.hand in self._held]
        if not held:
            return
        answers: Sequence[LeaseLost | BrokerError | None]
        try:
            answers = self.receiver.settle([(each.hand.received, each.outcome) for each in held])
        except BrokerError as error:
            answers = [error] * len(held)
        for each, answer in zip(held, answers, strict=True):
            if answer is None:
                self._held.pop(each.hand)
                self._report.accepted += isinstance(each.outcome, Accept) and not each.hand.dead
            elif isinstance(answer, LeaseLost):
                self.lose(each.hand)
            else:
                self._try_again(each, answer)

    def _try_again(self, each: _Pending, error: BrokerError) -> None:
        now = self._clock.monotonic()
        decision = policy.decide(
            self._spec,
            error,
            attempts=each.attempts,
            first_attempt=each.first,
            isolated=True,
            now=now,
            random=self._random,
        )
        if isinstance(decision, policy.Abort):
            raise error
        if isinstance(decision, policy.TryAgain):
            self._pending.append(_Pending(decision.at, each.attempts + 1, each.first, each.hand, each.outcome))
            return
        if each.hand.received.expires is None:
            raise error  # such a lease ends with its connection alone, and else the message would never come again
        log.warning("a message could not be settled and will come again: %s", redact(str(error)))
        self.lose(each.hand)

    def _prolong(self, now: float) -> None:
        half = now + self._lease / 2
        short = [hand for hand in self._held if hand.received.expires is not None and hand.received.expires < half]
        if not short or not self._can_prolong:
            return
        try:
            answers = self.receiver.extend([hand.received for hand in short], self._lease)
        except Unsupported:
            self._can_prolong = False  # they last as long as they last
            return
        except Fatal:
            raise
        except BrokerError as error:
            log.warning("leases could not be prolonged: %s", redact(str(error)))
            return
        for hand, answer in zip(short, answers, strict=True):
            if isinstance(answer, LeaseLost):
                self.lose(hand)
            else:
                hand.received = answer
