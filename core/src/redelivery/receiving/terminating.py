"""`TerminatingQueue`: the sink of a subscription whose broker itself moves a leased message to its dead letter queue.

Nothing is produced, and no duplicate can appear: the lease ends in the same step in which the letter is stored.
"""

from __future__ import annotations

from collections.abc import Sequence

from redelivery import policy
from redelivery.base.clock import Clock
from redelivery.base.urls import redact
from redelivery.contract.broker import Broker, Receiver, Terminate
from redelivery.contract.message import Batch
from redelivery.contract.spec import DeliverySpec
from redelivery.errors import BrokerError, LeaseLost
from redelivery.sending.group import Group
from redelivery.sending.send_queue import BatchResult, Bounds, SendQueue, SentBatch


class TerminatingQueue(SendQueue):
    """Settles each row's own lease with `Terminate`, in place of sending its letter anywhere."""

    moves = True

    def __init__(
        self, broker: Broker, receiver: Receiver, spec: DeliverySpec, clock: Clock, *, rename_type: str | None
    ) -> None:
        if spec.format is not None or (rename_type or spec.dead_letter_type) is not None:
            broker.native_sink()  # a letter with another body is not moved, but sent: that must be possible
        url, spec = redact(broker.dead_letter_places()[0]), policy.for_sink(spec)
        super().__init__(url, broker, spec, Bounds(), clock, rename_type=rename_type)
        self._receiver = receiver

    def open(self) -> None:
        """Do nothing: the receiver is open."""

    def send(self, batch: Batch, groups: Sequence[Group] | None = None) -> None:
        now = self._clock.monotonic()
        leased = [
            (group, letter, received)
            for group, letter in zip(groups or (), batch.rows(), strict=False)
            if (received := group.owner.received) is not None
        ]
        outcomes = [
            (received, Terminate(letter, group.reason, redact(str(group.error(0) or ""))))
            for group, letter, received in leased
        ]
        answers: Sequence[LeaseLost | BrokerError | None]
        try:
            answers = self._receiver.settle(outcomes)
        except BrokerError as error:
            answers = [error] * len(outcomes)
        failures: dict[int, BrokerError] = {}
        for index, ((group, _, _), answer) in enumerate(zip(leased, answers, strict=True)):
            if isinstance(answer, LeaseLost):
                group.owner.lose()
            elif answer is None:
                group.owner.moved()
            else:
                failures[index] = answer
        self._refused.append(BatchResult(SentBatch(batch, groups, now, now), failures))
